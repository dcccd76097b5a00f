//! A policy, validated and compiled for the metrics of one snapshot.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::ledger::{EPOCH_ASSETS_MAX, ESCROW_PREFIX, is_pool_of};
use ron_proto::rewarder::{
    APPROVALS_MAX, CATEGORIES_MAX, CHANGE_MAX_PERCENT, ELIGIBILITY_LIST_MAX, EventClass,
    METRICS_MAX, Metric, POLICY_FORMAT, PayRule, Ratio, ReleaseRule, RewardPolicy, RuleSet,
};
use ron_proto::values::{Amount, Tenant};

use super::Block;

/// Why a policy cannot be run, at all or on this snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The document contradicts itself, or asks for more than can be computed exactly.
    #[error("{0}")]
    Policy(String),
    /// The snapshot holds a metric that the policy does not name.
    #[error(
        "the policy names no metric \"{0}\", which the snapshot holds; add it (weight 0 is allowed)"
    )]
    UnknownMetric(Metric),
    /// The policy belongs to another tenant than the epoch.
    #[error("the policy belongs to tenant {0}, not to that of the epoch")]
    Tenant(Tenant),
    /// The snapshot gives a share to an account that cannot be paid as the policy says.
    #[error("{0}")]
    Payee(String),
}

/// One metric of the usage.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetricFactor {
    /// Numerator of the weight over the policy's common denominator.
    pub factor: u64,
    /// 0 without a capped category, otherwise 1 + the index of that category in `category_caps`.
    pub category: usize,
}

/// Why an account takes no part in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// The policy excludes it by name.
    Excluded,
    /// It begins with none of the prefixes.
    OtherPrefix,
    /// It has less of a metric than is demanded.
    BelowRequired,
}

/// The part of a policy that [`super::plan`] needs, in the usage's metric order.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) rule_set: RuleSet,
    pub(super) pool: u128,
    pub(super) cap: Option<u128>,
    pub(super) min_payout: u128,
    pub(super) metrics: Vec<MetricFactor>,
    /// Caps of the categories in minor units; `MetricFactor::category` counts from 1 into this
    /// list.
    pub(super) category_caps: Vec<u128>,
    /// Sorted accounts that take no part.
    exclude: Vec<Vec<u8>>,
    /// Sorted, and none a prefix of another. Empty admits every account.
    prefixes: Vec<Vec<u8>>,
    /// (metric, minimum amount); a metric that the usage does not have excludes every account.
    minimum: Vec<(Option<usize>, u128)>,
}

/// Checks a policy by itself. A snapshot may still hold metrics that the policy does not name.
pub fn check_policy(policy: &RewardPolicy) -> Result<(), RuleError> {
    let refuse = |why: String| Err(RuleError::Policy(why));
    if policy.also.len() >= EPOCH_ASSETS_MAX {
        return refuse(format!(
            "also may name at most {} further assets",
            EPOCH_ASSETS_MAX - 1
        ));
    }
    let mut assets = BTreeSet::from([policy.asset.folded()]);
    for (at, also) in policy.also.iter().enumerate() {
        if !assets.insert(also.asset.folded()) {
            return refuse(format!(
                "also[{at}].asset: the policy pays \"{}\" already; each asset has one pool",
                also.asset
            ));
        }
    }
    let mut each = policy.of_each_asset().into_iter();
    each.next().map_or(Ok(()), |own| check_asset(&own))?;
    for (at, further) in each.enumerate() {
        check_asset(&further).map_err(|error| RuleError::Policy(format!("also[{at}]: {error}")))?;
    }
    Ok(())
}

/// Checks a policy that pays one asset.
fn check_asset(policy: &RewardPolicy) -> Result<(), RuleError> {
    let refuse = |why: String| Err(RuleError::Policy(why));
    if policy.format != POLICY_FORMAT {
        return refuse(format!("format {} is not {POLICY_FORMAT}", policy.format));
    }
    if policy.version == 0 || policy.version > (1 << 53) {
        return refuse("version must be 1 to 2^53".into());
    }
    if policy.pool.amount_minor.is_zero() {
        return refuse("pool.amount_minor is zero; there is nothing to pay".into());
    }
    if !is_pool_of(&policy.tenant, &policy.pool.account) {
        return refuse(
            "pool.account must be a pool of the policy's tenant: pool:<tenant>/<name>".into(),
        );
    }
    if policy.residual.owner.as_str().starts_with(ESCROW_PREFIX) {
        return refuse("accounts under escrow: belong to the ledger".into());
    }
    if policy.metrics.is_empty() || policy.metrics.len() > METRICS_MAX {
        return refuse(format!("metrics must name 1 to {METRICS_MAX} metrics"));
    }
    if policy.classes_allowed.contains(&EventClass::AnalyticsOnly) {
        return refuse("classes_allowed may not hold analytics_only, which never pays".into());
    }
    for (metric, rule) in &policy.metrics {
        if !rule.weight.is_zero() && !policy.classes_allowed.contains(&rule.class) {
            return refuse(format!(
                "metric \"{metric}\" has a weight but its class is not in classes_allowed"
            ));
        }
    }
    if policy.metrics.values().all(|rule| rule.weight.is_zero()) {
        return refuse("every metric has weight 0; nobody could be paid".into());
    }
    check_bounds(policy)?;
    check_pay(policy)?;
    check_release(&policy.release)?;
    factors(policy).map(|_| ())
}

fn check_bounds(policy: &RewardPolicy) -> Result<(), RuleError> {
    let refuse = |why: String| Err(RuleError::Policy(why));
    if policy
        .caps
        .account_minor
        .is_some_and(ron_proto::Amount::is_zero)
    {
        return refuse("caps.account_minor is zero; leave it out or exclude accounts".into());
    }
    if policy.caps.category_minor.len() > CATEGORIES_MAX {
        return refuse(format!(
            "caps.category_minor may name at most {CATEGORIES_MAX} categories"
        ));
    }
    for category in policy.caps.category_minor.keys() {
        if !policy
            .metrics
            .values()
            .any(|rule| rule.category.as_ref() == Some(category))
        {
            return refuse(format!(
                "caps.category_minor names \"{category}\", which no metric has"
            ));
        }
    }
    let lists = &policy.eligibility;
    if lists.exclude.len() > ELIGIBILITY_LIST_MAX || lists.prefixes.len() > ELIGIBILITY_LIST_MAX {
        return refuse(format!(
            "eligibility lists hold at most {ELIGIBILITY_LIST_MAX} entries"
        ));
    }
    match lists
        .minimum
        .keys()
        .find(|metric| !policy.metrics.contains_key(*metric))
    {
        Some(metric) => refuse(format!(
            "eligibility.minimum names \"{metric}\", which is not among the metrics"
        )),
        None => Ok(()),
    }
}

/// With claims, the ledger must pay nobody: neither a residual's owner, nor the pool from which the
/// next epoch would pay the same money again.
fn check_pay(policy: &RewardPolicy) -> Result<(), RuleError> {
    let refuse = |why: &str| Err(RuleError::Policy(why.into()));
    match (policy.pay, &policy.claims_account) {
        (PayRule::Ledger, None) => Ok(()),
        (PayRule::Ledger, Some(_)) => {
            refuse("claims_account needs pay \"claims\"; the ledger pays every payee without it")
        }
        (PayRule::Claims, None) => {
            refuse("pay \"claims\" needs claims_account, which the total moves to")
        }
        (PayRule::Claims, Some(account)) if account.as_str().starts_with(ESCROW_PREFIX) => {
            refuse("accounts under escrow: belong to the ledger")
        }
        (PayRule::Claims, Some(account)) if *account == policy.pool.account => refuse(
            "claims_account is the pool itself, which would pay the claimed total a second time",
        ),
        (PayRule::Claims, Some(_)) if policy.pays_residual() => refuse(
            "with pay \"claims\" the residual stays in the pool: residual.owner must be pool.account",
        ),
        (PayRule::Claims, Some(_)) => Ok(()),
    }
}

/// Rules that no epoch could meet, or that say nothing, are mistakes.
fn check_release(release: &ReleaseRule) -> Result<(), RuleError> {
    let refuse = |why: String| Err(RuleError::Policy(why));
    if release.approvals > APPROVALS_MAX {
        return refuse(format!("release.approvals may be at most {APPROVALS_MAX}"));
    }
    let guards = &release.guards;
    let least = guards.recipients_min.unwrap_or(1).max(1);
    if guards.recipients_max.is_some_and(|most| most < least) {
        return refuse(
            "release.guards.recipients_max must be at least 1, and at least recipients_min".into(),
        );
    }
    if guards.account_max_minor.is_some_and(Amount::is_zero) {
        return refuse("release.guards.account_max_minor is zero; leave it out".into());
    }
    if guards
        .change_max_percent
        .is_some_and(|percent| percent > CHANGE_MAX_PERCENT)
    {
        return refuse(format!(
            "release.guards.change_max_percent may be at most {CHANGE_MAX_PERCENT}"
        ));
    }
    match guards.largest_ten_max_percent {
        Some(percent) if !(1..=100).contains(&percent) => {
            refuse("release.guards.largest_ten_max_percent must be 1 to 100".into())
        }
        _ => Ok(()),
    }
}

/// The weights over their least common denominator.
fn factors(policy: &RewardPolicy) -> Result<BTreeMap<&Metric, u64>, RuleError> {
    let too_fine = || {
        RuleError::Policy(
            "over their common denominator the metric weights need more than 64 bits; \
             use rounder weights"
                .into(),
        )
    };
    let mut common = 1_u128;
    for rule in policy
        .metrics
        .values()
        .filter(|rule| !rule.weight.is_zero())
    {
        let below = u128::from(rule.weight.denominator());
        common = (common / gcd(common, below))
            .checked_mul(below)
            .ok_or_else(too_fine)?;
    }
    let over_common = |weight: Ratio| {
        if weight.is_zero() {
            return Some(0);
        }
        (common / u128::from(weight.denominator())).checked_mul(u128::from(weight.numerator()))
    };
    policy
        .metrics
        .iter()
        .map(|(metric, rule)| {
            let factor = over_common(rule.weight).and_then(|factor| u64::try_from(factor).ok());
            Ok((metric, factor.ok_or_else(too_fine)?))
        })
        .collect()
}

const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Rules {
    /// Checks a policy against a snapshot that holds `metrics`, for each of its assets.
    pub fn check(policy: &RewardPolicy, metrics: &[Metric]) -> Result<(), RuleError> {
        check_policy(policy)?;
        let mut each = policy.of_each_asset().into_iter();
        each.try_for_each(|one| Self::new(&one, metrics).map(drop))
    }

    /// Compiles a policy that pays one asset for a snapshot that holds `metrics`, in that order.
    pub fn new(policy: &RewardPolicy, metrics: &[Metric]) -> Result<Self, RuleError> {
        if !policy.also.is_empty() {
            let why = "it pays several assets, each of which is computed by itself";
            return Err(RuleError::Policy(why.to_owned()));
        }
        check_asset(policy)?;
        let factors = factors(policy)?;
        let categories: Vec<_> = policy.caps.category_minor.keys().collect();
        let metric = |name: &Metric| {
            let rule = policy
                .metrics
                .get(name)
                .ok_or_else(|| RuleError::UnknownMetric(name.clone()))?;
            let capped = rule
                .category
                .as_ref()
                .and_then(|of| categories.iter().position(|c| *c == of));
            Ok(MetricFactor {
                factor: factors.get(name).copied().unwrap_or(0),
                category: capped.map_or(0, |at| at + 1),
            })
        };
        let minimum = policy
            .eligibility
            .minimum
            .iter()
            .map(|(name, least)| (metrics.iter().position(|metric| metric == name), least.0));
        let bytes = |account: &ron_proto::values::Account| account.as_str().as_bytes().to_vec();
        Ok(Self {
            rule_set: policy.rule_set,
            pool: policy.pool.amount_minor.0,
            cap: policy.caps.account_minor.map(|cap| cap.0),
            min_payout: policy.min_payout_minor.0,
            metrics: metrics
                .iter()
                .map(metric)
                .collect::<Result<_, RuleError>>()?,
            category_caps: policy
                .caps
                .category_minor
                .values()
                .map(|cap| cap.0)
                .collect(),
            exclude: policy.eligibility.exclude.iter().map(bytes).collect(),
            prefixes: outermost(policy.eligibility.prefixes.iter().map(bytes).collect()),
            minimum: minimum.collect(),
        })
    }

    /// What the epoch may pay, in minor units.
    pub const fn pool(&self) -> u128 {
        self.pool
    }

    pub(super) fn factors(&self) -> impl Iterator<Item = u64> + '_ {
        self.metrics.iter().map(|metric| metric.factor)
    }

    /// True if the account of a block's row is eligible.
    pub(super) fn eligible(&self, block: &Block<'_>, at: usize) -> bool {
        if self.exclude.is_empty() && self.prefixes.is_empty() && self.minimum.is_empty() {
            return true;
        }
        self.barred(block, at).is_none()
    }

    /// The rule by which the account of a block's row takes no part.
    pub(super) fn barred(&self, block: &Block<'_>, at: usize) -> Option<Barred> {
        let account = block.account(at);
        if self
            .exclude
            .binary_search_by(|other| other.as_slice().cmp(account))
            .is_ok()
        {
            return Some(Barred::Excluded);
        }
        if !self.prefixes.is_empty() {
            // No prefix is a prefix of another, so only the last prefix not above the account can
            // match.
            let above = self
                .prefixes
                .partition_point(|prefix| prefix.as_slice() <= account);
            if above == 0 || !account.starts_with(&self.prefixes[above - 1]) {
                return Some(Barred::OtherPrefix);
            }
        }
        let has_least = |(metric, least): &(Option<usize>, u128)| {
            metric.map_or(0, |metric| block.amount(at, metric)) >= *least
        };
        (!self.minimum.iter().all(has_least)).then_some(Barred::BelowRequired)
    }
}

/// The sorted prefixes without those that a shorter prefix already covers.
fn outermost(sorted: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut kept: Vec<Vec<u8>> = Vec::with_capacity(sorted.len());
    for prefix in sorted {
        if !kept.last().is_some_and(|last| prefix.starts_with(last)) {
            kept.push(prefix);
        }
    }
    kept
}
