//! Documents about the state: accounts, holds, epochs, the head of the log, and why a ledger is
//! closed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AccountClass, AssetTitle, Sides, TxId};
use crate::Problem;
use crate::values::{Account, Amount, Asset, ContentId, EpochId, SignedAmount, Tenant, Timestamp};

/// `GET /v1/ledger/accounts/{a}`. An account that was never used is returned as empty, not as 404.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountDoc {
    /// The account asked for.
    pub account: Account,
    /// The last nonce used. A debit that carries one carries `nonce + 1`.
    pub nonce: u64,
    /// Whether every debit has to carry a nonce.
    pub require_nonce: bool,
    /// The sides that are frozen.
    pub frozen: Sides,
    /// Whether the account is closed: it refuses debits and credits.
    pub closed: bool,
    /// Label by which the trial balance sums; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<AccountClass>,
    /// Balances, sorted by asset; assets that the account never had and that no limits are set for are absent.
    pub balances: Vec<BalanceDoc>,
    /// Open holds on the account, oldest first, at most 1,000.
    pub holds: Vec<HoldDoc>,
    /// Sequence number up to which the state is exact.
    pub seq: u64,
    /// The ledger's time of that entry.
    pub ts: Timestamp,
}

/// Balance of an account in one asset, in minor units. Of `amount_minor` and `overdrawn_minor` one
/// is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BalanceDoc {
    pub asset: Asset,
    /// Balance, including held amounts.
    pub amount_minor: Amount,
    /// How far the account is overdrawn.
    pub overdrawn_minor: Amount,
    /// Reserved by open holds.
    pub held_minor: Amount,
    /// What the next debit may take: the balance and the credit limit, less the held amounts.
    pub available_minor: Amount,
    /// Sum of all that was ever credited.
    pub credits_minor: Amount,
    /// Sum of all that was ever debited.
    pub debits_minor: Amount,
    /// How far the account may be overdrawn.
    pub credit_limit_minor: Amount,
    /// Maximum balance; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_balance_minor: Option<Amount>,
}

/// `GET /v1/ledger/assets/{asset}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssetDoc {
    pub asset: Asset,
    /// Decimal places between a minor unit and the unit that people write; absent for an asset that
    /// is not registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u8>,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<AssetTitle>,
    /// The ledger's last sequence number that counts.
    pub seq: u64,
    /// The ledger's time of that entry.
    pub ts: Timestamp,
}

/// An asset in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListedAsset {
    pub asset: Asset,
    /// Decimal places between a minor unit and the unit that people write; absent for an asset that
    /// is not registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u8>,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<AssetTitle>,
}

/// `GET /v1/ledger/assets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssetPage {
    /// Assets that are registered or were ever used, sorted by name without regard to case.
    pub assets: Vec<ListedAsset>,
    /// Value of `after` for the next page; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Asset>,
    /// The ledger's last sequence number that counts.
    pub seq: u64,
}

/// `GET /v1/ledger/assets/{asset}/trial-balance?at`: credits less debits are the supply. In a trial
/// balance of the past, accounts are in the classes of then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrialBalance {
    pub asset: Asset,
    /// What was issued and not burned, in minor units.
    pub supply_minor: Amount,
    /// Sum of all issues, in minor units.
    pub issued_minor: Amount,
    /// Sum of all burns, in minor units.
    pub burned_minor: Amount,
    /// Sum of all that accounts were credited, in minor units.
    pub credits_minor: Amount,
    /// Sum of all that accounts were debited, in minor units.
    pub debits_minor: Amount,
    /// By class, sorted by name; accounts without one come first.
    pub classes: Vec<ClassTotal>,
    /// The ledger's last sequence number that counts.
    pub seq: u64,
    /// The ledger's time of that entry.
    pub ts: Timestamp,
}

/// Sums over the accounts of one class, in minor units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassTotal {
    /// The class; absent for accounts without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<AccountClass>,
    /// Number of accounts that ever had the asset.
    pub accounts: u64,
    pub credits_minor: Amount,
    pub debits_minor: Amount,
    /// Credits less debits.
    pub balance_minor: SignedAmount,
}

/// `GET /v1/ledger/budgets/{id}`: what was spent under a budget. One that was never used reads as
/// empty, as does one whose token has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetDoc {
    /// Minor units spent in all.
    pub spent_minor: Amount,
    /// Minor units spent on the UTC day that starts at `day`, the last one with spending.
    pub day_minor: Amount,
    pub day: Timestamp,
}

/// `GET /v1/ledger/tx/{txid}/reversals`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReversalsDoc {
    /// How much of the entry is reversed, in minor units.
    pub reversed_minor: Amount,
    /// The reversals, oldest first, at most 100; from the projection, which may lag.
    pub reversals: Vec<TxId>,
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

impl Head {
    /// Whether the node that gave it is a standby, which may be behind the active one.
    pub fn is_of_standby(&self) -> bool {
        let cause = self.closed.as_ref().map(|closed| closed.cause);
        cause == Some(ClosedCause::NotActive)
    }
}

/// Why a ledger is closed for writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Kind of the failure.
    pub cause: ClosedCause,
    /// What failed, and what the operator must do.
    pub detail: String,
    /// URL of the node that writes, when this one is a standby and knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
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
    /// The machine's date was wrong when the ledger started.
    DateUnknown,
    /// Another node writes; this one is a standby.
    NotActive,
    /// The engine of the log lost or changed what it had acknowledged.
    EngineLostData,
}

/// Code of the response (503) to a write while the ledger is closed, given by the ledger or by the
/// wallet. `details` contains the reason, a [`Closed`].
pub const LEDGER_CLOSED: &str = "ledger_closed";
/// Code of the response (503) of a standby to a write; `details.active` is the URL of the node that writes, if it is known.
pub const NOT_ACTIVE: &str = "not_active";
/// Code of a read that the history is not far enough for; the ledger itself is well.
pub const HISTORY_BEHIND: &str = "history_behind";

impl Closed {
    /// The response to a write that was rejected; nothing was done.
    pub fn problem(&self) -> Problem {
        if self.cause == ClosedCause::NotActive {
            let title = "This node of the ledger is a standby";
            return Problem::new(503, NOT_ACTIVE, title, self.detail.clone())
                .with_details(serde_json::json!({"active": self.active}))
                .retryable(true)
                .with_retry_after(1);
        }
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
            Self::DiskFull => {
                "free space on the ledger's disk; if it is not ready again by itself then, restart the ledger"
            }
            Self::DiskFailed => {
                "repair or replace the ledger's disk, check the log with `ron ledger verify`, then restart the ledger"
            }
            Self::Broken => {
                "keep the ledger's files as they are, check the log with `ron ledger verify`, and report it"
            }
            Self::DateUnknown => {
                "correct the date of the ledger's host, or run `ron clock accept` if it is right"
            }
            Self::NotActive => "send writes to the node that is active",
            Self::EngineLostData => {
                "keep the data directories of all nodes as they are, and find out what the database lost: nothing is written meanwhile"
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

/// `GET /v1/ledger/epochs/{tenant}/{epoch}`: settlement of one asset of an epoch.
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
    /// The other assets that the epoch pays, in the order in which they were opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_assets: Vec<Asset>,
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
