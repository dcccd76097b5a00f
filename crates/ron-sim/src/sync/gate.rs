//! A gate: closed until it is opened once, which wakes every waiting thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::chan::{Source, select};
use crate::world::Object;

#[derive(Debug)]
pub struct Gate {
    object: Object,
    opened: AtomicBool,
}

impl Gate {
    pub const fn new() -> Self {
        Self {
            object: Object::new("gate", ""),
            opened: AtomicBool::new(false),
        }
    }

    pub fn open(&self) {
        self.object.point("opens");
        self.opened.store(true, Ordering::SeqCst);
        self.object.wake_all();
    }

    /// Waits until the gate is open or until `at`.
    pub fn wait(&self, at: Instant) {
        select(&[self], Some(at));
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for Gate {
    fn object(&self) -> &Object {
        &self.object
    }

    fn is_ready(&self) -> bool {
        self.opened.load(Ordering::SeqCst)
    }
}
