//! Signing, one message at a time and in batches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BatchAnswer, Bytes, Digest, ItemResult, Prehash, Scheme};
use crate::receipt::LogReceipt;
use crate::values::{Alg, KeyRef, Kid, OpId, Timestamp};

/// Maximum length of a `message` to sign or verify, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of the `context` of a sign request, in bytes.
pub const CONTEXT_BYTES_MAX: usize = 256;

/// `POST /sign`. Exactly one of `message`, `digest` and `prehash`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignRequest {
    /// Key to sign with.
    pub key: KeyRef,
    /// Requires this version to be the head; otherwise 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to sign, at most [`MESSAGE_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Digest to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Hash to sign as it is; needs the payload policy `prehash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prehash: Option<Prehash>,
    /// How ECDSA and RSA sign: the hash function and the padding. When absent, ECDSA over the hash function of the curve and
    /// RSA-PSS over SHA-256; with `prehash` over its function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note of the caller for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl SignRequest {
    /// A request of `key` for nothing yet.
    const fn of(key: KeyRef) -> Self {
        Self {
            key,
            version: None,
            message: None,
            digest: None,
            prehash: None,
            scheme: None,
            op_id: None,
            context: None,
        }
    }

    /// A request for `message` with nothing else set.
    pub fn message(key: impl Into<KeyRef>, message: impl Into<Vec<u8>>) -> Self {
        Self {
            message: Some(Bytes(message.into())),
            ..Self::of(key.into())
        }
    }

    /// A request for `digest` with nothing else set.
    pub fn digest(key: impl Into<KeyRef>, digest: Digest) -> Self {
        Self {
            digest: Some(digest),
            ..Self::of(key.into())
        }
    }

    /// A request for `prehash` with nothing else set.
    pub fn prehash(key: impl Into<KeyRef>, prehash: Prehash) -> Self {
        Self {
            prehash: Some(prehash),
            ..Self::of(key.into())
        }
    }
}

/// One signature.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Algorithm of the signature.
    pub alg: Alg,
    /// How it was made, for RSA, and for ECDSA with another hash function than the usual one of its curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Ed25519: 64 bytes. ECDSA: r and s as in JWS, 64 bytes, on P-384 96. RSA: as many bytes as the modulus. ML-DSA:
    /// FIPS 204.
    pub signature: Bytes,
}

/// Attestation status of the device that holds the key, at the time of signing.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignAttestation {
    /// Attestation class of the key's document, such as `tpm2-certify`; the evidence itself is at
    /// `/attest`.
    pub class: String,
    /// When the device last attested successfully; this is repeated every `attest.refresh_every`.
    pub confirmed: Timestamp,
}

/// Response of `POST /sign`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignAnswer {
    /// The key that signed.
    pub key: Kid,
    /// The version that signed.
    pub version: u32,
    /// One signature; two for hybrid algorithms.
    pub signatures: Vec<Signature>,
    /// Leaf of the audit log that records this signature; durable before this response was sent.
    pub receipt: LogReceipt,
    /// Inclusion proof (`c2sp.org/tlog-proof@v1`) of the leaf, when the caller waited for it
    /// (`Prefer: wait=N`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// Present for keys in a device that has attested since the service started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<SignAttestation>,
}

/// `POST /sign_batch`: up to [`BATCH_ITEMS_MAX`] items, with one audit leaf each and one durable
/// append for all.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignBatch {
    /// Key of the items that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyRef>,
    /// Required head version for the items that name neither key nor version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Items to sign, 1 to 1,000.
    pub items: Vec<SignItem>,
}

/// One item of a [`SignBatch`]; fields as in [`SignRequest`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignItem {
    /// Key of this item; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyRef>,
    /// Requires this version to be the head; otherwise 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to sign, at most [`MESSAGE_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Bytes>,
    /// Digest to sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Hash to sign as it is; needs the payload policy `prehash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prehash: Option<Prehash>,
    /// How ECDSA and RSA sign: the hash function and the padding. When absent, ECDSA over the hash function of the curve and
    /// RSA-PSS over SHA-256; with `prehash` over its function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Idempotency key of this item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

impl SignItem {
    /// The request of this item alone.
    pub fn with_key(self, key: KeyRef) -> SignRequest {
        SignRequest {
            key,
            version: self.version,
            message: self.message,
            digest: self.digest,
            prehash: self.prehash,
            scheme: self.scheme,
            op_id: self.op_id,
            context: self.context,
        }
    }
}

pub type SignResult = ItemResult<SignAnswer>;
/// Response of `POST /sign_batch`.
pub type SignBatchAnswer = BatchAnswer<SignAnswer>;
