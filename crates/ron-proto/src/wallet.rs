//! Request and answer types of the svc-wallet API (base `/v1`), and the wallet policy.
//!
//! Every POST carries an `Idempotency-Key` header; amounts are decimal strings of minor units.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ledger::{EntryKind, Memo, Receipt, RefusalCode, TxId};
use crate::values::{Account, Amount, Asset, Timestamp};

/// Items of one batch, at most.
pub const MAX_BATCH: usize = 1_000;

/// `POST /issue`: creates money. No nonce.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueMoney {
    /// The credited account.
    pub to: Account,
    /// The asset.
    pub asset: Asset,
    /// Minor units, more than zero.
    pub amount_minor: Amount,
    /// Kept with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
}

/// `POST /transfer`: moves money.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The debited account.
    pub from: Account,
    /// The credited account, another than `from`.
    pub to: Account,
    /// The asset.
    pub asset: Asset,
    /// Minor units, more than zero.
    pub amount_minor: Amount,
    /// The account's next: 1, 2, 3 ...
    pub nonce: u64,
    /// Kept with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
}

/// `POST /burn`: destroys money.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Burn {
    /// The debited account.
    pub from: Account,
    /// The asset.
    pub asset: Asset,
    /// Minor units, more than zero.
    pub amount_minor: Amount,
    /// The account's next: 1, 2, 3 ...
    pub nonce: u64,
    /// Kept with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
}

/// `POST /batch`: up to 1,000 operations under one idempotency key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Decided in this order.
    pub items: Vec<BatchItem>,
    /// All or nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
}

/// One operation of a batch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum BatchItem {
    /// As `POST /issue`.
    Issue {
        /// The credited account.
        to: Account,
        /// The asset.
        asset: Asset,
        /// Minor units, more than zero.
        amount_minor: Amount,
        /// Kept with the entry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
    },
    /// As `POST /transfer`.
    Transfer {
        /// The debited account.
        from: Account,
        /// The credited account, another than `from`.
        to: Account,
        /// The asset.
        asset: Asset,
        /// Minor units, more than zero.
        amount_minor: Amount,
        /// The account's next, counting the items before.
        nonce: u64,
        /// Kept with the entry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
    },
    /// As `POST /burn`.
    Burn {
        /// The debited account.
        from: Account,
        /// The asset.
        asset: Asset,
        /// Minor units, more than zero.
        amount_minor: Amount,
        /// The account's next, counting the items before.
        nonce: u64,
        /// Kept with the entry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memo: Option<Memo>,
    },
}

/// Answer of `POST /batch`: one result per item, in order.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchAnswer {
    /// What became of each item.
    pub results: Vec<ItemOutcome>,
}

/// What became of one item of a batch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum ItemOutcome {
    /// It is in the ledger.
    Done {
        /// Its receipt.
        receipt: Receipt,
    },
    /// It is refused for ever; nothing changed.
    Refused {
        /// Why.
        code: RefusalCode,
        /// The nonce that would have been accepted, for callers who may read the account.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected: Option<u64>,
    },
}

/// `POST /hold`: reserves money until it is captured, released or `expires_at` has come.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldMoney {
    /// The account whose money is reserved.
    pub from: Account,
    /// The asset.
    pub asset: Asset,
    /// Minor units, more than zero.
    pub amount_minor: Amount,
    /// The account's next: 1, 2, 3 ...
    pub nonce: u64,
    /// When what is left becomes available again.
    pub expires_at: Timestamp,
    /// Kept with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
}

/// `POST /hold/{id}/capture`: pays out of a hold; what is left stays held.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The credited account.
    pub to: Account,
    /// Minor units, more than zero and no more than the hold has left.
    pub amount_minor: Amount,
    /// Kept with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
}

/// Body of requests that say everything in their path: `{}`, or no body at all.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Answer of `GET /hold/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Its id: the txid of the entry that made it.
    pub hold: TxId,
    /// Whether anything is reserved still.
    pub state: HoldState,
    /// The account whose money is reserved.
    pub from: Account,
    /// The asset.
    pub asset: Asset,
    /// What was reserved at first.
    pub amount_minor: Amount,
    /// What is reserved now.
    pub remaining_minor: Amount,
    /// When what is left becomes available again.
    pub expires_at: Timestamp,
}

/// Whether a hold is open.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    /// Something is reserved.
    Open,
    /// Captured whole, released or expired.
    Ended,
}

/// Answer of `GET /balance?account&asset`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// The account asked for.
    pub account: Account,
    /// The asset asked for.
    pub asset: Asset,
    /// What the account has.
    pub amount_minor: Amount,
    /// The same less what is held.
    pub available_minor: Amount,
    /// The ledger's time of this state.
    pub as_of: Timestamp,
    /// The ledger's sequence of this state.
    pub as_of_seq: u64,
    /// How long ago the ledger was asked, in milliseconds; 0 when it was asked for this answer.
    pub stale_ms: u64,
    /// The last nonce used; the next debit carries `nonce + 1`.
    pub nonce: u64,
}

/// Answer of `GET /account/{a}/history?after&limit`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryPage {
    /// The account asked for.
    pub account: Account,
    /// Its entries with `seq > after`, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Use as the next `after`.
    pub next: u64,
    /// The ledger's last sequence when the page was made; history may lag behind it for a moment.
    pub head: u64,
}

/// One entry that touched an account, or was refused.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryEntry {
    /// Its place in the ledger.
    pub seq: u64,
    /// The ledger's time.
    pub ts: Timestamp,
    /// What it does.
    pub op: EntryKind,
    /// Its id, when it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txid: Option<TxId>,
    /// Why it was refused, when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusalCode>,
    /// The debited account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Account>,
    /// The credited account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Account>,
    /// The asset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset: Option<Asset>,
    /// Minor units moved, reserved or made available again (asked for, when refused).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    /// The nonce it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// The caller's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
}

/// Answer of `GET /ops/{idempotency_key}`: the outcome of an operation.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// It is in the ledger.
    Done {
        /// Its receipt.
        receipt: Receipt,
    },
    /// It is refused for ever; nothing changed.
    Refused {
        /// Why.
        code: RefusalCode,
    },
    /// It was a batch: every item by itself.
    Batch {
        /// One per item, in order.
        results: Vec<ItemOutcome>,
    },
}

/// The wallet policy: who may do what with which accounts. Signed, kind `wallet`; versions only
/// grow. No rule, no access, reads included.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalletPolicy {
    /// Grows with every change; an older one is refused.
    pub version: u64,
    /// The first rule that matches principal, action, account and asset decides.
    pub rules: Vec<WalletRule>,
}

/// One rule.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalletRule {
    /// Subject of the token: exact, or a prefix ending in `*`.
    pub principal: String,
    /// Allowed actions.
    pub actions: Vec<WalletAction>,
    /// Accounts: exact, or a prefix ending in `*`. For a transfer the debited account counts, for
    /// an issue the credited one, for a capture or release the one the hold is on.
    pub accounts: Vec<String>,
    /// Assets: exact, or `*`.
    pub assets: Vec<String>,
    /// Most minor units of one operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_op: Option<Amount>,
    /// Most minor units per account and UTC day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<Amount>,
}

/// What a rule can allow.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WalletAction {
    /// Reading balances, receipts, operations and history.
    Read,
    /// Creating money.
    Issue,
    /// Moving money.
    Transfer,
    /// Destroying money.
    Burn,
    /// Reserving money, capturing and releasing what is reserved.
    Hold,
    /// Freezing and unfreezing accounts.
    Admin,
}
