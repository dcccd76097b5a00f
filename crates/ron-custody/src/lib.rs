//! ron-custody: where keys are. Key material, the sealed store and the devices, without a log, an API or a service around them.
//!
//! ```text
//!  store ── sealed records in SQLite, one writer ──┐
//!                                                  ├──> index: one snapshot of all keys ──> signers
//!  backend ── own memory, or a device behind a pool of sessions ┘
//!  keys ── material, formats, payload policies: pure
//! ```
//!
//! **Invariants.** A private key leaves memory only sealed. A version is invisible until its leaf in the audit log is durable, which
//! ron-kms, the user of this crate, reports. A request beyond a backend's capabilities is refused and never falls back to another.

#![cfg_attr(test, allow(clippy::needless_collect))]

pub mod access;
pub mod approvals;
pub mod backend;
mod error;
pub mod index;
pub mod keys;
pub mod labels;
pub mod rights;
pub mod store;
pub mod topology;

pub use error::{Cause, NO_MATCH, OK, Refusal};
