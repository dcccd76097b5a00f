//! Leaves of the audit log about the caller's own keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Response of `GET /audit/entries`: the leaves of one stretch of the log that the caller may read.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditEntries {
    /// Origin of the log.
    pub log: String,
    /// The matching leaves in the order of the log. May be empty before the end of the log.
    pub entries: Vec<AuditEntry>,
    /// Value of `after` for the next page. The end of the log is reached when it is `size`.
    pub next: u64,
    /// Number of leaves in the log, those of other tenants included.
    pub size: u64,
}

/// One leaf with its place in the log.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditEntry {
    /// Index of the leaf; `GET /audit/v1/proof/{index}` returns the proof that it is in the log.
    pub index: u64,
    /// The exact bytes of the leaf, which is canonical JSON: the proof is about their hash.
    pub leaf: String,
}
