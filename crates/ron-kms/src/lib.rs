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
//! The engine works without HTTP ([`embedded::Custody`]); [`RonKms`] is the service.

#![cfg_attr(test, allow(clippy::items_after_statements, clippy::needless_collect))]

pub mod api;
pub mod attest;
pub mod audit;
mod boot;
pub mod embedded;
pub mod engine;
pub mod metrics;
pub mod replay;
pub mod settings;
pub mod topology;
pub mod work;

pub use boot::RonKms;

#[cfg(test)]
mod tests;
