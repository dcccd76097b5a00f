//! Broadcast inside a service: each subscriber has its own bounded ring; a slow subscriber loses
//! the oldest items and can read how many.

use std::sync::Arc;

use crate::deadline::Deadline;
use crate::metrics::{Counter, KernelMetrics};
use crate::queue::{Receiver, Recv, RecvEither, Sender, bare_queue};
use crate::shutdown::Shutdown;
use crate::snapshot::Snapshot;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::topology::{Overflow, QueueSpec};

/// State shared by both ends of one subscriber's ring.
#[derive(Debug)]
struct Link {
    lagged: AtomicU64,
    gone: AtomicBool,
}

#[derive(Debug)]
struct Outlet<T> {
    tx: Sender<T>,
    link: Arc<Link>,
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Self {
            tx: self.tx.clone(),
            link: self.link.clone(),
        }
    }
}

/// The publishing side. Publishing never waits.
#[derive(Debug)]
pub struct Ring<T> {
    spec: &'static QueueSpec,
    capacity: usize,
    lagged_total: Option<Counter>,
    outlets: Snapshot<Vec<Outlet<T>>>,
}

#[derive(Debug)]
pub struct Subscriber<T> {
    rx: Receiver<T>,
    link: Arc<Link>,
}

impl<T: Clone> Ring<T> {
    /// A ring of `capacity` items per subscriber; lag is counted under `bus_lagged_total{bus}`.
    ///
    /// # Panics
    /// When the row does not say drop-oldest, or is not in the service's table.
    pub fn new(spec: &'static QueueSpec, capacity: usize, metrics: &KernelMetrics) -> Self {
        metrics.bus_lagged.declare([spec.name]);
        let lagged = metrics.bus_lagged.with_label_values(&[spec.name]);
        let ring = Self::build(spec, capacity, Some(lagged));
        metrics.built_queue(spec, capacity);
        ring
    }

    /// A ring without metrics, for pure tests and models.
    pub fn bare(spec: &'static QueueSpec, capacity: usize) -> Self {
        Self::build(spec, capacity, None)
    }

    fn build(spec: &'static QueueSpec, capacity: usize, lagged_total: Option<Counter>) -> Self {
        assert!(
            spec.overflow == Overflow::DropOldest,
            "ring `{}` must be a drop-oldest row",
            spec.name
        );
        Self {
            spec,
            capacity,
            lagged_total,
            outlets: Snapshot::new(Vec::new()),
        }
    }

    /// Sends the item to every subscriber.
    pub fn publish(&self, item: &T) {
        for outlet in self.outlets.load().iter() {
            if outlet.link.gone.load(Ordering::SeqCst) {
                continue; // a dropped subscriber has no lag to count
            }
            #[cfg(mutant = "ring")] // judges by the length before, which others change meanwhile
            if crate::sync::mutant("ring") {
                let lost = u64::from(outlet.tx.len() >= self.capacity);
                let _ = outlet.tx.try_send(item.clone());
                outlet.link.lagged.fetch_add(lost, Ordering::SeqCst);
                continue;
            }
            // `push` counts what it really dropped; the length before it would be a guess.
            let lost = outlet.tx.push(item.clone()).unwrap_or(0);
            if lost > 0 {
                outlet.link.lagged.fetch_add(lost, Ordering::SeqCst);
                if let Some(total) = &self.lagged_total {
                    total.inc_by(lost);
                }
            }
        }
    }

    /// Subscribes to the items that are published from now on.
    pub fn subscribe(&self) -> Subscriber<T> {
        let (tx, rx) = bare_queue(self.spec, self.capacity);
        let link = Arc::new(Link {
            lagged: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        });
        let outlet = Outlet {
            tx,
            link: link.clone(),
        };
        // Outlets of dropped subscribers are removed here, not in `Drop`, which stays wait-free.
        self.outlets.update(|all| {
            let live = all.iter().filter(|o| !o.link.gone.load(Ordering::SeqCst));
            live.chain([&outlet]).cloned().collect()
        });
        Subscriber { rx, link }
    }

    /// Number of subscribers that are not dropped.
    pub fn subscribers(&self) -> usize {
        let outlets = self.outlets.load();
        let live = outlets
            .iter()
            .filter(|o| !o.link.gone.load(Ordering::SeqCst));
        live.count()
    }
}

impl<T: Send + 'static> Subscriber<T> {
    /// Waits for the next item.
    pub fn recv(&self, shutdown: &Shutdown, deadline: Deadline) -> Recv<T> {
        self.rx.recv(shutdown, deadline)
    }

    /// Waits for the next item, or for one of a queue.
    pub fn recv_either<U: Send + 'static>(
        &self,
        other: &Receiver<U>,
        shutdown: &Shutdown,
        deadline: Deadline,
    ) -> RecvEither<T, U> {
        self.rx.recv_either(other, shutdown, deadline)
    }
}

impl<T> Subscriber<T> {
    /// Takes an item if one is waiting.
    pub fn try_recv(&self) -> Option<T> {
        self.rx.try_recv()
    }

    /// Items this subscriber lost because it was slow.
    pub fn lagged(&self) -> u64 {
        self.link.lagged.load(Ordering::SeqCst)
    }
}

impl<T> Drop for Subscriber<T> {
    fn drop(&mut self) {
        self.link.gone.store(true, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::*;
    use crate::metrics::Registry;

    static SPEC: QueueSpec = QueueSpec {
        name: "events",
        capacity: 2,
        overflow: Overflow::DropOldest,
        from: "test",
        to: "test",
        when_full: "oldest dropped",
    };

    #[test]
    fn a_slow_subscriber_loses_the_oldest_and_knows() {
        let registry = Registry::new("t");
        let ring = Ring::new(&SPEC, 2, &KernelMetrics::new(&registry));
        let early = ring.subscribe();
        ring.publish(&1);
        let late = ring.subscribe();
        for i in 2..=4 {
            ring.publish(&i);
        }
        assert_eq!(
            (early.try_recv(), early.try_recv(), early.try_recv()),
            (Some(3), Some(4), None)
        );
        assert_eq!(early.lagged(), 2);
        assert_eq!((late.try_recv(), late.lagged()), (Some(3), 1));
        let lagged = "t_bus_lagged_total{bus=\"events\"} 3";
        assert!(registry.render().contains(lagged));
        drop(early);
        for i in 5..=9 {
            ring.publish(&i);
        }
        assert_eq!(late.lagged(), 5);
        let lagged = "t_bus_lagged_total{bus=\"events\"} 7";
        assert!(
            registry.render().contains(lagged),
            "a dropped subscriber has no lag"
        );
        assert_eq!(ring.subscribers(), 1);
        let _again = ring.subscribe();
        assert_eq!(
            ring.outlets.load().len(),
            2,
            "the dropped subscriber was removed"
        );
    }

    #[test]
    fn what_is_published_is_received_or_counted_as_lag() {
        let ring = Ring::bare(&SPEC, 2);
        let slow = ring.subscribe();
        let taken = std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| (0..10_000).for_each(|i| ring.publish(&i)));
            }
            let mut taken = 0;
            for _ in 0..5_000 {
                taken += u64::from(slow.try_recv().is_some());
            }
            taken
        });
        let left = std::iter::from_fn(|| slow.try_recv()).count() as u64;
        assert_eq!(taken + left + slow.lagged(), 20_000);
    }
}
