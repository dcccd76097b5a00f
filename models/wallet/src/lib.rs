//! The wallet's protocols under a model checker: the same source files as in svc-wallet, compiled
//! against a kernel that uses the checker's locks, queues and threads. Only the ledger is replaced:
//! [`upstream`].
//!
//! Metrics and the file of unresolved keys are outside the model.
#![cfg(any(loom, shuttle))]
#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    clippy::pedantic,
    clippy::needless_collect
)]

#[path = "../../../crates/svc-wallet/src/audit.rs"]
pub mod audit;
#[path = "../../../crates/svc-wallet/src/balances.rs"]
pub mod balances;
#[path = "../../../crates/svc-wallet/src/commit.rs"]
pub mod commit;
#[path = "../../../crates/svc-wallet/src/errors.rs"]
pub mod errors;
#[path = "../../../crates/svc-wallet/src/inflight.rs"]
pub mod inflight;
#[path = "../../../crates/svc-wallet/src/metrics.rs"]
pub mod metrics;
#[path = "../../../crates/svc-wallet/src/own.rs"]
pub mod own;
#[path = "../../../crates/svc-wallet/src/render.rs"]
pub mod render;
#[path = "../../../crates/svc-wallet/src/topology.rs"]
pub mod topology;
#[path = "../../../crates/svc-wallet/src/unresolved.rs"]
pub mod unresolved;
pub mod upstream;
#[path = "../../../crates/svc-wallet/src/watch.rs"]
pub mod watch;
