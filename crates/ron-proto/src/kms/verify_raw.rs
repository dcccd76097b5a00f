//! Verification with a public key given by value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Bytes;
use crate::values::Alg;

/// `POST /verify/raw`: check one signature with a public key that need not be one of ours.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRawRequest {
    /// `ed25519`, `ecdsa-p256` or an ML-DSA; a hybrid is verified half by half.
    pub alg: Alg,
    /// As in key documents: Ed25519 32 bytes, P-256 65 bytes, ML-DSA as FIPS 204.
    pub public_key: Bytes,
    /// The signed bytes, at most [`super::MESSAGE_BYTES_MAX`].
    pub message: Bytes,
    /// As in [`super::Signature`].
    pub signature: Bytes,
}

/// Answer of `POST /verify/raw`. A wrong signature is `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRawAnswer {
    /// Whether the signature holds.
    pub ok: bool,
}
