//! The keys of the fleet as the console shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::Timestamp;

/// `GET /api/keys`: the keys of every key service and issuer of the fleet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyOverview {
    pub as_of: Timestamp,
    /// One for each node that has keys.
    pub sources: Vec<KeySource>,
    /// Requests for operations that several people have to agree to, oldest first.
    pub approvals: Vec<KeyApproval>,
    /// Keys that need attention first, then by name.
    pub keys: Vec<KeyView>,
    pub issuers: Vec<IssuerView>,
}

/// Result of reading the keys of one node.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeySource {
    pub node: String,
    /// When they were last read; `null` when they never were.
    pub read_at: Option<Timestamp>,
    /// Why the last attempt to read them failed, and what to do.
    pub problem: Option<String>,
    /// True when the node has more keys than the console reads.
    pub truncated: bool,
    /// True when more requests wait for approvals at the node than the console reads.
    pub approvals_truncated: bool,
}

/// A key of a key service.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyView {
    pub node: String,
    /// `tenant/purpose/alg/uuid`.
    pub key: String,
    /// `active`, `retired`, `pending_destruction`, `destroyed` or `quarantined`.
    pub state: String,
    pub description: Option<String>,
    /// The backend that keeps it; `null` for a quarantined key, of which nothing else is known.
    pub backend: Option<String>,
    /// The version that signs.
    pub version: Option<u32>,
    /// Since when it signs, or was made.
    pub version_since: Option<Timestamp>,
    /// The version that is published and does not sign yet.
    pub waiting: Option<u32>,
    /// When the next version begins to sign; `null` for a key that is rotated on request only.
    pub next_rotation: Option<Timestamp>,
    /// When its secrets will be or were destroyed.
    pub destroy_at: Option<Timestamp>,
    /// Why it is out of use, and the remedy; of a quarantined key.
    pub problem: Option<String>,
}

/// A request that waits for approvals.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyApproval {
    pub node: String,
    /// Id under which it is approved.
    pub id: String,
    pub key: String,
    /// `destroy`, `export`, `backup` or `key_policy`.
    pub op: String,
    pub requester: String,
    pub needed: u32,
    pub approved_by: Vec<String>,
    pub created: Timestamp,
    pub expires: Timestamp,
}

/// An issuer of passports by its policy note.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerView {
    pub node: String,
    pub issuer: String,
    /// Tokens of lower epochs are void.
    pub epoch: u64,
    /// Number of revocations, changes of keys and of the policy so far.
    pub revocations: u64,
    /// Version of the issuer policy in force.
    pub policy: Option<u64>,
    /// Newest first.
    pub keys: Vec<IssuerKey>,
}

/// A key of an issuer.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerKey {
    /// RFC 7638 thumbprint.
    pub kid: String,
    pub alg: String,
    pub signs_from: Timestamp,
    /// When the last token that it has signed is void; `null` while it signs, or will.
    pub verifies_until: Option<Timestamp>,
    pub revoked: bool,
}
