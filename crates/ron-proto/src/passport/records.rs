//! What administrators of the issuer read: records of what it has done.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Revoked;
use crate::values::{Tenant, Timestamp};

/// A revocation as it was recorded, for administrators.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedRevocation {
    /// Number of the event in the revocation feed.
    pub seq: u64,
    /// When it was recorded.
    pub ts: Timestamp,
    pub revoked: Revoked,
    /// The caller that revoked; a client that gave its own token back by its `client_id`.
    pub actor: String,
    pub reason: String,
    /// Whether a token may exist that is refused because of it.
    pub in_force: bool,
}

/// Response of `GET /v1/passport/revocations?before=N&since=T&in_force=B&limit=N`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedRevocations {
    /// Newest first. May be empty, although there is a next page.
    pub revocations: Vec<RecordedRevocation>,
    /// Value of `before` for the next page; absent after the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The current revocation epoch.
    pub current_epoch: u64,
}

/// A token that was issued, for administrators; never the token itself.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuedToken {
    /// Id of the token, with which it can be revoked.
    pub jti: String,
    pub issued: Timestamp,
    pub expires: Timestamp,
    pub client_id: String,
    /// The holder, if it is the client itself or the one that was asked for: of others only a hash is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub tenant: Tenant,
    pub audience: String,
    /// Scopes separated by spaces; absent for a client with more than 1,024 different sets of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// Response of `GET /v1/passport/issued`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuedTokens {
    /// The newest first. May be empty, although there is a next page.
    pub tokens: Vec<IssuedToken>,
    /// Value of `before` for the next page; absent after the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Records that this page should have and that are damaged, as after a power failure. The KMS has a leaf for each signature.
    #[serde(default)]
    pub lost: u64,
}

/// Refused authentications of a client, for one reason.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedClient {
    /// The client that was named.
    pub client_id: String,
    /// As in `auth_failures_total` and the log.
    pub reason: String,
    pub count: u64,
    /// When the last one was refused.
    pub last: Timestamp,
    /// Sender of the last one: an address, a /64 network, or a user of the issuer's host.
    pub peer: String,
}

/// Response of `GET /v1/passport/clients/refused`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedClients {
    /// Since when they are counted: the start of the issuer.
    pub since: Timestamp,
    /// By client and reason, the last refused first. Names that are no client's are not counted here.
    pub refused: Vec<RefusedClient>,
}
