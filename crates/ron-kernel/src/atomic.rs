//! Atomics of protocols that the simulator explores: their accesses are points at which it may let another thread run.
//! In every other build they are the machine's. Counters and flags on which no protocol depends take the machine's at once.

pub use std::sync::atomic::Ordering;

#[cfg(not(sim))]
pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

#[cfg(sim)]
pub use ron_sim::sync::{AtomicBool, AtomicU64, AtomicUsize};
