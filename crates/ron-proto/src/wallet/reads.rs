//! What happened to accounts: histories, statements, events, webhooks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ledger::{EntryKind, Memo, Metadata, Reference, RefusalCode, StatementTime, TxId};
use crate::values::{Account, Amount, Asset, SignedAmount, Timestamp};

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
    /// Balance before the first entry, in minor units; with a minus sign when overdrawn.
    pub opening_minor: SignedAmount,
    /// Sum of what was credited, in minor units.
    pub credits_minor: Amount,
    /// Sum of what was debited, in minor units.
    pub debits_minor: Amount,
    /// Balance after the last entry, in minor units.
    pub closing_minor: SignedAmount,
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
    /// Balance of the account after the entry, in minor units, with a minus sign when overdrawn; only
    /// in answers about one account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance_minor: Option<SignedAmount>,
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
