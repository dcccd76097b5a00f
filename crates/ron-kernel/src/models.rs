//! Loom models of the real queue, reply slot, credits and drop-oldest code.
//!
//! Run by `scripts/loom.sh`. Each protocol has a mutant (`--cfg mutant="..."`), a version that is
//! wrong on purpose and must be caught, so that a model that proves nothing is noticed.

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::queue::{Recv, SendError, bare_queue};
use crate::shutdown::Shutdown;
use crate::topology::{Overflow, QueueSpec};
use crate::{Credits, Deadline, WaitError, reply};

static REJECT: QueueSpec = spec(Overflow::RejectNew);
static OLDEST: QueueSpec = spec(Overflow::DropOldest);

const fn spec(overflow: Overflow) -> QueueSpec {
    QueueSpec {
        name: "model",
        capacity: 1,
        overflow,
        from: "model",
        to: "model",
        when_full: "",
    }
}

fn far() -> Deadline {
    Deadline::within(Duration::from_secs(3600))
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(2);
    }
    builder.check(model);
}

/// Every accepted job is done exactly once or still queued after shutdown; every refused one came
/// back; every worker sees shutdown.
#[test]
fn queue_and_shutdown_lose_and_double_nothing() {
    explore(|| {
        let (tx, rx) = bare_queue::<usize>(&REJECT, 1);
        let (trigger, token) = Shutdown::pair();
        let done = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::new(AtomicUsize::new(0));
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (rx, token, done) = (rx.clone(), token.clone(), done.clone());
                thread::spawn(move || {
                    while let Recv::Item(_) = rx.recv(&token, far()) {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    // Drain law: what was accepted before shutdown is finished.
                    while rx.try_recv().is_some() {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let producer = {
            let (tx, accepted) = (tx.clone(), accepted.clone());
            thread::spawn(move || match tx.try_send(1) {
                Ok(()) => {
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
                Err(SendError::Full(1)) => {}
                Err(other) => panic!("{other:?}"),
            })
        };
        if tx.try_send(2).is_ok() {
            accepted.fetch_add(1, Ordering::SeqCst);
        }
        producer.join().unwrap();
        trigger.fire();
        for c in consumers {
            c.join().unwrap();
        }
        let left = usize::from(rx.try_recv().is_some());
        assert_eq!(
            done.load(Ordering::SeqCst) + left,
            accepted.load(Ordering::SeqCst)
        );
        assert_eq!(left, 0, "an accepted job was left behind");
    });
}

/// A reply is answered once or dropped once, and the waiter always learns which.
#[test]
fn a_reply_slot_always_wakes_its_waiter() {
    explore(|| {
        let (tx, rx) = reply::<u8>();
        let worker = thread::spawn(move || tx.send(7).is_ok());
        assert_eq!(rx.wait(far()), Ok(7));
        assert!(worker.join().unwrap());
    });
    explore(|| {
        let (tx, rx) = reply::<u8>();
        let worker = thread::spawn(move || drop(tx));
        assert_eq!(rx.wait(far()), Err(WaitError::Dropped));
        worker.join().unwrap();
    });
    explore(|| {
        // The waiter leaves while the answer is on its way: it is handed back or it was taken.
        let (tx, rx) = reply::<u8>();
        let worker = thread::spawn(move || tx.send(7));
        drop(rx);
        let _ = worker.join().unwrap();
    });
}

/// A freed credit wakes a waiter; never more are out than there are.
#[test]
fn credits_are_never_overdrawn_and_never_lost() {
    explore(|| {
        let credits = Credits::new(1);
        let out = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (credits, out) = (credits.clone(), out.clone());
                thread::spawn(move || {
                    let credit = credits.acquire(far()).unwrap();
                    assert_eq!(out.fetch_add(1, Ordering::SeqCst), 0, "overdrawn");
                    out.fetch_sub(1, Ordering::SeqCst);
                    drop(credit);
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(credits.in_use(), 0);
    });
}

/// Drop-oldest never refuses, never blocks, and keeps the newest.
#[test]
fn drop_oldest_keeps_the_newest() {
    explore(|| {
        let (tx, rx) = bare_queue::<usize>(&OLDEST, 1);
        let other = {
            let tx = tx.clone();
            thread::spawn(move || assert_eq!(tx.try_send(1), Ok(())))
        };
        assert_eq!(tx.try_send(2), Ok(()));
        other.join().unwrap();
        assert_eq!(tx.try_send(3), Ok(()));
        assert_eq!(rx.try_recv(), Some(3));
        assert_eq!(rx.try_recv(), None);
    });
}
