//! Reply slots and credits.
#![cfg(test)]

use super::{Count, explore, far, past, size, thread};
use crate::credits::Credits;
use crate::reply::{WaitError, reply};

/// A reply is answered once or dropped once, and the waiter always sees which. Mutant `reply`.
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
}

/// The waiter gives up while the answer is being sent: either the waiter has the answer, or the
/// worker gets it back and can count it as late; never both, never neither.
#[test]
fn a_late_answer_is_returned_to_its_sender() {
    explore(|| {
        let slots: Vec<_> = (0..size(2, 8)).map(|_| reply::<u8>()).collect();
        let (senders, waiters): (Vec<_>, Vec<_>) = slots.into_iter().unzip();
        let workers: Vec<_> = senders
            .into_iter()
            .map(|tx| thread::spawn(move || tx.send(7)))
            .collect();
        let got: Vec<_> = waiters.into_iter().map(|rx| rx.wait(past())).collect();
        for (got, worker) in got.into_iter().zip(workers) {
            match (got, worker.join().unwrap()) {
                (Ok(7), Ok(())) | (Err(WaitError::Timeout), Err(7)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
}

/// A freed credit wakes a waiter; no more credits are taken than exist. Mutant `credits`.
#[test]
fn credits_are_never_overdrawn_and_never_lost() {
    const CREDITS: usize = size(1, 3);
    explore(|| {
        let credits = Credits::new(CREDITS);
        let out = Count::new();
        let threads: Vec<_> = (0..size(2, 8))
            .map(|_| {
                let (credits, out) = (credits.clone(), out.clone());
                thread::spawn(move || {
                    let credit = credits.acquire(far()).unwrap();
                    assert!(out.add(1) < CREDITS as u64, "overdrawn");
                    out.sub(1);
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
