//! Parts of entries: the key with its owner, what a caller says, the budgets of its token, the facts of a reversed entry, and
//! what a request names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BudgetId, EntryKey, Memo, Metadata, PrincipalName, Reference};
use crate::values::{Account, Amount, Asset, Tenant, Timestamp};

/// What a caller says about an entry. No rule of the ledger depends on it. In the log it is private:
/// the leaf holds only salted hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Details {
    /// Text stored with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memo: Option<Memo>,
    /// The caller's own reference (an order, an invoice); need not be unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// Members stored with the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The time at which statements show the entry; no decision depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_at: Option<Timestamp>,
    /// Whether the payee's copy of the receipt shows the reference.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub share_reference: bool,
}

const fn yes() -> bool {
    true
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_yes(b: &bool) -> bool {
    *b
}

impl Default for Details {
    fn default() -> Self {
        Self {
            memo: None,
            reference: None,
            metadata: None,
            effective_at: None,
            share_reference: true,
        }
    }
}

/// What the ledger found of an entry that is reversed. `from` is debited by the reversal: the account
/// that the entry credited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Original {
    pub from: Account,
    pub to: Account,
    pub asset: Asset,
    /// What the entry moved, in minor units.
    pub amount_minor: Amount,
}

/// A budget that an entry counts against: what a token, and all that was made from it, may spend.
/// Money of every asset counts, in minor units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBudget {
    pub id: BudgetId,
    /// Maximum in all (`ceiling.total`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Amount>,
    /// Maximum per UTC day (`ceiling.daily`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<Amount>,
    /// When the token has ended; the ledger forgets the budget afterwards.
    pub until: Timestamp,
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
    pub(super) fn money(
        from: Option<Account>,
        to: Option<Account>,
        asset: Asset,
        amount: Amount,
    ) -> Self {
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
