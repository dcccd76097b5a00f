//! Symmetric keys, and the count of what they have been used for.
//!
//! A key for AES-256-GCM must never see one nonce twice. Its nonces are a use number, counted from
//! 0 and never given out twice, and 64 random bits after it (`docs/adr/0006-nonces.md`). The
//! numbers come in blocks: a block is reserved in the store, durably, before its first number is
//! used; what a crash leaves of a block is lost. So the lane in memory never needs to be written.
//!
//! ```text
//!  store    reserved up to 131072 ────────────────┐  (grows only, one transaction a block)
//!  lane     next 70011 ──> limit 131072 ──────────┘  (one atomic word: next << 32 | limit)
//!  nonce    00 01 11 7b | 8 random bytes
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ron_crypto::secret::{Secret32, SecretBytes};

/// A key of 32 bytes for AES-256-GCM, AES-256-KWP or HMAC-SHA-256.
pub struct SymmetricKey {
    /// The key.
    pub key: Secret32,
    /// Use numbers; needed for AES-256-GCM only.
    pub lane: UseLane,
}

impl SymmetricKey {
    /// The key of these 32 bytes, with an empty lane.
    pub fn from_secret(secret: &SecretBytes) -> Option<Self> {
        Some(Self {
            key: Secret32::try_from_bytes(secret)?,
            lane: UseLane::default(),
        })
    }
}

impl std::fmt::Debug for SymmetricKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// Use numbers that were reserved durably and not given out yet. Any thread takes, the store
/// thread alone fills.
#[derive(Debug, Default)]
pub struct UseLane {
    /// `next << 32 | limit`: the numbers `next..limit` are free.
    free: AtomicU64,
    /// Somebody has asked for the next block.
    asked: AtomicBool,
}

const fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

const fn pack(next: u32, limit: u32) -> u64 {
    (next as u64) << 32 | limit as u64
}

impl UseLane {
    /// A number that nobody else got or will get; `None` while the lane is empty.
    pub fn take(&self) -> Option<u32> {
        let step = |word: u64| {
            let (next, limit) = unpack(word);
            (next < limit).then(|| pack(next + 1, limit))
        };
        self.free
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
            .ok()
            .map(|word| unpack(word).0)
    }

    /// How many numbers are left.
    pub fn left(&self) -> u32 {
        let (next, limit) = unpack(self.free.load(Ordering::Acquire));
        limit - next
    }

    /// Adds the numbers `from..to`, which the store has just reserved. When they do not follow the
    /// ones that are there, as after a restart, those are given up.
    pub fn fill(&self, from: u32, to: u32) {
        debug_assert!(from <= to);
        let step = |word: u64| {
            let (next, limit) = unpack(word);
            Some(if limit == from && next < limit {
                pack(next, to)
            } else {
                pack(from, to)
            })
        };
        let _ = self
            .free
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step); // `step` never refuses
        self.asked.store(false, Ordering::Release);
    }

    /// True for the one caller who is to ask for the next block now.
    pub fn ask(&self) -> bool {
        !self.asked.swap(true, Ordering::AcqRel)
    }

    /// Nobody has asked after all.
    pub fn unask(&self) {
        self.asked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_given_once_and_in_blocks() {
        let lane = UseLane::default();
        assert_eq!((lane.take(), lane.left()), (None, 0));
        lane.fill(5, 7);
        assert_eq!(
            [lane.take(), lane.take(), lane.take()],
            [Some(5), Some(6), None]
        );
        lane.fill(7, 9);
        assert_eq!(lane.take(), Some(7));
        lane.fill(9, 12);
        assert_eq!(lane.left(), 4, "a block that follows is joined");
        lane.fill(100, 102);
        assert_eq!((lane.take(), lane.left()), (Some(100), 1));
        lane.fill(u32::MAX - 1, u32::MAX);
        assert_eq!((lane.take(), lane.take()), (Some(u32::MAX - 1), None));
    }

    #[test]
    fn one_caller_asks_for_a_block() {
        let lane = UseLane::default();
        assert!(lane.ask());
        assert!(!lane.ask());
        lane.fill(0, 1);
        assert!(lane.ask());
        lane.unask();
        assert!(lane.ask());
    }

    #[test]
    fn threads_never_share_a_number() {
        let lane = UseLane::default();
        let done = AtomicBool::new(false);
        let taker = || {
            let mut mine = Vec::new();
            loop {
                match lane.take() {
                    Some(number) => mine.push(number),
                    None if done.load(Ordering::Acquire) => return mine,
                    None => std::hint::spin_loop(),
                }
            }
        };
        let all: Vec<u32> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(taker)).collect();
            for block in 0..40 {
                lane.fill(block * 500, (block + 1) * 500);
            }
            done.store(true, Ordering::Release);
            let taken = takers.into_iter().flat_map(|t| t.join().expect("a taker"));
            taken.collect()
        });
        let distinct: BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "a number was given twice");
        assert_eq!(all.len() + lane.left() as usize, 20_000, "none is lost");
    }
}
