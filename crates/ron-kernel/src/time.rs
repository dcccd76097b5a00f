//! Time as a value: one clock trait, and the deadlines of a clock.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;
pub use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::shutdown::Shutdown;

/// The source of time. Services receive it from outside, so that tests can drive it.
pub trait Clock: Send + Sync + Debug + 'static {
    fn now(&self) -> Instant;
    /// Wall-clock time in milliseconds since 1970-01-01 UTC.
    fn unix_ms(&self) -> u64;
    /// Waits until shutdown is fired (true) or this clock has reached `until` (false).
    fn wait(&self, shutdown: &Shutdown, until: Deadline) -> bool {
        shutdown.wait(until)
    }
}

/// A clock shared by the threads of a service.
pub type SharedClock = Arc<dyn Clock>;

#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clock, ready to share.
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn unix_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64)
    }
}

impl Deadline {
    /// `wait` from the clock's present.
    pub fn after(clock: &dyn Clock, wait: Duration) -> Self {
        Self::at_instant(clock.now() + wait)
    }

    /// True when past by the given clock.
    pub fn expired_by(self, clock: &dyn Clock) -> bool {
        clock.now() >= self.at()
    }
}
