//! What tests with random moments share: their seed, their draws, and how many rounds they make. Only tests call it.

use crate::sim::CrashMode;

/// The number in an environment variable, by which a long run asks for more; else the default.
pub fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Random draws (xorshift64). A failed run prints its seed, and `RON_SEED` repeats it.
#[derive(Debug)]
pub struct Draws(u64);

impl Draws {
    pub fn seeded() -> Self {
        let seed = number("RON_SEED", std::process::id().into()) | 1;
        println!("seed {seed} (RON_SEED={seed} repeats the draws)");
        Self(seed)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// A result of a power cut for a last write of about `bytes`.
    pub fn crash_mode(&mut self, bytes: u64) -> CrashMode {
        match self.below(4) {
            0 => CrashMode::LoseAll,
            1 => CrashMode::KeepAll,
            2 => CrashMode::TearLast(self.below(bytes) as usize),
            _ => CrashMode::HoleInLast(512 * self.below(1 + bytes / 512) as usize),
        }
    }
}
