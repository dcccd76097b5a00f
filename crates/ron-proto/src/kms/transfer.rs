//! Keys that come from outside or leave, always wrapped.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, PayloadPolicy, RotateEvery};
use crate::receipt::LogReceipt;
use crate::values::{Alg, Kid, OpId, Purpose, Tenant, Timestamp};

/// Longest wrapped key, in bytes.
pub const WRAPPED_BYTES_MAX: usize = 8 * 1024;

/// Answer of `GET /wrapping_key`: the key to which an imported key is wrapped. It lives in memory
/// only, until the service stops.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrappingKeyDoc {
    /// Base64url of the SHA-256 of the public key; names it in [`ImportKey`].
    pub id: String,
    /// `x25519-hkdf-aes256-gcm` or `x25519+ml-kem-768`.
    pub alg: Alg,
    /// X25519: 32 bytes. Hybrid: the ML-KEM-768 key and the X25519 key after it.
    pub public_key: Bytes,
    /// When it was made.
    pub created: Timestamp,
    /// A signed note (C2SP) that says all this, under the key of the audit log
    /// (`/audit/v1/vkey`).
    pub statement: String,
}

/// `POST /keys/import`: take a key over from somewhere else. The formats are in
/// `docs/formats/kms.md`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportKey {
    /// Must be the caller's tenant.
    pub tenant: Tenant,
    /// What the key is for.
    pub purpose: Purpose,
    /// Algorithm of the key inside.
    pub alg: Alg,
    /// What the key may sign; `any` when absent.
    #[serde(default)]
    pub payload: PayloadPolicy,
    /// Whether the key may leave again, wrapped.
    #[serde(default)]
    pub exportable: bool,
    /// Make a new version this often; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_every: Option<RotateEvery>,
    /// `id` of the wrapping key it is wrapped to.
    pub wrapping_key: String,
    /// The wrapped key.
    pub wrapped: Bytes,
    /// The same `op_id` with the same body returns the same key.
    pub op_id: OpId,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/export`: hand a version of an exportable key over, wrapped.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportKey {
    /// Which version; the head when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// To whom it is wrapped. Without a recipient nothing leaves: 403 `export_forbidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<Recipient>,
    /// For the audit leaf. An export is wrapped anew every time, so nothing is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// A public key to which a key is wrapped.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipient {
    /// `x25519-hkdf-aes256-gcm` or `x25519+ml-kem-768`.
    pub alg: Alg,
    /// As in [`WrappingKeyDoc`].
    pub public_key: Bytes,
}

/// Answer of export.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportAnswer {
    /// The key.
    pub key: Kid,
    /// The version inside.
    pub version: u32,
    /// The wrapped key.
    pub wrapped: Bytes,
    /// Leaf of the audit log that records the export; durable before this answer was sent.
    pub receipt: LogReceipt,
}
