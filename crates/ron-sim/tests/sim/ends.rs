//! How runs end: with the first thread, by a panic, a deadlock, a limit, or a thread that blocks outside.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_sim::sync::{AtomicBool, Mutex};
use ron_sim::{Failure, Sim, thread, time};

use crate::passes;

#[test]
fn a_run_ends_with_its_first_thread() {
    let outcome = passes(&Sim::new(1), || {
        drop(thread::spawn_named("ticker".to_owned(), || {
            loop {
                time::sleep(Duration::from_secs(1));
            }
        }));
        time::sleep(Duration::from_secs(10));
    });
    assert_eq!(outcome.left.len(), 1);
    assert!(
        outcome.left[0].starts_with("`ticker`"),
        "{:?}",
        outcome.left
    );
}

#[test]
fn a_panic_is_reported_with_thread_message_and_seed() {
    let outcome = Sim::new(77).run(|| {
        let broken = thread::spawn_named("worker".to_owned(), || panic!("no more {}", "paper"));
        let _ = broken.unwrap().join();
    });
    let text = outcome.to_string();
    for part in [
        "seed 77",
        "`worker` panicked: no more paper",
        "tests/sim/ends.rs",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_panic_that_is_caught_is_none_of_the_run() {
    passes(&Sim::new(1), || {
        let lock = Arc::new(Mutex::new(1));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("inside");
        }));
        assert!(caught.is_err());
        assert_eq!(*lock.lock(), 1, "free, and not poisoned");
    });
}

#[test]
fn a_check_ends_the_run_where_a_panic_would_be_caught() {
    let outcome = Sim::new(1).run(|| {
        let caught = std::panic::catch_unwind(|| ron_sim::ensure(1 + 1 == 3, "arithmetic"));
        drop(caught);
    });
    let text = outcome.to_string();
    assert!(
        matches!(outcome.failure, Some(Failure::Check { .. })),
        "{text}"
    );
    for part in ["a check in `main`", "arithmetic at ", "tests/sim/ends.rs"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    passes(&Sim::new(1), || ron_sim::ensure(true, "nothing"));
}

#[test]
fn a_deadlock_names_every_thread_and_what_it_waits_for() {
    let outcome = Sim::new(1).run(|| {
        let lock = Arc::new(Mutex::named("ledger", ()));
        let _held = lock.lock();
        let other = lock.clone();
        let waiter = thread::spawn_named("auditor".to_owned(), move || drop(other.lock()));
        let _ = waiter.unwrap().join();
    });
    let text = outcome.to_string();
    for part in [
        "deadlock",
        "`auditor` waits for mutex `ledger`",
        "which `main` holds",
        "`main` waits for end of `auditor`",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn threads_that_wait_in_loops_reach_the_limit() {
    let sim = Sim {
        steps_max: 20_000,
        ..Sim::new(1)
    };
    let outcome = sim.run(|| {
        let never = AtomicBool::new(false);
        while !never.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    });
    let Some(Failure::Livelock { limit, threads }) = outcome.failure else {
        panic!("{outcome}");
    };
    assert_eq!((limit.as_str(), threads.len()), ("20000 steps", 1));
    let forever = Sim::new(1).run(|| {
        loop {
            time::sleep(Duration::from_secs(3_600));
        }
    });
    assert!(
        matches!(forever.failure, Some(Failure::Livelock { .. })),
        "{forever}"
    );
}

#[test]
fn a_loop_without_a_yield_meets_the_thread_that_ends_it() {
    Sim::new(0).check(0..60, || {
        let set = Arc::new(AtomicBool::new(false));
        let other = set.clone();
        let setter = thread::spawn(move || other.store(true, Ordering::SeqCst));
        while !set.load(Ordering::SeqCst) {}
        setter.join().unwrap();
    });
}

#[test]
fn a_thread_that_blocks_in_the_machine_is_named() {
    let sim = Sim {
        stuck_after: Duration::from_secs(2),
        ..Sim::new(1)
    };
    let outcome = sim.run(|| {
        let blocked = thread::spawn_named("blocked".to_owned(), || {
            std::thread::sleep(Duration::from_secs(3_600));
        });
        let _ = blocked.unwrap().join();
    });
    let Some(Failure::Stuck { thread, system }) = outcome.failure else {
        panic!("{outcome}");
    };
    assert_eq!(thread, "blocked");
    assert!(system.contains("syscall"), "{system}");
}

/// The machine refuses a thread with a stack that no memory can hold.
#[test]
fn a_thread_that_the_machine_refuses_is_reported() {
    let sim = Sim {
        stack_bytes: 1 << 60,
        ..Sim::new(1)
    };
    let lock = Mutex::new(0);
    let outcome = sim.run(move || drop(lock.lock()));
    assert!(
        matches!(outcome.failure, Some(Failure::NoThread { .. })),
        "{outcome}"
    );
}

#[test]
fn no_thread_runs_inside_an_undivided_section_and_a_wait_in_it_fails() {
    // A lock of the machine, held over operations: without the section a thread blocks in it for ever.
    let body = |undivided: bool| {
        move || {
            let library = Arc::new(std::sync::Mutex::new(0));
            let ours = Arc::new(Mutex::named("ours", 0));
            let scrape = move || {
                let mut held = library.lock().unwrap();
                (0..5).for_each(|_| *ours.lock() += 1);
                *held += 1;
            };
            let threads = (0..3).map(|_| {
                let scrape = scrape.clone();
                thread::spawn(move || {
                    if undivided {
                        ron_sim::undivided(scrape);
                    } else {
                        scrape();
                    }
                })
            });
            crate::join_all(threads.collect());
        }
    };
    let sim = Sim {
        stuck_after: Duration::from_secs(2),
        ..Sim::new(0)
    };
    sim.check(0..200, body(true));
    let stuck = (0..200).find_map(|seed| {
        Sim {
            seed,
            ..sim.clone()
        }
        .run(body(false))
        .failure
    });
    assert!(matches!(stuck, Some(Failure::Stuck { .. })), "{stuck:?}");
    let outcome = Sim::new(1).run(|| {
        ron_sim::undivided(|| time::sleep(Duration::from_secs(1)));
    });
    let text = outcome.to_string();
    assert!(text.contains("an undivided section sleeps"), "{text}");
    assert_eq!(ron_sim::undivided(|| 7), 7); // outside of a run
}

#[test]
fn a_note_is_a_line_of_the_record_and_part_of_its_hash_but_changes_no_decision() {
    let run = |note: &'static str, keep_trace| {
        let sim = Sim {
            keep_trace,
            ..Sim::new(3)
        };
        passes(&sim, move || {
            ron_sim::note(note);
            drop(Mutex::new(0).lock());
            ron_sim::note("the end");
        })
    };
    let (a, b) = (run("answered", true), run("refused", true));
    let lines: Vec<_> = a.trace.text().lines().map(str::to_owned).collect();
    assert!(lines[0].ends_with("notes answered") && lines[2].ends_with("notes the end"));
    assert_ne!(a.hash, b.hash);
    assert_eq!((a.steps, a.time), (b.steps, b.time));
    assert_eq!(run("answered", false).hash, a.hash);
}
