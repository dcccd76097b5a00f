//! Locks, condition variables, gates, snapshots and atomics, in the shapes of parking_lot and the standard library.
//! Each contains the real thing, so that its memory is safe by construction: a simulated thread only tries it, and
//! waits in the simulator when it is taken.

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
