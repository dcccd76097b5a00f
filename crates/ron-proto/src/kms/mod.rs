//! Request and answer types of the ron-kms API (base `/v1/kms`).
//!
//! Bytes (messages, signatures, raw public keys) travel as base64url without padding, see
//! [`Bytes`]. A key is named by its [`Kid`](crate::Kid); a version is a number in the body or
//! query.

mod attest;
mod bytes;
mod envelope;
mod envelope_batch;
mod keys;
mod lifecycle;
mod log_key;
mod payload;
mod sign;
mod transfer;
mod verify;
mod verify_raw;

pub use attest::*;
pub use bytes::*;
pub use envelope::*;
pub use envelope_batch::*;
pub use keys::*;
pub use lifecycle::*;
pub use log_key::*;
pub use payload::*;
pub use sign::*;
pub use transfer::*;
pub use verify::*;
pub use verify_raw::*;
