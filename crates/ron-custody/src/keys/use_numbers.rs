//! The allocator of an AES-256-GCM key's use numbers, see [`super::symmetric`].
//!
//! The tests compile this file a second time on the atomics of a model checker (`keys/use_numbers_model.rs`), so
//! it imports them through its parent.

use super::atomics::{AtomicBool, AtomicU64, Ordering};

/// Use numbers that are reserved durably and not given out yet. Any thread takes numbers; only the store
/// thread adds blocks.
#[derive(Debug, Default)]
pub struct UseNumbers {
    /// `next << 32 | limit`: the numbers `next..limit` are free. One word, so that one compare-and-swap changes both.
    free: AtomicU64,
    /// Whether the next block is requested already.
    requested: AtomicBool,
}

const fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

const fn pack(next: u32, limit: u32) -> u64 {
    (next as u64) << 32 | limit as u64
}

impl UseNumbers {
    /// Takes one number, which is never given out again; `None` while no number is left.
    pub fn take(&self) -> Option<u32> {
        let step = |word: u64| {
            let (next, limit) = unpack(word);
            (next < limit).then(|| pack(next + 1, limit))
        };
        // Acquire pairs with the release in `fill`: the leaf of the reservation, queued before `fill`, precedes the
        // leaf of every use of its numbers.
        self.free
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
            .ok()
            .map(|word| unpack(word).0)
    }

    /// Number of free numbers.
    pub fn left(&self) -> u32 {
        let (next, limit) = unpack(self.free.load(Ordering::Acquire));
        limit - next
    }

    /// Adds the numbers `from..to`, which the store has just reserved. Free numbers that `from` does not continue are
    /// given up.
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
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step); // `step` always returns a value
        // After the numbers: a signer that sees the flag cleared sees the new numbers too, and requests no second block.
        self.requested.store(false, Ordering::Release);
    }

    /// True for exactly one caller until the next [`Self::fill`] or [`Self::withdraw_request`]: that caller requests the block.
    pub fn claim_request(&self) -> bool {
        !self.requested.swap(true, Ordering::AcqRel)
    }

    /// Takes the request back: it could not be queued.
    pub fn withdraw_request(&self) {
        self.requested.store(false, Ordering::Release);
    }
}
