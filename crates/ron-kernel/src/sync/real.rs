//! The machine's primitives: parking_lot, crossbeam-channel, arc-swap, `std::thread`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard as ReadGuard,
    RwLockWriteGuard as WriteGuard,
};
pub use std::thread_local;

use crate::shutdown::Never;

pub mod chan {
    //! The bounded channel under every queue.
    pub use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};
}

/// Runs `body` and hands back its panic, if it had one.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(body))
}

/// Closed until it is opened once; opening wakes everybody who waits.
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

/// A shared value that is replaced whole.
#[derive(Debug)]
pub struct Swap<T>(arc_swap::ArcSwap<T>);

impl<T> Swap<T> {
    pub fn new(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.load())
    }

    pub fn store(&self, value: Arc<T>) {
        self.0.store(value);
    }

    /// Replaces `seen` by `value`; false, and nothing is changed, when it is not there any more.
    pub fn replace(&self, seen: &Arc<T>, value: Arc<T>) -> bool {
        let before = self.0.compare_and_swap(seen, value);
        Arc::ptr_eq(seen, &before)
    }
}

pub mod thread {
    //! Operating system threads.

    /// What joins a thread.
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
