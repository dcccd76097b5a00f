//! Derivation of secrets. Pure: a key and the other party's public key in, a secret out.
//!
//! ```text
//! hkdf-sha256    the key ──────────────────────────────┐
//! ecdh-*         the key and a public key ── x or u ───┴──> HKDF-SHA-256 (RFC 5869) with salt and info ──> secret
//! ```

use ron_crypto::hash::hkdf_sha256;
use ron_crypto::secret::SecretBytes;
use ron_proto::kms::{DERIVE_INPUT_BYTES_MAX, DERIVED_BYTES};
use ron_proto::values::Alg;

use super::{SecretKey, SymmetricKey, aead_of};
use crate::{Cause, Refusal};

/// What is derived, and with which inputs.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The other party's public key, for keys that agree.
    pub peer: Option<&'a [u8]>,
    pub salt: &'a [u8],
    pub info: &'a [u8],
    /// Length of the secret, in [`DERIVED_BYTES`].
    pub bytes: usize,
}

impl Inputs<'_> {
    /// Checks the lengths, which depend on no key.
    pub fn check(&self) -> Result<(), Refusal> {
        for (name, bytes) in [("salt", self.salt), ("info", self.info)] {
            if bytes.len() > DERIVE_INPUT_BYTES_MAX {
                let length = bytes.len();
                let detail = format!(
                    "`{name}` has {length} bytes; at most {DERIVE_INPUT_BYTES_MAX} are accepted"
                );
                return Err(Refusal::new(Cause::TooLarge, detail));
            }
        }
        let fits = |length| DERIVED_BYTES.contains(&length);
        if u32::try_from(self.bytes).is_ok_and(fits) {
            return Ok(());
        }
        let (least, most) = (DERIVED_BYTES.start(), DERIVED_BYTES.end());
        let detail = format!("`bytes` must be {least}..={most}");
        Err(Refusal::new(Cause::BadRequest, detail))
    }
}

/// Derives a secret from a key of `alg`.
pub fn derive(alg: Alg, secret: &SecretKey, inputs: Inputs<'_>) -> Result<SecretBytes, Refusal> {
    inputs.check()?;
    let bad = |detail: String| Refusal::new(Cause::BadRequest, detail);
    let shared;
    let from = match (secret, inputs.peer) {
        (SecretKey::Ecdh(key), Some(peer)) => {
            shared = key.agree(peer).ok_or_else(|| {
                bad(format!(
                    "`peer_public` is no public key that {alg} accepts: it must be {}",
                    form(alg)
                ))
            })?;
            shared.expose()
        }
        (SecretKey::Ecdh(_), None) => {
            let detail =
                "a key of this algorithm derives with another party's key; give `peer_public`";
            return Err(bad(detail.to_owned()));
        }
        (SecretKey::Symmetric(Alg::HkdfSha256, key), None) => key.key.expose(),
        (SecretKey::Symmetric(Alg::HkdfSha256, _), Some(_)) => {
            let detail = "a key of this algorithm derives by itself; leave `peer_public` out";
            return Err(bad(detail.to_owned()));
        }
        _ => return Err(Refusal::new(Cause::Internal, "the key derives nothing")),
    };
    let mut derived = SecretBytes::zeroed(inputs.bytes);
    hkdf_sha256(inputs.salt, from, inputs.info, derived.expose_mut());
    Ok(derived)
}

/// The key that Vault derives from a key for a context: HKDF-SHA-256 without a salt, as long as the key. `None` for keys whose
/// algorithm does not encrypt with a nonce.
pub fn for_context(secret: &SecretKey, context: &[u8]) -> Option<SecretKey> {
    let SecretKey::Symmetric(alg, key) = secret else {
        return None;
    };
    aead_of(*alg)?;
    let mut derived = SecretBytes::zeroed(key.key.len());
    hkdf_sha256(&[], key.key.expose(), context, derived.expose_mut());
    let key = SymmetricKey::from_secret(*alg, &derived)?;
    Some(SecretKey::Symmetric(*alg, key))
}

/// The one form of a public key.
const fn form(alg: Alg) -> &'static str {
    match alg {
        Alg::EcdhP256 => "a point of P-256 in 65 bytes, 04 || x || y",
        Alg::EcdhP384 => "a point of P-384 in 97 bytes, 04 || x || y",
        _ => "32 bytes below 2^255 - 19, and not of small order",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ron_kernel::SeededRandom;

    use super::*;

    fn inputs<'a>(peer: Option<&'a [u8]>, info: &'a [u8]) -> Inputs<'a> {
        Inputs {
            peer,
            salt: b"salt",
            info,
            bytes: 32,
        }
    }

    #[test]
    fn a_derivation_has_the_inputs_of_its_algorithm() {
        let random = SeededRandom::new(4);
        for alg in Alg::ALL {
            let (key, _) = SecretKey::generate(alg, &random);
            let public = key.public();
            let peer = alg.is_ecdh().then(|| public.raw());
            let cause = |peer| derive(alg, &key, inputs(peer, b"")).err().map(|e| e.cause);
            let expected = (!alg.derives()).then_some(Cause::Internal);
            assert_eq!(cause(peer), expected, "{alg}");
            if alg.derives() {
                let other = peer.is_none().then_some(&[4_u8][..]);
                assert_eq!(cause(other), Some(Cause::BadRequest), "{alg}");
            }
        }
    }

    /// Vault's derivation of a 32-byte key of 0, 1, 2, ... for the context `context`, computed with Python's `cryptography`.
    #[test]
    fn a_context_gives_the_key_that_vault_derives() {
        let raw: Vec<u8> = (0..32).collect();
        let check = |alg: Alg, length: usize, want: &str| {
            let secret = SecretBytes::from_slice(&raw[..length]);
            let key = SecretKey::from_secret(alg, &secret).expect("a key");
            let derived = for_context(&key, b"context").expect("a cipher");
            let derived = derived.symmetric().expect("a symmetric key").key.expose();
            assert_eq!(hex::encode(derived), want, "{alg}");
        };
        check(
            Alg::Aes256Gcm,
            32,
            "233711627fa14bf1a4d4e7b2e57714e9c1df4a01328a275dbf0e4e10dafeb8a4",
        );
        check(
            Alg::ChaCha20Poly1305,
            32,
            "233711627fa14bf1a4d4e7b2e57714e9c1df4a01328a275dbf0e4e10dafeb8a4",
        );
        check(Alg::Aes128Gcm, 16, "984a3572ec9814a4c0ab52f335351aec");
        for alg in [
            Alg::Aes256Kwp,
            Alg::HmacSha256,
            Alg::Ed25519,
            Alg::HkdfSha256,
        ] {
            let (key, _) = SecretKey::generate(alg, &SeededRandom::new(4));
            assert!(for_context(&key, b"context").is_none(), "{alg}");
        }
    }

    #[test]
    fn lengths_have_bounds() {
        let check = |salt: usize, info: usize, bytes: usize, want: Option<Cause>| {
            let (salt, info) = (vec![0; salt], vec![0; info]);
            let inputs = Inputs {
                peer: None,
                salt: &salt,
                info: &info,
                bytes,
            };
            assert_eq!(inputs.check().err().map(|e| e.cause), want, "{bytes}");
        };
        let most = DERIVE_INPUT_BYTES_MAX;
        check(most, most, 16, None);
        check(0, 0, 8160, None);
        check(0, 0, 15, Some(Cause::BadRequest));
        check(0, 0, 8161, Some(Cause::BadRequest));
        check(most + 1, 0, 32, Some(Cause::TooLarge));
        check(0, most + 1, 32, Some(Cause::TooLarge));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn two_parties_derive_the_same_and_others_do_not(
            seed in any::<u64>(),
            alg in prop::sample::select(&[Alg::EcdhP256, Alg::EcdhP384, Alg::EcdhX25519][..]),
            info in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let random = SeededRandom::new(seed);
            let [one, two, three] = [0; 3].map(|_| SecretKey::generate(alg, &random).0);
            let with = |mine: &SecretKey, peer: &SecretKey, info: &[u8]| {
                let public = peer.public();
                let derived = derive(alg, mine, inputs(Some(public.raw()), info));
                derived.expect("derives").expose().to_vec()
            };
            let secret = with(&one, &two, &info);
            prop_assert_eq!(&secret, &with(&two, &one, &info));
            prop_assert_ne!(&secret, &with(&one, &three, &info));
            let other = [&info[..], b"x"].concat();
            prop_assert_ne!(&secret, &with(&one, &two, &other));
        }
    }
}
