//! The machine's clocks. A model of a checker has them too: its waits do not end by time.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// The present of the monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// The machine's date, since 1970-01-01 UTC; zero for an earlier one.
pub fn date() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Time since the machine was booted, suspended time included. Nobody can set it.
pub fn uptime() -> Duration {
    let boot = clock_gettime(ClockId::Boottime);
    Duration::new(
        boot.tv_sec.unsigned_abs(),
        boot.tv_nsec.unsigned_abs() as u32,
    )
}

/// Time since the first call in this process.
pub fn uptime_of_process() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(now).elapsed()
}
