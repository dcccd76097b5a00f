//! Encryption to an RSA key: RSAES-OAEP with SHA-256 for hash and mask (RFC 8017, 7.1). No other padding decrypts: PKCS#1 v1.5
//! lets whoever sees which ciphertexts are refused decrypt them.

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::{
    OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, OaepPublicEncryptingKey,
    PrivateDecryptingKey, PublicEncryptingKey,
};

use crate::der;
use crate::pem::spki_rsa;
use crate::rsa::{RsaPublic, RsaSize};
use crate::secret::SecretBytes;
use crate::sign::KeyError;

/// Bytes of a hash.
const HASH_LEN: usize = 32;

/// Maximum bytes that a key of this size encrypts.
#[must_use]
pub const fn plaintext_max(size: RsaSize) -> usize {
    size.modulus_len() - 2 * HASH_LEN - 2
}

/// A private key of one size with the exponent 65537; PKCS#8 when it is stored.
pub struct OaepKey {
    key: OaepPrivateDecryptingKey,
    size: RsaSize,
    public: Box<[u8]>,
}

impl OaepKey {
    /// A new key from the operating system's randomness, and its PKCS#8 form for sealing. Takes as long as a key for signatures.
    pub fn generate(size: RsaSize) -> (Self, SecretBytes) {
        let key = PrivateDecryptingKey::generate(size.key_size())
            .expect("key generation fails only without system randomness");
        let document =
            aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&key)
                .expect("the library writes what it made");
        let pkcs8 = SecretBytes::from_slice(document.as_ref());
        let made = Self::from_pkcs8(size, pkcs8.expose()).expect("it was made so");
        (made, pkcs8)
    }

    /// Reads a PKCS#8 document of a key of this size with the exponent 65537.
    pub fn from_pkcs8(size: RsaSize, pkcs8: &[u8]) -> Result<Self, KeyError> {
        let key = PrivateDecryptingKey::from_pkcs8(pkcs8).map_err(|_| KeyError)?;
        let spki = key.public_key().as_der().map_err(|_| KeyError)?;
        let public = of_spki(spki.as_ref()).ok_or(KeyError)?;
        if RsaPublic::read(public).and_then(RsaPublic::size) != Some(size) {
            return Err(KeyError);
        }
        Ok(Self {
            public: public.into(),
            key: OaepPrivateDecryptingKey::new(key).map_err(|_| KeyError)?,
            size,
        })
    }

    pub fn size(&self) -> RsaSize {
        self.size
    }

    /// The public key as `RSAPublicKey` in DER.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Decrypts; `None` for everything that was not encrypted to this key under this label.
    pub fn decrypt(&self, label: &[u8], ciphertext: &[u8]) -> Option<SecretBytes> {
        let mut out = SecretBytes::zeroed(self.key.min_output_size());
        let opened = self.key.decrypt(
            &OAEP_SHA256_MGF1SHA256,
            ciphertext,
            out.expose_mut(),
            given(label),
        );
        opened.ok().map(|plain| SecretBytes::from_slice(plain))
    }
}

impl std::fmt::Debug for OaepKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("OaepKey([secret])")
    }
}

/// An empty label is no label (RFC 8017, 7.1.1).
fn given(label: &[u8]) -> Option<&[u8]> {
    (!label.is_empty()).then_some(label)
}

/// Encrypts to a public key (`RSAPublicKey` in DER) with the library's own randomness. `None` for more than [`plaintext_max`].
#[must_use]
pub fn encrypt(public: &[u8], label: &[u8], plaintext: &[u8]) -> Option<Vec<u8>> {
    let key = PublicEncryptingKey::from_der(&spki_rsa(public)).ok()?;
    let key = OaepPublicEncryptingKey::new(key).ok()?;
    let mut out = vec![0; key.ciphertext_size()];
    let made = key.encrypt(&OAEP_SHA256_MGF1SHA256, plaintext, &mut out, given(label));
    let length = made.ok()?.len();
    out.truncate(length);
    Some(out)
}

/// The `RSAPublicKey` inside of a `SubjectPublicKeyInfo`.
fn of_spki(spki: &[u8]) -> Option<&[u8]> {
    let body = der::only(der::SEQUENCE, spki)?;
    let (_, rest) = der::read(der::SEQUENCE, body)?;
    // The first byte of a bit string counts the bits that are left over.
    der::only(der::BIT_STRING, rest)?.strip_prefix(&[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_and_the_label_open_what_was_encrypted() {
        let (key, pkcs8) = OaepKey::generate(RsaSize::Bits2048);
        let again = OaepKey::from_pkcs8(RsaSize::Bits2048, pkcs8.expose()).expect("a key");
        assert_eq!(again.public(), key.public());
        assert!(OaepKey::from_pkcs8(RsaSize::Bits3072, pkcs8.expose()).is_err());
        let (other, _) = OaepKey::generate(RsaSize::Bits2048);
        let most = plaintext_max(RsaSize::Bits2048);
        for (label, length) in [(&b""[..], 0), (b"", most), (b"row 7", 1), (b"row 7", most)] {
            let text = vec![7; length];
            let sealed = encrypt(key.public(), label, &text).expect("fits");
            assert_eq!(sealed.len(), 256);
            let opened = again.decrypt(label, &sealed).expect("opens");
            assert_eq!(opened.expose(), text);
            assert!(key.decrypt(b"row 8", &sealed).is_none());
            assert!(other.decrypt(label, &sealed).is_none());
            let mut changed = sealed.clone();
            changed[100] ^= 1;
            assert!(key.decrypt(label, &changed).is_none());
            assert!(key.decrypt(label, &sealed[1..]).is_none());
        }
        assert!(encrypt(key.public(), b"", &vec![0; most + 1]).is_none());
    }
}
