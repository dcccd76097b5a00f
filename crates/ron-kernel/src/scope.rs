//! The service that a thread works for: several services may share a process, and a log line names
//! the one that wrote it.

use std::cell::Cell;

use crate::sync::thread_local;

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static SERVICE: Cell<Option<&'static str>> = const { Cell::new(None) };
}
#[cfg(any(loom, shuttle))]
thread_local! {
    static SERVICE: Cell<Option<&'static str>> = Cell::new(None);
}

/// While this value lives, the current thread works for a service. The supervisor holds one in each
/// of its threads; a thread that starts several services holds one for each in turn.
#[derive(Debug)]
pub struct ServiceScope {
    outer: Option<&'static str>,
}

impl ServiceScope {
    pub fn enter(service: &'static str) -> Self {
        Self {
            outer: SERVICE.with(|now| now.replace(Some(service))),
        }
    }

    /// The service that the current thread works for.
    pub fn current() -> Option<&'static str> {
        SERVICE.with(Cell::get)
    }
}

impl Drop for ServiceScope {
    fn drop(&mut self) {
        SERVICE.with(|now| now.set(self.outer));
    }
}
