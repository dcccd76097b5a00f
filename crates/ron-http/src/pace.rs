//! The minimum rate of a large transfer: a number of bytes within each window, and a longest time
//! without any. It replaces a total deadline where size, not a fixed time, sets the bound.

use std::time::{Duration, Instant};

/// The minimum rate of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The longest time without a byte.
    pub idle: Duration,
    /// The time over which the rate is measured.
    pub window: Duration,
    /// Minimum number of bytes within the window.
    pub bytes: u64,
}

/// The progress of a transfer. A window ends as soon as its bytes have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    rule: Rule,
    window_start: Instant,
    window_bytes: u64,
    last: Instant,
}

impl Pace {
    pub(crate) fn new(rule: Rule, now: Instant) -> Self {
        Self {
            rule,
            window_start: now,
            window_bytes: 0,
            last: now,
        }
    }

    /// Records that `bytes` more have been transferred.
    pub(crate) fn add(&mut self, bytes: u64, now: Instant) {
        if bytes == 0 {
            return;
        }
        self.last = now;
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        // A window that is full early starts the next one, so a burst cannot be saved up for a
        // stall.
        if self.window_bytes >= self.rule.bytes {
            self.window_bytes = 0;
            self.window_start = now;
        }
    }

    /// When the transfer is given up unless more bytes are transferred.
    pub(crate) fn due(&self) -> Instant {
        (self.last + self.rule.idle).min(self.window_start + self.rule.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_must_neither_stall_nor_trickle() {
        let start = ron_kernel::Clock::now(&ron_kernel::SystemClock);
        let at = |ms| start + Duration::from_millis(ms);
        let rule = Rule {
            idle: Duration::from_secs(5),
            window: Duration::from_secs(10),
            bytes: 1000,
        };
        let mut pace = Pace::new(rule, start);
        assert_eq!(pace.due(), at(5_000), "silent from the start");
        pace.add(10, at(4_000));
        assert_eq!(pace.due(), at(9_000));
        pace.add(10, at(8_000));
        assert_eq!(pace.due(), at(10_000), "trickling: the window ends first");
        pace.add(0, at(9_900));
        assert_eq!(pace.due(), at(10_000), "no bytes are no progress");
        pace.add(980, at(9_950));
        assert_eq!(pace.due(), at(14_950), "the next window");
        for second in 10..1000 {
            assert!(
                pace.due() > at(second * 1000),
                "above the rate it continues"
            );
            pace.add(120, at(second * 1000));
        }
    }
}
