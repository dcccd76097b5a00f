//! Epochs that pay two assets: crashes and lost calls at every step, a short pool, and withdrawals, each
//! of both assets or of none.

use std::path::Path;

use ron_files::Dir;
use ron_proto::rewarder::{ImportKind, RunState};
use serde_json::{Value, json};

use super::ledger::SimLedger;
use super::life::{Life, compute, library, ring, signed_as, status, tenant, usage};
use super::retry_until_settled;
use crate::inputs::import;
use crate::manifest::{dir, verify};
use crate::runs::RunAction;

const USD: u128 = 4_321;

fn two_assets() -> Value {
    json!({"also": [{"asset": "usd", "pool": {"account": "pool:default/usd", "amount_minor": USD.to_string()},
        "min_payout_minor": "20", "residual": {"owner": "pool:default/usd"}}]})
}

fn asked(root: &Path, epoch: &str, rows: usize, policy: &Value) -> RunAction {
    adjusting(root, epoch, rows, policy, None)
}

fn adjusting(
    root: &Path,
    epoch: &str,
    rows: usize,
    policy: &Value,
    adjusts: Option<&str>,
) -> RunAction {
    let library = library(root);
    let policy = library.verify(&signed_as(policy)).expect("signed");
    library.put_policy(&tenant(), &policy).expect("stored");
    let sealed = import::csv(usage(rows).as_bytes(), ImportKind::Totals).expect("good rows");
    library.put_snapshot(&tenant(), &sealed, 0).expect("stored");
    let adjusts = adjusts.map(|epoch| epoch.parse().expect("an epoch"));
    compute(epoch, &sealed, &policy, adjusts, false)
}

fn rich(ron: u128, usd: u128) -> std::sync::Arc<SimLedger> {
    let ledger = SimLedger::new(ron);
    let pool = "pool:default/usd usd".to_owned();
    ledger.books.lock().balances.insert(pool, usd);
    ledger
}

/// Both assets are paid once, in whole, and their epochs are closed.
fn check_both(ledger: &SimLedger, life: &Life) {
    let run = life.run("e1");
    let paid = |asset: &str| {
        let books = ledger.books.lock();
        let of = |account: &str| {
            account.starts_with("acc:") && account.ends_with(" usd") == (asset == "usd")
        };
        let payees = books.balances.iter().filter(|(account, _)| of(account));
        payees.map(|(_, minor)| minor).sum::<u128>()
    };
    let [ron, usd] = run.assets.as_slice() else {
        panic!("{:?}", run.assets);
    };
    assert_eq!(paid("ron"), 10_000);
    assert_eq!(paid("usd"), usd.totals.payout_minor.0);
    assert_eq!(ron.totals.payout_minor.0, 10_000);
    assert!(
        usd.totals.recipients < ron.totals.recipients,
        "the minimum bites"
    );
    assert_eq!(ledger.balance("pool:default/test"), 0);
    assert_eq!(
        ledger.balance("pool:default/usd usd"),
        USD - usd.totals.payout_minor.0
    );
    assert_eq!(run.intents, ron.totals.recipients + usd.totals.recipients);
}

#[test]
fn a_crash_at_any_step_pays_both_assets_once() {
    for crash_at in 0.. {
        let root = tempfile::tempdir().expect("a directory");
        let ledger = rich(10_000, USD);
        let ask = asked(root.path(), "e1", 40, &two_assets());
        let mut life = Life::begin(root.path(), &ledger, true);
        assert_eq!(status(life.ask("e1", ask, false)).0, 202);
        let mut steps = 0;
        while steps < crash_at && life.step() {
            steps += 1;
        }
        let finished = steps < crash_at;
        drop(life);
        let mut life = Life::begin(root.path(), &ledger, true);
        life.settle_down();
        assert_eq!(
            life.run("e1").state,
            RunState::Settled,
            "crash at {crash_at}"
        );
        check_both(&ledger, &life);
        let pins = verify::Pins {
            policy: ring(1),
            manifest: ring(2),
            unsigned: false,
        };
        let runs = Dir::os(root.path().join("runs"));
        let dir = dir::of(&runs, &tenant(), &"e1".parse().expect("e"), None);
        let verified = verify::verify_run_dir(&dir, &pins).expect("verifies offline");
        assert_eq!(verified.also.len(), 1);
        if finished {
            return;
        }
    }
}

#[test]
fn a_lost_call_or_answer_pays_both_assets_once() {
    for lost in 0..10 {
        for answer in [false, true] {
            let root = tempfile::tempdir().expect("a directory");
            let ledger = rich(10_000, USD);
            ledger.lose(lost, answer);
            let mut life = Life::begin(root.path(), &ledger, true);
            let ask = asked(root.path(), "e1", 40, &two_assets());
            let _ = life.ask("e1", ask, false);
            life.settle_down();
            assert_eq!(
                life.run("e1").state,
                RunState::Settled,
                "call {lost}, answer {answer}"
            );
            check_both(&ledger, &life);
        }
    }
}

#[test]
fn a_pool_that_is_short_of_one_asset_pays_neither() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = rich(10_000, 10);
    let mut life = Life::begin(root.path(), &ledger, true);
    let _ = life.ask("e1", asked(root.path(), "e1", 40, &two_assets()), false);
    life.settle_down();
    let run = life.run("e1");
    let why = run.reason.expect("a reason");
    assert_eq!(
        (run.state, why.code.as_str()),
        (RunState::Held, "pool_short")
    );
    assert!(why.detail.contains("minor units of usd"), "{}", why.detail);
    assert_eq!(
        ledger.balance("pool:default/test"),
        10_000,
        "neither is opened"
    );
    let pool = "pool:default/usd usd".to_owned();
    ledger.books.lock().balances.insert(pool, USD);
    retry_until_settled(&mut life, "e1");
    check_both(&ledger, &life);
}

#[test]
fn a_withdrawal_is_of_both_assets_or_of_none() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = rich(10_000, USD);
    let mut life = Life::begin(root.path(), &ledger, false);
    let _ = life.ask("e1", asked(root.path(), "e1", 41, &two_assets()), false);
    life.settle_down();
    let withdraw = |life: &Life| RunAction::Withdraw {
        commitment: life.run("e1").commitment.expect("sealed"),
        reason: "usage of another month".into(),
        by: "operator".into(),
    };
    let _ = life.ask("e1", withdraw(&life), false);
    life.settle_down();
    assert_eq!(life.run("e1").state, RunState::Withdrawn);
    let _ = life.ask("e1", asked(root.path(), "e1", 40, &two_assets()), false);
    life.settle_down();
    let _ = life.ask("e1", RunAction::Settle, false);
    life.settle_down();
    check_both(&ledger, &life);
    assert_eq!(
        status(life.ask("e1", withdraw(&life), false)).0,
        409,
        "both are open"
    );
}

#[test]
fn guard_rails_hold_each_asset_by_itself() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = rich(10_000, USD);
    let mut life = Life::begin(root.path(), &ledger, true);
    let mut policy = two_assets();
    policy["also"][0]["guards"] = json!({"recipients_max": 5, "change_max_percent": 10});
    let _ = life.ask("e1", asked(root.path(), "e1", 40, &policy), false);
    life.settle_down();
    let run = life.run("e1");
    assert_eq!(run.state, RunState::Review);
    let breaches = run.release.expect("computed").breaches;
    let [only] = breaches.as_slice() else {
        panic!("{breaches:?}");
    };
    assert_eq!(only.code, "recipients_max");
    assert!(only.detail.starts_with("usd: "), "{}", only.detail);
    let approve = RunAction::Approve {
        commitment: run.commitment.expect("sealed"),
        by: "another".into(),
    };
    let _ = life.ask("e1", approve, false);
    life.settle_down();
    check_both(&ledger, &life);
}

#[test]
fn a_correction_pays_the_differences_of_both_assets_once() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = rich(20_000, 2 * USD);
    let mut life = Life::begin(root.path(), &ledger, true);
    let _ = life.ask("e1", asked(root.path(), "e1", 40, &two_assets()), false);
    life.settle_down();
    assert_eq!(life.run("e1").state, RunState::Settled);
    let before = ["pool:default/test", "pool:default/usd usd"].map(|pool| ledger.balance(pool));
    let fix = adjusting(root.path(), "fix", 45, &two_assets(), Some("e1"));
    let _ = life.ask("fix", fix, false);
    life.settle_down();
    let run = life.run("fix");
    assert_eq!((run.state, run.assets.len()), (RunState::Sealed, 2));
    let _ = life.ask("fix", RunAction::Settle, false);
    life.settle_down();
    assert_eq!(life.run("fix").state, RunState::Settled);
    let after = ["pool:default/test", "pool:default/usd usd"].map(|pool| ledger.balance(pool));
    for (asset, (before, after)) in run.assets.iter().zip(before.into_iter().zip(after)) {
        let paid = asset.totals.payout_minor.0;
        assert!(paid > 0, "{asset:?}");
        assert_eq!(before - after, paid, "{asset:?}");
    }
    // Another set of assets does not correct it.
    let other = adjusting(root.path(), "fix2", 46, &json!({"version": 2}), Some("fix"));
    let waiting = life.ask("fix2", other, true);
    life.settle_down();
    assert_eq!(status(waiting).0, 409);
    let why = life.run("fix2").reason.expect("a reason").detail;
    assert!(why.contains("paid other assets"), "{why}");
}
