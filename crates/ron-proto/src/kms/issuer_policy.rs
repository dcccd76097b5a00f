//! The signed issuer policy that the KMS holds, for keys whose payload policy follows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::PolicySig;
use crate::receipt::LogReceipt;
use crate::values::ContentId;

/// Maximum size of the body of `PUT /issuer_policy`, in bytes: a policy of 1 MiB and its signature.
pub const ISSUER_POLICY_BODY_MAX: usize = (1 << 20) + (64 << 10);

/// `PUT /issuer_policy`: put a signed issuer policy in force.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutIssuerPolicy {
    /// The policy document, an issuer policy.
    pub policy: serde_json::Value,
    /// The detached signature over its canonical JSON, kind `issuer`, by a key of
    /// `policy.public_keys`.
    pub signature: PolicySig,
}

/// The issuer policy in force.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuerPolicyInForce {
    /// Its version; older ones are refused.
    pub version: u64,
    /// Content id of its canonical JSON.
    pub hash: ContentId,
    /// Leaf of the audit log that records when it came into force.
    pub receipt: LogReceipt,
}
