//! `cargo xtask`: every long test, measurement and package of the project is a lane, a row of [`LANES`]. The list that
//! `cargo xtask` prints, the arguments of each lane and the tables of docs/TESTING.md come from that one table.

#![allow(clippy::disallowed_methods)] // a tool of developers is no part of a service: it takes processes and time as they come

mod bench;
mod bench_ledger;
mod bench_tokens;
mod builds;
mod clean_root;
mod cmd;
mod embedding;
mod files;
mod fuzz;
mod lane;
mod lanes;
mod long;
mod loom;
mod markdown;
mod mutation;
mod parsers;
mod release;
mod ui;

pub use cmd::watch_signals;
pub use lane::{Failure, command, run};
pub use lanes::LANES;
pub use markdown::table;
