//! The virtual clock. It stands still while no operation is done, and jumps to the next deadline when every thread
//! waits.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use crate::machine;
use crate::world::{Me, wait_for, with_me};

/// The instant that stands for the start of every run.
fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(machine::start_of_every_run)
}

/// The virtual present; outside of a run the machine's. The same as `Instant::now()`, see `machine.rs`.
pub fn now() -> Instant {
    Instant::now()
}

/// Virtual time since the start of the run; zero outside of one.
pub fn elapsed() -> Duration {
    Duration::from_nanos(with_me(Me::now).unwrap_or(0))
}

/// The virtual date, since 1970; outside of a run the machine's.
pub fn date() -> Duration {
    let date = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    date.unwrap_or_default()
}

/// Virtual nanoseconds of an instant; 0 for one before the start.
pub fn virtual_ns(at: Instant) -> u64 {
    let since = at.saturating_duration_since(base());
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits in virtual time.
///
/// # Panics
/// Outside of a run.
pub fn sleep(time: Duration) {
    let at = virtual_ns(now() + time);
    wait_for("sleeps", &[], Some(at));
}
