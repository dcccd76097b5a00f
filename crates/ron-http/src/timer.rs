//! When the poll thread must wake: the earliest time limit of all connections, kept without a lock.
//! It may be too early, never too late.
//!
//! Two pairs of atomics must be seen in one order by all threads, hence `SeqCst`: a thread that
//! sets a limit writes `next` and then reads `sleeps_until`; the poll thread writes `sleeps_until`
//! and then reads `next`. At least one of the two sees the other's write, so no limit is slept
//! through.

use std::time::{Duration, Instant};

use ron_kernel::atomic::{AtomicU64, Ordering};
use ron_kernel::net::SharedPoller;

/// Ticks are milliseconds since the front started, from 1.
#[derive(Debug)]
pub(crate) struct Timer {
    start: Instant,
    /// The earliest known limit.
    next: AtomicU64,
    /// Until when the poll thread sleeps; 0 while it is awake.
    sleeps_until: AtomicU64,
    /// In which the poll thread sleeps.
    pub poller: SharedPoller,
}

impl Timer {
    pub(crate) fn new(start: Instant, poller: SharedPoller) -> Self {
        Self {
            start,
            next: AtomicU64::new(u64::MAX),
            sleeps_until: AtomicU64::new(0),
            poller,
        }
    }

    /// The tick of an instant, rounded up, so that no limit expires early.
    pub(crate) fn tick(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        since.as_nanos().div_ceil(1_000_000) as u64 + 1
    }

    /// The last tick that has passed at an instant.
    pub(crate) fn passed(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_millis() as u64 + 1
    }

    /// Records a new limit, after its slot has it; wakes the poll thread when it would sleep past
    /// it.
    pub(crate) fn note(&self, due: u64) {
        #[cfg(mutant = "limit")] // does not look whether the poll thread sleeps past it
        if ron_kernel::mutant("limit") {
            self.next.fetch_min(due, Ordering::SeqCst);
            return;
        }
        if due < self.next.load(Ordering::SeqCst) {
            self.next.fetch_min(due, Ordering::SeqCst);
            if due < self.sleeps_until.load(Ordering::SeqCst) {
                self.poller.wake();
            }
        }
    }

    /// Called before the slots are scanned: limits that are set from here on lower `next` again.
    pub(crate) fn start_scan(&self) {
        self.next.store(u64::MAX, Ordering::SeqCst);
    }

    /// Called after the scan with the earliest limit it found.
    pub(crate) fn end_scan(&self, earliest: u64) {
        self.next.fetch_min(earliest, Ordering::SeqCst);
    }

    /// True when a limit may have passed.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.load(Ordering::SeqCst) <= self.passed(now)
    }

    /// How long the poll thread may sleep, at most `cap`. Announces the sleep, so that an earlier
    /// limit that is set meanwhile wakes the thread.
    pub(crate) fn fall_asleep(&self, now: Instant, cap: Duration) -> Duration {
        let now = self.passed(now);
        let until = now + cap.as_millis() as u64;
        self.sleeps_until.store(until, Ordering::SeqCst);
        let next = self.next.load(Ordering::SeqCst);
        Duration::from_millis(next.min(until).saturating_sub(now))
    }

    pub(crate) fn woke(&self) {
        self.sleeps_until.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use ron_kernel::net::{Event, Poller, SocketId, Watch};

    use super::*;

    /// Records whether it was woken.
    #[derive(Debug, Default)]
    struct Woken(AtomicBool);

    impl Poller for Woken {
        fn add(&self, _: SocketId<'_>, _: u64, _: Watch) -> io::Result<()> {
            Ok(())
        }

        fn modify(&self, _: SocketId<'_>, _: u64, _: Watch) -> io::Result<()> {
            Ok(())
        }

        fn remove(&self, _: SocketId<'_>) {}

        fn wait(&self, _: &mut Vec<Event>, _: Duration) {}

        fn poll(&self, _: &mut Vec<Event>) {}

        fn wake(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_earlier_limit_wakes_the_sleeper_and_a_later_one_does_not() {
        let start = ron_kernel::Clock::now(&ron_kernel::SystemClock);
        let poller = Arc::new(Woken::default());
        let timer = Timer::new(start, poller.clone());
        let woken = || poller.0.swap(false, Ordering::SeqCst);
        let ms = |ms| start + Duration::from_millis(ms);
        assert_eq!(
            timer
                .fall_asleep(start, Duration::from_millis(250))
                .as_millis(),
            250
        );
        timer.note(timer.tick(ms(400)));
        assert!(!woken());
        timer.note(timer.tick(ms(100)));
        assert!(woken());
        timer.woke();
        timer.note(timer.tick(ms(50)));
        assert!(!woken(), "an awake thread needs no wake-up");
        assert_eq!(
            timer
                .fall_asleep(start, Duration::from_millis(250))
                .as_millis(),
            50
        );
        assert!(!timer.is_due(ms(49)));
        assert!(timer.is_due(ms(50)));
        timer.start_scan();
        timer.end_scan(timer.tick(ms(400)));
        assert!(!timer.is_due(ms(399)));
        assert!(timer.is_due(ms(400)));
    }
}
