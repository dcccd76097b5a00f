//! What an epoch waits for before it pays: approvals of its manifest, and guard rails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ron_files::Dir;
use ron_proto::rewarder::{ImportKind, RunState};
use ron_proto::values::ContentId;
use serde_json::{Value, json};

use super::ledger::SimLedger;
use super::life::{Life, compute, inputs, library, signed_as, status, tenant, usage};
use super::{check_paid, retry_until_settled};
use crate::inputs::import;
use crate::manifest::dir;
use crate::runs::RunAction;

/// Stores usage of so many accounts, and a policy with this rule of release; returns the request to
/// compute them.
fn released(root: &Path, epoch: &str, rows: usize, release: &Value) -> RunAction {
    let library = library(root);
    let policy = signed_as(&json!({"id": "guarded", "release": release}));
    let policy = library.verify(&policy).expect("signed");
    library.put_policy(&tenant(), &policy).expect("stored");
    let sealed = import::csv(usage(rows).as_bytes(), ImportKind::Totals).expect("good rows");
    library.put_snapshot(&tenant(), &sealed, 0).expect("stored");
    compute(epoch, &sealed, &policy, None, false)
}

/// Has an epoch computed; the commitment of its manifest.
fn computed(life: &mut Life, epoch: &str, ask: RunAction) -> ContentId {
    let waiting = life.ask(epoch, ask, true);
    life.settle_down();
    assert_eq!(status(waiting).0, 200);
    life.run(epoch).commitment.expect("computed")
}

fn approve(life: &mut Life, epoch: &str, commitment: ContentId, by: &str) -> (u16, Value) {
    let by = by.to_owned();
    let said = status(life.ask(epoch, RunAction::Approve { commitment, by }, false));
    life.settle_down();
    said
}

fn breaches(life: &Life, epoch: &str) -> Vec<String> {
    let release = life.run(epoch).release.expect("computed");
    release.breaches.into_iter().map(|b| b.code).collect()
}

fn said(said: &(u16, Value)) -> (u16, &str) {
    (said.0, said.1["code"].as_str().unwrap_or(""))
}

fn pool(ledger: &SimLedger) -> u128 {
    ledger.balance("pool:default/test")
}

#[test]
fn two_others_approve_the_manifest_before_it_pays() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = released(root.path(), "e1", 40, &json!({"approvals": 2}));
    let commitment = computed(&mut life, "e1", ask.clone());
    assert_eq!(life.run("e1").state, RunState::Sealed);
    assert_eq!(ledger.calls.load(Ordering::SeqCst), 0);
    let refused = status(life.ask("e1", RunAction::Settle, false));
    assert_eq!(said(&refused), (409, "approvals_missing"));
    // The principal that asked for the run is not one of them, and nobody counts twice.
    let own = approve(&mut life, "e1", commitment, "operator");
    assert_eq!(said(&own), (403, "own_run"));
    let other = approve(&mut life, "e1", ContentId([9; 32]), "anna");
    assert_eq!(said(&other), (409, "other_manifest"));
    for _ in 0..2 {
        let (code, body) = approve(&mut life, "e1", commitment, "anna");
        assert_eq!((code, body["state"].as_str()), (200, Some("sealed")));
        let approvals = body["release"]["approvals"].as_array().expect("a list");
        assert_eq!(approvals.len(), 1);
        assert_eq!(approvals[0]["by"], "anna");
        assert_eq!(approvals[0]["commitment"], commitment.to_string());
    }
    assert_eq!(pool(&ledger), 10_000);
    // Approvals survive a crash; asking for the same run again takes none of them away.
    drop(life);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.settle_down();
    assert_eq!(computed(&mut life, "e1", ask), commitment);
    assert_eq!(pool(&ledger), 10_000);
    let (code, _) = approve(&mut life, "e1", commitment, "bert");
    assert!(matches!(code, 200 | 202));
    retry_until_settled(&mut life, "e1");
    check_paid(&ledger, 40);
    let late = approve(&mut life, "e1", commitment, "carla");
    assert_eq!(late.0, 409);
    assert_eq!(status(life.ask("e2", RunAction::Settle, false)).0, 404);
}

#[test]
fn an_epoch_beyond_a_guard_rail_pays_once_it_is_approved() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let rails = json!({"guards": {"recipients_min": 41, "account_max_minor": "10000"}});
    let commitment = {
        let ask = released(root.path(), "e1", 40, &rails);
        computed(&mut life, "e1", ask)
    };
    assert_eq!(life.run("e1").state, RunState::Review);
    assert_eq!(breaches(&life, "e1"), ["recipients_min"]);
    // It is signed as every computed run, and a restart does not pay it.
    drop(life);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.settle_down();
    let run = dir::of(
        &Dir::os(root.path().join("runs")),
        &tenant(),
        &"e1".parse().expect("an epoch"),
        None,
    );
    assert!(run.exists(dir::RUN_SIG).expect("known"));
    let run = life.run("e1");
    assert_eq!(run.state, RunState::Review);
    assert_eq!(run.reason.expect("a reason").code, "recipients_min");
    let refused = status(life.ask("e1", RunAction::Settle, false));
    assert_eq!(said(&refused), (409, "approvals_missing"));
    assert_eq!(pool(&ledger), 10_000);
    approve(&mut life, "e1", commitment, "anna");
    retry_until_settled(&mut life, "e1");
    check_paid(&ledger, 40);
}

#[test]
fn an_epoch_is_compared_with_the_one_that_its_policy_settled_last() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(40_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let rails = json!({"guards": {"new_recipients_max": 1, "change_max_percent": 0}});
    let settles = |life: &mut Life, epoch: &str, rows: usize| {
        let ask = released(root.path(), epoch, rows, &rails);
        computed(life, epoch, ask);
        (life.run(epoch).state, breaches(life, epoch))
    };
    // There is nothing to compare the first one with.
    assert_eq!(settles(&mut life, "e1", 40), (RunState::Settled, vec![]));
    assert_eq!(settles(&mut life, "e2", 41), (RunState::Settled, vec![]));
    let (state, beyond) = settles(&mut life, "e3", 43);
    assert_eq!(
        (state, beyond),
        (RunState::Review, vec!["new_recipients".into()])
    );
    // The next one is compared with e2 as well: e3 has not paid.
    assert_eq!(settles(&mut life, "e4", 42), (RunState::Settled, vec![]));
    let gone = root.path().join("runs/tenant-default/epoch-e4");
    std::fs::remove_dir_all(gone).expect("removed");
    let (state, beyond) = settles(&mut life, "e5", 44);
    assert_eq!(
        (state, beyond),
        (RunState::Review, vec!["epoch_before_unknown".into()])
    );
}

#[test]
fn an_epoch_without_recipients_never_pays_and_can_be_withdrawn() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let nobody = inputs(root.path(), "e1", 0, false);
    let commitment = computed(&mut life, "e1", nobody);
    assert_eq!(life.run("e1").state, RunState::Review);
    let refused = approve(&mut life, "e1", commitment, "anna");
    assert_eq!(said(&refused), (409, "never_pays"));
    let refused = status(life.ask("e1", RunAction::Settle, false));
    assert_eq!(said(&refused), (409, "never_pays"));
    assert_eq!(ledger.calls.load(Ordering::SeqCst), 0);
    let withdraw = RunAction::Withdraw {
        commitment,
        reason: "the file was empty".into(),
        by: "operator".into(),
    };
    let waiting = life.ask("e1", withdraw, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "withdrawn");
    computed(&mut life, "e1", inputs(root.path(), "e1", 40, false));
    check_paid(&ledger, 40);
}

#[test]
fn a_dry_run_shows_what_a_live_one_would_wait_for() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let rails = json!({"approvals": 1, "guards": {"largest_ten_max_percent": 20}});
    let mut ask = released(root.path(), "e1", 40, &rails);
    if let RunAction::Compute { dry_run, .. } = &mut ask {
        *dry_run = true;
    }
    let commitment = computed(&mut life, "e1", ask);
    assert_eq!(life.run("e1").state, RunState::Sealed);
    assert_eq!(breaches(&life, "e1"), ["largest_ten"]);
    assert_eq!(approve(&mut life, "e1", commitment, "anna").0, 409);
    assert_eq!(pool(&ledger), 10_000);
}

/// The approvals of a manifest are those of no other one.
#[test]
fn approvals_end_with_their_manifest() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let rule = json!({"approvals": 2});
    let wrong = released(root.path(), "e1", 41, &rule);
    let commitment = computed(&mut life, "e1", wrong);
    assert_eq!(approve(&mut life, "e1", commitment, "anna").0, 200);
    let withdraw = RunAction::Withdraw {
        commitment,
        reason: "41 accounts".into(),
        by: "operator".into(),
    };
    let _ = life.ask("e1", withdraw, false);
    life.settle_down();
    assert_eq!(
        said(&approve(&mut life, "e1", commitment, "bert")),
        (409, "epoch_void")
    );
    let right = released(root.path(), "e1", 40, &rule);
    let commitment = computed(&mut life, "e1", right);
    assert_eq!(approve(&mut life, "e1", commitment, "bert").0, 200);
    assert_eq!(pool(&ledger), 10_000, "bert alone");
    approve(&mut life, "e1", commitment, "anna");
    retry_until_settled(&mut life, "e1");
    check_paid(&ledger, 40);
    let run = Arc::new(life.run("e1"));
    assert_eq!(run.release.as_ref().map(|r| r.approvals.len()), Some(2));
}
