//! Symmetric keys, and the counter of their uses.
//!
//! A key for AES-GCM or ChaCha20-Poly1305 must never use one nonce twice. Its nonces are a use number, counted from
//! 0 and never given out twice, followed by 64 random bits (`docs/adr/0006-nonces.md`). The numbers
//! are reserved in blocks: a block is durable in the store before its first number is used, and a crash
//! wastes the rest of it. So the allocator in memory never needs to be written.
//!
//! ```text
//!  store    reserved up to 131072 ────────────────┐  (grows only, one transaction a block)
//!  memory   next 70011 ──> limit 131072 ──────────┘  (one atomic word: next << 32 | limit)
//!  nonce    00 01 11 7b | 8 random bytes
//! ```

use ron_crypto::Sha2;
use ron_crypto::aead::Aead;
use ron_crypto::secret::SecretBytes;
use ron_proto::values::Alg;

pub use super::use_numbers::UseNumbers;

/// The cipher of an algorithm that needs a nonce.
pub const fn aead_of(alg: Alg) -> Option<Aead> {
    match alg {
        Alg::Aes128Gcm => Some(Aead::Aes128Gcm),
        Alg::Aes256Gcm => Some(Aead::Aes256Gcm),
        Alg::ChaCha20Poly1305 => Some(Aead::ChaCha20Poly1305),
        _ => None,
    }
}

/// The hash function of an algorithm that makes MACs.
pub const fn mac_of(alg: Alg) -> Option<Sha2> {
    match alg {
        Alg::HmacSha256 => Some(Sha2::Sha256),
        Alg::HmacSha384 => Some(Sha2::Sha384),
        Alg::HmacSha512 => Some(Sha2::Sha512),
        _ => None,
    }
}

/// Bytes of a symmetric key that is made here; `None` for other algorithms. A key for MACs is as long as its hash.
pub const fn symmetric_len(alg: Alg) -> Option<usize> {
    match (alg, aead_of(alg), mac_of(alg)) {
        (Alg::Aes256Kwp | Alg::HkdfSha256, ..) => Some(32),
        (_, Some(aead), _) => Some(aead.key_len()),
        (_, _, Some(hash)) => Some(hash.size()),
        _ => None,
    }
}

/// Lengths of a secret to derive from. Those that are made here have 32 bytes; others come in as they are.
const HKDF_SECRET: std::ops::RangeInclusive<usize> = 16..=128;

/// Whether `alg` has keys of this length.
fn fits(alg: Alg, length: usize) -> bool {
    match alg {
        Alg::HkdfSha256 => HKDF_SECRET.contains(&length),
        _ => symmetric_len(alg) == Some(length),
    }
}

/// The bytes of a symmetric key.
pub struct SymmetricKey {
    pub key: SecretBytes,
    /// Allocator of use numbers; only ciphers with a nonce use it.
    pub use_numbers: UseNumbers,
}

impl SymmetricKey {
    /// The key of these bytes, with no use numbers reserved; `None` when `alg` has no keys of this length.
    pub fn from_secret(alg: Alg, secret: &SecretBytes) -> Option<Self> {
        if !fits(alg, secret.len()) {
            return None;
        }
        Some(Self {
            key: SecretBytes::from_slice(secret.expose()),
            use_numbers: UseNumbers::default(),
        })
    }
}

impl std::fmt::Debug for SymmetricKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn numbers_are_given_once_and_in_blocks() {
        let numbers = UseNumbers::default();
        assert_eq!((numbers.take(), numbers.left()), (None, 0));
        numbers.fill(5, 7);
        assert_eq!(
            [numbers.take(), numbers.take(), numbers.take()],
            [Some(5), Some(6), None]
        );
        numbers.fill(7, 9);
        assert_eq!(numbers.take(), Some(7));
        numbers.fill(9, 12);
        assert_eq!(numbers.left(), 4, "a block that follows is joined");
        numbers.fill(100, 102);
        assert_eq!((numbers.take(), numbers.left()), (Some(100), 1));
        numbers.fill(u32::MAX - 1, u32::MAX);
        assert_eq!((numbers.take(), numbers.take()), (Some(u32::MAX - 1), None));
    }

    #[test]
    fn one_caller_asks_for_a_block() {
        let numbers = UseNumbers::default();
        assert!(numbers.claim_request());
        assert!(!numbers.claim_request());
        numbers.fill(0, 1);
        assert!(numbers.claim_request());
        numbers.withdraw_request();
        assert!(numbers.claim_request());
    }

    #[test]
    fn threads_never_share_a_number() {
        let numbers = UseNumbers::default();
        let done = AtomicBool::new(false);
        let taker = || {
            let mut mine = Vec::new();
            loop {
                match numbers.take() {
                    Some(number) => mine.push(number),
                    None if done.load(Ordering::Acquire) => return mine,
                    None => std::hint::spin_loop(),
                }
            }
        };
        let all: Vec<u32> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(taker)).collect();
            for block in 0..40 {
                numbers.fill(block * 500, (block + 1) * 500);
            }
            done.store(true, Ordering::Release);
            let taken = takers.into_iter().flat_map(|t| t.join().expect("a taker"));
            taken.collect()
        });
        let distinct: BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "a number was given twice");
        assert_eq!(all.len() + numbers.left() as usize, 20_000, "none is lost");
    }
}
