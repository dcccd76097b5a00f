//! How the idle workers of a pool wait: in the poller of their sockets, so that the next event wakes the worker that serves it
//! and no thread in between. A poll thread looks at these sockets only while no worker is idle.
//!
//! Every access to `idle`, and to `called`, reads and writes at once, so that of two threads the later one sees what the
//! earlier one did before. A worker counts itself as idle and then looks at the queue; a thread that pushes a token pushes it
//! and then asks for the count. The poll thread writes that it sleeps and then asks for the count; a worker that wakes up
//! lowers it and then reads whether the poll thread sleeps.

use std::time::Duration;

use crate::net::{Event, SharedPoller};
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The idle workers of a pool, and the poller in which they wait.
#[derive(Debug)]
pub struct IdleWorkers {
    /// Watches the sockets that any worker may serve.
    pub sockets: SharedPoller,
    /// Workers that wait in `sockets`, or are about to.
    idle: AtomicU32,
    /// A worker was woken for the queue and has not looked yet.
    called: AtomicBool,
    /// The poll thread sleeps without regard to the workers.
    asleep: AtomicBool,
}

impl IdleWorkers {
    pub fn new(sockets: SharedPoller) -> Self {
        Self {
            sockets,
            idle: AtomicU32::new(0),
            called: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        }
    }

    fn all_busy(&self) -> bool {
        self.idle.fetch_add(0, Ordering::AcqRel) == 0
    }

    /// Wakes an idle worker, if there is one, for the tokens in the queue. One call is enough for any number of tokens: a worker
    /// that takes a token wakes the next one while there are more.
    pub fn wake_one(&self) {
        if !self.all_busy() && !self.called.swap(true, Ordering::AcqRel) {
            self.sockets.wake();
        }
    }

    /// Waits for events of the sockets or for [`IdleWorkers::wake_one`], at most for `limit`, unless `has_work` then. True when
    /// the poll thread sleeps and must be woken, because no worker is idle any more.
    pub fn wait(
        &self,
        events: &mut Vec<Event>,
        limit: Duration,
        has_work: impl FnOnce() -> bool,
    ) -> bool {
        self.idle.fetch_add(1, Ordering::AcqRel);
        #[cfg(mutant = "idle")] // does not see a token that was pushed before it counted as idle
        let has_work = || !crate::mutant("idle") && has_work();
        if !has_work() {
            self.sockets.wait(events, limit);
        }
        let was = self.idle.fetch_sub(1, Ordering::AcqRel);
        // Before the queue is looked at: a token that is pushed from here on wakes a worker of its own.
        self.called.swap(false, Ordering::AcqRel);
        #[cfg(mutant = "asleep")] // does not tell a poll thread that sleeps
        if crate::mutant("asleep") {
            return false;
        }
        was == 1 && self.asleep.load(Ordering::Acquire)
    }

    /// Announces that the poll thread is about to sleep. True when it must look at the sockets soon, because no worker is idle.
    pub fn poll_thread_sleeps(&self) -> bool {
        self.asleep.store(true, Ordering::Release);
        self.all_busy()
    }

    /// Announces that the poll thread is awake. True when it must look at the sockets now.
    pub fn poll_thread_woke(&self) -> bool {
        self.asleep.store(false, Ordering::Release);
        self.all_busy()
    }
}
