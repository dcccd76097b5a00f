//! Corrections: epochs that pay what an earlier epoch should have paid and did not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RunTotals;
use crate::values::{Account, Amount, ContentId};

/// What a correction compares, in its manifest. With `due` the sum of what is due,
/// `due + overpaid_minor = paid_minor + payout_minor` of the totals, always: nothing is taken back.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// Commitment of the manifest of the epoch that is corrected.
    pub of: ContentId,
    /// Content id of `correction.bin`, which has for every account what is due and what was paid.
    pub accounts: ContentId,
    /// The sums of the epoch as it is due by the inputs of the correction. A residual that the pool does
    /// not keep is due to its owner.
    pub due: RunTotals,
    /// What the corrected epoch and its earlier corrections have paid, in minor units.
    pub paid_minor: Amount,
    /// What accounts were paid above what is due to them, in minor units.
    pub overpaid_minor: Amount,
    /// Number of accounts that were paid more than is due to them.
    pub overpaid: u64,
}

/// What a correction means for one account.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectedPayee {
    /// The account.
    pub account: Account,
    /// What it was paid before, in minor units.
    pub before_minor: Amount,
    /// What is due to it by the inputs of the correction, in minor units.
    pub due_minor: Amount,
    /// What the correction pays it, in minor units: what is due above what it was paid.
    pub payout_minor: Amount,
    /// What it was paid above what is due, in minor units. It is not taken back.
    pub overpaid_minor: Amount,
}

impl CorrectedPayee {
    /// The comparison of what was paid with what is due.
    pub const fn of(account: Account, before: u128, due: u128) -> Self {
        Self {
            account,
            before_minor: Amount(before),
            due_minor: Amount(due),
            payout_minor: Amount(due.saturating_sub(before)),
            overpaid_minor: Amount(before.saturating_sub(due)),
        }
    }
}

/// A page of the accounts of a correction.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectionPage {
    /// In the order of their names.
    pub accounts: Vec<CorrectedPayee>,
    /// Number of accounts of the whole correction.
    pub count: u64,
    /// Value of `from` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}
