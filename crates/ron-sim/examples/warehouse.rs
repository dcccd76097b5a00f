//! Two programs that look right and are not: a buffer whose producers and consumers share one condition variable, and
//! transfers that read a balance under a lock and write it under the next. The simulator finds a seed that fails,
//! shortens its schedule and prints it as a time line.
//!
//! `cargo run -p ron-sim --example warehouse`

use std::collections::VecDeque;
use std::sync::Arc;

use ron_sim::sync::{Condvar, Mutex};
use ron_sim::{Body, Sim, thread};

/// A buffer for one item. `notify_one` may wake a thread of the wrong side, which waits again: the wake-up is lost.
struct Buffer {
    items: Mutex<VecDeque<u32>>,
    changed: Condvar,
}

impl Buffer {
    fn put(&self, item: u32) {
        let mut items = self.items.lock();
        while !items.is_empty() {
            self.changed.wait(&mut items);
        }
        items.push_back(item);
        drop(items);
        self.changed.notify_one();
    }

    fn take(&self) -> u32 {
        let mut items = self.items.lock();
        loop {
            if let Some(item) = items.pop_front() {
                drop(items);
                self.changed.notify_one();
                return item;
            }
            self.changed.wait(&mut items);
        }
    }
}

fn lost_wake_up() {
    let buffer = Arc::new(Buffer {
        items: Mutex::named("items", VecDeque::new()),
        changed: Condvar::named("changed"),
    });
    let mut threads = Vec::new();
    for n in 0..2 {
        let (putting, taking) = (buffer.clone(), buffer.clone());
        let put = move || (0..2).for_each(|item| putting.put(item));
        let take = move || {
            let taken: Vec<u32> = (0..2).map(|_| taking.take()).collect();
            assert!(taken.iter().all(|item| *item < 2));
        };
        threads.push(thread::spawn_named(format!("producer-{n}"), put).expect("a thread"));
        threads.push(thread::spawn_named(format!("consumer-{n}"), take).expect("a thread"));
    }
    for thread in threads {
        thread.join().expect("no group is killed");
    }
}

/// The balance is read and written under the lock, but the lock is free in between.
fn transfer(from: &Mutex<i64>, to: &Mutex<i64>, amount: i64) {
    let balance = *from.lock();
    if balance >= amount {
        *from.lock() = balance - amount;
        *to.lock() += amount;
    }
}

fn lost_update() {
    let accounts = Arc::new([Mutex::named("alice", 100), Mutex::named("bob", 100)]);
    let threads = [(0, 1), (1, 0)].map(|(from, to)| {
        let accounts = accounts.clone();
        let name = format!("{from}-to-{to}");
        let run = move || transfer(&accounts[from], &accounts[to], 30);
        thread::spawn_named(name, run).expect("a thread")
    });
    for thread in threads {
        thread.join().expect("no group is killed");
    }
    let total = *accounts[0].lock() + *accounts[1].lock();
    assert_eq!(total, 200, "money was made or lost");
}

fn main() {
    // Both are found within so many seeds; the tests of this crate hold the example to it.
    let seeds = 0..200;
    for (name, body) in [
        ("a lost wake-up", lost_wake_up as fn()),
        ("a lost update", lost_update),
    ] {
        println!("== {name}");
        let body: Body = Arc::new(body);
        let Some(finding) = Sim::new(0).search(seeds.clone(), &body) else {
            println!("not found within {} seeds", seeds.end);
            std::process::exit(1);
        };
        println!("{finding}");
    }
}
