//! Evidence of where a key is kept, and the birth certificate composed from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, KeyBackend, PayloadPolicy};
use crate::receipt::LogReceipt;
use crate::values::{Kid, Timestamp};

/// Format version of [`Statement`] and [`BirthCertificate`].
pub const ATTEST_VERSION: u32 = 1;
/// Maximum length of a caller's nonce, in bytes.
pub const NONCE_BYTES_MAX: usize = 64;
/// Prefix of the bytes signed with the log's key; the statement as canonical JSON follows.
pub const STATEMENT_PREFIX: &[u8] = b"ron-kms/v1/statement\0";
/// Prefix of the TPM's nonce, which is SHA-256 over this and the statement as canonical JSON.
pub const TPM_NONCE_PREFIX: &[u8] = b"ron-kms/v1/attest\0";

/// `POST /keys/{t}/{p}/{alg}/{id}/attest`: produce evidence of where a key version is kept.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestRequest {
    /// Version to attest; the head when absent. For a key inside a device, only the head can be
    /// certified by the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Nonce of the caller, at most [`NONCE_BYTES_MAX`] bytes; proves that the evidence is fresh.
    #[serde(default)]
    pub nonce: Bytes,
}

/// The key service's statement about a key version. Signed with the key of its audit log.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Format version, [`ATTEST_VERSION`].
    pub v: u32,
    /// Origin line of the audit log.
    pub log: String,
    /// Name of the key.
    pub key: Kid,
    /// Version of the key.
    pub version: u32,
    /// Public key of this version.
    pub public_key: Bytes,
    /// Backend that keeps the key.
    pub backend: KeyBackend,
    /// Whether the key was in the device before the service knew it; absent when not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// Whether the key may be exported in wrapped form.
    pub exportable: bool,
    /// What the key may sign.
    pub payload: PayloadPolicy,
    /// When the version was created.
    pub created: Timestamp,
    /// Index of the audit leaf that records the creation of the version.
    pub birth: u64,
    /// The caller's nonce.
    pub nonce: Bytes,
    /// When the statement was made.
    pub said: Timestamp,
}

/// Evidence by the TPM that holds the key: structures of the TPM 2.0 library, as the TPM produced
/// them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TpmEvidenceDoc {
    /// The TPM's attestation key: an uncompressed point on P-256. Compare it with a copy from a
    /// trusted source, or trust it on first use.
    pub attestation_key: Bytes,
    /// `TPMT_PUBLIC` of the key: its attributes state that it was created in the TPM and cannot
    /// leave it.
    pub key_public: Bytes,
    /// `TPMS_ATTEST` of `TPM2_Certify`.
    pub certify: Bytes,
    /// `TPMT_SIGNATURE` over `certify`.
    pub certify_signature: Bytes,
    /// `TPMS_ATTEST` of `TPM2_Quote`.
    pub quote: Bytes,
    /// `TPMT_SIGNATURE` over `quote`.
    pub quote_signature: Bytes,
}

/// Response of attest.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestAnswer {
    /// Class of the evidence: `none`, `statement` or `tpm2-certify`.
    pub class: String,
    /// The key service's statement.
    pub statement: Statement,
    /// Ed25519 signature over the statement, by the key of the audit log.
    pub signature: Bytes,
    /// Verifier key line of the audit log's key.
    pub vkey: String,
    /// Evidence by the TPM, for a key it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmEvidenceDoc>,
    /// The audit leaf that records the creation of the version, byte for byte.
    pub birth_leaf: Bytes,
    /// Leaf of the audit log that records this attestation.
    pub receipt: LogReceipt,
}

/// One document that proves, offline, when a key version was created and where it is kept.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BirthCertificate {
    /// Format version, [`ATTEST_VERSION`].
    pub v: u32,
    /// The evidence, including the leaf that records the creation.
    pub evidence: AttestAnswer,
    /// Inclusion proof (`c2sp.org/tlog-proof@v1`) of that leaf.
    pub proof: String,
}
