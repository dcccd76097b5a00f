//! AES-256-GCM: sealing and opening with associated data.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::secret::{Secret32, SecretBytes};

/// Bytes that sealing adds at the end.
pub const TAG_LEN: usize = 16;

fn cipher(key: &Secret32) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.expose()).expect("the key has 32 bytes"))
}

/// Encrypts; returns the ciphertext and its 16-byte tag. The caller must never use a nonce twice
/// with one key: a repetition reveals both plaintexts and the authentication key.
#[must_use]
pub fn seal_aes256_gcm(key: &Secret32, nonce: &[u8; 12], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    // Reserved up front: growing later would leave a copy of the plaintext behind.
    let mut sealed = Vec::with_capacity(plaintext.len() + TAG_LEN);
    sealed.extend_from_slice(plaintext);
    cipher(key)
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(*nonce),
            Aad::from(aad),
            &mut sealed,
        )
        .expect("AES-GCM seals up to 64 GiB");
    sealed
}

/// Decrypts the output of [`seal_aes256_gcm`]; `None` when the key, the nonce, the associated data
/// or any bit differs.
#[must_use]
pub fn open_aes256_gcm(
    key: &Secret32,
    nonce: &[u8; 12],
    aad: &[u8],
    sealed: &[u8],
) -> Option<SecretBytes> {
    // Decrypted in place in secret memory: the plaintext never lies in ordinary memory.
    let mut buffer = SecretBytes::from_slice(sealed);
    let length = cipher(key)
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
