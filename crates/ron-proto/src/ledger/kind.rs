//! The kinds of entries.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::ValueError;

/// Kind of an entry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// Creates money in `to`.
    Issue,
    /// Moves money from `from` to `to`.
    Transfer,
    /// Destroys money of `from`.
    Burn,
    /// Reserves money of `from`.
    Hold,
    /// Pays out of a hold, in part or whole.
    Capture,
    /// Ends a hold; the remaining amount becomes available again.
    Release,
    /// Moves what a transfer, capture or payout moved back, in part or whole.
    Reverse,
    /// As `release`, written by the ledger when a hold expires.
    Expire,
    /// The account refuses debits, credits or both from now on.
    Freeze,
    /// Revokes a freeze.
    Unfreeze,
    /// Opens or closes an account, or sets its class, its freeze or its limits.
    Account,
    /// Registers an asset with its scale and title.
    Asset,
    /// Binds a reward epoch to one manifest and moves its total from the pool into escrow.
    EpochOpen,
    /// Pays one recipient out of the epoch's escrow.
    Payout,
    /// Ends the epoch once every recipient is paid.
    EpochClose,
    /// Withdraws a manifest of an epoch that was not opened with it: it may never open.
    EpochVoid,
    /// Abandons a key for which `resolve` found no entry: a refusal without a request.
    Abandon,
}

impl EntryKind {
    pub const ALL: [Self; 17] = [
        Self::Issue,
        Self::Transfer,
        Self::Burn,
        Self::Hold,
        Self::Capture,
        Self::Release,
        Self::Reverse,
        Self::Expire,
        Self::Freeze,
        Self::Unfreeze,
        Self::Account,
        Self::Asset,
        Self::EpochOpen,
        Self::Payout,
        Self::EpochClose,
        Self::EpochVoid,
        Self::Abandon,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Issue => "issue",
            Self::Transfer => "transfer",
            Self::Burn => "burn",
            Self::Hold => "hold",
            Self::Capture => "capture",
            Self::Release => "release",
            Self::Reverse => "reverse",
            Self::Expire => "expire",
            Self::Freeze => "freeze",
            Self::Unfreeze => "unfreeze",
            Self::Account => "account",
            Self::Asset => "asset",
            Self::EpochOpen => "epoch_open",
            Self::Payout => "payout",
            Self::EpochClose => "epoch_close",
            Self::EpochVoid => "epoch_void",
            Self::Abandon => "abandon",
        }
    }

    /// True for the kinds that change balances when they take effect.
    pub const fn moves_money(self) -> bool {
        match self {
            Self::Issue
            | Self::Transfer
            | Self::Burn
            | Self::Capture
            | Self::Reverse
            | Self::EpochOpen
            | Self::Payout => true,
            Self::Hold
            | Self::Release
            | Self::Expire
            | Self::Freeze
            | Self::Unfreeze
            | Self::Account
            | Self::Asset
            | Self::EpochClose
            | Self::EpochVoid
            | Self::Abandon => false,
        }
    }

    /// True for the kinds that require scope `ledger:settle` (all others require `ledger:commit`).
    pub const fn is_settlement(self) -> bool {
        matches!(
            self,
            Self::EpochOpen | Self::Payout | Self::EpochClose | Self::EpochVoid
        )
    }
}

impl FromStr for EntryKind {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.ok_or_else(|| ValueError::new("kind", "no entry has this kind"))
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
