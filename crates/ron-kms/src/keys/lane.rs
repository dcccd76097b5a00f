//! The lane of use numbers of an AES-256-GCM key: see [`super::symmetric`] for what they are.
//!
//! The tests run this file a second time on the primitives of a checker (`tests/lane_model.rs`), so
//! it names them through its parent.

use super::atomics::{AtomicBool, AtomicU64, Ordering};

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
