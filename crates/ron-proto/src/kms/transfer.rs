//! Import, export, backup and restore of keys, always in wrapped form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, PayloadPolicy, RotateEvery};
use crate::receipt::LogReceipt;
use crate::values::{Alg, Kid, OpId, Purpose, Tenant, Timestamp};

/// Maximum length of a wrapped key, in bytes.
pub const WRAPPED_BYTES_MAX: usize = 8 * 1024;

/// Maximum length of what a backup seals, in bytes.
pub const BACKUP_BYTES_MAX: usize = 512 * 1024;

/// Response of `GET /wrapping_key`: the public key that keys to import are wrapped for. Its private
/// key is kept in memory only, until the service stops.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrappingKeyDoc {
    /// Base64url of the SHA-256 of the public key; identifies it in [`ImportKey`].
    pub id: String,
    /// `x25519-hkdf-aes256-gcm` or `x25519+ml-kem-768`.
    pub alg: Alg,
    /// X25519: 32 bytes. Hybrid: the ML-KEM-768 key followed by the X25519 key.
    pub public_key: Bytes,
    /// When the wrapping key was created.
    pub created: Timestamp,
    /// A signed note (C2SP) that states all of the above, signed with the key of the audit log
    /// (`/audit/v1/vkey`).
    pub statement: String,
}

/// `POST /keys/import`: import a wrapped key. The formats are in `docs/formats/kms.md`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportKey {
    /// Must be the caller's tenant.
    pub tenant: Tenant,
    /// Purpose of the key.
    pub purpose: Purpose,
    /// Algorithm of the wrapped key.
    pub alg: Alg,
    /// What the key may sign; `any` when absent.
    #[serde(default)]
    pub payload: PayloadPolicy,
    /// Whether the key may be exported again, in wrapped form.
    #[serde(default)]
    pub exportable: bool,
    /// Rotation period; no automatic rotation when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_every: Option<RotateEvery>,
    /// The imported key that this becomes the next version of, whose tenant, purpose and algorithm the request repeats; a new key
    /// when absent. `payload`, `exportable` and `rotate_every` do not count then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into: Option<Kid>,
    /// `id` of the wrapping key that was used; or the name of a key of an `rsa-oaep` algorithm, for a key that is wrapped as Vault
    /// and AWS have it: an AES-256 key under RSA-OAEP with SHA-256, then the key in AES-KWP under that one.
    pub wrapping_key: String,
    /// The wrapped key, at most [`WRAPPED_BYTES_MAX`] bytes.
    pub wrapped: Bytes,
    /// Idempotency key: a repetition with the same body returns the same key for 24 hours.
    pub op_id: OpId,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/export`: export a version of an exportable key in wrapped form.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportKey {
    /// Version to export; the head when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Public key to wrap for; required, otherwise 403 `export_forbidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<Recipient>,
    /// Recorded in the audit leaf. Not an idempotency key: every export is wrapped again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// A public key that a key is wrapped for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipient {
    /// `x25519-hkdf-aes256-gcm` or `x25519+ml-kem-768`.
    pub alg: Alg,
    /// As in [`WrappingKeyDoc`].
    pub public_key: Bytes,
}

/// Response of export.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportAnswer {
    /// The exported key.
    pub key: Kid,
    /// The exported version.
    pub version: u32,
    /// The wrapped key.
    pub wrapped: Bytes,
    /// Leaf of the audit log that records the export; durable before this response was sent.
    pub receipt: LogReceipt,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/backup`: the key with all its versions, sealed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupKey {
    /// Recorded in the audit leaf. Not an idempotency key: every backup is sealed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// Response of backup.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupAnswer {
    /// The key.
    pub key: Kid,
    /// Its newest version in the backup.
    pub head: u32,
    /// A text that only a store with the same seal key opens.
    pub backup: String,
    /// Leaf of the audit log that records the backup; durable before this response was sent.
    pub receipt: LogReceipt,
}

/// `POST /keys/restore`: make a key from a backup, with all its versions: under the
/// name that it had when there is no key of that name, otherwise under a new one.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreKey {
    /// Must be the caller's tenant, and that of the key in the backup.
    pub tenant: Tenant,
    /// Purpose of the restored key; that in the backup when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Purpose>,
    /// What backup returned.
    pub backup: String,
    /// Idempotency key: a repetition with the same body returns the same key for 24 hours.
    pub op_id: OpId,
}
