//! The stages stepped by hand over a simulated ledger: every crash point, and every way a call can
//! be lost.
//!
//! Fault model: a crash loses everything in memory and keeps the store and the directories as they
//! are; a ledger call may be lost before it is carried out, or carried out and its answer lost. The
//! simulated ledger keeps the rules of the real one: an epoch is bound to one manifest for ever,
//! payouts come in index order and are known by index, the books must close.

mod assets;
mod chaos;
mod correct;
mod dry;
mod ledger;
mod life;
mod power;
mod queue;
mod release;
mod withdraw;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_proto::ledger::Entry;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{POLICY_KIND, RunState, SignedPolicy};
use ron_proto::values::Amount;

use super::{RunAction, db};
use crate::library::LibraryError;
use crate::manifest::{dir, verify};
use ledger::SimLedger;
use life::{
    Life, SqlStore, TestSigner, adjusting, inputs, key, library, ring, signed, status, tenant,
};

fn check_paid(ledger: &SimLedger, recipients: usize) {
    let books = ledger.books.lock();
    let payees = books
        .balances
        .iter()
        .filter(|(account, _)| account.starts_with("acc:"));
    let paid: u128 = payees.map(|(_, amount)| amount).sum();
    assert_eq!(paid, 10_000, "every unit is paid");
    assert_eq!(books.paid.len(), recipients, "every payee once");
}

#[test]
fn a_run_goes_from_request_to_settled() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 2_500, false);
    let first = life.ask("e1", ask.clone(), false);
    assert_eq!(status(first).0, 202);
    assert_eq!(
        db::load(&SqlStore::open(root.path()).0)
            .expect("rows")
            .len(),
        1,
        "durable before 202"
    );
    let waiting = life.ask("e1", ask.clone(), true);
    life.settle_down();
    let (code, body) = status(waiting);
    assert_eq!((code, body["state"].as_str()), (200, Some("settled")));
    let recipients = body["totals"]["recipients"].as_u64().expect("a number");
    assert!(recipients > 2_000, "several batches");
    assert_eq!(body["progress"]["intents_settled"], recipients);
    check_paid(&ledger, usize::try_from(recipients).expect("few"));
    assert_eq!(
        status(life.ask("e1", ask.clone(), false)).0,
        200,
        "at once if it exists"
    );
    // Progress is the same after a restart.
    drop(life);
    let mut life = Life::begin(root.path(), &ledger, true);
    let (_, again) = status(life.ask("e1", ask, false));
    assert_eq!(again["progress"], body["progress"]);
    assert_eq!(again["progress"]["rows_read"], 2_500);
    let other = inputs(root.path(), "e1", 3, false);
    let (code, body) = status(life.ask("e1", other, false));
    assert_eq!((code, body["code"].as_str()), (409, Some("epoch_conflict")));
    let pins = verify::Pins {
        policy: ring(1),
        manifest: ring(2),
        unsigned: false,
    };
    let dir = dir::of(
        &Dir::os(root.path().join("runs")),
        &tenant(),
        &"e1".parse().expect("e"),
        None,
    );
    verify::verify_run_dir(&dir, &pins).expect("verifies offline");
    assert!(dir.exists(dir::LEDGER).expect("known"), "evidence is kept");
}

#[test]
fn a_crash_at_any_step_pays_everyone_once() {
    for crash_at in 0.. {
        let root = tempfile::tempdir().expect("a directory");
        let ledger = SimLedger::new(10_000);
        let ask = inputs(root.path(), "e1", 40, false);
        let mut life = Life::begin(root.path(), &ledger, true);
        assert_eq!(status(life.ask("e1", ask.clone(), false)).0, 202);
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
        check_paid(&ledger, 40);
        if finished {
            assert!(
                crash_at > 5,
                "the test must have had steps to crash between"
            );
            return;
        }
    }
}

#[test]
fn a_lost_call_or_answer_changes_nothing() {
    for lost in 0..6 {
        for answer in [false, true] {
            let root = tempfile::tempdir().expect("a directory");
            let ledger = SimLedger::new(10_000);
            ledger.lose(lost, answer);
            let mut life = Life::begin(root.path(), &ledger, true);
            let ask = inputs(root.path(), "e1", 40, false);
            let _ = life.ask("e1", ask, false);
            life.settle_down();
            assert_eq!(
                life.run("e1").state,
                RunState::Settled,
                "call {lost}, answer {answer}"
            );
            check_paid(&ledger, 40);
        }
    }
}

fn retry_until_settled(life: &mut Life, epoch: &str) {
    let by = Deadline::within(Duration::from_secs(5));
    while life.run(epoch).state != RunState::Settled {
        assert!(!by.expired(), "stuck: {:?}", life.run(epoch));
        if !life.step() {
            life.shutdown
                .wait(Deadline::within(Duration::from_millis(10)));
        }
    }
}

#[test]
fn a_short_pool_or_an_unavailable_ledger_holds_and_recovers_by_itself() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(9_999);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 40, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    let run = life.run("e1");
    assert_eq!(run.state, RunState::Held);
    assert_eq!(run.reason.expect("a reason").code, "pool_short");
    ledger.away.store(1, Ordering::SeqCst);
    ledger
        .books
        .lock()
        .balances
        .insert("pool:default/test".into(), 10_000);
    while life
        .run("e1")
        .reason
        .is_none_or(|reason| reason.code != "ledger_unavailable")
    {
        if !life.step() {
            life.shutdown
                .wait(Deadline::within(Duration::from_millis(10)));
        }
    }
    ledger.away.store(0, Ordering::SeqCst);
    retry_until_settled(&mut life, "e1");
    check_paid(&ledger, 40);
}

#[test]
fn an_idle_emitter_tells_whether_the_ledger_answers() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(0);
    let mut life = Life::begin(root.path(), &ledger, true);
    let (told, tells) = std::sync::mpsc::sync_channel(1);
    life.emitter.ledger_unavailable = Box::new(move |why| told.send(why).expect("heard"));
    let check = || {
        life.emitter.check_ledger();
        tells.recv().expect("told")
    };
    assert_eq!(check(), None);
    ledger.away.store(1, Ordering::SeqCst);
    assert_eq!(check(), Some("the ledger is unavailable: lost".to_owned()));
    ledger.away.store(0, Ordering::SeqCst);
    assert_eq!(check(), None);
}

#[test]
fn usage_is_paid_once_whatever_the_epoch_is_called_and_whatever_is_lost() {
    let ledger = SimLedger::new(20_000);
    let first = tempfile::tempdir().expect("a directory");
    let mut life = Life::begin(first.path(), &ledger, true);
    let _ = life.ask("e1", inputs(first.path(), "e1", 40, false), false);
    life.settle_down();
    check_paid(&ledger, 40);
    let again = |life: &mut Life, root: &Path, epoch: &str, corrects: Option<&str>| {
        let ask = adjusting(root, epoch, 40, false, corrects);
        let waiting = life.ask(epoch, ask, true);
        life.settle_down();
        let (code, body) = status(waiting);
        (code, body["code"].as_str().unwrap_or("").to_owned())
    };
    let paid = (409, "usage_paid".to_owned());
    assert_eq!(again(&mut life, first.path(), "e2", None), paid);
    let unknown = (409, "not_settled".to_owned());
    assert_eq!(again(&mut life, first.path(), "e2", Some("e0")), unknown);
    let dry = inputs(first.path(), "e3", 40, true);
    let waiting = life.ask("e3", dry, true);
    life.settle_down();
    assert_eq!(status(waiting).0, 200, "what never pays may be computed");
    let fresh = tempfile::tempdir().expect("another, empty directory");
    let mut life = Life::begin(fresh.path(), &ledger, true);
    for _ in 0..2 {
        assert_eq!(again(&mut life, fresh.path(), "e2", None), paid);
    }
    let run = life.run("e2");
    let reason = run.reason.expect("a reason");
    assert_eq!(
        (run.state, reason.code.as_str()),
        (RunState::Failed, "usage_paid")
    );
    assert!(reason.detail.contains("epoch e1 paid"), "{}", reason.detail);
    assert_eq!(ledger.balance("pool:default/test"), 10_000, "paid once");
    // A correction needs what the epoch has paid, which is computed again and paid no second time.
    assert_eq!(again(&mut life, fresh.path(), "e2", Some("e1")), unknown);
    assert_eq!(again(&mut life, fresh.path(), "e1", None).0, 200);
    assert_eq!(again(&mut life, fresh.path(), "e2", Some("e1")).0, 200);
    assert_eq!(life.run("e2").state, RunState::Review, "no difference");
    assert_eq!(ledger.balance("pool:default/test"), 10_000);
}

#[test]
fn another_manifest_is_refused_even_after_everything_is_lost() {
    let ledger = SimLedger::new(20_000);
    let first = tempfile::tempdir().expect("a directory");
    let mut life = Life::begin(first.path(), &ledger, true);
    let ask = inputs(first.path(), "e1", 40, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    check_paid(&ledger, 40);
    let fresh = tempfile::tempdir().expect("another, empty directory");
    let mut life = Life::begin(fresh.path(), &ledger, true);
    let other = inputs(fresh.path(), "e1", 41, false);
    let waiting = life.ask("e1", other.clone(), true);
    life.settle_down();
    let (code, body) = status(waiting);
    assert_eq!((code, body["code"].as_str()), (409, Some("epoch_conflict")));
    let (code, body) = status(life.ask("e1", other, false));
    assert_eq!(
        (code, body["code"].as_str()),
        (409, Some("epoch_conflict")),
        "and stays so"
    );
    check_paid(&ledger, 40);
    let right = inputs(fresh.path(), "e1", 40, false);
    let waiting = life.ask("e1", right, true);
    life.settle_down();
    assert_eq!(status(waiting).0, 200, "the true inputs are found settled");
    check_paid(&ledger, 40);
}

#[test]
fn settlement_waits_for_a_request_when_it_is_not_automatic() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, false);
    let ask = inputs(root.path(), "e1", 40, false);
    let waiting = life.ask("e1", ask, true);
    life.settle_down();
    let (code, body) = status(waiting);
    assert_eq!((code, body["state"].as_str()), (200, Some("sealed")));
    assert_eq!(ledger.balance("pool:default/test"), 10_000, "nothing moved");
    let waiting = life.ask("e1", RunAction::Settle, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "settled");
    check_paid(&ledger, 40);
    assert_eq!(status(life.ask("e2", RunAction::Settle, false)).0, 404);
}

#[test]
fn a_dry_run_never_pays_and_leaves_the_epoch_free() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let dry = inputs(root.path(), "e1", 41, true);
    let waiting = life.ask("e1", dry, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "sealed");
    assert_eq!(status(life.ask("e1", RunAction::Settle, false)).0, 409);
    assert_eq!(
        ledger.calls.load(Ordering::SeqCst),
        0,
        "the ledger is not even asked"
    );
    let dry_commitment = life.run("e1").commitment;
    let live = inputs(root.path(), "e1", 40, false);
    let waiting = life.ask("e1", live, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "settled");
    assert_ne!(life.run("e1").commitment, dry_commitment);
    check_paid(&ledger, 40);
}

#[test]
fn a_manifest_signed_by_another_key_is_not_paid() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.emitter.signer = Arc::new(TestSigner(9));
    let ask = inputs(root.path(), "e1", 40, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    let run = life.run("e1");
    assert_eq!(run.reason.expect("held").code, "signature_invalid");
    assert_eq!(ledger.balance("pool:default/test"), 10_000);
}

#[test]
fn altered_stored_inputs_are_refused_by_name() {
    let root = tempfile::tempdir().expect("a directory");
    let ask = inputs(root.path(), "e1", 4, false);
    let RunAction::Compute {
        policy_id,
        policy_hash,
        snapshot,
        ..
    } = ask
    else {
        panic!("a compute")
    };
    let library = library(root.path());
    let policy = root.path().join("policies/tenant-default/test.v1.json");
    let good = std::fs::read(&policy).expect("stored");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&policy, bad).expect("writable");
        let error = library
            .policy(&tenant(), &policy_id, &policy_hash)
            .expect_err("altered");
        assert!(
            matches!(error, LibraryError::Refused(_)),
            "byte {at}: {error}"
        );
        assert!(
            error.to_string().contains("policy test version 1"),
            "byte {at}: {error}"
        );
    }
    let name = format!("snapshots/tenant-default/{}.bin", hex::encode(snapshot.0));
    let mut bytes = std::fs::read(root.path().join(&name)).expect("stored");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(root.path().join(&name), bytes).expect("writable");
    let error = library.snapshot(&tenant(), &snapshot).expect_err("altered");
    assert!(error.to_string().contains("is damaged"), "{error}");
}

#[test]
fn policy_versions_only_grow() {
    let root = tempfile::tempdir().expect("a directory");
    let library = library(root.path());
    let put = |version: u64, pool: u128| {
        let mut policy = signed(pool).policy;
        policy["version"] = version.into();
        let message = policy_message(POLICY_KIND, &ron_proto::jcs::canonicalize(&policy));
        let value = b64::url(&key(1).sign(&message));
        let signature = PolicySig {
            alg: "ed25519".into(),
            key: "test".into(),
            value,
        };
        let verified = library
            .verify(&SignedPolicy { policy, signature })
            .expect("signed");
        library.put_policy(&tenant(), &verified)
    };
    assert!(put(2, 10).expect("new"));
    assert!(!put(2, 10).expect("the same again"));
    assert!(matches!(put(2, 11), Err(LibraryError::Conflict(_))));
    assert!(matches!(put(1, 10), Err(LibraryError::Conflict(_))));
    assert!(put(10, 10).expect("newer"));
    let id = "test".parse().expect("an id");
    assert_eq!(
        library
            .newest_policy(&tenant(), &id)
            .expect("there")
            .policy
            .version,
        10
    );
}

#[test]
fn a_full_batch_of_the_longest_payouts_fits_one_commit() {
    let longest = |length: usize| "a".repeat(length);
    let entry = Entry::Payout {
        principal: longest(160).parse().expect("a principal"),
        tenant: longest(64).parse().expect("a tenant"),
        epoch: longest(64).parse().expect("an epoch"),
        index: ron_proto::ledger::MAX_WIRE_INTEGER,
        to: longest(160).parse().expect("an account"),
        asset: longest(32).parse().expect("an asset"),
        amount_minor: Amount::MAX,
    };
    let bytes = serde_json::to_vec(&entry).expect("JSON").len() + 1;
    let batch = bytes * ron_proto::ledger::MAX_ENTRIES + 100;
    assert!(batch <= ron_proto::ledger::MAX_COMMIT_BYTES, "{batch}");
}

#[test]
fn artifacts_past_their_retention_go_and_unfinished_runs_keep_theirs() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.writer.retention.artifacts = Duration::from_millis(1);
    let place = |epoch: &str| {
        let epoch = epoch.parse().expect("an epoch");
        dir::of(&Dir::os(root.path().join("runs")), &tenant(), &epoch, None)
    };
    for (epoch, rows, state) in [("e1", 5, RunState::Settled), ("e2", 6, RunState::Held)] {
        let ask = inputs(root.path(), epoch, rows, false);
        let _ = life.ask(epoch, ask, false);
        life.settle_down();
        assert_eq!(life.run(epoch).state, state, "the pool pays for one epoch");
    }
    life.shutdown
        .wait(Deadline::within(Duration::from_millis(5)));
    life.writer.sweep(&life.shutdown);
    assert!(!place("e1").path().exists());
    assert!(place("e2").path().exists(), "what may still be paid stays");
    let ask = inputs(root.path(), "e1", 5, false);
    assert_eq!(
        status(life.ask("e1", ask, false)).0,
        200,
        "and the run stays known"
    );
}

#[test]
fn snapshots_go_some_time_after_they_were_last_wanted() {
    const KEEP_MS: u64 = 3_600_000;
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.writer.retention.snapshots = Duration::from_millis(KEEP_MS);
    let stored = |rows| {
        let RunAction::Compute { snapshot, .. } = inputs(root.path(), "e1", rows, false) else {
            panic!("a compute")
        };
        snapshot
    };
    // Five snapshots two hours old: of a settled epoch, of a waiting one, of one that changed just
    // now, uploaded again, and of no epoch.
    let (settled, waiting, changed) = (stored(3), stored(4), stored(5));
    let (again, nobodys) = (stored(6), stored(7));
    for (epoch, rows) in [("e1", 3), ("e2", 4), ("e3", 5)] {
        let ask = inputs(root.path(), epoch, rows, epoch == "e3");
        let _ = life.ask(epoch, ask, false);
        life.settle_down();
    }
    assert_eq!(life.run("e2").state, RunState::Held, "the pool pays once");
    let (library, now) = (library(root.path()), life.writer.retention.clock.unix_ms());
    for cid in [settled, waiting, changed, again, nobodys] {
        library.renew(&tenant(), &cid, now - 2 * KEEP_MS);
    }
    let long_ago = |epoch: &str| {
        let epoch = epoch.parse().expect("an epoch");
        let mut entry = life
            .scheduler
            .registry
            .current(&tenant(), &epoch)
            .expect("a run");
        Arc::make_mut(&mut entry.run).updated_at.0 = now - 2 * KEEP_MS;
        life.scheduler.registry.put(entry);
    };
    long_ago("e1");
    long_ago("e2");
    library.renew(&tenant(), &again, now);
    life.writer.sweep(&life.shutdown);
    let there = |cid| library.snapshot(&tenant(), &cid).is_ok();
    assert_eq!(
        [settled, waiting, changed, again, nobodys].map(there),
        [false, true, true, true, false]
    );
    let epoch = "e1".parse().expect("an epoch");
    let dir = dir::of(&Dir::os(root.path().join("runs")), &tenant(), &epoch, None);
    let pins = verify::Pins {
        policy: ring(1),
        manifest: ring(2),
        unsigned: false,
    };
    verify::verify_run_dir(&dir, &pins).expect("its run has a link of its own");
    let gone = library.snapshot(&tenant(), &settled).expect_err("gone");
    assert!(gone.to_string().contains("upload it first"), "{gone}");
}

#[test]
fn snapshots_of_a_directory_are_read_in_place_and_checked() {
    let (root, other) = (
        tempfile::tempdir().expect("a"),
        tempfile::tempdir().expect("b"),
    );
    let RunAction::Compute { snapshot, .. } = inputs(root.path(), "e1", 4, false) else {
        panic!("a compute")
    };
    let name = format!("{}.bin", hex::encode(snapshot.0));
    let stored = root.path().join("snapshots/tenant-default").join(&name);
    std::fs::rename(stored, other.path().join(&name)).expect("moved");
    let library = library(root.path());
    assert!(matches!(
        library.snapshot(&tenant(), &snapshot),
        Err(LibraryError::Missing(_))
    ));
    let library = library.with_snapshots(Some(other.path().to_owned()));
    assert_eq!(
        library.snapshot(&tenant(), &snapshot).expect("there").cid(),
        snapshot
    );
    let wrong = ron_proto::values::ContentId([9; 32]);
    let liar = other.path().join(format!("{}.bin", hex::encode(wrong.0)));
    std::fs::copy(other.path().join(&name), liar).expect("writable");
    let error = library
        .snapshot(&tenant(), &wrong)
        .expect_err("another content");
    assert!(matches!(error, LibraryError::Refused(_)), "{error}");
}
