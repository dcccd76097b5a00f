//! Envelope operations: wrap, unwrap, rewrap, data keys, MACs and random bytes.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroize as _;

use super::{Batch, BatchAnswer, Bytes};
use crate::receipt::LogReceipt;
use crate::values::{KeyRef, Kid, OpId};

/// Maximum length of `plaintext` in one wrap, in bytes; `aes256-kwp` accepts 16 KiB.
pub const WRAP_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of `aad`, in bytes.
pub const AAD_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of random bytes per request.
pub const RANDOM_BYTES_MAX: usize = 4096;
/// Supported lengths of data keys, in bytes.
pub const DATAKEY_BYTES: [u32; 3] = [16, 32, 64];

/// Secret bytes, encoded like [`Bytes`] and erased when dropped.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PrivateBytes(Vec<u8>);

impl PrivateBytes {
    /// The bytes. Do not copy them to memory that is not erased.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Takes ownership of the bytes.
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
    /// Key to wrap with: `aes256-gcm`, `aes256-kwp`, `x25519-hkdf-aes256-gcm` or
    /// `x25519+ml-kem-768`.
    pub key: KeyRef,
    /// Requires this version to be the head; otherwise 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to encrypt, at most [`WRAP_BYTES_MAX`]; `aes256-kwp` requires at least one byte.
    pub plaintext: PrivateBytes,
    /// Associated data: authenticated, not encrypted, at most [`AAD_BYTES_MAX`] bytes. Unwrap
    /// requires the same bytes. Not supported by `aes256-kwp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// One item of a [`WrapBatch`].
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapItem {
    /// Key of this item; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyRef>,
    /// Requires this version to be the head; otherwise 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to encrypt.
    pub plaintext: PrivateBytes,
    /// Associated data, as in [`WrapRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key, as in a `/wrap` of this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// `POST /wrap_batch`.
pub type WrapBatch = Batch<WrapItem>;
/// Response of `POST /wrap_batch`.
pub type WrapBatchAnswer = BatchAnswer<WrapAnswer>;

impl WrapItem {
    /// The request of this item alone.
    pub fn with_key(self, key: KeyRef) -> WrapRequest {
        WrapRequest {
            key,
            version: self.version,
            plaintext: self.plaintext,
            aad: self.aad,
            op_id: self.op_id,
            context: self.context,
        }
    }
}

/// Response of `POST /wrap`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapAnswer {
    /// The key that wrapped.
    pub key: Kid,
    /// The key version that wrapped; the ciphertext's header names it too.
    pub version: u32,
    /// Header with the version, then the output of the algorithm; see `docs/formats/envelope.md`.
    pub ciphertext: Bytes,
    /// Leaf of the audit log, durable before this response was sent.
    pub receipt: LogReceipt,
}

/// `POST /unwrap`: decrypt the output of wrap, rewrap or datakey.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapRequest {
    /// Key the ciphertext was wrapped with.
    pub key: KeyRef,
    /// Ciphertext as returned by wrap; its header names the key version.
    pub ciphertext: Bytes,
    /// The associated data given to wrap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// One item of an [`UnwrapBatch`].
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapItem {
    /// Key of this item; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyRef>,
    /// Ciphertext as returned by wrap.
    pub ciphertext: Bytes,
    /// The associated data given to wrap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key, as in an `/unwrap` of this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// `POST /unwrap_batch`.
pub type UnwrapBatch = Batch<UnwrapItem>;
/// Response of `POST /unwrap_batch`.
pub type UnwrapBatchAnswer = BatchAnswer<UnwrapAnswer>;

impl UnwrapItem {
    /// The request of this item alone.
    pub fn with_key(self, key: KeyRef) -> UnwrapRequest {
        UnwrapRequest {
            key,
            ciphertext: self.ciphertext,
            aad: self.aad,
            op_id: self.op_id,
            context: self.context,
        }
    }
}

/// Response of `POST /unwrap`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapAnswer {
    /// The key that unwrapped.
    pub key: Kid,
    /// The key version the ciphertext was wrapped with.
    pub version: u32,
    /// The decrypted bytes.
    pub plaintext: PrivateBytes,
    /// Leaf of the audit log that records the operation.
    pub receipt: LogReceipt,
}

/// `POST /rewrap`: re-encrypt a ciphertext under the head version without revealing its content.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewrapRequest {
    /// Key the ciphertext was wrapped with.
    pub key: KeyRef,
    /// Ciphertext as returned by wrap.
    pub ciphertext: Bytes,
    /// The associated data given to wrap; the new ciphertext is bound to the same bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /rewrap`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewrapAnswer {
    /// The key that wrapped.
    pub key: Kid,
    /// The key version of the given ciphertext.
    pub from_version: u32,
    /// The key version of the new ciphertext.
    pub version: u32,
    /// The new ciphertext.
    pub ciphertext: Bytes,
    /// Leaf of the audit log that records the operation.
    pub receipt: LogReceipt,
}

/// `POST /datakey`: generate a random data key and wrap it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatakeyRequest {
    /// The key that wraps the data key.
    pub key: KeyRef,
    /// Length of the data key: 16, 32 (default) or 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// Whether the response contains the data key in the clear; `true` when absent. With `false`,
    /// only callers that may unwrap can obtain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plaintext: Option<bool>,
    /// Associated data, as in [`WrapRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /datakey`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatakeyAnswer {
    /// The key that wrapped the data key.
    pub key: Kid,
    /// The key version that wrapped it.
    pub version: u32,
    /// The wrapped data key; unwrap returns the data key.
    pub ciphertext: Bytes,
    /// The data key in the clear, unless the request set `plaintext` to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plaintext: Option<PrivateBytes>,
    /// Leaf of the audit log that records the operation.
    pub receipt: LogReceipt,
}

/// `POST /hmac`: HMAC (RFC 2104) of a message.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacRequest {
    /// A key of algorithm `hmac-sha256`, `hmac-sha384` or `hmac-sha512`.
    pub key: KeyRef,
    /// Requires this version to be the head; otherwise 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Message to authenticate, at most [`super::MESSAGE_BYTES_MAX`] bytes.
    pub message: Bytes,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /hmac`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacAnswer {
    /// The key that made the MAC.
    pub key: Kid,
    /// The key version that made it.
    pub version: u32,
    /// The MAC: 32, 48 or 64 bytes.
    pub mac: Bytes,
    /// Leaf of the audit log that records the operation.
    pub receipt: LogReceipt,
}

/// `POST /hmac/verify`. An invalid MAC gives `ok: false`, not an error.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacVerifyRequest {
    /// A key of algorithm `hmac-sha256`, `hmac-sha384` or `hmac-sha512`.
    pub key: KeyRef,
    /// Check only this version; when absent, every version from `min_verify_version` on, newest
    /// first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// The authenticated message, at most [`super::MESSAGE_BYTES_MAX`] bytes.
    pub message: Bytes,
    /// The MAC to check: 32, 48 or 64 bytes.
    pub mac: Bytes,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /hmac/verify`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacVerifyAnswer {
    /// Whether it is a valid MAC of the message.
    pub ok: bool,
    /// The key version that made it, when valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Leaf of the audit log that records the operation.
    pub receipt: LogReceipt,
}

/// `POST /random`: bytes from the operating system's generator.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomRequest {
    /// Number of bytes: 1 to [`RANDOM_BYTES_MAX`]; 32 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /random`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomAnswer {
    /// The random bytes.
    pub bytes: PrivateBytes,
    /// Leaf of the audit log that records the operation.
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
