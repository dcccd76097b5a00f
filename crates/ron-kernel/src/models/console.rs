//! The console's protocols: a sampler, requests that read its published view and then its state,
//! the refresh of keys, and shutdown.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use super::{Count, OLDEST, REJECT, explore, size, thread};
use crate::loops::{NextRead, read_again, work_and_report};
use crate::published::Published;
use crate::queue::{Recv, bare_queue};
use crate::reply::reply;
use crate::shutdown::Shutdown;
use crate::snapshot::Snapshot;
use crate::time::SystemClock;
use crate::topology::LockSpec;

static NODE: LockSpec = LockSpec {
    name: "node",
    rank: 1,
    guards: "model",
};

const LONG: Duration = Duration::from_secs(36_000);

/// Samples arrive and keys change while requests are answered: every request sees whole views, the
/// state is at least as new as the view loaded before, key versions never decrease, every poll is
/// reported, a request for keys gets a read that began afterwards, and shutdown ends both loops.
/// Mutants `publish`, `asked`.
#[test]
fn requests_see_whole_views_while_samples_and_keys_change() {
    const LOOKS: u64 = size(2, 5) as u64;
    const REQUESTS: usize = size(1, 3);
    explore(|| {
        let (stop, shutdown) = Shutdown::pair();
        let node = Arc::new(Published::new(&NODE, 0_u64, (0_u64, 0_u64)));
        let keys = Arc::new(Snapshot::new(0_u64));
        let (looks, due) = bare_queue::<u64>(&REJECT, LOOKS as usize);
        let (told, reports) = bare_queue::<u64>(&REJECT, LOOKS as usize);
        let (ask, asked) = bare_queue::<()>(&OLDEST, 1);
        for look in 1..=LOOKS {
            assert_eq!(looks.try_send(look), Ok(()));
        }

        let sampler = {
            let (node, shutdown) = (node.clone(), shutdown.clone());
            thread::spawn(move || {
                work_and_report(&due, &told, &shutdown, |look| {
                    node.change(|memory| {
                        *memory = look;
                        (look, look * 10)
                    });
                    look
                });
            })
        };
        let (second, began) = reply::<()>();
        let refresher = {
            let (keys, shutdown) = (keys.clone(), shutdown.clone());
            let mut second = Some(second);
            thread::spawn(move || {
                read_again(&asked, &shutdown, &SystemClock, || {
                    let version = *keys.load() + 1;
                    if version == 2 {
                        let told = second.take().map(|second| second.send(()));
                        assert_eq!(told, Some(Ok(())));
                    }
                    keys.store(version);
                    NextRead {
                        after: LONG,
                        floor: Duration::ZERO,
                    }
                });
            })
        };
        let handler = {
            let (node, keys) = (node.clone(), keys.clone());
            thread::spawn(move || {
                for _ in 0..REQUESTS {
                    let known = *keys.load();
                    let view = node.view();
                    assert_eq!(view.1, view.0 * 10, "a torn view");
                    assert!(
                        node.with(|memory| *memory) >= view.0,
                        "a view newer than the state"
                    );
                    assert!(*keys.load() >= known, "older keys after newer ones");
                }
                assert_eq!(ask.try_send(()), Ok(()), "a request never waits");
            })
        };

        let seen = Count::new();
        while seen.get() < LOOKS {
            match reports.recv(&shutdown, super::far()) {
                Recv::Item(look) => assert_eq!(look, seen.add(1) + 1, "out of order"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(began.wait(super::far()), Ok(()));
        handler.join().unwrap();
        stop.fire();
        sampler.join().unwrap();
        refresher.join().unwrap();
        assert_eq!(*node.view(), (LOOKS, LOOKS * 10));
    });
}

/// A worker keeps its report while the queue is full and delivers it afterwards. Mutant `report`.
#[test]
fn no_report_is_lost_in_a_full_queue() {
    explore(|| {
        let (stop, shutdown) = Shutdown::pair();
        let (looks, due) = bare_queue::<u64>(&REJECT, 1);
        let (told, reports) = bare_queue::<u64>(&REJECT, 1);
        assert_eq!((told.try_send(0), looks.try_send(1)), (Ok(()), Ok(())));
        let sampler = {
            let shutdown = shutdown.clone();
            thread::spawn(move || work_and_report(&due, &told, &shutdown, |look| look))
        };
        for want in [0, 1] {
            match reports.recv(&shutdown, super::far()) {
                Recv::Item(look) => assert_eq!(look, want),
                other => panic!("{other:?}"),
            }
        }
        stop.fire();
        sampler.join().unwrap();
    });
}

/// Shutdown may come at any moment, also before the first poll: both loops end, and the view
/// matches the state.
#[test]
fn shutdown_ends_both_loops_at_any_moment() {
    explore(|| {
        let (stop, shutdown) = Shutdown::pair();
        let node = Arc::new(Published::new(&NODE, 0_u64, 0_u64));
        let (looks, due) = bare_queue::<u64>(&REJECT, 1);
        let (told, reports) = bare_queue::<u64>(&REJECT, 1);
        let (ask, asked) = bare_queue::<()>(&OLDEST, 1);
        assert_eq!(told.try_send(0), Ok(()), "the report queue is full");
        assert_eq!((looks.try_send(1), ask.try_send(())), (Ok(()), Ok(())));
        let reads = Count::new();
        let sampler = {
            let (node, shutdown) = (node.clone(), shutdown.clone());
            thread::spawn(move || {
                work_and_report(&due, &told, &shutdown, |look| {
                    node.change(|memory| {
                        *memory = look;
                        look
                    });
                    look
                });
            })
        };
        let refresher = {
            let (reads, shutdown) = (reads.clone(), shutdown.clone());
            thread::spawn(move || {
                read_again(&asked, &shutdown, &SystemClock, || {
                    reads.add(1);
                    NextRead {
                        after: LONG,
                        floor: Duration::ZERO,
                    }
                });
            })
        };
        stop.fire();
        sampler.join().unwrap();
        refresher.join().unwrap();
        assert_eq!(*node.view(), node.with(|memory| *memory));
        assert!(reads.get() <= 2);
        drop(reports);
    });
}
