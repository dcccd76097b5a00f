//! Request and response types of the ron-kms API (base `/v1/kms`).
//!
//! Byte strings (messages, signatures, raw public keys) are encoded as base64url without padding,
//! see [`Bytes`]. A key is identified by its [`Kid`](crate::Kid), a version by a number in the body
//! or the query.

mod attest;
mod audit;
mod batch;
mod bytes;
mod envelope;
mod issuer_policy;
mod keys;
mod lifecycle;
mod log_key;
mod payload;
mod scheme;
mod sign;
mod transfer;
pub mod transit;
mod verify;
mod verify_raw;

pub use attest::*;
pub use audit::*;
pub use batch::*;
pub use bytes::*;
pub use envelope::*;
pub use issuer_policy::*;
pub use keys::*;
pub use lifecycle::*;
pub use log_key::*;
pub use payload::*;
pub use scheme::*;
pub use sign::*;
pub use transfer::*;
pub use verify::*;
pub use verify_raw::*;
