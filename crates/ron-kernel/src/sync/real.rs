//! The machine's primitives: parking_lot, crossbeam-channel, arc-swap, `std::thread`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub use std::thread_local;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard as ReadGuard,
    RwLockWriteGuard as WriteGuard,
};

/// The item type of a channel that carries nothing: closing it wakes all receivers.
#[derive(Debug)]
pub enum Never {}

pub mod chan {
    //! The bounded channel under every queue.
    pub use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};
}

/// Runs `body` and returns its panic, if it panicked.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    // Unwind-safe by use: after a panic the supervisor runs the body again from its start, and the
    // hang pool drops the handle that the call used.
    catch_unwind(AssertUnwindSafe(body))
}

/// Closed until it is opened once; opening wakes every waiting thread.
#[derive(Debug)]
pub struct Gate {
    /// Nothing is ever sent: dropping the sender closes the channel, which wakes all receivers.
    keep: Mutex<Option<Sender<Never>>>,
    opened: Receiver<Never>,
}

impl Gate {
    pub fn new() -> Self {
        let (keep, opened) = crossbeam_channel::bounded(0);
        Self {
            keep: Mutex::new(Some(keep)),
            opened,
        }
    }

    pub fn open(&self) {
        drop(self.keep.lock().take());
    }

    pub fn wait(&self, at: Instant) {
        let _ = self.opened.recv_deadline(at);
    }

    pub fn raw(&self) -> &Receiver<Never> {
        &self.opened
    }
}

/// A shared value that is replaced as a whole.
#[derive(Debug)]
pub struct Swap<T>(arc_swap::ArcSwap<T>);

impl<T> Swap<T> {
    pub fn new(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.0.load())
    }

    pub fn store(&self, value: Arc<T>) {
        self.0.store(value);
    }

    /// Replaces `seen` by `value`; false, with nothing changed, when `seen` is no longer the value.
    pub fn replace(&self, seen: &Arc<T>, value: Arc<T>) -> bool {
        let before = self.0.compare_and_swap(seen, value);
        Arc::ptr_eq(seen, &before)
    }
}

pub mod thread {
    //! Operating system threads.

    #[derive(Debug)]
    pub struct Handle(std::thread::JoinHandle<()>);

    impl Handle {
        pub fn join(self) {
            let _ = self.0.join(); // panics were caught and counted inside
        }
    }

    pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<Handle> {
        std::thread::Builder::new()
            .name(name)
            .spawn(body)
            .map(Handle)
    }
}
