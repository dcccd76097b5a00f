//! Corrections: an epoch that adjusts a settled one pays the differences, once.

use std::path::Path;
use std::sync::Arc;

use ron_proto::rewarder::{ImportKind, RunState};
use ron_proto::values::EpochId;
use serde_json::{Value, json};

use super::ledger::SimLedger;
use super::life::{Life, compute, library, signed_as, status, tenant, usage};
use super::retry_until_settled;
use crate::inputs::import;
use crate::runs::RunAction;

/// What the first epoch pays for: 10,000 minor units by 1:2:...:40.
const ROWS: usize = 40;

fn asked(root: &Path, epoch: &str, rows: &str, adjusts: Option<&str>, policy: &Value) -> RunAction {
    let library = library(root);
    let policy = library.verify(&signed_as(policy)).expect("signed");
    library.put_policy(&tenant(), &policy).expect("stored");
    let sealed = import::csv(rows.as_bytes(), ImportKind::Totals).expect("good rows");
    library.put_snapshot(&tenant(), &sealed, 0).expect("stored");
    let adjusts: Option<EpochId> = adjusts.map(|epoch| epoch.parse().expect("an epoch"));
    compute(epoch, &sealed, &policy, adjusts, false)
}

fn first(root: &Path) -> RunAction {
    asked(root, "e1", &usage(ROWS), None, &json!({}))
}

/// The same usage with two accounts more.
fn fix(root: &Path, epoch: &str, adjusts: &str) -> RunAction {
    let rows = format!("{}new:a,m,500\nnew:b,m,5\n", usage(ROWS));
    asked(root, epoch, &rows, Some(adjusts), &json!({}))
}

fn paid(ledger: &SimLedger) -> u128 {
    30_000 - ledger.balance("pool:default/test")
}

fn answer(life: &mut Life, epoch: &str, ask: RunAction) -> (u16, String) {
    let waiting = life.ask(epoch, ask, true);
    life.settle_down();
    let (code, body) = status(waiting);
    (code, body["code"].as_str().unwrap_or("").to_owned())
}

/// A ledger with money, and a rewarder that has settled `e1`.
fn begin(root: &Path) -> (Arc<SimLedger>, Life) {
    let ledger = SimLedger::new(30_000);
    let mut life = Life::begin(root, &ledger, true);
    assert_eq!(answer(&mut life, "e1", first(root)).0, 200);
    assert_eq!(paid(&ledger), 10_000);
    (ledger, life)
}

fn is_corrected(ledger: &SimLedger) {
    // 10,000 by weights of 820, 500 and 5.
    assert_eq!(ledger.balance("new:a"), 3_774);
    assert_eq!(ledger.balance("new:b"), 38);
    assert_eq!(paid(ledger), 13_812, "nothing is taken back");
}

#[test]
fn a_correction_pays_the_differences_when_it_is_asked_to() {
    let root = tempfile::tempdir().expect("a directory");
    let (ledger, mut life) = begin(root.path());
    assert_eq!(answer(&mut life, "c1", fix(root.path(), "c1", "e1")).0, 200);
    let run = life.run("c1");
    assert_eq!((run.state, run.settle), (RunState::Sealed, false));
    assert_eq!(paid(&ledger), 10_000);
    let (code, _) = answer(&mut life, "c1", RunAction::Settle);
    assert_eq!(code, 200);
    is_corrected(&ledger);
    // An epoch is corrected once; the next correction names the one before.
    let again = answer(&mut life, "c2", fix(root.path(), "c2", "e1"));
    assert_eq!(again, (409, "usage_paid".to_owned()));
    let same = answer(&mut life, "c2", fix(root.path(), "c2", "c1"));
    assert_eq!(same.0, 200);
    let run = life.run("c2");
    assert_eq!(run.state, RunState::Review, "nobody is owed anything");
    assert_eq!(answer(&mut life, "c2", RunAction::Settle).0, 409);
    // The usage of the correction is paid, too.
    let rows = format!("{}new:a,m,500\nnew:b,m,5\n", usage(ROWS));
    let plain = asked(root.path(), "e2", &rows, None, &json!({}));
    assert_eq!(
        answer(&mut life, "e2", plain),
        (409, "usage_paid".to_owned())
    );
    is_corrected(&ledger);
}

#[test]
fn the_ledger_refuses_the_second_of_two_corrections() {
    let root = tempfile::tempdir().expect("a directory");
    let (ledger, mut life) = begin(root.path());
    for epoch in ["c1", "c2"] {
        let rows = format!("{}new:a,m,500\nnew:b,m,5\nnew:{epoch},m,0\n", usage(ROWS));
        let ask = asked(root.path(), epoch, &rows, Some("e1"), &json!({}));
        assert_eq!(answer(&mut life, epoch, ask).0, 200);
    }
    assert_eq!(answer(&mut life, "c1", RunAction::Settle).0, 200);
    let refused = answer(&mut life, "c2", RunAction::Settle);
    assert_eq!(refused, (409, "usage_paid".to_owned()));
    is_corrected(&ledger);
}

#[test]
fn what_is_not_settled_or_was_paid_by_another_policy_is_not_corrected() {
    let root = tempfile::tempdir().expect("a directory");
    let (ledger, mut life) = begin(root.path());
    let unknown = answer(&mut life, "c1", fix(root.path(), "c1", "e9"));
    assert_eq!(unknown, (409, "not_settled".to_owned()));
    let other = asked(
        root.path(),
        "c1",
        &usage(3),
        Some("e1"),
        &json!({"id": "other"}),
    );
    assert_eq!(
        answer(&mut life, "c1", other),
        (422, "policy_mismatch".to_owned())
    );
    assert_eq!(answer(&mut life, "c1", fix(root.path(), "c1", "e1")).0, 200);
    let early = answer(&mut life, "c2", fix(root.path(), "c2", "c1"));
    assert_eq!(early, (409, "not_settled".to_owned()), "it is sealed only");
    assert_eq!(paid(&ledger), 10_000);
}

#[test]
fn guard_rails_and_approvals_hold_for_a_correction() {
    let root = tempfile::tempdir().expect("a directory");
    let (ledger, mut life) = begin(root.path());
    let release =
        json!({"approvals": 1, "guards": {"new_recipients_max": 1, "change_max_percent": 20}});
    let policy = json!({"version": 2, "release": release});
    let rows = format!("{}new:a,m,500\nnew:b,m,5\n", usage(ROWS));
    let ask = asked(root.path(), "c1", &rows, Some("e1"), &policy);
    assert_eq!(answer(&mut life, "c1", ask).0, 200);
    let run = life.run("c1");
    assert_eq!(run.state, RunState::Review);
    let release = run.release.expect("computed");
    let codes: Vec<_> = release.breaches.iter().map(|it| it.code.as_str()).collect();
    // It pays 38 % more to two new accounts; what is due is as much as was paid.
    assert_eq!(codes, ["total_change", "new_recipients"]);
    assert_eq!(
        answer(&mut life, "c1", RunAction::Settle).1,
        "approvals_missing"
    );
    let approve = RunAction::Approve {
        commitment: run.commitment.expect("computed"),
        by: "anna".into(),
    };
    let _ = life.ask("c1", approve, false);
    retry_until_settled(&mut life, "c1");
    is_corrected(&ledger);
}

#[test]
fn a_crash_at_any_step_of_a_correction_pays_the_differences_once() {
    for crash_at in 0.. {
        let root = tempfile::tempdir().expect("a directory");
        let (ledger, mut life) = begin(root.path());
        // Also in the middle of the computation, which is asked for with the settlement.
        let _ = life.ask("c1", fix(root.path(), "c1", "e1"), false);
        let _ = life.ask("c1", RunAction::Settle, false);
        let mut steps = 0;
        while steps < crash_at && life.step() {
            steps += 1;
        }
        let finished = steps < crash_at;
        drop(life);
        let mut life = Life::begin(root.path(), &ledger, true);
        life.settle_down();
        let state = life.run("c1").state;
        assert_eq!(state, RunState::Settled, "crash at {crash_at}");
        is_corrected(&ledger);
        if finished {
            assert!(crash_at > 5, "there must be steps to crash between");
            return;
        }
    }
}
