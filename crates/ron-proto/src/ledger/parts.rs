//! Parts of entries: what a caller says, the budgets of its token, the facts of a reversed entry, and
//! what a request names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BudgetId, Entry, Memo, Metadata, Reference};
use crate::values::{Account, Amount, Asset, Timestamp};

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

/// What the ledger found of an entry that is reversed. `from` is debited by the reversal: the account
/// that the entry credited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Original {
    pub from: Account,
    pub to: Account,
    pub asset: Asset,
    /// What the entry moved, in minor units.
    pub amount_minor: Amount,
}

/// A budget that an entry counts against: what a token, and all that was made from it, may spend.
/// Money of every asset counts, in minor units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBudget {
    pub id: BudgetId,
    /// Maximum in all (`ceiling.total`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Amount>,
    /// Maximum per UTC day (`ceiling.daily`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<Amount>,
    /// When the token has ended; the ledger forgets the budget afterwards.
    pub until: Timestamp,
}

/// The accounts, money and details that a request names. `from` is also the account of a freeze.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    pub from: Option<Account>,
    pub to: Option<Account>,
    pub asset: Option<Asset>,
    pub amount_minor: Option<Amount>,
    pub nonce: Option<u64>,
    pub details: Details,
}

impl Operands {
    fn money(from: Option<Account>, to: Option<Account>, asset: Asset, amount: Amount) -> Self {
        Self {
            from,
            to,
            asset: Some(asset),
            amount_minor: Some(amount),
            ..Self::default()
        }
    }
}

impl Entry {
    /// What the request names. The receipt of a committed entry says what it moved, which is more:
    /// a release names only its hold.
    pub fn operands(&self) -> Operands {
        let mut named = self.named();
        if let Self::Transfer { up_to, .. } | Self::Burn { up_to, .. } | Self::Hold { up_to, .. } =
            self
            && up_to.is_some()
        {
            // A refused entry that asked for all that is available has no amount.
            named.amount_minor = named.amount_minor.filter(|n| !n.is_zero());
        }
        named
    }

    fn named(&self) -> Operands {
        match self.clone() {
            Self::Issue {
                to,
                asset,
                amount_minor,
                details,
                ..
            } => Operands {
                details,
                ..Operands::money(None, Some(to), asset, amount_minor)
            },
            Self::Transfer {
                from,
                to,
                asset,
                amount_minor,
                nonce,
                details,
                ..
            } => Operands {
                nonce,
                details,
                ..Operands::money(Some(from), Some(to), asset, amount_minor)
            },
            Self::Burn {
                from,
                asset,
                amount_minor,
                nonce,
                details,
                ..
            }
            | Self::Hold {
                from,
                asset,
                amount_minor,
                nonce,
                details,
                ..
            } => Operands {
                nonce,
                details,
                ..Operands::money(Some(from), None, asset, amount_minor)
            },
            Self::Capture {
                to,
                amount_minor,
                details,
                ..
            } => Operands {
                to: Some(to),
                amount_minor,
                details,
                ..Operands::default()
            },
            Self::Reverse {
                amount_minor,
                original,
                details,
                ..
            } => {
                let found = original.map_or_else(Operands::default, |o| {
                    Operands::money(Some(o.from), Some(o.to), o.asset, o.amount_minor)
                });
                Operands {
                    amount_minor: amount_minor.or(found.amount_minor),
                    details,
                    ..found
                }
            }
            Self::Freeze {
                account, details, ..
            }
            | Self::Unfreeze {
                account, details, ..
            }
            | Self::Account {
                account, details, ..
            } => Operands {
                from: Some(account),
                details,
                ..Operands::default()
            },
            Self::Asset { asset, details, .. } => Operands {
                asset: Some(asset),
                details,
                ..Operands::default()
            },
            Self::Release { details, .. } => Operands {
                details,
                ..Operands::default()
            },
            Self::EpochOpen {
                from,
                asset,
                amount_minor,
                ..
            } => Operands::money(Some(from), None, asset, amount_minor),
            Self::Payout {
                to,
                asset,
                amount_minor,
                ..
            } => Operands::money(None, Some(to), asset, amount_minor),
            Self::Expire { .. } | Self::EpochClose { .. } | Self::Abandon { .. } => {
                Operands::default()
            }
        }
    }
}
