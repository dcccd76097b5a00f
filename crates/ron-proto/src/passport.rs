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
/// Longest token with a classical signature, in bytes. A token with an ML-DSA signature has the same room for its
/// claims and is as much longer as that signature is.
pub const TOKEN_BYTES_MAX: usize = 4 * 1024;
/// Longest token with an ML-DSA signature, in bytes: a hybrid one with ML-DSA-87 in base64url.
pub const PQ_TOKEN_BYTES_MAX: usize = 16 * 1024;
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
    pub caveats: Vec<CaveatInput>,
    /// JWS algorithms the caller's verifiers accept, best first; absent means the audience's
    /// default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_algs: Vec<String>,
    /// Reserved; must be absent or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<serde_json::Value>,
}

/// A caveat as a caller writes it: `"key=value"`, or `{"key": ..., "value": ...}`. Kept as text;
/// whether the key is known and the value fits is for the issuer to say, with its own error codes.
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
            "description": "A limit: key=value, or an object of key and value",
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

/// Answer of issue.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueAnswer {
    /// The token, a JWS compact JWT; of a hybrid, the base64url of a JWS JSON serialization with two signatures.
    pub token: String,
    /// RFC 7638 thumbprint of the key that signed it; of a hybrid, the classical key.
    pub kid: String,
    /// `EdDSA`, `ES256`, `ML-DSA-44`, `-65`, `-87`, or a hybrid such as `EdDSA+ML-DSA-65`.
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
    /// Typed caveats: one object of type `ron` (RFC 9396), see [`crate::caveat::to_detail`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorization_details: Vec<serde_json::Value>,
    /// The key whose holder alone may use the token (RFC 7800).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cnf: Option<Confirmation>,
    /// Who acts for the holder (RFC 8693).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Actor>,
    /// Where its revocation bit is (Token Status List).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TokenStatus>,
}

/// Claim `cnf`: a DPoP key (RFC 9449), a client certificate (RFC 8705), or both; all that is named must be proved.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// RFC 7638 SHA-256 thumbprint of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jkt: Option<String>,
    /// Base64url of the certificate's SHA-256 (of its DER form).
    #[serde(rename = "x5t#S256", default, skip_serializing_if = "Option::is_none")]
    pub x5t_s256: Option<String>,
}

impl Confirmation {
    /// The claim of a token that is bound to a key, a certificate or both; none for one that is not bound.
    pub fn of(jkt: Option<String>, x5t_s256: Option<String>) -> Option<Self> {
        let bound = jkt.is_some() || x5t_s256.is_some();
        bound.then_some(Self { jkt, x5t_s256 })
    }
}

/// Claim `act`: the present actor, and those before it inside.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// `client_id` of the actor.
    pub sub: String,
    /// The actor before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Box<Actor>>,
}

/// Claim `status`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenStatus {
    /// The only mechanism in use.
    pub status_list: StatusRef,
}

/// One bit of a status list.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusRef {
    /// Position in the list.
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
    /// Made at (unix seconds).
    pub iat: u64,
    /// Not to be used after (unix seconds).
    pub exp: u64,
    /// Seconds after which a fresh one should be fetched.
    pub ttl: u64,
    /// The bits.
    pub status_list: StatusBits,
}

/// The compressed bits.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct StatusBits {
    /// Bits of one status, always 1: 0 valid, 1 revoked.
    pub bits: u8,
    /// base64url of the ZLIB form of the bits, the lowest bit of each byte first.
    pub lst: String,
}

/// Answer of `POST /oauth2/introspect` (RFC 7662). Of an inactive token nothing but `active` is
/// said.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
pub struct IntrospectAnswer {
    /// True when its audience would accept it now (with a proof, when `cnf` is there).
    pub active: bool,
    /// `Bearer` or `DPoP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_type: Option<String>,
    /// Its claims.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<TokenClaims>,
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

/// What an event of the feed says: a revocation, or that keys or policy have changed.
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
    /// Revokes nothing: the published key set has changed; read it again.
    Keys {
        /// Number of keys in it.
        count: u64,
    },
    /// Revokes nothing: another version of the issuer policy is in force.
    Policy {
        /// Its version.
        version: u64,
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
    /// URL of the post-quantum keys, which several clients could not read in the first set.
    #[serde(default)]
    pub pq_jwks_uri: String,
    /// Introspection URL (RFC 7662).
    #[serde(default)]
    pub introspection_endpoint: String,
    /// Revocation URL (RFC 7009).
    #[serde(default)]
    pub revocation_endpoint: String,
    /// Grants offered.
    pub grant_types_supported: Vec<String>,
    /// Client authentication methods offered.
    pub token_endpoint_auth_methods_supported: Vec<String>,
    /// Algorithms of client assertions.
    #[serde(default)]
    pub token_endpoint_auth_signing_alg_values_supported: Vec<String>,
    /// Client authentication methods of the introspection endpoint.
    #[serde(default)]
    pub introspection_endpoint_auth_methods_supported: Vec<String>,
    /// Client authentication methods of the revocation endpoint.
    #[serde(default)]
    pub revocation_endpoint_auth_methods_supported: Vec<String>,
    /// Algorithms of DPoP proofs (RFC 9449).
    #[serde(default)]
    pub dpop_signing_alg_values_supported: Vec<String>,
    /// Tokens are bound to the certificate of a client that proved itself with one (RFC 8705).
    #[serde(default)]
    pub tls_client_certificate_bound_access_tokens: bool,
    /// Types of `authorization_details` understood (RFC 9396).
    #[serde(default)]
    pub authorization_details_types_supported: Vec<String>,
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
    /// `Bearer`, or `DPoP` when it is bound to a key.
    pub token_type: String,
    /// Seconds until it expires.
    pub expires_in: u64,
    /// The scopes granted.
    pub scope: String,
    /// After an exchange (RFC 8693): always an access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_token_type: Option<String>,
}

/// `subject_token_type` and `issued_token_type` of access tokens (RFC 8693).
pub const ACCESS_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:access_token";
/// `grant_type` of a token exchange (RFC 8693).
pub const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// `client_assertion_type` of a signed client assertion (RFC 7523).
pub const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// Longest token with its narrowing statements, in bytes.
pub const NARROWED_BYTES_MAX: usize = 8 * 1024;
/// The same where the token has an ML-DSA signature.
pub const PQ_NARROWED_BYTES_MAX: usize = 20 * 1024;

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
    /// May exchange tokens that were issued to other clients (delegation, RFC 8693); its own it
    /// always may.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exchange: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Scopes of one audience.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudienceRule {
    /// Service name.
    pub audience: String,
    /// Scopes that may be granted.
    pub scopes: Vec<String>,
    /// `EdDSA` (default), `ES256`, or with a post-quantum key `ML-DSA-65` (-44, -87) or `EdDSA+ML-DSA-65`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Further algorithms that a caller may ask for with `accept_algs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algs: Vec<String>,
    /// Caveats that every such token carries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<String>,
}
