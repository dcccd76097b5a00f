//! Answers to operations with an id, sealed for an engine in which all nodes find them.

use ron_crypto::aead::{open_aes256_gcm, seal_aes256_gcm};
use ron_crypto::hash::hmac_sha256;
use ron_crypto::secret::Secret32;
use ron_kernel::SharedRandom;

use super::KeyStore;

const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;

/// Seals answers: `salt 16 | nonce 12 | ciphertext | tag`. Each has a key of its own, derived from the salt: answers are as
/// many as signatures, and one key allows 2^32 random nonces.
pub struct AnswerSealer {
    key: Secret32,
    random: SharedRandom,
}

impl std::fmt::Debug for AnswerSealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnswerSealer([secret])")
    }
}

impl AnswerSealer {
    fn key_of(&self, salt: &[u8]) -> Secret32 {
        Secret32::new(hmac_sha256(self.key.expose(), salt))
    }

    /// Seals the answer to the operation that `about` names.
    pub fn seal(&self, about: &[u8], answer: &[u8]) -> Vec<u8> {
        let salt = self.random.bytes::<SALT_BYTES>();
        let nonce = self.random.bytes::<NONCE_BYTES>();
        let mut sealed = [&salt[..], &nonce[..]].concat();
        sealed.extend(seal_aes256_gcm(&self.key_of(&salt), &nonce, about, answer));
        sealed
    }

    /// The answer; `None` when it was sealed for another operation or with another seal key, or was changed.
    pub fn open(&self, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (salt, rest) = sealed.split_at_checked(SALT_BYTES)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let answer = open_aes256_gcm(&self.key_of(salt), nonce, about, sealed)?;
        Some(answer.expose().to_vec())
    }
}

impl KeyStore {
    /// Seals answers with a key that is derived from the seal key, which all nodes have.
    pub fn answers(&self) -> AnswerSealer {
        AnswerSealer {
            key: Secret32::new(self.sealer.mac("remembered answers", b"")),
            random: self.random.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ron_kernel::SeededRandom;

    use super::*;

    #[test]
    fn an_answer_opens_for_its_operation_and_unchanged() {
        let sealer = |digit| AnswerSealer {
            key: Secret32::new([digit; 32]),
            random: Arc::new(SeededRandom::new(1)),
        };
        let sealed = sealer(1).seal(b"one", b"answer");
        assert_ne!(sealed, sealer(1).seal(b"two", b"answer"));
        let opened = sealer(1).open(b"one", &sealed);
        assert_eq!(opened.as_deref(), Some(&b"answer"[..]));
        assert_eq!(sealer(1).open(b"two", &sealed), None);
        assert_eq!(sealer(2).open(b"one", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(sealer(1).open(b"one", &changed), None, "byte {at}");
            assert_eq!(sealer(1).open(b"one", &sealed[..at]), None, "{at} bytes");
        }
    }
}
