//! Deadlines: moments that are passed down. Those of a clock other than the machine's are in `time.rs`.

use std::time::{Duration, Instant};

use crate::sync::now;

/// The moment by which an operation must be done. A job carries its own; it only ever gets earlier,
/// except where a long poll extends it by the wait that the caller asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `wait` from the machine's present.
    pub fn within(wait: Duration) -> Self {
        Self(now() + wait)
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
        self.0.saturating_duration_since(now())
    }

    /// Time since, zero when not past (machine clock).
    pub fn overdue(self) -> Duration {
        now().saturating_duration_since(self.0)
    }

    /// True when past (machine clock).
    pub fn expired(self) -> bool {
        now() >= self.0
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
