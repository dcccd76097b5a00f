//! How the workers of a pool rest: in the poller of their sockets, so that the next event wakes the worker that serves it and no
//! thread in between. A poll thread looks at these sockets only while no worker rests.
//!
//! Every access to `resting`, and to `called`, reads and writes at once, so that of two threads the later one sees what the
//! earlier one did before. A worker counts itself as resting and then looks at the queue; a thread that pushes a token pushes it
//! and then asks for the count. The poll thread writes that it sleeps and then asks for the count; a worker that gets up
//! lowers it and then reads whether the poll thread sleeps.

use std::time::Duration;

use crate::net::{Event, SharedPoller};
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// Where the workers of a pool rest.
#[derive(Debug)]
pub struct Rest {
    /// Watches the sockets that any worker may serve.
    pub sockets: SharedPoller,
    /// Workers in `sockets`, or on the way into it.
    resting: AtomicU32,
    /// A worker was woken for the queue and has not looked yet.
    called: AtomicBool,
    /// The poll thread sleeps without regard to the workers.
    asleep: AtomicBool,
}

impl Rest {
    pub fn new(sockets: SharedPoller) -> Self {
        Self {
            sockets,
            resting: AtomicU32::new(0),
            called: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        }
    }

    fn nobody_rests(&self) -> bool {
        self.resting.fetch_add(0, Ordering::AcqRel) == 0
    }

    /// Wakes a worker for a token in the queue, if one rests. One call is enough for any number of tokens: a worker that takes
    /// a token calls the next one while there are more.
    pub fn call(&self) {
        if !self.nobody_rests() && !self.called.swap(true, Ordering::AcqRel) {
            self.sockets.wake();
        }
    }

    /// Waits for events of the sockets or for a call, at most for `limit`, unless `has_work` then. True when a poll thread
    /// sleeps and must be woken, because no worker rests any more.
    pub fn rest(
        &self,
        events: &mut Vec<Event>,
        limit: Duration,
        has_work: impl FnOnce() -> bool,
    ) -> bool {
        self.resting.fetch_add(1, Ordering::AcqRel);
        #[cfg(mutant = "rest")] // does not see a token that was pushed before it counted as resting
        let has_work = || !crate::mutant("rest") && has_work();
        if !has_work() {
            self.sockets.wait(events, limit);
        }
        let was = self.resting.fetch_sub(1, Ordering::AcqRel);
        // Before the queue is looked at: a token that is pushed from here on makes a call of its own.
        self.called.swap(false, Ordering::AcqRel);
        #[cfg(mutant = "asleep")] // does not tell a poll thread that sleeps
        if crate::mutant("asleep") {
            return false;
        }
        was == 1 && self.asleep.load(Ordering::Acquire)
    }

    /// To be asked by the poll thread before it sleeps: true when it must look at the sockets soon, because no worker rests.
    pub fn is_needed(&self) -> bool {
        self.asleep.store(true, Ordering::Release);
        self.nobody_rests()
    }

    /// To be asked by the poll thread after it slept: true when it must look at the sockets.
    pub fn returns(&self) -> bool {
        self.asleep.store(false, Ordering::Release);
        self.nobody_rests()
    }
}
