//! The bounded queue: a name, a capacity, one policy when full, and the figures to see it by.

use crate::locks::assert_no_locks;
use crate::metrics::{Counter, KernelMetrics};
use crate::rate::DrainMeter;
use crate::shutdown::Shutdown;
use crate::sync::chan::{self, TrySendError};
use crate::time::Deadline;
use crate::topology::{Overflow, QueueSpec};
use std::sync::Arc;

#[derive(Debug)]
struct Shared {
    spec: &'static QueueSpec,
    drained: DrainMeter,
    rejected: Option<Counter>,
    dropped: Option<Counter>,
}

/// The sending half; clones share the queue.
#[derive(Debug)]
pub struct Sender<T> {
    tx: chan::Sender<T>,
    /// Only for drop-oldest: where the oldest is taken from.
    oldest: Option<chan::Receiver<T>>,
    shared: Arc<Shared>,
}

/// The receiving half; clones compete for items.
#[derive(Debug)]
pub struct Receiver<T> {
    rx: chan::Receiver<T>,
    shared: Arc<Shared>,
}

/// The item comes back with the reason.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// No room (at once, or until the deadline).
    Full(T),
    /// No receiver is left.
    Closed(T),
}

/// What a receive brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Recv<T> {
    /// An item.
    Item(T),
    /// Nothing before the deadline.
    Timeout,
    /// Shutdown was fired; what is still queued can be taken with `try_recv`.
    Shutdown,
    /// No sender is left and the queue is empty.
    Closed,
}

/// Makes a queue as its row says, with `capacity` items (at least 1) from the configuration.
pub fn queue<T: Send + 'static>(
    spec: &'static QueueSpec,
    capacity: usize,
    metrics: &KernelMetrics,
) -> (Sender<T>, Receiver<T>) {
    let (tx, rx) = build(
        spec,
        capacity,
        Some(metrics.busy_rejections.with_label_values(&[spec.name])),
        Some(metrics.queue_dropped.with_label_values(&[spec.name])),
    );
    #[cfg(not(loom))]
    {
        let depth = rx.rx.clone();
        metrics.queue_depth(spec.name, move || depth.len() as i64);
    }
    (tx, rx)
}

/// A queue without metrics, for pure tests and models.
pub fn bare_queue<T>(spec: &'static QueueSpec, capacity: usize) -> (Sender<T>, Receiver<T>) {
    build(spec, capacity, None, None)
}

fn build<T>(
    spec: &'static QueueSpec,
    capacity: usize,
    rejected: Option<Counter>,
    dropped: Option<Counter>,
) -> (Sender<T>, Receiver<T>) {
    let (tx, rx) = chan::bounded(capacity.max(1));
    let shared = Arc::new(Shared {
        spec,
        drained: DrainMeter::default(),
        rejected,
        dropped,
    });
    let oldest = (spec.overflow == Overflow::DropOldest).then(|| rx.clone());
    (
        Sender {
            tx,
            oldest,
            shared: shared.clone(),
        },
        Receiver { rx, shared },
    )
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            tx: self.tx.clone(),
            oldest: self.oldest.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self {
            rx: self.rx.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<T> Sender<T> {
    /// Sends without waiting. Full: the item comes back and is counted as a busy rejection, or, for
    /// a drop-oldest queue, the oldest item gives way and is counted as dropped.
    pub fn try_send(&self, item: T) -> Result<(), SendError<T>> {
        assert_no_locks("a send");
        let mut item = item;
        loop {
            match self.tx.try_send(item) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(back)) => return Err(SendError::Closed(back)),
                Err(TrySendError::Full(back)) => {
                    let Some(oldest) = &self.oldest else {
                        self.count_rejection();
                        return Err(SendError::Full(back));
                    };
                    if oldest.try_recv().is_ok()
                        && let Some(dropped) = &self.shared.dropped
                    {
                        dropped.inc();
                    }
                    item = back;
                }
            }
        }
    }

    /// Sends, waiting for room until the deadline.
    #[cfg(not(loom))]
    pub fn send(&self, item: T, deadline: Deadline) -> Result<(), SendError<T>> {
        if self.oldest.is_some() {
            return self.try_send(item);
        }
        assert_no_locks("a send");
        match self.tx.send_deadline(item, deadline.at()) {
            Ok(()) => Ok(()),
            Err(crossbeam_channel::SendTimeoutError::Timeout(back)) => {
                self.count_rejection();
                Err(SendError::Full(back))
            }
            Err(crossbeam_channel::SendTimeoutError::Disconnected(back)) => {
                Err(SendError::Closed(back))
            }
        }
    }

    /// Items waiting now.
    pub fn len(&self) -> usize {
        self.tx.len()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whole seconds until what waits now will be drained at the measured rate: what a refused
    /// caller is told in `Retry-After` (1..=60).
    pub fn retry_after_s(&self) -> u32 {
        self.shared.drained.seconds_for(self.len())
    }

    /// The row this queue was made from.
    pub fn spec(&self) -> &'static QueueSpec {
        self.shared.spec
    }

    fn count_rejection(&self) {
        if let Some(rejected) = &self.shared.rejected {
            rejected.inc();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for an item, shutdown, or the deadline. When both an item and shutdown are ready,
    /// either may come first; a draining loop takes the rest with `try_recv`.
    #[cfg(not(loom))]
    pub fn recv(&self, shutdown: &Shutdown, deadline: Deadline) -> Recv<T> {
        assert_no_locks("a receive");
        if let Some(item) = self.try_recv() {
            return Recv::Item(item);
        }
        crossbeam_channel::select! {
            recv(self.rx) -> got => match got {
                Ok(item) => { self.shared.drained.count(1); Recv::Item(item) }
                Err(_) => Recv::Closed,
            },
            recv(shutdown.raw()) -> _ => Recv::Shutdown,
            default(deadline.remaining()) => Recv::Timeout,
        }
    }

    /// As above, on the model checker's primitives.
    #[cfg(loom)]
    pub fn recv(&self, shutdown: &Shutdown, _deadline: Deadline) -> Recv<T>
    where
        T: Send + 'static,
    {
        #[cfg(mutant = "queue")] // the mutant drops an item when it sees shutdown
        if shutdown.is_set() && self.rx.try_recv().is_ok() {
            return Recv::Shutdown;
        }
        self.rx.recv_or(shutdown)
    }

    /// Takes an item if one waits.
    pub fn try_recv(&self) -> Option<T> {
        let item = self.rx.try_recv().ok()?;
        self.shared.drained.count(1);
        Some(item)
    }

    /// Moves up to `max` waiting items into `into`; returns how many. This is group commit's
    /// batch: what arrived while the last one was written.
    pub fn drain_into(&self, into: &mut Vec<T>, max: usize) -> usize {
        let before = into.len();
        while into.len() - before < max {
            match self.rx.try_recv() {
                Ok(item) => into.push(item),
                Err(_) => break,
            }
        }
        let taken = into.len() - before;
        self.shared.drained.count(taken as u64);
        taken
    }

    /// Items waiting now.
    pub fn len(&self) -> usize {
        self.rx.len()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For `select!` over several queues.
    #[cfg(not(loom))]
    pub fn raw(&self) -> &crossbeam_channel::Receiver<T> {
        &self.rx
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::metrics::Registry;

    static REJECT: QueueSpec = spec("reject", Overflow::RejectNew);
    static OLDEST: QueueSpec = spec("oldest", Overflow::DropOldest);
    static WAIT: QueueSpec = spec("wait", Overflow::WaitDeadline);

    const fn spec(name: &'static str, overflow: Overflow) -> QueueSpec {
        QueueSpec {
            name,
            capacity: 2,
            overflow,
            from: "test",
            to: "test",
            when_full: "",
        }
    }

    fn metrics() -> (Registry, KernelMetrics) {
        let registry = Registry::new("t");
        let km = KernelMetrics::new(&registry);
        (registry, km)
    }

    #[test]
    fn each_policy_does_what_its_row_says() {
        let (registry, km) = metrics();
        let (tx, rx) = queue(&REJECT, 2, &km);
        assert_eq!(tx.try_send(1), Ok(()));
        assert_eq!(tx.try_send(2), Ok(()));
        assert_eq!(tx.try_send(3), Err(SendError::Full(3)));
        assert_eq!(rx.try_recv(), Some(1));

        let (tx, rx2) = queue(&OLDEST, 2, &km);
        for i in 1..=4 {
            assert_eq!(tx.try_send(i), Ok(()));
        }
        let mut got = Vec::new();
        assert_eq!(rx2.drain_into(&mut got, 10), 2);
        assert_eq!(got, [3, 4]);

        let (tx, _rx3) = queue(&WAIT, 1, &km);
        assert_eq!(tx.try_send(1), Ok(()));
        let start = Instant::now();
        let out = tx.send(2, Deadline::within(Duration::from_millis(30)));
        assert_eq!(out, Err(SendError::Full(2)));
        assert!(start.elapsed() >= Duration::from_millis(30));

        let text = registry.render();
        for line in [
            "t_busy_rejections_total{queue=\"reject\"} 1",
            "t_busy_rejections_total{queue=\"wait\"} 1",
            "t_queue_dropped_total{queue=\"oldest\"} 2",
            "t_queue_depth{queue=\"reject\"} 1",
        ] {
            assert!(text.contains(line), "{line} missing in\n{text}");
        }
    }

    #[test]
    fn a_receiver_sees_shutdown_timeout_and_the_last_sender_leaving() {
        let (_registry, km) = metrics();
        let (trigger, token) = Shutdown::pair();
        let (tx, rx) = queue::<u8>(&REJECT, 2, &km);
        let soon = || Deadline::within(Duration::from_millis(5));
        assert_eq!(rx.recv(&token, soon()), Recv::Timeout);
        tx.try_send(1).unwrap();
        assert_eq!(rx.recv(&token, soon()), Recv::Item(1));
        trigger.fire();
        assert_eq!(rx.recv(&token, soon()), Recv::Shutdown);
        let (_t2, alive) = Shutdown::pair();
        drop(tx);
        assert_eq!(rx.recv(&alive, soon()), Recv::Closed);
    }

    #[test]
    fn retry_after_follows_the_measured_drain_rate() {
        let slow = DrainMeter::default();
        slow.count_at(100, 10); // 2 a second over the window of 5 s
        let fast = DrainMeter::default();
        fast.count_at(100, 1_000);
        assert_eq!(slow.seconds_for_at(101, 20), 10);
        assert_eq!(fast.seconds_for_at(101, 20), 1);
    }
}
