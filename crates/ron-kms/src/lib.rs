//! ron-kms: custody of keys and signing, with an audit log that third parties can verify.
//!
//! ```text
//!  HTTP workers ──> sign queue ──> signers ──────────┐ room for the leaf is reserved first
//!       │                            │ checkpoints   ▼
//!       │                            ▼            audit queue ──> kms-audit: append, fdatasync,
//!       ├──> store queue ──> kms-store ──────────────^                then the answers leave
//!       │                      │ SQLite, sealed      kms-ckpt: signed checkpoints
//!       │                      ▼
//!       └── verify, read <── KeyIndex (snapshot: key, version, public and private key at once)
//! ```
//!
//! **Invariants.** No signature leaves before its leaf is durable. A private key leaves memory only
//! sealed. A signature, its version and its public key come from one snapshot. One thread writes
//! the store, one writes the log. When the log cannot be trusted or written, nothing is signed or
//! changed, and verification still works.
//!
//! The engine works without HTTP ([`Custody`]); [`RonKms`] is the service.

#![cfg_attr(test, allow(clippy::items_after_statements, clippy::needless_collect))]

mod api;
mod attest;
mod audit;
mod boot;
mod embedded;
mod engine;
mod errors;
mod metrics;
pub mod migrate;
pub mod recover;
mod replay;
mod settings;
mod topology;
mod vault_mount;
mod work;

pub use attest::verify::{Birth, Expect, verify as verify_birth};
pub use audit::leaf::{Leaf, OK, Op};
pub use audit::ring::kept_keys;
pub use audit::verify::{AuditError, AuditReport, KeyOps, LeafCheck, verify_dir};
pub use boot::RonKms;
pub use embedded::Custody;
pub use settings::TABLE;

#[cfg(test)]
mod tests;
