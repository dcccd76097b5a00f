//! Request and answer types of the ron-kms API (base `/v1/kms`).
//!
//! Bytes (messages, signatures, raw public keys) travel as base64url without padding, see
//! [`Bytes`]. A key is named by its [`Kid`]; a version is a number in the body or query.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::receipt::LogReceipt;
use crate::values::{Alg, Kid, OpId, Purpose, Tenant, Timestamp};

/// Longest `message` that may be signed or verified, in raw bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most items of one `sign_batch` or `verify_batch` request.
pub const BATCH_ITEMS_MAX: usize = 1_000;
/// Longest `context` of a sign request, in bytes.
pub const CONTEXT_BYTES_MAX: usize = 256;
/// Longest note origin, `iss`, `typ` or `aud` of a payload policy, in bytes.
pub const POLICY_TEXT_BYTES_MAX: usize = 256;
/// Most entries of `typ` or of `aud` in a [`JwtPolicy`].
pub const POLICY_LIST_MAX: usize = 32;
/// Longest lifetime a [`JwtPolicy`] may allow, in seconds (31 days).
pub const JWT_TTL_S_MAX: u64 = 31 * 24 * 3600;

/// Raw bytes that travel as base64url without padding.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// The bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(raw: Vec<u8>) -> Self {
        Self(raw)
    }
}

impl From<&[u8]> for Bytes {
    fn from(raw: &[u8]) -> Self {
        Self(raw.to_vec())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl fmt::Debug for Bytes {
    /// Only the length: a message is the caller's business and does not belong in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Bytes;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("bytes as base64url without padding")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
                let refuse = |_| E::custom("not base64url without padding");
                URL_SAFE_NO_PAD.decode(text).map(Bytes).map_err(refuse)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl JsonSchema for Bytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Base64Url".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[A-Za-z0-9_-]*$",
            "description": "bytes, base64url without padding"
        })
    }
}

/// Hash function of a [`Digest`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DigestAlg {
    /// BLAKE3 with 256 bits of output.
    Blake3,
    /// SHA-256.
    Sha256,
}

impl DigestAlg {
    /// The name that is signed along with the digest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
        }
    }
}

/// A digest to sign instead of a message. The signed bytes are
/// `"ron-kms/v1/digest\0" || alg || "\0" || 32 bytes`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Digest {
    /// Which function made it.
    pub alg: DigestAlg,
    /// 64 lower-case hex digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub value: String,
}

impl Digest {
    /// A digest from its 32 raw bytes.
    pub fn new(alg: DigestAlg, raw: &[u8; 32]) -> Self {
        Self {
            alg,
            value: hex::encode(raw),
        }
    }

    /// The 32 raw bytes; `None` unless the value is exactly 64 lower-case hex digits.
    pub fn raw(&self) -> Option<[u8; 32]> {
        let lower = self
            .value
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let mut raw = [0_u8; 32];
        (lower && hex::decode_to_slice(&self.value, &mut raw).is_ok()).then_some(raw)
    }
}

/// What a key may sign; fixed when the key is made. On the wire `"any"`, `"digest"`,
/// `{"note": {...}}` or `{"jwt": {...}}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PayloadPolicy {
    /// Any message (but one that imitates a digest request) and any digest.
    #[default]
    Any,
    /// Digests only, never a message.
    Digest,
    /// C2SP note texts of one origin; checkpoints among them may only grow.
    Note(NotePolicy),
    /// JWS signing inputs whose header and claims stay inside the limits given here.
    Jwt(JwtPolicy),
}

impl PayloadPolicy {
    /// The policy's name: `any`, `digest`, `note` or `jwt`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Digest => "digest",
            Self::Note(_) => "note",
            Self::Jwt(_) => "jwt",
        }
    }
}

/// Parameters of the payload policy `note`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotePolicy {
    /// The first line that every note must have.
    pub origin: String,
}

/// Parameters of the payload policy `jwt`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JwtPolicy {
    /// Allowed header `typ` values, for example `at+jwt`, `statuslist+jwt`.
    pub typ: Vec<String>,
    /// The only `iss` claim allowed.
    pub iss: String,
    /// Allowed `aud` values; a token with an array needs every entry listed here. A token of
    /// type `at+jwt` must have an audience.
    pub aud: Vec<String>,
    /// Longest `exp - iat`, in seconds.
    pub max_ttl_s: u64,
}

/// `POST /keys`: make a key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Must be the caller's tenant.
    pub tenant: Tenant,
    /// What the key is for; callers can be limited to `tenant/purpose/` prefixes.
    pub purpose: Purpose,
    /// Algorithm; one that no configured backend offers is refused with `unsupported`.
    pub alg: Alg,
    /// What the key may sign; `any` when absent.
    #[serde(default)]
    pub payload: PayloadPolicy,
    /// Whether wrapped export may ever be allowed. Not offered by the file and memory backends:
    /// `true` is refused with `unsupported`.
    #[serde(default)]
    pub exportable: bool,
    /// The same `op_id` with the same body returns the same key.
    pub op_id: OpId,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/rotate`: make a new head version.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// When given and not the current head version: 409 `stale_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_head: Option<u32>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// State of a key.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// Signs with its head version, verifies with every version.
    Active,
}

impl KeyState {
    /// The state's name on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
        }
    }
}

/// A key as the KMS shows it: everything but the secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyDoc {
    /// `tenant/purpose/alg/uuid`.
    pub key: Kid,
    /// What it may sign.
    pub payload: PayloadPolicy,
    /// The version that signs.
    pub head: u32,
    /// The oldest version that still verifies.
    pub min_verify_version: u32,
    /// Its state.
    pub state: KeyState,
    /// Backend that holds it: `file` or `memory`.
    pub backend: String,
    /// Always `none` for keys held in software.
    pub attestation: String,
    /// Whether wrapped export may ever be allowed.
    pub exportable: bool,
    /// When it was made.
    pub created: Timestamp,
    /// Every version, oldest first; `versions[n].version == n + 1`.
    pub versions: Vec<KeyVersionDoc>,
    /// Leaf of the audit log that records the making of the key; only in the answer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<LogReceipt>,
}

impl KeyDoc {
    /// The given version's document, if there is one.
    pub fn version(&self, version: u32) -> Option<&KeyVersionDoc> {
        self.versions.iter().find(|v| v.version == version)
    }

    /// The head version's document.
    pub fn head_version(&self) -> Option<&KeyVersionDoc> {
        self.version(self.head)
    }
}

/// One version of a key, with its public key in three forms.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyVersionDoc {
    /// From 1.
    pub version: u32,
    /// When it was made.
    pub created: Timestamp,
    /// Ed25519: 32 bytes. P-256: 65 bytes, uncompressed SEC 1 point.
    pub public_key: Bytes,
    /// `SubjectPublicKeyInfo` in PEM.
    pub public_key_pem: String,
    /// The same key as a JWK; its `kid` is the RFC 7638 thumbprint.
    pub jwk: Jwk,
    /// Leaf of the audit log that records its making.
    pub receipt: LogReceipt,
}

/// A public key in JWK form (RFC 7517, RFC 8037).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwk {
    /// `OKP` or `EC`.
    pub kty: String,
    /// `Ed25519` or `P-256`.
    pub crv: String,
    /// Base64url.
    pub x: String,
    /// Base64url; P-256 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// RFC 7638 thumbprint, base64url of SHA-256.
    pub kid: String,
    /// `EdDSA` or `ES256`.
    pub alg: String,
    /// Always `sig`.
    #[serde(rename = "use")]
    pub usage: String,
}

/// Answer of `GET /keys`, ordered by key name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    /// One page of keys of the caller's tenant.
    pub keys: Vec<KeyDoc>,
    /// Pass as `after` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Answer of rotate.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateAnswer {
    /// The operation id that was given, or the one made for this call.
    pub op_id: OpId,
    /// The key with its new head.
    pub document: KeyDoc,
    /// Leaf of the audit log that records the rotation.
    pub receipt: LogReceipt,
}

/// `POST /sign`. Exactly one of `message` and `digest`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignRequest {
    /// Which key.
    pub key: Kid,
    /// Pins a version: when it is not the head, 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to sign, at most [`MESSAGE_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Digest to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark of the caller that goes into the audit leaf: 1..=256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl SignRequest {
    /// A request for `message` with nothing else set.
    pub fn message(key: Kid, message: impl Into<Vec<u8>>) -> Self {
        let message = Some(Bytes(message.into()));
        Self {
            key,
            version: None,
            message,
            digest: None,
            op_id: None,
            context: None,
        }
    }

    /// A request for `digest` with nothing else set.
    pub fn digest(key: Kid, digest: Digest) -> Self {
        Self {
            key,
            version: None,
            message: None,
            digest: Some(digest),
            op_id: None,
            context: None,
        }
    }
}

/// One signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The algorithm that made it.
    pub alg: Alg,
    /// Ed25519: 64 bytes. P-256: 64 bytes, r and s as in JWS.
    pub signature: Bytes,
}

/// Answer of `POST /sign`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignAnswer {
    /// The key that signed.
    pub key: Kid,
    /// The version that signed.
    pub version: u32,
    /// One signature (two for hybrid algorithms).
    pub signatures: Vec<Signature>,
    /// Leaf of the audit log that records this signature; durable before this answer was sent.
    pub receipt: LogReceipt,
    /// Proof (`c2sp.org/tlog-proof@v1`) that the leaf is in the log, when the caller waited for it (`Prefer: wait=N`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
}

/// `POST /sign_batch`: up to [`BATCH_ITEMS_MAX`] items, one leaf each, one durable append.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignBatch {
    /// Key of every item that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Pinned version of every item that names neither key nor version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// What to sign, 1..=1000.
    pub items: Vec<SignItem>,
}

/// One item of a [`SignBatch`]; fields as in [`SignRequest`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignItem {
    /// Which key; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Pins a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Digest to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Replay protection of this item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /sign_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignBatchAnswer {
    /// One result per item, in order.
    pub results: Vec<SignResult>,
}

/// Result of one batch item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignResult {
    /// The signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<SignAnswer>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// Why one item of a batch failed: what the single call would have answered.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemError {
    /// HTTP status of the single call.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// What to do.
    pub detail: String,
    /// Whether the same request can succeed later.
    pub retryable: bool,
}

/// How the signatures of a hybrid key combine.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// Every algorithm of the key must have a valid signature.
    #[default]
    And,
    /// One valid signature is enough.
    Or,
    /// Only the post-quantum signature counts.
    PqOnly,
}

/// `POST /verify`. Exactly one of `message` and `digest`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// Which key.
    pub key: Kid,
    /// Only this version; every version from `min_verify_version`, newest first, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// The signed bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// The signed digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// What to check, 1..=4.
    pub signatures: Vec<Signature>,
    /// `and` when absent.
    #[serde(default)]
    pub mode: VerifyMode,
}

/// Answer of `POST /verify`. A wrong signature is `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyAnswer {
    /// Whether the signatures hold under the mode.
    pub ok: bool,
    /// One entry per signature given.
    pub details: Vec<VerifyDetail>,
    /// Age of the cached public key, in milliseconds, while the backend is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_age_ms: Option<u64>,
}

/// Result for one signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyDetail {
    /// Algorithm of the signature.
    pub alg: Alg,
    /// Whether it holds.
    pub ok: bool,
    /// The version whose public key it matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Why not: `alg_mismatch`, `wrong_length` or `no_match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_strict_base64url() {
        let check = |json: &str, want: Option<&[u8]>| {
            let got: Option<Bytes> = serde_json::from_str(json).ok();
            assert_eq!(got.as_ref().map(Bytes::as_slice), want, "{json}");
        };
        check("\"\"", Some(b""));
        check("\"AQID\"", Some(&[1, 2, 3]));
        check("\"_-8\"", Some(&[255, 239]));
        check("\"/+8\"", None);
        check("\"AQ==\"", None);
        check("\"AR\"", None); // bits left over: not canonical
        check("\"A Q\"", None);
        check("7", None);
    }

    #[test]
    fn payload_policy_on_the_wire() {
        let check = |json: &str, ok: bool| {
            let got = serde_json::from_str::<PayloadPolicy>(json);
            assert_eq!(got.is_ok(), ok, "{json}: {got:?}");
            if let Ok(policy) = got {
                let again = serde_json::to_string(&policy).expect("serialises");
                assert_eq!(again, json);
            }
        };
        check("\"any\"", true);
        check("\"digest\"", true);
        check(r#"{"note":{"origin":"o"}}"#, true);
        check(
            r#"{"jwt":{"typ":["at+jwt"],"iss":"i","aud":["a"],"max_ttl_s":60}}"#,
            true,
        );
        check("\"jwt\"", false);
        check("\"Any\"", false);
        check(r#"{"note":{"origin":"o","more":1}}"#, false);
        check(r#"{"jwt":{"typ":["at+jwt"],"iss":"i","aud":["a"]}}"#, false);
    }

    #[test]
    fn digest_is_lower_hex() {
        let check = |value: &str, ok: bool| {
            let digest = Digest {
                alg: DigestAlg::Sha256,
                value: value.into(),
            };
            assert_eq!(digest.raw().is_some(), ok, "{value}");
        };
        check(&"0a".repeat(32), true);
        check(&"0A".repeat(32), false);
        check(&"0a".repeat(31), false);
        check(&"0g".repeat(32), false);
    }
}
