//! Request and answer types of the svc-wallet API (base `/v1`), and the wallet policy.
//!
//! Every POST carries an `Idempotency-Key` header; amounts are decimal strings of minor units.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ledger::{Memo, Receipt, RefusalCode};
use crate::values::{Account, Amount, Asset, Timestamp};

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
    /// How old the state is, in milliseconds; 0 when it was read for this answer.
    pub stale_ms: u64,
    /// The last nonce used; the next debit carries `nonce + 1`.
    pub nonce: u64,
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
    /// an issue the credited one.
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
    /// Reading balances, receipts and operations.
    Read,
    /// Creating money.
    Issue,
    /// Moving money.
    Transfer,
    /// Destroying money.
    Burn,
}
