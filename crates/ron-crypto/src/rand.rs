//! Random bytes: from the operating system, or from a seed where a run must be repeatable.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random bytes. Services receive it from outside, so that a simulation can pass a
/// seeded one.
pub trait Random: Send + Sync {
    /// Fills the whole buffer.
    fn fill(&self, out: &mut [u8]);
}

/// The library's generator, which is fork-safe and seeded by the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, out: &mut [u8]) {
        // Nothing may continue without randomness; the library fails only when the system has none.
        aws_lc_rs::rand::fill(out).expect("the operating system gives random bytes");
    }
}

/// Repeatable bytes for tests and simulations; never for real keys.
#[derive(Debug)]
pub struct SeededRandom {
    seed: u64,
    drawn: AtomicU64,
}

impl SeededRandom {
    /// The same seed and the same order of calls give the same bytes.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            drawn: AtomicU64::new(0),
        }
    }
}

impl Random for SeededRandom {
    fn fill(&self, out: &mut [u8]) {
        let call = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut hasher = ::blake3::Hasher::new();
        hasher.update(b"ron seeded random");
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(&call.to_le_bytes());
        hasher.finalize_xof().fill(out);
    }
}

/// Fills the buffer from the operating system.
pub fn fill(out: &mut [u8]) {
    OsRandom.fill(out);
}

/// `N` bytes from the operating system.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    fill(&mut out);
    out
}

/// A number from the operating system.
#[must_use]
pub fn u64() -> u64 {
    u64::from_le_bytes(bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_bytes_differ() {
        assert_ne!(bytes::<32>(), bytes::<32>());
        assert_ne!(u64(), u64());
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        let draw = |seed| {
            let random = SeededRandom::new(seed);
            let mut out = [[0; 40]; 3];
            for part in &mut out {
                random.fill(part);
            }
            out
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let parts = draw(1);
        assert!(parts[0] != parts[1] && parts[1] != parts[2]);
    }
}
