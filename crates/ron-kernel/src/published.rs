//! What one thread keeps under a lock, and the picture of it that everybody reads without one.

use std::sync::Arc;

use crate::locks::RankedMutex;
use crate::snapshot::Snapshot;
use crate::topology::LockSpec;

/// A memory with one writer, and what it last published.
///
/// **Invariant:** who takes the picture and then looks into the memory finds the memory at least as new.
#[derive(Debug)]
pub struct Published<M, V> {
    memory: RankedMutex<M>,
    view: Snapshot<V>,
}

impl<M, V> Published<M, V> {
    /// Starts with `memory` under the lock `spec`, and `view` as its picture.
    pub fn new(spec: &'static LockSpec, memory: M, view: V) -> Self {
        Self {
            memory: RankedMutex::new(spec, memory),
            view: Snapshot::new(view),
        }
    }

    pub fn view(&self) -> Arc<V> {
        self.view.load()
    }

    /// Looks into the memory. The lock is held: no waiting inside.
    pub fn with<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.memory.lock())
    }

    /// Changes the memory by `keep`, which runs under the lock, and publishes the picture that it makes. One caller
    /// at a time: it is the writer.
    #[cfg(not(mutant = "publish"))]
    pub fn change(&self, keep: impl FnOnce(&mut M) -> V) {
        self.keep_then_publish(keep);
    }

    /// Publishes first: a reader finds a picture of what is not in the memory yet.
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
        let view = keep(&mut self.memory.lock());
        self.view.store(view);
    }
}
