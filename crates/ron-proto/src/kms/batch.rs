//! What all batches share: items without a key of their own, and one result per item.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::KeyRef;

/// Maximum number of items of one batch.
pub const BATCH_ITEMS_MAX: usize = 1_000;

/// Up to [`BATCH_ITEMS_MAX`] items, with one audit leaf each and one durable append for all. All keys kept in devices must
/// be in the same device.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BatchOf{I}")]
pub struct Batch<I> {
    /// Key of the items that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyRef>,
    /// 1 to 1,000 items.
    pub items: Vec<I>,
}

/// Response of a batch; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BatchOf{A}")]
pub struct BatchAnswer<A> {
    /// One result per item, in the order of the items.
    pub results: Vec<ItemResult<A>>,
}

/// Result of one item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields, bound(deserialize = "A: Deserialize<'de>"))]
#[schemars(rename = "ResultOf{A}")]
pub struct ItemResult<A> {
    /// The response that the item alone would have got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<A>,
    /// Why the item failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

impl<A> From<Result<A, ItemError>> for ItemResult<A> {
    fn from(result: Result<A, ItemError>) -> Self {
        match result {
            Ok(answer) => Self {
                answer: Some(answer),
                error: None,
            },
            Err(error) => Self {
                answer: None,
                error: Some(error),
            },
        }
    }
}

/// Error of one item of a batch, as the single request would have returned it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemError {
    /// HTTP status the single request would have returned.
    pub status: u16,
    /// Error code.
    pub code: String,
    /// What happened and what to do about it.
    pub detail: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}
