//! Derivation of secrets that stay inside: they are wrapped, or make a MAC.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Bytes;
use crate::receipt::LogReceipt;
use crate::values::{KeyRef, Kid, KidVersion, OpId};

/// Lengths of derived secrets, in bytes: a shorter one could be found from its MACs, and HKDF gives no longer one.
pub const DERIVED_BYTES: std::ops::RangeInclusive<u32> = 16..=255 * 32;
/// Maximum length of `salt` and of `info`, in bytes.
pub const DERIVE_INPUT_BYTES_MAX: usize = 4 * 1024;

/// `POST /derive`: derive a secret with HKDF-SHA-256 (RFC 5869) from a key, or from the secret that a key shares with
/// another party.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeriveRequest {
    /// A key of algorithm `ecdh-p256`, `ecdh-p384`, `ecdh-x25519` or `hkdf-sha256`.
    pub key: KeyRef,
    /// The version that derives, from `min_verify_version` on; the head when absent. A version that is named derives also
    /// when the key is retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Public key of the other party, for `ecdh` keys and only for them: the uncompressed point (`04 || x || y`), or the 32
    /// bytes of X25519.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_public: Option<Bytes>,
    /// `salt` of HKDF, at most 4096 bytes; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<Bytes>,
    /// `info` of HKDF, at most 4096 bytes: another value for each use of a key. May be empty.
    pub info: Bytes,
    /// Length of the derived secret, 16 to 8160 bytes; 32 when absent. A shorter one is the beginning of a longer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// What is done with the derived secret; it is never in the answer itself.
    pub output: DeriveOutput,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// What is done with a derived secret.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DeriveOutput {
    /// Wrap it, as `/wrap` does.
    Wrap(WrapDerived),
    /// Make a MAC with it: HMAC-SHA-256 (RFC 2104) of a message.
    Hmac(HmacDerived),
}

/// How a derived secret is wrapped.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapDerived {
    /// The key that wraps, with its head version; the caller needs the operation `wrap` of it.
    pub key: KeyRef,
    /// Associated data, as in [`WrapRequest`](super::WrapRequest).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
}

/// What a derived secret makes a MAC of.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HmacDerived {
    /// Message to authenticate, at most [`super::MESSAGE_BYTES_MAX`] bytes.
    pub message: Bytes,
}

/// Response of `POST /derive`: `wrapped_by` and `ciphertext`, or `mac`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeriveAnswer {
    /// The key from which the secret was derived.
    pub key: Kid,
    /// The version of it that was used.
    pub version: u32,
    /// The key version that wrapped the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped_by: Option<KidVersion>,
    /// The wrapped secret; unwrap with that key returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ciphertext: Option<Bytes>,
    /// The MAC, 32 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Bytes>,
    /// Leaf of the audit log, durable before this response was sent.
    pub receipt: LogReceipt,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_one_of_two() {
        let check = |output: &str, ok: bool| {
            let key = "ron/app/hkdf-sha256/0190f0a0-0000-7000-8000-000000000000";
            let json = format!(r#"{{"key":"{key}","info":"","output":{output}}}"#);
            let read = serde_json::from_str::<DeriveRequest>(&json);
            assert_eq!(read.is_ok(), ok, "{output}");
        };
        check(r#"{"hmac":{"message":"aGk"}}"#, true);
        check(r#"{"wrap":{"key":"alias/kek","aad":"aGk"}}"#, true);
        check("{}", false);
        check(r#"{"plain":{}}"#, false);
        check(r#"{"hmac":{"message":"aGk","key":"alias/kek"}}"#, false);
        check(
            r#"{"hmac":{"message":"aGk"},"wrap":{"key":"alias/kek"}}"#,
            false,
        );
    }
}
