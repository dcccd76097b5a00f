//! Drop-oldest queues and the broadcast ring built on them.
#![cfg(test)]

use super::{Count, OLDEST, explore, far, size, thread};
use crate::queue::{Recv, bare_queue};
use crate::ring::Ring;
use crate::shutdown::Shutdown;

/// Drop-oldest never refuses, never blocks, and keeps the newest.
#[test]
fn drop_oldest_keeps_the_newest() {
    explore(|| {
        let (tx, rx) = bare_queue::<usize>(&OLDEST, 1);
        let others: Vec<_> = (0..size(2, 6))
            .map(|i| {
                let tx = tx.clone();
                thread::spawn(move || assert_eq!(tx.try_send(i), Ok(())))
            })
            .collect();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(tx.try_send(99), Ok(()));
        assert_eq!((rx.try_recv(), rx.try_recv()), (Some(99), None));
    });
}

/// Each subscriber receives every published item or counts it as lag, while others publish, read
/// and subscribe; the items of each publisher stay in order. Mutant `ring`.
#[test]
fn what_is_published_is_received_or_counted() {
    const PUBLISHERS: u64 = size(2, 4) as u64;
    const EACH: u64 = size(2, 5) as u64;
    explore(|| {
        let ring = std::sync::Arc::new(Ring::<u64>::bare(&OLDEST, 1));
        let early = ring.subscribe();
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|p| {
                let ring = ring.clone();
                thread::spawn(move || (0..EACH).for_each(|i| ring.publish(&(p * 100 + i))))
            })
            .collect();
        let mut seen: Vec<u64> = early.try_recv().into_iter().collect();
        for p in publishers {
            p.join().unwrap();
        }
        seen.extend(std::iter::from_fn(|| early.try_recv()));
        assert_eq!(seen.len() as u64 + early.lagged(), PUBLISHERS * EACH);
        for p in 0..PUBLISHERS {
            let mine: Vec<_> = seen.iter().filter(|i| **i / 100 == p).collect();
            assert!(mine.is_sorted(), "{seen:?}");
        }
    });
}

/// Concurrent subscriptions are all recorded, and a waiting subscriber ends with shutdown. Mutant
/// `snapshot`: one of two subscriptions is lost.
#[test]
fn no_subscription_is_lost() {
    explore(|| {
        let ring = std::sync::Arc::new(Ring::<u64>::bare(&OLDEST, 4));
        let (trigger, token) = Shutdown::pair();
        let got = Count::new();
        let ready = Count::new();
        let threads: Vec<_> = (0..size(2, 5))
            .map(|_| {
                let (ring, token) = (ring.clone(), token.clone());
                let (got, ready) = (got.clone(), ready.clone());
                thread::spawn(move || {
                    let mine = ring.subscribe();
                    ready.add(1);
                    while let Recv::Item(_) = mine.recv(&token, far()) {
                        got.add(1);
                    }
                    while mine.try_recv().is_some() {
                        got.add(1);
                    }
                })
            })
            .collect();
        while ready.get() < threads.len() as u64 {
            thread::yield_now();
        }
        ring.publish(&7);
        trigger.fire();
        let n = threads.len() as u64;
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(got.get(), n, "each subscriber gets the item");
        assert_eq!(ring.subscribers(), 0);
    });
}
