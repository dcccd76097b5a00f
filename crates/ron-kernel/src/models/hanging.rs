//! The hang pool: a call that returns while its caller gives up.
#![cfg(test)]

use std::time::{Duration, Instant};

use super::{Count, REJECT, explore, far, past, size, thread};
use crate::hang::slots::{After, Overdue, Seat, Slots, Ticket};
use crate::hang::{HangError, HangPool, HangSpec, Pending};
use crate::metrics::{KernelMetrics, Registry};
use crate::supervisor::Supervisor;
use crate::time::SystemClock;
use crate::topology::{Count as Number, Stage, ThreadSpec, Topology};

static WORKERS: ThreadSpec = ThreadSpec {
    name: "m-hang-",
    count: Number::Pool("n"),
    stage: Stage::Work,
    critical: false,
    job: "model",
};
static TOPOLOGY: Topology = Topology {
    service: "model",
    threads: &[WORKERS],
    queues: &[REJECT],
    locks: &[],
};

/// The table of seats: however calls and deadlines race, a job is begun or canceled, a worker that
/// was set aside ends, and at the end every seat has one worker. Mutant `hang`.
#[test]
fn every_seat_ends_up_with_one_worker() {
    const SIZE: usize = size(2, 4);
    explore(|| {
        let slots = std::sync::Arc::new(Slots::new(SIZE, 1));
        let refills = Count::new();
        let (hung, left) = (Count::new(), Count::new());
        let tickets: Vec<_> = (0..SIZE).map(|_| Ticket::new()).collect();
        let workers: Vec<_> = (0..SIZE)
            .map(|slot| {
                let (slots, ticket) = (slots.clone(), tickets[slot].clone());
                let (refills, left) = (refills.clone(), left.clone());
                thread::spawn(move || {
                    let seat = Seat { slot, number: slot };
                    if !slots.begin(seat, &ticket, "op", Instant::now()) {
                        assert!(ticket.never_started());
                        return;
                    }
                    if let After::Leave(refill) = slots.finish(seat) {
                        left.add(1);
                        refills.add(u64::from(refill.is_some()));
                    }
                })
            })
            .collect();
        for ticket in &tickets {
            match slots.overdue(ticket) {
                Overdue::Hangs(aside) => {
                    hung.add(1);
                    refills.add(u64::from(aside.refill.is_some()));
                }
                Overdue::NotStarted => assert!(ticket.never_started()),
                Overdue::Over => {}
            }
        }
        for w in workers {
            w.join().unwrap();
        }
        assert_eq!(slots.aside(), [], "all calls have returned");
        assert_eq!(slots.seated(), SIZE);
        assert_eq!((left.get(), refills.get()), (hung.get(), hung.get()));
    });
}

/// The whole pool with its threads: callers whose deadline passes at once race with the workers
/// and with the drain; each gets one outcome, which is true, and every thread ends. Mutant `hang`.
#[test]
fn callers_get_true_outcomes_and_every_thread_ends() {
    explore(|| {
        let km = KernelMetrics::new(&Registry::new("m"));
        let sup = Supervisor::new(&TOPOLOGY, km, SystemClock::shared());
        let spec = HangSpec {
            threads: &WORKERS,
            queue: &REJECT,
            size: size(1, 2),
            capacity: 1,
            aside_max: 1,
            ops: &["op"],
        };
        let pool = HangPool::start(&sup, spec, |_| Ok(()));
        let callers: Vec<_> = (0..size(1, 4))
            .map(|i| {
                let (pool, ran) = (pool.clone(), Count::new());
                thread::spawn(move || {
                    let seen = ran.clone();
                    let patient = i > 0;
                    let call = pool.submit("op", far(), move |()| seen.add(1));
                    let call = call.map(|c| if patient { c } else { c.until(past()) });
                    match call.and_then(Pending::wait) {
                        Ok(_) => assert_eq!(ran.get(), 1),
                        Err(HangError::Hung) => assert!(!patient && ran.get() <= 1),
                        Err(HangError::Expired) => assert_eq!(ran.get(), 0),
                        Err(HangError::Busy { .. } | HangError::Unavailable) => {
                            assert_eq!(ran.get(), 0);
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        for c in callers {
            c.join().unwrap();
        }
        let report = sup.drain(Duration::from_secs(36_000));
        assert!(report.stragglers.is_empty());
        assert!(sup.topology().threads.is_empty(), "every thread has ended");
        assert!(pool.hanging().is_empty());
        assert_eq!(sup.planes()[0].live, 0);
    });
}
