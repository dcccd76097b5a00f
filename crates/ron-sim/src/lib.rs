//! Runs a program of threads under a seed: real threads, one at a time, on a virtual clock.
//!
//! A program that uses the locks, channels, threads and the clock of this crate instead of the machine's is
//! deterministic: the seed decides at every operation whether another thread runs and which, and the clock jumps when
//! all wait. A failing seed is shortened to the few decisions that matter and printed as a time line.
//!
//! ```
//! use std::sync::Arc;
//! use ron_sim::{Sim, sync::Mutex, thread};
//!
//! Sim::new(0).check(0..100, || {
//!     let sum = Arc::new(Mutex::new(0));
//!     let other = sum.clone();
//!     let adder = thread::spawn(move || *other.lock() += 1);
//!     *sum.lock() += 1;
//!     adder.join().unwrap();
//!     assert_eq!(*sum.lock(), 2);
//! });
//! ```
//!
//! ```text
//!  Sim::run ──> World: threads, ready, deadlines, clock, trace    (state.rs, under one lock)
//!                 ▲ point, wait, wake          │ which next?
//!  primitives ── Object                     Chooser: seed, or a schedule
//!                                              │ baton: exactly one thread runs
//! ```
//!
//! **Invariants**: exactly one simulated thread runs at any time; a primitive blocks in the simulator only, never in the
//! machine's; every decision comes from the seed or from a schedule, and all of them are in the trace's hash.
//!
//! Data races and weak memory are not simulated: memory is safe by the compiler, atomics are sequentially consistent.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // this crate stands below what the rules are for

mod baton;
pub mod chan;
mod chooser;
mod failure;
pub mod fault;
mod group;
mod machine;
mod objects;
mod panics;
mod rng;
mod run;
mod schedule;
mod search;
mod state;
pub mod steered;
pub mod sync;
pub mod thread;
pub mod time;
mod trace;
mod world;

pub use failure::Failure;
pub use group::Group;
pub use run::{Outcome, Sim};
pub use schedule::{Kind, Place, Schedule};
pub use search::{Body, Finding};
pub use trace::{Event, Trace};
pub use world::{Object, ensure, is_simulated, note, report, undivided, wait_for};
