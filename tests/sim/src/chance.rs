//! What the worlds on a network draw from the seed.

use std::time::Duration;

use ron_sim::fault;

/// A number below `n`, which is not 0.
pub fn below(n: u64) -> u64 {
    fault::random() % n
}

/// One of three, each as likely.
pub fn one_of(list: [u32; 3]) -> u32 {
    list[below(3) as usize]
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
