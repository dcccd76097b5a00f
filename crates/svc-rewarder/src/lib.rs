//! svc-rewarder: deterministic payouts per epoch.
//!
//! ```text
//!  CSV, NDJSON, Parquet, Arrow
//!    ──(intake/)──> sealed snapshot ─┐                      (inputs/)
//!  signed policy ───────────────────┼─> calculus ──> payout table ──> Merkle-sum root ──> manifest
//!                                   │   (calculus/)                  (manifest/)            │
//!  POST compute ──> rew-sched ──> rew-work ──> rew-artifact ──> rew-emit ──> KMS, ledger <──┘
//!                     (runs/)    durable queued   durable sealed    exactly once
//! ```
//!
//! **Invariants:** the same usage and policy give the same manifest byte for byte, on any machine
//! and any number of threads. Payouts and residual add up to the pool. Nothing is paid before the
//! artifacts are durable and the manifest is signed; an epoch is paid once because the ledger
//! binds it to one manifest for ever, whatever this service forgets. `calculus` and the formats
//! are usable without any service: see [`manifest::compute`] and [`manifest::verify`].

#![allow(
    clippy::unused_self,
    clippy::wrong_self_convention,
    clippy::case_sensitive_file_extension_comparisons
)]
#![cfg_attr(test, allow(clippy::format_push_string, clippy::needless_for_each))]

mod api;
mod boot;
pub mod calculus;
mod errors;
mod home;
mod inline;
pub mod inputs;
mod intake;
mod library;
pub mod manifest;
mod metrics;
mod runs;
pub mod settings;
mod topology;

pub use boot::SvcRewarder;
