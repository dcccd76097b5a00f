//! The outcome of entries: answers, refusal codes, receipts and events.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Entry, EntryKind, LeafHash, Memo, Metadata, Reference, TxId};
use crate::tagged::tagged;
use crate::values::{Account, Amount, Asset, EpochId, Timestamp};

/// Response of `POST /v1/ledger/commit`: one result per entry, in the order of the entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitAnswer {
    pub results: Vec<EntryAnswer>,
}

tagged! {
    /// Outcome of one entry.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[allow(
        clippy::large_enum_variant,
        reason = "nearly all of them are of the large variant"
    )]
    pub enum EntryAnswer, tag "outcome", read by "EntryAnswer" as AnswerMembers {
        /// The entry took effect and is durable.
        Done {
            /// Index of the entry's leaf in the ledger's log.
            seq: u64,
            /// Transaction id of the entry.
            txid: TxId,
            /// Receipt of the entry.
            receipt: Receipt,
            /// The private side of the entry.
            private: PrivateFacts,
            /// True when the request had been decided before; nothing changed now.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            replayed: bool,
        },
        /// Nothing changed, except that the key (if any) is used, when `seq` is present.
        Refused {
            /// Why the entry was refused.
            code: RefusalCode,
            /// Index of the leaf that records the refusal. Absent when none was written: the key (if
            /// any) is still unused, unless the code is `idempotency_mismatch`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            seq: Option<u64>,
            /// For `nonce_conflict` the nonce that would have been accepted, for `index_gap` the
            /// epoch's next index.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            expected: Option<u64>,
            /// For `usage_paid` the epoch that paid this usage.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            paid_by: Option<EpochId>,
            /// True when the request had been decided before; nothing changed now.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            replayed: bool,
        },
    }
}

impl EntryAnswer {
    /// The receipt, if the entry took effect.
    pub const fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Done { receipt, .. } => Some(receipt),
            Self::Refused { .. } => None,
        }
    }

    /// The same outcome, marked as decided before.
    #[must_use]
    pub fn as_replayed(mut self) -> Self {
        let (Self::Done { replayed, .. } | Self::Refused { replayed, .. }) = &mut self;
        *replayed = true;
        self
    }

    /// Whether the request had been decided before.
    pub const fn is_replayed(&self) -> bool {
        match self {
            Self::Done { replayed, .. } | Self::Refused { replayed, .. } => *replayed,
        }
    }
}

/// Why an entry was refused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The available balance (or the pool) is smaller than the amount.
    InsufficientFunds,
    /// The nonce is not the account's next; `expected` contains the next one. Neither key nor nonce
    /// is used: the entry may be sent again under its key.
    NonceConflict,
    /// A limit would be exceeded: a daily ceiling, a budget of the token, the operator's limit on accounts or on an
    /// account's total, or the maximum ever issued of an asset.
    LimitsExceeded,
    /// A total would exceed 128 bits.
    AmountOverflow,
    /// The debited account is frozen for debits, or the credited one for credits.
    AccountFrozen,
    /// The account is closed.
    AccountClosed,
    /// An account to be closed still has money, debt or holds.
    AccountNotEmpty,
    /// The account has drawn more than the new credit limit.
    CreditInUse,
    /// The credited account would have more than its maximum.
    MaxBalance,
    /// The ledger takes registered assets only, and this one is not.
    AssetUnregistered,
    /// Money of the asset was issued with another scale.
    AssetScale,
    /// The account is reserved for the ledger (escrow).
    ReservedAccount,
    /// No open hold has this id.
    HoldNotFound,
    /// The remaining amount of the hold is smaller than the requested one.
    HoldTooSmall,
    /// The hold's `expires_at` is not in the future.
    HoldExpired,
    /// The epoch is bound to another manifest, or the payout differs from the one already made.
    EpochConflict,
    /// The epoch was never opened.
    EpochUnknown,
    /// The epoch is closed.
    EpochClosed,
    /// The epoch was opened with this manifest, which can no longer be withdrawn.
    EpochOpened,
    /// This manifest of the epoch was withdrawn.
    EpochVoid,
    /// The payout is not the epoch's next; `expected` contains the next index.
    IndexGap,
    /// Not every index is paid, or the escrow is not empty.
    EpochIncomplete,
    /// Another entry of the same linked commit was refused, or an entry of the same batch in a way
    /// that uses no key.
    LinkedFailed,
    /// The key was abandoned by `resolve` before the entry arrived.
    Abandoned,
    /// The key was used for another request.
    IdempotencyMismatch,
    /// Another epoch of the tenant paid this usage; `paid_by` contains it.
    UsagePaid,
    /// The asset exists under a name that differs in upper and lower case only.
    AssetSpelling,
    /// Too many requests of this principal were refused lately. The key is unused: send the same
    /// again later.
    RefusalBudget,
    /// The entry to reverse is no done transfer, capture or payout.
    NotReversible,
    /// The amount is more than what earlier reversals left of the entry, or nothing is left.
    ReversalTooLarge,
}

impl RefusalCode {
    /// Every code; a metric has a series for each.
    pub const ALL: [Self; 30] = [
        Self::InsufficientFunds,
        Self::NonceConflict,
        Self::LimitsExceeded,
        Self::AmountOverflow,
        Self::AccountFrozen,
        Self::AccountClosed,
        Self::AccountNotEmpty,
        Self::CreditInUse,
        Self::MaxBalance,
        Self::AssetUnregistered,
        Self::AssetScale,
        Self::ReservedAccount,
        Self::HoldNotFound,
        Self::HoldTooSmall,
        Self::HoldExpired,
        Self::EpochConflict,
        Self::EpochUnknown,
        Self::EpochClosed,
        Self::EpochOpened,
        Self::EpochVoid,
        Self::IndexGap,
        Self::EpochIncomplete,
        Self::LinkedFailed,
        Self::Abandoned,
        Self::IdempotencyMismatch,
        Self::UsagePaid,
        Self::AssetSpelling,
        Self::RefusalBudget,
        Self::NotReversible,
        Self::ReversalTooLarge,
    ];

    /// The code on the wire, also the `code` of the problem derived from it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InsufficientFunds => "insufficient_funds",
            Self::NonceConflict => "nonce_conflict",
            Self::LimitsExceeded => "limits_exceeded",
            Self::AmountOverflow => "amount_overflow",
            Self::AccountFrozen => "account_frozen",
            Self::AccountClosed => "account_closed",
            Self::AccountNotEmpty => "account_not_empty",
            Self::CreditInUse => "credit_in_use",
            Self::MaxBalance => "max_balance",
            Self::AssetUnregistered => "asset_unregistered",
            Self::AssetScale => "asset_scale",
            Self::ReservedAccount => "reserved_account",
            Self::HoldNotFound => "hold_not_found",
            Self::HoldTooSmall => "hold_too_small",
            Self::HoldExpired => "hold_expired",
            Self::EpochConflict => "epoch_conflict",
            Self::EpochUnknown => "epoch_unknown",
            Self::EpochClosed => "epoch_closed",
            Self::EpochOpened => "epoch_opened",
            Self::EpochVoid => "epoch_void",
            Self::IndexGap => "index_gap",
            Self::EpochIncomplete => "epoch_incomplete",
            Self::LinkedFailed => "linked_failed",
            Self::Abandoned => "abandoned",
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::UsagePaid => "usage_paid",
            Self::AssetSpelling => "asset_spelling",
            Self::RefusalBudget => "refusal_budget",
            Self::NotReversible => "not_reversible",
            Self::ReversalTooLarge => "reversal_too_large",
        }
    }

    /// Explanation in one sentence, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::InsufficientFunds => "the available balance is smaller than the amount",
            Self::NonceConflict => {
                "the nonce is not the account's next, or is absent and the account requires one"
            }
            Self::LimitsExceeded => {
                "a daily ceiling, the budget of the token, or another limit would be exceeded"
            }
            Self::AmountOverflow => "a total would exceed 128 bits",
            Self::AccountFrozen => {
                "the debited account is frozen for debits, or the credited one for credits"
            }
            Self::AccountClosed => "the account is closed",
            Self::AccountNotEmpty => "the account still has money, debt or holds",
            Self::CreditInUse => "the account has drawn more than the new credit limit",
            Self::MaxBalance => "the credited account would have more than its maximum",
            Self::AssetUnregistered => {
                "only registered assets may be issued, and this one is not registered"
            }
            Self::AssetScale => "money of the asset was issued with another scale",
            Self::ReservedAccount => "the account is reserved for the ledger",
            Self::HoldNotFound => "no open hold has this id",
            Self::HoldTooSmall => {
                "the remaining amount of the hold is smaller than the requested one"
            }
            Self::HoldExpired => "the hold's expires_at is not in the future",
            Self::EpochConflict => "the epoch is bound to another manifest or payout",
            Self::EpochUnknown => "the epoch was never opened",
            Self::EpochClosed => "the epoch is closed",
            Self::EpochOpened => {
                "the epoch was opened with this manifest, which can no longer be withdrawn"
            }
            Self::EpochVoid => "this manifest of the epoch was withdrawn and never pays",
            Self::IndexGap => "the payout is not the epoch's next",
            Self::EpochIncomplete => "not every index of the epoch is paid",
            Self::LinkedFailed => "another entry of the same linked commit or batch was refused",
            Self::Abandoned => "the key was abandoned before the entry arrived",
            Self::IdempotencyMismatch => "the key was used for another request",
            Self::UsagePaid => "another epoch paid this usage",
            Self::AssetSpelling => {
                "the asset exists under a name that differs in upper and lower case only; use that name"
            }
            Self::NotReversible => "the entry to reverse is no done transfer, capture or payout",
            Self::ReversalTooLarge => "not so much is left of the entry to reverse",
            Self::RefusalBudget => {
                "too many requests of this caller were refused lately; wait, then send the same again"
            }
        }
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Receipt of an entry that took effect: the public facts of its leaf. It depends on the leaf alone,
/// so it never changes and a repetition returns the same receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Transaction id of the entry.
    pub txid: TxId,
    /// Kind of the entry.
    pub op: EntryKind,
    /// The debited account; for freeze, unfreeze and account entries the account itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Account>,
    /// The credited account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Account>,
    /// Asset; absent only for freeze, unfreeze, account and epoch_void entries, and for epoch_close
    /// entries of epochs that pay a single asset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset: Option<Asset>,
    /// Amount moved, in minor units; absent together with `asset`, and for asset and epoch_close
    /// entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    /// The ledger's time of the entry.
    pub ts: Timestamp,
    /// Index of the entry's leaf in the ledger's log.
    pub seq: u64,
    /// The hold that was captured, released or expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<TxId>,
    /// The batch the entry belongs to: the transaction id of its first item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TxId>,
    /// The transaction that the entry reverses, whole or in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverses: Option<TxId>,
    /// RFC 6962 hash of the entry's leaf in the ledger's log.
    pub receipt_hash: LeafHash,
}

/// The private side of an entry that took effect. The leaf of the log holds only a salted hash of
/// it; texts that were erased are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrivateFacts {
    /// The entry's key; for settlement entries a text derived from epoch and index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idem: Option<String>,
    /// Nonce of the debited account, for the kinds that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// Text given by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
    /// Members given by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The caller's own reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// The time for statements, given by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_at: Option<Timestamp>,
}

/// One entry as recorded in the log: `GET /tx/{txid}`, `/by-key/..`, and the items of `/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Index of the entry's leaf in the ledger's log.
    pub seq: u64,
    /// The ledger's time of the entry.
    pub ts: Timestamp,
    /// The entry as requested.
    pub entry: Entry,
    /// The first outcome returned for the entry (`replayed` is false).
    pub answer: EntryAnswer,
}

/// `GET /v1/ledger/events?after=N&wait=S`: entries in order, without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventPage {
    /// Entries with `seq > after`, ascending without gaps; at most 500.
    pub events: Vec<Event>,
    /// Value of `after` for the next page.
    pub next: u64,
    /// The last durable sequence number when the page was made.
    pub head: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_codes_are_listed_once() {
        for (i, a) in RefusalCode::ALL.iter().enumerate() {
            assert_eq!(serde_json::to_value(a).unwrap(), a.as_str());
            assert!(!RefusalCode::ALL[i + 1..].contains(a));
        }
    }

    #[test]
    fn an_answer_is_read_as_written_and_has_no_members_of_another_outcome() {
        let done = serde_json::json!({
            "outcome": "done", "seq": 7, "txid": format!("tx_{}", "0".repeat(32)),
            "receipt": {"txid": format!("tx_{}", "0".repeat(32)), "op": "issue", "to": "a", "asset": "ron",
                "amount_minor": "5", "ts": "2025-03-01T12:00:00.000Z", "seq": 7,
                "receipt_hash": format!("sha256:{}", "ab".repeat(32))},
            "private": {"idem": "k"},
        });
        let refused = serde_json::json!({"outcome": "refused", "code": "nonce_conflict", "seq": 8, "expected": 3});
        for whole in [&done, &refused] {
            let read: EntryAnswer = serde_json::from_value(whole.clone()).unwrap();
            assert_eq!(&serde_json::to_value(&read).unwrap(), whole);
            let again = read.as_replayed();
            let text = serde_json::to_string(&again).unwrap();
            assert_eq!(serde_json::from_str::<EntryAnswer>(&text).unwrap(), again);
        }
        let refuses = |from: &serde_json::Value, name: &str, value: serde_json::Value| {
            let mut changed = from.clone();
            changed[name] = value;
            serde_json::from_value::<EntryAnswer>(changed).unwrap_err();
        };
        refuses(&done, "code", "nonce_conflict".into());
        refuses(&done, "other", 1.into());
        refuses(&refused, "txid", done["txid"].clone());
        refuses(&refused, "outcome", "done".into());
        for (whole, needed) in [
            (&done, "seq"),
            (&done, "txid"),
            (&done, "receipt"),
            (&done, "private"),
            (&refused, "code"),
        ] {
            let mut less = whole.clone();
            less.as_object_mut().unwrap().remove(needed);
            let why = serde_json::from_value::<EntryAnswer>(less).unwrap_err();
            assert!(why.to_string().contains(needed), "{why}");
        }
    }
}
