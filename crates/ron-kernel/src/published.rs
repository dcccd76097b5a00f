//! State that one thread keeps under a lock, and a view of it that readers load without the lock.

use std::sync::Arc;

use crate::locks::RankedMutex;
use crate::snapshot::Snapshot;
use crate::topology::LockSpec;

/// State with one writer, and the view that the writer last published.
///
/// **Invariant:** a thread that loads the view and then reads the state finds the state at least as
/// new as the view.
#[derive(Debug)]
pub struct Published<M, V> {
    memory: RankedMutex<M>,
    view: Snapshot<V>,
}

impl<M, V> Published<M, V> {
    /// Starts with `memory` under the lock `spec`, and `view` as its published view.
    pub fn new(spec: &'static LockSpec, memory: M, view: V) -> Self {
        Self {
            memory: RankedMutex::new(spec, memory),
            view: Snapshot::new(view),
        }
    }

    pub fn view(&self) -> Arc<V> {
        self.view.load()
    }

    /// Reads the state. `read` runs under the lock and must not wait.
    pub fn with<R>(&self, read: impl FnOnce(&M) -> R) -> R {
        read(&self.memory.lock())
    }

    /// Changes the state by `keep`, which runs under the lock, and publishes the view it returns.
    /// There is one writer: concurrent calls could publish their views in the wrong order.
    #[cfg(not(mutant = "publish"))]
    pub fn change(&self, keep: impl FnOnce(&mut M) -> V) {
        self.keep_then_publish(keep);
    }

    /// Publishes first: a reader can find a view of a change that the state does not have yet.
    #[cfg(mutant = "publish")]
    pub fn change(&self, keep: impl FnOnce(&mut M) -> V)
    where
        M: Clone,
    {
        if crate::sync::mutant("publish") {
            let mut memory = self.with(M::clone);
            self.view.store(keep(&mut memory));
            *self.memory.lock() = memory;
        } else {
            self.keep_then_publish(keep);
        }
    }

    fn keep_then_publish(&self, keep: impl FnOnce(&mut M) -> V) {
        // The order is the invariant of this type: the state first, its view second.
        let view = keep(&mut self.memory.lock());
        self.view.store(view);
    }
}
