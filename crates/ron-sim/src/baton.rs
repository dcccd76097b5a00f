//! The right to run. Exactly one thread of a run has it; it is handed to the next thread directly.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// The place where one thread waits for its turn.
#[derive(Debug, Default)]
pub struct Baton {
    turn: AtomicBool,
    owner: OnceLock<Thread>,
}

impl Baton {
    /// Hands the turn over; called by the thread that runs.
    pub fn pass(&self) {
        // Release: the next thread sees everything that this one did.
        self.turn.store(true, Ordering::Release);
        if let Some(owner) = self.owner.get() {
            owner.unpark();
        }
    }

    /// Waits for the turn; called by the thread that owns this baton alone.
    pub fn wait(&self) {
        // Before the flag is read: `pass` either finds the owner or its flag is seen here.
        self.owner.get_or_init(thread::current);
        while !self.turn.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}
