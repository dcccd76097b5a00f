//! svc-wallet: money for callers who hold a passport.
//!
//! ```text
//!  POST ── caveats, policy ──> in-flight table (by key) ──> queue (by account) ──> wal-commit-* ── one call per batch ──> ron-ledger
//!                                  ^   └── answers, 504, 409 ── wal-watch        └── answers of all waiters
//!                                  └── repeated requests wait here
//!  GET  ── caveats, policy ──> fresh balances, else ron-ledger
//!  wal-feed <── events ── ron-ledger: balances marked, answers copied, keys resolved
//! ```
//!
//! **Invariants**: the wallet owns no truth: the ledger decides nonces, funds, replays and daily
//! totals in one atomic step; an unknown outcome keeps its key unresolved until the ledger reports
//! it; writes of one account keep their order; every waiter is answered once; a balance is never
//! reported younger than it is.

pub mod answers;
pub mod api;
pub mod audit;
pub mod balances;
mod boot;
pub mod commit;
mod errors;
pub mod feed;
pub mod inflight;
pub mod metrics;
pub mod policy;
pub mod render;
pub mod settings;
pub mod topology;
pub mod unresolved;
pub mod upstream;
pub mod watch;

pub use boot::SvcWallet;
