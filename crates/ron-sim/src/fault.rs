//! Random numbers and faults of the program, from the seed.

use crate::rng::mix;
use crate::world::{next_seed_read, with_me};

/// A number below `n`, which counts as a decision of the schedule: 0 is the default, to which a failing run is
/// shortened. 0 outside of a run.
pub fn choose(n: u64) -> u64 {
    with_me(|me| me.choice("chooses", n, 1_000_000)).unwrap_or(0)
}

/// Whether a fault happens here, with this probability in a million. `name` appears in traces. Never outside of a run.
pub fn happens(name: &'static str, per_million: u32) -> bool {
    // Of two values, so that half of the draws are faults.
    let doubled = per_million.saturating_mul(2);
    let happens = with_me(|me| me.choice(name, 2, doubled)).unwrap_or(0) == 1;
    if happens {
        happened(name);
    }
    happens
}

/// Counts a fault that the program makes by other means than [`happens`], and tells of it.
pub fn happened(name: &'static str) {
    with_me(|me| me.world.state().count_fault(me.id, name));
}

/// Fills `out` with random bytes of the program; false, with nothing filled, outside of a run.
pub fn fill_random(out: &mut [u8]) -> bool {
    with_me(|me| me.fill(out)).is_some()
}

/// A random number of the program; 0 outside of a run.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// The generator for one read of hash seeds by the current thread: by seed, thread and number of the read, whatever
/// other threads do.
pub(crate) fn hash_seed() -> Option<u64> {
    let (seed, thread, read) = next_seed_read()?;
    Some(mix(mix(seed) ^ u64::from(thread) << 32 ^ read))
}
