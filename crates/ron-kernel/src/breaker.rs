//! Circuit breaker: 20 failures in a rolling 10 s open it for 5 s, then 10 probes may pass. Probes
//! without a result after 5 s are replaced by 10 others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const FAILURES: usize = 20;
const WINDOW: Duration = Duration::from_secs(10);
const OPEN_FOR: Duration = Duration::from_secs(5);
const PROBES: u32 = 10;

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
    fn probing(now: Instant) -> Self {
        Self::HalfOpen {
            left: PROBES,
            passed: 0,
            until: now + OPEN_FOR,
        }
    }
}

/// One breaker per upstream.
#[derive(Debug)]
pub struct Breaker(Mutex<State>);

impl Default for Breaker {
    fn default() -> Self {
        Self(Mutex::new(State::Closed {
            failures: VecDeque::new(),
        }))
    }
}

impl Breaker {
    /// Whether a call may be made at `now`; `Err` holds the time after which to try again. Every
    /// allowed call should be followed by [`Breaker::record`]; a probe that is not delays recovery.
    pub fn allow(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.0.lock();
        if let State::Open { until } = *state {
            if now < until {
                return Err(until - now);
            }
            *state = State::probing(now);
        }
        // A caller that ended before it recorded its probe must not keep the breaker half open.
        if let State::HalfOpen { left: 0, until, .. } = *state
            && now >= until
        {
            *state = State::probing(now);
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

    /// Records the result of an allowed call.
    pub fn record(&self, now: Instant, ok: bool) {
        let mut state = self.0.lock();
        match &mut *state {
            State::Closed { failures } if !ok => {
                failures.push_back(now);
                while failures
                    .front()
                    .is_some_and(|t| now.saturating_duration_since(*t) > WINDOW)
                {
                    failures.pop_front();
                }
                if failures.len() >= FAILURES {
                    *state = State::Open {
                        until: now + OPEN_FOR,
                    };
                }
            }
            // One failed probe is enough: the upstream has not recovered.
            State::HalfOpen { .. } if !ok => {
                *state = State::Open {
                    until: now + OPEN_FOR,
                }
            }
            State::HalfOpen { passed, .. } => {
                *passed += 1;
                if *passed >= PROBES {
                    *state = State::Closed {
                        failures: VecDeque::new(),
                    };
                }
            }
            // A success while closed, or a call that began before the breaker opened.
            State::Closed { .. } | State::Open { .. } => {}
        }
    }

    /// 0 closed, 1 half open, 2 open: the value of the `breaker_state` gauge.
    pub fn level(&self) -> i64 {
        match *self.0.lock() {
            State::Closed { .. } => 0,
            State::HalfOpen { .. } => 1,
            State::Open { .. } => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_probes_and_closes() {
        let b = Breaker::default();
        let t = Instant::now();
        for _ in 0..FAILURES {
            assert!(b.allow(t).is_ok());
            b.record(t, false);
        }
        assert_eq!((b.level(), b.allow(t).is_err()), (2, true));
        let later = t + OPEN_FOR;
        for _ in 0..PROBES {
            assert!(b.allow(later).is_ok());
        }
        assert!(b.allow(later).is_err(), "no more than the probes pass");
        for _ in 0..PROBES {
            b.record(later, true);
        }
        assert_eq!(b.level(), 0);
    }

    #[test]
    fn probes_without_a_result_are_replaced() {
        let b = Breaker::default();
        let t = Instant::now();
        (0..FAILURES).for_each(|_| b.record(t, false));
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
        (0..FAILURES).for_each(|_| b.record(t, false));
        assert!(b.allow(t + OPEN_FOR).is_ok());
        b.record(t + OPEN_FOR, false);
        assert_eq!(b.level(), 2);
    }
}
