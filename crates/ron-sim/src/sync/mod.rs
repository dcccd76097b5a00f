//! Locks, condition variables, gates, snapshots and atomics, in the shapes of parking_lot and the standard library.
//! Each contains the real thing, so that its memory is safe by construction: a simulated thread only tries it, and
//! waits in the simulator when it is taken.

use std::sync::{TryLockError, TryLockResult};

mod atomic;
mod condvar;
mod gate;
mod mutex;
mod rwlock;
mod swap;

pub use atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use gate::Gate;
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use swap::Swap;

/// The guard of a lock of the standard library, poisoned or not; `None` when the lock is taken.
fn unless_taken<G>(tried: TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(value) => Some(value),
        Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
