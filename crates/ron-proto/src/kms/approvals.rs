//! Approvals: operations on a key that several people have to agree to, each with a key of their own.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BackupKey, Bytes, DestroyKey, ExportKey, PutKeyPolicy};
use crate::values::{KeyOp, Kid, OpId, Timestamp};

/// Maximum requests of a key that wait for approvals.
pub const APPROVAL_REQUESTS_MAX: usize = 16;

/// A request that may need approvals, by the name that it has in the audit log.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatedOp {
    /// `POST .../destroy`.
    Destroy,
    /// `POST .../export`.
    Export,
    /// `POST .../backup`.
    Backup,
    /// `PUT .../policy`.
    #[serde(alias = "policy")] // its name in requests that an earlier build has stored
    KeyPolicy,
}

impl GatedOp {
    /// Its name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Destroy => "destroy",
            Self::Export => "export",
            Self::Backup => "backup",
            Self::KeyPolicy => "key_policy",
        }
    }

    /// The operation that the caller needs to be allowed, and that a rule for approvals names.
    pub const fn key_op(self) -> KeyOp {
        match self {
            Self::Destroy => KeyOp::Destroy,
            Self::Export | Self::Backup => KeyOp::Export,
            Self::KeyPolicy => KeyOp::Policy,
        }
    }
}

impl fmt::Display for GatedOp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// `POST /keys/{t}/{p}/{alg}/{id}/approvals`: ask for approvals of a request, whose `op_id` becomes the id under which it is
/// approved. Exactly one of the four.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AskApproval {
    /// As in `POST .../destroy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<DestroyKey>,
    /// As in `POST .../export`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<ExportKey>,
    /// As in `POST .../backup`; a rule for `export` covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupKey>,
    /// As in `PUT .../policy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PutKeyPolicy>,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/approvals/{request}/approve`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approve {
    /// Name of the approver.
    pub approver: String,
    /// Signature of [`approval_text`] with the approver's key: Ed25519, or ECDSA over SHA-256 as r and s.
    pub signature: Bytes,
}

/// The bytes whose SHA-256 stands for a request: the operation by its name in the audit log, the key's name and the body as canonical
/// JSON (RFC 8785), separated by zero bytes.
pub fn operation_bytes(op: &str, key: &str, body: &[u8]) -> Vec<u8> {
    let mut framed = format!("{op}\0{key}\0").into_bytes();
    framed.extend(body);
    framed
}

/// The text that an approver signs.
pub fn approval_text(request: OpId, operation_sha256: &str) -> String {
    format!("ron-kms/v1/approval\n{request}\n{operation_sha256}\n")
}

/// A request that waits for approvals, or has them and was not used yet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalDoc {
    /// Its id: the `op_id` of the request.
    pub id: OpId,
    /// The key.
    pub key: Kid,
    /// The request.
    pub op: GatedOp,
    /// The body of the request as canonical JSON (RFC 8785).
    pub body: String,
    /// SHA-256 of [`operation_bytes`]; hex.
    pub operation_sha256: String,
    /// Name of the caller that asks, and that alone may use it.
    pub requester: String,
    /// How many approvals it needs.
    pub needed: u32,
    /// The approvers that have approved.
    pub approved_by: Vec<String>,
    /// When it was asked.
    pub created: Timestamp,
    /// When it lapses.
    pub expires: Timestamp,
}

/// Response of `GET /keys/{t}/{p}/{alg}/{id}/approvals`, and of `GET /approvals` with those of all keys.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalList {
    /// The requests that have not lapsed, those of one key oldest first; of several keys by key name.
    pub requests: Vec<ApprovalDoc>,
    /// Value of `after` for the next page; absent on the last one, and for one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
