//! Every interleaving of threads that take use numbers while blocks are added: the file `keys/use_numbers.rs`
//! itself on loom's atomics, and a mutant of it that the model must catch.

#![allow(dead_code)] // the service's own file, of which the model uses most

mod atomics {
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

#[allow(clippy::duplicate_mod)] // intended: the same file on other primitives
#[path = "use_numbers.rs"]
mod use_numbers;

use std::collections::BTreeSet;

use loom::sync::Arc;
use loom::thread;

use atomics::{AtomicU64, Ordering};
use use_numbers::UseNumbers;

/// What the model needs of an allocator of use numbers.
trait Numbers: Send + Sync + 'static {
    fn new() -> Self;
    fn take(&self) -> Option<u32>;
    fn fill(&self, from: u32, to: u32);
}

impl Numbers for UseNumbers {
    fn new() -> Self {
        Self::default()
    }

    fn take(&self) -> Option<u32> {
        Self::take(self)
    }

    fn fill(&self, from: u32, to: u32) {
        Self::fill(self, from, to);
    }
}

/// A mutant that reads and writes in two steps.
struct Torn(AtomicU64);

impl Numbers for Torn {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn take(&self) -> Option<u32> {
        let word = self.0.load(Ordering::SeqCst);
        let (next, limit) = ((word >> 32) as u32, word as u32);
        (next < limit).then(|| {
            self.0.store(
                u64::from(next + 1) << 32 | u64::from(limit),
                Ordering::SeqCst,
            );
            next
        })
    }

    fn fill(&self, from: u32, to: u32) {
        self.0
            .store(u64::from(from) << 32 | u64::from(to), Ordering::SeqCst);
    }
}

fn model<L: Numbers>() {
    // Three preemptions suffice to catch the mutant; an unbounded search takes minutes.
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(|| {
        let numbers = Arc::new(L::new());
        numbers.fill(0, 2);
        let takers: Vec<_> = [2, 1]
            .map(|takes| {
                let numbers = numbers.clone();
                thread::spawn(move || (0..takes).map(|_| numbers.take()).collect::<Vec<_>>())
            })
            .into();
        // The only writer: consecutive blocks, as the store reserves them.
        numbers.fill(2, 4);
        let mut all: Vec<u32> = takers
            .into_iter()
            .flat_map(|taker| taker.join().expect("takes"))
            .flatten()
            .collect();
        while let Some(number) = numbers.take() {
            all.push(number);
        }
        let distinct: BTreeSet<u32> = all.iter().copied().collect();
        assert_eq!(
            distinct.len(),
            all.len(),
            "a number was given twice: {all:?}"
        );
        assert_eq!(
            distinct,
            (0..4).collect(),
            "a number of a joined block was lost"
        );
    });
}

#[test]
fn no_interleaving_gives_a_number_twice() {
    model::<UseNumbers>();
}

#[test]
fn the_model_catches_an_allocator_that_reads_and_writes_in_two_steps() {
    let caught = std::panic::catch_unwind(model::<Torn>);
    assert!(caught.is_err(), "the mutant passed");
}

#[test]
fn one_caller_requests_the_next_block() {
    loom::model(|| {
        let numbers = Arc::new(UseNumbers::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let numbers = numbers.clone();
                thread::spawn(move || u32::from(numbers.claim_request()))
            })
            .collect();
        let claimed: u32 = threads.into_iter().map(|a| a.join().expect("claims")).sum();
        assert_eq!(claimed, 1);
        numbers.fill(0, 1);
        assert!(
            numbers.claim_request(),
            "after the block the next may be requested"
        );
    });
}
