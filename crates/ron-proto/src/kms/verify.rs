//! Verification.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BatchAnswer, Bytes, Digest, Prehash, Signature};
use crate::values::{Alg, KeyRef};

/// How the signatures of a hybrid key combine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// Every algorithm of the key must have a valid signature.
    #[default]
    And,
    /// One valid signature is enough.
    Or,
    /// Only the post-quantum signature is checked.
    PqOnly,
}

/// `POST /verify`. Exactly one of `message`, `digest` and `prehash`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// Key to verify with.
    pub key: KeyRef,
    /// Check only this version; when absent, every version from `min_verify_version` on, newest
    /// first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// The signed bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// The signed digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The signed hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prehash: Option<Prehash>,
    /// Signatures to check, 1 to 4.
    pub signatures: Vec<Signature>,
    /// How the signatures combine; `and` when absent.
    #[serde(default)]
    pub mode: VerifyMode,
}

/// Response of `POST /verify`. An invalid signature gives `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyAnswer {
    /// Whether the signatures are valid under the mode.
    pub ok: bool,
    /// One entry per given signature.
    pub details: Vec<VerifyDetail>,
    /// Age of the cached public key in milliseconds; present while the backend is unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_age_ms: Option<u64>,
}

/// Result for one signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyDetail {
    /// Algorithm of the signature.
    pub alg: Alg,
    /// Whether the signature is valid.
    pub ok: bool,
    /// The key version whose public key verifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Why it is not valid: `alg_mismatch`, `scheme_mismatch`, `wrong_length` or `no_match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /verify_batch`: up to [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) items.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyBatch {
    /// Requests to verify, 1 to 1,000.
    pub items: Vec<VerifyRequest>,
}

/// Response of `POST /verify_batch`.
pub type VerifyBatchAnswer = BatchAnswer<VerifyAnswer>;
