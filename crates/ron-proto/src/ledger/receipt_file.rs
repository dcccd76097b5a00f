//! The receipt as a file that verifies alone (`docs/formats/receipt.md`), and the records that
//! auditors read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::b64::{B64Std, b64std_bytes};

/// The value of `format` in a receipt file.
pub const RECEIPT_FORMAT: &str = "ron-receipt/v1";

/// A receipt that its holder can prove: the leaf of an entry, what of its private record is shown,
/// and the way from the leaf to a signed checkpoint of the ledger's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptFile {
    /// `ron-receipt/v1`.
    pub format: String,
    /// Bytes of the entry's leaf, base64.
    #[serde(with = "b64std_bytes")]
    #[schemars(with = "B64Std")]
    pub leaf: Vec<u8>,
    /// The parts of the private record; absent when none of them is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<PrivateParts>,
    /// RFC 6962 inclusion path of the leaf in the checkpoint's tree, from the leaf up: hashes of 32
    /// bytes, base64. The index of the leaf is the sequence in it.
    pub path: Vec<Hash64>,
    /// The checkpoint, a C2SP signed note, with its cosignatures.
    pub checkpoint: String,
    /// Verifier key line of the log. A verifier compares it with the key that it trusts.
    pub vkey: String,
}

/// A hash of 32 bytes, base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Hash64(#[schemars(with = "B64Std")] pub [u8; 32]);

impl TryFrom<String> for Hash64 {
    type Error = crate::ValueError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        crate::b64::from_std_array(&text).map(Self)
    }
}

impl From<Hash64> for String {
    fn from(hash: Hash64) -> Self {
        crate::b64::std(&hash.0)
    }
}

/// The parts of a private record, each shown or hidden behind its hash. A part that the record does
/// not have is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrivateParts {
    /// Salt of the record, 16 bytes, base64.
    #[serde(with = "b64std_bytes")]
    #[schemars(with = "B64Std")]
    pub salt: Vec<u8>,
    /// Tenant, principal, key, nonce, `effective_at` and limits.
    pub caller: PrivatePart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<PrivatePart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PrivatePart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<PrivatePart>,
}

/// One part of a private record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PrivatePart {
    Shown(ShownPart),
    Hidden(HiddenPart),
}

/// A part with its salt: its hash is SHA-256 of salt and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShownPart {
    /// 16 bytes, base64.
    #[serde(with = "b64std_bytes")]
    #[schemars(with = "B64Std")]
    pub salt: Vec<u8>,
    /// The part as the log stores it, base64.
    #[serde(with = "b64std_bytes")]
    #[schemars(with = "B64Std")]
    pub bytes: Vec<u8>,
}

/// A part of which only the hash is told, or that was erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HiddenPart {
    pub hash: Hash64,
}

/// `GET /v1/ledger/records?after=N`: records of the log, as auditors read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordPage {
    /// Records with `seq > after`, ascending without gaps; at most 500.
    pub records: Vec<LogRecord>,
    /// Value of `after` for the next page.
    pub next: u64,
    /// The last durable sequence number when the page was made.
    pub head: u64,
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogRecord {
    /// Index of the leaf.
    pub seq: u64,
    /// Bytes of the leaf, base64.
    #[serde(with = "b64std_bytes")]
    #[schemars(with = "B64Std")]
    pub leaf: Vec<u8>,
    /// Bytes of the private record, base64.
    #[serde(with = "b64std_bytes")]
    #[schemars(with = "B64Std")]
    pub private: Vec<u8>,
}
