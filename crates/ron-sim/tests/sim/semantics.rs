//! Each primitive against what it promises, and against simple models.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use ron_sim::chan::{self, RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError, select};
use ron_sim::sync::{AtomicU64, Condvar, Gate, Mutex, RwLock, Swap};
use ron_sim::{Sim, thread, time};

use crate::{join_all, passes};

fn ms(ms: u64) -> std::time::Instant {
    time::now() + Duration::from_millis(ms)
}

#[derive(Clone, Debug)]
enum Step {
    TrySend(u8),
    Send(u8),
    TryRecv,
    Recv,
    DropSenders,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::TrySend),
        2 => any::<u8>().prop_map(Step::Send),
        4 => Just(Step::TryRecv),
        2 => Just(Step::Recv),
        1 => Just(Step::DropSenders),
    ]
}

/// One thread at a channel, beside a queue that is a list.
fn compare(capacity: usize, steps: Vec<Step>) {
    let (tx, rx) = chan::bounded(capacity);
    let (mut tx, mut list) = (Some(tx), VecDeque::new());
    for step in steps {
        let full = list.len() == capacity;
        match (step, &tx) {
            (Step::TrySend(item), Some(tx)) => {
                let sent = tx.try_send(item);
                assert_eq!(
                    sent,
                    if full {
                        Err(TrySendError::Full(item))
                    } else {
                        Ok(())
                    }
                );
                if !full {
                    list.push_back(item);
                }
            }
            (Step::Send(item), Some(tx)) => {
                let sent = tx.send_deadline(item, ms(1));
                let timeout = Err(SendTimeoutError::Timeout(item));
                assert_eq!(sent, if full { timeout } else { Ok(()) });
                if !full {
                    list.push_back(item);
                }
            }
            (Step::TrySend(_) | Step::Send(_), None) => {}
            (Step::TryRecv, tx) => {
                let none = match tx {
                    Some(_) => TryRecvError::Empty,
                    None => TryRecvError::Disconnected,
                };
                assert_eq!(rx.try_recv(), list.pop_front().ok_or(none));
            }
            (Step::Recv, tx) => {
                let none = match tx {
                    Some(_) => RecvTimeoutError::Timeout,
                    None => RecvTimeoutError::Disconnected,
                };
                assert_eq!(rx.recv_deadline(ms(1)), list.pop_front().ok_or(none));
            }
            (Step::DropSenders, _) => tx = None,
        }
        assert_eq!((rx.len(), rx.is_empty()), (list.len(), list.is_empty()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_channel_is_a_bounded_list(
        seed: u64,
        capacity in 1_usize..4,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        passes(&Sim::new(seed), move || compare(capacity, steps));
    }

    /// Senders and receivers of all kinds: every item arrives once, those of one sender in order.
    #[test]
    fn every_item_arrives_once_and_in_order(
        seed: u64,
        capacity in 1_usize..4,
        senders in 1_u64..4,
        receivers in 1_usize..4,
        each in 1_u64..6,
    ) {
        passes(&Sim::new(seed), move || {
            let (tx, rx) = chan::bounded(capacity);
            let sending = (0..senders).map(|s| {
                let tx = tx.clone();
                thread::spawn(move || (0..each).for_each(|n| tx.send(s * 100 + n).unwrap()))
            });
            let sending: Vec<_> = sending.collect();
            let receiving: Vec<_> = (0..receivers)
                .map(|_| {
                    let rx = rx.clone();
                    thread::spawn(move || std::iter::from_fn(|| rx.recv().ok()).collect::<Vec<_>>())
                })
                .collect();
            drop((tx, rx));
            join_all(sending);
            let parts: Vec<Vec<u64>> = join_all(receiving);
            for part in &parts {
                for s in 0..senders {
                    assert!(part.iter().filter(|i| **i / 100 == s).is_sorted(), "{part:?}");
                }
            }
            let mut all: Vec<u64> = parts.concat();
            all.sort_unstable();
            let sent = (0..senders).flat_map(|s| (0..each).map(move |n| s * 100 + n));
            assert_eq!(all, sent.collect::<Vec<_>>());
        });
    }
}

#[test]
fn the_last_receiver_drops_what_is_left_and_senders_notice() {
    Sim::new(0).check(0..100, || {
        let (tx, rx) = chan::bounded(1);
        let item = Arc::new(());
        tx.send(item.clone()).unwrap();
        let sender = thread::spawn({
            let (tx, item) = (tx.clone(), item.clone());
            move || tx.send(item)
        });
        drop(rx);
        assert!(sender.join().unwrap().is_err());
        assert!(matches!(
            tx.try_send(item.clone()),
            Err(TrySendError::Disconnected(_))
        ));
        assert_eq!(Arc::strong_count(&item), 1);
    });
}

#[test]
fn a_mutex_excludes_and_its_guard_frees_it() {
    Sim::new(0).check(0..200, || {
        let value = Arc::new(Mutex::new(0));
        let inside = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (value, inside) = (value.clone(), inside.clone());
                thread::spawn(move || {
                    let mut guard = value.lock();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    *guard += 1;
                    assert!(value.try_lock().is_none());
                    inside.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        join_all(threads);
        assert_eq!(value.try_lock().map(|v| *v), Some(4));
        assert_eq!(Arc::into_inner(value).unwrap().into_inner(), 4);
    });
}

#[test]
fn readers_share_and_writers_exclude() {
    let readers_met = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let met = readers_met.clone();
    Sim::new(0).check(0..200, move || {
        let lock = Arc::new(RwLock::new((0, 0)));
        let inside = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for n in 0..4 {
            let (lock, inside, met) = (lock.clone(), inside.clone(), met.clone());
            threads.push(thread::spawn(move || {
                if n < 2 {
                    let seen = lock.read();
                    if inside.fetch_add(1, Ordering::SeqCst) == 1 {
                        met.fetch_add(1, Ordering::SeqCst);
                    }
                    assert_eq!(seen.0, seen.1, "torn");
                    inside.fetch_sub(1, Ordering::SeqCst);
                } else {
                    let mut both = lock.write();
                    assert_eq!(inside.load(Ordering::SeqCst), 0, "a reader beside a writer");
                    both.0 += 1;
                    thread::yield_now();
                    both.1 += 1;
                }
            }));
        }
        join_all(threads);
        assert_eq!(*lock.read(), (2, 2));
    });
    assert!(readers_met.load(Ordering::SeqCst) > 0, "readers never met");
}

#[test]
fn a_condition_wakes_one_or_all_and_times_out_at_its_moment() {
    Sim::new(0).check(0..200, || {
        let pair = Arc::new((Mutex::new(0_u32), Condvar::new()));
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let pair = pair.clone();
                thread::spawn(move || {
                    let mut turns = pair.0.lock();
                    while *turns == 0 {
                        pair.1.wait(&mut turns);
                    }
                    *turns -= 1;
                })
            })
            .collect();
        *pair.0.lock() += 1;
        pair.1.notify_one();
        *pair.0.lock() += 2;
        pair.1.notify_all();
        join_all(waiting);
        let mut turns = pair.0.lock();
        let start = time::now();
        assert!(
            pair.1
                .wait_until(&mut turns, start + Duration::from_secs(5))
                .timed_out()
        );
        let took = time::now() - start;
        assert!((5_000..5_002).contains(&took.as_millis()), "{took:?}");
        assert!(
            pair.1.wait_until(&mut turns, start).timed_out(),
            "a moment that has passed"
        );
    });
}

#[test]
fn every_waiting_thread_can_be_the_one_that_is_woken() {
    let woken: Arc<Mutex<[u32; 3]>> = Arc::default();
    let count = woken.clone();
    Sim::new(0).check(0..300, move || {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let waits: Vec<_> = (0..3)
            .map(|n| {
                let (pair, count) = (pair.clone(), count.clone());
                thread::spawn(move || {
                    let mut free = pair.0.lock();
                    let at = time::now() + Duration::from_secs(1);
                    if !pair.1.wait_until(&mut free, at).timed_out() {
                        count.lock()[n] += 1;
                    }
                })
            })
            .collect();
        time::sleep(Duration::from_millis(100));
        pair.1.notify_one();
        join_all(waits);
    });
    let woken = *woken.lock();
    assert_eq!(woken.iter().sum::<u32>(), 300, "one each: {woken:?}");
    assert!(woken.iter().all(|n| *n > 20), "{woken:?}");
}

#[test]
fn a_gate_wakes_all_and_stays_open() {
    Sim::new(0).check(0..100, || {
        let gate = Arc::new(Gate::new());
        let start = time::now();
        gate.wait(start + Duration::from_millis(5));
        assert!(time::now() >= start + Duration::from_millis(5));
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let gate = gate.clone();
                thread::spawn(move || gate.wait(ms(60_000)))
            })
            .collect();
        gate.open();
        join_all(waits);
        gate.wait(ms(60_000));
        assert!(time::now() < start + Duration::from_secs(60));
    });
}

#[test]
fn a_snapshot_is_replaced_only_by_a_writer_that_saw_it() {
    Sim::new(0).check(0..200, || {
        let value = Arc::new(Swap::new(Arc::new(0)));
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let value = value.clone();
                thread::spawn(move || {
                    loop {
                        let seen = value.load();
                        if value.replace(&seen, Arc::new(*seen + 1)) {
                            return;
                        }
                    }
                })
            })
            .collect();
        join_all(writers);
        assert_eq!(value.with(|v| *v), 3);
        value.store(Arc::new(9));
        assert_eq!(*value.load(), 9);
    });
}

#[test]
fn a_wait_for_several_sources_takes_any_that_is_ready() {
    let chosen: Arc<Mutex<[u32; 3]>> = Arc::default();
    let count = chosen.clone();
    Sim::new(0).check(0..200, move || {
        let ((a, from_a), (b, from_b)) = (chan::bounded(1), chan::bounded(1));
        let gate = Gate::new();
        assert_eq!(select(&[&from_a, &from_b, &gate], Some(ms(1))), None);
        a.send(1).unwrap();
        b.send(2).unwrap();
        gate.open();
        let at = select(&[&from_a, &from_b, &gate], None).unwrap();
        count.lock()[at] += 1;
        let late = thread::spawn(move || from_a.take().is_ok() && from_a.recv() == Ok(3));
        a.send(3).unwrap();
        assert!(late.join().unwrap());
        drop(b);
        assert_eq!(from_b.take(), Ok(2));
        assert_eq!(select(&[&from_b], None), Some(0), "disconnected is ready");
    });
    assert!(chosen.lock().iter().all(|n| *n > 20), "{chosen:?}");
}

#[test]
fn outside_of_a_run_the_primitives_are_the_machines() {
    let value = Arc::new(Mutex::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1_000).for_each(|_| *value.lock() += 1));
        }
    });
    assert_eq!(*value.lock(), 4_000);
    let (tx, rx) = chan::bounded(1);
    tx.send(1).unwrap();
    assert_eq!(rx.recv(), Ok(1));
    assert!(!ron_sim::is_simulated());
}
