//! Several envelope operations in one request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, ItemError, PrivateBytes, UnwrapAnswer, WrapAnswer};
use crate::values::{Kid, OpId};

/// `POST /wrap_batch`: up to [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) items, with one audit leaf
/// each and one durable append for all. All keys kept in devices must be in the same device.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapBatch {
    /// Key of the items that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Items to wrap, 1 to 1,000.
    pub items: Vec<WrapItem>,
}

/// One item of a [`WrapBatch`].
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapItem {
    /// Key of this item; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Requires this version to be the head; otherwise 409 `version_not_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bytes to encrypt.
    pub plaintext: PrivateBytes,
    /// Associated data, as in [`super::WrapRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key, as in a `/wrap` of this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /wrap_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapBatchAnswer {
    /// One result per item, in the order of the items.
    pub results: Vec<WrapResult>,
}

/// Result of one item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrapResult {
    /// The response `/wrap` would have given for this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<WrapAnswer>,
    /// Why the item failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}

/// `POST /unwrap_batch`: up to [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) items, with one audit
/// leaf each and one durable append for all. All keys kept in devices must be in the same device.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapBatch {
    /// Key of the items that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Items to unwrap, 1 to 1,000.
    pub items: Vec<UnwrapItem>,
}

/// One item of an [`UnwrapBatch`].
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapItem {
    /// Key of this item; the batch's key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Kid>,
    /// Ciphertext as returned by wrap.
    pub ciphertext: Bytes,
    /// The associated data given to wrap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aad: Option<Bytes>,
    /// Idempotency key, as in an `/unwrap` of this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
    /// Note for the audit leaf: 1 to 256 bytes of printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Response of `POST /unwrap_batch`; `results[n]` belongs to `items[n]`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapBatchAnswer {
    /// One result per item, in the order of the items.
    pub results: Vec<UnwrapResult>,
}

/// Result of one item: exactly one of `answer` and `error`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnwrapResult {
    /// The response `/unwrap` would have given for this item alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<UnwrapAnswer>,
    /// Why the item failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ItemError>,
}
