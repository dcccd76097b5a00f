//! Ranked locks: taken in ascending rank only, never held over a send, a wait or a call out.
//!
//! Both rules are asserted in every build; the cost is a thread-local push and pop per lock.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::sync::{self, Mutex, MutexGuard, ReadGuard, RwLock, WriteGuard, thread_local};
use crate::topology::LockSpec;

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static HELD: RefCell<Vec<&'static LockSpec>> = const { RefCell::new(Vec::new()) };
}
// The threads of a model share one thread of the machine, so the checker keeps a list for each.
#[cfg(any(loom, shuttle))]
thread_local! {
    static HELD: RefCell<Vec<&'static LockSpec>> = RefCell::new(Vec::new());
}

/// Panics when this thread holds a ranked lock. Every operation that may wait calls it first.
///
/// # Panics
/// When a lock is held over `what`: a bug of the caller.
#[track_caller]
pub fn assert_no_locks(what: &str) {
    on_held(|held| {
        if let Some(lock) = held.last() {
            panic!("lock `{}` held over {what}: release it first", lock.name);
        }
    });
}

/// Whether this thread holds a ranked lock: for what is left out under a lock rather than asserted, because a log line is
/// not worth a dead thread.
pub fn holds_a_lock() -> bool {
    let mut any = false;
    on_held(|held| any = !held.is_empty());
    any
}

/// Reads or changes this thread's list of held locks. A library in a program of others is still called when the thread's
/// storage is gone already, by handlers that run at the exit of the process: then nothing is checked.
#[track_caller]
fn on_held(act: impl FnOnce(&mut Vec<&'static LockSpec>)) {
    let _ = HELD.try_with(|held| act(&mut held.borrow_mut()));
}

fn enter(spec: &'static LockSpec) -> HeldLock {
    on_held(|held| {
        // Locks are pushed in ascending rank, so the last one has the highest rank.
        if let Some(top) = held.last() {
            // Strictly ascending: an equal rank would allow a deadlock between two such locks.
            assert!(
                top.rank < spec.rank,
                "lock `{}` (rank {}) taken while holding `{}` (rank {}): take locks in ascending rank",
                spec.name,
                spec.rank,
                top.name,
                top.rank
            );
        }
        held.push(spec);
    });
    HeldLock(spec)
}

/// Entry in this thread's list of held locks; removed when dropped.
#[derive(Debug)]
struct HeldLock(&'static LockSpec);

impl Drop for HeldLock {
    fn drop(&mut self) {
        on_held(|held| {
            // Guards may be dropped in any order, so the entry need not be the last one.
            if let Some(at) = held.iter().rposition(|l| std::ptr::eq(*l, self.0)) {
                held.remove(at);
            }
        });
    }
}

/// A mutex with a rank from the topology table.
#[derive(Debug)]
pub struct RankedMutex<T> {
    spec: &'static LockSpec,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// Guards `value` under the row `spec`.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(spec: &'static LockSpec, value: T) -> Self {
        Self {
            spec,
            inner: sync::mutex(spec.name, value),
        }
    }

    /// As above, not `const`: a checker's locks can only be made while its model runs.
    #[cfg(any(loom, shuttle))]
    pub fn new(spec: &'static LockSpec, value: T) -> Self {
        Self {
            spec,
            inner: sync::mutex(spec.name, value),
        }
    }

    /// Locks it; panics when this thread holds a lock of the same or a higher rank.
    pub fn lock(&self) -> RankedGuard<MutexGuard<'_, T>> {
        // Checked before the lock is taken: the panic must come instead of the deadlock.
        let held = enter(self.spec);
        RankedGuard {
            guard: self.inner.lock(),
            _held: held,
        }
    }
}

/// A read-write lock with a rank, for read-mostly maps that are too large to snapshot.
#[derive(Debug)]
pub struct RankedRwLock<T> {
    spec: &'static LockSpec,
    inner: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    /// Guards `value` under the row `spec`.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(spec: &'static LockSpec, value: T) -> Self {
        Self {
            spec,
            inner: sync::rw_lock(spec.name, value),
        }
    }

    /// As above, not `const`: a checker's locks can only be made while its model runs.
    #[cfg(any(loom, shuttle))]
    pub fn new(spec: &'static LockSpec, value: T) -> Self {
        Self {
            spec,
            inner: sync::rw_lock(spec.name, value),
        }
    }

    pub fn read(&self) -> RankedGuard<ReadGuard<'_, T>> {
        let held = enter(self.spec);
        RankedGuard {
            guard: self.inner.read(),
            _held: held,
        }
    }

    pub fn write(&self) -> RankedGuard<WriteGuard<'_, T>> {
        let held = enter(self.spec);
        RankedGuard {
            guard: self.inner.write(),
            _held: held,
        }
    }
}

/// A lock guard with its entry in the thread's list of held locks.
#[derive(Debug)]
pub struct RankedGuard<G> {
    guard: G,
    _held: HeldLock,
}

impl<G: Deref> Deref for RankedGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankedGuard<G> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    static LOW: LockSpec = LockSpec {
        name: "low",
        rank: 1,
        guards: "test",
    };
    static HIGH: LockSpec = LockSpec {
        name: "high",
        rank: 2,
        guards: "test",
    };

    #[test]
    fn ascending_is_allowed_and_descending_panics() {
        let low = RankedMutex::new(&LOW, 0);
        let high = RankedRwLock::new(&HIGH, 0);
        {
            let _a = low.lock();
            let _b = high.read();
        }
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let _b = high.write();
            let _a = low.lock();
        }));
        assert!(broken.is_err());
        assert_no_locks("the end of the test"); // unwinding released both
    }

    #[test]
    fn waiting_under_a_lock_panics() {
        let low = RankedMutex::new(&LOW, 0);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let _a = low.lock();
            let (_tx, rx) = crate::reply::<u8>();
            let _ = rx.wait(crate::Deadline::within(std::time::Duration::ZERO));
        }));
        assert!(broken.is_err());
    }
}
