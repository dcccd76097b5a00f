//! The decision about an entry, as its leaf records it.

use ron_proto::{Account, Amount, Asset, EpochId};

use super::limits::Limit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done(Option<Effect>),
    /// Nothing changed, except that the key (if any) is used.
    Refused(Refusal),
}

/// What a capture, release, expiry, reversal, or debit of all that is available moved. It is known only when decided, so the leaf
/// records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The account that the hold is on, or that is debited.
    pub from: Account,
    pub asset: Asset,
    /// Captured, or made available again.
    pub amount: Amount,
}

/// Why an entry was refused. The codes that callers see are those of `ron-proto`; their meaning is
/// explained there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    InsufficientFunds,
    NonceConflict {
        /// The account's next nonce.
        expected: u64,
    },
    LimitsExceeded,
    AmountOverflow,
    AccountFrozen,
    AccountClosed,
    /// An account to be closed has money, debt or holds.
    AccountNotEmpty,
    /// The account has drawn more than the new credit limit.
    CreditInUse,
    /// The credited account would have more than its maximum.
    MaxBalance,
    /// Money of the asset was issued with another scale.
    AssetScale,
    ReservedAccount,
    HoldNotFound,
    HoldTooSmall,
    HoldExpired,
    EpochConflict,
    EpochUnknown,
    EpochClosed,
    /// The epoch was opened with the manifest that is to be withdrawn.
    EpochOpened,
    /// The manifest was withdrawn.
    EpochVoid,
    IndexGap {
        /// The epoch's next index.
        expected: u64,
    },
    EpochIncomplete,
    LinkedFailed,
    Abandoned,
    UsagePaid {
        /// The epoch that already paid for the usage.
        by: EpochId,
    },
    /// An asset's name differs from this one in case only.
    AssetSpelling,
    /// The principal caused too many refusals; this one has no leaf.
    RefusalBudget,
    /// There is no done transfer, capture or payout to reverse.
    NotReversible,
    /// Not so much is left of the entry to reverse.
    ReversalTooLarge,
    /// A limit of the operator; callers see `limits_exceeded`.
    Limit(Limit),
}

impl Refusal {
    /// Whether the refusal of a keyed entry has a leaf, which uses its key up: a late duplicate of a
    /// request that was answered must not succeed. A nonce conflict has none, so that the debit can
    /// be sent again under its key, nor has a refusal beyond the budget of refusals.
    pub const fn has_leaf(&self) -> bool {
        !matches!(self, Self::NonceConflict { .. } | Self::RefusalBudget)
    }
}

impl Verdict {
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Done(_) => None,
            Self::Refused(why) => Some(why),
        }
    }
}
