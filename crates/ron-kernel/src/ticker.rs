//! Periodic ticks on a fixed grid: the duration of a tick's work delays no later tick.

use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::shutdown::Shutdown;
use crate::time::SharedClock;

/// A point of the grid that has been reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// Its place on the grid; the first, one period after the start, is 1.
    pub number: u64,
    /// Ticks before it that passed unobserved. They are skipped, not caught up.
    pub missed: u64,
}

/// Ticks at start + 1, 2, 3... periods of its clock.
#[derive(Debug)]
pub struct Ticker {
    clock: SharedClock,
    start: Instant,
    period: Duration,
    /// The number of the next tick.
    next: u64,
}

impl Ticker {
    /// Starts now; the first tick comes one `period` (at least a millisecond) later.
    pub fn new(clock: SharedClock, period: Duration) -> Self {
        Self {
            start: clock.now(),
            clock,
            period: period.max(Duration::from_millis(1)),
            next: 1,
        }
    }

    /// Waits for the next tick; `None` when shutdown comes first.
    pub fn wait(&mut self, shutdown: &Shutdown) -> Option<Tick> {
        loop {
            if self.clock.wait(shutdown, self.deadline()) || shutdown.is_set() {
                return None;
            }
            if let Some(tick) = self.due() {
                return Some(tick);
            }
        }
    }

    /// The tick that is due, if any: for loops that wait for other events as well, until
    /// [`Ticker::deadline`].
    pub fn due(&mut self) -> Option<Tick> {
        let since = self.clock.now().saturating_duration_since(self.start);
        let number = (since.as_nanos() / self.period.as_nanos()) as u64;
        if number < self.next {
            return None;
        }
        let missed = number - self.next;
        self.next = number + 1;
        Some(Tick { number, missed })
    }

    /// When the next tick is due.
    pub fn deadline(&self) -> Deadline {
        // Counted from the start, not from the last tick, so that late wake-ups do not add up.
        let offset = self.period.as_nanos() * u128::from(self.next);
        let secs = (offset / 1_000_000_000) as u64;
        let nanos = (offset % 1_000_000_000) as u32;
        Deadline::at_instant(self.start + Duration::new(secs, nanos))
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::*;
    use crate::manual_clock::ManualClock;
    use crate::time::{Clock, SystemClock};

    const PERIOD: Duration = Duration::from_millis(250);

    #[test]
    fn slow_work_skips_ticks_and_moves_none() {
        let clock = ManualClock::at(0);
        let start = clock.now();
        let mut ticker = Ticker::new(clock.clone(), PERIOD);
        assert_eq!(ticker.due(), None);
        let tick = |number, missed| Some(Tick { number, missed });
        clock.advance(Duration::from_millis(260));
        assert_eq!(ticker.due(), tick(1, 0));
        assert_eq!(ticker.due(), None);
        clock.advance(Duration::from_millis(1_000)); // 1.26 s: ticks 2, 3, 4 passed, 5 is due
        assert_eq!(ticker.due(), tick(5, 3));
        assert_eq!(ticker.deadline().at(), start + 6 * PERIOD);
        for n in 6..10_006 {
            clock.advance(ticker.deadline().at() - clock.now());
            assert_eq!(ticker.due(), tick(n, 0));
        }
        assert_eq!(ticker.deadline().at(), start + 10_006 * PERIOD, "no drift");
    }

    #[test]
    fn a_day_of_ticks_takes_no_time_on_a_virtual_clock() {
        let clock = ManualClock::at(0);
        let (trigger, token) = Shutdown::pair();
        let soon = Deadline::within(Duration::from_secs(10));
        let mut ticker = Ticker::new(clock.clone(), Duration::from_secs(3_600));
        std::thread::scope(|s| {
            let ticks = s.spawn(|| {
                let all = std::iter::from_fn(|| ticker.wait(&token));
                all.map(|t| t.number).collect::<Vec<_>>()
            });
            for _ in 0..24 {
                assert!(clock.until_sleepers(1, soon));
                clock.advance(Duration::from_secs(3_600));
            }
            assert!(clock.until_sleepers(1, soon));
            trigger.fire();
            assert_eq!(ticks.join().unwrap(), (1..=24).collect::<Vec<_>>());
        });
    }

    #[test]
    fn on_the_machines_clock_the_mean_period_holds() {
        let (_trigger, token) = Shutdown::pair();
        let clock = SystemClock::shared();
        let start = clock.now();
        let mut ticker = Ticker::new(clock, Duration::from_millis(5));
        let mut last = 0;
        while last < 40 {
            let tick = ticker.wait(&token).unwrap();
            assert_eq!(tick.number, last + 1 + tick.missed);
            last = tick.number;
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(start.elapsed() >= Duration::from_millis(200));
    }
}
