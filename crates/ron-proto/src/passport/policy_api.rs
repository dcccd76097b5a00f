//! Messages about the issuer policy: the one in force, a new one, and what it would decide.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::PolicySig;
use crate::values::ContentId;

/// `GET /v1/passport/policy/current`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CurrentPolicy {
    /// Its version; older ones are refused.
    pub version: u64,
    /// Content id of its canonical JSON.
    pub hash: ContentId,
    /// The policy document, an issuer policy.
    pub policy: serde_json::Value,
    /// The detached signature over its canonical JSON.
    pub signature: PolicySig,
}

/// `POST /v1/passport/policy/explain`: a token that a client would ask for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyQuestion {
    /// The client that would ask.
    pub client_id: String,
    /// Holder of the token; the client itself when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The service; may be absent when the policy allows the client only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// Scopes separated by spaces; all allowed ones when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Lifetime in seconds; the issuer's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Caveats as `key=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
}

/// Response of `POST /v1/passport/policy/explain`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyVerdict {
    /// Whether the token would be issued.
    pub issued: bool,
    /// Version of the policy in force.
    pub version: u64,
    /// The place in the policy that decides, as `clients[1].audiences[0]`; absent for a client without a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The error code of the token endpoint, when not issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The reason, when not issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The token, when issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<PolicyToken>,
}

/// A token that would be issued.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyToken {
    /// Its `sub`.
    pub subject: String,
    /// Its tenant.
    pub tenant: String,
    /// Its `aud`.
    pub audience: String,
    /// Its scopes, separated by spaces.
    pub scope: String,
    /// Its lifetime in seconds.
    pub ttl_s: u64,
    /// Its caveats, each as `key=value`.
    pub caveats: Vec<String>,
    /// Its algorithm.
    pub alg: String,
}
