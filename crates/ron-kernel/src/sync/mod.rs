//! The one place that swaps the machine's primitives for a model checker's, so that the models run
//! the real protocol code: `cfg(loom)` explores all interleavings of a few threads, `cfg(shuttle)`
//! samples those of many. `cfg(sim)` runs whole programs under a seed, with virtual time (docs/SIMULATION.md). Shapes
//! follow parking_lot (guards by reference, no poisoning).

#[cfg(any(loom, shuttle))]
pub mod chan;
#[cfg(not(sim))]
mod clock;
#[cfg(any(loom, shuttle))]
mod model;
#[cfg(not(any(loom, shuttle, sim)))]
mod real;
#[cfg(sim)]
mod sim;

#[cfg(not(sim))]
pub use clock::*;
#[cfg(any(loom, shuttle))]
pub use model::*;
#[cfg(not(any(loom, shuttle, sim)))]
pub use real::*;
#[cfg(sim)]
pub use sim::*;

/// What ended a wait for one of several events.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
pub enum Selected<T, U> {
    First(T),
    Second(U),
    /// One of the channels is empty and has no sender left.
    Disconnected,
    /// The gate is open.
    Opened,
    TimedOut,
}

/// Runs `f` without another thread in between where threads are simulated; everywhere else just runs it.
#[cfg(not(sim))]
pub fn undivided<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Runs `body` and returns its panic, if it panicked.
#[cfg(not(any(loom, shuttle)))]
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, Box<dyn std::any::Any + Send>> {
    // Unwind-safe by use: after a panic the supervisor runs the body again from its start, and the
    // hang pool drops the handle that the call used.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
}

/// Cores of the machine that a model or a simulation stands for.
#[cfg(any(loom, shuttle, sim))]
pub fn cores() -> usize {
    2
}

/// One call after the other on the caller's thread: neither checkers nor the simulator have scoped threads.
#[cfg(any(loom, shuttle, sim))]
pub fn scoped<R: Send>(n: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    (0..n).map(f).collect()
}

/// One half after the other on the caller's thread, as in [`scoped`]; the items between them are all kept.
#[cfg(any(loom, shuttle, sim))]
// The same signature as the real one, which may fail.
#[allow(clippy::unnecessary_wraps)]
pub fn beside<T: Send, A: Send, B>(
    _name: &str,
    _ahead: usize,
    make: impl FnOnce(&mut dyn FnMut(T) -> bool) -> A + Send,
    take: impl FnOnce(&mut dyn Iterator<Item = T>) -> B,
) -> std::io::Result<(A, B)> {
    let mut items = Vec::new();
    let made = make(&mut |item| {
        items.push(item);
        true
    });
    Ok((made, take(&mut items.into_iter())))
}

/// True when the environment asks this model run for the faulty version `MUTANT=name`. The faulty
/// lines themselves are behind `cfg(mutant = "name")` and are in no other build.
#[cfg(any(loom, shuttle, sim))]
pub fn mutant(name: &str) -> bool {
    static ASKED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ASKED
        .get_or_init(|| std::env::var("MUTANT").ok())
        .as_deref()
        == Some(name)
}
