//! svc-wallet: money for callers who hold a passport.
//!
//! ```text
//!  POST ── caveats, policy ──> in-flight table (by key) ──> queue (by account) ──> wal-commit-* ── one call per batch ──> ron-ledger
//!                                  ^   └── answers, 504, 409 ── wal-watch        └── answers of all waiters
//!                                  └── repeated requests wait here
//!  GET  ── caveats, policy ──> fresh balances, else ron-ledger
//!  wal-feed <── own entries ── wal-commit-*, and the other events ── ron-ledger: balances marked, answers copied, keys resolved, polls woken
//!  wal-hook-* <── events ── ron-ledger: messages to webhook endpoints, one thread each
//! ```
//!
//! **Invariants**: the wallet owns no truth: the ledger decides nonces, funds, replays and daily
//! totals in one atomic step; an unknown outcome keeps its key unresolved until the ledger reports
//! it; writes of one account keep their order; every waiter is answered once; a balance is never
//! reported younger than it is.

mod answers;
mod api;
mod audit;
mod balances;
mod boot;
mod commit;
mod errors;
mod events;
mod feed;
mod inflight;
mod metrics;
mod own;
mod policy;
mod receipts;
mod render;
mod settings;
mod topology;
mod unresolved;
mod upstream;
mod watch;
mod webhooks;

pub use audit::OPERATION_FILES;
pub use boot::SvcWallet;
pub use policy::check as check_policy;
