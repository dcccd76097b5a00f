//! The same interfaces over a model checker. Fault model: a timed wait whose deadline has already
//! passed times out at once; any other timed wait never times out.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

#[cfg(loom)]
use loom as checker;
#[cfg(shuttle)]
use shuttle as checker;

pub use checker::sync::Arc;
pub use checker::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub use checker::thread_local;

pub type MutexGuard<'a, T> = Guard<'a, T>;

pub struct Mutex<T>(checker::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(checker::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        Guard(Some(self.0.lock().expect("models do not poison")))
    }
}

pub fn mutex<T>(_name: &'static str, value: T) -> Mutex<T> {
    Mutex::new(value)
}

pub fn rw_lock<T>(_name: &'static str, value: T) -> RwLock<T> {
    RwLock::new(value)
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

pub struct Guard<'a, T>(Option<checker::sync::MutexGuard<'a, T>>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("taken only inside wait")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("taken only inside wait")
    }
}

/// Shared or exclusive access. In a model a reader excludes other readers too: fewer interleavings
/// to explore, and none is lost, because readers change nothing.
pub struct RwLock<T>(Mutex<T>);
pub type ReadGuard<'a, T> = Guard<'a, T>;
pub type WriteGuard<'a, T> = Guard<'a, T>;

impl<T> RwLock<T> {
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub fn read(&self) -> ReadGuard<'_, T> {
        self.0.lock()
    }

    pub fn write(&self) -> WriteGuard<'_, T> {
        self.0.lock()
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}

impl<T> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

pub struct Condvar(checker::sync::Condvar);

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

pub struct TimedOut(bool);

impl TimedOut {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self(checker::sync::Condvar::new())
    }

    pub fn wait_until<T>(&self, guard: &mut Guard<'_, T>, at: Instant) -> TimedOut {
        if at <= Instant::now() {
            return TimedOut(true);
        }
        let inner = guard.0.take().expect("present outside wait");
        guard.0 = Some(self.0.wait(inner).expect("models do not poison"));
        TimedOut(false)
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Catches nothing in a model: the checker reports a failed model by a panic.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    Ok(body())
}

/// See `Gate` in `real.rs`.
#[derive(Debug)]
pub struct Gate {
    opened: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn new() -> Self {
        Self {
            opened: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    pub fn open(&self) {
        *self.opened.lock() = true;
        self.changed.notify_all();
    }

    pub fn wait(&self, at: Instant) {
        let mut opened = self.opened.lock();
        while !*opened && !self.changed.wait_until(&mut opened, at).timed_out() {}
    }
}

/// Replaces arc-swap, with the same guarantee: a load sees the last store.
pub struct Swap<T>(Mutex<std::sync::Arc<T>>);

impl<T> fmt::Debug for Swap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Swap")
    }
}

impl<T> Swap<T> {
    pub fn new(value: std::sync::Arc<T>) -> Self {
        Self(Mutex::new(value))
    }

    pub fn load(&self) -> std::sync::Arc<T> {
        self.0.lock().clone()
    }

    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.load())
    }

    pub fn store(&self, value: std::sync::Arc<T>) {
        *self.0.lock() = value;
    }

    pub fn replace(&self, seen: &std::sync::Arc<T>, value: std::sync::Arc<T>) -> bool {
        let mut now = self.0.lock();
        let same = std::sync::Arc::ptr_eq(seen, &now);
        if same {
            *now = value;
        }
        same
    }
}

pub mod thread {
    //! Threads of the model.
    use super::checker;

    pub use checker::thread::yield_now;

    #[derive(Debug)]
    pub struct Handle(checker::thread::JoinHandle<()>);

    impl Handle {
        pub fn join(self) {
            self.0.join().expect("models do not panic");
        }
    }

    // The same signature as the real one, which may fail.
    #[allow(clippy::unnecessary_wraps)]
    pub fn spawn(_name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<Handle> {
        Ok(Handle(checker::thread::spawn(body)))
    }
}
