//! ron-kernel: threads, queues, deadlines, shutdown, supervision, snapshots, clock, randomness,
//! sockets.
//!
//! The only crate that names crossbeam, parking_lot, arc-swap, `std::thread`, `Instant::now` and
//! `SystemTime::now`. Every crate above it uses the types below:
//!
//! ```text
//!  Supervisor ── spawns ──> named threads, each in a drain Stage, restarted in place after a panic
//!      │                        │ recv(&shutdown, deadline)
//!      │ drain(): stage tokens  ▼
//!      └──────────────>  Queue (bounded, policy) ── job carries Deadline + ReplySender ──> ReplyWaiter
//! ```
//!
//! **Invariants**: every queue is bounded and named; every wait has a deadline; no lock is held
//! over a send or a wait (asserted in every build); a reply slot is answered once or dropped once.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // this crate wraps them

pub mod atomic;
pub mod backoff;
mod beside;
pub mod breaker;
pub mod credits;
mod deadline;
mod disk_watch;
pub mod exit;
mod guarded_clock;
pub mod hang;
mod idle;
pub mod locks;
pub mod loops;
#[cfg(not(any(loom, shuttle)))]
mod manual_clock;
pub mod metrics;
#[cfg(all(test, any(loom, shuttle, sim)))]
mod models;
pub mod net;
pub mod published;
pub mod queue;
pub mod random;
pub mod rate;
pub mod reply;
pub mod ring;
mod scope;
pub mod shutdown;
pub mod signals;
pub mod snapshot;
pub mod supervisor;
mod sync;
pub mod ticker;
pub mod time;
pub mod topology;

pub use backoff::Backoff;
pub use beside::beside;
pub use breaker::{Breaker, BreakerLimits, Turn};
pub use credits::{Credit, Credits};
pub use deadline::Deadline;
pub use disk_watch::{DiskWatch, DiskWatches, HANGS_AFTER, HungDisk};
pub use guarded_clock::{DateSource, Dates, GuardedClock};
pub use hang::{HangError, HangPool, HangSpec, Pending};
pub use idle::IdleWorkers;
pub use locks::{RankedMutex, RankedRwLock, assert_no_locks, holds_a_lock};
#[cfg(not(any(loom, shuttle)))]
pub use manual_clock::ManualClock;
pub use metrics::{
    BuiltQueue, ClosedCounter, ClosedGauge, Counter, CounterVec, FloatGaugeVec, Gauge, GaugeVec,
    Histogram, HistogramVec, KernelMetrics, LATENCY_BUCKETS, Registry,
};
pub use net::{Net, OsNet, SharedNet};
pub use published::Published;
pub use queue::{Expires, Receiver, Recv, RecvEither, SendError, Sender, queue};
pub use random::{OsRandom, Random, SeededRandom, SharedRandom};
pub use rate::TokenBuckets;
pub use reply::{ReplySender, ReplyWaiter, WaitError, reply};
pub use ring::{Ring, Subscriber};
pub use scope::ServiceScope;
pub use shutdown::{Shutdown, ShutdownTrigger};
pub use signals::{Signal, SignalEvents, Signals};
pub use snapshot::Snapshot;
pub use supervisor::{
    DrainReport, Incident, PlaneState, Supervisor, ThreadCtx, TopologyLive, Verdict,
    os_thread_names,
};
#[cfg(any(loom, shuttle, sim))]
pub use sync::mutant;
pub use ticker::{Tick, Ticker};
pub use time::{Clock, ClockAlarm, SharedClock, SystemClock};
pub use topology::{Count, LockSpec, Overflow, QueueSpec, Stage, ThreadSpec, Topology};

/// Runs `f` on `n` scoped threads and returns their results in index order; a panic of one thread
/// is resumed on the caller. For data-parallel work that ends before the caller continues (offline
/// verification, imports), not for service loops: these threads are in no topology table.
pub fn scoped<R: Send>(n: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    sync::scoped(n, f)
}

/// Number of cores this process may use, at least 1.
pub fn cores() -> usize {
    sync::cores()
}
