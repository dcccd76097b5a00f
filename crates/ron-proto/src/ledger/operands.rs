//! What an entry names, whatever its kind.

use super::{Entry, Event, Operands};
use crate::Asset;

impl Event {
    /// What the entry moved, with the accounts that its receipt resolved (a release names only its hold);
    /// of a refused entry what it asked for.
    pub fn operands(&self) -> Operands {
        let asked = self.entry.operands();
        match self.answer.receipt() {
            None => asked,
            Some(moved) => Operands {
                from: moved.from.clone(),
                to: moved.to.clone(),
                asset: moved.asset.clone(),
                amount_minor: moved.amount_minor,
                ..asked
            },
        }
    }
}

impl Entry {
    /// The asset that the request names.
    pub const fn asset(&self) -> Option<&Asset> {
        match self {
            Self::Issue { asset, .. }
            | Self::Transfer { asset, .. }
            | Self::Burn { asset, .. }
            | Self::Hold { asset, .. }
            | Self::Asset { asset, .. }
            | Self::EpochOpen { asset, .. }
            | Self::Payout { asset, .. } => Some(asset),
            Self::Reverse {
                original: Some(original),
                ..
            } => Some(&original.asset),
            Self::EpochClose { asset, .. } => asset.as_ref(),
            _ => None,
        }
    }

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
            Self::EpochClose { asset, .. } => Operands {
                asset,
                ..Operands::default()
            },
            Self::Expire { .. } | Self::EpochVoid { .. } | Self::Abandon { .. } => {
                Operands::default()
            }
        }
    }
}
