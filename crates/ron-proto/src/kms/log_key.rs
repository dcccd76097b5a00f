//! Rotation of the audit log's own key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::receipt::LogReceipt;
use crate::values::OpId;

/// `POST /log_key/rotate`: create a new signing key of the audit log.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateLogKey {
    /// Expected number of the current signing key; 409 when it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_number: Option<u32>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// Response of the rotation of the audit log's key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateLogKeyAnswer {
    /// The operation id of the request, or the one generated for it.
    pub op_id: OpId,
    /// Number of the new key, from 2.
    pub number: u32,
    /// Verifier key line of the new key.
    pub vkey: String,
    /// Cross-signed statement of the old and the new key: a signed note, see the formats of the
    /// log.
    pub statement: String,
    /// Leaf of the audit log that records the rotation.
    pub receipt: LogReceipt,
}
