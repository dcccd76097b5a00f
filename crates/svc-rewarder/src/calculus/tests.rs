//! The calculus against plain references, and its laws as properties.

use proptest::prelude::*;
use ron_proto::rewarder::{Metric, RewardPolicy};
use ruint::aliases::U512;
use serde_json::json;

use super::*;

/// Rows of (account, amounts), in any order.
#[derive(Clone, Debug)]
struct Plain(Vec<(String, Vec<u128>)>);

impl Plain {
    fn sorted(mut self) -> Self {
        self.0.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        self
    }
}

impl Usage for Plain {
    fn accounts(&self) -> usize {
        self.0.len()
    }
    fn width(&self) -> usize {
        16 // no name here is longer
    }
    fn block(&self, first: usize, rows: usize) -> Result<Block<'_>, Stop> {
        let mut bytes = Vec::new();
        for (account, amounts) in &self.0[first..first + rows] {
            let end = bytes.len() + self.width();
            bytes.extend_from_slice(account.as_bytes());
            bytes.resize(end, 0);
            amounts
                .iter()
                .for_each(|amount| bytes.extend_from_slice(&amount.to_be_bytes()));
        }
        let metrics = self.0[first].1.len();
        Ok(Block::new(first, bytes.into(), self.width(), metrics))
    }
}

/// The complete result of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    shares: Vec<Share>,
    sums: Sums,
}

fn compute(usage: &Plain, rules: &Rules, watch: &impl Watch) -> Result<Outcome, Stop> {
    let mut shares = Vec::new();
    let sums = plan(usage, rules, watch)?.visit_shares(usage, watch, |blocks| {
        for (share, account) in blocks.iter().flat_map(ShareBlock::shares) {
            assert_eq!(account, usage.0[share.row as usize].0.as_bytes());
            shares.push(share);
        }
        Ok(())
    })?;
    Ok(Outcome { shares, sums })
}

fn one_metric(amounts: &[u128]) -> Plain {
    let rows = amounts
        .iter()
        .enumerate()
        .map(|(row, amount)| (format!("a{row:05}"), vec![*amount]));
    Plain(rows.collect())
}

fn policy(pool: u128, edit: &serde_json::Value) -> RewardPolicy {
    let mut document = json!({
        "format": 1, "tenant": "default", "id": "test", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/test", "amount_minor": pool.to_string()},
        "metrics": {"m": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/test"}
    });
    for (key, value) in edit.as_object().expect("an object of replaced fields") {
        document[key] = value.clone();
    }
    serde_json::from_value(document).expect("a policy")
}

fn metrics(names: &[&str]) -> Vec<Metric> {
    names
        .iter()
        .map(|name| name.parse().expect("a metric"))
        .collect()
}

fn amounts_of(outcome: &Outcome, rows: usize) -> Vec<u128> {
    let mut amounts = vec![0; rows];
    for share in &outcome.shares {
        amounts[share.row as usize] = share.amount;
    }
    amounts
}

fn check(usage: &Plain, policy: &RewardPolicy, names: &[&str]) -> Vec<u128> {
    let rules = Rules::new(policy, &metrics(names)).expect("rules");
    let outcome = compute(usage, &rules, &()).expect("an outcome");
    let sums = outcome.sums;
    assert_eq!(sums.payout + sums.residual, sums.pool);
    assert_eq!(sums.recipients, outcome.shares.len() as u64);
    assert_eq!(
        outcome
            .shares
            .iter()
            .map(|share| share.amount)
            .sum::<u128>(),
        sums.payout
    );
    amounts_of(&outcome, usage.accounts())
}

/// Water-filling in whole rounds and Hamilton by sorting: slow, plain, and written differently.
fn reference(weights: &[u128], pool: u128, cap: Option<u128>) -> Vec<u128> {
    let wide = |value: u128| U512::from(value);
    let mut capped = vec![false; weights.len()];
    let (mut left, mut rest);
    loop {
        let open = || {
            weights
                .iter()
                .zip(&capped)
                .filter(|(_, capped)| !**capped)
                .map(|(w, _)| *w)
        };
        rest = open().fold(U512::ZERO, |sum, weight| sum + wide(weight));
        let taken = capped.iter().filter(|capped| **capped).count() as u128;
        left = pool - taken * cap.unwrap_or(0);
        let over: Vec<usize> = (0..weights.len())
            .filter(|row| !capped[*row] && weights[*row] > 0)
            .filter(|row| {
                cap.is_some_and(|cap| wide(weights[*row]) * wide(left) > wide(cap) * rest)
            })
            .collect();
        if over.is_empty() {
            break;
        }
        over.into_iter().for_each(|row| capped[row] = true);
    }
    let mut amounts: Vec<u128> = capped
        .iter()
        .map(|capped| if *capped { cap.unwrap_or(0) } else { 0 })
        .collect();
    if rest.is_zero() {
        return amounts;
    }
    let mut remainders = Vec::new();
    let mut units = left;
    for row in (0..weights.len()).filter(|row| !capped[*row] && weights[*row] > 0) {
        let (floor, remainder) = (wide(weights[row]) * wide(left)).div_rem(rest);
        amounts[row] = floor.to::<u128>();
        units -= amounts[row];
        remainders.push((std::cmp::Reverse(remainder), row));
    }
    remainders.sort();
    for (_, row) in remainders
        .into_iter()
        .take(usize::try_from(units).expect("few units"))
    {
        amounts[row] += 1;
    }
    amounts
}

#[test]
fn small_cases_by_hand() {
    let split =
        |amounts: &[u128], pool, edit| check(&one_metric(amounts), &policy(pool, &edit), &["m"]);
    assert_eq!(split(&[1, 1, 1], 10, json!({})), [4, 3, 3]);
    assert_eq!(split(&[5, 3, 2], 10, json!({})), [5, 3, 2]);
    assert_eq!(split(&[1, 2, 3], 100, json!({})), [17, 33, 50]);
    assert_eq!(split(&[0, 0], 100, json!({})), [0, 0], "idle: all residual");
    assert_eq!(split(&[], 100, json!({})), [0_u128; 0]);
    assert_eq!(split(&[0, 7, 0], 100, json!({})), [0, 100, 0]);
    assert_eq!(
        split(&[98, 1, 1], 100, json!({"min_payout_minor": "2"})),
        [98, 0, 0]
    );
    assert_eq!(
        split(&[98, 1, 1], 100, json!({"caps": {"account_minor": "40"}})),
        [40, 30, 30]
    );
    assert_eq!(
        split(&[98, 2, 0], 100, json!({"caps": {"account_minor": "40"}})),
        [40, 40, 0]
    );
    assert_eq!(
        split(&[50, 30, 20], 100, json!({"caps": {"account_minor": "40"}})),
        [40, 36, 24]
    );
    let largest = u128::MAX;
    assert_eq!(split(&[largest], largest, json!({})), [largest]);
    assert_eq!(split(&[largest, 0], largest, json!({})), [largest, 0]);
}

#[test]
fn the_floor_rule_leaves_the_units_in_the_residual() {
    let floor = json!({"rule_set": "floor/1"});
    let split = |amounts: &[u128]| check(&one_metric(amounts), &policy(10, &floor), &["m"]);
    assert_eq!(split(&[1, 1, 1]), [3, 3, 3]);
    assert_eq!(split(&[5, 3, 2]), [5, 3, 2]);
    assert_eq!(split(&[19, 1]), [9, 0]);
}

#[test]
fn weights_are_exact_rationals() {
    let rows = Plain(vec![("a".into(), vec![3, 0]), ("b".into(), vec![0, 2])]);
    let rule = |n: &str, d: &str| json!({"metrics": {"x": {"weight": n, "class": "metering"}, "y": {"weight": d, "class": "metering"}}});
    // 3 * 1/3 = 1 and 2 * 1/2 = 1: exactly equal, which no binary fraction would be.
    assert_eq!(
        check(&rows, &policy(1_000, &rule("1/3", "1/2")), &["x", "y"]),
        [500, 500]
    );
    assert_eq!(
        check(&rows, &policy(1_000, &rule("2/3", "1/2")), &["x", "y"]),
        [667, 333]
    );
    assert_eq!(
        check(&rows, &policy(1_000, &rule("1/3", "0")), &["x", "y"]),
        [1_000, 0]
    );
    assert_eq!(
        check(
            &rows,
            &policy(1_000, &rule("18446744073709551615", "1")),
            &["x", "y"]
        )[1],
        0
    );
}

#[test]
fn eligibility_keeps_accounts_out() {
    let rows = Plain(vec![
        ("eth:1".into(), vec![5]),
        ("eth:2".into(), vec![5]),
        ("eth:20".into(), vec![4]),
        ("sol:1".into(), vec![5]),
    ]);
    let with = |edit| check(&rows, &policy(100, &json!({ "eligibility": edit })), &["m"]);
    assert_eq!(with(json!({})), [27, 26, 21, 26]);
    assert_eq!(with(json!({"exclude": ["eth:2"]})), [36, 0, 28, 36]);
    assert_eq!(
        with(json!({"prefixes": ["eth:2", "eth:"]})),
        [36, 36, 28, 0]
    );
    assert_eq!(
        with(json!({"prefixes": ["eth:2", "sol:"]})),
        [0, 36, 28, 36]
    );
    assert_eq!(with(json!({"minimum": {"m": "5"}})), [34, 33, 0, 33]);
}

#[test]
fn category_caps_shape_the_weights() {
    let document = |caps| {
        policy(
            100,
            &json!({
                "metrics": {
                    "disk": {"weight": "1", "class": "metering", "category": "store"},
                    "net": {"weight": "1", "class": "metering", "category": "move"},
                    "up": {"weight": "1", "class": "metering"}
                },
                "caps": {"category_minor": caps}
            }),
        )
    };
    let rows = Plain(vec![
        ("a".into(), vec![80, 0, 0]),
        ("b".into(), vec![0, 10, 0]),
        ("c".into(), vec![0, 0, 10]),
    ]);
    let with = |caps| check(&rows, &document(caps), &["disk", "net", "up"]);
    assert_eq!(with(json!({})), [80, 10, 10]);
    assert_eq!(
        with(json!({"store": "90"})),
        [80, 10, 10],
        "a loose cap changes nothing"
    );
    assert_eq!(with(json!({"store": "40"})), [40, 30, 30]);
    assert_eq!(with(json!({"store": "40", "move": "20"})), [40, 20, 40]);
    assert_eq!(with(json!({"store": "0"})), [0, 50, 50]);
    let only_store = Plain(vec![
        ("a".into(), vec![3, 0, 0]),
        ("b".into(), vec![1, 0, 0]),
    ]);
    let paid = check(
        &only_store,
        &document(json!({"store": "10"})),
        &["disk", "net", "up"],
    );
    assert_eq!(
        paid,
        [8, 2],
        "7.5 and 2.5: the tie goes to the first account"
    );
}

#[test]
fn what_is_too_wide_stops_instead_of_wrapping() {
    let caps: serde_json::Map<_, _> = (0..8).map(|c| (format!("c{c}"), json!("1"))).collect();
    let metric = |c: usize| {
        let rule = json!({"weight": "18446744073709551615", "class": "metering", "category": format!("c{c}")});
        (format!("m{c}"), rule)
    };
    let rules: serde_json::Map<_, _> = (0..8).map(metric).collect();
    let policy = policy(
        u128::MAX,
        &json!({"metrics": rules, "caps": {"category_minor": caps}}),
    );
    let names: Vec<String> = (0..8).map(|c| format!("m{c}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rules = Rules::new(&policy, &metrics(&names)).expect("rules");
    let usage = Plain(vec![("a".into(), vec![u128::MAX; 8])]);
    assert!(matches!(
        compute(&usage, &rules, &()),
        Err(Stop::Overflow(_))
    ));
}

#[test]
fn a_cancelled_run_has_no_outcome() {
    struct Unavailable;
    impl Watch for Unavailable {
        fn weighed(&self, _: u64) {}
        fn shared(&self, _: u64) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let rules = Rules::new(&policy(10, &json!({})), &metrics(&["m"])).expect("rules");
    assert_eq!(
        compute(&one_metric(&[1]), &rules, &Unavailable),
        Err(Stop::Cancelled)
    );
}

#[test]
fn policies_that_cannot_be_run_are_refused() {
    let refused = |edit: serde_json::Value, want: &str| {
        let error = check_policy(&policy(10, &edit))
            .expect_err(want)
            .to_string();
        assert!(error.contains(want), "{error}");
    };
    refused(json!({"format": 2}), "format 2");
    refused(json!({"version": 0}), "version");
    refused(
        json!({"pool": {"account": "pool:default/test", "amount_minor": "0"}}),
        "zero",
    );
    refused(json!({"metrics": {}}), "metrics must name");
    refused(
        json!({"residual": {"owner": "escrow:aa"}}),
        "belong to the ledger",
    );
    refused(
        json!({"metrics": {"m": {"weight": "0", "class": "metering"}}}),
        "weight 0",
    );
    refused(
        json!({"metrics": {"m": {"weight": "1", "class": "ad_budgeted"}}}),
        "classes_allowed",
    );
    refused(
        json!({"classes_allowed": ["metering", "analytics_only"]}),
        "analytics_only",
    );
    refused(json!({"caps": {"account_minor": "0"}}), "account_minor");
    refused(
        json!({"caps": {"category_minor": {"x": "1"}}}),
        "which no metric has",
    );
    refused(
        json!({"eligibility": {"minimum": {"x": "1"}}}),
        "not among the metrics",
    );
    let rule = |weight: &str| json!({"weight": weight, "class": "metering"});
    refused(
        json!({"metrics": {"a": rule("18446744073709551557"), "b": rule("1/3")}}),
        "more than 64 bits",
    );
    let error = Rules::new(&policy(10, &json!({})), &metrics(&["m", "n"])).expect_err("n");
    assert_eq!(
        error,
        RuleError::UnknownMetric("n".parse().expect("a metric"))
    );
}

fn in_pool<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("threads");
    pool.install(run)
}

#[test]
fn threads_do_not_change_a_byte() {
    // Several chunks, many equal weights: ties across chunk boundaries must not depend on timing.
    let amounts: Vec<u128> = (0..3_000_u128).map(|row| row * row % 97 + 1).collect();
    let usage = one_metric(&amounts);
    for cap in [json!({}), json!({"caps": {"account_minor": "31"}})] {
        let rules = Rules::new(&policy(999_983, &cap), &metrics(&["m"])).expect("rules");
        let one = in_pool(1, || compute(&usage, &rules, &()));
        assert!(one.is_ok());
        for threads in 2..=8 {
            assert_eq!(
                in_pool(threads, || compute(&usage, &rules, &())),
                one,
                "{threads} threads"
            );
        }
    }
}

/// Amounts from tiny to 128 bits, with many ties.
fn amount() -> impl Strategy<Value = u128> {
    prop_oneof![4 => 0..4_u128, 3 => 0..1_000_000_u128, 2 => 0..=u128::from(u64::MAX), 1 => 0..=u128::MAX / 64]
}

fn pool_amount() -> impl Strategy<Value = u128> {
    prop_oneof![1..50_u128, 1..1_000_000_000_u128, 1..=u128::MAX]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn equals_the_reference(amounts in prop::collection::vec(amount(), 0..40),
                            pool in pool_amount(), cap in prop::option::of(1..=u128::MAX)) {
        let cap = cap.map(|cap| cap % pool + 1);
        let edit = cap.map_or(json!({}), |cap| json!({"caps": {"account_minor": cap.to_string()}}));
        let got = check(&one_metric(&amounts), &policy(pool, &edit), &["m"]);
        prop_assert_eq!(got, reference(&amounts, pool, cap));
    }

    #[test]
    fn quota_holds_and_nothing_is_left(amounts in prop::collection::vec(amount(), 1..60),
                                       pool in pool_amount()) {
        let got = check(&one_metric(&amounts), &policy(pool, &json!({})), &["m"]);
        let total = amounts.iter().fold(U512::ZERO, |sum, amount| sum + U512::from(*amount));
        prop_assume!(!total.is_zero());
        prop_assert_eq!(got.iter().sum::<u128>(), pool);
        for (amount, paid) in amounts.iter().zip(&got) {
            let (floor, rest) = (U512::from(*amount) * U512::from(pool)).div_rem(total);
            let floor = floor.to::<u128>();
            prop_assert!(*paid == floor || (*paid == floor + 1 && !rest.is_zero()));
        }
    }

    #[test]
    fn a_larger_weight_never_earns_less(amounts in prop::collection::vec(amount(), 2..60),
                                        pool in pool_amount(), least in 0..100_u128,
                                        cap in prop::option::of(1..=u128::MAX)) {
        let caps = cap.map_or(json!({}), |cap| json!({"account_minor": (cap % pool + 1).to_string()}));
        let edit = json!({"min_payout_minor": least.to_string(), "caps": caps});
        let got = check(&one_metric(&amounts), &policy(pool, &edit), &["m"]);
        for a in 0..amounts.len() {
            for b in 0..amounts.len() {
                prop_assert!(amounts[a] <= amounts[b] || got[a] >= got[b]);
            }
        }
    }

    #[test]
    fn category_caps_keep_the_books(rows in prop::collection::vec((amount(), amount()), 1..30),
                                    pool in pool_amount(), cap in 0..=u128::MAX) {
        let cap = cap % pool;
        let edit = json!({
            "metrics": {
                "x": {"weight": "2/3", "class": "metering", "category": "x"},
                "y": {"weight": "1/7", "class": "metering"}
            },
            "caps": {"category_minor": {"x": cap.to_string()}}
        });
        let usage = Plain(rows.iter().enumerate()
            .map(|(row, (x, y))| (format!("a{row:05}"), vec![*x, *y])).collect());
        let got = check(&usage, &policy(pool, &edit), &["x", "y"]);
        // Rows that live from the capped category alone get at most the cap, rounding aside.
        let only_x: Vec<u128> =
            rows.iter().zip(&got).filter(|((_, y), _)| *y == 0).map(|(_, paid)| *paid).collect();
        prop_assert!(only_x.iter().sum::<u128>() <= cap.saturating_add(only_x.len() as u128));
    }

    #[test]
    fn input_order_does_not_matter(rows in prop::collection::btree_map("[a-z]{1,6}", amount(), 1..40),
                                   pool in pool_amount(), seed in any::<u64>()) {
        let rows: Vec<(String, Vec<u128>)> = rows.into_iter().map(|(a, m)| (a, vec![m])).collect();
        let mut shuffled = rows.clone();
        let mut state = seed | 1;
        for at in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(at, (state >> 33) as usize % (at + 1));
        }
        let document = policy(pool, &json!({}));
        prop_assert_eq!(
            check(&Plain(rows).sorted(), &document, &["m"]),
            check(&Plain(shuffled).sorted(), &document, &["m"])
        );
    }
}
