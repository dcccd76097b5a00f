//! Random bytes: from the operating system, or from a seed where a run must be repeatable.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::rand::{GetRandomFlags, getrandom};

/// A source of random bytes. A service receives it from outside, like its [`crate::Clock`], so that a
/// simulation can pass a seeded one.
pub trait Random: Send + Sync + Debug + 'static {
    /// Fills the whole buffer.
    fn fill(&self, out: &mut [u8]);

    fn u64(&self) -> u64 {
        let mut out = [0; 8];
        self.fill(&mut out);
        u64::from_le_bytes(out)
    }
}

impl dyn Random {
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }
}

/// Randomness shared by the threads of a service.
pub type SharedRandom = Arc<dyn Random>;

/// The operating system's generator (`getrandom`), for keys too.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRandom;

impl OsRandom {
    pub fn shared() -> SharedRandom {
        Arc::new(Self)
    }

    pub fn bytes<const N: usize>(self) -> [u8; N] {
        let random: &dyn Random = &self;
        random.bytes()
    }
}

impl Random for OsRandom {
    fn fill(&self, mut out: &mut [u8]) {
        #[cfg(sim)]
        if crate::sync::fill_random(out) {
            return;
        }
        while !out.is_empty() {
            match getrandom(&mut *out, GetRandomFlags::empty()) {
                // Requests above 256 bytes may be cut short by a signal.
                Ok(filled) => out = &mut out[filled..],
                Err(rustix::io::Errno::INTR) => {}
                // Nothing may continue without randomness.
                Err(error) => panic!("the operating system gives no random bytes: {error}"),
            }
        }
    }
}

/// Repeatable bytes for tests and simulations; never for real keys.
#[derive(Debug)]
pub struct SeededRandom {
    seed: u64,
    draws: AtomicU64,
}

impl SeededRandom {
    /// The same seed and the same order of calls give the same bytes.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            draws: AtomicU64::new(0),
        }
    }
}

impl Random for SeededRandom {
    fn fill(&self, out: &mut [u8]) {
        // Relaxed: only the uniqueness of the number matters.
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        let mut state = mix(mix(self.seed).wrapping_add(draw));
        for chunk in out.chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&mix(state).to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
pub const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_operating_system_differ() {
        assert_ne!(OsRandom.bytes::<32>(), OsRandom.bytes::<32>());
        assert_ne!(OsRandom.u64(), OsRandom.u64());
        let mut long = vec![0; 100_000];
        OsRandom.fill(&mut long);
        let zeros = long
            .chunks(1000)
            .filter(|part| part.iter().all(|b| *b == 0));
        assert_eq!(zeros.count(), 0, "the whole buffer is filled");
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        let draw = |seed| {
            let random = SeededRandom::new(seed);
            let mut out = [[0; 41]; 3];
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
