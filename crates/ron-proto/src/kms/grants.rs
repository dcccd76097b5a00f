//! Grants: a right to use a key for some time, beside its policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Period, When};
use crate::values::{KeyOp, OpId, Timestamp};

/// Maximum live grants of one key.
pub const GRANTS_MAX: usize = 64;
/// Maximum time of a grant, in seconds (90 days).
pub const GRANT_S_MAX: u64 = 90 * 24 * 3600;

/// `POST /keys/{t}/{p}/{alg}/{id}/grants`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeGrant {
    /// Name of the caller that may use the key.
    pub grantee: String,
    /// The client that its passport must be issued to; any credential of that name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Which operations, each of which the caller itself may do.
    pub ops: Vec<KeyOp>,
    /// Conditions of use.
    #[serde(default, skip_serializing_if = "When::is_always")]
    pub when: When,
    /// How long it lives, at most 90d.
    pub lifetime: Period,
    /// Idempotency key, and the id of the grant: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/grants/{grant}/retire`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetireGrant {
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// A grant.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantDoc {
    /// The `op_id` of the request that made it.
    pub id: OpId,
    /// Name of the caller that may use the key.
    pub grantee: String,
    /// The client that its passport must be issued to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Which operations, as far as its maker may do them at the time of use.
    pub ops: Vec<KeyOp>,
    /// Conditions of use.
    #[serde(default, skip_serializing_if = "When::is_always")]
    pub when: When,
    /// Name of the caller that made it.
    pub maker: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
}

/// Response of `GET /keys/{t}/{p}/{alg}/{id}/grants`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantList {
    /// The grants that have not ended, oldest first.
    pub grants: Vec<GrantDoc>,
}
