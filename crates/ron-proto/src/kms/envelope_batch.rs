//! Many envelope operations in one request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, ItemError, PrivateBytes, UnwrapAnswer, WrapAnswer};
use crate::values::{Kid, OpId};

/// `POST /wrap_batch`: up to [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) items, one leaf each, one
/// durable append. All keys that devices hold must be in one device.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapBatch {
    /// Key of every item that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// What to wrap, 1..=1000.
    pub items: Vec<WrapItem>,
}

/// One item of a [`WrapBatch`].
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapItem {
    /// Which key; the batch's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Pins a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// What to encrypt.
    pub plaintext: PrivateBytes,
    /// Associated data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// The same as in a `/wrap` of this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /wrap_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapBatchAnswer {
    /// One result per item, in order.
    pub results: Vec<WrapResult>,
}

/// Result of one item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapResult {
    /// What the single call would have answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<WrapAnswer>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// `POST /unwrap_batch`: up to [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) items, one leaf each,
/// one durable append. All keys that devices hold must be in one device.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapBatch {
    /// Key of every item that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// What to unwrap, 1..=1000.
    pub items: Vec<UnwrapItem>,
}

/// One item of an [`UnwrapBatch`].
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapItem {
    /// Which key; the batch's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// As wrap answered it.
    pub ciphertext: Bytes,
    /// The associated data it was wrapped with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// The same as in an `/unwrap` of this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// A remark for the audit leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Answer of `POST /unwrap_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapBatchAnswer {
    /// One result per item, in order.
    pub results: Vec<UnwrapResult>,
}

/// Result of one item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapResult {
    /// What the single call would have answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<UnwrapAnswer>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}
