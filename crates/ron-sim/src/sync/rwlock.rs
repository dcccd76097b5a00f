//! A lock for one writer or several readers. Which of the waiting threads comes first is up to the seed; neither
//! readers nor writers are preferred.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::unless_taken;
use crate::world::{Object, is_simulated, wait_for};

#[derive(Debug)]
pub struct RwLock<T> {
    object: Object,
    value: std::sync::RwLock<T>,
}

#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    value: Option<std::sync::RwLockReadGuard<'a, T>>,
}

#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    lock: &'a RwLock<T>,
    value: Option<std::sync::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        Self::named("", value)
    }

    /// As [`RwLock::new`], with a name for traces and reports.
    pub const fn named(name: &'static str, value: T) -> Self {
        Self {
            object: Object::new("lock", name),
            value: std::sync::RwLock::new(value),
        }
    }

    pub fn read(&self) -> ReadGuard<'_, T> {
        self.object.point("reads under");
        let block = || self.value.read().unwrap_or_else(PoisonError::into_inner);
        let value = self.taken(|| unless_taken(self.value.try_read()), block);
        ReadGuard {
            lock: self,
            value: Some(value),
        }
    }

    pub fn write(&self) -> WriteGuard<'_, T> {
        self.object.point("writes under");
        let block = || self.value.write().unwrap_or_else(PoisonError::into_inner);
        let value = self.taken(|| unless_taken(self.value.try_write()), block);
        self.object.held(true);
        WriteGuard {
            lock: self,
            value: Some(value),
        }
    }

    fn taken<G>(&self, attempt: impl Fn() -> Option<G>, block: impl FnOnce() -> G) -> G {
        if !is_simulated() {
            return block();
        }
        loop {
            if let Some(value) = attempt() {
                return value;
            }
            wait_for("waits for", &[&self.object], None);
        }
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until drop")
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        self.lock.object.wake_all();
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until drop")
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("present until drop")
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        self.lock.object.held(false);
        self.lock.object.wake_all();
    }
}
