//! Evidence of where a key is, and the birth certificate that is made of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, KeyBackend, PayloadPolicy};
use crate::receipt::LogReceipt;
use crate::values::{Kid, Timestamp};

/// Format of [`Statement`] and [`BirthCertificate`].
pub const ATTEST_VERSION: u32 = 1;
/// Longest nonce of a caller, in bytes.
pub const NONCE_BYTES_MAX: usize = 64;
/// What is signed with the log's key: this, then the statement as canonical JSON.
pub const STATEMENT_PREFIX: &[u8] = b"ron-kms/v1/statement\0";
/// What the TPM is given as its nonce: SHA-256 of this and the statement as canonical JSON.
pub const TPM_NONCE_PREFIX: &[u8] = b"ron-kms/v1/attest\0";

/// `POST /keys/{t}/{p}/{alg}/{id}/attest`: say where a version of the key is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestRequest {
    /// Which version; only the head of a key inside a device can be certified by it. The head when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes of the caller, at most [`NONCE_BYTES_MAX`], that show the evidence to be fresh.
    #[serde(default)]
    pub nonce: Bytes,
}

/// What the key service says of a key version. Signed with the key of its audit log.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// [`ATTEST_VERSION`].
    pub v: u32,
    /// Origin of the audit log.
    pub log: String,
    /// The key.
    pub key: Kid,
    /// Its version.
    pub version: u32,
    /// The version's public key.
    pub public_key: Bytes,
    /// Where the key is.
    pub backend: KeyBackend,
    /// Whether wrapped export may ever be allowed.
    pub exportable: bool,
    /// What the key may sign.
    pub payload: PayloadPolicy,
    /// When the version was made.
    pub created: Timestamp,
    /// Index of the audit leaf that records its making.
    pub birth: u64,
    /// The caller's nonce.
    pub nonce: Bytes,
    /// When this was said.
    pub said: Timestamp,
}

/// What a TPM says of the key: structures of the TPM 2.0 library, as the TPM wrote them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TpmEvidenceDoc {
    /// Its attestation key: an uncompressed point on P-256. Know it from elsewhere, or believe it once.
    pub attestation_key: Bytes,
    /// `TPMT_PUBLIC` of the key: its attributes say that it was made in the TPM and cannot leave.
    pub key_public: Bytes,
    /// `TPMS_ATTEST` of `TPM2_Certify`.
    pub certify: Bytes,
    /// `TPMT_SIGNATURE` over it.
    pub certify_signature: Bytes,
    /// `TPMS_ATTEST` of `TPM2_Quote`.
    pub quote: Bytes,
    /// `TPMT_SIGNATURE` over it.
    pub quote_signature: Bytes,
}

/// Answer of attest.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttestAnswer {
    /// `none`, `statement` or `tpm2-certify`.
    pub class: String,
    /// What the service says.
    pub statement: Statement,
    /// Ed25519 signature over it, by the key of the audit log.
    pub signature: Bytes,
    /// Verifier key of the audit log.
    pub vkey: String,
    /// What the TPM says, for a key that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmEvidenceDoc>,
    /// The leaf that records the version's making, as it is in the log.
    pub birth_leaf: Bytes,
    /// Leaf of the audit log that records this evidence.
    pub receipt: LogReceipt,
}

/// One file that shows, offline, when and where a key version was made.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BirthCertificate {
    /// [`ATTEST_VERSION`].
    pub v: u32,
    /// The evidence, with the leaf of the version's making.
    pub evidence: AttestAnswer,
    /// Proof (`c2sp.org/tlog-proof@v1`) that this leaf is in the log.
    pub proof: String,
}
