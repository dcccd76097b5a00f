//! The bounded queue: a name, a capacity, one policy when full, and its metrics.

use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use crate::deadline::Deadline;
use crate::locks::assert_no_locks;
use crate::metrics::{Counter, KernelMetrics};
use crate::rate::DrainMeter;
use crate::shutdown::Shutdown;
#[cfg(not(any(loom, shuttle)))]
use crate::sync::Selected;
use crate::sync::chan::{self, SendTimeoutError, TrySendError};
use crate::topology::{Overflow, QueueSpec};

#[derive(Debug)]
struct Shared {
    spec: &'static QueueSpec,
    drained: DrainMeter,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    /// Items refused or dropped for lack of room.
    lost: Option<Counter>,
    /// Items whose own deadline passed in the queue.
    expired: Option<Counter>,
}

fn count(counter: Option<&Counter>, n: u64) {
    if let Some(counter) = counter {
        counter.inc_by(n);
    }
}

/// The sending half; clones share the queue.
#[derive(Debug)]
pub struct Sender<T> {
    tx: chan::Sender<T>,
    /// Drops what no receiver takes: the oldest item of a full drop-oldest queue, and all items of a closed queue.
    rest: chan::Receiver<T>,
    receivers: Weak<Outlet<T>>,
    shared: Arc<Shared>,
}

/// The receiving half; clones compete for items. When the last one is dropped, the queue is closed, and the items in it are
/// dropped.
#[derive(Debug)]
pub struct Receiver<T> {
    rx: Arc<Outlet<T>>,
    shared: Arc<Shared>,
}

/// Where items leave a queue; the receivers share it. The channel itself stays open, because senders and the metric of the
/// depth can read it, and it would keep what is in it.
#[derive(Debug)]
struct Outlet<T>(chan::Receiver<T>);

impl<T> Drop for Outlet<T> {
    fn drop(&mut self) {
        drop_all(&self.0);
    }
}

impl<T> Deref for Outlet<T> {
    type Target = chan::Receiver<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Drops the items of a queue that is closed. A sender looks after its send whether the queue is closed, and the last
/// receiver closes it before it looks for items: one of the two finds each item.
fn drop_all<T>(rest: &chan::Receiver<T>) {
    fence(Ordering::SeqCst);
    while rest.try_recv().is_ok() {}
}

/// Why an item was not sent; holds the item.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The queue was full, at once or until the deadline.
    Full(T),
    /// No receiver is left.
    Closed(T),
}

/// Result of a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Recv<T> {
    Item(T),
    /// No item arrived before the deadline.
    Timeout,
    /// Shutdown was fired; items that are still queued can be taken with `try_recv`.
    Shutdown,
    /// No sender is left and the queue is empty.
    Closed,
}

/// Result of [`Receiver::recv_either`].
#[derive(Debug, PartialEq, Eq)]
pub enum RecvEither<A, B> {
    First(A),
    Second(B),
    /// No item arrived before the deadline.
    Timeout,
    Shutdown,
    /// One of the two queues is empty and has no sender left.
    Closed,
}

/// An item that carries the deadline of its work.
pub trait Expires {
    fn deadline(&self) -> Deadline;
}

/// Makes the queue of a topology row, with room for `capacity` items (at least 1) as configured.
///
/// # Panics
/// When the row is not in the service's table.
pub fn queue<T: Send + 'static>(
    spec: &'static QueueSpec,
    capacity: usize,
    metrics: &KernelMetrics,
) -> (Sender<T>, Receiver<T>) {
    metrics.built_queue(spec, capacity);
    let counters = Counters {
        lost: Some(metrics.lost(spec).with_label_values(&[spec.name])),
        expired: Some(metrics.io_timeouts.with_label_values(&[spec.name])),
    };
    let (tx, rx) = build(spec, capacity, counters);
    #[cfg(not(any(loom, shuttle)))]
    {
        let depth = tx.rest.clone();
        metrics.queue_depth(spec.name, move || depth.len() as i64);
    }
    (tx, rx)
}

/// A queue without metrics, for pure tests and models.
pub fn bare_queue<T>(spec: &'static QueueSpec, capacity: usize) -> (Sender<T>, Receiver<T>) {
    build(spec, capacity, Counters::default())
}

fn build<T>(
    spec: &'static QueueSpec,
    capacity: usize,
    counters: Counters,
) -> (Sender<T>, Receiver<T>) {
    #[cfg(mutant = "room")] // more than its capacity
    let capacity = capacity + if crate::sync::mutant("room") { 64 } else { 0 };
    let (tx, rx) = chan::named(spec.name, capacity.max(1));
    let shared = Arc::new(Shared {
        spec,
        drained: DrainMeter::default(),
        counters,
    });
    let outlet = Arc::new(Outlet(rx));
    (
        Sender {
            tx,
            rest: outlet.0.clone(),
            receivers: Arc::downgrade(&outlet),
            shared: shared.clone(),
        },
        Receiver { rx: outlet, shared },
    )
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            tx: self.tx.clone(),
            rest: self.rest.clone(),
            receivers: self.receivers.clone(),
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
    /// Sends without waiting. When the queue is full, the item is returned and counted as a busy
    /// rejection; a drop-oldest queue drops its oldest item instead and counts it as dropped.
    pub fn try_send(&self, item: T) -> Result<(), SendError<T>> {
        self.push(item).map(|_dropped| ())
    }

    /// As [`Sender::try_send`]; returns how many items were dropped to make room.
    pub(crate) fn push(&self, item: T) -> Result<u64, SendError<T>> {
        assert_no_locks("a send");
        let mut item = item;
        let mut dropped = 0;
        loop {
            if self.is_closed() {
                return Err(SendError::Closed(item));
            }
            match self.tx.try_send(item) {
                Ok(()) => {
                    self.drop_if_closed();
                    return Ok(dropped);
                }
                Err(TrySendError::Disconnected(back)) => return Err(SendError::Closed(back)),
                Err(TrySendError::Full(back)) => {
                    if self.shared.spec.overflow != Overflow::DropOldest {
                        count(self.shared.counters.lost.as_ref(), 1);
                        return Err(SendError::Full(back));
                    }
                    // The receiver or another sender may be faster on either side: an item can be
                    // gone already, and the room it leaves can be taken again. Hence the loop.
                    if self.rest.try_recv().is_ok() {
                        dropped += 1;
                        count(self.shared.counters.lost.as_ref(), 1);
                    }
                    item = back;
                }
            }
        }
    }

    /// Sends by the policy of the queue's row: a wait-until-deadline queue waits for room, the
    /// others never wait ([`Sender::try_send`]). An item that finds no room in time is returned and
    /// counted as a rejection.
    pub fn send(&self, item: T, deadline: Deadline) -> Result<(), SendError<T>> {
        if self.shared.spec.overflow != Overflow::WaitDeadline {
            return self.try_send(item);
        }
        assert_no_locks("a send");
        if self.is_closed() {
            return Err(SendError::Closed(item));
        }
        match self.tx.send_deadline(item, deadline.at()) {
            Ok(()) => {
                self.drop_if_closed();
                Ok(())
            }
            Err(SendTimeoutError::Timeout(back)) => {
                #[cfg(mutant = "wait")] // says yes to an item that found no room
                if crate::sync::mutant("wait") {
                    return Ok(());
                }
                count(self.shared.counters.lost.as_ref(), 1);
                Err(SendError::Full(back))
            }
            Err(SendTimeoutError::Disconnected(back)) => Err(SendError::Closed(back)),
        }
    }

    /// Whether no receiver is left.
    fn is_closed(&self) -> bool {
        self.receivers.strong_count() == 0
    }

    /// After a send: an item that came after the last receiver is dropped.
    fn drop_if_closed(&self) {
        fence(Ordering::SeqCst);
        if self.is_closed() {
            drop_all(&self.rest);
        }
    }

    pub fn len(&self) -> usize {
        self.tx.len()
    }

    /// True when no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whole seconds (1..=60) until the items that wait now are drained at the measured rate: the
    /// value of `Retry-After` for a refused caller.
    pub fn retry_after_s(&self) -> u32 {
        self.shared.drained.seconds_for(self.len())
    }

    /// The row this queue was made from.
    pub fn spec(&self) -> &'static QueueSpec {
        self.shared.spec
    }
}

impl<T> Receiver<T> {
    /// Waits for an item, shutdown, or the deadline. When both an item and shutdown are ready,
    /// either may come first; a draining loop takes the rest with `try_recv`.
    #[cfg(not(any(loom, shuttle)))]
    pub fn recv(&self, shutdown: &Shutdown, deadline: Deadline) -> Recv<T> {
        assert_no_locks("a receive");
        #[cfg(mutant = "queue")] // loses an item when it sees shutdown
        if crate::sync::mutant("queue") && shutdown.is_set() && self.rx.try_recv().is_ok() {
            return Recv::Shutdown;
        }
        // A waiting item does not need the cost of a select.
        if let Some(item) = self.try_recv() {
            return Recv::Item(item);
        }
        match chan::recv_or(&self.rx, shutdown.gate(), deadline.at()) {
            Selected::First(item) => {
                self.shared.drained.count(1);
                Recv::Item(item)
            }
            Selected::Disconnected => Recv::Closed,
            Selected::Opened => Recv::Shutdown,
            Selected::TimedOut => Recv::Timeout,
        }
    }

    /// As above, on the model checker's primitives.
    #[cfg(any(loom, shuttle))]
    pub fn recv(&self, shutdown: &Shutdown, deadline: Deadline) -> Recv<T>
    where
        T: Send + 'static,
    {
        #[cfg(mutant = "queue")] // loses an item when it sees shutdown
        if crate::sync::mutant("queue") && shutdown.is_set() && self.rx.try_recv().is_ok() {
            return Recv::Shutdown;
        }
        if let Some(waker) = self.rx.waker() {
            shutdown.on_fire(waker);
        }
        match self.rx.recv_unless(|| shutdown.is_set(), deadline.at()) {
            chan::Received::Item(item) => Recv::Item(item),
            chan::Received::Disconnected => Recv::Closed,
            chan::Received::Ended => Recv::Shutdown,
            chan::Received::TimedOut => Recv::Timeout,
        }
    }

    /// Waits for an item of this queue or of `other`, for shutdown, or for the deadline. When several
    /// are ready, any of them may come first.
    #[cfg(not(any(loom, shuttle)))]
    pub fn recv_either<U>(
        &self,
        other: &Receiver<U>,
        shutdown: &Shutdown,
        deadline: Deadline,
    ) -> RecvEither<T, U> {
        assert_no_locks("a receive");
        match chan::recv_either_or(&self.rx, &other.rx, shutdown.gate(), deadline.at()) {
            Selected::First(item) => {
                self.shared.drained.count(1);
                RecvEither::First(item)
            }
            Selected::Second(item) => {
                other.shared.drained.count(1);
                RecvEither::Second(item)
            }
            Selected::Disconnected => RecvEither::Closed,
            Selected::Opened => RecvEither::Shutdown,
            Selected::TimedOut => RecvEither::Timeout,
        }
    }

    /// As above, on the model checker's primitives.
    #[cfg(any(loom, shuttle))]
    pub fn recv_either<U>(
        &self,
        other: &Receiver<U>,
        shutdown: &Shutdown,
        deadline: Deadline,
    ) -> RecvEither<T, U> {
        loop {
            match self.rx.try_recv() {
                Ok(item) => return RecvEither::First(item),
                Err(chan::TryRecvError::Disconnected) => return RecvEither::Closed,
                Err(chan::TryRecvError::Empty) => {}
            }
            match other.rx.try_recv() {
                Ok(item) => return RecvEither::Second(item),
                Err(chan::TryRecvError::Disconnected) => return RecvEither::Closed,
                Err(chan::TryRecvError::Empty) => {}
            }
            if shutdown.is_set() {
                return RecvEither::Shutdown;
            }
            if deadline.expired() {
                return RecvEither::Timeout;
            }
            // The two channels have no common wait: the checker runs another thread first.
            crate::sync::thread::yield_now();
        }
    }

    /// As [`Receiver::recv`], but an item whose own deadline has passed is dropped and counted
    /// (`io_timeouts_total{op}` under the queue's name) before any work is done on it.
    pub fn recv_fresh(&self, shutdown: &Shutdown, deadline: Deadline) -> Recv<T>
    where
        T: Expires + Send + 'static,
    {
        loop {
            match self.recv(shutdown, deadline) {
                Recv::Item(item) if item.deadline().expired() => self.count_expired(),
                other => return other,
            }
        }
    }

    /// As [`Receiver::try_recv`], without items whose own deadline has passed.
    pub fn try_recv_fresh(&self) -> Option<T>
    where
        T: Expires,
    {
        loop {
            match self.try_recv()? {
                item if item.deadline().expired() => self.count_expired(),
                item => return Some(item),
            }
        }
    }

    fn count_expired(&self) {
        count(self.shared.counters.expired.as_ref(), 1);
    }

    /// Takes an item if one waits.
    pub fn try_recv(&self) -> Option<T> {
        let item = self.rx.try_recv().ok()?;
        self.shared.drained.count(1);
        Some(item)
    }

    /// Moves up to `max` waiting items into `into`; returns how many. Group commit takes its
    /// batches this way: the items that arrived while the last batch was written.
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

    pub fn len(&self) -> usize {
        self.rx.len()
    }

    /// True when no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
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
    fn a_queue_without_receivers_is_closed() {
        let (registry, km) = metrics();
        let (tx, rx) = queue(&REJECT, 2, &km);
        let item = Arc::new(());
        tx.try_send(Arc::clone(&item)).unwrap();
        drop(rx);
        assert_eq!(Arc::strong_count(&item), 1, "what is left is dropped");
        assert!(matches!(tx.try_send(item), Err(SendError::Closed(_))));
        assert!(
            registry
                .render()
                .contains("t_queue_depth{queue=\"reject\"} 0")
        );
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
    fn one_wait_covers_two_queues_and_shutdown() {
        let (_registry, km) = metrics();
        let (trigger, token) = Shutdown::pair();
        let (numbers, rx) = queue::<u8>(&REJECT, 2, &km);
        let (words, rx2) = queue::<&str>(&WAIT, 2, &km);
        let either = || rx.recv_either(&rx2, &token, Deadline::within(Duration::from_millis(5)));
        assert_eq!(either(), RecvEither::Timeout);
        numbers.try_send(1).unwrap();
        assert_eq!(either(), RecvEither::First(1));
        words.try_send("a").unwrap();
        assert_eq!(either(), RecvEither::Second("a"));
        trigger.fire();
        assert_eq!(either(), RecvEither::Shutdown);
        let (_t2, alive) = Shutdown::pair();
        drop(words);
        let closed = rx.recv_either(&rx2, &alive, Deadline::within(Duration::from_secs(5)));
        assert_eq!(closed, RecvEither::Closed);
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
