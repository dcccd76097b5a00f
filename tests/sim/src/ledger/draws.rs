//! Random draws of one caller, from its own stream: what others do does not move them.

use ron_kernel::{Random, SeededRandom};

#[derive(Debug)]
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Self {
        let mut first = [0; 8];
        SeededRandom::new(seed).fill(&mut first);
        Self(u64::from_le_bytes(first) | 1)
    }

    /// A number below `n`, which is not 0 (xorshift64).
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % n
    }

    /// Any of them; `None` where there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        match of.len() as u64 {
            0 => None,
            n => of.get(self.below(n) as usize),
        }
    }
}
