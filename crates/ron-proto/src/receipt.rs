//! The receipt of a durable log entry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Says where a durable entry is: a stranger who fetches the log's proof for `index` can check
/// that it is there.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogReceipt {
    /// The log's origin line, which names it in checkpoints.
    pub log: String,
    /// The entry's index in that log, from 0.
    pub index: u64,
}
