//! Aliases of keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{Alias, Kid, OpId};

/// Maximum aliases of one key.
pub const ALIASES_MAX: usize = 32;
/// Maximum tags of one key.
pub const TAGS_MAX: usize = 32;
/// Maximum length of a key's description, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 512;

/// `PUT /aliases/{alias}`: have an alias name a key, atomically.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAlias {
    /// The key that it names from now on.
    pub key: Kid,
    /// The key that it names now. Absent: the alias is new, and one that names another key is refused with 409 `stale_alias`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Kid>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// `POST /aliases/{alias}/delete`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteAlias {}

/// An alias and the key that it names.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasDoc {
    /// Name within the tenant of the key, without `alias/`.
    pub alias: Alias,
    /// The key that it names.
    pub key: Kid,
}

/// Response of `GET /aliases`, ordered by alias.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AliasList {
    /// One page of the aliases of the caller's tenant, of keys that the caller may use.
    pub aliases: Vec<AliasDoc>,
    /// Value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Alias>,
}
