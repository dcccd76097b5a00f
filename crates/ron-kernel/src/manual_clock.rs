//! The virtual clock: a test advances time, and each waiting thread wakes when its deadline passes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::locks::assert_no_locks;
use crate::shutdown::Shutdown;
use crate::sync::chan::{self, Sender};
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, Selected, now};
use crate::time::{Clock, ClockAlarm};

/// A wait on this clock has no end on the machine's; a year stands for that.
const FAR: Duration = Duration::from_hours(365 * 24);

/// A clock that moves only by [`ManualClock::advance`]. Fault model: it never jumps back.
#[derive(Debug)]
pub struct ManualClock {
    base: Instant,
    base_unix_ms: u64,
    elapsed_ns: AtomicU64,
    alarm: Mutex<Option<ClockAlarm>>,
    sleepers: Mutex<Sleepers>,
    /// Notified when a thread begins to wait.
    joined: Condvar,
}

#[derive(Debug, Default)]
struct Sleepers {
    last_id: u64,
    waiting: Vec<Sleeper>,
}

#[derive(Debug)]
struct Sleeper {
    id: u64,
    until: Instant,
    /// Dropping it closes the channel on which the thread waits.
    _wake: Sender<()>,
}

impl ManualClock {
    /// Starts at the given wall-clock time (unix ms).
    pub fn at(unix_ms: u64) -> Arc<Self> {
        Arc::new(Self {
            base: now(),
            base_unix_ms: unix_ms,
            elapsed_ns: AtomicU64::new(0),
            alarm: Mutex::default(),
            sleepers: Mutex::default(),
            joined: Condvar::new(),
        })
    }

    /// Moves the monotonic and the wall clock forward and wakes the threads whose deadline passed.
    pub fn advance(&self, by: Duration) {
        self.elapsed_ns
            .fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        let now = self.now();
        let mut sleepers = self.sleepers.lock();
        sleepers.waiting.retain(|s| s.until > now);
    }

    /// Makes the clock doubt the machine's date, or believe it.
    pub fn doubt(&self, alarm: Option<ClockAlarm>) {
        *self.alarm.lock() = alarm;
    }

    /// Number of threads that wait on this clock now.
    pub fn sleepers(&self) -> usize {
        self.sleepers.lock().waiting.len()
    }

    /// Waits (on the machine's clock) until at least `n` threads wait on this one, so that a test
    /// knows which threads the next [`ManualClock::advance`] wakes; false at the deadline.
    pub fn until_sleepers(&self, n: usize, deadline: Deadline) -> bool {
        assert_no_locks("a wait for sleepers");
        let mut sleepers = self.sleepers.lock();
        while sleepers.waiting.len() < n {
            let waited = self.joined.wait_until(&mut sleepers, deadline.at());
            if waited.timed_out() {
                return sleepers.waiting.len() >= n;
            }
        }
        true
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns.load(Ordering::SeqCst))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.base + self.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        self.base_unix_ms + self.elapsed().as_millis() as u64
    }

    fn alarm(&self) -> Option<ClockAlarm> {
        *self.alarm.lock()
    }

    fn wait(&self, shutdown: &Shutdown, until: Deadline) -> bool {
        assert_no_locks("a wait on a clock");
        let (wake, woken) = chan::bounded::<()>(1);
        let id = {
            let mut sleepers = self.sleepers.lock();
            // `advance` moves the time first and takes this lock second. A waiter that still sees
            // the old time here is therefore in the list when `advance` looks for it.
            if self.now() >= until.at() {
                return shutdown.is_set();
            }
            sleepers.last_id += 1;
            let id = sleepers.last_id;
            sleepers.waiting.push(Sleeper {
                id,
                until: until.at(),
                _wake: wake,
            });
            self.joined.notify_all();
            id
        };
        if let Selected::Opened = chan::recv_or(&woken, shutdown.gate(), now() + FAR) {
            self.sleepers.lock().waiting.retain(|s| s.id != id);
        }
        shutdown.is_set()
    }
}

#[cfg(all(test, not(sim)))]
mod tests {
    use super::*;

    #[test]
    fn moves_both_times() {
        let c = ManualClock::at(1_000);
        let t0 = c.now();
        let d = Deadline::after(c.as_ref(), Duration::from_secs(2));
        assert!(!d.expired_by(c.as_ref()));
        c.advance(Duration::from_secs(2));
        assert_eq!(c.now() - t0, Duration::from_secs(2));
        assert_eq!(c.unix_ms(), 3_000);
        assert!(d.expired_by(c.as_ref()));
    }

    #[test]
    fn a_waiter_wakes_at_its_virtual_moment_or_at_shutdown() {
        let clock = ManualClock::at(0);
        let (trigger, token) = Shutdown::pair();
        let soon = Deadline::within(Duration::from_secs(10));
        std::thread::scope(|s| {
            let wait = |secs| {
                let (clock, token) = (clock.clone(), token.clone());
                let until = Deadline::after(clock.as_ref(), Duration::from_secs(secs));
                s.spawn(move || clock.wait(&token, until))
            };
            let (hour, day) = (wait(3_600), wait(86_400));
            assert!(clock.until_sleepers(2, soon));
            clock.advance(Duration::from_secs(3_599));
            assert_eq!(clock.sleepers(), 2);
            clock.advance(Duration::from_secs(1));
            assert!(!hour.join().unwrap());
            assert_eq!(clock.sleepers(), 1);
            trigger.fire();
            assert!(day.join().unwrap());
        });
        assert_eq!(clock.sleepers(), 0);
        let past = Deadline::after(clock.as_ref(), Duration::ZERO);
        assert!(clock.wait(&token, past), "fired before");
    }
}
