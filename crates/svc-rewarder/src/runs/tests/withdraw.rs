//! Withdrawals: against crashes and lost calls at every step, and against an opening that is on its
//! way.

use std::path::Path;
use std::sync::Arc;

use ron_proto::rewarder::RunState;
use ron_proto::values::ContentId;

use super::check_paid;
use super::ledger::SimLedger;
use super::life::{Life, inputs, status};
use crate::runs::RunAction;

/// Accounts of the usage that is withdrawn, and of that which replaces it.
const WRONG: usize = 41;
const RIGHT: usize = 40;

fn withdraw(commitment: ContentId) -> RunAction {
    RunAction::Withdraw {
        commitment,
        reason: "usage of another month".into(),
        by: "operator".into(),
    }
}

/// The state of epoch `e1`, if it has a run.
fn state(life: &Life) -> Option<RunState> {
    let epoch = "e1".parse().expect("an epoch");
    life.scheduler
        .registry
        .current(&super::tenant(), &epoch)
        .map(|entry| entry.run.state)
}

/// What an operator does next who wants `e1` paid for the right usage, and had it computed from the
/// wrong one; false when it is paid.
fn operate(life: &mut Life, root: &Path) -> bool {
    let wrong = inputs(root, "e1", WRONG, false);
    let RunAction::Compute {
        snapshot: wrong_usage,
        ..
    } = &wrong
    else {
        panic!("a compute")
    };
    let ask = match state(life) {
        None => wrong,
        Some(RunState::Settled) => return false,
        Some(RunState::Withdrawn) => inputs(root, "e1", RIGHT, false),
        Some(RunState::Sealed) => {
            let run = life.run("e1");
            if run.snapshot == *wrong_usage {
                withdraw(run.commitment.expect("sealed"))
            } else {
                RunAction::Settle
            }
        }
        Some(_) => return true,
    };
    let _ = life.ask("e1", ask, false);
    true
}

#[test]
fn a_crash_at_any_step_of_withdrawing_and_paying_again_pays_the_right_usage_once() {
    for crash_at in 0.. {
        let root = tempfile::tempdir().expect("a directory");
        let ledger = SimLedger::new(10_000);
        let mut life = Life::begin(root.path(), &ledger, false);
        let mut steps = 0;
        let mut ended = false;
        while steps < crash_at && !ended {
            // One act of the operator, or one of the service.
            if !life.step() {
                ended = !operate(&mut life, root.path());
            }
            steps += 1;
        }
        drop(life);
        let mut life = Life::begin(root.path(), &ledger, false);
        life.settle_down();
        while operate(&mut life, root.path()) {
            life.settle_down();
        }
        check_paid(&ledger, RIGHT);
        let run = life.run("e1");
        assert_eq!(run.state, RunState::Settled, "crash at {crash_at}");
        assert_eq!(ledger.books.lock().voids.len(), 1, "crash at {crash_at}");
        if ended {
            assert!(crash_at > 12, "there must have been steps to crash between");
            return;
        }
    }
}

#[test]
fn a_lost_call_or_answer_of_a_withdrawal_changes_nothing() {
    for lost in 0..8 {
        for answer in [false, true] {
            let root = tempfile::tempdir().expect("a directory");
            let ledger = SimLedger::new(10_000);
            ledger.lose(lost, answer);
            let mut life = Life::begin(root.path(), &ledger, false);
            while operate(&mut life, root.path()) {
                life.settle_down();
            }
            check_paid(&ledger, RIGHT);
        }
    }
}

/// The withdrawal is asked for after any number of steps of a settlement, and the service crashes
/// after any number of further ones.
#[test]
fn a_withdrawal_that_meets_an_opening_holds_or_the_epoch_is_paid_and_never_both() {
    let mut ends = [0, 0];
    for asked_at in 0..14 {
        for crash_at in 0..6 {
            let root = tempfile::tempdir().expect("a directory");
            let ledger = SimLedger::new(10_000);
            let mut life = Life::begin(root.path(), &ledger, true);
            let _ = life.ask("e1", inputs(root.path(), "e1", RIGHT, false), false);
            for _ in 0..asked_at {
                life.step();
            }
            let Some(commitment) = life.run("e1").commitment else {
                continue;
            };
            let (said, body) = status(life.ask("e1", withdraw(commitment), false));
            for _ in 0..crash_at {
                life.step();
            }
            drop(life);
            let mut life = Life::begin(root.path(), &ledger, true);
            life.settle_down();
            let run = life.run("e1");
            let opened = ledger.books.lock().epochs.len();
            let voids = ledger.books.lock().voids.len();
            assert_eq!(opened + voids, 1, "{asked_at} {crash_at}: {run:?}");
            if voids == 1 {
                assert_eq!((said, run.state), (202, RunState::Withdrawn));
                assert_eq!(ledger.balance("pool:default/test"), 10_000);
                assert_eq!(run.withdrawal.expect("recorded").by, "operator");
                ends[0] += 1;
            } else {
                let late = (said, body["code"].as_str()) == (409, Some("epoch_opened"));
                assert!(said == 202 || late || said == 200, "{said} {body}");
                assert_eq!(run.state, RunState::Settled, "{asked_at} {crash_at}");
                check_paid(&ledger, RIGHT);
                ends[1] += 1;
            }
        }
    }
    assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
}

/// The request to open the epoch is carried out after the withdrawal, whose run has been replaced.
#[test]
fn an_opening_that_comes_after_the_withdrawal_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(9_999);
    let mut life = Life::begin(root.path(), &ledger, true);
    let wrong = inputs(root.path(), "e1", WRONG, false);
    let _ = life.ask("e1", wrong.clone(), false);
    life.settle_down();
    let held = life.run("e1");
    assert_eq!(held.state, RunState::Held, "the pool is short");
    // Held for want of money, it is withdrawn before the pool is funded.
    let commitment = held.commitment.expect("sealed");
    let other = ContentId([9; 32]);
    let (code, body) = status(life.ask("e1", withdraw(other), false));
    assert_eq!((code, body["code"].as_str()), (409, Some("other_manifest")));
    let asked = life.ask("e1", withdraw(commitment), true);
    life.settle_down();
    let (code, body) = status(asked);
    assert_eq!((code, body["state"].as_str()), (200, Some("withdrawn")));
    assert_eq!(body["withdrawal"]["reason"], "usage of another month");
    let seq = body["settlement"]["void_seq"].clone();
    assert!(seq.is_u64(), "{body}");
    let (code, body) = status(life.ask("e1", withdraw(commitment), false));
    assert_eq!((code, &body["settlement"]["void_seq"]), (200, &seq));
    // An attempt of the withdrawn run that was still queued: the emitter takes it now.
    {
        let mut books = ledger.books.lock();
        books.balances.insert("pool:default/test".into(), 10_000);
    }
    let late = super::super::Intent {
        run: Arc::new(held),
        progress: Arc::default(),
        request: None,
    };
    life.emitter.tick(&late, &life.shutdown);
    life.settle_down();
    assert_eq!(life.run("e1").state, RunState::Withdrawn);
    assert_eq!(ledger.balance("pool:default/test"), 10_000);
    for (ask, want) in [(wrong.clone(), 409), (RunAction::Settle, 409)] {
        let (code, body) = status(life.ask("e1", ask, false));
        assert_eq!((code, body["code"].as_str()), (want, Some("epoch_void")));
    }
    // The same inputs are refused also by a rewarder that has lost its disk.
    let fresh = tempfile::tempdir().expect("another, empty directory");
    let mut elsewhere = Life::begin(fresh.path(), &ledger, true);
    let again = inputs(fresh.path(), "e1", WRONG, false);
    for _ in 0..2 {
        let waiting = elsewhere.ask("e1", again.clone(), true);
        elsewhere.settle_down();
        let (code, body) = status(waiting);
        assert_eq!((code, body["code"].as_str()), (409, Some("epoch_void")));
    }
    // Other inputs are computed and paid.
    let waiting = life.ask("e1", inputs(root.path(), "e1", RIGHT, false), true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "settled");
    check_paid(&ledger, RIGHT);
    let (code, body) = status(life.ask(
        "e1",
        withdraw(life.run("e1").commitment.expect("paid")),
        false,
    ));
    assert_eq!((code, body["code"].as_str()), (409, Some("epoch_opened")));
}
