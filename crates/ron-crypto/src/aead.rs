//! AES-GCM and ChaCha20-Poly1305: sealing and opening with associated data.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};

use crate::secret::{Secret32, SecretBytes};

/// Bytes that sealing adds at the end.
pub const TAG_LEN: usize = 16;

/// A cipher with a nonce of 12 bytes and a tag of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aead {
    /// NIST SP 800-38D.
    Aes128Gcm,
    /// NIST SP 800-38D.
    Aes256Gcm,
    /// RFC 8439.
    ChaCha20Poly1305,
}

impl Aead {
    /// Bytes of a key.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    fn cipher(self, key: &[u8]) -> LessSafeKey {
        let key = UnboundKey::new(self.algorithm(), key);
        LessSafeKey::new(key.expect("the key has the cipher's length"))
    }

    /// Encrypts; returns the ciphertext and its 16-byte tag. The caller must never use a nonce twice
    /// with one key: a repetition reveals both plaintexts and the authentication key. Panics when the
    /// key has another length than [`Aead::key_len`].
    #[must_use]
    pub fn seal(self, key: &[u8], nonce: &[u8; 12], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
        // Reserved up front: growing later would leave a copy of the plaintext behind.
        let mut sealed = Vec::with_capacity(plaintext.len() + TAG_LEN);
        sealed.extend_from_slice(plaintext);
        self.cipher(key)
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(aad),
                &mut sealed,
            )
            .expect("these ciphers seal up to 64 GiB");
        sealed
    }

    /// Decrypts the output of [`Aead::seal`]; `None` when the key, the nonce, the associated data or
    /// any bit differs.
    #[must_use]
    pub fn open(
        self,
        key: &[u8],
        nonce: &[u8; 12],
        aad: &[u8],
        sealed: &[u8],
    ) -> Option<SecretBytes> {
        // Decrypted in place in secret memory: the plaintext never lies in ordinary memory.
        let mut buffer = SecretBytes::from_slice(sealed);
        let length = self
            .cipher(key)
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(aad),
                buffer.expose_mut(),
            )
            .ok()?
            .len();
        buffer.truncate(length);
        Some(buffer)
    }
}

/// [`Aead::seal`] with AES-256-GCM.
#[must_use]
pub fn seal_aes256_gcm(key: &Secret32, nonce: &[u8; 12], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    Aead::Aes256Gcm.seal(key.expose(), nonce, aad, plaintext)
}

/// [`Aead::open`] with AES-256-GCM.
#[must_use]
pub fn open_aes256_gcm(
    key: &Secret32,
    nonce: &[u8; 12],
    aad: &[u8],
    sealed: &[u8],
) -> Option<SecretBytes> {
    Aead::Aes256Gcm.open(key.expose(), nonce, aad, sealed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        hex::decode(text).expect("test vectors are hex")
    }

    fn key(text: &str) -> Secret32 {
        Secret32::new(bytes(text).try_into().expect("keys have 32 bytes"))
    }

    /// Test cases 13 to 16 of the GCM specification that NIST SP 800-38D refers to.
    #[test]
    fn gcm_specification_vectors() {
        let check = |k: &str, iv: &str, aad: &str, plain: &str, sealed: &str| {
            let (k, iv, aad) = (key(k), bytes(iv).try_into().unwrap(), bytes(aad));
            assert_eq!(
                hex::encode(seal_aes256_gcm(&k, &iv, &aad, &bytes(plain))),
                sealed
            );
            let opened = open_aes256_gcm(&k, &iv, &aad, &bytes(sealed)).expect("it opens");
            assert_eq!(opened.expose(), bytes(plain));
        };
        let zero = "0".repeat(64);
        check(
            &zero,
            &"0".repeat(24),
            "",
            "",
            "530f8afbc74536b9a963b4f1c4cb738b",
        );
        check(
            &zero,
            &"0".repeat(24),
            "",
            &"0".repeat(32),
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        );
        check(
            "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
            "cafebabefacedbaddecaf888",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662\
             76fc6ece0f4e1768cddf8853bb2d551b",
        );
    }

    /// RFC 8439, 2.8.2.
    #[test]
    fn chacha_specification_vector() {
        let key = bytes("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
        let nonce = bytes("070000004041424344454647").try_into().unwrap();
        let aad = bytes("50515253c0c1c2c3c4c5c6c7");
        let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
                     sunscreen would be it.";
        let sealed = Aead::ChaCha20Poly1305.seal(&key, &nonce, &aad, text);
        let end = hex::encode(&sealed[text.len()..]);
        assert_eq!(end, "1ae10b594f09e26a7e902ecbd0600691");
        assert!(hex::encode(&sealed).starts_with("d31a8d34648e60db7b86afbc53ef7ec2"));
        let opened = Aead::ChaCha20Poly1305.open(&key, &nonce, &aad, &sealed);
        assert_eq!(opened.expect("it opens").expose(), text);
    }

    /// Test case 4 of the GCM specification.
    #[test]
    fn gcm_with_a_short_key() {
        let key = bytes("feffe9928665731c6d6a8f9467308308");
        let nonce = bytes("cafebabefacedbaddecaf888").try_into().unwrap();
        let aad = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let text = bytes(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        );
        let sealed = Aead::Aes128Gcm.seal(&key, &nonce, &aad, &text);
        let end = hex::encode(&sealed[text.len()..]);
        assert_eq!(end, "5bc94fbc3221a5db94fae95ae7121a47");
        let opened = Aead::Aes128Gcm.open(&key, &nonce, &aad, &sealed);
        assert_eq!(opened.expect("it opens").expose(), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn opens_only_what_was_sealed(
            plain in proptest::collection::vec(any::<u8>(), 0..200),
            aad in proptest::collection::vec(any::<u8>(), 0..40),
            k in any::<[u8; 32]>(),
            nonce in any::<[u8; 12]>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let k = Secret32::new(k);
            let sealed = seal_aes256_gcm(&k, &nonce, &aad, &plain);
            let opened = open_aes256_gcm(&k, &nonce, &aad, &sealed).expect("it opens");
            prop_assert_eq!(opened.expose(), &plain);

            let mut bent = sealed.clone();
            let bit = flip.index(bent.len() * 8);
            bent[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open_aes256_gcm(&k, &nonce, &aad, &bent).is_none());
            let mut other_aad = aad.clone();
            other_aad.push(0);
            prop_assert!(open_aes256_gcm(&k, &nonce, &other_aad, &sealed).is_none());
            prop_assert!(open_aes256_gcm(&k, &nonce, &aad, &sealed[..sealed.len() - 1]).is_none());
            prop_assert!(open_aes256_gcm(&k, &nonce, &aad, &sealed[..TAG_LEN - 1]).is_none());
        }
    }
}
