//! Random draws of the simulated disk and of tests.

/// Random draws (xorshift64). A failed run prints its seed, and `RON_SEED` repeats it.
#[derive(Debug)]
pub struct Draws(u64);

impl Draws {
    /// The draws of this number.
    pub const fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}
