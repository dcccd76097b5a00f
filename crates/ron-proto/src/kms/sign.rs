//! Signing, one at a time and in batches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, Digest};
use crate::receipt::LogReceipt;
use crate::values::{Alg, Kid, OpId, Timestamp};

/// Longest `message` that may be signed or verified, in raw bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most items of one `sign_batch` or `verify_batch` request.
pub const BATCH_ITEMS_MAX: usize = 1_000;
/// Longest `context` of a sign request, in bytes.
pub const CONTEXT_BYTES_MAX: usize = 256;

/// `POST /sign`. Exactly one of `message` and `digest`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignRequest {
    /// Which key.
    pub key: Kid,
    /// Pins a version: when it is not the head, 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to sign, at most [`MESSAGE_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Digest to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark of the caller that goes into the audit leaf: 1..=256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl SignRequest {
    /// A request for `message` with nothing else set.
    pub fn message(key: Kid, message: impl Into<Vec<u8>>) -> Self {
        let message = Some(Bytes(message.into()));
        Self {
            key,
            version: None,
            message,
            digest: None,
            op_id: None,
            context: None,
        }
    }

    /// A request for `digest` with nothing else set.
    pub fn digest(key: Kid, digest: Digest) -> Self {
        Self {
            key,
            version: None,
            message: None,
            digest: Some(digest),
            op_id: None,
            context: None,
        }
    }
}

/// One signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The algorithm that made it.
    pub alg: Alg,
    /// Ed25519: 64 bytes. P-256: 64 bytes, r and s as in JWS. ML-DSA: FIPS 204.
    pub signature: Bytes,
}

/// What was known of where a key is when it signed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignAttestation {
    /// The class of the key's document, such as `tpm2-certify`; evidence itself is at `/attest`.
    pub class: String,
    /// When the device that holds the key last attested; it is asked to every `attest.refresh_every`.
    pub confirmed: Timestamp,
}

/// Answer of `POST /sign`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignAnswer {
    /// The key that signed.
    pub key: Kid,
    /// The version that signed.
    pub version: u32,
    /// One signature (two for hybrid algorithms).
    pub signatures: Vec<Signature>,
    /// Leaf of the audit log that records this signature; durable before this answer was sent.
    pub receipt: LogReceipt,
    /// Proof (`c2sp.org/tlog-proof@v1`) that the leaf is in the log, when the caller waited for it (`Prefer: wait=N`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// For keys in a device that has attested since the service started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<SignAttestation>,
}

/// `POST /sign_batch`: up to [`BATCH_ITEMS_MAX`] items, one leaf each, one durable append.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignBatch {
    /// Key of every item that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Pinned version of every item that names neither key nor version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// What to sign, 1..=1000.
    pub items: Vec<SignItem>,
}

/// One item of a [`SignBatch`]; fields as in [`SignRequest`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignItem {
    /// Which key; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Pins a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Digest to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Replay protection of this item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /sign_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignBatchAnswer {
    /// One result per item, in order.
    pub results: Vec<SignResult>,
}

/// Result of one batch item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignResult {
    /// The signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<SignAnswer>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// Why one item of a batch failed: what the single call would have answered.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemError {
    /// HTTP status of the single call.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// What to do.
    pub detail: String,
    /// Whether the same request can succeed later.
    pub retryable: bool,
}
