//! What an entry names, whatever its kind.

use super::{Entry, Operands};

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
