//! How far a follower of a log is behind, and what follows from it: metrics, a cause of weakness, and
//! slower writes before it falls behind without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_kernel::{Registry, SharedClock};
use ron_proto::{Problem, Timestamp};

use crate::ready::ReadyBoard;

/// A follower that is further behind degrades its service and slows its writes.
pub const LAG_MAX: Duration = Duration::from_secs(10);
/// Time without progress after which a follower does not catch up.
const STUCK: Duration = Duration::from_secs(1);

/// A follower and its log, as operators and callers read of them.
#[derive(Debug, Clone, Copy)]
pub struct Follower {
    /// Start of the metrics' names and cause on the readiness board, such as `feed_lag`.
    pub name: &'static str,
    /// Subject of messages, such as "the copy of the ledger's entries".
    pub what: &'static str,
}

/// Written by the follower's thread, read by the handlers of writes.
#[derive(Debug)]
pub struct FollowerLag {
    follower: Follower,
    clock: SharedClock,
    ready: ReadyBoard,
    /// Entries that are not applied, as last seen.
    left: AtomicU64,
    /// When the oldest entry that is not applied began to wait, or earlier, in ms since 1970; 0 when
    /// none waits.
    since_ms: AtomicU64,
    /// Fewest entries that were left since it is too far behind.
    fewest: AtomicU64,
    /// When they became that few, in ms since 1970; 0 when they have not become fewer yet.
    fewest_ms: AtomicU64,
    degraded: AtomicBool,
}

impl FollowerLag {
    /// Exports `NAME_entries` and `NAME_seconds`.
    pub fn new(
        registry: &Registry,
        follower: Follower,
        clock: SharedClock,
        ready: ReadyBoard,
    ) -> Arc<Self> {
        ready.declare(&[follower.name]);
        let lag = Arc::new(Self {
            follower,
            clock,
            ready,
            left: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
            fewest: AtomicU64::new(0),
            fewest_ms: AtomicU64::new(0),
            degraded: AtomicBool::new(false),
        });
        let (entries, seconds) = (lag.clone(), lag.clone());
        let Follower { name, what } = follower;
        registry.gauge_fn(
            &format!("{name}_entries"),
            &format!("Entries that {what} lacks, as last seen."),
            &[],
            move || i64::try_from(entries.left.load(Ordering::Relaxed)).unwrap_or(i64::MAX),
        );
        registry.gauge_fn(
            &format!("{name}_seconds"),
            &format!("Seconds that {what} is behind, rounded up."),
            &[],
            move || seconds.lag().as_millis().div_ceil(1000) as i64,
        );
        lag
    }

    /// There is something to apply, or it cannot be known whether there is.
    pub fn begun(&self) {
        let now = self.clock.unix_ms().max(1);
        let first = self
            .since_ms
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err() {
            self.observe();
        }
    }

    /// `left` entries are not applied; `newest` is the time of the last that just was, if any was.
    pub fn applied(&self, newest: Option<Timestamp>, left: u64) {
        let now = self.clock.unix_ms();
        self.left.store(left, Ordering::Relaxed);
        // The oldest entry that is left is not older than the newest one that is applied.
        let since = match left {
            0 => 0,
            _ => newest.map_or(now, |newest| newest.0).max(1),
        };
        self.since_ms.store(since, Ordering::Relaxed);
        if self.observe() && left < self.fewest.load(Ordering::Relaxed) {
            self.fewest.store(left, Ordering::Relaxed);
            self.fewest_ms.store(now, Ordering::Relaxed);
        }
    }

    /// Upper bound of the age of the oldest entry that is not applied.
    pub fn lag(&self) -> Duration {
        match self.since_ms.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.clock.unix_ms().saturating_sub(since)),
        }
    }

    /// Why a new write is refused: the follower is far behind and does not catch up. Writes are accepted
    /// only while fewer entries are left than ever since it is so far behind, so that they never make it
    /// longer, however unevenly they come.
    pub fn refusal(&self) -> Option<Problem> {
        if !self.observe() {
            return None;
        }
        let more = self.left.load(Ordering::Relaxed) > self.fewest.load(Ordering::Relaxed);
        let fewest = self.fewest_ms.load(Ordering::Relaxed);
        let ago = self.clock.unix_ms().saturating_sub(fewest);
        if !more && Duration::from_millis(ago) < STUCK {
            return None;
        }
        let mut problem = Problem::busy(1);
        problem.detail = format!(
            "{} is {} s behind and does not catch up; writes are slowed until it does",
            self.follower.what,
            self.lag().as_secs()
        );
        Some(problem)
    }

    /// Whether the follower is too far behind; shown on the readiness board.
    fn observe(&self) -> bool {
        let lag = self.lag();
        let behind = lag > LAG_MAX;
        if self.degraded.swap(behind, Ordering::Relaxed) != behind {
            let Follower { name, what } = self.follower;
            if behind {
                self.fewest
                    .store(self.left.load(Ordering::Relaxed), Ordering::Relaxed);
                self.fewest_ms.store(0, Ordering::Relaxed);
                let why = format!("{what} is {} s behind", lag.as_secs());
                self.ready.degrade(name, why);
            } else {
                self.ready.clear(name);
            }
        }
        behind
    }
}

/// Pause of a follower after a full page, so that writes have the processor first: shorter the more
/// entries are left, so that the follower does not fall behind because of its pauses.
pub fn follower_pause(longest: Duration, left: u64) -> Duration {
    /// Half a second of entries at 20,000 a second.
    const NONE_AT: u64 = 10_000;
    longest.mul_f64(1.0 - left.min(NONE_AT) as f64 / NONE_AT as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::{Clock as _, ManualClock};

    fn lag() -> (Registry, Arc<ManualClock>, ReadyBoard, Arc<FollowerLag>) {
        let registry = Registry::new("t");
        let clock = ManualClock::at(1_000_000);
        let ready = ReadyBoard::new(&registry);
        let follower = Follower {
            name: "feed_lag",
            what: "the copy",
        };
        let lag = FollowerLag::new(&registry, follower, clock.clone(), ready.clone());
        (registry, clock, ready, lag)
    }

    fn names(ready: &ReadyBoard) -> Vec<&'static str> {
        ready.causes().into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn idle_time_is_no_lag_and_a_follower_that_stands_still_is_one() {
        let (registry, clock, ready, lag) = lag();
        clock.advance(Duration::from_hours(1));
        assert_eq!(lag.lag(), Duration::ZERO);
        lag.begun();
        clock.advance(Duration::from_secs(10));
        assert!(lag.refusal().is_none());
        clock.advance(Duration::from_secs(1));
        let refusal = lag.refusal().expect("it stands still");
        assert_eq!(refusal.status, 429);
        assert!(refusal.detail.contains("11 s behind"), "{}", refusal.detail);
        assert!(registry.render().contains("t_feed_lag_seconds 11"));
        assert_eq!(names(&ready), ["feed_lag"]);
        lag.applied(None, 0);
        assert!(lag.refusal().is_none() && lag.lag().is_zero());
        assert!(names(&ready).is_empty());
    }

    #[test]
    fn writes_are_refused_only_while_the_rest_grows() {
        let (_registry, clock, _ready, lag) = lag();
        let old = Some(Timestamp(clock.unix_ms() - 60_000));
        lag.applied(old, 5_000);
        assert!(lag.refusal().is_some());
        lag.applied(old, 4_000);
        assert!(lag.refusal().is_none(), "it catches up");
        lag.applied(old, 4_000);
        clock.advance(STUCK);
        assert!(lag.refusal().is_some());
    }

    #[test]
    fn a_rest_that_falls_a_little_between_growths_is_not_catching_up() {
        let (_registry, clock, _ready, lag) = lag();
        let old = Some(Timestamp(clock.unix_ms() - 60_000));
        for left in [50_000, 49_000] {
            lag.applied(old, left);
        }
        assert!(lag.refusal().is_none());
        for left in [60_000, 59_000, 70_000, 69_000] {
            lag.applied(old, left);
            assert!(lag.refusal().is_some(), "{left}");
        }
        lag.applied(old, 48_000);
        assert!(lag.refusal().is_none(), "fewer than ever");
    }

    #[test]
    fn pauses_end_where_the_rest_is_long() {
        let longest = Duration::from_millis(40);
        assert_eq!(follower_pause(longest, 0), longest);
        assert_eq!(follower_pause(longest, 5_000), longest / 2);
        assert_eq!(follower_pause(longest, 1 << 40), Duration::ZERO);
    }
}
