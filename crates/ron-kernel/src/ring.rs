//! Broadcast inside a service: each subscriber has its own bounded ring; a slow one loses the
//! oldest and knows how many.

use std::sync::Arc;

use crate::metrics::{Counter, KernelMetrics};
use crate::queue::{Receiver, Recv, SendError, Sender, bare_queue};
use crate::shutdown::Shutdown;
use crate::snapshot::Snapshot;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::time::Deadline;
use crate::topology::QueueSpec;

#[derive(Debug)]
struct Outlet<T> {
    tx: Sender<T>,
    lagged: Arc<AtomicU64>,
    /// Gone once the subscriber is dropped.
    alive: std::sync::Weak<()>,
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Self {
            tx: self.tx.clone(),
            lagged: self.lagged.clone(),
            alive: self.alive.clone(),
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
    /// Serialises changes of the subscriber list only.
    change: Mutex<()>,
}

/// One subscriber's ring.
#[derive(Debug)]
pub struct Subscriber<T> {
    rx: Receiver<T>,
    lagged: Arc<AtomicU64>,
    _alive: Arc<()>,
}

impl<T: Clone> Ring<T> {
    /// A ring of `capacity` items per subscriber; lag is counted under `bus_lagged_total{bus}`.
    /// The row must be a drop-oldest one.
    pub fn new(spec: &'static QueueSpec, capacity: usize, metrics: &KernelMetrics) -> Self {
        Self {
            spec,
            capacity,
            lagged_total: Some(metrics.bus_lagged.with_label_values(&[spec.name])),
            outlets: Snapshot::new(Vec::new()),
            change: Mutex::new(()),
        }
    }

    /// Gives the item to every subscriber.
    pub fn publish(&self, item: &T) {
        for outlet in self.outlets.load().iter() {
            let before = outlet.tx.len();
            if before >= self.capacity {
                outlet.lagged.fetch_add(1, Ordering::Relaxed);
                if let Some(total) = &self.lagged_total {
                    total.inc();
                }
            }
            match outlet.tx.try_send(item.clone()) {
                Ok(()) | Err(SendError::Closed(_) | SendError::Full(_)) => {}
            }
        }
    }

    /// Starts receiving what is published from now on.
    pub fn subscribe(&self) -> Subscriber<T> {
        let (tx, rx) = bare_queue(self.spec, self.capacity);
        let lagged = Arc::new(AtomicU64::new(0));
        let alive = Arc::new(());
        let outlet = Outlet {
            tx,
            lagged: lagged.clone(),
            alive: Arc::downgrade(&alive),
        };
        let guard = self.change.lock();
        let mut outlets: Vec<_> = self
            .outlets
            .load()
            .iter()
            .filter(|o| o.alive.strong_count() > 0)
            .cloned()
            .collect();
        outlets.push(outlet);
        self.outlets.store(outlets);
        drop(guard);
        Subscriber {
            rx,
            lagged,
            _alive: alive,
        }
    }
}

impl<T: Send + 'static> Subscriber<T> {
    /// Waits for the next item.
    pub fn recv(&self, shutdown: &Shutdown, deadline: Deadline) -> Recv<T> {
        self.rx.recv(shutdown, deadline)
    }

    /// Takes an item if one waits.
    pub fn try_recv(&self) -> Option<T> {
        self.rx.try_recv()
    }

    /// Items this subscriber lost because it was slow.
    pub fn lagged(&self) -> u64 {
        self.lagged.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::metrics::Registry;
    use crate::topology::Overflow;

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
        assert!(
            registry
                .render()
                .contains("t_bus_lagged_total{bus=\"events\"} 3")
        );
        drop(early);
        let _again = ring.subscribe();
        assert_eq!(
            ring.outlets.load().len(),
            2,
            "the dropped subscriber was forgotten"
        );
    }
}
