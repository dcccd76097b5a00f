//! Entries as a commit carries them and as events show them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BatchTag, Details, EntryKey, PrincipalName, TxId};
use crate::values::{Account, Amount, Asset, ContentId, EpochId, Tenant, Timestamp};

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
    /// As `release`, written by the ledger when a hold expires.
    Expire,
    /// The account refuses debits from now on.
    Freeze,
    /// Revokes a freeze.
    Unfreeze,
    /// Binds a reward epoch to one manifest and moves its total from the pool into escrow.
    EpochOpen,
    /// Pays one recipient out of the epoch's escrow.
    Payout,
    /// Ends the epoch once every recipient is paid.
    EpochClose,
    /// Abandons a key for which `resolve` found no entry: a refusal without a request.
    Abandon,
}

impl EntryKind {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Issue => "issue",
            Self::Transfer => "transfer",
            Self::Burn => "burn",
            Self::Hold => "hold",
            Self::Capture => "capture",
            Self::Release => "release",
            Self::Expire => "expire",
            Self::Freeze => "freeze",
            Self::Unfreeze => "unfreeze",
            Self::EpochOpen => "epoch_open",
            Self::Payout => "payout",
            Self::EpochClose => "epoch_close",
            Self::Abandon => "abandon",
        }
    }

    /// True for the kinds that require scope `ledger:settle` (all others require `ledger:commit`).
    pub const fn is_settlement(self) -> bool {
        matches!(self, Self::EpochOpen | Self::Payout | Self::EpochClose)
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One entry of a commit. All kinds except settlement carry a `key`, which is never reused by its
/// principal. Principals of the same name in two tenants are two principals.
///
/// Settlement entries identify themselves: an epoch is opened and closed once, a payout is unique
/// by (tenant, epoch, index). A repetition returns the first receipt and changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
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
        /// Maximum of the account's total in this asset per UTC day, in minor units; refused when
        /// the entry would exceed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Moves money. `nonce` must be the next of the debited account (1, 2, 3 ...).
    Transfer {
        tenant: Tenant,
        principal: PrincipalName,
        key: EntryKey,
        from: Account,
        to: Account,
        asset: Asset,
        amount_minor: Amount,
        nonce: u64,
        #[serde(flatten)]
        details: Details,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<BatchTag>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Destroys money of `from`.
    Burn {
        tenant: Tenant,
        principal: PrincipalName,
        key: EntryKey,
        from: Account,
        asset: Asset,
        amount_minor: Amount,
        nonce: u64,
        #[serde(flatten)]
        details: Details,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<BatchTag>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
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
        nonce: u64,
        expires_at: Timestamp,
        #[serde(flatten)]
        details: Details,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<BatchTag>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Pays `amount_minor` of the hold to `to`; the remaining amount stays reserved.
    Capture {
        tenant: Tenant,
        principal: PrincipalName,
        key: EntryKey,
        hold: TxId,
        to: Account,
        amount_minor: Amount,
        #[serde(flatten)]
        details: Details,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<BatchTag>,
        /// Maximum of the total per UTC day of the account that made the hold. The day that
        /// counted the hold does not count its captures again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Ends the hold; the remaining amount becomes available again.
    Release {
        tenant: Tenant,
        principal: PrincipalName,
        key: EntryKey,
        hold: TxId,
        #[serde(flatten)]
        details: Details,
    },
    /// Written by the ledger when a hold expires; refused in requests.
    Expire { hold: TxId },
    /// The account refuses debits from now on.
    Freeze {
        tenant: Tenant,
        principal: PrincipalName,
        key: EntryKey,
        account: Account,
        #[serde(flatten)]
        details: Details,
    },
    /// The account accepts debits again.
    Unfreeze {
        tenant: Tenant,
        principal: PrincipalName,
        key: EntryKey,
        account: Account,
        #[serde(flatten)]
        details: Details,
    },
    /// Binds (tenant, epoch) to one manifest and moves `amount_minor` from the pool to the epoch's
    /// escrow.
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
    /// Pays recipient `index`, which must be the epoch's next, out of escrow.
    Payout {
        principal: PrincipalName,
        tenant: Tenant,
        epoch: EpochId,
        index: u64,
        to: Account,
        /// The epoch's asset.
        asset: Asset,
        amount_minor: Amount,
    },
    /// Ends the epoch; refused unless every index is paid and the escrow is empty.
    EpochClose {
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

impl Entry {
    /// The kind of the entry.
    pub const fn kind(&self) -> EntryKind {
        match self {
            Self::Issue { .. } => EntryKind::Issue,
            Self::Transfer { .. } => EntryKind::Transfer,
            Self::Burn { .. } => EntryKind::Burn,
            Self::Hold { .. } => EntryKind::Hold,
            Self::Capture { .. } => EntryKind::Capture,
            Self::Release { .. } => EntryKind::Release,
            Self::Expire { .. } => EntryKind::Expire,
            Self::Freeze { .. } => EntryKind::Freeze,
            Self::Unfreeze { .. } => EntryKind::Unfreeze,
            Self::EpochOpen { .. } => EntryKind::EpochOpen,
            Self::Payout { .. } => EntryKind::Payout,
            Self::EpochClose { .. } => EntryKind::EpochClose,
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
            | Self::EpochClose { .. } => None,
        }
    }

    /// The entry as the caller sent it: without the daily ceiling, which the policy in force sets.
    #[must_use]
    pub fn without_ceiling(mut self) -> Self {
        if let Self::Issue { daily_ceiling, .. }
        | Self::Transfer { daily_ceiling, .. }
        | Self::Burn { daily_ceiling, .. }
        | Self::Hold { daily_ceiling, .. }
        | Self::Capture { daily_ceiling, .. } = &mut self
        {
            *daily_ceiling = None;
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
            | Self::Capture { batch, .. } => *batch,
            Self::Release { .. }
            | Self::Expire { .. }
            | Self::Freeze { .. }
            | Self::Unfreeze { .. }
            | Self::EpochOpen { .. }
            | Self::Payout { .. }
            | Self::EpochClose { .. }
            | Self::Abandon { .. } => None,
        }
    }

    /// What the request names. The receipt of a committed entry says what it moved, which is more:
    /// a release names only its hold.
    pub fn operands(&self) -> Operands {
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
                nonce: Some(nonce),
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
                nonce: Some(nonce),
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
                amount_minor: Some(amount_minor),
                details,
                ..Operands::default()
            },
            Self::Freeze {
                account, details, ..
            }
            | Self::Unfreeze {
                account, details, ..
            } => Operands {
                from: Some(account),
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

/// An idempotency key with its owner, also the body of `POST /v1/ledger/resolve`. Keys that read
/// alike are different keys when their tenants or principals differ.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct RequestKey {
    /// Tenant of the principal.
    pub tenant: Tenant,
    /// Principal the key belongs to.
    pub principal: PrincipalName,
    /// Idempotency key, never reused by its principal.
    pub key: EntryKey,
}

// Generic, so that a caller that keeps its entries sends references: `CommitRequest<&Entry>`.
/// Body of `POST /v1/ledger/commit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CommitRequest")]
pub struct CommitRequest<E = Entry> {
    /// Entries, 1 to 1,000, decided in this order.
    pub entries: Vec<E>,
    /// All or nothing: when one entry is refused, all are, and every key is consumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
    /// One request with several keys: each entry is decided on its own, but when only some of the
    /// keys were used before, nothing is decided and each entry returns `idempotency_mismatch`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> Entry {
        Entry::Transfer {
            tenant: "t".parse().unwrap(),
            principal: "alice".parse().unwrap(),
            key: "k-1".parse().unwrap(),
            from: "acc:a".parse().unwrap(),
            to: "acc:b".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(12),
            nonce: 1,
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
        }
    }

    #[test]
    fn entries_are_flat_tagged_objects() {
        let json = serde_json::to_string(&transfer()).unwrap();
        assert_eq!(
            json,
            r#"{"kind":"transfer","tenant":"t","principal":"alice","key":"k-1","from":"acc:a","to":"acc:b","asset":"ron","amount_minor":"12","nonce":1}"#
        );
        assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), transfer());
    }

    #[test]
    fn bad_entries_are_refused() {
        let good = serde_json::to_value(transfer()).unwrap();
        let check = |field: &str, value: serde_json::Value| {
            let mut v = good.clone();
            v[field] = value;
            assert!(
                serde_json::from_value::<Entry>(v).is_err(),
                "{field} was accepted"
            );
        };
        check("colour", "red".into());
        check("kind", "teleport".into());
        check("principal", "".into());
        check("principal", "two words".into());
        check("key", "k\n".into());
        check("key", "x".repeat(129).into());
        check("memo", "line\nbreak".into());
        check("memo", "m".repeat(257).into());
        check("nonce", (-1).into());
        check("amount_minor", 12.into());
        check("amount_minor", "-12".into());
        check("reference", "".into());
        check("reference", "r".repeat(129).into());
        check("metadata", "m".into());
        check("metadata", serde_json::json!({"a": {}}));
        check("effective_at", "yesterday".into());
        check("share_reference", "yes".into());
        check("details", serde_json::json!({}));
    }

    #[test]
    fn details_are_members_of_the_entry() {
        let mut entry = transfer();
        if let Entry::Transfer { details, .. } = &mut entry {
            details.reference = Some("order 17".parse().unwrap());
            details.share_reference = false;
        }
        let json = serde_json::to_string(&entry).unwrap();
        assert!(
            json.ends_with(r#""nonce":1,"reference":"order 17","share_reference":false}"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry);
    }
}
