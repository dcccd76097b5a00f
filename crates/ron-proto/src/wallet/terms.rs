//! Requests that set what holds for accounts and assets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ledger::{AccountClass, AssetLimits, AssetTitle, Details, Sides};

/// `POST /account/{a}/freeze` and `/unfreeze`; no body says nothing.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FreezeAccount {
    /// The sides to freeze beside those that are frozen, or to free; when absent, a freeze is of debits and
    /// `unfreeze` frees both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sides: Option<Sides>,
    #[serde(flatten)]
    pub details: Details,
}

/// `PUT /account/{a}`: sets what it has and leaves the rest as it is; at least one member beside the
/// remarks.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAccount {
    /// Closes the account, which must have neither money, debt nor holds, or opens it again. A closed
    /// account is neither debited nor credited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<bool>,
    /// The sides that are frozen from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Sides>,
    /// Whether every debit has to carry the account's next nonce; otherwise a debit may leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_nonce: Option<bool>,
    /// Label by which the trial balance sums accounts; an empty one takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<AccountClass>,
    /// Credit limit and maximum balance in one asset, set together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AssetLimits>,
    #[serde(flatten)]
    pub details: Details,
}

/// `PUT /assets/{asset}`: registers the asset, or changes its title. The scale cannot change once money of
/// a registered asset was issued.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAsset {
    /// Decimal places between a minor unit and the unit that people write: 2 when 1 EUR is 100.
    #[schemars(range(max = 38))]
    pub scale: u8,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<AssetTitle>,
    #[serde(flatten)]
    pub details: Details,
}
