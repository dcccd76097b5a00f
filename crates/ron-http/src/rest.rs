//! How workers rest: in the poller of the connections, so that the next request wakes the worker that serves it and no thread
//! in between. The poll thread looks at these sockets only while no worker rests.
//!
//! Two pairs of atomics must be seen in one order by all threads, hence `SeqCst`. A worker counts itself as resting and then
//! looks at the queue once more; a thread that pushes a token pushes it and then reads the count. The poll thread writes that it
//! is away and then reads the count; the last worker that gets up lowers the count and then reads whether it is away. Of each
//! pair, at least one sees the other.

use std::time::Duration;

use ron_kernel::atomic::{AtomicBool, AtomicUsize, Ordering};
use ron_kernel::net::{Event, SharedPoller};

pub(crate) struct Rest {
    /// Watches the connections, and no listeners.
    pub sockets: SharedPoller,
    /// Workers in `sockets`, or on the way into it.
    resting: AtomicUsize,
    /// A worker was woken for the queue and has not looked yet.
    called: AtomicBool,
    /// The poll thread sleeps without regard to the workers.
    away: AtomicBool,
}

impl Rest {
    pub(crate) const fn new(sockets: SharedPoller) -> Self {
        Self {
            sockets,
            resting: AtomicUsize::new(0),
            called: AtomicBool::new(false),
            away: AtomicBool::new(false),
        }
    }

    /// Wakes a worker for a token in the queue, if one rests. One call is enough for any number of tokens: a worker that takes
    /// a token calls the next one while there are more.
    pub(crate) fn call(&self) {
        if self.resting.load(Ordering::SeqCst) > 0 && !self.called.swap(true, Ordering::SeqCst) {
            self.sockets.wake();
        }
    }

    /// Waits for events of the connections or for a call, unless `has_work` then. Returns true when the poll thread must look
    /// after the sockets now.
    pub(crate) fn rest(
        &self,
        events: &mut Vec<Event>,
        limit: Duration,
        has_work: impl FnOnce() -> bool,
    ) -> bool {
        self.resting.fetch_add(1, Ordering::SeqCst);
        #[cfg(mutant = "rest")]
        // a token that was pushed before the worker counted as resting is not seen
        let has_work = || !ron_kernel::mutant("rest") && has_work();
        if !has_work() {
            self.sockets.wait(events, limit);
        }
        let was = self.resting.fetch_sub(1, Ordering::SeqCst);
        // Before the queue is looked at: a token that is pushed from here on makes a call of its own.
        self.called.store(false, Ordering::SeqCst);
        was == 1 && self.away.load(Ordering::SeqCst)
    }

    /// Whether the poll thread, which is about to sleep, must look after the sockets: no worker rests.
    pub(crate) fn is_needed(&self) -> bool {
        self.away.store(true, Ordering::SeqCst);
        self.resting.load(Ordering::SeqCst) == 0
    }

    /// The poll thread is awake; true when it must look at the sockets.
    pub(crate) fn returns(&self) -> bool {
        self.away.store(false, Ordering::SeqCst);
        self.resting.load(Ordering::SeqCst) == 0
    }
}
