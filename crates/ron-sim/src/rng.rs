//! Random numbers from a seed: SplitMix64 (Steele, Lea, Flood, 2014), one generator per purpose, so that a draw for one
//! purpose does not shift the draws for another.

#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Purposes of random numbers in a run.
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    /// What kind of run a seed makes.
    Plan = 1,
    Schedule = 2,
    Faults = 3,
    Program = 4,
    HashSeeds = 5,
    Ranks = 6,
    Stalls = 7,
}

impl Rng {
    pub fn new(seed: u64, stream: Stream) -> Self {
        let mut rng = Self(seed ^ mix(stream as u64));
        rng.next();
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`; 0 when `n` is 0. The bias of at most n / 2^64 does not matter here.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True `per_million` times in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

/// A bijection of 64 bits in which every bit of the input changes about half of the output.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let first = |stream| Rng::new(7, stream).next();
        assert_eq!(first(Stream::Schedule), first(Stream::Schedule));
        assert_ne!(first(Stream::Schedule), first(Stream::Faults));
        let mut rng = Rng::new(7, Stream::Program);
        assert!((0..1_000).all(|_| rng.below(10) < 10));
        let hits = (0..100_000).filter(|_| rng.chance(20_000)).count();
        assert!((1_500..2_500).contains(&hits), "{hits} of 100,000 at 2 %");
        assert!(!rng.chance(0));
    }
}
