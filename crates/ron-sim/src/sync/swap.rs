//! A shared value that is replaced as a whole, like an `ArcSwap`: a load sees the last store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::world::Object;

#[derive(Debug)]
pub struct Swap<T> {
    object: Object,
    value: Mutex<Arc<T>>,
}

impl<T> Swap<T> {
    pub const fn new(value: Arc<T>) -> Self {
        Self {
            object: Object::new("snapshot", ""),
            value: Mutex::new(value),
        }
    }

    /// Never held over an operation, so no thread waits for it.
    fn value(&self) -> MutexGuard<'_, Arc<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load(&self) -> Arc<T> {
        self.object.point("loads");
        self.value().clone()
    }

    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.load())
    }

    pub fn store(&self, value: Arc<T>) {
        self.object.point("stores");
        let old = std::mem::replace(&mut *self.value(), value);
        drop(old); // outside of the lock: its destructor may use the simulator
    }

    /// Replaces `seen` by `value`; false, with nothing changed, when `seen` is no longer the value.
    pub fn replace(&self, seen: &Arc<T>, value: Arc<T>) -> bool {
        self.object.point("replaces");
        let mut now = self.value();
        let same = Arc::ptr_eq(seen, &now);
        if same {
            let old = std::mem::replace(&mut *now, value);
            drop(now);
            drop(old);
        }
        same
    }
}
