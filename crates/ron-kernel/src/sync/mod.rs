//! The one place that swaps the machine's primitives for a model checker's, so that the models run
//! the real protocol code: `cfg(loom)` explores all interleavings of a few threads, `cfg(shuttle)`
//! samples those of many. Shapes follow parking_lot (guards by reference, no poisoning).

#[cfg(any(loom, shuttle))]
pub mod chan;
#[cfg(any(loom, shuttle))]
mod model;
#[cfg(not(any(loom, shuttle)))]
mod real;

#[cfg(any(loom, shuttle))]
pub use model::*;
#[cfg(not(any(loom, shuttle)))]
pub use real::*;

/// True when the environment asks this model run for the faulty version `MUTANT=name`. The faulty
/// lines themselves are behind `cfg(mutant = "name")` and are in no other build.
#[cfg(any(loom, shuttle))]
pub fn mutant(name: &str) -> bool {
    static ASKED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ASKED
        .get_or_init(|| std::env::var("MUTANT").ok())
        .as_deref()
        == Some(name)
}
