//! Request and response types of the ron-kms API (base `/v1/kms`).
//!
//! Byte strings (messages, signatures, raw public keys) are encoded as base64url without padding,
//! see [`Bytes`]. A key is identified by its [`Kid`](crate::Kid), a version by a number in the body
//! or the query.

mod approval_rule;
mod approvals;
mod attest;
mod audit;
mod batch;
mod bytes;
mod derive;
mod envelope;
mod grants;
mod issuer_policy;
mod key_policy;
mod keys;
mod lifecycle;
mod log_key;
mod names;
mod payload;
mod scheme;
mod sign;
mod transfer;
pub mod transit;
mod verify;
mod verify_raw;

pub use approval_rule::*;
pub use approvals::*;
pub use attest::*;
pub use audit::*;
pub use batch::*;
pub use bytes::*;
pub use derive::*;
pub use envelope::*;
pub use grants::*;
pub use issuer_policy::*;
pub use key_policy::*;
pub use keys::*;
pub use lifecycle::*;
pub use log_key::*;
pub use names::*;
pub use payload::*;
pub use scheme::*;
pub use sign::*;
pub use transfer::*;
pub use verify::*;
pub use verify_raw::*;

pub use crate::values::KeyOp;
