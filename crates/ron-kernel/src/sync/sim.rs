//! The same interfaces over the simulator: real threads, one at a time, under a seed and on a virtual clock. Unlike in a
//! model waits end at their deadlines, and the clock jumps to the next one when all threads wait.

pub use std::sync::Arc;
pub use std::sync::atomic::Ordering;
pub use std::thread_local;
use std::time::{Duration, Instant};

pub use ron_sim::sync::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Gate, Mutex, MutexGuard, ReadGuard, RwLock, Swap,
    WriteGuard,
};

pub const fn mutex<T>(name: &'static str, value: T) -> Mutex<T> {
    Mutex::named(name, value)
}

pub const fn rw_lock<T>(name: &'static str, value: T) -> RwLock<T> {
    RwLock::named(name, value)
}

/// See `now` in `clock.rs`.
pub fn now() -> Instant {
    ron_sim::time::now()
}

/// The virtual date, since 1970-01-01 UTC.
pub fn date() -> Duration {
    ron_sim::time::date()
}

/// Virtual time since the start of the run, at which the machine was booted.
pub fn uptime() -> Duration {
    ron_sim::time::elapsed()
}

/// See `uptime_of_process` in `clock.rs`.
pub fn uptime_of_process() -> Duration {
    ron_sim::time::elapsed()
}

pub use ron_sim::undivided;

/// A figure of the machine: 0 in a simulation, whose runs would differ in what they take of it.
pub fn of_machine(value: impl Fn() -> f64) -> impl Fn() -> f64 {
    move || {
        if ron_sim::is_simulated() {
            0.0
        } else {
            value()
        }
    }
}

/// Random bytes of the seed; false, with nothing filled, outside of a run.
pub fn fill_random(out: &mut [u8]) -> bool {
    ron_sim::fault::fill_random(out)
}

pub mod chan {
    //! The bounded channel under every queue.
    use std::convert::Infallible;
    use std::time::Instant;

    use ron_sim::chan::select;
    pub use ron_sim::chan::{Receiver, SendTimeoutError, Sender, TrySendError, bounded, named};
    use ron_sim::sync::Gate;

    use crate::sync::Selected;

    /// See `recv_or` in `real.rs`.
    pub fn recv_or<T>(rx: &Receiver<T>, gate: &Gate, at: Instant) -> Selected<T, Infallible> {
        match select(&[rx, gate], Some(at)) {
            None => Selected::TimedOut,
            Some(0) => rx.take().map_or(Selected::Disconnected, Selected::First),
            Some(_) => Selected::Opened,
        }
    }

    /// See `recv_either_or` in `real.rs`.
    pub fn recv_either_or<T, U>(
        rx: &Receiver<T>,
        other: &Receiver<U>,
        gate: &Gate,
        at: Instant,
    ) -> Selected<T, U> {
        match select(&[rx, other, gate], Some(at)) {
            None => Selected::TimedOut,
            Some(0) => rx.take().map_or(Selected::Disconnected, Selected::First),
            Some(1) => other
                .take()
                .map_or(Selected::Disconnected, Selected::Second),
            Some(_) => Selected::Opened,
        }
    }
}

pub mod thread {
    //! Threads of the simulator.

    #[derive(Debug)]
    pub struct Handle(ron_sim::thread::JoinHandle<()>);

    impl Handle {
        pub fn join(self) {
            let _ = self.0.join(); // a killed thread has ended too
        }
    }

    pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<Handle> {
        ron_sim::thread::spawn_named(name, body).map(Handle)
    }
}
