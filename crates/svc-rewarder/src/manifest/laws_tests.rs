//! The laws of a run as properties: random usage, random policies, any order, pieces, threads.

use std::fs;

use proptest::prelude::*;
use ron_files::OsDisk;
use ron_proto::rewarder::ImportKind;
use serde_json::{Value, json};

use super::tests::{document, run, signed};
use super::*;
use crate::inputs::import;

/// Usage of several metrics with ties, zeros, names of several lengths and 128-bit amounts.
pub(super) fn usage() -> impl Strategy<Value = Vec<(String, [u128; 3])>> {
    let amount = || prop_oneof![5 => 0..5_u128, 2 => 0..1_000_000_u128, 1 => 0..=u128::MAX / 64];
    let amounts = (amount(), amount(), amount()).prop_map(|(a, b, c)| [a, b, c]);
    prop::collection::btree_map("[a-z]{1,9}", amounts, 0..60)
        .prop_map(|rows| rows.into_iter().collect())
}

pub(super) fn csv_of(rows: &[(String, [u128; 3])]) -> String {
    let mut text = String::from("account,metric,amount\n");
    for (account, amounts) in rows {
        for (metric, amount) in ["m", "n", "o"].iter().zip(amounts) {
            text.push_str(&format!("{account},{metric},{amount}\n"));
        }
    }
    text
}

pub(super) fn any_policy() -> impl Strategy<Value = Value> {
    let pool = prop_oneof![1..100_u128, 1..1_000_000_000_u128, 1..=u128::MAX];
    let weight = || prop::sample::select(vec!["0", "1", "1/3", "7/2", "40", "4294967295"]);
    let cap = prop::option::of(1..=u128::MAX);
    let rest = (0..200_u128, any::<bool>(), any::<bool>(), any::<bool>());
    (pool, weight(), weight(), cap.clone(), cap, rest).prop_map(
        |(pool, x, y, cap, category, (least, floor, apart, prefix))| {
            let rule = |weight: &str| json!({"weight": weight, "class": "metering"});
            let mut capped = rule(y);
            let mut caps = json!({});
            if let Some(cap) = cap {
                caps["account_minor"] = (cap % pool + 1).to_string().into();
            }
            if let Some(category) = category {
                capped["category"] = "y".into();
                caps["category_minor"] = json!({"y": (category % pool).to_string()});
            }
            document(&json!({
                "rule_set": if floor { "floor/1" } else { "hamilton/1" },
                "pool": {"account": "pool:default/test", "amount_minor": pool.to_string()},
                "metrics": {"m": rule("1"), "n": rule(x), "o": capped},
                "caps": caps, "min_payout_minor": least.to_string(),
                "eligibility": if prefix { json!({"prefixes": ["a", "b", "m", "x"]}) } else { json!({}) },
                "residual": {"owner": if apart { "treasury:of-a-long-name" } else { "pool:default/test" }}
            }))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Order, pieces, threads, memory or file: the bytes are always the same, and the books close.
    #[test]
    fn nothing_but_the_inputs_reaches_the_bytes(rows in usage(), policy in any_policy(),
                                                seed in any::<u64>(), threads in 1..=8_usize) {
        let policy = signed(&policy);
        let straight = csv_of(&rows);
        let mut lines: Vec<&str> = straight.lines().skip(1).collect();
        let mut state = seed | 1;
        for at in (1..lines.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            lines.swap(at, (state >> 33) as usize % (at + 1));
        }
        let shuffled = format!("account,metric,amount\n{}\n", lines.join("\n"));
        let seal = |text: &str| import::csv(text.as_bytes(), ImportKind::Totals).expect("good");
        let (one, two) = (seal(&straight), seal(&shuffled));
        prop_assert_eq!(one.cid(), two.cid());
        let first = run(&one, &policy);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("payouts.bin");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let second = pool.install(|| {
            let target = Target::file(&OsDisk, &path).expect("writable");
            let (tenant, epoch) = ("default".parse().expect("t"), "e:1".parse().expect("e"));
            compute_to(target, &tenant, &epoch, None, &two, &policy, &()).expect("a run")
        });
        prop_assert_eq!(&first.manifest, &second.manifest);
        prop_assert_eq!(first.head, second.head);
        prop_assert_eq!(&first.tree, &second.tree);
        let Some(table) = first.table else {
            prop_assert_eq!(first.manifest.status, RunStatus::Quarantined);
            return Ok(());
        };
        let bytes = table.bytes().expect("in memory").into_owned();
        prop_assert_eq!(&fs::read(&path).expect("written"), &bytes);
        let again = Table::parse(bytes).expect("what was written can be read");
        prop_assert_eq!(again.tree().expect("small"), first.tree.expect("paid"));
        let totals = first.manifest.totals;
        prop_assert_eq!(totals.payout_minor.0 + totals.residual_minor.0, totals.pool_minor.0);
        let payouts = again.payouts().expect("readable");
        let sum: u128 = payouts.iter().map(|payout| payout.amount_minor.0).sum();
        prop_assert_eq!(Some(sum), first.manifest.payouts.map(|p| p.total_minor.0));
        prop_assert_eq!(sum, if again.residual_row() { totals.pool_minor } else { totals.payout_minor }.0);
    }
}
