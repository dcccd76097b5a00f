//! The kernel in virtual time: deadlines that pass, calls that hang, threads that do not stop, crashes by the minute.
//! Only the simulator can run these: in a model of the checkers no wait ends by its deadline.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use ron_sim::{Sim, ensure, fault};

use super::{Count, REJECT, Tally, WAIT, explore, explore_with, far, thread};
use crate::deadline::Deadline;
use crate::exit;
use crate::guarded_clock::GuardedClock;
use crate::hang::{HangError, HangPool, HangSpec};
use crate::metrics::{KernelMetrics, Registry};
use crate::queue::{Expires, Receiver, Recv, SendError, Sender, queue};
use crate::random::OsRandom;
use crate::reply::{ReplySender, WaitError, reply};
use crate::shutdown::Shutdown;
use crate::supervisor::{BUDGET, Supervisor, ThreadCtx};
use crate::sync::now;
use crate::ticker::Ticker;
use crate::time::{Clock, SystemClock};
use crate::topology::{Count as Number, Stage, ThreadSpec, Topology};

static INTAKE: ThreadSpec = row("m-intake-", Number::Pool("n"), Stage::Intake, false);
static WORKERS: ThreadSpec = row("m-work-", Number::Pool("n"), Stage::Work, false);
static OWNER: ThreadSpec = row("m-owner", Number::One, Stage::Write, true);
static TOPOLOGY: Topology = Topology {
    service: "model",
    threads: &[INTAKE, WORKERS, OWNER],
    queues: &[REJECT, WAIT],
    locks: &[],
};

const fn row(name: &'static str, count: Number, stage: Stage, critical: bool) -> ThreadSpec {
    ThreadSpec {
        name,
        count,
        stage,
        critical,
        job: "model",
    }
}

fn supervisor() -> (KernelMetrics, Supervisor) {
    let km = KernelMetrics::new(&Registry::new("m"));
    let sup = Supervisor::new(&TOPOLOGY, km.clone(), SystemClock::shared());
    (km, sup)
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a wait may take beyond its deadline, because other threads run first: 10,000 steps of 10 us, the longest that a
/// ready thread is passed over, a few times.
const LATE: Duration = ms(500);

/// Fails unless the deadline has just passed.
fn just_expired(deadline: Deadline) {
    ensure(deadline.expired(), "not early");
    ensure(now() < deadline.at() + LATE, "not late");
}

struct Job {
    deadline: Deadline,
    reply: ReplySender<u64>,
    /// Set when the job is given up on purpose.
    doomed: Count,
}

impl Expires for Job {
    fn deadline(&self) -> Deadline {
        self.deadline
    }
}

fn work(jobs: &Receiver<Job>, ctx: &ThreadCtx, crashes: &Tally) {
    loop {
        let job = match jobs.recv_fresh(&ctx.shutdown, Deadline::within(ms(60_000))) {
            Recv::Item(job) => job,
            Recv::Timeout => continue,
            Recv::Shutdown | Recv::Closed => match jobs.try_recv_fresh() {
                Some(job) => job,
                None => return,
            },
        };
        if fault::happens("a crash", 50_000) {
            job.doomed.add(1);
            crashes.add(1);
            panic!("planted");
        }
        // Mostly short, so that workers are often idle; now and then longer than a request may take.
        let long = fault::happens("a slow job", 100_000);
        ron_sim::time::sleep(ms(fault::choose(if long { 200 } else { 3 })));
        let _ = job.reply.send(7);
    }
}

/// How the requests of all clients ended.
#[derive(Clone, Default)]
struct Ends {
    answered: Tally,
    refused: Tally,
    late: Tally,
    dropped: Tally,
    crashes: Tally,
}

const WORKERS_MAX: u64 = 2;

fn request(jobs: &Sender<Job>, ends: &Ends, exact: bool) {
    let deadline = Deadline::within(ms(10 + fault::choose(100)));
    let (reply, answer) = reply();
    let doomed = Count::new();
    let job = Job {
        deadline,
        reply,
        doomed: doomed.clone(),
    };
    match jobs.try_send(job) {
        Err(SendError::Full(_)) => ends.refused.add(1),
        Err(SendError::Closed(_)) => ensure(false, "the workers stop after the clients"),
        Ok(()) => match answer.wait(deadline) {
            Ok(answer) => {
                ensure(answer == 7, "the answer of its own job");
                ends.answered.add(1);
            }
            Err(WaitError::Timeout) => {
                if exact {
                    just_expired(deadline);
                }
                ends.late.add(1);
            }
            Err(WaitError::Dropped) => {
                let for_a_reason = doomed.get() > 0 || deadline.expired();
                let one_is_left = ends.crashes.get() < WORKERS_MAX;
                ensure(for_a_reason || !one_is_left, "no accepted job is dropped");
                ends.dropped.add(1);
            }
        },
    }
}

/// Clients, workers that crash, and a drain at any moment.
fn serve(exact: bool) {
    const CLIENTS: u64 = 3;
    const EACH: u64 = 5;
    let (km, sup) = supervisor();
    let (tx, jobs) = queue(&REJECT, 2, &km);
    let (ends, asked) = (Ends::default(), Tally::default());
    let crashes = ends.crashes.clone();
    sup.spawn_pool(&WORKERS, WORKERS_MAX as usize, move |ctx| {
        work(&jobs, ctx, &crashes)
    });
    let (all, count, left) = (ends.clone(), asked.clone(), tx.clone());
    // The drain begins beside a request, because between two of them there is nothing to lose.
    let (begin, begun) = Shutdown::pair();
    let last = fault::choose(CLIENTS * EACH);
    sup.spawn_pool(&INTAKE, CLIENTS as usize, move |ctx| {
        for _ in 0..EACH {
            if ctx.shutdown.is_set() {
                break;
            }
            count.add(1);
            if count.get() > last {
                begin.fire();
            }
            request(&tx, &all, exact);
            ctx.shutdown.wait(Deadline::within(ms(fault::choose(20))));
        }
        ctx.wait_for_shutdown();
    });
    begun.wait(Deadline::within(ms(1_000)));
    let report = sup.drain(ms(10_000));
    if exact {
        assert!(report.took < ms(11_000), "{report:?}");
        assert_eq!(report.stragglers, [""; 0]);
        assert!(sup.topology().threads.is_empty());
    }
    if report.stragglers.is_empty() {
        // Jobs are dropped when the drain reaches the stage while every worker is in the pause after a crash, because none
        // of them runs again. Their callers learn it at once.
        assert!(left.is_empty(), "no worker took an accepted job");
        let ended = [ends.answered, ends.refused, ends.late, ends.dropped];
        let ended: u64 = ended.iter().map(Tally::get).sum();
        assert_eq!(ended, asked.get(), "a request without an end");
    }
}

/// Every request is answered, refused, late by its deadline, or dropped for a reason; the drain ends within its time.
#[test]
fn every_request_has_one_end_and_the_drain_is_in_time() {
    explore(|| serve(true));
}

/// The same while the whole service stands still for seconds at any moment, where only the times may differ.
#[test]
fn pauses_lose_nothing() {
    let sim = Sim {
        pauses: true,
        ..super::sim()
    };
    explore_with(&sim, || serve(false));
}

/// A device that hangs: callers learn it at their deadlines, at most `size + aside_max` calls run, and when they have
/// returned every seat has a worker again. Mutant `hang`.
#[test]
fn calls_that_hang_delay_nobody_and_every_seat_is_filled_again() {
    explore(|| {
        let (_km, sup) = supervisor();
        let spec = HangSpec {
            threads: &WORKERS,
            queue: &REJECT,
            size: 2,
            capacity: 4,
            aside_max: 1,
            ops: &["op"],
        };
        let pool = HangPool::start(&sup, spec, |_| Ok(()));
        let running = Count::new();
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let (pool, running) = (pool.clone(), running.clone());
                thread::spawn(move || {
                    for _ in 0..3 {
                        let deadline = Deadline::within(ms(200));
                        let running = running.clone();
                        let call = pool.call("op", deadline, move |()| {
                            ensure(running.add(1) < 3, "at most size + aside_max calls run");
                            let hangs = fault::happens("the device hangs", 300_000);
                            ron_sim::time::sleep(ms(if hangs { 3_000 } else { 5 }));
                            running.sub(1);
                            7
                        });
                        match call {
                            Ok(answer) => assert_eq!(answer, 7),
                            Err(HangError::Hung) => just_expired(deadline),
                            Err(HangError::Expired) => assert!(deadline.expired()),
                            Err(HangError::Busy { .. } | HangError::Unavailable) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        ron_sim::time::sleep(ms(60_000));
        assert_eq!(pool.hanging(), []);
        assert_eq!(pool.seated(), 2);
        let report = sup.drain(ms(10_000));
        assert!(
            report.stragglers.is_empty() && report.took < LATE,
            "{report:?}"
        );
        assert_eq!(sup.planes()[0].live, 0);
    });
}

/// A thread that does not stop is named, and the drain takes its time and no more.
#[test]
fn a_drain_ends_in_time_beside_a_thread_that_does_not_stop() {
    explore(|| {
        let (_km, sup) = supervisor();
        let ended = Count::new();
        let stopped = ended.clone();
        sup.spawn_pool(&WORKERS, 2, |ctx| {
            ctx.wait_for_shutdown();
            if ctx.index == 1 {
                ron_sim::time::sleep(ms(60_000));
            }
        });
        sup.spawn(&OWNER, move |ctx| {
            ctx.wait_for_shutdown();
            stopped.add(1);
        });
        let report = sup.drain(ms(5_000));
        assert_eq!(report.stragglers, ["m-work-1"]);
        assert!(
            (ms(5_000)..ms(5_000) + LATE).contains(&report.took),
            "{report:?}"
        );
        assert_eq!(ended.get(), 1, "later stages have their share of the time");
        assert_eq!(sup.exit_code(&report), exit::STRAGGLERS);
    });
}

/// A thread that crashes at once is restarted at short and growing pauses until its budget of a minute is used up; a
/// critical one ends the process.
#[test]
fn crashes_use_up_the_budget_of_a_minute() {
    explore(|| {
        let (_km, sup) = supervisor();
        let (runs, first) = (Count::new(), now());
        let seen = runs.clone();
        sup.spawn(&OWNER, move |_| {
            if seen.add(1) == 1 {
                ensure(now() - first < ms(100) + LATE, "the first restart is soon");
            }
            panic!("planted");
        });
        assert!(sup.fatal_token().wait(Deadline::within(ms(120_000))));
        assert_eq!(runs.get(), BUDGET as u64 + 1);
        let plane = &sup.planes()[0];
        assert_eq!((plane.lost, plane.live), (1, 0));
        let report = sup.drain(ms(1_000));
        assert!(report.stragglers.is_empty());
        assert_eq!(sup.exit_code(&report), exit::FATAL);
    });
}

/// Ticks stay on their grid, whatever the work of a tick takes.
#[test]
fn ticks_stay_on_their_grid() {
    const PERIOD: Duration = ms(250);
    explore(|| {
        let (stop, shutdown) = Shutdown::pair();
        let clock = SystemClock;
        let start = clock.now();
        let mut ticker = Ticker::new(SystemClock::shared(), PERIOD);
        let ticking = thread::spawn(move || {
            let mut last = 0;
            while let Some(tick) = ticker.wait(&shutdown) {
                assert_eq!(tick.number, last + 1 + tick.missed);
                let at = (clock.now() - start).saturating_sub(PERIOD * tick.number as u32);
                // The clock goes on between the tick and this reading of it.
                assert!(at < PERIOD + LATE, "tick {} is {at:?} late", tick.number);
                last = tick.number;
                ron_sim::time::sleep(ms(fault::choose(900)));
            }
            last
        });
        ron_sim::time::sleep(ms(20_000));
        stop.fire();
        let last = ticking.join().unwrap();
        assert!((20..=80).contains(&last), "{last}");
    });
}

/// A sender waits for room until its deadline; its item is accepted or returned, and what is accepted arrives.
/// Mutant `wait`.
#[test]
fn a_sender_waits_for_room_until_its_deadline() {
    explore(|| {
        let (km, _sup) = supervisor();
        let (_stop, shutdown) = Shutdown::pair();
        let (tx, rx) = queue::<u64>(&WAIT, 1, &km);
        let sent = Count::new();
        let senders: Vec<_> = (0..3)
            .map(|_| {
                let (tx, sent) = (tx.clone(), sent.clone());
                thread::spawn(move || {
                    for n in 0..4 {
                        let deadline = Deadline::within(ms(20));
                        match tx.send(n, deadline) {
                            Ok(()) => {
                                sent.add(1);
                            }
                            Err(SendError::Full(back)) => {
                                assert_eq!(back, n);
                                just_expired(deadline);
                            }
                            Err(SendError::Closed(_)) => panic!("the receiver is alive"),
                        }
                    }
                })
            })
            .collect();
        drop(tx);
        let mut got = 0;
        while let Recv::Item(_) = rx.recv(&shutdown, far()) {
            got += 1;
            ron_sim::time::sleep(ms(fault::choose(30)));
        }
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(got, sent.get());
    });
}

/// The waiter's deadline passes while the answer is on its way: one of the two ends, never both, never neither.
#[test]
fn an_answer_at_the_deadline_is_in_time_or_late() {
    let (in_time, too_late) = (Arc::new(Tally::default()), Arc::new(Tally::default()));
    let (yes, no) = (in_time.clone(), too_late.clone());
    explore(move || {
        let (tx, rx) = reply::<u8>();
        let deadline = Deadline::within(ms(10));
        let sender = thread::spawn(move || {
            let early = Duration::from_micros(fault::choose(20));
            ron_sim::time::sleep(deadline.remaining().saturating_sub(early));
            tx.send(7)
        });
        match (rx.wait(deadline), sender.join().unwrap()) {
            (Ok(7), Ok(())) => yes.add(1),
            (Err(WaitError::Timeout), Err(7)) => no.add(1),
            other => panic!("{other:?}"),
        }
    });
    let both = in_time.get().min(too_late.get());
    assert!(
        both > 0 || std::env::var("RON_SIM_SEED").is_ok(),
        "both ends are met"
    );
}

/// Random numbers and dates are those of the seed, also of the types that a service uses.
#[test]
fn randomness_and_dates_repeat() {
    let draw = |seed| {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        let outcome = Sim::new(seed).run(move || {
            let clock = GuardedClock::shared(Duration::from_hours(24));
            ron_sim::time::sleep(ms(5_000));
            let dates = (clock.unix_ms(), SystemClock.unix_ms());
            let sent = tx.send((OsRandom.bytes::<32>(), dates));
            ensure(sent.is_ok(), "the test waits");
        });
        assert!(outcome.failure.is_none(), "{outcome}");
        rx.recv().unwrap()
    };
    let (bytes, (guarded, machine)) = draw(1);
    assert_eq!(draw(1), (bytes, (guarded, machine)));
    assert_ne!(draw(2).0, bytes);
    assert!(machine.abs_diff(guarded) <= 1);
    let start_of_2026 = 1_767_225_600_000;
    assert!(
        (5_000..5_010).contains(&(machine - start_of_2026)),
        "{machine}"
    );
}
