//! Request and response types of the svc-wallet API (base `/v1`), and the wallet policy.
//!
//! Every POST requires an `Idempotency-Key` header; amounts are decimal strings of minor units.

mod lines;
mod reads;
mod terms;

pub use lines::{STATEMENT_COLUMNS, STATEMENT_TEXTS, is_whole_number, spreadsheet_text};
pub use reads::{
    AccountEvents, FoundTransactions, HistoryEntry, HistoryPage, ResumeWebhook, Statement,
    WebhookDoc, WebhookMessage, WebhookState, Webhooks,
};
pub use terms::{FreezeAccount, SetAccount, SetAsset};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::ledger::HoldState;
use crate::ledger::{Details, HoldRef, PrivateFacts, Receipt, RefusalCode, TxId};
use crate::values::{Account, Amount, Asset, DebitAmount, Tenant, Timestamp};

/// Maximum number of items in one batch.
pub const MAX_BATCH: usize = 1_000;

/// `POST /issue`: creates money. Has no nonce.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueMoney {
    /// The credited account.
    pub to: Account,
    /// Asset to create.
    pub asset: Asset,
    /// Amount in minor units, more than zero.
    pub amount_minor: Amount,
    #[serde(flatten)]
    pub details: Details,
}

/// `POST /transfer`: moves money.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The debited account.
    pub from: Account,
    /// The credited account; must differ from `from`.
    pub to: Account,
    /// Asset to move.
    pub asset: Asset,
    /// Amount in minor units, more than zero; or `max`: all that is available when the ledger decides is moved. An
    /// account of which nothing is available is refused (`insufficient_funds`), more than a limit allows too.
    pub amount_minor: DebitAmount,
    /// The next nonce of `from`: 1, 2, 3 ...; without one, the key alone makes
    /// the operation happen once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    #[serde(flatten)]
    pub details: Details,
}

/// `POST /burn`: destroys money.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Burn {
    /// The debited account.
    pub from: Account,
    /// Asset to destroy.
    pub asset: Asset,
    /// Amount in minor units, more than zero; or `max`: all that is available when the ledger decides is destroyed. An
    /// account of which nothing is available is refused (`insufficient_funds`), more than a limit allows too.
    pub amount_minor: DebitAmount,
    /// The next nonce of `from`: 1, 2, 3 ...; without one, the key alone makes
    /// the operation happen once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    #[serde(flatten)]
    pub details: Details,
}

/// `POST /batch`: up to 1,000 operations under one idempotency key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Operations, 1 to 1,000, decided in this order.
    pub items: Vec<BatchItem>,
    /// All or nothing: when one operation is refused, all are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
}

/// One operation of a batch, with the members of its own request.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum BatchItem {
    /// As `POST /issue`.
    Issue(IssueMoney),
    /// As `POST /transfer`; the nonce counts the preceding items.
    Transfer(Transfer),
    /// As `POST /burn`; the nonce counts the preceding items.
    Burn(Burn),
    /// As `POST /hold`; the nonce counts the preceding items.
    Hold(HoldMoney),
    /// As `POST /hold/{id}/capture`.
    Capture(CaptureItem),
    /// As `POST /hold/{id}/release`.
    Release(ReleaseItem),
    /// As `POST /tx/{txid}/reverse`.
    Reverse(ReverseItem),
}

/// A capture in a batch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureItem {
    /// Id of the hold; in a linked batch also `#i`, the hold that the earlier item `i` (from 0) makes.
    pub hold: HoldRef,
    /// The credited account.
    pub to: Account,
    /// Amount in minor units, more than zero and at most the remaining amount of the hold; all that
    /// is left when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    /// Releases what the capture leaves.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub ends_hold: bool,
    #[serde(flatten)]
    pub details: Details,
}

/// A release in a batch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseItem {
    /// Id of the hold; in a linked batch also `#i`, the hold that the earlier item `i` (from 0) makes.
    pub hold: HoldRef,
    #[serde(flatten)]
    pub details: Details,
}

/// A reversal in a batch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReverseItem {
    /// Id of the transaction to reverse: a transfer, capture or payout of an earlier request.
    pub txid: TxId,
    /// Amount in minor units, at most what earlier reversals left; all that is left when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    #[serde(flatten)]
    pub details: Details,
}

/// Response of `POST /batch`: one result per item, in the order of the items.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchAnswer {
    /// Outcome of each item.
    pub results: Vec<ItemOutcome>,
}

/// Outcome of one item of a batch.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all of them are of the large variant"
)]
pub enum ItemOutcome {
    /// The item took effect and is in the ledger.
    Done {
        /// Receipt of the entry.
        receipt: Receipt,
        /// The private side of the entry.
        private: PrivateFacts,
    },
    /// The item is refused permanently; nothing changed.
    Refused {
        /// Why the item was refused.
        code: RefusalCode,
    },
}

/// `POST /hold`: reserves money until it is captured, released or expired.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldMoney {
    /// The account whose money is reserved.
    pub from: Account,
    /// Asset to reserve.
    pub asset: Asset,
    /// Amount in minor units, more than zero; or `max`: all that is available when the ledger decides is reserved. An
    /// account of which nothing is available is refused (`insufficient_funds`), more than a limit allows too.
    pub amount_minor: DebitAmount,
    /// The next nonce of `from`: 1, 2, 3 ...; without one, the key alone makes
    /// the operation happen once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// When the remaining amount becomes available again.
    pub expires_at: Timestamp,
    #[serde(flatten)]
    pub details: Details,
}

/// `POST /hold/{id}/capture`: pays out of a hold; the rest stays reserved, unless the capture is final.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The credited account.
    pub to: Account,
    /// Amount in minor units, more than zero and at most the remaining amount of the hold; all that
    /// is left when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    /// Releases what the capture leaves.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub ends_hold: bool,
    #[serde(flatten)]
    pub details: Details,
}

/// `POST /tx/{txid}/reverse`: moves back what a transfer, capture or payout moved.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reverse {
    /// Amount in minor units, at most what earlier reversals left; all that is left when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    #[serde(flatten)]
    pub details: Details,
}

/// Body of requests that are otherwise specified by their path: what the caller says about the
/// operation. `{}` or no body says nothing.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remarks {
    #[serde(flatten)]
    pub details: Details,
}

/// A transaction: its receipt, and the private side of it as far as the caller may see it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    /// Public facts; they never change.
    pub receipt: Receipt,
    /// The caller who made the transaction sees all of it, others the reference if it is shared;
    /// absent when there is nothing to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<PrivateFacts>,
    /// What became of it, in `GET /tx/{txid}` alone; only receipt and private side never change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<TransactionNow>,
}

/// What became of a transaction.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransactionNow {
    /// How much of it is reversed, in minor units.
    pub reversed_minor: Amount,
    /// The reversals, oldest first, at most 100; the list may lag slightly behind the amount.
    pub reversals: Vec<TxId>,
}

/// Body of `POST /ops/{key}/abandon`: `{}`, or no body.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Response of `GET /hold/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Id of the hold: the txid of the entry that made it.
    pub hold: TxId,
    /// Whether the hold is open.
    pub state: HoldState,
    /// The account whose money is reserved.
    pub from: Account,
    /// Asset of the hold.
    pub asset: Asset,
    /// Amount reserved initially, in minor units.
    pub amount_minor: Amount,
    /// Amount still reserved, in minor units.
    pub remaining_minor: Amount,
    /// Sum of its captures, in minor units; absent when the hold has ended and the history does not have
    /// its end yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_minor: Option<Amount>,
    /// When the remaining amount becomes available again.
    pub expires_at: Timestamp,
}

/// Response of `GET /balance?account&asset&at`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// The account asked for.
    pub account: Account,
    /// The asset asked for.
    pub asset: Asset,
    /// Balance in minor units, including held amounts; 0 when the account is overdrawn.
    pub amount_minor: Amount,
    /// How far the account is overdrawn, in minor units.
    pub overdrawn_minor: Amount,
    /// What the next debit may take, in minor units: the balance and the credit limit, less the held
    /// amounts. In a balance of the past without the credit limit.
    pub available_minor: Amount,
    /// The ledger's time of this state.
    pub as_of: Timestamp,
    /// The ledger's sequence number of this state.
    pub as_of_seq: u64,
    /// Age of the state in milliseconds; 0 when it was read from the ledger for this request.
    pub stale_ms: u64,
    /// The last nonce used; the next debit with a nonce must carry `nonce + 1`. Absent in a balance of
    /// the past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
}

/// Response of `GET /budget`: what the caller's token may still spend, in minor units of any asset.
/// Of several limits, the one with least left.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Over the token's life (`ceiling.total`); absent without such a caveat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Allowance>,
    /// On this UTC day (`ceiling.daily`); absent without such a caveat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<Allowance>,
}

/// One limit of a token, and what is left of it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// The limit, in minor units.
    pub limit_minor: Amount,
    /// What is left of it, in minor units.
    pub left_minor: Amount,
}

/// Response of `GET /ops/{idempotency_key}`: the outcome of an operation.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all of them are of the large variant"
)]
pub enum Operation {
    /// The operation took effect and is in the ledger.
    Done {
        /// Receipt of the entry.
        receipt: Receipt,
        /// The private side of the entry.
        private: PrivateFacts,
    },
    /// The operation is refused permanently; nothing changed.
    Refused {
        /// Why it was refused.
        code: RefusalCode,
    },
    /// The outcome is not known: the operation is under way, or its answer was lost. Sending the same
    /// again commits the same operation; `POST /ops/{key}/abandon` gives it up.
    Open {},
    /// The operation was a batch; each item has its own outcome.
    Batch {
        /// One outcome per item, in the order of the items.
        results: Vec<ItemOutcome>,
    },
}

/// The wallet policy: which principal may perform which actions on which accounts. Signed, kind
/// `wallet`. Without a matching rule there is no access, reads included.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalletPolicy {
    /// Increases with every change; an older version is rejected.
    pub version: u64,
    /// Rules, tried in this order; the first of which every member matches decides.
    pub rules: Vec<WalletRule>,
}

/// One rule of the wallet policy.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalletRule {
    /// Tenant of the callers that the rule is for; `default` when absent.
    #[serde(default)]
    pub tenant: Tenant,
    /// Subject of the token: exact, or a prefix ending in `*`.
    pub principal: String,
    /// Clients whose tokens the rule is for, exact; when absent, those of any client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<String>>,
    /// Allowed actions.
    pub actions: Vec<WalletAction>,
    /// Accounts: exact, or a prefix ending in `*`. `{subject}` and `{client}` stand for those of the token, if they
    /// have 1 to 64 characters of `[A-Za-z0-9_-]`; `{subject}` needs `clients`. Decisive is the debited account of a transfer,
    /// the credited account of an issue, the account of the hold for a capture or release, the account
    /// that is debited now for a reversal.
    pub accounts: Vec<String>,
    /// Accounts that a transfer or capture may credit, written as in `accounts`; when absent, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payees: Option<Vec<String>>,
    /// Assets: exact, or `*`.
    pub assets: Vec<String>,
    /// Maximum of one operation, in minor units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_op: Option<Amount>,
    /// Maximum that may leave an account per UTC day, in minor units. Holds count on the day they are
    /// made; `issue` is not bound by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<Amount>,
}

/// Actions a rule can allow.
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
    /// Moving back what a transaction moved, out of the account that it credited.
    Reverse,
    /// Freezing accounts and setting what holds for them; a credit limit above zero needs `issue` too.
    /// With `*` as account also registering assets and reading trial balances.
    Admin,
}
