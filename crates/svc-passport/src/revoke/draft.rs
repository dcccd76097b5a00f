//! An event before it has a number.

use ron_proto::passport::Revoked;

/// Epoch of a new issuer.
pub const EPOCH_FIRST: u64 = 1;

/// What is to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    pub revoked: &'a Revoked,
    pub reason: &'a str,
    pub actor: &'a str,
}
