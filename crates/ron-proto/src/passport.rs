//! Request and answer types of the svc-passport API, the JWKS, the issuer metadata, the
//! revocation feed, and the issuer policy.
//!
//! Caveats travel as strings `key=value`, see [`crate::caveat`]; times inside tokens and answers
//! about tokens are whole seconds since 1970-01-01 UTC, as in JWT.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kms::Jwk;
use crate::receipt::LogReceipt;
use crate::values::{Tenant, Timestamp};

/// Lifetime of a token when none is asked for, in seconds.
pub const TTL_S_DEFAULT: u64 = 15 * 60;
/// Longest lifetime of a token, in seconds.
pub const TTL_S_MAX: u64 = 60 * 60;
/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 4 * 1024;
/// Most caveats of one token.
pub const CAVEATS_MAX: usize = 32;
/// Longest caveat, in bytes.
pub const CAVEAT_BYTES_MAX: usize = 256;
/// Longest `subject_ref`, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 256;
/// Most items of one `verify_batch`.
pub const VERIFY_BATCH_MAX: usize = 512;
/// Longest `reason` of a revocation, in bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// `POST /v1/passport/issue`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueRequest {
    /// Opaque reference to the holder, 1..=256 printable ASCII bytes without spaces; no personal
    /// data.
    pub subject_ref: String,
    /// The one service the token is for, such as `svc-wallet`.
    pub audience: String,
    /// Lifetime in seconds; more than the maximum is refused, never clamped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Scopes separated by spaces; absent means all the policy allows for this audience.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Narrowing conditions, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
    /// JWS algorithms the caller's verifiers accept; absent means the audience's default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_algs: Vec<String>,
    /// Reserved; must be absent or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<serde_json::Value>,
}

/// Answer of issue.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueAnswer {
    /// The token, a JWS compact JWT.
    pub token: String,
    /// RFC 7638 thumbprint of the key that signed it.
    pub kid: String,
    /// `EdDSA` or `ES256`.
    pub alg: String,
    /// When it expires (unix seconds).
    pub exp: u64,
    /// The caveats it carries.
    pub caveats: Vec<String>,
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Leaf of the KMS audit log that records the signature.
    pub receipt: LogReceipt,
}

/// `POST /v1/passport/verify`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyToken {
    /// The token.
    pub token: String,
}

/// `POST /v1/passport/verify_batch`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyTokenBatch {
    /// 1..=512 tokens.
    pub tokens: Vec<String>,
}

/// What the issuer says of one token. A bad token is an answer, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyVerdict {
    /// True when it would be accepted by its audience now.
    pub ok: bool,
    /// Closed word for why not, such as `expired` or `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its claims, once the signature is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parsed: Option<TokenClaims>,
}

/// Answer of verify_batch; `results[n]` belongs to `tokens[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyBatchAnswer {
    /// One verdict per token.
    pub results: Vec<VerifyVerdict>,
}

/// The claims of a token (profile RFC 9068). Unknown claims are allowed in a token and not shown.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct TokenClaims {
    /// Issuer URL.
    pub iss: String,
    /// The holder.
    pub sub: String,
    /// The one audience.
    pub aud: String,
    /// Issued at (unix seconds).
    pub iat: u64,
    /// Not before (unix seconds).
    pub nbf: u64,
    /// Expires at (unix seconds).
    pub exp: u64,
    /// Token id.
    pub jti: String,
    /// The client it was issued to.
    pub client_id: String,
    /// The holder's tenant.
    pub tenant: Tenant,
    /// Scopes separated by spaces.
    pub scope: String,
    /// Epoch of the issuer when it was issued.
    pub ron_epoch: u64,
    /// Typed caveats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorization_details: Vec<RonDetails>,
}

/// The caveats inside a token (RFC 9396 shape).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RonDetails {
    /// Always `ron`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `key=value`, ANDed.
    pub caveats: Vec<String>,
}

/// `POST /v1/passport/revoke`: exactly one of `jti`, `subject_ref`, `kid`, `epoch`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// One token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// Every token of a holder issued so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_ref: Option<String>,
    /// Every token signed by a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    /// Every token of an older epoch; must be greater than the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Why, 1..=256 bytes, for the audit trail.
    pub reason: String,
}

/// Answer of revoke; durable before it was sent.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeAnswer {
    /// The epoch after the revocation.
    pub current_epoch: u64,
    /// Number of the event in the feed.
    pub event: u64,
}

/// One event of the revocation feed. Numbers are 1, 2, 3 ... without gaps.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevocationEvent {
    /// Its number.
    pub seq: u64,
    /// When it became durable.
    pub ts: Timestamp,
    /// What was revoked.
    pub revoked: Revoked,
}

/// What a revocation event revokes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Revoked {
    /// One token, until it would have expired anyway.
    Jti {
        /// Token id.
        jti: String,
        /// After this moment (unix seconds) the entry may be forgotten.
        until: u64,
    },
    /// Tokens of a holder issued at or before a moment.
    Subject {
        /// The holder.
        subject_ref: String,
        /// Unix seconds.
        issued_until: u64,
    },
    /// Tokens signed by a key.
    Kid {
        /// RFC 7638 thumbprint.
        kid: String,
    },
    /// Tokens of an epoch older than this.
    Epoch {
        /// The current epoch.
        epoch: u64,
    },
}

/// Answer of `GET /v1/passport/events?after=N&wait=S`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevocationPage {
    /// Events after `after`, oldest first, at most 1,000.
    pub events: Vec<RevocationEvent>,
    /// Pass as `after` next time.
    pub next: u64,
    /// The epoch now.
    pub current_epoch: u64,
}

/// Answer of `GET /.well-known/jwks.json` (RFC 7517).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwks {
    /// Every key whose tokens may still be valid.
    pub keys: Vec<Jwk>,
}

/// Answer of `GET /.well-known/oauth-authorization-server` (RFC 8414).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct ServerMetadata {
    /// Issuer URL, equal to `iss` in tokens.
    pub issuer: String,
    /// Token endpoint URL.
    pub token_endpoint: String,
    /// JWKS URL.
    pub jwks_uri: String,
    /// Grants offered.
    pub grant_types_supported: Vec<String>,
    /// Client authentication methods offered.
    pub token_endpoint_auth_methods_supported: Vec<String>,
    /// Always empty: there is no authorization endpoint.
    pub response_types_supported: Vec<String>,
    /// Scopes there are.
    pub scopes_supported: Vec<String>,
}

/// Success of `POST /oauth2/token` (RFC 6749 section 5.1).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct TokenAnswer {
    /// The token.
    pub access_token: String,
    /// Always `Bearer`.
    pub token_type: String,
    /// Seconds until it expires.
    pub expires_in: u64,
    /// The scopes granted.
    pub scope: String,
}

/// Refusal of `POST /oauth2/token` (RFC 6749 section 5.2).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct OauthError {
    /// Closed word, such as `invalid_client`.
    pub error: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_description: Option<String>,
}

/// The issuer policy: who may have which token. Signed, kind `issuer`; versions only grow.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuerPolicy {
    /// Grows with every change; an older one is refused.
    pub version: u64,
    /// One rule per client.
    pub clients: Vec<ClientRule>,
}

/// What one client may be issued.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientRule {
    /// `client_id` of the OAuth client, or the name of a principal with `passport:issue`.
    pub client_id: String,
    /// Tenant of its tokens.
    pub tenant: Tenant,
    /// Subjects it may name: exact, or a prefix ending in `*`. Its own `client_id` is always
    /// allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// Audiences and their scopes.
    pub audiences: Vec<AudienceRule>,
    /// Longest lifetime in seconds, at most one hour.
    pub max_ttl_s: u64,
}

/// Scopes of one audience.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudienceRule {
    /// Service name.
    pub audience: String,
    /// Scopes that may be granted.
    pub scopes: Vec<String>,
    /// `EdDSA` (default) or `ES256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Caveats that every such token carries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
}
