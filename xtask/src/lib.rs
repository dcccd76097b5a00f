//! `cargo xtask`: every long test, measurement and package of the project is a task, a row of [`tasks`]. The list that
//! `cargo xtask` prints, the arguments of each task and the tables of docs/TESTING.md come from that one table.

#![allow(clippy::disallowed_methods)] // a tool of developers is no part of a service: it takes processes and time as they come

mod abreast;
mod bench;
mod bench_ledger;
mod bench_reads;
mod bench_tail;
mod bench_tokens;
mod builds;
mod clean_root;
mod cmd;
mod embedding;
mod files;
mod fuzz;
mod instructions;
mod long;
mod loom;
mod markdown;
mod mutation;
mod parsers;
mod products;
mod release;
mod sdk;
mod sim;
mod sim_rounds;
mod site;
mod suites;
mod task;
mod tasks;
mod ui;

pub use cmd::watch_signals;
pub use markdown::table;
pub use task::{Failure, command, run};
pub use tasks::tasks;
