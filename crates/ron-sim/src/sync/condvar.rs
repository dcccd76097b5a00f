//! A condition variable. As in parking_lot a wait does not end without a notification; which waiting thread a
//! notification wakes is up to the seed.

use std::time::Instant;

use super::mutex::MutexGuard;
use crate::time;
use crate::world::{Object, wait_for};

#[derive(Debug)]
pub struct Condvar(Object);

/// Whether a wait ended by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Self {
        Self::named("")
    }

    /// As [`Condvar::new`], with a name for traces and reports.
    pub const fn named(name: &'static str) -> Self {
        Self(Object::new("condition", name))
    }

    /// Frees the lock, waits for a notification, takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_ns(guard, None);
    }

    /// As [`Condvar::wait`], until the deadline at most.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, at: Instant) -> WaitTimeoutResult {
        self.wait_ns(guard, Some(time::virtual_ns(at)))
    }

    fn wait_ns<T>(&self, guard: &mut MutexGuard<'_, T>, at: Option<u64>) -> WaitTimeoutResult {
        // No other thread runs between the two, so no notification is missed.
        guard.free();
        let notified = wait_for("waits on", &[&self.0], at);
        guard.take();
        WaitTimeoutResult(!notified)
    }

    pub fn notify_one(&self) {
        self.0.point("notifies one of");
        self.0.wake_one();
    }

    pub fn notify_all(&self) {
        self.0.point("notifies all of");
        self.0.wake_all();
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}
