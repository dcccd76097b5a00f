//! Models of the real protocol code: loom runs each one over all interleavings of a few threads,
//! and shuttle over sampled interleavings of more. `cargo xtask loom` runs them, and with each model
//! the mutants named beside it: deliberately faulty versions (`cfg(mutant = "...")`) that the model
//! must catch. A model that catches none of its mutants proves nothing. `cargo xtask sim` runs the
//! same models and mutants under the simulator, and those in `timed`, whose waits end by virtual time.
//!
//! | model | mutants |
//! |---|---|
//! | `queue` | `queue`, `wait`, `hook` |
//! | `ring` | `ring` |
//! | `slot` | `reply`, `credits` |
//! | `swap` | `snapshot` |
//! | `threads` | `restart`, `drain`, `late` |
//! | `hanging` | `hang` |
//! | `idling` | `idle`, `asleep` |
//! | `console` | `publish`, `report`, `asked` |
//! | `timed` (simulator alone) | `hang`, `wait` |
#![cfg(test)]

mod console;
mod hanging;
mod idling;
mod queue;
mod ring;
mod slot;
mod swap;
mod threads;
#[cfg(sim)]
mod timed;

use std::time::Duration;

#[cfg(loom)]
use loom::thread;
#[cfg(sim)]
use ron_sim::{steered, thread};
#[cfg(shuttle)]
use shuttle::thread;

use crate::deadline::Deadline;
use crate::sync::{AtomicU64, Ordering};
use crate::topology::{Overflow, QueueSpec};

static REJECT: QueueSpec = spec("reject", Overflow::RejectNew);
static OLDEST: QueueSpec = spec("oldest", Overflow::DropOldest);
static WAIT: QueueSpec = spec("wait", Overflow::WaitDeadline);

const fn spec(name: &'static str, overflow: Overflow) -> QueueSpec {
    QueueSpec {
        name,
        capacity: 1,
        overflow,
        from: "model",
        to: "model",
        when_full: "",
    }
}

/// A model size by checker: loom explores everything and needs small models; the simulator samples, like shuttle.
const fn size(loom: usize, shuttle: usize) -> usize {
    if cfg!(loom) { loom } else { shuttle }
}

/// A deadline that never passes in a model.
fn far() -> Deadline {
    Deadline::within(Duration::from_secs(36_000))
}

/// A deadline that has passed.
fn past() -> Deadline {
    Deadline::within(Duration::ZERO)
}

/// A counter that is part of the model: each access is a scheduling point.
#[derive(Clone)]
struct Count(std::sync::Arc<AtomicU64>);

impl Count {
    fn new() -> Self {
        Self(std::sync::Arc::new(AtomicU64::new(0)))
    }

    fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::SeqCst)
    }

    fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::SeqCst);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A counter that is read only after all threads were joined. It is outside the model, so that
/// counting adds no interleavings.
#[derive(Clone, Default)]
struct Tally(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Tally {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, std::sync::atomic::Ordering::SeqCst);
    }

    fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Explores a model: loom exhaustively up to `LOOM_MAX_PREEMPTIONS` (default 2) preemptions.
#[cfg(loom)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Explores a model: shuttle with `SHUTTLE_ITERATIONS` (default 4000) schedules, half of them
/// random, half with few but well-placed switches (PCT). A failing schedule is printed.
#[cfg(shuttle)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let asked = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = asked.map_or(4_000, |n| {
        n.parse().expect("SHUTTLE_ITERATIONS is a number")
    });
    let model = std::sync::Arc::new(model);
    let again = model.clone();
    shuttle::check_random(move || model(), iterations / 2);
    shuttle::check_pct(move || again(), iterations / 2, 3);
}

/// Runs a model under `RON_SIM_SEEDS` (default 200) seeds, or under `RON_SIM_SEED` alone, with the decisions of
/// `RON_SIM_SCHEDULE` if it is there. A failing seed is printed with its shortened schedule; `RON_SIM_TRACE` prints the
/// time line of one that holds.
#[cfg(sim)]
fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_with(&sim(), model);
}

/// A run may last half an hour of virtual time: a wait that ends by [`far`] is one that no event ended.
#[cfg(sim)]
fn sim() -> ron_sim::Sim {
    ron_sim::Sim {
        time_max: Duration::from_secs(1_800),
        ..ron_sim::Sim::new(0)
    }
}

#[cfg(sim)]
fn explore_with(sim: &ron_sim::Sim, model: impl Fn() + Send + Sync + 'static) {
    let seeds = steered::seeds(0..steered::number("RON_SIM_SEEDS").unwrap_or(200));
    let sim = &steered::scheduled(sim.clone());
    let model: ron_sim::Body = std::sync::Arc::new(model);
    if let Some(finding) = sim.search(seeds.clone(), &model) {
        panic!("{finding}");
    }
    // Again: a run that differs from the first of its seed is a failure of its own.
    let hash = steered::repeats(sim, seeds.clone().step_by(10), &model);
    steered::note(&format!("{hash:016x}"));
    steered::show(sim, seeds.start, &model);
}
