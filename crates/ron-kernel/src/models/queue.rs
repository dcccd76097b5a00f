//! The queue and the shutdown token.
#![cfg(test)]

use super::{REJECT, Tally, WAIT, explore, far, past, size, thread};
use crate::queue::{Recv, SendError, Sender, bare_queue};
use crate::shutdown::Shutdown;

const PRODUCERS: usize = size(2, 6);
const CONSUMERS: usize = size(2, 4);
const EACH: u64 = size(1, 4) as u64;

/// A job that counts itself as lost when it is dropped without having been done.
struct Job {
    done: bool,
    lost: Tally,
}

impl Job {
    fn finish(mut self, done: &Tally) {
        self.done = true;
        done.add(1);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.done {
            self.lost.add(1);
        }
    }
}

#[derive(Clone)]
struct Counts {
    done: Tally,
    lost: Tally,
    accepted: Tally,
    refused: Tally,
}

impl Counts {
    fn produce(&self, tx: &Sender<Job>) {
        for _ in 0..EACH {
            let lost = self.lost.clone();
            match tx.try_send(Job { done: false, lost }) {
                Ok(()) => self.accepted.add(1),
                Err(SendError::Full(mut job) | SendError::Closed(mut job)) => {
                    job.done = true; // returned to the sender, so not lost
                    self.refused.add(1);
                }
            }
        }
    }
}

/// Producers and consumers around one queue; shutdown is fired after the producers are done
/// (`intake_first`, the drain's order) or while they still send.
fn run(intake_first: bool) -> Counts {
    let c = Counts {
        done: Tally::default(),
        lost: Tally::default(),
        accepted: Tally::default(),
        refused: Tally::default(),
    };
    let (tx, rx) = bare_queue::<Job>(&REJECT, 1);
    let (trigger, token) = Shutdown::pair();
    let consume = || {
        let (rx, token, done) = (rx.clone(), token.clone(), c.done.clone());
        thread::spawn(move || {
            while let Recv::Item(job) = rx.recv(&token, far()) {
                job.finish(&done);
            }
            // Drain law: jobs accepted before shutdown are finished.
            while let Some(job) = rx.try_recv() {
                job.finish(&done);
            }
            // The drop of the receiver matters only while producers may still send.
            intake_first.then_some(rx)
        })
    };
    let consumers: Vec<_> = (0..CONSUMERS).map(|_| consume()).collect();
    drop(rx);
    // The model's own thread is the last producer.
    let produce = |_| {
        let (tx, c) = (tx.clone(), c.clone());
        thread::spawn(move || {
            c.produce(&tx);
            tx
        })
    };
    let producers: Vec<_> = (1..PRODUCERS).map(produce).collect();
    if !intake_first {
        trigger.fire();
    }
    c.produce(&tx);
    let held: Vec<_> = producers.into_iter().map(|p| p.join().unwrap()).collect();
    trigger.fire();
    for consumer in consumers {
        consumer.join().unwrap();
    }
    drop(held);
    c
}

/// Every accepted job is done exactly once; every refused job is returned; every consumer sees
/// shutdown (otherwise the model deadlocks). Mutant `queue`.
#[test]
fn after_intake_has_stopped_every_accepted_job_is_done_once() {
    explore(|| {
        let c = run(true);
        assert_eq!(c.accepted.get() + c.refused.get(), PRODUCERS as u64 * EACH);
        assert_eq!((c.done.get(), c.lost.get()), (c.accepted.get(), 0));
    });
}

/// Shutdown in the middle of sending: a job that no consumer can take any more is dropped with the
/// queue, which its waiter sees; no job disappears and none is done twice. Mutant `hook`: a
/// consumer that is not woken.
#[test]
fn under_racing_shutdown_every_job_is_done_dropped_or_returned() {
    explore(|| {
        let c = run(false);
        assert_eq!(c.accepted.get() + c.refused.get(), PRODUCERS as u64 * EACH);
        assert_eq!(c.done.get() + c.lost.get(), c.accepted.get());
    });
}

/// A wait-until-deadline queue: a sender with time left gets room, a sender without gets its item
/// back. Mutant `wait`.
#[test]
fn waiting_senders_get_room_or_their_item_back() {
    explore(|| {
        let (tx, rx) = bare_queue::<u64>(&WAIT, 1);
        let accepted = Tally::default();
        let send = |i: u64| {
            let (tx, accepted) = (tx.clone(), accepted.clone());
            thread::spawn(move || {
                let patient = i.is_multiple_of(2);
                let deadline = if patient { far() } else { past() };
                match tx.send(i, deadline) {
                    Ok(()) => accepted.add(1),
                    Err(SendError::Full(back)) => assert!(back == i && !patient),
                    Err(SendError::Closed(_)) => panic!("the receiver is there"),
                }
            })
        };
        let senders: Vec<_> = (0..size(3, 8) as u64).map(send).collect();
        drop(tx);
        let (_trigger, token) = Shutdown::pair();
        let mut taken = Vec::new();
        while let Recv::Item(i) = rx.recv(&token, far()) {
            taken.push(i);
        }
        for s in senders {
            s.join().unwrap();
        }
        assert_eq!(taken.len() as u64, accepted.get());
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len() as u64, accepted.get(), "no item arrived twice");
    });
}

/// A hook that is registered while the token is fired runs exactly once; a waiter wakes.
/// Mutant `hook`.
#[test]
fn hooks_run_once_and_waiters_wake() {
    explore(|| {
        let (trigger, token) = Shutdown::pair();
        let calls = Tally::default();
        let threads: Vec<_> = (0..size(1, 4))
            .map(|_| {
                let (token, calls) = (token.clone(), calls.clone());
                thread::spawn(move || {
                    token.on_fire(move || {
                        calls.add(1);
                    });
                    assert!(token.wait(far()));
                })
            })
            .collect();
        let other = trigger.clone();
        let second = thread::spawn(move || other.fire());
        trigger.fire();
        let n = threads.len() as u64;
        for t in threads {
            t.join().unwrap();
        }
        second.join().unwrap();
        assert_eq!(calls.get(), n);
    });
}
