//! The ciphertext format. Pure: nonces and randomness are arguments.
//!
//! ```text
//! 0      format, 1
//! 1      algorithm: 1 aes256-gcm, 2 aes256-kwp, 3 x25519-hkdf-aes256-gcm, 4 x25519+ml-kem-768, 5 aes128-gcm,
//!        6 chacha20-poly1305, 7 rsa-oaep-2048, 8 rsa-oaep-3072, 9 rsa-oaep-4096
//! 2..6   key version, big-endian
//! 6..    1, 5: nonce 12 | ciphertext | tag 16      AES-GCM (NIST SP 800-38D), aad as given
//!        6: nonce 12 | ciphertext | tag 16         ChaCha20-Poly1305 (RFC 8439), aad as given
//!        2: RFC 5649 output                        binds no aad
//!        3: share 32 | ciphertext | tag 16         HPKE base mode (RFC 9180), DHKEM(X25519)
//!        7, 8, 9: as long as the modulus          RSAES-OAEP (RFC 8017), SHA-256, aad as the label
//!        4: share 1120 | ciphertext | tag 16       HPKE base mode, X-Wing
//! ```
//! The HPKE `info` is `ron-kms/v1/wrap`, a zero byte, and `key#vN`: a holder of the public key can
//! wrap for the key without calling the service. The header needs no protection of its own: another algorithm
//! or version selects another key, under which the body does not decrypt. `docs/formats/envelope.md` has an
//! example of each.

use ron_crypto::secret::{Secret32, SecretBytes};
use ron_crypto::wrap::{WRAP_MAX, unwrap_aes256_kwp, wrap_aes256_kwp};
use ron_crypto::{hpke, oaep};
use ron_kernel::Random;
use ron_proto::kms::{AAD_BYTES_MAX, WRAP_BYTES_MAX};
use ron_proto::values::{Alg, Kid};

use super::{PublicKey, SecretKey, aead_of, oaep_size_of};
use crate::{Cause, Refusal};

/// Bytes of the header, in front of the algorithm's output.
pub const HEADER_LEN: usize = 6;
/// Maximum bytes of a ciphertext: the longest plaintext, the header and the largest share with its tag.
pub const CIPHERTEXT_BYTES_MAX: usize = WRAP_BYTES_MAX + 2 * 1024;

/// The nonce of a cipher of [`aead_of`].
pub type Nonce = [u8; NONCE_LEN];

const NONCE_LEN: usize = 12;
const FORMAT: u8 = 1;
const INFO: &[u8] = b"ron-kms/v1/wrap\0";

/// The number of a wrapping algorithm in the header.
const fn code(alg: Alg) -> Option<u8> {
    match alg {
        Alg::Aes256Gcm => Some(1),
        Alg::Aes256Kwp => Some(2),
        Alg::X25519HkdfAes256Gcm => Some(3),
        Alg::X25519MlKem768 => Some(4),
        Alg::Aes128Gcm => Some(5),
        Alg::ChaCha20Poly1305 => Some(6),
        Alg::RsaOaep2048 => Some(7),
        Alg::RsaOaep3072 => Some(8),
        Alg::RsaOaep4096 => Some(9),
        _ => None,
    }
}

/// The same refusal for every ciphertext that does not decrypt: it must not reveal which part is wrong.
pub fn refused() -> Refusal {
    Refusal::new(
        Cause::CiphertextRefused,
        "the ciphertext does not open: it was changed, or its `aad` or its key is not the one it was made with",
    )
}

/// The header of a ciphertext made with this version.
pub fn header(alg: Alg, version: u32) -> [u8; HEADER_LEN] {
    let [a, b, c, d] = version.to_be_bytes();
    [FORMAT, code(alg).unwrap_or(0), a, b, c, d]
}

/// Version and body of a ciphertext for a key of `alg`.
pub fn parse(alg: Alg, ciphertext: &[u8]) -> Result<(u32, &[u8]), Refusal> {
    let (head, body) = ciphertext
        .split_first_chunk::<HEADER_LEN>()
        .ok_or_else(refused)?;
    let [FORMAT, what, version @ ..] = *head else {
        return Err(refused());
    };
    if code(alg) != Some(what) {
        return Err(refused());
    }
    Ok((u32::from_be_bytes(version), body))
}

/// The nonce of a use: its number, then 64 random bits. See `docs/adr/0006-nonces.md`.
pub fn nonce(number: u32, random: &dyn Random) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    random.fill(&mut nonce);
    nonce[..4].copy_from_slice(&number.to_be_bytes());
    nonce
}

/// The HPKE `info` of a key version.
fn info(kid: &Kid, version: u32) -> Vec<u8> {
    [INFO, kid.at(version).to_string().as_bytes()].concat()
}

/// Checks `aad` and the plaintext's length against the algorithm's limits.
pub fn check(alg: Alg, aad: Option<&[u8]>, length: usize) -> Result<(), Refusal> {
    let max = match oaep_size_of(alg) {
        Some(size) => oaep::plaintext_max(size),
        None if alg == Alg::Aes256Kwp => WRAP_MAX,
        None => WRAP_BYTES_MAX,
    };
    if length > max {
        let detail = format!(
            "`plaintext` has {length} bytes; {alg} wraps at most {max}. Wrap a data key instead."
        );
        return Err(Refusal::new(Cause::TooLarge, detail));
    }
    if alg == Alg::Aes256Kwp && length == 0 {
        let detail = "aes256-kwp wraps at least one byte";
        return Err(Refusal::new(Cause::BadRequest, detail));
    }
    check_aad(alg, aad)
}

/// Checks `aad` against the algorithm's limits.
pub fn check_aad(alg: Alg, aad: Option<&[u8]>) -> Result<(), Refusal> {
    match aad {
        Some(_) if alg == Alg::Aes256Kwp => Err(Refusal::new(
            Cause::Unsupported,
            "aes256-kwp binds no `aad`; leave it out or use another algorithm",
        )),
        Some(aad) if aad.len() > AAD_BYTES_MAX => Err(Refusal::new(
            Cause::TooLarge,
            format!("`aad` has {} bytes; at most {AAD_BYTES_MAX}", aad.len()),
        )),
        _ => Ok(()),
    }
}

/// Encrypts to a public key or under a symmetric key; a cipher of [`aead_of`] needs `nonce`. `None` when
/// the key does not wrap.
pub fn seal(
    (kid, version): (&Kid, u32),
    (secret, public): (&SecretKey, &PublicKey),
    nonce: Option<Nonce>,
    aad: &[u8],
    plaintext: &[u8],
    random: &dyn Random,
) -> Option<Vec<u8>> {
    let body = match (secret, public) {
        (SecretKey::Symmetric(Alg::Aes256Kwp, key), _) => {
            wrap_aes256_kwp(&Secret32::try_from_bytes(&key.key)?, plaintext)?
        }
        (SecretKey::Symmetric(alg, key), _) => {
            let nonce = nonce?;
            let sealed = aead_of(*alg)?.seal(key.key.expose(), &nonce, aad, plaintext);
            [&nonce[..], &sealed].concat()
        }
        (_, PublicKey::Kem(kem, raw)) => {
            hpke::seal(*kem, raw, &info(kid, version), aad, plaintext, random)?
        }
        (_, PublicKey::Oaep(_, raw)) => oaep::encrypt(raw, aad, plaintext)?,
        _ => return None,
    };
    Some([&header(kid.alg, version)[..], &body].concat())
}

/// Decrypts the body of a ciphertext of this version.
pub fn open(
    (kid, version): (&Kid, u32),
    secret: &SecretKey,
    aad: &[u8],
    body: &[u8],
) -> Option<SecretBytes> {
    match secret {
        SecretKey::Symmetric(Alg::Aes256Kwp, key) => {
            unwrap_aes256_kwp(&Secret32::try_from_bytes(&key.key)?, body)
        }
        SecretKey::Symmetric(alg, key) => {
            let (nonce, sealed) = body.split_first_chunk::<NONCE_LEN>()?;
            aead_of(*alg)?.open(key.key.expose(), nonce, aad, sealed)
        }
        SecretKey::Kem(key) => key.open(&info(kid, version), aad, body),
        SecretKey::Oaep(key) => key.decrypt(aad, body),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::SeededRandom;

    use super::super::kem_of;
    use super::*;

    const WRAPS: [Alg; 7] = [
        Alg::Aes128Gcm,
        Alg::Aes256Gcm,
        Alg::ChaCha20Poly1305,
        Alg::Aes256Kwp,
        Alg::X25519HkdfAes256Gcm,
        Alg::X25519MlKem768,
        Alg::RsaOaep2048,
    ];

    fn kid(alg: Alg) -> Kid {
        format!("t/p/{alg}/0190f0a0-0000-7000-8000-000000000000")
            .parse()
            .expect("a key name")
    }

    fn opened(alg: Alg, secret: &SecretKey, aad: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        let (version, body) = parse(alg, text).ok()?;
        open((&kid(alg), version), secret, aad, body).map(|s| s.expose().to_vec())
    }

    #[test]
    fn what_is_sealed_opens_and_nothing_else_does() {
        let random = SeededRandom::new(3);
        for alg in WRAPS {
            let aad: &[u8] = if alg == Alg::Aes256Kwp { b"" } else { b"aad" };
            let (secret, _) = SecretKey::generate(alg, &random);
            let public = secret.public();
            let nonce = Some(nonce(7, &random));
            let text = seal(
                (&kid(alg), 3),
                (&secret, &public),
                nonce,
                aad,
                b"secret",
                &random,
            )
            .expect("wraps");
            assert_eq!(text[..6], header(alg, 3));
            assert_eq!(
                opened(alg, &secret, aad, &text).as_deref(),
                Some(&b"secret"[..])
            );
            for at in 0..text.len() {
                let mut bad = text.clone();
                bad[at] ^= 1;
                let version_only = (2..6).contains(&at);
                // The version of a key only chooses which key is tried; HPKE binds it too.
                let chooses = version_only && kem_of(alg).is_none();
                assert_eq!(
                    opened(alg, &secret, aad, &bad).is_some(),
                    chooses,
                    "{alg} byte {at}"
                );
            }
            for length in 0..text.len() {
                assert!(
                    opened(alg, &secret, aad, &text[..length]).is_none(),
                    "{alg} {length}"
                );
            }
            assert!(opened(alg, &secret, b"ada", &text).is_none() || alg == Alg::Aes256Kwp);
            let (other, _) = SecretKey::generate(alg, &random);
            assert!(
                opened(alg, &other, aad, &text).is_none(),
                "{alg}: another key"
            );
        }
    }

    #[test]
    fn a_nonce_starts_with_its_use_number() {
        let random = SeededRandom::new(3);
        let (one, two) = (nonce(0x0102_0304, &random), nonce(0x0102_0304, &random));
        assert_eq!(one[..4], [1, 2, 3, 4]);
        assert_eq!(two[..4], [1, 2, 3, 4]);
        assert_ne!(one[4..], two[4..], "the rest is random");
    }

    #[test]
    fn limits_depend_on_the_algorithm() {
        let check = |alg, aad: Option<&[u8]>, length, want: Option<Cause>| {
            assert_eq!(
                check(alg, aad, length).err().map(|e| e.cause),
                want,
                "{alg} {length}"
            );
        };
        check(Alg::Aes256Gcm, Some(b"a"), 0, None);
        check(Alg::Aes256Gcm, None, WRAP_BYTES_MAX, None);
        check(
            Alg::Aes256Gcm,
            None,
            WRAP_BYTES_MAX + 1,
            Some(Cause::TooLarge),
        );
        check(
            Alg::Aes256Gcm,
            Some(&[0; AAD_BYTES_MAX + 1]),
            1,
            Some(Cause::TooLarge),
        );
        check(Alg::Aes256Kwp, None, 0, Some(Cause::BadRequest));
        check(Alg::Aes256Kwp, None, WRAP_MAX, None);
        check(Alg::Aes256Kwp, None, WRAP_MAX + 1, Some(Cause::TooLarge));
        check(Alg::Aes256Kwp, Some(b""), 1, Some(Cause::Unsupported));
    }
}
