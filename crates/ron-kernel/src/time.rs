//! Time as a value: one clock trait, and deadlines that are passed down.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;
pub use std::time::{Duration, Instant};

#[cfg(not(any(loom, shuttle)))]
pub use crate::manual_clock::ManualClock;
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

/// The moment by which an operation must be done. A job carries its own; it only ever gets earlier,
/// except where a long poll extends it by the wait that the caller asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `wait` from the clock's present.
    pub fn after(clock: &dyn Clock, wait: Duration) -> Self {
        Self(clock.now() + wait)
    }

    /// `wait` from the machine's present.
    pub fn within(wait: Duration) -> Self {
        Self(Instant::now() + wait)
    }

    /// At a given instant.
    pub const fn at_instant(at: Instant) -> Self {
        Self(at)
    }

    pub const fn at(self) -> Instant {
        self.0
    }

    /// Time left, zero when past (machine clock).
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// True when past (machine clock).
    pub fn expired(self) -> bool {
        Instant::now() >= self.0
    }

    /// True when past by the given clock.
    pub fn expired_by(self, clock: &dyn Clock) -> bool {
        clock.now() >= self.0
    }

    /// The earlier of two.
    pub fn earlier(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// At most `cap` from the machine's present.
    pub fn capped(self, cap: Duration) -> Self {
        self.earlier(Self::within(cap))
    }

    /// Later by `by`.
    pub fn extend(self, by: Duration) -> Self {
        Self(self.0 + by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_only_get_earlier() {
        let a = Deadline::within(Duration::from_secs(1));
        let b = a.extend(Duration::from_secs(5));
        assert_eq!(a.earlier(b), a);
        assert!(b.capped(Duration::from_secs(2)) < b);
        assert!(b.remaining() > Duration::from_secs(4));
    }
}
