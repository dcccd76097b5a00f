//! A value that one thread replaces and many read without waiting.

use std::sync::Arc;

use crate::sync::Swap;

/// A reader gets the value of the moment of its load; every later load sees a store.
#[derive(Debug)]
pub struct Snapshot<T>(Swap<T>);

impl<T> Snapshot<T> {
    /// Starts with `value`.
    pub fn new(value: T) -> Self {
        Self::from_arc(Arc::new(value))
    }

    /// Starts with a shared value.
    pub fn from_arc(value: Arc<T>) -> Self {
        Self(Swap::new(value))
    }

    pub fn load(&self) -> Arc<T> {
        self.0.load()
    }

    /// Reads the current value without touching its reference count.
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.0.with(read)
    }

    pub fn store(&self, value: T) {
        self.store_arc(Arc::new(value));
    }

    /// Replaces the value by a shared one.
    pub fn store_arc(&self, value: Arc<T>) {
        self.0.store(value);
    }

    /// Replaces the value by `next` of it and returns the new one. No other update is lost: when
    /// another writer was faster, `next` runs again with that writer's value, so it must be pure.
    pub fn update(&self, next: impl Fn(&T) -> T) -> Arc<T> {
        let changed = self.try_update(|now| Ok::<_, std::convert::Infallible>(next(now)));
        let Ok(new) = changed;
        new
    }

    /// As [`Snapshot::update`], unless `next` fails: then the value stays and the error is
    /// returned. Configurations are reloaded with it: validated whole, then swapped whole.
    pub fn try_update<E>(&self, next: impl Fn(&T) -> Result<T, E>) -> Result<Arc<T>, E> {
        loop {
            let seen = self.0.load();
            let new = Arc::new(next(&seen)?);
            #[cfg(mutant = "snapshot")] // overwrites what another writer stored meanwhile
            if crate::sync::mutant("snapshot") {
                self.0.store(new.clone());
                return Ok(new);
            }
            if self.0.replace(&seen, new.clone()) {
                return Ok(new);
            }
        }
    }
}

impl<T: Default> Default for Snapshot<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::*;

    #[test]
    fn a_refused_update_leaves_the_value_and_readers_keep_theirs() {
        let config = Snapshot::new(vec![1]);
        let old = config.load();
        assert_eq!(config.try_update(|_| Err::<Vec<i32>, _>("no")), Err("no"));
        assert!(Arc::ptr_eq(&old, &config.load()));
        let new = config.update(|v| [v.as_slice(), &[2]].concat());
        assert_eq!(
            (&*old, &*new, &*config.load()),
            (&vec![1], &vec![1, 2], &vec![1, 2])
        );
    }

    #[test]
    fn no_update_is_lost_among_four_writers() {
        let count = Snapshot::new(0);
        crate::scoped(4, |_| {
            for _ in 0..1_000 {
                count.update(|n| n + 1);
            }
        });
        assert_eq!(*count.load(), 4_000);
    }
}
