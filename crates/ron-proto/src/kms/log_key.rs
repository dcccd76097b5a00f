//! Rotation of the audit log's own key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::receipt::LogReceipt;
use crate::values::OpId;

/// `POST /log_key/rotate`: make a new signing key of the audit log.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateLogKey {
    /// Number of the key that is thought to sign now; another one is a 409.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_number: Option<u32>,
    /// Makes the request idempotent for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// Answer of the rotation of the audit log's key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateLogKeyAnswer {
    /// The operation id that was given, or the one made for this call.
    pub op_id: OpId,
    /// Number of the new key, from 2.
    pub number: u32,
    /// Verifier key line of the new key.
    pub vkey: String,
    /// What the old and the new key say of each other: a signed note, see the formats of the log.
    pub statement: String,
    /// Leaf of the audit log that records it.
    pub receipt: LogReceipt,
}
