//! Verification.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, Digest, ItemError, Signature};
use crate::values::{Alg, Kid};

/// How the signatures of a hybrid key combine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// Every algorithm of the key must have a valid signature.
    #[default]
    And,
    /// One valid signature is enough.
    Or,
    /// Only the post-quantum signature counts.
    PqOnly,
}

/// `POST /verify`. Exactly one of `message` and `digest`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// Which key.
    pub key: Kid,
    /// Only this version; every version from `min_verify_version`, newest first, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// The signed bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// The signed digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// What to check, 1..=4.
    pub signatures: Vec<Signature>,
    /// `and` when absent.
    #[serde(default)]
    pub mode: VerifyMode,
}

/// Answer of `POST /verify`. A wrong signature is `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyAnswer {
    /// Whether the signatures hold under the mode.
    pub ok: bool,
    /// One entry per signature given.
    pub details: Vec<VerifyDetail>,
    /// Age of the cached public key, in milliseconds, while the backend is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_age_ms: Option<u64>,
}

/// Result for one signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyDetail {
    /// Algorithm of the signature.
    pub alg: Alg,
    /// Whether it holds.
    pub ok: bool,
    /// The version whose public key it matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Why not: `alg_mismatch`, `wrong_length` or `no_match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /verify_batch`: up to [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) items.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyBatch {
    /// What to verify, 1..=1000.
    pub items: Vec<VerifyRequest>,
}

/// Answer of `POST /verify_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyBatchAnswer {
    /// One result per item, in order.
    pub results: Vec<VerifyResult>,
}

/// Result of one batch item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyResult {
    /// What the single call would have answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<VerifyAnswer>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}
