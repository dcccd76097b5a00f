//! Circuit breaker: 20 failures in a rolling 10 s open it for 5 s, then 10 probes may pass. Probes
//! without a result after 5 s are replaced by 10 others. The numbers are those of
//! [`BreakerLimits::default`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// When a breaker opens, and how it closes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerLimits {
    /// Failures within `window` that open it; at least 1.
    pub failures: usize,
    pub window: Duration,
    /// How long no call is allowed, and how long probes are waited for.
    pub open_for: Duration,
    /// Calls that are allowed then; it closes when all of them succeed. At least 1.
    pub probes: u32,
}

impl Default for BreakerLimits {
    fn default() -> Self {
        Self {
            failures: 20,
            window: Duration::from_secs(10),
            open_for: Duration::from_secs(5),
            probes: 10,
        }
    }
}

#[derive(Debug)]
enum State {
    Closed {
        failures: VecDeque<Instant>,
    },
    Open {
        until: Instant,
    },
    HalfOpen {
        left: u32,
        passed: u32,
        /// When probes without a result no longer count as in flight.
        until: Instant,
    },
}

impl State {
    fn closed() -> Self {
        Self::Closed {
            failures: VecDeque::new(),
        }
    }

    fn open(limits: &BreakerLimits, now: Instant) -> Self {
        Self::Open {
            until: now + limits.open_for,
        }
    }

    fn probing(limits: &BreakerLimits, now: Instant) -> Self {
        Self::HalfOpen {
            left: limits.probes,
            passed: 0,
            until: now + limits.open_for,
        }
    }
}

/// What a result changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The upstream failed too often: no call is allowed for a time.
    Opened,
    /// The upstream has recovered.
    Closed,
}

/// One breaker per upstream.
#[derive(Debug)]
pub struct Breaker {
    limits: BreakerLimits,
    state: Mutex<State>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new(BreakerLimits::default())
    }
}

impl Breaker {
    pub fn new(limits: BreakerLimits) -> Self {
        Self {
            limits,
            state: Mutex::new(State::closed()),
        }
    }

    /// Whether a call may be made at `now`; `Err` holds the time after which to try again. Every
    /// allowed call should be followed by [`Breaker::record`]; a probe that is not delays recovery.
    pub fn allow(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.state.lock();
        if let State::Open { until } = *state {
            if now < until {
                return Err(until - now);
            }
            *state = State::probing(&self.limits, now);
        }
        // A caller that ended before it recorded its probe must not keep the breaker half open.
        if let State::HalfOpen { left: 0, until, .. } = *state
            && now >= until
        {
            *state = State::probing(&self.limits, now);
        }
        if let State::HalfOpen { left, .. } = &mut *state {
            // All probes are in flight; their results decide.
            if *left == 0 {
                return Err(Duration::from_millis(100));
            }
            *left -= 1;
        }
        Ok(())
    }

    /// Records the result of an allowed call. A probe that fails changes nothing: the upstream is still away.
    pub fn record(&self, now: Instant, ok: bool) -> Option<Turn> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Closed { failures } if !ok => {
                failures.push_back(now);
                while failures
                    .front()
                    .is_some_and(|t| now.saturating_duration_since(*t) > self.limits.window)
                {
                    failures.pop_front();
                }
                if failures.len() >= self.limits.failures {
                    *state = State::open(&self.limits, now);
                    return Some(Turn::Opened);
                }
            }
            // One failed probe is enough: the upstream has not recovered.
            State::HalfOpen { .. } if !ok => *state = State::open(&self.limits, now),
            State::HalfOpen { passed, .. } => {
                *passed += 1;
                if *passed >= self.limits.probes {
                    *state = State::closed();
                    return Some(Turn::Closed);
                }
            }
            // A success while closed, or a call that began before the breaker opened.
            State::Closed { .. } | State::Open { .. } => {}
        }
        None
    }

    /// Forgets what was recorded: calls go to another upstream from now on.
    pub fn reset(&self) {
        *self.state.lock() = State::closed();
    }

    /// 0 closed, 1 half open, 2 open: the value of the `breaker_state` gauge.
    pub fn level(&self) -> i64 {
        match *self.state.lock() {
            State::Closed { .. } => 0,
            State::HalfOpen { .. } => 1,
            State::Open { .. } => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BreakerLimits = BreakerLimits {
        failures: 20,
        window: Duration::from_secs(10),
        open_for: OPEN_FOR,
        probes: PROBES,
    };
    const FAILURES: usize = LIMITS.failures;
    const OPEN_FOR: Duration = Duration::from_secs(5);
    const PROBES: u32 = 10;

    #[test]
    fn other_limits_act() {
        assert_eq!(BreakerLimits::default(), LIMITS);
        let ms = Duration::from_millis;
        let b = Breaker::new(BreakerLimits {
            failures: 2,
            window: ms(100),
            open_for: ms(300),
            probes: 1,
        });
        let t = Instant::now();
        b.record(t, false);
        b.record(t + ms(101), false);
        assert_eq!(b.level(), 0, "one failure in a window");
        b.record(t + ms(150), false);
        assert_eq!(b.allow(t + ms(150)), Err(ms(300)));
        assert_eq!(b.allow(t + ms(450)), Ok(()));
        assert!(b.allow(t + ms(450)).is_err(), "one probe passes");
        b.record(t + ms(460), true);
        assert_eq!(b.level(), 0);
    }

    #[test]
    fn opens_probes_and_closes() {
        let b = Breaker::default();
        let t = Instant::now();
        let turns: Vec<_> = (0..FAILURES)
            .filter_map(|_| {
                assert!(b.allow(t).is_ok());
                b.record(t, false)
            })
            .collect();
        assert_eq!(turns, [Turn::Opened]);
        assert_eq!((b.level(), b.allow(t).is_err()), (2, true));
        let later = t + OPEN_FOR;
        for _ in 0..PROBES {
            assert!(b.allow(later).is_ok());
        }
        assert!(b.allow(later).is_err(), "no more than the probes pass");
        let turns: Vec<_> = (0..PROBES).filter_map(|_| b.record(later, true)).collect();
        assert_eq!(turns, [Turn::Closed]);
        assert_eq!(b.level(), 0);
    }

    #[test]
    fn probes_without_a_result_are_replaced() {
        let b = Breaker::default();
        let t = Instant::now();
        (0..FAILURES).for_each(|_| {
            b.record(t, false);
        });
        let probing = t + OPEN_FOR;
        for _ in 0..PROBES {
            assert!(b.allow(probing).is_ok());
        }
        let before = probing + OPEN_FOR.mul_f32(0.9);
        assert!(b.allow(before).is_err(), "their results may still come");
        let after = probing + OPEN_FOR;
        for _ in 0..PROBES {
            assert!(b.allow(after).is_ok());
            b.record(after, true);
        }
        assert_eq!(b.level(), 0);
    }

    #[test]
    fn old_failures_are_forgotten_and_one_failed_probe_opens_again() {
        let b = Breaker::default();
        let t = Instant::now();
        for i in 0..FAILURES as u32 {
            b.record(t + Duration::from_secs(1) * i, false);
        }
        assert_eq!(
            b.level(),
            0,
            "twenty failures over twenty seconds are not twenty in ten"
        );
        let b = Breaker::default();
        (0..FAILURES).for_each(|_| {
            b.record(t, false);
        });
        assert!(b.allow(t + OPEN_FOR).is_ok());
        b.record(t + OPEN_FOR, false);
        assert_eq!(b.level(), 2);
    }
}
