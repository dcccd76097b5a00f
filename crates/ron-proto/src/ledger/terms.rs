//! What an operator sets for an account or an asset.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AccountClass, AssetTitle};
use crate::values::{Amount, Asset, ValueError};

/// Which sides of an account are frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sides {
    #[default]
    None,
    /// The account refuses to be debited.
    Debits,
    /// The account refuses to be credited.
    Credits,
    Both,
}

impl Sides {
    pub const ALL: [Self; 4] = [Self::None, Self::Debits, Self::Credits, Self::Both];

    const fn from_sides(debits: bool, credits: bool) -> Self {
        match (debits, credits) {
            (false, false) => Self::None,
            (true, false) => Self::Debits,
            (false, true) => Self::Credits,
            (true, true) => Self::Both,
        }
    }

    pub const fn debits(self) -> bool {
        matches!(self, Self::Debits | Self::Both)
    }

    pub const fn credits(self) -> bool {
        matches!(self, Self::Credits | Self::Both)
    }

    pub const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }

    /// These sides and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self::from_sides(
            self.debits() || other.debits(),
            self.credits() || other.credits(),
        )
    }

    /// These sides but `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self::from_sides(
            self.debits() && !other.debits(),
            self.credits() && !other.credits(),
        )
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Debits => "debits",
            Self::Credits => "credits",
            Self::Both => "both",
        }
    }
}

impl FromStr for Sides {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let known = Self::ALL.into_iter().find(|sides| sides.as_str() == text);
        known.ok_or_else(|| ValueError::new("sides", "is none, debits, credits or both"))
    }
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is set for an account; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountTerms {
    /// Closes the account, which must be empty, or opens it again. A closed account is neither debited
    /// nor credited.
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
    /// Both limits in one asset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AssetLimits>,
}

/// Limits of an account in one asset, in minor units. They are set together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssetLimits {
    /// The asset that the limits are for.
    pub asset: Asset,
    /// How far the account may be overdrawn; 0 when absent.
    #[serde(default, skip_serializing_if = "Amount::is_zero_ref")]
    pub credit_limit_minor: Amount,
    /// An entry that would bring the balance above it is refused; no maximum when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_balance_minor: Option<Amount>,
}

/// How an asset is written and called. The first registration fixes the scale once money was issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssetTerms {
    /// Decimal places between a minor unit and the unit that people write: 2 when 1 EUR is 100.
    #[schemars(range(max = 38))]
    pub scale: u8,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<AssetTitle>,
}

/// Maximum scale of an asset: the largest amount has 39 digits.
pub const MAX_SCALE: u8 = 38;
