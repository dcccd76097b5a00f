//! The machine's primitives: parking_lot, crossbeam-channel, arc-swap, `std::thread`.

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

/// The name is for the simulator.
pub const fn mutex<T>(_name: &'static str, value: T) -> Mutex<T> {
    Mutex::new(value)
}

/// As [`mutex`].
pub const fn rw_lock<T>(_name: &'static str, value: T) -> RwLock<T> {
    RwLock::new(value)
}

/// Runs `f` on `n` scoped threads; see [`crate::scoped`].
pub fn scoped<R: Send>(n: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let f = &f;
        // Collected first: a lazy iterator would join each thread before it spawns the next.
        #[allow(clippy::needless_collect)]
        let handles: Vec<_> = (0..n).map(|i| s.spawn(move || f(i))).collect();
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    })
}

/// See [`crate::beside`].
pub fn beside<T: Send, A: Send, B>(
    name: &str,
    ahead: usize,
    make: impl FnOnce(&mut dyn FnMut(T) -> bool) -> A + Send,
    take: impl FnOnce(&mut dyn Iterator<Item = T>) -> B,
) -> std::io::Result<(A, B)> {
    let (put, items) = chan::bounded(ahead);
    std::thread::scope(|scope| {
        let body = move || make(&mut |item| put.send(item).is_ok());
        let producer = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, body)?;
        // The channel ends with the consumer, also when it panics, so the producer does not wait for ever.
        let taken = take(&mut items.into_iter());
        let made = producer.join();
        Ok((made.unwrap_or_else(|p| std::panic::resume_unwind(p)), taken))
    })
}

/// Number of cores this process may use, at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

pub mod chan {
    //! The bounded channel under every queue.
    use std::convert::Infallible;
    use std::time::Instant;

    use crossbeam_channel::select;
    pub use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};

    use super::Gate;
    use crate::sync::{Selected, now};

    /// The name is for the simulator.
    pub fn named<T>(_name: &'static str, capacity: usize) -> (Sender<T>, Receiver<T>) {
        bounded(capacity)
    }

    /// Waits for an item, the last sender's end, the opening of a gate, or the time `at`. When several are ready, any
    /// of them may come first.
    pub fn recv_or<T>(rx: &Receiver<T>, gate: &Gate, at: Instant) -> Selected<T, Infallible> {
        select! {
            recv(rx) -> got => got.map_or(Selected::Disconnected, Selected::First),
            recv(gate.opened) -> _ => Selected::Opened,
            default(at.saturating_duration_since(now())) => Selected::TimedOut,
        }
    }

    /// As [`recv_or`], for an item of either of two channels.
    pub fn recv_either_or<T, U>(
        rx: &Receiver<T>,
        other: &Receiver<U>,
        gate: &Gate,
        at: Instant,
    ) -> Selected<T, U> {
        select! {
            recv(rx) -> got => got.map_or(Selected::Disconnected, Selected::First),
            recv(other) -> got => got.map_or(Selected::Disconnected, Selected::Second),
            recv(gate.opened) -> _ => Selected::Opened,
            default(at.saturating_duration_since(now())) => Selected::TimedOut,
        }
    }
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
