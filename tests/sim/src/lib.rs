//! Parts of ron in a simulated world: real threads under a seed, a simulated disk, virtual time. `docs/SIMULATION.md`
//! says what is covered; `cargo xtask sim` runs it.
#![cfg(all(sim, test))]
#![allow(missing_docs, clippy::unwrap_used, clippy::pedantic)] // a test program

mod explore;
mod http;
mod ledger;
mod money;
mod net;
