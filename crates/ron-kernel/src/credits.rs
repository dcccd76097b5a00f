//! Credits: a counting semaphore. A caller reserves room in a later queue before work starts, so
//! that the result of the work can never be refused.

use crate::deadline::Deadline;
use crate::locks::assert_no_locks;
use crate::sync::{Arc, Condvar, Mutex};

#[derive(Debug)]
struct Pool {
    capacity: usize,
    in_use: Mutex<usize>,
    freed: Condvar,
}

/// A fixed number of credits.
#[derive(Debug, Clone)]
pub struct Credits(Arc<Pool>);

/// One reserved place; returned when dropped.
#[derive(Debug)]
pub struct Credit(Arc<Pool>);

impl Credits {
    /// `capacity` credits, all free.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Pool {
            capacity,
            in_use: Mutex::new(0),
            freed: Condvar::new(),
        }))
    }

    /// Takes a credit if one is free.
    pub fn try_acquire(&self) -> Option<Credit> {
        let mut in_use = self.0.in_use.lock();
        if *in_use >= self.0.capacity {
            return None;
        }
        *in_use += 1;
        Some(Credit(self.0.clone()))
    }

    /// Takes a credit, waiting until the deadline; `None` when none became free.
    pub fn acquire(&self, deadline: Deadline) -> Option<Credit> {
        assert_no_locks("a wait for a credit");
        let mut in_use = self.0.in_use.lock();
        while *in_use >= self.0.capacity {
            let timed_out = self
                .0
                .freed
                .wait_until(&mut in_use, deadline.at())
                .timed_out();
            // A credit that was freed just as the wait timed out is still taken.
            if timed_out && *in_use >= self.0.capacity {
                return None;
            }
        }
        *in_use += 1;
        Some(Credit(self.0.clone()))
    }

    /// Number of credits taken now.
    pub fn in_use(&self) -> usize {
        *self.0.in_use.lock()
    }

    /// Total number of credits, free or not.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        let mut in_use = self.0.in_use.lock();
        *in_use -= 1;
        drop(in_use); // the woken thread needs the lock at once
        #[cfg(mutant = "credits")] // forgets to wake a waiter
        if crate::sync::mutant("credits") {
            return;
        }
        self.0.freed.notify_one();
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_credit_comes_back_when_dropped() {
        let credits = Credits::new(1);
        let one = credits.try_acquire().unwrap();
        assert!(credits.try_acquire().is_none());
        assert!(
            credits
                .acquire(Deadline::within(Duration::from_millis(5)))
                .is_none()
        );
        drop(one);
        assert!(
            credits
                .acquire(Deadline::within(Duration::from_millis(5)))
                .is_some()
        );
        assert_eq!(credits.in_use(), 0);
    }
}
