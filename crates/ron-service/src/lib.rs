//! ron-service: the chassis of every service.
//!
//! ```text
//!  main_with ── arguments, environment, file ──> config ──┐
//!      │ signals, drain, exit code                        ▼
//!      └── Parts (clock, randomness, sockets) ──> start::<Service> ──> Boot ── serve ──> Running
//!                                                                      │ health port: healthz readyz metrics status topology
//!                                                                      │ store, records, log_host, topology rows
//! ```
//!
//! **Invariants:** nothing here is global except the logger, and only `main_with` sets that: six
//! services can start in one process. A reload is applied completely or not at all. The drain runs
//! once, in one order. This crate knows no service.

mod boot;
mod chassis;
pub mod config;
mod datadir;
mod error;
mod event_feed;
pub mod events;
mod kept_date;
pub mod kept_policy;
mod kept_sum;
pub mod lag;
pub mod log_engine;
pub mod log_host;
pub mod log_move;
pub mod log_node;
pub mod logging;
mod main_with;
mod notify;
pub mod pinned;
mod ready;
mod recent;
pub mod records;
pub mod signed_policy;
pub mod stalls;
mod store;
pub mod topology;
mod vitals;

pub use boot::{Boot, Descriptor, Service, check, start};
pub use chassis::{Chassis, DateAccepted, Parts, ReloadError, Running, client_config};
pub use config::{
    ChassisSettings, Config, ConfigProblem, Key, Kind, ServiceSettings, Settings, Table,
};
pub use datadir::DataDir;
pub use error::StartError;
pub use kept_date::DATE_KEPT_EVERY;
pub use main_with::{command, load_process_config, main_with, run_process};
pub use ready::{ReadyBoard, readiness};
pub use store::{Image, Migration, Poison, Store, StoreError, open_private, trial as store_trial};
pub use topology::{topology_faults, topology_lock, topology_queue, topology_thread};
