//! Epochs that pay several assets: each against a recomputation of its own, and what binds them together.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use ron_proto::rewarder::{ImportKind, RewardPolicy};
use serde_json::{Value, json};

use super::super::bundle;
use super::super::explain::Explainer;
use super::super::reader::{Reader, prove};
use super::super::tests::{document, pins, run, sign, signed};
use super::super::verify::{check_signed_proof, verify_run_dir};
use super::*;
use crate::calculus::{RuleError, check_policy};
use crate::inputs::import;

fn usage(rows: &[(u64, u64)]) -> Sealed {
    let mut text = String::from("account,metric,amount\n");
    for (at, (disk, net)) in rows.iter().enumerate() {
        text.push_str(&format!("acc:{at:02},disk,{disk}\nacc:{at:02},net,{net}\n"));
    }
    import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows")
}

fn metrics(disk: u64, net: u64) -> Value {
    json!({"disk": {"weight": disk.to_string(), "class": "metering"},
        "net": {"weight": net.to_string(), "class": "metering"}})
}

/// A policy that pays `ron` by one weight for each metric, and `usd` by others.
fn two_assets(ron: (u128, u64, u64), usd: (u128, u64, u64), least: u128) -> Value {
    let pool =
        |name: &str, minor: u128| json!({"account": name, "amount_minor": minor.to_string()});
    document(&json!({
        "pool": pool("pool:default/test", ron.0), "metrics": metrics(ron.1, ron.2),
        "also": [{"asset": "usd", "pool": pool("pool:default/usd", usd.0), "metrics": metrics(usd.1, usd.2),
            "min_payout_minor": least.to_string(), "residual": {"owner": "acct:house"}}]
    }))
}

/// Largest remainder, from its definition: the amounts of the accounts that are paid, and the residual.
fn split(
    rows: &[(u64, u64)],
    (pool, disk, net): (u128, u64, u64),
    least: u128,
) -> (BTreeMap<String, u128>, u128) {
    let weight = |row: &(u64, u64)| u128::from(row.0 * disk + row.1 * net);
    let all: u128 = rows.iter().map(weight).sum();
    let mut shares: Vec<(usize, u128, u128)> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let product = weight(row) * pool;
        if let (Some(floor), Some(rest)) = (product.checked_div(all), product.checked_rem(all)) {
            shares.push((at, floor, rest));
        }
    }
    let floors: u128 = shares.iter().map(|share| share.1).sum();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    by_remainder.sort_by_key(|at| (std::cmp::Reverse(shares[*at].2), *at));
    let left = if all > 0 { pool - floors } else { 0 };
    for at in by_remainder.into_iter().take(left as usize) {
        shares[at].1 += 1;
    }
    let paid: BTreeMap<_, _> = shares
        .into_iter()
        .filter(|share| share.1 >= least.max(1))
        .map(|(at, minor, _)| (format!("acc:{at:02}"), minor))
        .collect();
    let residual = pool - paid.values().sum::<u128>();
    (paid, residual)
}

fn table_of(computed: &Computed) -> BTreeMap<String, u128> {
    let table = computed.table.as_ref().expect("paid");
    let rows = table.payouts().expect("readable").into_iter();
    rows.map(|row| (row.account.to_string(), row.amount_minor.0))
        .collect()
}

proptest! {
    #[test]
    fn each_asset_is_split_as_if_it_were_alone(
        rows in prop::collection::vec((0_u64..50, 0_u64..50), 0..25),
        ron in (1_u128..5_000, 0_u64..4, 1_u64..4),
        usd in (1_u128..5_000, 1_u64..4, 0_u64..4),
        least in 0_u128..40,
    ) {
        let (usage, policy) = (usage(&rows), signed(&two_assets(ron, usd, least)));
        let computed = run(&usage, &policy);
        prop_assert_eq!(computed.also.len(), 1);
        let further = &computed.also[0];
        let (paid, residual) = split(&rows, ron, 0);
        prop_assert_eq!(table_of(&computed), paid);
        prop_assert_eq!(computed.manifest.totals.residual_minor.0, residual);
        let (mut paid, residual) = split(&rows, usd, least);
        if residual > 0 {
            paid.insert("acct:house".into(), residual);
        }
        prop_assert_eq!(table_of(further), paid);
        for (one, pool) in [(&computed, ron.0), (further, usd.0)] {
            let totals = one.manifest.totals;
            prop_assert_eq!(totals.payout_minor.0 + totals.residual_minor.0, pool);
        }
        // The asset alone, by the policy that pays it alone, has the same table.
        let alone = policy.of_each_asset();
        let tenant = "default".parse().expect("a tenant");
        for (one, policy) in [&computed, further].into_iter().zip(&alone) {
            let epoch = "e:1".parse().expect("an epoch");
            let memory = Target::Memory(Vec::new());
            let again = compute_to(memory, &tenant, &epoch, None, &usage, policy, &());
            prop_assert_eq!(again.expect("a run").head, one.head);
        }
    }
}

const ROWS: [(u64, u64); 4] = [(3, 1), (1, 7), (0, 2), (5, 0)];

fn example() -> Value {
    two_assets((1_000, 1, 2), (777, 3, 1), 0)
}

fn write(dir: &Path, policy: &Value) -> Computed {
    let (usage, policy) = (usage(&ROWS), signed(policy));
    let computed = run(&usage, &policy);
    let dir = Dir::os(dir);
    dir::write(&dir, &computed, &usage, &policy).expect("writable");
    sign(&dir, &computed.manifest);
    for also in &computed.also {
        sign(&further(&dir, &also.manifest.asset), &also.manifest);
    }
    computed
}

#[test]
fn a_run_of_two_assets_is_verified_proved_and_explained_from_its_directory() {
    let temp = tempfile::tempdir().expect("a directory");
    let run_dir = temp.path().join("run");
    let computed = write(&run_dir, &example());
    let dir = Dir::os(&run_dir);
    assert_eq!(computed.manifest.version, MANIFEST_ASSETS);
    let verified = verify_run_dir(&dir, &pins()).expect("verifies");
    assert_eq!(verified.also.len(), 1);
    for (dir, one) in of_each_asset(&dir, &computed.manifest)
        .into_iter()
        .zip(computed.each())
    {
        // The directory of an asset is that of a run which pays it alone.
        let alone = verify_run_dir(&dir, &pins()).expect("verifies");
        assert_eq!(alone.manifest, one.manifest);
        let (reader, explainer) = (
            Reader::open(&dir).expect("whole"),
            Explainer::open(&dir, &()).expect("whole"),
        );
        for payout in reader.range(0, reader.len()).expect("readable") {
            let proof = prove(&dir, &payout.account).expect("a payee");
            check_signed_proof(&proof, &pins().manifest).expect("holds");
            let said = explainer.explain(&payout.account).expect("agrees");
            assert_eq!(
                (said.paid_minor, said.asset),
                (payout.amount_minor, one.manifest.asset.clone())
            );
        }
    }
    let out = Dir::os(temp.path().join("bundle"));
    out.create().expect("writable");
    let contents = bundle::Contents {
        usage: true,
        proofs: true,
        page: b"",
    };
    bundle::write(&dir, &out, contents, &|_| {}).expect("written");
    verify_run_dir(&out, &pins()).expect("verifies");
    let all = bundle::check(&out).expect("whole");
    assert_eq!(all, bundle::Checked::Bundle { proofs: 4 + 4 });
    std::fs::remove_file(further(&out, &"usd".parse().expect("an asset")).file(bundle::BUNDLE))
        .expect("removed");
    assert!(bundle::check(&out).is_err(), "half of a bundle");
}

#[test]
fn no_asset_is_left_out_changed_or_taken_from_another_run() {
    let temp = tempfile::tempdir().expect("a directory");
    let usd = "usd".parse().expect("an asset");
    for fault in ["gone", "table", "other", "unsigned"] {
        let (run_dir, other) = (
            temp.path().join(fault),
            temp.path().join(format!("{fault}.2")),
        );
        write(&run_dir, &example());
        write(&other, &two_assets((1_000, 1, 2), (778, 3, 1), 0));
        let (dir, other) = (Dir::os(&run_dir), Dir::os(&other));
        let asset = further(&dir, &usd);
        match fault {
            "gone" => asset.remove_all().expect("removed"),
            "table" => {
                let table = asset.file(dir::PAYOUTS);
                let mut bytes = std::fs::read(&table).expect("there");
                *bytes.last_mut().expect("rows") ^= 1;
                std::fs::write(table, bytes).expect("writable");
            }
            "other" => {
                asset.remove_all().expect("removed");
                std::fs::rename(further(&other, &usd).path(), asset.path()).expect("moved");
            }
            _ => asset.remove(dir::RUN_SIG).expect("removed"),
        }
        assert!(verify_run_dir(&dir, &pins()).is_err(), "{fault}");
    }
}

#[test]
fn a_quarantined_asset_takes_the_epoch_with_it() {
    let temp = tempfile::tempdir().expect("a directory");
    // Eight capped categories over the largest sums need more than 1,024 bits.
    let names = |prefix: char| (0..8).map(move |n| format!("{prefix}{n}"));
    let rules = |weight: &'static str| -> Value {
        let rule = |(metric, category): (String, String)| {
            let rule = json!({"weight": weight, "class": "metering", "category": category});
            (metric, rule)
        };
        names('m')
            .zip(names('c'))
            .map(rule)
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let caps: serde_json::Map<_, _> = names('c').map(|name| (name, json!("1"))).collect();
    let policy = signed(&document(
        &json!({"metrics": rules("1"), "also": [{"asset": "usd",
        "pool": {"account": "pool:default/usd", "amount_minor": "1000"}, "metrics": rules("18446744073709551615"),
        "caps": {"category_minor": caps}, "residual": {"owner": "pool:default/usd"}}]}),
    ));
    let rows: Vec<String> = names('m')
        .map(|name| format!("a,{name},{}", u128::MAX))
        .collect();
    let text = format!("account,metric,amount\n{}\n", rows.join("\n"));
    let usage = import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let (tenant, epoch) = ("default".parse().expect("t"), "e:1".parse().expect("e"));
    let own = &policy.of_each_asset()[0];
    let memory = Target::Memory(Vec::new());
    let alone = compute_to(memory, &tenant, &epoch, None, &usage, own, &()).expect("a run");
    assert!(
        alone.quarantine.is_none(),
        "the first asset by itself is sound"
    );
    let computed = run(&usage, &policy);
    assert_eq!(computed.manifest.status, RunStatus::Quarantined);
    assert!(computed.quarantine.is_some() && computed.also.is_empty());
    let dir = Dir::os(temp.path());
    dir::write(&dir, &computed, &usage, &policy).expect("writable");
    verify_run_dir(&dir, &pins()).expect("verifies as quarantined");
}

#[test]
fn a_policy_of_several_assets_is_refused_for_what_is_wrong_with_one() {
    let check = |edit: &dyn Fn(&mut Value), want: &str| {
        let mut policy = example();
        edit(&mut policy);
        let policy: RewardPolicy = serde_json::from_value(policy).expect("a policy");
        let why = check_policy(&policy).expect_err(want).to_string();
        assert!(why.contains(want), "{why}");
    };
    let also = |policy: &mut Value, key: &str, value: Value| policy["also"][0][key] = value;
    check(
        &|p| also(p, "asset", "ron".into()),
        "also[0].asset: the policy pays \"ron\" already",
    );
    check(
        &|p| also(p, "asset", "RON".into()),
        "each asset has one pool",
    );
    check(
        &|p| {
            also(
                p,
                "pool",
                json!({"account": "pool:other/x", "amount_minor": "1"}),
            );
        },
        "also[0]: pool.account must be a pool of the policy's tenant",
    );
    check(
        &|p| also(p, "caps", json!({"category_minor": {"x": "1"}})),
        "also[0]: caps.category_minor names \"x\", which no metric has",
    );
    check(
        &|p| also(p, "metrics", metrics(0, 0)),
        "also[0]: every metric has weight 0",
    );
    check(
        &|p| also(p, "guards", json!({"largest_ten_max_percent": 0})),
        "also[0]: release.guards.largest_ten_max_percent must be 1 to 100",
    );
    check(
        &|p| {
            p["pay"] = "claims".into();
            p["claims_account"] = "acct:claims".into();
        },
        "also[0]: pay \"claims\" needs claims_account",
    );
    check(
        &|p| {
            let one = p["also"][0].clone();
            let named = |n: usize| {
                let mut one = one.clone();
                one["asset"] = format!("a{n}").into();
                one
            };
            p["also"] = (0..16).map(named).collect();
        },
        "also may name at most 15 further assets",
    );
    let good: RewardPolicy = serde_json::from_value(example()).expect("a policy");
    check_policy(&good).expect("good");
    let metrics = ["disk", "net", "cpu"].map(|name| name.parse().expect("a metric"));
    let unknown = crate::calculus::Rules::check(&good, &metrics);
    assert!(matches!(unknown, Err(RuleError::UnknownMetric(_))));
}

#[test]
fn a_correction_pays_the_differences_of_each_asset() {
    let temp = tempfile::tempdir().expect("a directory");
    let first = temp.path().join("first");
    let before = write(&first, &example());
    let policy = signed(&example());
    let fixed = usage(&[(3, 1), (1, 7), (0, 2), (9, 4)]);
    let (tenant, epoch) = ("default".parse().expect("t"), "fix".parse().expect("e"));
    let earlier = earlier_of_each(&Dir::os(&first), &policy).expect("paid");
    let memory = || Target::Memory(Vec::new());
    let job = |(policy, earlier)| AssetJob {
        policy,
        target: memory(),
        adjusts: Some(Adjusts::of(earlier, memory())),
    };
    let jobs = policy.of_each_asset().into_iter().zip(&earlier).map(job);
    let computed = compute_each(&tenant, &epoch, jobs.collect(), &fixed, &()).expect("a run");
    let dir = Dir::os(temp.path().join("fix"));
    dir::write(&dir, &computed, &fixed, &policy).expect("writable");
    sign(&dir, &computed.manifest);
    sign(
        &further(&dir, &computed.also[0].manifest.asset),
        &computed.also[0].manifest,
    );
    verify_run_dir(&dir, &pins()).expect("verifies");
    let due = run(&fixed, &policy);
    for (before, (fix, due)) in [&before, &before.also[0]].into_iter().zip(
        [&computed, &computed.also[0]]
            .into_iter()
            .zip([&due, &due.also[0]]),
    ) {
        assert!(fix.manifest.correction.is_some());
        let (was, is, paid) = (table_of(before), table_of(due), table_of(fix));
        for (account, minor) in is {
            let more = minor.saturating_sub(was.get(&account).copied().unwrap_or(0));
            assert_eq!(paid.get(&account).copied().unwrap_or(0), more, "{account}");
        }
    }
    // The same assets, in the same order.
    let other = signed(&document(&json!({"metrics": metrics(1, 2)})));
    let why = earlier_of_each(&Dir::os(&first), &other).expect_err("another set");
    assert!(why.to_string().contains("paid other assets"), "{why}");
}
