//! Request and response types of the svc-passport API, the JWKS, the issuer metadata, the
//! revocation feed, and the issuer policy.
//!
//! Caveats are strings `key=value`, see [`crate::caveat`]; times in tokens and in responses about
//! tokens are whole seconds since 1970-01-01 UTC, as in JWT.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod external;
mod issuer_policy;
mod places;
mod policy_api;
mod policy_faults;
mod records;

pub use external::{ExternalIssuer, ExternalSubject, SPIFFE, is_protected_url};
pub use issuer_policy::*;
pub use policy_api::*;
pub use policy_faults::TOKEN_ALGS;
pub use records::*;

use crate::kms::{Bytes, Jwk};
use crate::receipt::LogReceipt;
use crate::values::{Tenant, Timestamp};

/// Default lifetime of a token, in seconds.
pub const TTL_S_DEFAULT: u64 = 15 * 60;
/// Maximum lifetime of a token, in seconds.
pub const TTL_S_MAX: u64 = 60 * 60;
/// Tolerated difference between two clocks, in seconds.
pub const SKEW_S: u64 = 60;
/// Maximum size of a token with a classical signature, in bytes. A token with an ML-DSA signature
/// may be larger by the size of that signature.
pub const TOKEN_BYTES_MAX: usize = 4 * 1024;
/// Maximum size of a token with an ML-DSA signature, in bytes: a hybrid one with ML-DSA-87 in
/// base64url.
pub const PQ_TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of caveats in one token.
pub const CAVEATS_MAX: usize = 32;
/// Maximum size of a caveat, in bytes.
pub const CAVEAT_BYTES_MAX: usize = 256;
/// Maximum size of `subject_ref`, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 256;
/// Maximum number of tokens in one `verify_batch`.
pub const VERIFY_BATCH_MAX: usize = 512;
/// Maximum size of the `reason` of a revocation, in bytes.
pub const REASON_BYTES_MAX: usize = 256;

/// `POST /v1/passport/issue`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueRequest {
    /// Opaque reference to the holder, 1 to 256 printable ASCII bytes without spaces; no personal
    /// data.
    pub subject_ref: String,
    /// The one service that accepts the token: a service of this installation, such as `svc-wallet`, or
    /// another audience that the issuer policy names.
    pub audience: String,
    /// Lifetime in seconds; a value above the maximum is rejected, not reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Scopes separated by spaces; when absent, all that the policy allows for this audience.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Restrictions on the token, all of which must be satisfied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<CaveatInput>,
    /// JWS algorithms the audience accepts, in order of preference; when absent, the audience's
    /// default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_algs: Vec<String>,
    /// Reserved; must be absent or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<serde_json::Value>,
}

/// A caveat in a request: `"key=value"`, or `{"key": ..., "value": ...}`. Kept as text: the issuer
/// checks key and value and reports errors with its own codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaveatInput(pub String);

impl From<&str> for CaveatInput {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl Serialize for CaveatInput {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for CaveatInput {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Typed {
            key: String,
            value: String,
        }
        struct Form;
        impl<'de> serde::de::Visitor<'de> for Form {
            type Value = CaveatInput;
            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a caveat as key=value or {key, value}")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CaveatInput, E> {
                Ok(CaveatInput(text.to_owned()))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<CaveatInput, A::Error> {
                let typed = Typed::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(CaveatInput(format!("{}={}", typed.key, typed.value)))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl JsonSchema for CaveatInput {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CaveatInput".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A restriction: key=value, or an object of key and value",
            "anyOf": [
                { "type": "string", "maxLength": CAVEAT_BYTES_MAX },
                {
                    "type": "object",
                    "properties": { "key": { "type": "string" }, "value": { "type": "string" } },
                    "required": ["key", "value"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// Response of issue.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueAnswer {
    /// The token: a JWT in JWS compact form; for a hybrid algorithm, base64url of a JWS JSON
    /// serialization with two signatures.
    pub token: String,
    /// RFC 7638 thumbprint of the signing key; for a hybrid algorithm, of the classical key.
    pub kid: String,
    /// Signature algorithm: `EdDSA`, `ES256`, `ML-DSA-44`, `-65`, `-87`, or a hybrid such as
    /// `EdDSA+ML-DSA-65`.
    pub alg: String,
    /// Expiry, in Unix seconds.
    pub exp: u64,
    /// The caveats of the token.
    pub caveats: Vec<String>,
    /// Revocation epoch of the token.
    pub epoch: u64,
    /// Leaf of the KMS audit log that records the signature.
    pub receipt: LogReceipt,
}

/// `POST /v1/passport/verify`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyToken {
    /// The token to verify.
    pub token: String,
}

/// `POST /v1/passport/verify_batch`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyTokenBatch {
    /// Tokens to verify, 1 to 512.
    pub tokens: Vec<String>,
}

/// The issuer's verdict on one token. An invalid token is a result, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyVerdict {
    /// True when its audience would accept it now.
    pub ok: bool,
    /// Reason from a closed list when not, such as `expired` or `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its claims, when the signature is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parsed: Option<TokenClaims>,
}

/// Response of verify_batch; `results[n]` belongs to `tokens[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyBatchAnswer {
    /// One verdict per token, in the order of the tokens.
    pub results: Vec<VerifyVerdict>,
}

/// The claims of a token (profile RFC 9068). The KMS signs no token with any other claim.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenClaims {
    /// Issuer URL.
    pub iss: String,
    /// Subject: the holder.
    pub sub: String,
    /// The one service that accepts the token.
    pub aud: String,
    /// Time of issue, in Unix seconds.
    pub iat: u64,
    /// Start of validity, in Unix seconds.
    pub nbf: u64,
    /// Expiry, in Unix seconds.
    pub exp: u64,
    /// Token id.
    pub jti: String,
    /// `client_id` of the client it was issued to.
    pub client_id: String,
    /// The holder's tenant.
    pub tenant: Tenant,
    /// Scopes separated by spaces.
    pub scope: String,
    /// Revocation epoch of the issuer at the time of issue.
    pub ron_epoch: u64,
    /// Caveats: one object of type `ron` (RFC 9396), see [`crate::caveat::to_detail`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorization_details: Vec<serde_json::Value>,
    /// The key the token is bound to (RFC 7800): only its holder may use the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cnf: Option<Confirmation>,
    /// The client that acts for the holder (RFC 8693).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Actor>,
    /// The tokens that it was exchanged from, the first one first; it ends with each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ron_from: Vec<TokenAncestor>,
    /// Location of its revocation bit (Token Status List).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TokenStatus>,
}

/// Maximum exchanges between a token and the first one of its line.
pub const ANCESTORS_MAX: usize = 8;

/// Maximum number of clients that act for a holder in one token.
pub const ACTORS_MAX: usize = 4;

/// Member of claim `ron_from`: a token that the bearer's was exchanged from. Its revocation ends the
/// bearer's too, and every use counts against its budgets.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenAncestor {
    /// Token id.
    pub jti: String,
    /// Expiry, in Unix seconds.
    pub exp: u64,
    /// Ids of the keys that signed it.
    pub kids: Vec<String>,
    /// Its caveats that count: `rate.*`, `budget.*`, `ceiling.daily` and `ceiling.total`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<String>,
}

/// Claim `cnf`: a DPoP key (RFC 9449), a client certificate (RFC 8705), or both; possession of each
/// must be proved.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// RFC 7638 SHA-256 thumbprint of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jkt: Option<String>,
    /// SHA-256 of the certificate in DER form, base64url.
    #[serde(rename = "x5t#S256", default, skip_serializing_if = "Option::is_none")]
    pub x5t_s256: Option<String>,
}

impl Confirmation {
    /// The claim of a token bound to a key, a certificate or both; `None` for an unbound token.
    pub fn of(jkt: Option<String>, x5t_s256: Option<String>) -> Option<Self> {
        let bound = jkt.is_some() || x5t_s256.is_some();
        bound.then_some(Self { jkt, x5t_s256 })
    }
}

/// Claim `act`: the current actor, with earlier actors nested inside.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// `client_id` of the actor.
    pub sub: String,
    /// The previous actor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Box<Actor>>,
}

/// Claim `status`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenStatus {
    /// Reference to a status list, the only mechanism in use.
    pub status_list: StatusRef,
}

/// One bit of a status list.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusRef {
    /// Index of the bit in the list.
    pub idx: u32,
    /// URL of the list.
    pub uri: String,
}

/// Claims of a status list token (`statuslist+jwt`).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct StatusListClaims {
    /// Issuer URL.
    pub iss: String,
    /// URL of the list, equal to `uri` in tokens.
    pub sub: String,
    /// Time of issue, in Unix seconds.
    pub iat: u64,
    /// Expiry, in Unix seconds; not to be used afterwards.
    pub exp: u64,
    /// Seconds after which a new list should be fetched.
    pub ttl: u64,
    /// The status bits.
    pub status_list: StatusBits,
}

/// The compressed status bits.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct StatusBits {
    /// Bits per token, always 1: 0 valid, 1 revoked.
    pub bits: u8,
    /// Base64url of the ZLIB-compressed bits, the lowest bit of each byte first.
    pub lst: String,
}

/// Response of `POST /oauth2/introspect` (RFC 7662). For an inactive token it contains `active`
/// only.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
pub struct IntrospectAnswer {
    /// True when its audience would accept it now (with proof of possession if `cnf` is present).
    pub active: bool,
    /// `Bearer` or `DPoP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_type: Option<String>,
    /// Claims of an active token.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<TokenClaims>,
}

/// `POST /v1/passport/revoke`: exactly one of `jti`, `subject_ref`, `kid`, `epoch`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Id of one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// All tokens of a holder issued so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_ref: Option<String>,
    /// All tokens signed by a key (RFC 7638 thumbprint).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kid: Option<String>,
    /// All tokens of an older revocation epoch; must be greater than the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Reason, 1 to 256 bytes, for the audit trail.
    pub reason: String,
}

/// Response of revoke; the revocation was durable before it was sent.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeAnswer {
    /// The revocation epoch after the revocation.
    pub current_epoch: u64,
    /// Number of the event in the revocation feed.
    pub event: u64,
}

/// One event of the revocation feed: a leaf of the revocation log, opened. Numbers are 1, 2, 3 ... without gaps.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevocationEvent {
    /// Number of the event: the index of its leaf plus 1.
    pub seq: u64,
    /// When it was recorded.
    pub ts: Timestamp,
    /// What the event revokes or announces.
    pub revoked: Revoked,
    /// Random bytes with which the leaf commits to `revoked`.
    pub salt: Bytes,
    /// The leaf's commitment to actor and reason, which the feed does not show.
    pub by: Bytes,
}

/// Content of an event: a revocation, or a change of keys or policy.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Revoked {
    /// One token, until its expiry.
    Jti {
        /// Token id.
        jti: String,
        /// Unix seconds after which the entry may be dropped.
        until: u64,
    },
    /// Tokens of a holder issued up to a time.
    Subject {
        /// The holder.
        subject_ref: String,
        /// Latest time of issue that is revoked, in Unix seconds.
        issued_until: u64,
    },
    /// Tokens signed by a key.
    Kid {
        /// RFC 7638 thumbprint of the key.
        kid: String,
    },
    /// Tokens of an earlier revocation epoch.
    Epoch {
        /// The current revocation epoch.
        epoch: u64,
    },
    /// Revokes nothing: the published key set has changed and must be fetched again.
    Keys {
        /// Number of keys in the set.
        count: u64,
    },
    /// Revokes nothing: another version of the issuer policy is in force.
    Policy {
        /// Version of the policy.
        version: u64,
    },
}

impl Revoked {
    /// The name of the variant in JSON, in leaves and in metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Jti { .. } => "jti",
            Self::Subject { .. } => "subject",
            Self::Kid { .. } => "kid",
            Self::Epoch { .. } => "epoch",
            Self::Keys { .. } => "keys",
            Self::Policy { .. } => "policy",
        }
    }
}

/// Response of `GET /v1/passport/events?after=N&wait=S`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevocationPage {
    /// Events after `after`, oldest first, at most 1,000.
    pub events: Vec<RevocationEvent>,
    /// Value of `after` for the next page.
    pub next: u64,
    /// The current revocation epoch.
    pub current_epoch: u64,
    /// The signed checkpoint of the revocation log, a C2SP note. It covers all events, those of later pages too.
    pub checkpoint: String,
}

/// Response of `GET /.well-known/jwks.json` (RFC 7517).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwks {
    /// Every key that may have signed a still valid token.
    pub keys: Vec<Jwk>,
}

/// Response of `GET /.well-known/oauth-authorization-server` (RFC 8414).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct ServerMetadata {
    /// Issuer URL, equal to `iss` in tokens.
    pub issuer: String,
    /// Token endpoint URL.
    pub token_endpoint: String,
    /// JWKS URL.
    pub jwks_uri: String,
    /// URL of the post-quantum keys; separate, because some clients cannot parse them in the JWKS.
    #[serde(default)]
    pub pq_jwks_uri: String,
    /// Introspection URL (RFC 7662).
    #[serde(default)]
    pub introspection_endpoint: String,
    /// Revocation URL (RFC 7009).
    #[serde(default)]
    pub revocation_endpoint: String,
    /// Supported grant types.
    pub grant_types_supported: Vec<String>,
    /// Supported client authentication methods.
    pub token_endpoint_auth_methods_supported: Vec<String>,
    /// Supported algorithms of client assertions.
    #[serde(default)]
    pub token_endpoint_auth_signing_alg_values_supported: Vec<String>,
    /// Supported client authentication methods of the introspection endpoint.
    #[serde(default)]
    pub introspection_endpoint_auth_methods_supported: Vec<String>,
    /// Supported client authentication methods of the revocation endpoint.
    #[serde(default)]
    pub revocation_endpoint_auth_methods_supported: Vec<String>,
    /// Supported algorithms of DPoP proofs (RFC 9449).
    #[serde(default)]
    pub dpop_signing_alg_values_supported: Vec<String>,
    /// Whether tokens are bound to the certificate of a client that authenticated with one (RFC
    /// 8705).
    #[serde(default)]
    pub tls_client_certificate_bound_access_tokens: bool,
    /// The endpoints at which clients present certificates, if these are not the ones above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls_endpoint_aliases: Option<MtlsEndpoints>,
    /// Supported types of `authorization_details` (RFC 9396).
    #[serde(default)]
    pub authorization_details_types_supported: Vec<String>,
    /// Always empty: there is no authorization endpoint.
    pub response_types_supported: Vec<String>,
    /// Every scope that may be granted.
    pub scopes_supported: Vec<String>,
}

/// Endpoints at which a client presents its certificate (RFC 8705 section 5).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct MtlsEndpoints {
    /// Token endpoint URL.
    pub token_endpoint: String,
    /// Introspection URL.
    pub introspection_endpoint: String,
    /// Revocation URL.
    pub revocation_endpoint: String,
}

/// Successful response of `POST /oauth2/token` (RFC 6749 section 5.1).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct TokenAnswer {
    /// The access token.
    pub access_token: String,
    /// `Bearer`, or `DPoP` for a token bound to a key.
    pub token_type: String,
    /// Remaining lifetime in seconds.
    pub expires_in: u64,
    /// The granted scopes, separated by spaces.
    pub scope: String,
    /// After a token exchange (RFC 8693): always the type of an access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_token_type: Option<String>,
}

/// `subject_token_type` and `issued_token_type` of access tokens (RFC 8693).
pub const ACCESS_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:access_token";
/// `grant_type` of a token exchange (RFC 8693).
pub const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// `client_assertion_type` of a signed client assertion (RFC 7523).
pub const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// `grant_type` of a token of another issuer (RFC 7523 section 2.1).
pub const JWT_BEARER_GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// `subject_token_type` of a token of another issuer (RFC 8693).
pub const JWT_TYPE: &str = "urn:ietf:params:oauth:token-type:jwt";
/// The same for an id token of OpenID Connect.
pub const ID_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:id_token";
/// Maximum size of a token with its narrowing statements, in bytes.
pub const NARROWED_BYTES_MAX: usize = 8 * 1024;
/// The same for a token with an ML-DSA signature.
pub const PQ_NARROWED_BYTES_MAX: usize = 20 * 1024;

/// Error response of `POST /oauth2/token` (RFC 6749 section 5.2).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct OauthError {
    /// Error code from a closed list, such as `invalid_client`.
    pub error: String,
    /// Explanation for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_description: Option<String>,
}
