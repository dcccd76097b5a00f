//! The simulator: runs repeat, primitives do what they say, planted bugs are found and their schedules shortened.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types
)] // a test may use the machine

mod bugs;
mod determinism;
mod ends;
mod groups;
mod semantics;
mod time;

use ron_sim::thread::JoinHandle;
use ron_sim::{Outcome, Sim};

/// A run that must not fail; its outcome.
fn passes(sim: &Sim, body: impl FnOnce() + Send + 'static) -> Outcome {
    let outcome = sim.run(body);
    assert!(outcome.failure.is_none(), "{outcome}");
    outcome
}

/// The results of threads, which all end.
fn join_all<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    let join = |thread: JoinHandle<T>| thread.join().expect("no group is killed");
    threads.into_iter().map(join).collect()
}
