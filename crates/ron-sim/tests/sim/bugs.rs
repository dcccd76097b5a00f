//! Planted bugs: each is found within a stated number of seeds, and its schedule is shortened to a few decisions that
//! fail again.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_sim::sync::{AtomicBool, Condvar, Mutex};
use ron_sim::{Body, Failure, Finding, Sim, chan, thread, time};

use crate::join_all;

/// Searches for the bug, and checks that the finding repeats and is short.
fn found(within: u64, decisions: usize, body: impl Fn() + Send + Sync + 'static) -> Finding {
    let body: Body = Arc::new(body);
    let finding = Sim::new(0).search(0..within, &body);
    let finding = finding.unwrap_or_else(|| panic!("not found within {within} seeds"));
    let (first, short) = (&finding.first, &finding.short);
    let same = first.failure.as_ref().zip(short.failure.as_ref());
    assert!(same.is_some_and(|(a, b)| a.same(b)), "{finding}");
    assert!(short.schedule.len() <= decisions, "{finding}");
    let again = Sim {
        schedule: Some(short.schedule.clone()),
        ..Sim::new(first.seed)
    };
    let again = again.run(move || body());
    assert_eq!((again.hash, &again.failure), (short.hash, &short.failure));
    finding
}

/// Checks whether there is work before it takes the lock under which it waits.
#[test]
fn a_lost_wake_up() {
    let finding = found(500, 3, || {
        let ready = Arc::new(AtomicBool::named("ready", false));
        let bell = Arc::new((Mutex::new(()), Condvar::named("bell")));
        let (set, ring) = (ready.clone(), bell.clone());
        let worker = thread::spawn(move || {
            if !set.load(Ordering::SeqCst) {
                let mut guard = ring.0.lock();
                ring.1.wait(&mut guard);
            }
        });
        ready.store(true, Ordering::SeqCst);
        bell.1.notify_one();
        worker.join().unwrap();
    });
    assert!(matches!(
        finding.short.failure,
        Some(Failure::Deadlock { .. })
    ));
}

#[test]
fn a_deadlock_by_the_order_of_locks() {
    let finding = found(500, 3, || {
        let (a, b) = (
            Arc::new(Mutex::named("a", ())),
            Arc::new(Mutex::named("b", ())),
        );
        let (c, d) = (b.clone(), a.clone());
        let other = thread::spawn(move || {
            let _first = c.lock();
            let _second = d.lock();
        });
        let first = a.lock();
        let second = b.lock();
        drop((first, second));
        other.join().unwrap();
    });
    let text = finding.to_string();
    assert!(
        text.contains("mutex `a`") && text.contains("mutex `b`"),
        "{text}"
    );
}

#[test]
fn a_race_between_a_check_and_its_use() {
    found(500, 2, || {
        let seats = Arc::new(Mutex::named("seats", 1_i32));
        let buyers: Vec<_> = (0..2)
            .map(|_| {
                let seats = seats.clone();
                thread::spawn(move || {
                    if *seats.lock() > 0 {
                        *seats.lock() -= 1;
                    }
                })
            })
            .collect();
        join_all(buyers);
        assert!(*seats.lock() >= 0, "a seat was sold twice");
    });
}

/// The worker ends at the first sight of the stop flag, also when a job was accepted before.
#[test]
fn a_drain_that_drops_a_reply() {
    found(500, 4, || {
        let (tx, jobs) = chan::named::<chan::Sender<u8>>("jobs", 4);
        let stop = Arc::new(AtomicBool::named("stop", false));
        let stopped = stop.clone();
        let worker = thread::spawn_named("worker".to_owned(), move || {
            while !stopped.load(Ordering::SeqCst) {
                let at = time::now() + Duration::from_millis(10);
                if let Ok(reply) = jobs.recv_deadline(at) {
                    let _ = reply.send(1);
                }
            }
        });
        let client = thread::spawn_named("client".to_owned(), move || {
            let (reply, answer) = chan::named("reply", 1);
            let accepted = tx.send(reply).is_ok();
            (accepted, answer.recv())
        });
        time::sleep(Duration::from_micros(1));
        stop.store(true, Ordering::SeqCst);
        worker.unwrap().join().unwrap();
        let (accepted, answer) = client.unwrap().join().unwrap();
        assert!(!accepted || answer.is_ok(), "an accepted job was dropped");
    });
}

/// Fails only when a thread does not run for long, though it could: a heartbeat that comes too late.
#[test]
fn a_starved_thread() {
    found(500, 2, || {
        let beat = Arc::new(AtomicBool::named("beat", false));
        let set = beat.clone();
        let heart = thread::spawn_named("heart".to_owned(), move || {
            set.store(true, Ordering::SeqCst);
        });
        let others: Vec<_> = (0..2)
            .map(|_| thread::spawn(|| (0..400).for_each(|_| thread::yield_now())))
            .collect();
        join_all(others);
        assert!(beat.load(Ordering::SeqCst), "no heartbeat in 800 steps");
        heart.unwrap().join().unwrap();
    });
}

#[test]
fn correct_programs_pass_all_seeds() {
    Sim::new(0).check(0..500, || {
        let sum = Arc::new(Mutex::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let sum = sum.clone();
                thread::spawn(move || *sum.lock() += 1)
            })
            .collect();
        join_all(threads);
        assert_eq!(*sum.lock(), 3);
    });
}

/// The program that users run first.
#[test]
fn the_example_finds_both_of_its_bugs() {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    dir.pop();
    let program = dir.join("examples/warehouse");
    assert!(
        program.exists(),
        "{} is built with the tests",
        program.display()
    );
    let out = Command::new(program).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}");
    for part in [
        "a lost wake-up",
        "deadlock",
        "a lost update",
        "money was made or lost",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(text.matches("time line:").count(), 2, "{text}");
}
