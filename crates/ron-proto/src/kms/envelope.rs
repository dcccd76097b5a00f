//! Envelope operations: wrap, unwrap, rewrap, data keys, MACs and random bytes.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroize as _;

use super::Bytes;
use crate::receipt::LogReceipt;
use crate::values::{Kid, OpId};

/// Longest `plaintext` that is wrapped at once, in raw bytes; `aes256-kwp` takes 16 KiB.
pub const WRAP_BYTES_MAX: usize = 64 * 1024;
/// Longest `aad`, in raw bytes.
pub const AAD_BYTES_MAX: usize = 4 * 1024;
/// Most random bytes of one request.
pub const RANDOM_BYTES_MAX: usize = 4096;
/// The lengths of data keys that are made, in bytes.
pub const DATAKEY_BYTES: [u32; 3] = [16, 32, 64];

/// Secret bytes that travel like [`Bytes`] and are erased when they are dropped.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PrivateBytes(Vec<u8>);

impl PrivateBytes {
    /// The bytes. Do not copy them anywhere that is not erased.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Takes the bytes over.
    pub fn new(raw: Vec<u8>) -> Self {
        Self(raw)
    }
}

impl Drop for PrivateBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl From<&[u8]> for PrivateBytes {
    fn from(raw: &[u8]) -> Self {
        Self(raw.to_vec())
    }
}

impl fmt::Debug for PrivateBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Serialize for PrivateBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = crate::b64::url(&self.0);
        let done = serializer.serialize_str(&text);
        text.zeroize();
        done
    }
}

impl<'de> Deserialize<'de> for PrivateBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Bytes::deserialize(deserializer).map(|bytes| Self(bytes.0))
    }
}

impl JsonSchema for PrivateBytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PrivateBase64Url".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[A-Za-z0-9_-]*$",
            "description": "secret bytes, base64url without padding"
        })
    }
}

/// `POST /wrap`: encrypt under the head version of a key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapRequest {
    /// Which key: `aes256-gcm`, `aes256-kwp`, `x25519-hkdf-aes256-gcm` or `x25519+ml-kem-768`.
    pub key: Kid,
    /// Pins a version: when it is not the head, 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// What to encrypt, at most [`WRAP_BYTES_MAX`]; `aes256-kwp` needs at least one byte.
    pub plaintext: PrivateBytes,
    /// Associated data: authenticated, not encrypted, at most [`AAD_BYTES_MAX`]. The same bytes
    /// must be given to unwrap. `aes256-kwp` binds none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf: 1..=256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /wrap`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapAnswer {
    /// The key.
    pub key: Kid,
    /// The version that wrapped; the ciphertext names it too.
    pub version: u32,
    /// Header with the version, then what the algorithm made; see `docs/formats/envelope.md`.
    pub ciphertext: Bytes,
    /// Leaf of the audit log, durable before this answer was sent.
    pub receipt: LogReceipt,
}

/// `POST /unwrap`: decrypt what wrap, rewrap or datakey made.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapRequest {
    /// Which key.
    pub key: Kid,
    /// As wrap answered it; its header names the version.
    pub ciphertext: Bytes,
    /// The associated data it was wrapped with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /unwrap`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapAnswer {
    /// The key.
    pub key: Kid,
    /// The version that had wrapped it.
    pub version: u32,
    /// What was wrapped.
    pub plaintext: PrivateBytes,
    /// Leaf of the audit log.
    pub receipt: LogReceipt,
}

/// `POST /rewrap`: put a ciphertext under the head version without showing what is in it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewrapRequest {
    /// Which key.
    pub key: Kid,
    /// As wrap answered it.
    pub ciphertext: Bytes,
    /// The associated data it was wrapped with; the new ciphertext is bound to the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /rewrap`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewrapAnswer {
    /// The key.
    pub key: Kid,
    /// The version it was under.
    pub from_version: u32,
    /// The version it is under now.
    pub version: u32,
    /// The new ciphertext.
    pub ciphertext: Bytes,
    /// Leaf of the audit log.
    pub receipt: LogReceipt,
}

/// `POST /datakey`: make a random key and wrap it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatakeyRequest {
    /// The key that wraps it.
    pub key: Kid,
    /// Its length: 16, 32 (when absent) or 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// Whether the answer shows the data key itself; `true` when absent. With `false` only who
    /// may unwrap ever sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plaintext: Option<bool>,
    /// Associated data, as in [`WrapRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /datakey`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatakeyAnswer {
    /// The key that wrapped it.
    pub key: Kid,
    /// The version that wrapped it.
    pub version: u32,
    /// The wrapped data key; unwrap shows it again.
    pub ciphertext: Bytes,
    /// The data key, unless it was asked to stay hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plaintext: Option<PrivateBytes>,
    /// Leaf of the audit log.
    pub receipt: LogReceipt,
}

/// `POST /hmac`: HMAC-SHA-256 (RFC 2104) of a message.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacRequest {
    /// A key of algorithm `hmac-sha256`.
    pub key: Kid,
    /// Pins a version: when it is not the head, 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// At most [`super::MESSAGE_BYTES_MAX`].
    pub message: Bytes,
    /// The same `op_id` with the same body returns the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /hmac`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacAnswer {
    /// The key.
    pub key: Kid,
    /// The version that made it.
    pub version: u32,
    /// 32 bytes.
    pub mac: Bytes,
    /// Leaf of the audit log.
    pub receipt: LogReceipt,
}

/// `POST /hmac/verify`. A MAC that does not hold is `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacVerifyRequest {
    /// A key of algorithm `hmac-sha256`.
    pub key: Kid,
    /// Only this version; every version from `min_verify_version`, newest first, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// At most [`super::MESSAGE_BYTES_MAX`].
    pub message: Bytes,
    /// What to check: 32 bytes.
    pub mac: Bytes,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /hmac/verify`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacVerifyAnswer {
    /// Whether it is the MAC of the message.
    pub ok: bool,
    /// The version that made it, when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Leaf of the audit log.
    pub receipt: LogReceipt,
}

/// `POST /random`: bytes from the operating system's generator.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomRequest {
    /// How many: 1 to [`RANDOM_BYTES_MAX`]; 32 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /random`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomAnswer {
    /// The bytes.
    pub bytes: PrivateBytes,
    /// Leaf of the audit log.
    pub receipt: LogReceipt,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_travel_and_are_not_printed() {
        let secret = PrivateBytes::new(vec![0xfb, 0xff]);
        let json = serde_json::to_string(&secret).expect("text");
        assert_eq!(json, "\"-_8\"");
        assert_eq!(
            serde_json::from_str::<PrivateBytes>(&json).expect("parses"),
            secret
        );
        assert_eq!(format!("{secret:?}"), "[secret]");
        assert!(serde_json::from_str::<PrivateBytes>("\"-_8=\"").is_err());
    }

    #[test]
    fn unknown_fields_are_refused() {
        let check = |json: &str, ok: bool| {
            assert_eq!(serde_json::from_str::<RandomRequest>(json).is_ok(), ok);
        };
        check("{}", true);
        check(r#"{"bytes":32}"#, true);
        check(r#"{"bytes":-1}"#, false);
        check(r#"{"byte":32}"#, false);
    }
}
