//! Measures the simulator: operations that do not switch, and switches between two threads and among many.
//!
//! `cargo run --release -p ron-sim --example speed`

use std::sync::Arc;
use std::time::Duration;

use ron_sim::chan;
use ron_sim::sync::Mutex;
use ron_sim::{Outcome, Schedule, Sim, thread, time};

fn run(name: &str, per: &str, count: impl Fn(&Outcome) -> u64, body: fn()) {
    let rates = (0..5).map(|_| {
        // The default schedule, so that every run does the same.
        let sim = Sim {
            steps_max: u64::MAX,
            schedule: Some(Schedule::default()),
            ..Sim::new(1)
        };
        let outcome = sim.run(body);
        assert!(outcome.failure.is_none(), "{outcome}");
        (u128::from(count(&outcome)) * 1_000_000_000 / outcome.took.as_nanos()) as u64
    });
    let mut rates: Vec<u64> = rates.collect();
    rates.sort_unstable();
    let (worst, median, best) = (rates[0], rates[2], rates[4]);
    println!("{name:<40} {median:>10} {per} a second (of five: {worst} to {best})");
}

fn operations() {
    let lock = Mutex::new(0_u64);
    (0..1_000_000).for_each(|_| *lock.lock() += 1);
}

fn ping_pong() {
    let ((there, from_here), (back, from_there)) = (chan::bounded(1), chan::bounded(1));
    let echo = thread::spawn(move || while from_here.recv().is_ok_and(|n| back.send(n).is_ok()) {});
    for n in 0..50_000_u64 {
        assert!(there.send(n).is_ok());
        assert_eq!(from_there.recv(), Ok(n));
    }
    drop(there);
    assert!(echo.join().is_ok());
}

/// As many threads as a few services have.
fn many() {
    let sum = Arc::new(Mutex::new(0_u64));
    let threads: Vec<_> = (0..200)
        .map(|_| {
            let sum = sum.clone();
            thread::spawn(move || {
                for _ in 0..250 {
                    *sum.lock() += 1;
                    time::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().is_ok());
    }
    assert_eq!(*sum.lock(), 50_000);
}

fn main() {
    run(
        "one thread at a lock",
        "operations",
        |o| o.steps,
        operations,
    );
    run(
        "two threads, a message each",
        "switches",
        |o| o.switches,
        ping_pong,
    );
    run(
        "200 threads that wake by the clock",
        "switches",
        |o| o.switches,
        many,
    );
}
