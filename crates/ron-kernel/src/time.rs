//! Time as a value: one clock trait, and the deadlines of a clock.

use std::fmt::{self, Debug};
use std::sync::Arc;
pub use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::shutdown::Shutdown;
use crate::sync;

/// The source of time. Services receive it from outside, so that tests can drive it.
pub trait Clock: Send + Sync + Debug + 'static {
    fn now(&self) -> Instant;
    /// Wall-clock time in milliseconds since 1970-01-01 UTC.
    fn unix_ms(&self) -> u64;
    /// Why the machine's date is not believed; `None` while it is.
    fn alarm(&self) -> Option<ClockAlarm> {
        None
    }
    /// The alarm, if the date was wrong at the start: then nothing may be written, and no passport accepted.
    fn date_unknown(&self) -> Option<ClockAlarm> {
        self.alarm().filter(|alarm| alarm.at_start)
    }
    /// Believes the machine's date from now on, on an operator's word.
    fn accept_date(&self) {}
    /// Tells the clock at a start when the newest stored entry was made; 0 when there is none. A date before it, or too far
    /// after it, is not believed: the clock goes on from the entry.
    fn resume_after(&self, newest_ms: u64) {
        let _ = newest_ms;
    }
    /// Waits until shutdown is fired (true) or this clock has reached `until` (false).
    fn wait(&self, shutdown: &Shutdown, until: Deadline) -> bool {
        shutdown.wait(until)
    }
}

/// The machine's date is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAlarm {
    /// The machine's date minus the date that the clock keeps, in milliseconds.
    pub ahead_ms: i64,
    /// Whether the date was wrong when the service started. Then the clock's date is not known
    /// either: [`Clock::date_unknown`].
    pub at_start: bool,
}

impl fmt::Display for ClockAlarm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.ahead_ms < 0 {
            "behind"
        } else {
            "ahead of"
        };
        let seconds = self.ahead_ms.unsigned_abs() / 1_000;
        let at_start = if self.at_start {
            ", which continues from the newest that it knows; nothing is written and no passport is accepted"
        } else {
            ""
        };
        write!(
            out,
            "the machine's date is {seconds} s {side} the service's own{at_start}"
        )
    }
}

impl ClockAlarm {
    /// What an operator must do.
    pub const HINT: &str = "correct the machine's date, or run `ron clock accept` if it is right";
}

/// A clock shared by the threads of a service.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock as it is, for command lines and measurements; services have a
/// [`crate::GuardedClock`].
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
        sync::now()
    }

    fn unix_ms(&self) -> u64 {
        sync::date().as_millis() as u64
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
