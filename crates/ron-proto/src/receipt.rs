//! Reference to a durable entry of a log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Position of a durable log entry. Third parties can fetch the log's proof for `index` and verify
/// that the entry is included.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogReceipt {
    /// The log's origin line, which identifies it in checkpoints.
    pub log: String,
    /// Index of the entry in that log, from 0.
    pub index: u64,
}
