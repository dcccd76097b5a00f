//! A value that one thread replaces and many read without waiting.

use std::sync::Arc;

/// Readers get the value as it was when they asked; a store is seen by every later load.
#[derive(Debug)]
pub struct Snapshot<T>(arc_swap::ArcSwap<T>);

impl<T> Snapshot<T> {
    /// Starts with `value`.
    pub fn new(value: T) -> Self {
        Self(arc_swap::ArcSwap::from_pointee(value))
    }

    /// Starts with a shared value.
    pub fn from_arc(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    /// The current value.
    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Looks at the current value without touching its reference count.
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.load())
    }

    /// Replaces the value.
    pub fn store(&self, value: T) {
        self.0.store(Arc::new(value));
    }

    /// Replaces the value by a shared one.
    pub fn store_arc(&self, value: Arc<T>) {
        self.0.store(value);
    }
}

impl<T: Default> Default for Snapshot<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
