//! Request and response types of the svc-wallet API (base `/v1`), and the wallet policy.
//!
//! Every POST requires an `Idempotency-Key` header; amounts are decimal strings of minor units.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::ledger::HoldState;
use crate::ledger::{
    Details, EntryKind, HoldRef, Memo, Metadata, PrivateFacts, Receipt, Reference, RefusalCode,
    StatementTime, TxId,
};
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
    /// Balance in minor units, including held amounts.
    pub amount_minor: Amount,
    /// Balance less the held amounts, in minor units.
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

/// Response of `GET /account/{a}/history`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryPage {
    /// The account asked for.
    pub account: Account,
    /// Newest first. A page may have fewer entries than asked for, also none, and still be followed
    /// by others.
    pub entries: Vec<HistoryEntry>,
    /// Value of `before` for older entries; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<u64>,
    /// Value of `after` for newer entries, also for those to come.
    pub newer: u64,
    /// The ledger's last sequence number when the page was made; the history may lag slightly
    /// behind it.
    pub head: u64,
}

/// Response of `GET /tx?reference`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FoundTransactions {
    /// Entries made with the reference, newest first: the caller's own, and those of its tenant that
    /// debited an account it may read.
    pub entries: Vec<HistoryEntry>,
    /// Value of `before` for older entries; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<u64>,
    /// Value of `after` for newer entries, also for those to come.
    pub newer: u64,
}

/// Response of `GET /account/{a}/statement`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The account asked for.
    pub account: Account,
    /// The asset asked for.
    pub asset: Asset,
    /// First time of the statement.
    pub from: Timestamp,
    /// End of the statement, not part of it.
    pub until: Timestamp,
    /// By which time entries belong to the statement.
    pub by: StatementTime,
    /// Balance before the first entry, in minor units.
    pub opening_minor: Amount,
    /// Sum of what was credited, in minor units.
    pub credits_minor: Amount,
    /// Sum of what was debited, in minor units.
    pub debits_minor: Amount,
    /// Balance after the last entry, in minor units.
    pub closing_minor: Amount,
    /// Entries that moved money, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Value of `after` for the entries that follow; absent when there are none. The sums are of the
    /// whole range on every page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The ledger's last sequence number that the statement knows.
    pub as_of_seq: u64,
}

/// Response of `GET /events?account&after&limit&wait`: what happened to an account, without gaps.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountEvents {
    /// The account asked for.
    pub account: Account,
    /// Entries that took effect on the account with `seq > after`, oldest first.
    pub events: Vec<HistoryEntry>,
    /// Value of `after` for the next request; events may follow at once when there are any.
    pub next: u64,
}

/// Body of a webhook: one entry that took effect on an account of the endpoint.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookMessage {
    /// `entry.` and the kind of the entry, such as `entry.transfer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The ledger's time of the entry.
    pub timestamp: Timestamp,
    /// The entry as readers of the account see it.
    pub data: HistoryEntry,
}

/// Response of `GET /webhooks`: the endpoints of the caller's tenant.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    /// In the order of the configuration.
    pub webhooks: Vec<WebhookDoc>,
}

/// A webhook endpoint and how far it is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookDoc {
    /// Name in the configuration.
    pub name: String,
    /// Where its messages are sent.
    pub url: String,
    /// Accounts whose entries it gets: exact, or a prefix ending in `*`.
    pub accounts: Vec<String>,
    /// Whether messages are sent, repeated after failures, or no longer sent.
    pub state: WebhookState,
    /// The cursor: entries up to this sequence were delivered or do not concern the endpoint.
    pub after: u64,
    /// Entries of the ledger that it has yet to look at, as last seen.
    pub behind: u64,
    /// Time of the first failure since the last delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// The newest failure since the last delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// State of a webhook endpoint.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Its messages are delivered as they arise.
    Active,
    /// The newest message was not accepted and is sent again.
    Failing,
    /// Nothing is sent until `POST /webhooks/{name}/resume`.
    Disabled,
}

/// Body of `POST /webhooks/{name}/resume`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeWebhook {
    /// New cursor: entries after this sequence are delivered, also those delivered before. The old
    /// cursor stays when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// One entry that concerned an account; refused ones are shown only to their makers.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryEntry {
    /// Index of the entry's leaf in the ledger's log.
    pub seq: u64,
    /// The ledger's time of the entry.
    pub ts: Timestamp,
    /// Kind of the entry.
    pub op: EntryKind,
    /// Transaction id; present when the entry took effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txid: Option<TxId>,
    /// Why it was refused; absent when it took effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusalCode>,
    /// The debited account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Account>,
    /// The credited account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Account>,
    /// Asset of the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset: Option<Asset>,
    /// Amount moved, reserved or made available again, in minor units (the requested amount when
    /// refused).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<Amount>,
    /// Balance of the account after the entry, in minor units; only in answers about one account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance_minor: Option<Amount>,
    /// Nonce of the entry; shown to readers of the debited account in the maker's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// The hold that was captured, released or expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<TxId>,
    /// The batch the entry belongs to: the transaction id of its first item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<TxId>,
    /// The transaction that the entry reverses, whole or in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverses: Option<TxId>,
    /// The maker's reference; shown to payees too, unless the maker keeps it to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// Text given by the maker; shown like the nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
    /// Members given by the maker; shown like the nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The maker's time for statements; shown like the nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_at: Option<Timestamp>,
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
    /// Rules; the first that matches tenant, principal, action, account and asset decides.
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
    /// Allowed actions.
    pub actions: Vec<WalletAction>,
    /// Accounts: exact, or a prefix ending in `*`. Decisive is the debited account of a transfer,
    /// the credited account of an issue, the account of the hold for a capture or release, the account
    /// that is debited now for a reversal.
    pub accounts: Vec<String>,
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
    /// Freezing and unfreezing accounts.
    Admin,
}
