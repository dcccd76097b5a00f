//! A mutex without poisoning.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::unless_taken;
use crate::world::{Object, is_simulated, wait_for};

#[derive(Debug)]
pub struct Mutex<T> {
    object: Object,
    value: std::sync::Mutex<T>,
}

#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Empty only while a condition variable waits, and in `drop`.
    value: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self::named("", value)
    }

    /// As [`Mutex::new`], with a name for traces and reports.
    pub const fn named(name: &'static str, value: T) -> Self {
        Self {
            object: Object::new("mutex", name),
            value: std::sync::Mutex::new(value),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.object.point("locks");
        let mut guard = MutexGuard {
            mutex: self,
            value: None,
        };
        guard.take();
        guard
    }

    /// The lock, if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.object.point("tries to lock");
        let value = unless_taken(self.value.try_lock())?;
        self.object.held(true);
        Some(MutexGuard {
            mutex: self,
            value: Some(value),
        })
    }

    pub fn into_inner(self) -> T {
        self.value
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> MutexGuard<'_, T> {
    /// Takes the lock, waiting for it.
    pub(super) fn take(&mut self) {
        if !is_simulated() {
            let value = self.mutex.value.lock();
            self.value = Some(value.unwrap_or_else(PoisonError::into_inner));
            return;
        }
        loop {
            if let Some(value) = unless_taken(self.mutex.value.try_lock()) {
                self.value = Some(value);
                self.mutex.object.held(true);
                return;
            }
            wait_for("waits for", &[&self.mutex.object], None);
        }
    }

    /// Frees the lock; no other thread runs before the next operation of this one.
    pub(super) fn free(&mut self) {
        drop(self.value.take());
        self.mutex.object.held(false);
        self.mutex.object.wake_all();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken while no wait is on")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("taken while no wait is on")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.value.is_some() {
            self.free();
        }
    }
}
