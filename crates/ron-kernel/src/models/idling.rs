//! Idle workers that wait in the poller of their sockets.
#![cfg(test)]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{REJECT, explore, far, size, thread};
use crate::idle::IdleWorkers;
use crate::net::{Event, Poller, SocketId, Watch};
use crate::queue::bare_queue;
use crate::sync::{Condvar, Mutex, mutex};

const LONG: Duration = Duration::from_secs(36_000);

/// A poller without sockets.
#[derive(Debug)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            rung: mutex("bell", false),
            changed: Condvar::new(),
        })
    }
}

impl Poller for Bell {
    fn add(&self, _: SocketId<'_>, _: u64, _: Watch) -> io::Result<()> {
        Ok(())
    }

    fn modify(&self, _: SocketId<'_>, _: u64, _: Watch) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: SocketId<'_>) {}

    fn wait(&self, _: &mut Vec<Event>, _: Duration) {
        let mut rung = self.rung.lock();
        while !*rung && !self.changed.wait_until(&mut rung, far().at()).timed_out() {}
        *rung = false;
    }

    fn poll(&self, _: &mut Vec<Event>) {}

    fn wake(&self) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }
}

/// Holds each worker that has a token until all tokens are taken.
struct Together {
    taken: Mutex<usize>,
    all: Condvar,
}

/// Handlers that block do not keep a token from an idle worker: each is taken, by a worker of its own. Mutant `idle`.
#[test]
fn every_token_wakes_a_worker_while_one_is_idle() {
    const WORKERS: usize = size(2, 4);
    explore(|| {
        let idle = Arc::new(IdleWorkers::new(Bell::new()));
        let together = Arc::new(Together {
            taken: mutex("taken", 0),
            all: Condvar::new(),
        });
        let (tokens, queue) = bare_queue::<u8>(&REJECT, WORKERS);
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (idle, together, queue) = (idle.clone(), together.clone(), queue.clone());
                thread::spawn(move || {
                    while queue.try_recv().is_none() {
                        idle.wait(&mut Vec::new(), LONG, || !queue.is_empty());
                    }
                    if !queue.is_empty() {
                        idle.wake_one();
                    }
                    let mut taken = together.taken.lock();
                    *taken += 1;
                    together.all.notify_all();
                    while *taken < WORKERS {
                        let late = together.all.wait_until(&mut taken, far().at());
                        assert!(!late.timed_out(), "a token was not taken");
                    }
                })
            })
            .collect();
        for _ in 0..WORKERS {
            tokens.try_send(7).expect("room");
            idle.wake_one();
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// A poll thread that sleeps while workers are idle is woken when the last of them gets up. Mutant `asleep`.
#[test]
fn the_poll_thread_is_woken_when_no_worker_is_idle() {
    explore(|| {
        let (sockets, own) = (Bell::new(), Bell::new());
        let idle = Arc::new(IdleWorkers::new(sockets.clone()));
        let workers: Vec<_> = (0..size(1, 3))
            .map(|_| {
                let (idle, own) = (idle.clone(), own.clone());
                thread::spawn(move || {
                    if idle.wait(&mut Vec::new(), LONG, || true) {
                        own.wake();
                    }
                })
            })
            .collect();
        if !idle.poll_thread_sleeps() {
            own.wait(&mut Vec::new(), LONG);
        }
        idle.poll_thread_woke();
        for worker in workers {
            worker.join().unwrap();
        }
        assert!(idle.poll_thread_woke(), "no worker is idle");
    });
}
