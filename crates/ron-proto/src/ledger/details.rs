//! What a caller says about an entry: texts, members, a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Memo, Metadata, Reference};
use crate::values::Timestamp;

/// What a caller says about an entry. No rule of the ledger depends on it. In the log it is private:
/// the leaf holds only salted hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Details {
    /// Text stored with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
    /// The caller's own reference (an order, an invoice); need not be unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// Members stored with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The time at which statements show the entry; no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_at: Option<Timestamp>,
    /// Whether the payee's copy of the receipt shows the reference.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub share_reference: bool,
}

const fn yes() -> bool {
    true
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_yes(b: &bool) -> bool {
    *b
}

impl Default for Details {
    fn default() -> Self {
        Self {
            memo: None,
            reference: None,
            metadata: None,
            effective_at: None,
            share_reference: true,
        }
    }
}
