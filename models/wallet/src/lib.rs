//! The wallet's protocols over a model checker: the same source files as in svc-wallet, compiled against a kernel
//! whose locks, queues and threads are the checker's. Only the ledger at the other end is another one: [`upstream`].
//!
//! What has no part in the protocols (responders, metrics, the file of pins) is the ordinary thing, outside the model.
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
#[path = "../../../crates/svc-wallet/src/inflight.rs"]
pub mod inflight;
#[path = "../../../crates/svc-wallet/src/metrics.rs"]
pub mod metrics;
#[path = "../../../crates/svc-wallet/src/render.rs"]
pub mod render;
#[path = "../../../crates/svc-wallet/src/topology.rs"]
pub mod topology;
#[path = "../../../crates/svc-wallet/src/unresolved.rs"]
pub mod unresolved;
pub mod upstream;
#[path = "../../../crates/svc-wallet/src/watch.rs"]
pub mod watch;
