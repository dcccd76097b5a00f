//! The ledger's wire types: entries, responses, receipts, account and epoch documents, events and
//! the head.
//!
//! Amounts are decimal strings of minor units, times are RFC 3339 UTC with milliseconds, `seq` and
//! nonces are JSON integers below 2^53. `seq` is the index of the entry's leaf in the ledger's log;
//! leaf 0 is the genesis record, so the first entry has `seq` 1 and `after=0` reads everything.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Problem;
use crate::jcs::{self, JcsError};
use crate::values::{
    Account, Amount, Asset, ContentId, EpochId, Tenant, Timestamp, ValueError, string_value,
};

/// Maximum number of entries in one commit.
pub const MAX_ENTRIES: usize = 1_000;
/// Maximum size of one commit body, in bytes.
pub const MAX_COMMIT_BYTES: usize = 1 << 20;
/// Maximum size of a memo, in bytes.
pub const MAX_MEMO_BYTES: usize = 256;
/// Maximum of integers on the wire (nonce, index, recipients, seq): every JSON reader represents
/// them exactly.
pub const MAX_WIRE_INTEGER: u64 = (1 << 53) - 1;
/// Accounts with this prefix are reserved for the ledger: only `epoch_open`, `payout` and
/// `epoch_close` change them.
pub const ESCROW_PREFIX: &str = "escrow:";
/// Prefix of the accounts that are pools of reward epochs; a tenant's pools are
/// `pool:<tenant>/<name>`.
pub const POOL_PREFIX: &str = "pool:";

/// True when `account` is a pool of `tenant`: `pool:`, the tenant, a slash and a name. A dot in the
/// tenant's name is written as a colon, because accounts have no dots; tenants have no colons, so
/// no two tenants share a pool.
pub fn is_pool_of(tenant: &Tenant, account: &Account) -> bool {
    let below = account.as_str().strip_prefix(POOL_PREFIX);
    let Some((owner, name)) = below.and_then(|below| below.split_once('/')) else {
        return false;
    };
    let spelt = tenant
        .as_str()
        .bytes()
        .map(|b| if b == b'.' { b':' } else { b });
    !name.is_empty() && owner.bytes().eq(spelt)
}

/// A string type with a validity rule: `FromStr`, `TryFrom`, `Display`, serde as a string, and a
/// schema.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr, $schema:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(s: &str) -> Result<Self, ValueError> {
                let good: fn(&str) -> bool = $check;
                if good(s) { Ok(Self(Arc::from(s))) } else { Err(ValueError::new($what, concat!("it must be ", $rule))) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        string_value!($name, $what, $schema);
    };
}

fn printable(s: &str, max: usize) -> bool {
    (1..=max).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic())
}

text!(
    /// Principal an entry is made for: 1 to 160 printable ASCII characters without spaces.
    PrincipalName, "principal", "1..160 printable ASCII characters without spaces",
    |s| printable(s, 160),
    { "type": "string", "minLength": 1, "maxLength": 160, "pattern": "^[!-~]+$" }
);

text!(
    /// Idempotency key of an entry, never reused by its principal: 1 to 128 of `[A-Za-z0-9._:/#-]`.
    /// Keys given by callers contain no `#`, which reserves `key#3` for item 3 of a batch.
    EntryKey, "key", "1..128 of [A-Za-z0-9._:/#-]",
    |s| (1..=128).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/#-".contains(&b)),
    { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._:/#-]+$" }
);

text!(
    /// Free text stored with an entry: at most 256 bytes of UTF-8 without control characters.
    Memo, "memo", "at most 256 bytes without control characters",
    |s| s.len() <= MAX_MEMO_BYTES && !s.chars().any(char::is_control),
    { "type": "string", "maxLength": 256 }
);

text!(
    /// The caller's own reference (an order, an invoice): 1 to 128 printable ASCII characters
    /// without spaces.
    Reference, "ref", "1..128 printable ASCII characters without spaces",
    |s| printable(s, 128),
    { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$" }
);

/// Transaction id: `tx_` and 32 hex digits, 16 of the sequence number and 16 of a hash over
/// sequence number and request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u128);

string_value!(TxId, "txid", { "type": "string", "pattern": "^tx_[0-9a-f]{32}$" });

impl TxId {
    /// The id of the entry at `seq` whose canonical request bytes are `request`.
    pub fn derive(seq: u64, request: &[u8]) -> Self {
        let mut h = blake3::Hasher::new();
        h.update(b"ron-ledger/v1/txid\0");
        h.update(&seq.to_be_bytes());
        h.update(request);
        let tag = u64::from_be_bytes(first_eight(h.finalize().as_bytes()));
        Self((u128::from(seq) << 64) | u128::from(tag))
    }

    /// The sequence number encoded in the id; the entry found there must derive the same id.
    pub const fn seq(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

fn first_eight(hash: &[u8; 32]) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&hash[..8]);
    out
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx_{:032x}", self.0)
    }
}

impl FromStr for TxId {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::new("txid", "it must be tx_ and 32 lower-case hex digits");
        let hex = s.strip_prefix("tx_").ok_or_else(bad)?;
        if hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad());
        }
        u128::from_str_radix(hex, 16).map(Self).map_err(|_| bad())
    }
}

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
/// principal.
///
/// Settlement entries identify themselves: an epoch is opened and closed once, a payout is unique
/// by (tenant, epoch, index). A repetition returns the first receipt and changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// Creates money in `to`. Has no nonce.
    Issue {
        principal: PrincipalName,
        key: EntryKey,
        to: Account,
        asset: Asset,
        amount_minor: Amount,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<Reference>,
        /// Maximum of the account's total in this asset per UTC day, in minor units; refused when
        /// the entry would exceed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Moves money. `nonce` must be the next of the debited account (1, 2, 3 ...).
    Transfer {
        principal: PrincipalName,
        key: EntryKey,
        from: Account,
        to: Account,
        asset: Asset,
        amount_minor: Amount,
        nonce: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<Reference>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Destroys money of `from`.
    Burn {
        principal: PrincipalName,
        key: EntryKey,
        from: Account,
        asset: Asset,
        amount_minor: Amount,
        nonce: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<Reference>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Reserves money until it is captured, released or expired. The txid of the entry identifies
    /// the hold.
    Hold {
        principal: PrincipalName,
        key: EntryKey,
        from: Account,
        asset: Asset,
        amount_minor: Amount,
        nonce: u64,
        expires_at: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<Reference>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        daily_ceiling: Option<Amount>,
    },
    /// Pays `amount_minor` of the hold to `to`; the remaining amount stays reserved.
    Capture {
        principal: PrincipalName,
        key: EntryKey,
        hold: TxId,
        to: Account,
        amount_minor: Amount,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<Reference>,
    },
    /// Ends the hold; the remaining amount becomes available again.
    Release {
        principal: PrincipalName,
        key: EntryKey,
        hold: TxId,
    },
    /// Written by the ledger when a hold expires; refused in requests.
    Expire { hold: TxId },
    /// The account refuses debits from now on.
    Freeze {
        principal: PrincipalName,
        key: EntryKey,
        account: Account,
    },
    /// The account accepts debits again.
    Unfreeze {
        principal: PrincipalName,
        key: EntryKey,
        account: Account,
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

    /// (principal, key), for the kinds that have a key.
    pub const fn principal_key(&self) -> Option<(&PrincipalName, &EntryKey)> {
        match self {
            Self::Issue { principal, key, .. }
            | Self::Transfer { principal, key, .. }
            | Self::Burn { principal, key, .. }
            | Self::Hold { principal, key, .. }
            | Self::Capture { principal, key, .. }
            | Self::Release { principal, key, .. }
            | Self::Freeze { principal, key, .. }
            | Self::Unfreeze { principal, key, .. }
            | Self::Abandon { principal, key } => Some((principal, key)),
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
        | Self::Hold { daily_ceiling, .. } = &mut self
        {
            *daily_ceiling = None;
        }
        self
    }
}

/// Body of `POST /v1/ledger/commit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    /// Entries, 1 to 1,000, decided in this order.
    pub entries: Vec<Entry>,
    /// All or nothing: when one entry is refused, all are, and every key is consumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
    /// One request with several keys: each entry is decided on its own, but when only some of the
    /// keys were used before, nothing is decided and each entry returns `idempotency_mismatch`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch: bool,
}

/// Response of `POST /v1/ledger/commit`: one result per entry, in the order of the entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitAnswer {
    pub results: Vec<EntryAnswer>,
}

/// Outcome of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum EntryAnswer {
    /// The entry took effect and is durable.
    Done {
        /// Index of the entry's leaf in the ledger's log.
        seq: u64,
        /// Transaction id of the entry.
        txid: TxId,
        /// Receipt of the entry.
        receipt: Receipt,
        /// True when the request had been decided before; nothing changed now.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replayed: bool,
    },
    /// Nothing changed, except that the key (if any) is consumed.
    Refused {
        /// Why the entry was refused.
        code: RefusalCode,
        /// Index of the leaf that records the refusal; absent for `idempotency_mismatch`, which
        /// writes none.
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
    /// The nonce is not the account's next; `expected` contains the next one.
    NonceConflict,
    /// A limit would be exceeded: a daily ceiling, the operator's limit on accounts or on an
    /// account's total, or the maximum ever issued of an asset.
    LimitsExceeded,
    /// A total would exceed 128 bits.
    AmountOverflow,
    /// The debited account is frozen.
    AccountFrozen,
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
    /// The payout is not the epoch's next; `expected` contains the next index.
    IndexGap,
    /// Not every index is paid, or the escrow is not empty.
    EpochIncomplete,
    /// Another entry of the same linked commit was refused.
    LinkedFailed,
    /// The key was abandoned by `resolve` before the entry arrived.
    Abandoned,
    /// The key was used for another request.
    IdempotencyMismatch,
    /// Another epoch of the tenant paid this usage; `paid_by` contains it.
    UsagePaid,
}

impl RefusalCode {
    /// Every code, in the order of its number in the log.
    pub const ALL: [Self; 18] = [
        Self::InsufficientFunds,
        Self::NonceConflict,
        Self::LimitsExceeded,
        Self::AmountOverflow,
        Self::AccountFrozen,
        Self::ReservedAccount,
        Self::HoldNotFound,
        Self::HoldTooSmall,
        Self::HoldExpired,
        Self::EpochConflict,
        Self::EpochUnknown,
        Self::EpochClosed,
        Self::IndexGap,
        Self::EpochIncomplete,
        Self::LinkedFailed,
        Self::Abandoned,
        Self::IdempotencyMismatch,
        Self::UsagePaid,
    ];

    /// The code on the wire, also the `code` of the problem derived from it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InsufficientFunds => "insufficient_funds",
            Self::NonceConflict => "nonce_conflict",
            Self::LimitsExceeded => "limits_exceeded",
            Self::AmountOverflow => "amount_overflow",
            Self::AccountFrozen => "account_frozen",
            Self::ReservedAccount => "reserved_account",
            Self::HoldNotFound => "hold_not_found",
            Self::HoldTooSmall => "hold_too_small",
            Self::HoldExpired => "hold_expired",
            Self::EpochConflict => "epoch_conflict",
            Self::EpochUnknown => "epoch_unknown",
            Self::EpochClosed => "epoch_closed",
            Self::IndexGap => "index_gap",
            Self::EpochIncomplete => "epoch_incomplete",
            Self::LinkedFailed => "linked_failed",
            Self::Abandoned => "abandoned",
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::UsagePaid => "usage_paid",
        }
    }

    /// Explanation in one sentence, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::InsufficientFunds => "the available balance is smaller than the amount",
            Self::NonceConflict => "the nonce is not the account's next",
            Self::LimitsExceeded => "a daily ceiling or another limit would be exceeded",
            Self::AmountOverflow => "a total would exceed 128 bits",
            Self::AccountFrozen => "the account is frozen and refuses debits",
            Self::ReservedAccount => "the account is reserved for the ledger",
            Self::HoldNotFound => "no open hold has this id",
            Self::HoldTooSmall => {
                "the remaining amount of the hold is smaller than the requested one"
            }
            Self::HoldExpired => "the hold's expires_at is not in the future",
            Self::EpochConflict => "the epoch is bound to another manifest or payout",
            Self::EpochUnknown => "the epoch was never opened",
            Self::EpochClosed => "the epoch is closed",
            Self::IndexGap => "the payout is not the epoch's next",
            Self::EpochIncomplete => "not every index of the epoch is paid",
            Self::LinkedFailed => "another entry of the same linked commit was refused",
            Self::Abandoned => "the key was abandoned before the entry arrived",
            Self::IdempotencyMismatch => "the key was used for another request",
            Self::UsagePaid => "another epoch paid this usage",
        }
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Receipt of an entry that took effect. Its content follows from the request, the ledger's time
/// and the sequence number, so a repetition returns the same receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Transaction id of the entry.
    pub txid: TxId,
    /// Kind of the entry.
    pub op: EntryKind,
    /// The debited account; for freeze and unfreeze the account itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Account>,
    /// The credited account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Account>,
    /// Asset; absent only for freeze, unfreeze and epoch_close.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset: Option<Asset>,
    /// Amount moved, in minor units; absent together with `asset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    /// Nonce of the debited account, for the kinds that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// The entry's key; for settlement entries a text derived from epoch and index.
    pub idem: String,
    /// The ledger's time of the entry.
    pub ts: Timestamp,
    /// Index of the entry's leaf in the ledger's log.
    pub seq: u64,
    /// `b3:` of the canonical JSON of all preceding fields.
    pub receipt_hash: ContentId,
}

/// The hashed fields of a receipt, in the same order.
#[derive(Serialize)]
struct ReceiptBody<'a> {
    txid: TxId,
    op: EntryKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a Account>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a Account>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asset: Option<&'a Asset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount_minor: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nonce: Option<u64>,
    idem: &'a str,
    ts: Timestamp,
    seq: u64,
}

impl Receipt {
    /// The hash the receipt must contain: `b3:` of the canonical JSON of every field except
    /// `receipt_hash`.
    pub fn expected_hash(&self) -> Result<ContentId, JcsError> {
        let body = ReceiptBody {
            txid: self.txid,
            op: self.op,
            from: self.from.as_ref(),
            to: self.to.as_ref(),
            asset: self.asset.as_ref(),
            amount_minor: self.amount_minor,
            nonce: self.nonce,
            idem: &self.idem,
            ts: self.ts,
            seq: self.seq,
        };
        Ok(ContentId::of(&jcs::to_vec(&body)?))
    }

    /// The same receipt with its hash filled in.
    pub fn sealed(mut self) -> Result<Self, JcsError> {
        self.receipt_hash = self.expected_hash()?;
        Ok(self)
    }
}

/// Body of `POST /v1/ledger/resolve`: look up the outcome of a key. A key without an entry is
/// permanently abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// Principal the key belongs to.
    pub principal: PrincipalName,
    /// Idempotency key to resolve.
    pub key: EntryKey,
}

/// `GET /v1/ledger/accounts/{a}`. An account that was never used is returned as empty, not as 404.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountDoc {
    /// The account asked for.
    pub account: Account,
    /// The last nonce used; the next debit must carry `nonce + 1`.
    pub nonce: u64,
    /// Whether the account refuses debits.
    pub frozen: bool,
    /// Balances, sorted by asset; assets the account never had are absent.
    pub balances: Vec<BalanceDoc>,
    /// Open holds on the account, oldest first, at most 1,000.
    pub holds: Vec<HoldDoc>,
    /// Sequence number up to which the state is exact.
    pub seq: u64,
    /// The ledger's time of that entry.
    pub ts: Timestamp,
}

/// Balance of an account in one asset, in minor units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BalanceDoc {
    pub asset: Asset,
    /// Balance, including held amounts.
    pub amount_minor: Amount,
    /// `amount_minor` less the held amounts.
    pub available_minor: Amount,
}

/// An open hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldDoc {
    /// Id of the hold: the txid of the entry that made it.
    pub hold: TxId,
    /// The account whose money is reserved.
    pub from: Account,
    pub asset: Asset,
    /// Remaining amount, in minor units.
    pub amount_minor: Amount,
    /// When the remaining amount becomes available again.
    pub expires_at: Timestamp,
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

/// `GET /v1/ledger/head`: current state of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The log's origin line, which is also the name in its verifier key.
    pub origin: String,
    /// The last durable sequence number; 0 when there is no entry yet.
    pub seq: u64,
    /// Number of leaves in the log: `seq + 1`.
    pub size: u64,
    /// RFC 6962 root over these leaves, base64.
    pub root: String,
    /// The ledger's time of the last entry.
    pub ts: Timestamp,
    /// Number of leaves covered by the last signed checkpoint.
    pub checkpoint_size: u64,
    /// Present while the ledger is closed for writing; reads are still served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

/// Why a ledger is closed for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Kind of the failure.
    pub cause: ClosedCause,
    /// What failed, and what the operator must do.
    pub detail: String,
}

/// Kind of the failure that closed a ledger for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClosedCause {
    /// No space was left on its disk.
    DiskFull,
    /// Its disk failed a write or a flush.
    DiskFailed,
    /// An invariant was violated.
    Broken,
}

/// Code of the response (503) to a write while the ledger is closed, given by the ledger or by the
/// wallet. `details` contains the reason, a [`Closed`].
pub const LEDGER_CLOSED: &str = "ledger_closed";

impl Closed {
    /// The response to a write that was rejected; nothing was done.
    pub fn problem(&self) -> Problem {
        // Needs action by the operator, so the retry delay is long; the request itself is valid.
        Problem::new(
            503,
            LEDGER_CLOSED,
            "The ledger cannot write",
            self.detail.clone(),
        )
        .with_details(serde_json::json!({"cause": self.cause, "hint": self.cause.hint()}))
        .with_retry_after(10)
    }
}

impl ClosedCause {
    /// What the operator must do.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::DiskFull => "free space on the ledger's disk, then restart the ledger",
            Self::DiskFailed => {
                "repair or replace the ledger's disk, check the log with `ron ledger verify`, then restart the ledger"
            }
            Self::Broken => {
                "keep the ledger's files as they are, check the log with `ron ledger verify`, and report it"
            }
        }
    }
}

/// State of an epoch's settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpochState {
    /// Payouts are being made.
    Open,
    /// Every payout is made.
    Closed,
}

/// `GET /v1/ledger/epochs/{tenant}/{epoch}`: settlement of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochDoc {
    pub tenant: Tenant,
    pub epoch: EpochId,
    pub state: EpochState,
    /// The manifest's commitment.
    pub commitment: ContentId,
    /// Root of the Merkle-sum tree over the payouts.
    pub sum_root: ContentId,
    pub asset: Asset,
    /// The pool account the total was taken from.
    pub from: Account,
    /// The escrow account the payouts are made from.
    pub escrow: Account,
    /// Number of payouts.
    pub recipients: u64,
    /// Identifies what the epoch pays for.
    pub source: ContentId,
    /// The earlier epoch that this one corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
    /// The sum of all payouts, in minor units.
    pub amount_minor: Amount,
    /// Amount paid so far, in minor units.
    pub paid_minor: Amount,
    /// The index of the next payout.
    pub next_index: u64,
    /// Sequence number of `epoch_open`.
    pub opened_seq: u64,
    /// Sequence number of `epoch_close`; absent while the epoch is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_seq: Option<u64>,
}

/// The escrow account of an epoch: `escrow:` and 64 hex digits derived from tenant and epoch only.
pub fn escrow_account(tenant: &Tenant, epoch: &EpochId) -> Account {
    let mut h = blake3::Hasher::new();
    h.update(b"ron-ledger/v1/escrow\0");
    for part in [tenant.as_str(), epoch.as_str()] {
        h.update(&(part.len() as u64).to_be_bytes());
        h.update(part.as_bytes());
    }
    format!("{ESCROW_PREFIX}{}", h.finalize().to_hex())
        .parse()
        .expect("prefix and hex digits make an account")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> Entry {
        Entry::Transfer {
            principal: "alice".parse().unwrap(),
            key: "k-1".parse().unwrap(),
            from: "acc:a".parse().unwrap(),
            to: "acc:b".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(12),
            nonce: 1,
            memo: None,
            reference: None,
            daily_ceiling: None,
        }
    }

    #[test]
    fn entries_are_flat_tagged_objects() {
        let json = serde_json::to_string(&transfer()).unwrap();
        assert_eq!(
            json,
            r#"{"kind":"transfer","principal":"alice","key":"k-1","from":"acc:a","to":"acc:b","asset":"ron","amount_minor":"12","nonce":1}"#
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
    }

    #[test]
    fn txids_carry_their_sequence_and_parse_back() {
        let id = TxId::derive(77, b"request");
        assert_eq!(id.seq(), 77);
        assert_eq!(id.to_string().parse::<TxId>().unwrap(), id);
        assert_ne!(id, TxId::derive(77, b"other"));
        for bad in [
            "",
            "tx_",
            "tx_00",
            "TX_0000000000000000000000000000004d",
            "tx_0000000000000000000000000000004D",
        ] {
            assert!(bad.parse::<TxId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn receipt_hash_covers_every_field() {
        let r = Receipt {
            txid: TxId::derive(1, b"x"),
            op: EntryKind::Transfer,
            from: Some("a".parse().unwrap()),
            to: Some("b".parse().unwrap()),
            asset: Some("ron".parse().unwrap()),
            amount_minor: Some(Amount(5)),
            nonce: Some(1),
            idem: "k".to_owned(),
            ts: Timestamp(0),
            seq: 1,
            receipt_hash: ContentId([0; 32]),
        }
        .sealed()
        .unwrap();
        assert_eq!(r.receipt_hash, r.expected_hash().unwrap());
        let mut variants = vec![r.clone(); 6];
        variants[0].amount_minor = Some(Amount(6));
        variants[1].seq = 2;
        variants[2].idem = "l".to_owned();
        variants[3].ts = Timestamp(1);
        variants[4].from = None;
        variants[5].op = EntryKind::Burn;
        for v in variants {
            assert_ne!(v.expected_hash().unwrap(), r.receipt_hash);
        }
    }

    #[test]
    fn escrow_accounts_do_not_run_together() {
        let e = |t: &str, e: &str| escrow_account(&t.parse().unwrap(), &e.parse().unwrap());
        assert_ne!(e("ab", "c"), e("a", "bc"));
        assert!(e("a", "b").as_str().starts_with(ESCROW_PREFIX));
    }

    #[test]
    fn refusal_codes_are_listed_once() {
        for (i, a) in RefusalCode::ALL.iter().enumerate() {
            assert_eq!(serde_json::to_value(a).unwrap(), a.as_str());
            assert!(!RefusalCode::ALL[i + 1..].contains(a));
        }
    }
}
