//! Documents and API types of svc-rewarder (base `/rewarder`): the reward policy, the run manifest
//! `run.json`, payouts, their proofs, and the state of a run.
//!
//! The related byte formats (snapshot, payout table, Merkle-sum tree, run key and commitment) are
//! described in `docs/formats/rewarder.md`.

mod assets;
mod claims;
mod correction;

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

pub use assets::{AccountPayouts, AlsoPaid, AlsoRule, AssetPayout, AssetTotals};
pub use claims::{ClaimHash, ClaimsRoot, PayRule};
pub use correction::{CorrectedPayee, Correction, CorrectionPage};

/// Format version of the policy document.
pub const POLICY_FORMAT: u32 = 1;
/// Format version of the manifest document of an epoch whose payees the ledger pays.
pub const MANIFEST_LEDGER: u32 = 1;
/// Format version of the manifest document of an epoch with a claim tree.
pub const MANIFEST_CLAIMS: u32 = 2;
/// Format version of the manifest document of an epoch that corrects another.
pub const MANIFEST_CORRECTION: u32 = 3;
/// Format version of the manifest document of an epoch that pays several assets.
pub const MANIFEST_ASSETS: u32 = 4;
/// The newest format version of the manifest document.
pub const MANIFEST_VERSION: u32 = MANIFEST_ASSETS;
/// Maximum number of metrics in one policy or snapshot.
pub const METRICS_MAX: usize = 64;
/// Maximum number of capped categories in one policy.
pub const CATEGORIES_MAX: usize = 8;
/// Maximum number of accounts or prefixes in each list of [`Eligibility`].
pub const ELIGIBILITY_LIST_MAX: usize = 10_000;
/// Maximum number of payouts on one page of `GET /rewarder/epochs/{id}/payouts`.
pub const PAYOUT_PAGE_MAX: u64 = 1_000;
/// Maximum number of epochs on one page of `GET /rewarder/epochs`.
pub const EPOCH_PAGE_MAX: usize = 500;
/// The `kind` under which reward policies are signed.
pub const POLICY_KIND: &str = "reward";

/// Name of a measured quantity, such as `collateral`; same alphabet as a purpose.
pub type Metric = Purpose;
/// Name of a sequence of policy versions, each of which replaces the previous one.
pub type PolicyId = Purpose;
/// Name of the period in which usage was measured, such as `2026-11`; same alphabet as an epoch id.
pub type UsagePeriod = EpochId;

/// An exact non-negative rational number in lowest terms: `"3/2"`, or just `"2"` for a denominator
/// of 1. Both parts fit 64 bits. Each number has one spelling, so that a policy has one hash.
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

    /// The numerator.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The denominator; never zero.
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

/// Evidence class of a measured event. Only classes allowed by the policy may carry weight;
/// `analytics_only` never does.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EventClass {
    /// Payment documented by a receipt.
    EconomicReceipt,
    /// Metered use of a resource.
    Metering,
    /// Use that carries its own proof.
    ProofEligible,
    /// Paid from an advertiser's budget.
    AdBudgeted,
    /// Counted for statistics; never rewarded.
    AnalyticsOnly,
}

/// Weight and class of one metric.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricRule {
    /// Weight units per unit of the metric; zero for a metric that is known but not rewarded.
    pub weight: Ratio,
    /// The evidence class of the metric's events.
    pub class: EventClass,
    /// The capped category the metric belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Purpose>,
}

/// Source and size of the pool.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRule {
    /// The account that funds every epoch of this policy, below `pool:<tenant>/`.
    pub account: Account,
    /// Maximum paid in one epoch, in minor units.
    pub amount_minor: Amount,
}

/// Upper bounds. The amount above a bound is redistributed to the other accounts in proportion to
/// their weights (water-filling); what no account may receive remains in the residual.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapRule {
    /// Maximum per account and epoch, in minor units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_minor: Option<Amount>,
    /// Maximum that each category's metrics may contribute from the pool, in minor units, before
    /// account caps and rounding.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub category_minor: BTreeMap<Purpose, Amount>,
}

/// Which accounts participate. Other accounts have weight zero.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eligibility {
    /// Accounts that never participate.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exclude: BTreeSet<Account>,
    /// Unless empty: an account must begin with one of these prefixes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub prefixes: BTreeSet<Account>,
    /// Minimum amount of each named metric that an account must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub minimum: BTreeMap<Metric, Amount>,
}

/// Owner of the residual: the unpaid part that results from caps, minimum payouts and epochs
/// without activity (rounding leaves none).
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResidualRule {
    /// Owner of the residual. For the pool account, the residual stays there; any other account
    /// receives it as the last payout of the epoch.
    pub owner: Account,
}

/// Bounds of what an epoch may pay without being looked at. A computed epoch beyond one of them is in
/// the state `review` and pays only once it is approved.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardRails {
    /// Fewest recipients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients_min: Option<u64>,
    /// Most recipients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients_max: Option<u64>,
    /// Most that one recipient gets, in minor units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_max_minor: Option<Amount>,
    /// How far the sum of the payouts may be from that of the epoch before, in percent of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_max_percent: Option<u32>,
    /// Most recipients that the epoch before did not pay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_recipients_max: Option<u64>,
    /// Most of the payouts that the ten largest recipients get together, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_ten_max_percent: Option<u32>,
}

/// What has to happen before a computed epoch pays.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRule {
    /// Number of principals, other than the one that asked for the epoch, that have to approve its
    /// manifest; at most 16. An epoch beyond a guard rail needs at least one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub approvals: u32,
    /// The guard rails.
    #[serde(default, skip_serializing_if = "is_default")]
    pub guards: GuardRails,
}

/// Maximum of [`ReleaseRule::approvals`].
pub const APPROVALS_MAX: u32 = 16;
/// Maximum of [`GuardRails::change_max_percent`].
pub const CHANGE_MAX_PERCENT: u32 = 100_000;

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde wants"
)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The supported rule sets. Old ones remain supported permanently.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
pub enum RuleSet {
    /// Largest remainder (Hamilton) over rational weights; ties are resolved by account bytes,
    /// ascending.
    #[serde(rename = "hamilton/1")]
    Hamilton1,
    /// The floor of each exact share; the remaining units stay in the residual. Predecessor of
    /// `hamilton/1`.
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

/// A reward policy. Its canonical JSON (RFC 8785) is hashed and signed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardPolicy {
    /// Format version, [`POLICY_FORMAT`].
    pub format: u32,
    /// Tenant of the policy: no other tenant can see or use it.
    pub tenant: Tenant,
    /// Name of the policy.
    pub id: PolicyId,
    /// Increases with each change; an older version never replaces a newer one.
    pub version: u64,
    /// Algorithm that computes the shares.
    pub rule_set: RuleSet,
    /// Asset that is paid.
    pub asset: Asset,
    /// Source and size of the pool.
    pub pool: PoolRule,
    /// Every metric that may appear in a snapshot, with its weight.
    pub metrics: BTreeMap<Metric, MetricRule>,
    /// Evidence classes that may carry weight.
    pub classes_allowed: BTreeSet<EventClass>,
    /// Minimum payout, in minor units; smaller payouts go to the residual.
    #[serde(default)]
    pub min_payout_minor: Amount,
    /// Upper bounds per account and category.
    #[serde(default)]
    pub caps: CapRule,
    /// Which accounts participate.
    #[serde(default)]
    pub eligibility: Eligibility,
    /// Owner of the residual.
    pub residual: ResidualRule,
    /// What has to happen before a computed epoch pays.
    #[serde(default, skip_serializing_if = "is_default")]
    pub release: ReleaseRule,
    /// Who pays the payees.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pay: PayRule,
    /// The account that the total moves to, with `pay: "claims"` and only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_account: Option<Account>,
    /// Further assets that the same epoch pays, each from its own pool; at most 15.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<AlsoRule>,
}

impl RewardPolicy {
    /// Whether a residual is paid to its owner; otherwise it stays in the pool.
    pub fn pays_residual(&self) -> bool {
        self.residual.owner != self.pool.account
    }
}

/// Body of `PUT` and response of `GET /rewarder/policy/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignedPolicy {
    /// The policy document; a [`RewardPolicy`].
    pub policy: serde_json::Value,
    /// The detached signature over its canonical JSON, kind `reward`.
    pub signature: PolicySig,
}

/// Response of `PUT /rewarder/policy/{id}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyStored {
    /// Name of the policy.
    pub id: PolicyId,
    /// Version of the policy.
    pub version: u64,
    /// Content id of the policy's canonical JSON; required in compute requests.
    pub hash: ContentId,
}

/// Interpretation of the rows of an import.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportKind {
    /// One row per account and metric; a second one is rejected.
    #[default]
    Totals,
    /// Any number of rows per account and metric, which are added up.
    Events,
}

/// Totals of one metric in a snapshot.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricTotal {
    /// Name of the metric.
    pub metric: Metric,
    /// Number of accounts with more than zero of it.
    pub accounts: u64,
    /// Sum over all accounts.
    pub sum: Amount,
}

/// Response of `PUT` and `POST` of a snapshot, and of `GET` with `Accept: application/json`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotInfo {
    /// Content id of the sealed file.
    pub cid: ContentId,
    /// The period in which usage was measured, if the import named it. The same usage in two
    /// periods has two content ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<UsagePeriod>,
    /// Number of accounts.
    pub accounts: u64,
    /// Length of the sealed file in bytes.
    pub bytes: u64,
    /// The metrics of the snapshot, in byte order of their names.
    pub metrics: Vec<MetricTotal>,
}

/// Body of `POST /rewarder/epochs/{id}/compute`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComputeRequest {
    /// Content id of the sealed snapshot to reward.
    pub snapshot: ContentId,
    /// Name of the policy to apply.
    pub policy_id: PolicyId,
    /// Content id of the policy; must be that of a stored, signed version.
    pub policy_hash: ContentId,
    /// Compute and keep the manifest, but never pay; the epoch remains available.
    #[serde(default)]
    pub dry_run: bool,
    /// The settled epoch that this one corrects. Such a run pays the differences alone, and is settled
    /// only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
}

/// State of a run.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Durable, waiting for a worker.
    Queued,
    /// A worker is computing it.
    Computing,
    /// The manifest is on disk; nothing is paid yet.
    Sealed,
    /// Payouts are being written to the ledger.
    Settling,
    /// Everything is paid and the epoch is closed in the ledger.
    Settled,
    /// Settlement waits for the given reason and is retried automatically.
    Held,
    /// An invariant was violated. Nothing is paid.
    Quarantined,
    /// Cannot be computed or settled as requested; this run paid nothing.
    Failed,
    /// A withdrawal is on its way to the ledger, which decides whether it holds.
    Withdrawing,
    /// Withdrawn: the ledger never opens the epoch with this manifest.
    Withdrawn,
    /// Computed, and beyond a guard rail of the policy: pays only once it is approved.
    Review,
}

impl RunState {
    /// Every state, in the order a run passes through them.
    pub const ALL: [Self; 11] = [
        Self::Queued,
        Self::Computing,
        Self::Sealed,
        Self::Settling,
        Self::Settled,
        Self::Held,
        Self::Quarantined,
        Self::Failed,
        Self::Withdrawing,
        Self::Withdrawn,
        Self::Review,
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
            Self::Withdrawing => "withdrawing",
            Self::Withdrawn => "withdrawn",
            Self::Review => "review",
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
    /// What happened and what to do about it.
    pub detail: String,
}

/// Progress of a run. Counters of finished stages keep their final values.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunProgress {
    /// Accounts in the snapshot; 0 until it is opened.
    pub rows_total: u64,
    /// Accounts processed so far.
    pub rows_read: u64,
    /// Shares computed so far.
    pub shares_computed: u64,
    /// Payouts to write to the ledger; 0 until the run is sealed.
    pub intents_total: u64,
    /// Payouts the ledger has acknowledged.
    pub intents_settled: u64,
    /// Estimated milliseconds until settlement ends; present while settling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<u64>,
}

/// Ledger sequence numbers of an epoch's settlement.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettlementSeqs {
    /// Sequence number of `epoch_open`; the first of several assets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_seq: Option<u64>,
    /// Sequence number of `epoch_close`; the last of several assets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_seq: Option<u64>,
    /// Sequence number of `epoch_void`, which withdrew the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void_seq: Option<u64>,
}

/// Maximum length of the reason of a withdrawal, in bytes.
pub const WITHDRAWAL_REASON_MAX: usize = 500;

/// Body of `POST /rewarder/epochs/{id}/withdraw`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WithdrawRequest {
    /// Commitment of the manifest to withdraw, which must be that of the epoch's run.
    pub commitment: ContentId,
    /// Why, for people: 1 to 500 bytes without control characters.
    pub reason: String,
}

/// A withdrawal of an epoch's manifest.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Withdrawal {
    /// The principal that asked for it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When it was asked for.
    pub at: Timestamp,
}

/// Body of `POST /rewarder/epochs/{id}/approve`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveRequest {
    /// Commitment of the manifest that is approved, which must be that of the epoch's run.
    pub commitment: ContentId,
}

/// One principal's approval of a manifest.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The principal that approved.
    pub by: String,
    /// Commitment of the manifest that it approved.
    pub commitment: ContentId,
    /// When it approved.
    pub at: Timestamp,
}

/// What a computed epoch waits for before it pays, and what it has.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRelease {
    /// Number of approvals that the manifest needs.
    pub needed: u32,
    /// The approvals that it has.
    pub approvals: Vec<Approval>,
    /// The guard rails that it is beyond, each with a stable code.
    pub breaches: Vec<RunReason>,
}

impl RunRelease {
    /// True if the manifest has the approvals that it needs.
    pub const fn is_approved(&self) -> bool {
        self.approvals.len() >= self.needed as usize
    }

    /// True for a manifest that nothing lets pay: it has no recipients.
    pub fn never_pays(&self) -> bool {
        self.breaches
            .iter()
            .any(|breach| breach.code == NO_RECIPIENTS)
    }
}

/// Code of the breach by an epoch without recipients, which never pays.
pub const NO_RECIPIENTS: &str = "no_recipients";

/// Response of `GET /rewarder/epochs/{id}` and of what changes a run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochRun {
    /// Tenant of the epoch.
    pub tenant: Tenant,
    /// Id of the epoch.
    pub epoch_id: EpochId,
    /// State of the run.
    pub state: RunState,
    /// Reason of `held`, `quarantined`, `failed` and `review`, and why a withdrawal waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<RunReason>,
    /// True if this run never pays.
    pub dry_run: bool,
    /// True if settlement was requested, by configuration or by a caller.
    pub settles: bool,
    /// Content id of the snapshot it rewards.
    pub snapshot: ContentId,
    /// Name of the policy it applies.
    pub policy_id: PolicyId,
    /// Content id of the policy.
    pub policy_hash: ContentId,
    /// The epoch that this one corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
    /// Identifies the combination of these inputs and the epoch.
    pub run_key: ContentId,
    /// The manifest's commitment; present once computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commitment: Option<ContentId>,
    /// The manifest's totals; present once computed. Of an epoch that pays several assets, those of the
    /// first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<RunTotals>,
    /// The totals of every asset, in the order of the policy; present once computed. (Absent of an epoch of one asset that an
    /// older version has computed.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assets: Vec<AssetTotals>,
    /// The principal that asked for the run.
    pub asked_by: String,
    /// What it waits for before it pays; present once computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<RunRelease>,
    /// Progress of the run.
    pub progress: RunProgress,
    /// Ledger sequence numbers of the settlement.
    pub settlement: SettlementSeqs,
    /// The withdrawal that was asked for; it holds once the state is `withdrawn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawal: Option<Withdrawal>,
    /// Number of settlement attempts since the service started.
    pub attempts: u32,
    /// When the request was accepted.
    pub created_at: Timestamp,
    /// When the state last changed.
    pub updated_at: Timestamp,
}

/// Response of `GET /rewarder/epochs`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EpochList {
    /// Runs, in byte order of their epoch ids.
    pub epochs: Vec<EpochRun>,
    /// Value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<EpochId>,
}

/// Inputs of a run, by content id.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunInputs {
    /// Content id of the sealed snapshot.
    pub snapshot: ContentId,
    /// Number of accounts in the snapshot.
    pub accounts: u64,
    /// Name of the policy.
    pub policy_id: PolicyId,
    /// Version of the policy.
    pub policy_version: u64,
    /// Content id of the policy's canonical JSON.
    pub policy_hash: ContentId,
}

/// The sums of a run, in minor units. `payout_minor + residual_minor = pool_minor`, always. Of a
/// correction, what it pays: its pool is the sum of the differences, and it has no residual.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunTotals {
    /// Maximum the epoch could pay.
    pub pool_minor: Amount,
    /// Sum of the payouts to accounts of the snapshot.
    pub payout_minor: Amount,
    /// Residual, which belongs to its owner.
    pub residual_minor: Amount,
    /// Number of accounts that receive a payout.
    pub recipients: u64,
}

/// Root of the Merkle-sum tree over the payout table.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutsRoot {
    /// Root hash; covers the count, the total and the top node.
    pub root: ContentId,
    /// Rows of the table: the recipients, and the residual's row if it is paid out.
    pub count: u64,
    /// Sum of the rows, in minor units: the amount the ledger moves for this epoch.
    pub total_minor: Amount,
}

/// Whether the payouts of a run may be made.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Computed, and every invariant holds.
    Ok,
    /// An invariant was violated; no payouts exist.
    Quarantined,
}

/// The manifest, `run.json`. `commitment` covers every field except `status` and itself; a
/// quarantined run has no `payouts`, so the status cannot be changed unnoticed.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunManifest {
    /// Format version: 1, 2 with `claims`, 3 with `correction`, 4 with `also`.
    pub version: u32,
    /// Tenant of the epoch.
    pub tenant: Tenant,
    /// Id of the epoch.
    pub epoch_id: EpochId,
    /// The earlier epoch that this one corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjusts: Option<EpochId>,
    /// Identifies the combination of inputs and epoch.
    pub run_key: ContentId,
    /// Inputs of the run.
    pub inputs: RunInputs,
    /// Algorithm that computed the shares.
    pub rule_set: RuleSet,
    /// Asset that is paid.
    pub asset: Asset,
    /// Account that funds the epoch.
    pub pool_account: Account,
    /// Owner of the residual.
    pub residual_owner: Account,
    /// Sums of the run, in minor units.
    pub totals: RunTotals,
    /// Root of the payout table; null for a quarantined run.
    pub payouts: Option<PayoutsRoot>,
    /// The claim tree, for an epoch whose payees claim their payouts elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<ClaimsRoot>,
    /// What a correction compares: what is due by its inputs, and what was paid before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
    /// The further assets that the epoch pays. Each has a manifest of its own; the members of this one are
    /// of the policy's own asset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<AlsoPaid>,
    /// Whether the payouts may be made.
    pub status: RunStatus,
    /// Hash over the canonical JSON of all fields above except `status`.
    pub commitment: ContentId,
}

impl RunManifest {
    /// The residual that is due to its owner in a correction; zero where the pool keeps it.
    pub fn residual_due(&self) -> Amount {
        match &self.correction {
            Some(correction) if self.residual_owner != self.pool_account => {
                correction.due.residual_minor
            }
            _ => Amount::ZERO,
        }
    }
}

/// The manifest's signature, `run.sig.json`; stored beside the manifest. A KMS digest signature
/// over the commitment.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestSig {
    /// Signature algorithm, `ed25519`.
    pub alg: String,
    /// Key version that signed, `tenant/purpose/alg/uuid#vN`.
    pub key: String,
    /// The signature, base64url without padding.
    pub value: String,
    /// Leaf of the KMS audit log that records the signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<LogReceipt>,
}

/// Response of `GET /rewarder/epochs/{id}/signatures`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestSignatures {
    /// Commitment of the manifest.
    pub commitment: ContentId,
    /// Signatures over it; empty until the manifest is signed, and for a dry run.
    pub signatures: Vec<ManifestSig>,
}

/// Ledger state read when the run was sealed, `ledger.json`. Neither run key nor commitment depends
/// on it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerEvidence {
    /// Account that funds the epoch.
    pub account: Account,
    /// Asset of the balance.
    pub asset: Asset,
    /// Balance of the account, in minor units.
    pub balance_minor: Amount,
    /// The ledger's last sequence number.
    pub head_seq: u64,
    /// When the balance was read.
    pub at: Timestamp,
}

/// One row of the payout table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payout {
    /// Index of the row in the table and of the payout in the ledger's settlement.
    pub index: u64,
    /// Account that receives the payout.
    pub account: Account,
    /// Amount in minor units; never zero.
    pub amount_minor: Amount,
}

/// Response of `GET /rewarder/epochs/{id}/payouts`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutPage {
    /// Rows in table order.
    pub payouts: Vec<Payout>,
    /// Number of rows of the whole table.
    pub count: u64,
    /// Value of `from` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One sibling node on the path from a payout to the root.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProofStep {
    /// Side of the sibling.
    pub side: ProofSide,
    /// Hash of the sibling.
    pub hash: ContentId,
    /// Sum of the payouts below the sibling, in minor units.
    pub sum_minor: Amount,
}

/// Side of a sibling in the Merkle-sum tree.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProofSide {
    /// The sibling comes first.
    Left,
    /// The sibling comes second.
    Right,
}

/// Proof that an account's payout is in a manifest and that the payouts add up to its total. It
/// needs nothing else than the public key that manifests are signed with. Response of
/// `GET /rewarder/epochs/{id}/proof/{account}` and output of `ron rewarder prove`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutProof {
    /// The proven row of the payout table.
    pub payout: Payout,
    /// Siblings from the row up to the child of the top node.
    pub path: Vec<ProofStep>,
    /// The manifest, whose root the path must result in.
    pub manifest: RunManifest,
    /// Signatures over the manifest's commitment; empty until it is signed.
    pub signatures: Vec<ManifestSig>,
    /// Siblings from the payee's leaf up to the root of the claim tree, if the epoch has one: the
    /// proof that a claim contract takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim: Vec<ClaimHash>,
}

/// Why an account gets no share of an epoch.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnpaidReason {
    /// The snapshot has no usage of the account.
    NoUsage,
    /// The policy excludes the account by name.
    Excluded,
    /// The account begins with none of the policy's prefixes.
    OtherPrefix,
    /// The account has less of a metric than the policy demands.
    BelowRequired,
    /// Its usage is of the class `analytics_only`, which never pays.
    AnalyticsOnly,
    /// All metrics that it used have weight 0.
    NoWeight,
    /// A cap of 0 on the category, or nothing left beside capped categories.
    CategoryCapped,
    /// Its share is less than one minor unit, and it got none of the units that were left over.
    BelowOne,
    /// Its share is below the minimum payout and went to the residual.
    BelowMinimum,
}

/// One metric of an account's usage, as the policy weighs it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainedMetric {
    /// Name of the metric.
    pub metric: Metric,
    /// What the snapshot has of it for the account.
    pub amount: Amount,
    /// Weight units per unit of the metric.
    pub weight: Ratio,
    /// The evidence class of the metric's events.
    pub class: EventClass,
    /// The capped category that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Purpose>,
    /// True if the cap of its category bit in this epoch, so that it weighs less than the policy's
    /// weight says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub category_capped: bool,
}

/// Whether an account got one of the minor units that the floors of all shares left over.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemainderUnit {
    /// Its remainder was not among the largest.
    No,
    /// Its remainder was among the largest.
    Yes,
    /// Its remainder was equal to the smallest of the largest, where the byte order of accounts
    /// decides, and its share is below the minimum payout either way.
    Tied,
}

/// Why an account got what it got: `floor(weight x split_minor / split_weight)`, or the account cap, and
/// at most one unit more. Recomputed from the sealed inputs. Response of
/// `GET /rewarder/epochs/{id}/explain/{account}` and output of `ron rewarder explain`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayoutExplanation {
    /// Tenant of the epoch.
    pub tenant: Tenant,
    /// Id of the epoch.
    pub epoch_id: EpochId,
    /// Commitment of the manifest.
    pub commitment: ContentId,
    /// The account.
    pub account: Account,
    /// Asset that is paid.
    pub asset: Asset,
    /// What its share pays, in minor units; 0 if nothing. In a correction, what its share comes to: what
    /// is paid of it is in `correction`.
    pub paid_minor: Amount,
    /// Why nothing, if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpaid: Option<UnpaidReason>,
    /// The residual of the epoch, in minor units, where this account is paid it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual_minor: Option<Amount>,
    /// Its usage, by metric; metrics of which it has nothing are left out.
    pub metrics: Vec<ExplainedMetric>,
    /// The weight of its usage, a whole number in decimal: the metrics over a common denominator, as
    /// category caps shape them. 0 for an account that takes no part.
    pub weight: String,
    /// The weight of all accounts that no account cap holds, in the same unit.
    pub split_weight: String,
    /// The minor units that those accounts split.
    pub split_minor: Amount,
    /// True if the account cap bit: it gets the cap, and the excess went to others.
    pub account_capped: bool,
    /// Its share rounded down, in minor units.
    pub floor_minor: Amount,
    /// Whether it got one of the units left over.
    pub remainder_unit: RemainderUnit,
    /// The minimum payout of the policy, in minor units.
    pub min_payout_minor: Amount,
    /// In a correction: what was paid before, what is due, and the difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<CorrectedPayee>,
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
