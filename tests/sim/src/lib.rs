//! Parts of ron in a simulated world: real threads under a seed, a simulated disk, virtual time. `docs/SIMULATION.md`
//! says what is covered; `cargo xtask sim` runs it.
#![cfg(all(sim, test))]
// A test program of the simulator, which stands below the rules of the kernel.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::pedantic,
    clippy::disallowed_types
)]

mod bounds;
mod callers;
mod chance;
mod coverage;
mod dates;
mod disk;
mod engine;
mod explore;
mod fleet;
mod followers;
mod hosts;
mod http;
mod issuers;
mod ledger;
mod logs;
mod machine;
mod model;
mod money;
mod net;
mod payouts;
mod tokens;
