//! ron-ledger: durable double-entry ledger. Nonces, idempotency, holds, reward settlement, receipts
//! with proofs.
//!
//! ```text
//!  api/ ──> commits queue ──> writer: core decides ──> log: one append, one fdatasync ──> state applied ──> answers
//!                               │                        │                                   │
//!                               │ keys: memory, files    ├─> event feed, proofs, checkpoints │ reads
//!                               └ snapshots beside       └─> projection (SQLite), behind the acknowledgement
//! ```
//!
//! The modules: `core` (pure state machine, leaves and private records), `replay` (decides leaves again),
//! `wire` and `answers` (the core's types and those of the API), `originals` (what reversals move), `store` (snapshots, key index), `engine`
//! (all of these without threads), `journal` (files, or an engine that two hosts share), `copies` (a node of a shared log), `role` (holder or standby), `writer`, `ledger` (the handle), `feed`, `projection`, `trial`
//! (trial balances), `verify` and `reversals` (offline), `migrate` (from files to an engine and back), `api`, `boot`, `settings`.
//!
//! **Invariant:** one thread changes state; what it answers is durable; readers never see more than
//! that.
//! **Invariant:** the log alone is the truth: `derived/` and the projection may be deleted at any
//! time.
//! **Invariant:** at every commit, also in release builds: per asset issued - burned = sum of
//! balances; none below its credit limit; nonces without gaps; one entry per key of a tenant's principal.
//!
//! Formats: `docs/formats/ledger.md`.

// SQLite's integers are signed, a decided operation is large by nature, and handlers share one
// signature.
#![allow(
    clippy::cast_sign_loss,
    clippy::large_enum_variant,
    clippy::unnecessary_wraps,
    clippy::many_single_char_names,
    clippy::case_sensitive_file_extension_comparisons
)]
#![cfg_attr(test, allow(clippy::format_push_string))]

pub mod answers;
mod api;
pub mod backup;
mod boot;
pub mod copies;
pub mod core;
mod documents;
pub mod engine;
pub mod erase;
mod errors;
mod fault;
mod feed;
pub mod health;
pub mod import;
mod journal;
pub mod ledger;
pub mod metrics;
pub mod migrate;
mod node;
mod originals;
pub mod projection;
mod reader;
pub mod receipt;
pub mod replay;
mod requests;
mod reversals;
pub mod role;
pub mod salts;
mod settings;
mod standby;
mod store;
mod table;
pub mod topology;
mod trial;
pub mod verify;
mod wire;
mod witness;
pub mod writer;

pub use boot::RonLedger;
pub use ledger::{Ledger, SubmitError};
#[cfg(any(
    mutant = "cursor",
    mutant = "expiry",
    mutant = "frozen",
    mutant = "mismatch",
    mutant = "nonce",
    mutant = "reversed",
    mutant = "voided"
))]
pub(crate) use ron_kernel::mutant;

#[cfg(test)]
mod tests;
