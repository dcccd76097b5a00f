//! Entries as a commit carries them and as events show them.

use super::{
    AccountTerms, AssetTerms, BatchTag, Details, EntryKey, EntryKind, HoldRef, Original,
    PrincipalName, RequestKey, Sides, TokenBudget, TxId,
};
use crate::tagged::tagged;
use crate::values::{Account, Amount, Asset, ContentId, EpochId, Tenant, Timestamp};

tagged! {
    /// One entry of a commit. All kinds except settlement carry a `key`, which is never reused by its
    /// principal. Principals of the same name in two tenants are two principals.
    ///
    /// Settlement entries identify themselves: an epoch is opened and closed once, a payout is unique
    /// by (tenant, epoch, asset, index). A repetition returns the first receipt and changes nothing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Entry, tag "kind", read by "Entry" as EntryMembers {
        /// Creates money in `to`. Has no nonce.
        Issue {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            to: Account,
            asset: Asset,
            amount_minor: Amount,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
            /// Budgets of the token that asks for the entry, and of those it was made from; at most 17.
            /// Refused when one of them would be exceeded.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            budgets: Vec<TokenBudget>,
        },
        /// Moves money. A `nonce`, where one is given, must be the next of the debited account (1, 2, 3
        /// ...); without one the key alone makes the entry happen once.
        Transfer {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            from: Account,
            to: Account,
            asset: Asset,
            amount_minor: Amount,
            /// Moves all that is available of `from`, and is refused when that is more than this (`limits_exceeded`) or nothing.
            /// `amount_minor` is then 0 in requests, and what the entry moved in events.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            up_to: Option<Amount>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            nonce: Option<u64>,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
            /// Maximum that leaves `from` in this asset per UTC day, in minor units; refused when the
            /// entry would exceed it. A hold counts on the day it was made, until it is released or
            /// expires within that day.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            daily_ceiling: Option<Amount>,
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            budgets: Vec<TokenBudget>,
        },
        /// Destroys money of `from`.
        Burn {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            from: Account,
            asset: Asset,
            amount_minor: Amount,
            /// As in `transfer`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            up_to: Option<Amount>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            nonce: Option<u64>,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            daily_ceiling: Option<Amount>,
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            budgets: Vec<TokenBudget>,
        },
        /// Reserves money until it is captured, released or expired. The txid of the entry identifies
        /// the hold.
        Hold {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            from: Account,
            asset: Asset,
            amount_minor: Amount,
            /// As in `transfer`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            up_to: Option<Amount>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            nonce: Option<u64>,
            expires_at: Timestamp,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            daily_ceiling: Option<Amount>,
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            budgets: Vec<TokenBudget>,
        },
        /// Pays `amount_minor` of the hold to `to`, or all that is left of it; the rest stays reserved.
        Capture {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            /// In a linked commit also `#i`, the hold that the earlier entry `i` (from 0) makes.
            hold: HoldRef,
            to: Account,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            amount_minor: Option<Amount>,
            /// Releases what the capture leaves.
            #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
            ends_hold: bool,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
            /// As in `issue`; a budget that the hold was counted against does not count its captures.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            budgets: Vec<TokenBudget>,
        },
        /// Moves back what the entry `tx` moved: `amount_minor` of it, or all that is left. `tx` is a done
        /// transfer, capture or payout; a payout goes back to the pool of its epoch. Never more than is
        /// left of the entry.
        Reverse {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            tx: TxId,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            amount_minor: Option<Amount>,
            /// What the ledger found under `tx`; in requests it is ignored.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            original: Option<Original>,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
            /// As in `transfer`, for the account that is debited now.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            daily_ceiling: Option<Amount>,
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            budgets: Vec<TokenBudget>,
        },
        /// Ends the hold; the remaining amount becomes available again.
        Release {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            /// As in `capture`.
            hold: HoldRef,
            #[serde(flatten)]
            details: Details,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            batch: Option<BatchTag>,
        },
        /// Written by the ledger when a hold expires; refused in requests.
        Expire { hold: TxId },
        /// The account refuses debits, credits or both from now on.
        Freeze {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            account: Account,
            /// The sides to freeze beside those that are frozen already.
            sides: Sides,
            #[serde(flatten)]
            details: Details,
        },
        /// The account accepts debits, credits or both again.
        Unfreeze {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            account: Account,
            sides: Sides,
            #[serde(flatten)]
            details: Details,
        },
        /// Opens or closes the account, or sets its class, its freeze or its limits.
        Account {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            account: Account,
            terms: AccountTerms,
            #[serde(flatten)]
            details: Details,
        },
        /// Registers the asset, or changes its title.
        Asset {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
            asset: Asset,
            terms: AssetTerms,
            #[serde(flatten)]
            details: Details,
        },
        /// Binds (tenant, epoch) to one manifest and moves `amount_minor` from the pool to the epoch's
        /// escrow. An epoch that pays several assets has an entry for each, in one linked commit.
        EpochOpen {
            principal: PrincipalName,
            tenant: Tenant,
            epoch: EpochId,
            /// The pool account, `pool:<tenant>/<name>`.
            from: Account,
            asset: Asset,
            /// The sum of all payouts, in minor units.
            amount_minor: Amount,
            /// The manifest's commitment.
            commitment: ContentId,
            /// Root of the Merkle-sum tree over the payouts.
            sum_root: ContentId,
            /// Number of payouts; indices are 0..recipients.
            recipients: u64,
            /// Identifies what is paid for, by tenant, policy and usage. A tenant pays a source once,
            /// whatever its epochs are called.
            source: ContentId,
            /// The earlier epoch that this one corrects; required to pay a source again.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            adjusts: Option<EpochId>,
        },
        /// Pays recipient `index`, which must be the epoch's next in the asset, out of escrow.
        Payout {
            principal: PrincipalName,
            tenant: Tenant,
            epoch: EpochId,
            index: u64,
            to: Account,
            /// An asset of the epoch.
            asset: Asset,
            amount_minor: Amount,
        },
        /// Ends an asset of the epoch; refused unless every index is paid and nothing of it is in escrow.
        EpochClose {
            principal: PrincipalName,
            tenant: Tenant,
            epoch: EpochId,
            commitment: ContentId,
            /// The asset; required when the epoch pays several.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            asset: Option<Asset>,
        },
        /// Withdraws a manifest: the epoch may never be opened with this commitment. Refused when it
        /// was.
        EpochVoid {
            principal: PrincipalName,
            tenant: Tenant,
            epoch: EpochId,
            commitment: ContentId,
        },
        /// Only in events: written by `resolve` for a key that had no entry.
        Abandon {
            tenant: Tenant,
            principal: PrincipalName,
            key: EntryKey,
        },
    }
}

impl Entry {
    /// The tenant of its principal, and of the epoch that a settlement entry names; absent where the
    /// ledger itself made the entry.
    pub const fn tenant(&self) -> Option<&Tenant> {
        match self {
            Self::Issue { tenant, .. }
            | Self::Transfer { tenant, .. }
            | Self::Burn { tenant, .. }
            | Self::Hold { tenant, .. }
            | Self::Capture { tenant, .. }
            | Self::Reverse { tenant, .. }
            | Self::Release { tenant, .. }
            | Self::Freeze { tenant, .. }
            | Self::Unfreeze { tenant, .. }
            | Self::Account { tenant, .. }
            | Self::Asset { tenant, .. }
            | Self::EpochOpen { tenant, .. }
            | Self::Payout { tenant, .. }
            | Self::EpochClose { tenant, .. }
            | Self::EpochVoid { tenant, .. }
            | Self::Abandon { tenant, .. } => Some(tenant),
            Self::Expire { .. } => None,
        }
    }

    /// The kind of the entry.
    pub const fn kind(&self) -> EntryKind {
        match self {
            Self::Issue { .. } => EntryKind::Issue,
            Self::Transfer { .. } => EntryKind::Transfer,
            Self::Burn { .. } => EntryKind::Burn,
            Self::Hold { .. } => EntryKind::Hold,
            Self::Capture { .. } => EntryKind::Capture,
            Self::Release { .. } => EntryKind::Release,
            Self::Reverse { .. } => EntryKind::Reverse,
            Self::Expire { .. } => EntryKind::Expire,
            Self::Freeze { .. } => EntryKind::Freeze,
            Self::Unfreeze { .. } => EntryKind::Unfreeze,
            Self::Account { .. } => EntryKind::Account,
            Self::Asset { .. } => EntryKind::Asset,
            Self::EpochOpen { .. } => EntryKind::EpochOpen,
            Self::Payout { .. } => EntryKind::Payout,
            Self::EpochClose { .. } => EntryKind::EpochClose,
            Self::EpochVoid { .. } => EntryKind::EpochVoid,
            Self::Abandon { .. } => EntryKind::Abandon,
        }
    }

    /// The key with its owner, for the kinds that have a key.
    pub fn request_key(&self) -> Option<RequestKey> {
        match self {
            Self::Issue {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Transfer {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Burn {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Hold {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Capture {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Release {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Reverse {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Freeze {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Unfreeze {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Account {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Asset {
                tenant,
                principal,
                key,
                ..
            }
            | Self::Abandon {
                tenant,
                principal,
                key,
            } => Some(RequestKey {
                tenant: tenant.clone(),
                principal: principal.clone(),
                key: key.clone(),
            }),
            Self::Expire { .. }
            | Self::EpochOpen { .. }
            | Self::Payout { .. }
            | Self::EpochClose { .. }
            | Self::EpochVoid { .. } => None,
        }
    }

    /// What two requests under one key are compared by: the entry without the daily ceiling and the
    /// budgets, which policy and token set, and without the nonce, because a debit that met a nonce conflict is
    /// sent again under its key with the next nonce. In a batch also without the hold, of which the ledger stores the
    /// id where the request may say `#i`: the tag compares the whole request.
    #[must_use]
    pub fn compared(mut self) -> Self {
        if let Self::Issue { budgets, .. }
        | Self::Transfer { budgets, .. }
        | Self::Burn { budgets, .. }
        | Self::Hold { budgets, .. }
        | Self::Capture { budgets, .. }
        | Self::Reverse { budgets, .. } = &mut self
        {
            budgets.clear();
        }
        if let Self::Capture {
            hold,
            batch: Some(_),
            ..
        }
        | Self::Release {
            hold,
            batch: Some(_),
            ..
        } = &mut self
        {
            *hold = HoldRef::Id(TxId(0));
        }
        if let Self::Reverse {
            original,
            daily_ceiling,
            ..
        } = &mut self
        {
            (*original, *daily_ceiling) = (None, None);
        }
        if let Self::Transfer {
            nonce,
            daily_ceiling,
            amount_minor,
            up_to,
            ..
        }
        | Self::Burn {
            nonce,
            daily_ceiling,
            amount_minor,
            up_to,
            ..
        }
        | Self::Hold {
            nonce,
            daily_ceiling,
            amount_minor,
            up_to,
            ..
        } = &mut self
        {
            (*nonce, *daily_ceiling) = (None, None);
            // All that is available: the ledger computes the amount, and the policy sets the maximum.
            if let Some(most) = up_to {
                (*most, *amount_minor) = (Amount::MAX, Amount::ZERO);
            }
        }
        self
    }

    /// The batch that the entry came with.
    pub const fn batch(&self) -> Option<BatchTag> {
        match self {
            Self::Issue { batch, .. }
            | Self::Transfer { batch, .. }
            | Self::Burn { batch, .. }
            | Self::Hold { batch, .. }
            | Self::Capture { batch, .. }
            | Self::Reverse { batch, .. }
            | Self::Release { batch, .. } => *batch,
            Self::Expire { .. }
            | Self::Freeze { .. }
            | Self::Unfreeze { .. }
            | Self::Account { .. }
            | Self::Asset { .. }
            | Self::EpochOpen { .. }
            | Self::Payout { .. }
            | Self::EpochClose { .. }
            | Self::EpochVoid { .. }
            | Self::Abandon { .. } => None,
        }
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
