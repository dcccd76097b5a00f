//! What an epoch pays, computed as `docs/formats/rewarder.md` describes it: plainly, row by row, without code of svc-rewarder.
//! Numbers of the world are small enough for 128 bits.

use std::collections::BTreeMap;

use ron_proto::rewarder::{RewardPolicy, RuleSet};

/// Amounts by account and metric.
pub type Usage = BTreeMap<String, BTreeMap<String, u128>>;

/// The payout table of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// In the order of their payment; the residual's owner is the last one, if it is paid.
    pub rows: Vec<(String, u128)>,
    pub pool: u128,
    /// Of the accounts with usage.
    pub paid: u128,
    pub residual: u128,
    pub recipients: u64,
}

impl Table {
    /// The sum of all rows.
    pub fn total(&self) -> u128 {
        self.rows.iter().map(|row| row.1).sum()
    }
}

/// The weight of an account, by category; the first is that of all metrics without a capped category.
type Weights = Vec<u128>;

pub fn table(policy: &RewardPolicy, usage: &Usage) -> Table {
    let pool = policy.pool.amount_minor.0;
    let weights: Vec<(&String, Weights)> = usage
        .iter()
        .map(|(account, amounts)| (account, weights(policy, account, amounts)))
        .collect();
    let (shares, split) = in_money(policy, &weights);
    let least = policy.min_payout_minor.0.max(1);
    let mut rows: Vec<(String, u128)> = split_by(policy, &shares, split)
        .into_iter()
        .filter(|(_, amount)| *amount >= least)
        .map(|(account, amount)| (account.clone(), amount))
        .collect();
    rows.sort();
    let paid = rows.iter().map(|row| row.1).sum();
    let (residual, recipients) = (pool - paid, rows.len() as u64);
    let owner = &policy.residual.owner;
    if residual > 0 && *owner != policy.pool.account {
        rows.push((owner.to_string(), residual));
    }
    Table {
        rows,
        pool,
        paid,
        residual,
        recipients,
    }
}

fn takes_part(policy: &RewardPolicy, account: &str, amounts: &BTreeMap<String, u128>) -> bool {
    let rules = &policy.eligibility;
    let prefixes = &rules.prefixes;
    let has = |metric: &str| amounts.get(metric).copied().unwrap_or(0);
    !rules.exclude.iter().any(|other| other.as_str() == account)
        && (prefixes.is_empty() || prefixes.iter().any(|p| account.starts_with(p.as_str())))
        && rules
            .minimum
            .iter()
            .all(|(metric, least)| has(metric.as_str()) >= least.0)
}

/// Weights over the common denominator of the policy's weights.
fn weights(policy: &RewardPolicy, account: &str, amounts: &BTreeMap<String, u128>) -> Weights {
    let capped: Vec<_> = policy.caps.category_minor.keys().collect();
    let mut weights = vec![0; capped.len() + 1];
    if !takes_part(policy, account, amounts) {
        return weights;
    }
    let below = policy.metrics.values().map(|rule| rule.weight);
    let common: u128 = below.map(|w| u128::from(w.denominator())).product();
    for (metric, rule) in &policy.metrics {
        let amount = amounts.get(metric.as_str()).copied().unwrap_or(0);
        let factor = common / u128::from(rule.weight.denominator());
        let factor = factor * u128::from(rule.weight.numerator());
        let category = rule.category.as_ref();
        let of = category.and_then(|own| capped.iter().position(|c| *c == own));
        weights[of.map_or(0, |at| at + 1)] += amount * factor;
    }
    weights
}

/// The accounts' weights after the caps of categories, as integers over one denominator, and the money that they split.
fn in_money<'a>(
    policy: &RewardPolicy,
    weights: &[(&'a String, Weights)],
) -> (Vec<(&'a String, u128)>, u128) {
    let caps: Vec<u128> = policy.caps.category_minor.values().map(|c| c.0).collect();
    let sum = |category: usize| weights.iter().map(|(_, of)| of[category]).sum::<u128>();
    let sums: Vec<u128> = (0..=caps.len()).map(sum).collect();
    let mut capped = vec![false; sums.len()];
    let mut left = policy.pool.amount_minor.0;
    let mut rest: u128 = sums.iter().sum();
    loop {
        let is_over = |at: &usize| {
            let open = !capped[*at] && sums[*at] > 0;
            open && sums[*at] * left > caps[at - 1] * rest
        };
        let over: Vec<usize> = (1..sums.len()).filter(is_over).collect();
        if over.is_empty() {
            break;
        }
        for at in over {
            capped[at] = true;
            rest -= sums[at];
            left -= caps[at - 1];
        }
    }
    // A category's unit of weight earns its money over its weight; the categories below their caps share what is left.
    let is_capped = |at: &usize| capped[*at];
    let of_capped: u128 = (0..sums.len())
        .filter(is_capped)
        .map(|at| sums[at])
        .product();
    let common = of_capped * rest.max(1);
    let unit = |at: usize| match (capped[at], rest) {
        (true, _) => common / sums[at] * caps[at - 1],
        (false, 0) => 0,
        (false, _) => common / rest * left,
    };
    let share = |of: &Weights| (0..of.len()).map(|at| of[at] * unit(at)).sum::<u128>();
    if !capped.contains(&true) {
        let plain = weights.iter().map(|(a, of)| (*a, of.iter().sum()));
        return (plain.collect(), policy.pool.amount_minor.0);
    }
    let pool = policy.pool.amount_minor.0 - if rest == 0 { left } else { 0 };
    (
        weights.iter().map(|(a, of)| (*a, share(of))).collect(),
        pool,
    )
}

/// Splits the money by weights: the account cap first, then by largest remainder.
fn split_by<'a>(
    policy: &RewardPolicy,
    weights: &[(&'a String, u128)],
    pool: u128,
) -> Vec<(&'a String, u128)> {
    let cap = policy.caps.account_minor.map(|cap| cap.0);
    let mut open: Vec<(&String, u128)> = weights.iter().filter(|w| w.1 > 0).copied().collect();
    let mut paid: Vec<(&String, u128)> = Vec::new();
    let mut left = pool;
    while let Some(cap) = cap {
        let all: u128 = open.iter().map(|w| w.1).sum();
        let (over, below) = open.iter().partition(|w| w.1 * left > cap * all);
        open = below;
        let over: Vec<(&String, u128)> = over;
        if over.is_empty() {
            break;
        }
        left -= cap * over.len() as u128;
        paid.extend(over.iter().map(|(account, _)| (*account, cap)));
    }
    let all: u128 = open.iter().map(|w| w.1).sum();
    if all == 0 {
        return paid;
    }
    let floor = |w: &(&'a String, u128)| (w.0, w.1 * left / all, w.1 * left % all);
    let mut shares: Vec<(&String, u128, u128)> = open.iter().map(floor).collect();
    let mut units = left - shares.iter().map(|share| share.1).sum::<u128>();
    if policy.rule_set == RuleSet::Floor1 {
        units = 0;
    }
    shares.sort_by(|a, b| b.2.cmp(&a.2).then(a.0.cmp(b.0)));
    for (at, (account, amount, _)) in shares.into_iter().enumerate() {
        let more = u128::from((at as u128) < units);
        paid.push((account, amount + more));
    }
    paid
}
