//! Documents and API types of svc-rewarder (base `/rewarder`): the reward policy, the run
//! manifest `run.json`, payouts, their proofs, and the state of a run.
//!
//! The byte formats beside these documents (snapshot, payout table, Merkle-sum tree, run key and
//! commitment) are described in `docs/formats/rewarder.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::PolicySig;
use crate::receipt::LogReceipt;
use crate::values::{
    Account, Amount, Asset, ContentId, EpochId, Purpose, Tenant, Timestamp, ValueError,
    string_value,
};

/// Version of the policy document this crate describes.
pub const POLICY_FORMAT: u32 = 1;
/// Version of the manifest document this crate describes.
pub const MANIFEST_VERSION: u32 = 1;
/// Most metrics in one policy or one snapshot.
pub const METRICS_MAX: usize = 64;
/// Most capped categories in one policy.
pub const CATEGORIES_MAX: usize = 8;
/// Most accounts or prefixes in each list of [`Eligibility`].
pub const ELIGIBILITY_LIST_MAX: usize = 10_000;
/// Most payouts on one page of `GET /rewarder/epochs/{id}/payouts`.
pub const PAYOUT_PAGE_MAX: u64 = 1_000;
/// Most epochs on one page of `GET /rewarder/epochs`.
pub const EPOCH_PAGE_MAX: usize = 500;
/// The `kind` under which reward policies are signed.
pub const POLICY_KIND: &str = "reward";

/// Names one thing that is measured, such as `collateral`: the alphabet of a purpose.
pub type Metric = Purpose;
/// Names a line of policies of which each version replaces the last.
pub type PolicyId = Purpose;
/// Names the time that usage was measured in, such as `2026-11`: the alphabet of an epoch's id.
pub type UsagePeriod = EpochId;

/// An exact non-negative rational in lowest terms: `"3/2"`, or `"2"` when the denominator is 1.
/// Both parts fit 64 bits. One number has one spelling, so one policy has one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// Zero.
    pub const ZERO: Self = Self {
        numerator: 0,
        denominator: 1,
    };
    /// One.
    pub const ONE: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// `numerator / denominator` in lowest terms; `None` when the denominator is zero.
    pub fn new(numerator: u64, denominator: u64) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let common = gcd(numerator, denominator);
        Some(Self {
            numerator: numerator / common,
            denominator: denominator / common,
        })
    }

    /// The part above the line.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The part below the line; never zero.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// True for zero.
    pub const fn is_zero(self) -> bool {
        self.numerator == 0
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl FromStr for Ratio {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = |why: &str| Err(ValueError::new("ratio", why));
        let (above, below) = match text.split_once('/') {
            Some((above, below)) => (above, Some(below)),
            None => (text, None),
        };
        let whole = |part: &str| -> Option<u64> {
            let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            let padded = part.len() > 1 && part.starts_with('0');
            if plain && !padded {
                part.parse().ok()
            } else {
                None
            }
        };
        let Some(numerator) = whole(above) else {
            return refuse("write digits, or digits/digits, each below 2^64, no sign, no fraction");
        };
        let denominator = match below.map(whole) {
            None => 1,
            Some(Some(0)) => return refuse("its denominator is zero"),
            Some(Some(1)) => return refuse("leave out a denominator of 1"),
            Some(Some(denominator)) => denominator,
            Some(None) => {
                return refuse("its denominator must be digits below 2^64, without leading zeros");
            }
        };
        if gcd(numerator, denominator) != 1 {
            return refuse("it is not in lowest terms");
        }
        Ok(Self {
            numerator,
            denominator,
        })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denominator == 1 {
            write!(out, "{}", self.numerator)
        } else {
            write!(out, "{}/{}", self.numerator, self.denominator)
        }
    }
}

string_value!(Ratio, "ratio", {
    "type": "string",
    "maxLength": 41,
    "pattern": "^(0|[1-9][0-9]{0,19})(/[1-9][0-9]{0,19})?$"
});

/// What a measured event is worth as evidence. Only classes that a policy allows may carry
/// weight, and `analytics_only` never does.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventClass {
    /// Somebody paid and a receipt says so.
    EconomicReceipt,
    /// Metered use of a resource.
    Metering,
    /// Use that carries a proof of its own.
    ProofEligible,
    /// Paid from an advertiser's budget.
    AdBudgeted,
    /// Counted for statistics; never paid.
    AnalyticsOnly,
}

/// How one metric counts.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricRule {
    /// Weight units per unit of the metric; zero means known and not paid.
    pub weight: Ratio,
    /// The evidence class of the metric's events.
    pub class: EventClass,
    /// The capped category the metric belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Purpose>,
}

/// Where a pool comes from.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRule {
    /// The account that funds every epoch of this policy, below `pool:<tenant>/`.
    pub account: Account,
    /// What one epoch may pay, in minor units.
    pub amount_minor: Amount,
}

/// Upper bounds. A bound that bites moves the excess to the others in proportion to their
/// weights (water-filling); what no one may take stays in the residual.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapRule {
    /// Most that one account may get in an epoch, in minor units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_minor: Option<Amount>,
    /// Most of the pool that each category's metrics may bring in, in minor units, before
    /// account caps and rounding.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub category_minor: BTreeMap<Purpose, Amount>,
}

/// Who takes part. An account that does not weighs nothing.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eligibility {
    /// Accounts that are never paid.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exclude: BTreeSet<Account>,
    /// If not empty: an account must begin with one of these.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub prefixes: BTreeSet<Account>,
    /// Least amount of each named metric that an account must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub minimum: BTreeMap<Metric, Amount>,
}

/// Who keeps what is not paid: rounding never leaves any, caps, minimum payouts and epochs
/// without activity do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResidualRule {
    /// The owner. If it is the pool account, the residual simply stays there; any other account
    /// is paid the residual as the last payout of the epoch.
    pub owner: Account,
}

/// The rule sets that can be run. Old ones stay runnable for ever.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
pub enum RuleSet {
    /// Largest remainder (Hamilton) over rational weights; ties by account bytes, ascending.
    #[serde(rename = "hamilton/1")]
    Hamilton1,
    /// The floor of each exact share; the units left over stay in the residual. The plainer way
    /// that came before `hamilton/1`.
    #[serde(rename = "floor/1")]
    Floor1,
}

impl RuleSet {
    /// Every rule set.
    pub const ALL: [Self; 2] = [Self::Hamilton1, Self::Floor1];

    /// The name that enters the run key.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hamilton1 => "hamilton/1",
            Self::Floor1 => "floor/1",
        }
    }
}

/// A reward policy. Its canonical JSON (RFC 8785) is what is hashed and signed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardPolicy {
    /// [`POLICY_FORMAT`].
    pub format: u32,
    /// Whose policy it is: no other tenant sees it or pays by it.
    pub tenant: Tenant,
    /// The line of policies this one belongs to.
    pub id: PolicyId,
    /// Grows by each change; an older version never replaces a newer one.
    pub version: u64,
    /// How shares are computed.
    pub rule_set: RuleSet,
    /// What is paid.
    pub asset: Asset,
    /// Where it comes from, and how much of it.
    pub pool: PoolRule,
    /// Every metric that may appear in a snapshot, with its weight.
    pub metrics: BTreeMap<Metric, MetricRule>,
    /// Classes that may carry weight.
    pub classes_allowed: BTreeSet<EventClass>,
    /// Payouts below this go to the residual, in minor units.
    #[serde(default)]
    pub min_payout_minor: Amount,
    /// Upper bounds.
    #[serde(default)]
    pub caps: CapRule,
    /// Who takes part.
    #[serde(default)]
    pub eligibility: Eligibility,
    /// Who keeps what is not paid.
    pub residual: ResidualRule,
}

/// Body of `PUT` and answer of `GET /rewarder/policy/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignedPolicy {
    /// The policy document; a [`RewardPolicy`].
    pub policy: serde_json::Value,
    /// The detached signature over its canonical JSON, kind `reward`.
    pub signature: PolicySig,
}

/// Answer of `PUT /rewarder/policy/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyStored {
    /// The policy's id.
    pub id: PolicyId,
    /// Its version.
    pub version: u64,
    /// Content id of its canonical JSON; what a compute request must name.
    pub hash: ContentId,
}

/// How the rows of an import are read.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportKind {
    /// One row per account and metric; a second one is refused.
    #[default]
    Totals,
    /// Any number of rows per account and metric; they are added up.
    Events,
}

/// What a snapshot holds of one metric.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricTotal {
    /// The metric.
    pub metric: Metric,
    /// How many accounts have more than zero of it.
    pub accounts: u64,
    /// Their sum.
    pub sum: Amount,
}

/// Answer of `PUT` and `POST` of a snapshot, and of `GET` with `Accept: application/json`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotInfo {
    /// Content id of the sealed file.
    pub cid: ContentId,
    /// The time the usage was measured in, where the import named it. The same usage of two periods has two content ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<UsagePeriod>,
    /// Number of accounts.
    pub accounts: u64,
    /// Length of the sealed file in bytes.
    pub bytes: u64,
    /// The metrics it holds, in byte order of their names.
    pub metrics: Vec<MetricTotal>,
}

/// Body of `POST /rewarder/epochs/{id}/compute`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComputeRequest {
    /// The sealed usage to pay for.
    pub snapshot: ContentId,
    /// The policy to pay by.
    pub policy_id: PolicyId,
    /// Its hash; must be the hash of a stored, signed version.
    pub policy_hash: ContentId,
    /// Compute and keep the manifest, but never pay, and leave the epoch free.
    #[serde(default)]
    pub dry_run: bool,
    /// The epoch that this one corrects, and whose usage it may therefore pay again. Such a run is settled only when that
    /// is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
}

/// Where a run is.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Durable, waiting for a worker.
    Queued,
    /// A worker has it.
    Computing,
    /// The manifest is on disk; nothing is paid yet.
    Sealed,
    /// Payouts are being written to the ledger.
    Settling,
    /// Everything is paid and the epoch is closed in the ledger.
    Settled,
    /// Settlement waits for the reason given and is tried again by itself.
    Held,
    /// An invariant broke. Nothing is paid.
    Quarantined,
    /// Cannot be computed or settled as asked; nothing was paid by this run.
    Failed,
}

impl RunState {
    /// Every state, in the order a run passes them.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Computing,
        Self::Sealed,
        Self::Settling,
        Self::Settled,
        Self::Held,
        Self::Quarantined,
        Self::Failed,
    ];

    /// The name used on the wire, in metrics and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Computing => "computing",
            Self::Sealed => "sealed",
            Self::Settling => "settling",
            Self::Settled => "settled",
            Self::Held => "held",
            Self::Quarantined => "quarantined",
            Self::Failed => "failed",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// Why a run is held, quarantined or failed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunReason {
    /// A stable code, such as `pool_short`, `ledger_unavailable` or `epoch_conflict`.
    pub code: String,
    /// What happened and what to do.
    pub detail: String,
}

/// How far a run is. Counters of finished stages keep their final values.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunProgress {
    /// Accounts in the snapshot; 0 until it is opened.
    pub rows_total: u64,
    /// Accounts weighed so far.
    pub rows_read: u64,
    /// Shares computed so far.
    pub shares_computed: u64,
    /// Payouts to write to the ledger; 0 until the run is sealed.
    pub intents_total: u64,
    /// Payouts the ledger has acknowledged.
    pub intents_settled: u64,
    /// Milliseconds until settlement ends at the rate so far, while settling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<u64>,
}

/// What the ledger said about an epoch's settlement.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettlementSeqs {
    /// Ledger sequence of `epoch_open`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_seq: Option<u64>,
    /// Ledger sequence of `epoch_close`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_seq: Option<u64>,
}

/// Answer of `GET /rewarder/epochs/{id}` and of compute and settle.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochRun {
    /// Whose epoch it is.
    pub tenant: Tenant,
    /// Which epoch.
    pub epoch_id: EpochId,
    /// Where the run is.
    pub state: RunState,
    /// Why, for `held`, `quarantined` and `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<RunReason>,
    /// True if this run never pays.
    pub dry_run: bool,
    /// True if settlement was asked for, by configuration or by a caller.
    pub settles: bool,
    /// The usage it pays for.
    pub snapshot: ContentId,
    /// The policy it pays by.
    pub policy_id: PolicyId,
    /// The policy's hash.
    pub policy_hash: ContentId,
    /// The epoch that it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
    /// Names these inputs for this epoch.
    pub run_key: ContentId,
    /// The manifest's commitment, once computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commitment: Option<ContentId>,
    /// The manifest's totals, once computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<RunTotals>,
    /// How far it is.
    pub progress: RunProgress,
    /// What the ledger said.
    pub settlement: SettlementSeqs,
    /// How often settlement was tried since the service started.
    pub attempts: u32,
    /// When the request was accepted.
    pub created_at: Timestamp,
    /// When the state last changed.
    pub updated_at: Timestamp,
}

/// Answer of `GET /rewarder/epochs`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochList {
    /// In byte order of their ids.
    pub epochs: Vec<EpochRun>,
    /// Pass as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<EpochId>,
}

/// What went into a run, by content.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunInputs {
    /// Content id of the sealed snapshot.
    pub snapshot: ContentId,
    /// Number of accounts in it.
    pub accounts: u64,
    /// The policy's id.
    pub policy_id: PolicyId,
    /// The policy's version.
    pub policy_version: u64,
    /// Content id of the policy's canonical JSON.
    pub policy_hash: ContentId,
}

/// The sums of a run, in minor units. `payout_minor + residual_minor = pool_minor`, always.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunTotals {
    /// What the epoch could pay.
    pub pool_minor: Amount,
    /// What the accounts of the snapshot get.
    pub payout_minor: Amount,
    /// What is left for the residual's owner.
    pub residual_minor: Amount,
    /// How many accounts get something.
    pub recipients: u64,
}

/// Root of the Merkle-sum tree over the payout table.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutsRoot {
    /// Binds the count, the total and the top node.
    pub root: ContentId,
    /// Rows of the table: the recipients, and the residual's row if it is paid out.
    pub count: u64,
    /// Their sum: what the ledger moves for this epoch, in minor units.
    pub total_minor: Amount,
}

/// Whether a run may be paid.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Computed, and every invariant held.
    Ok,
    /// An invariant broke; no payouts exist.
    Quarantined,
}

/// The manifest, `run.json`. `commitment` covers every field but `status` and itself; a
/// quarantined run is the one without `payouts`, so the status cannot be turned around either.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunManifest {
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// Whose epoch it is.
    pub tenant: Tenant,
    /// Which epoch.
    pub epoch_id: EpochId,
    /// The earlier epoch that it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
    /// Names the inputs for this epoch.
    pub run_key: ContentId,
    /// What went in.
    pub inputs: RunInputs,
    /// How shares were computed.
    pub rule_set: RuleSet,
    /// What is paid.
    pub asset: Asset,
    /// Which account funds it.
    pub pool_account: Account,
    /// Who keeps the residual.
    pub residual_owner: Account,
    /// The sums.
    pub totals: RunTotals,
    /// The payouts; null for a quarantined run.
    pub payouts: Option<PayoutsRoot>,
    /// Whether it may be paid.
    pub status: RunStatus,
    /// Hash over the canonical JSON of all fields above but `status`.
    pub commitment: ContentId,
}

/// The manifest's signature, `run.sig.json`; lives beside the manifest, never in it. Signed are
/// the bytes of a KMS digest signature over the commitment.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestSig {
    /// `ed25519`.
    pub alg: String,
    /// Key and version, `tenant/purpose/alg/uuid#vN`.
    pub key: String,
    /// The signature, base64url without padding.
    pub value: String,
    /// Where the KMS logged the signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<LogReceipt>,
}

/// Evidence taken from the ledger when the run was sealed, `ledger.json`. Neither run key nor
/// commitment depends on it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerEvidence {
    /// The funding account.
    pub account: Account,
    /// The asset.
    pub asset: Asset,
    /// Its balance then, in minor units.
    pub balance_minor: Amount,
    /// The ledger's sequence then.
    pub head_seq: u64,
    /// When it was read.
    pub at: Timestamp,
}

/// One row of the payout table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payout {
    /// Position in the table and in the ledger's settlement of the epoch.
    pub index: u64,
    /// Who gets it.
    pub account: Account,
    /// How much, in minor units; never zero.
    pub amount_minor: Amount,
}

/// Answer of `GET /rewarder/epochs/{id}/payouts`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutPage {
    /// Rows in table order.
    pub payouts: Vec<Payout>,
    /// Rows of the whole table.
    pub count: u64,
    /// Pass as `from` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One neighbour on the way from a payout to the root.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProofStep {
    /// Which side the neighbour is on.
    pub side: ProofSide,
    /// The neighbour's hash.
    pub hash: ContentId,
    /// What the payouts under it add up to, in minor units.
    pub sum_minor: Amount,
}

/// A side of a Merkle-sum node.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProofSide {
    /// The neighbour comes first.
    Left,
    /// The neighbour comes second.
    Right,
}

/// Proof that an account's payout is in the manifest and that all payouts together make its
/// total. Answer of `GET /rewarder/epochs/{id}/proof/{account}` and of `ron rewarder prove`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutProof {
    /// Whose epoch it is.
    pub tenant: Tenant,
    /// Which epoch.
    pub epoch_id: EpochId,
    /// The manifest this proof belongs to.
    pub commitment: ContentId,
    /// The proven row.
    pub payout: Payout,
    /// From the row's neighbour up to the top node's child.
    pub path: Vec<ProofStep>,
    /// The root the path must end in.
    pub payouts: PayoutsRoot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_one_spelling() {
        for (text, want) in [
            ("0", Some((0, 1))),
            ("1", Some((1, 1))),
            ("3/2", Some((3, 2))),
            ("18446744073709551615", Some((u64::MAX, 1))),
            ("1/18446744073709551615", Some((1, u64::MAX))),
            ("", None),
            ("/2", None),
            ("2/", None),
            ("2/4", None),
            ("0/2", None),
            ("2/1", None),
            ("1/0", None),
            ("01", None),
            ("1/02", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1/2/3", None),
            ("18446744073709551616", None),
        ] {
            let got = text
                .parse::<Ratio>()
                .ok()
                .map(|r| (r.numerator(), r.denominator()));
            assert_eq!(got, want, "{text:?}");
            if want.is_some() {
                assert_eq!(
                    text.parse::<Ratio>().expect("just parsed").to_string(),
                    text
                );
            }
        }
    }

    #[test]
    fn states_are_named_once_and_as_on_the_wire() {
        for state in RunState::ALL {
            assert_eq!(RunState::parse(state.as_str()), Some(state));
            let wire = serde_json::to_string(&state).expect("a unit variant is a string");
            assert_eq!(wire, format!("\"{}\"", state.as_str()));
        }
        assert_eq!(RunState::parse("paid"), None);
    }
}
