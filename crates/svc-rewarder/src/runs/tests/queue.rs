//! What the scheduler does with requests for which there is no room, and with those open at the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_proto::rewarder::RunState;

use super::super::scheduler::SECOND_TRIES_MAX;
use super::super::{RunAction, RunEvent, Update, db, reason};
use super::ledger::SimLedger;
use super::life::{Life, SqlStore, inputs, status};

#[test]
fn a_full_work_queue_answers_429_after_one_retry() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    for epoch in ["e1", "e2"] {
        let ask = inputs(root.path(), epoch, 4, false);
        assert_eq!(status(life.ask(epoch, ask, false)).0, 202);
    }
    assert_eq!(life.work_tx.len(), 2, "the queue holds two");
    let ask = inputs(root.path(), "e3", 4, false);
    let refused = life.ask("e3", ask.clone(), false);
    let waiting = life.ask("e3", ask.clone(), true);
    assert_eq!(
        status(life.ask("e1", RunAction::Settle, false)).0,
        202,
        "the scheduler serves other requests before the second try"
    );
    life.tick_after(Duration::from_millis(100));
    for caller in [refused, waiting] {
        let (code, body) = status(caller);
        assert_eq!((code, body["code"].as_str()), (429, Some("busy")));
    }
    while life.work.try_recv().is_some() {}
    assert_eq!(
        status(life.ask("e3", ask, false)).0,
        202,
        "and may be sent again"
    );
}

#[test]
fn the_second_try_of_a_full_work_queue_may_find_room() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    for epoch in ["e1", "e2"] {
        let ask = inputs(root.path(), epoch, 4, false);
        assert_eq!(status(life.ask(epoch, ask, false)).0, 202);
    }
    let ask = inputs(root.path(), "e3", 4, false);
    let late = life.ask("e3", ask, false);
    assert!(life.work.try_recv().is_some());
    life.tick_after(Duration::from_millis(100));
    assert_eq!(status(late).0, 202);
    assert_eq!(life.run("e3").state, RunState::Queued);
    assert_eq!(life.work_tx.len(), 2, "its job took the free place");
}

#[test]
fn the_number_of_second_tries_is_bounded() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 4, false);
    let queued = 2; // the capacity of the work queue
    let mut callers = Vec::new();
    for number in 0..queued + SECOND_TRIES_MAX {
        callers.push(life.ask(&format!("e{number}"), ask.clone(), false));
    }
    let (code, body) = status(life.ask("late", ask.clone(), false));
    assert_eq!((code, body["code"].as_str()), (429, Some("busy")));
    let rows = db::load(&SqlStore::open(root.path()).0).expect("rows");
    assert_eq!(rows.len(), callers.len(), "the refused run is not stored");
    // Every caller within the bound was kept; the place of the first that leaves is free again.
    life.tick_after(Duration::from_millis(100));
    let codes: Vec<u16> = callers.into_iter().map(|caller| status(caller).0).collect();
    assert_eq!(codes[..queued], [202, 202]);
    assert_eq!(codes[queued..], [429; SECOND_TRIES_MAX]);
    while life.work.try_recv().is_some() {}
    assert_eq!(status(life.ask("late", ask, false)).0, 202);
}

#[test]
fn a_drain_answers_callers_after_the_last_report() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 4, false);
    let fails = life.ask("e1", ask.clone(), true);
    let waits = life.ask("e2", ask.clone(), true);
    let second_try = life.ask("e3", ask, false);
    // The report of a stage that ends during the drain.
    let run = life.run("e1");
    let (updates, reported) = (life.worker.updates.clone(), AtomicBool::new(false));
    let others_done = || {
        if reported.swap(true, Ordering::SeqCst) {
            return true;
        }
        let update = Update {
            id: run.id(),
            run_key: run.run_key,
            event: RunEvent::Failed(reason("io", "the disk is full")),
        };
        updates.try_send(update).expect("room");
        false
    };
    life.scheduler.drain(&mut life.memory, &others_done);
    let (code, body) = status(fails);
    assert_eq!((code, body["code"].as_str()), (409, Some("run_failed")));
    // The other runs are durable, and the next start continues them.
    for (caller, epoch) in [(waits, "e2"), (second_try, "e3")] {
        let (code, body) = status(caller);
        assert_eq!(
            (code, body["state"].as_str()),
            (202, Some("queued")),
            "{epoch}"
        );
    }
    drop(life);
    let life = Life::begin(root.path(), &ledger, true);
    assert_eq!(life.run("e2").state, RunState::Queued);
}

#[test]
fn runs_are_counted_by_state() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let counts = |life: &Life| {
        let all = RunState::ALL.into_iter();
        let count = |state: RunState| {
            let gauges = &life.scheduler.metrics.by_state;
            (
                state.as_str(),
                gauges.with_label_values(&[state.as_str()]).get(),
            )
        };
        all.map(count).filter(|(_, n)| *n != 0).collect::<Vec<_>>()
    };
    let ask = inputs(root.path(), "e1", 4, false);
    let _ = life.ask("e1", ask.clone(), false);
    let _ = life.ask("e2", ask, false);
    assert_eq!(counts(&life), [("queued", 2)]);
    let job = life.work.try_recv().expect("a job");
    life.worker.tick(job, &life.shutdown);
    let computing = life.updates.try_recv().expect("a report");
    life.scheduler.handle_update(&mut life.memory, &computing);
    assert_eq!(counts(&life), [("queued", 1), ("computing", 1)]);
    life.settle_down();
    let settled = counts(&life);
    assert_eq!(
        settled.iter().map(|(_, n)| n).sum::<i64>(),
        2,
        "{settled:?}"
    );
    assert!(settled.contains(&("settled", 1)), "{settled:?}");
    // The thread may start again in the same process.
    life.memory = life.scheduler.resume(Box::new(SqlStore::open(root.path())));
    assert_eq!(counts(&life), settled);
}

#[test]
fn nothing_is_paid_before_its_run_is_recorded_as_sealed() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 4, false);
    let _ = life.ask("e1", ask, false);
    let job = life.work.try_recv().expect("a job");
    life.worker.tick(job, &life.shutdown);
    let item = life.results.try_recv().expect("a result");
    life.writer.tick(item, &life.shutdown);
    life.tick_after(Duration::ZERO);
    // A crash now makes the run `queued` again, and its artifacts are written again, with the evidence from before the first payout.
    assert!(life.intents.try_recv().is_none(), "it is not recorded yet");
    life.settle_down();
    assert_eq!(life.run("e1").state, RunState::Settled);
}
