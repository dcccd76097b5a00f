//! The body of a commit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Entry;

// Generic, so that a caller that keeps its entries sends references: `CommitRequest<&Entry>`.
/// Body of `POST /v1/ledger/commit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CommitRequest")]
pub struct CommitRequest<E = Entry> {
    /// Entries, 1 to 1,000, decided in this order.
    pub entries: Vec<E>,
    /// All or nothing: when one entry is refused, all are, and every key is consumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
    /// One request with several keys: each entry is decided on its own, but when only some of the
    /// keys were used before, nothing is decided and each entry returns `idempotency_mismatch`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch: bool,
}
