//! Rates: the measured drain rate of a queue, and token buckets by caller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::sync;

const WINDOW_S: u64 = 5;
/// More than the window, so that the slot of a new second is never one that still counts.
const SLOTS: usize = 8;

/// Counts the items that left a queue, by second, over the last five seconds.
#[derive(Debug, Default)]
pub struct DrainMeter {
    /// Each slot packs the second (high 32 bits) and the count (low 32 bits).
    slots: [AtomicU64; SLOTS],
}

impl DrainMeter {
    /// Counts `n` items now.
    pub fn count(&self, n: u64) {
        if n > 0 {
            self.count_at(now_s(), n);
        }
    }

    /// Seconds (1..=60) until `depth` items have left at the rate of the last five seconds.
    pub fn seconds_for(&self, depth: usize) -> u32 {
        self.seconds_for_at(now_s(), depth)
    }

    pub(crate) fn count_at(&self, second: u64, n: u64) {
        // Relaxed throughout: each slot is one self-contained number, and `Retry-After` is an
        // estimate that may miss an item counted at this moment.
        let slot = &self.slots[second as usize % SLOTS];
        let tag = second << 32;
        let mut now = slot.load(Ordering::Relaxed);
        loop {
            // A slot of an earlier second starts again at `n`; a full count stays at its maximum
            // instead of overflowing into the second.
            let next = if now & !0xffff_ffff == tag {
                tag | ((now & 0xffff_ffff) + n).min(0xffff_ffff)
            } else {
                tag | n.min(0xffff_ffff)
            };
            match slot.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }

    pub(crate) fn seconds_for_at(&self, second: u64, depth: usize) -> u32 {
        let drained: u64 = self
            .slots
            .iter()
            .map(|s| s.load(Ordering::Relaxed))
            .filter(|v| second.saturating_sub(v >> 32) < WINDOW_S)
            .map(|v| v & 0xffff_ffff)
            .sum();
        if drained == 0 {
            // No item left lately: an empty queue has room at once, a stuck one does not.
            return if depth == 0 { 1 } else { 30 };
        }
        ((depth as u64 * WINDOW_S).div_ceil(drained)).clamp(1, 60) as u32
    }
}

/// How many log lines of one kind may be written in a second.
#[derive(Debug)]
pub struct LineBudget {
    per_second: u32,
    /// Packs the second (high 32 bits) and the lines in it (low 32 bits).
    written: AtomicU64,
}

impl LineBudget {
    pub const fn new(per_second: u32) -> Self {
        Self {
            per_second,
            written: AtomicU64::new(0),
        }
    }

    /// Takes one line of this second; false when all are taken.
    pub fn take(&self) -> bool {
        self.take_at(now_s())
    }

    fn take_at(&self, second: u64) -> bool {
        let tag = second << 32;
        let most = u64::from(self.per_second);
        // Relaxed: the slot is one self-contained number.
        let next = |now: u64| {
            let count = if now & !0xffff_ffff == tag {
                now & 0xffff_ffff
            } else {
                0
            };
            (count < most).then_some(tag | (count + 1))
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.written.fetch_update(set, fetch, next).is_ok()
    }
}

fn now_s() -> u64 {
    // Offset by the window: slots that were never used hold second 0 and must look old.
    sync::uptime_of_process().as_secs() + WINDOW_S
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    seen: Instant,
}

/// Token buckets by name, bounded in number. When the map is full, buckets that were idle long
/// enough to be full again are removed (they carry no information); a new name beyond that is
/// refused.
#[derive(Debug)]
pub struct TokenBuckets {
    per_second: f64,
    burst: f64,
    capacity: usize,
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl TokenBuckets {
    /// `per_second` tokens a second up to `burst`, for at most `capacity` names.
    pub fn new(per_second: u32, burst: u32, capacity: usize) -> Self {
        Self {
            per_second: f64::from(per_second.max(1)),
            burst: f64::from(burst.max(1)),
            capacity: capacity.max(1),
            buckets: Mutex::new(HashMap::new()),
        }
    }

    /// Takes one token at `now`; `Err` holds the time until the next token.
    pub fn take(&self, name: &str, now: Instant) -> Result<(), Duration> {
        self.take_above(name, now, 0)
    }

    /// Time until the next token, when the bucket of `name` exists and is empty at `now`. Takes
    /// nothing.
    pub fn empty(&self, name: &str, now: Instant) -> Option<Duration> {
        let buckets = self.buckets.lock();
        let bucket = buckets.get(name)?;
        let idle = now.saturating_duration_since(bucket.seen).as_secs_f64();
        let missing = 1.0 - (bucket.tokens + idle * self.per_second);
        (missing > 0.0).then(|| Duration::from_secs_f64(missing / self.per_second))
    }

    /// As [`TokenBuckets::take`], but leaves `floor` tokens in the bucket for more important calls
    /// of the same name. A floor of the whole bucket or more still leaves one token to take.
    pub fn take_above(&self, name: &str, now: Instant, floor: u32) -> Result<(), Duration> {
        let least = (f64::from(floor) + 1.0).min(self.burst);
        let mut buckets = self.buckets.lock();
        if !buckets.contains_key(name) {
            if buckets.len() >= self.capacity {
                let refill = Duration::from_secs_f64(self.burst / self.per_second);
                // Walks the whole map, but only for a new name while the map is full.
                buckets.retain(|_, b| now.saturating_duration_since(b.seen) < refill);
                if buckets.len() >= self.capacity {
                    return Err(Duration::from_secs(1));
                }
            }
            let tokens = self.burst;
            buckets.insert(name.to_owned(), Bucket { tokens, seen: now });
        }
        let Some(bucket) = buckets.get_mut(name) else {
            return Err(Duration::from_secs(1));
        };
        let idle = now.saturating_duration_since(bucket.seen).as_secs_f64();
        bucket.tokens = (bucket.tokens + idle * self.per_second).min(self.burst);
        bucket.seen = now;
        if bucket.tokens >= least {
            bucket.tokens -= 1.0;
            Ok(())
        } else {
            Err(Duration::from_secs_f64(
                (least - bucket.tokens) / self.per_second,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_of_lines_is_for_one_second() {
        let budget = LineBudget::new(2);
        let taken = |second| (0..4).filter(|_| budget.take_at(second)).count();
        assert_eq!([taken(5), taken(5), taken(6)], [2, 0, 2]);
        assert!(!LineBudget::new(0).take());
    }

    #[test]
    fn a_floor_is_left_for_more_important_calls() {
        let buckets = TokenBuckets::new(10, 5, 1);
        let t0 = Instant::now();
        for _ in 0..3 {
            assert!(buckets.take_above("a", t0, 2).is_ok());
        }
        let wait = buckets.take_above("a", t0, 2).unwrap_err();
        assert!(wait > Duration::from_millis(50) && wait <= Duration::from_millis(100));
        assert!(buckets.take("a", t0).is_ok());
        assert!(buckets.take("a", t0).is_ok());
        assert!(buckets.take("a", t0).is_err(), "that was all");
        let refilled = t0 + Duration::from_millis(201);
        assert!(buckets.take_above("a", refilled, 2).is_err(), "still low");
        assert!(buckets.take("a", refilled).is_ok());
        let full = t0 + Duration::from_secs(2);
        assert!(
            buckets.take_above("a", full, 9).is_ok(),
            "a floor above the bucket does not block it for ever"
        );
    }

    #[test]
    fn a_bucket_refills_and_is_bounded() {
        let buckets = TokenBuckets::new(10, 2, 1);
        let t0 = Instant::now();
        assert!(buckets.take("a", t0).is_ok());
        assert!(buckets.take("a", t0).is_ok());
        let wait = buckets.take("a", t0).unwrap_err();
        assert!(wait <= Duration::from_millis(100));
        assert_eq!(buckets.empty("a", t0), Some(wait));
        assert_eq!(buckets.empty("a", t0 + Duration::from_millis(101)), None);
        assert_eq!(buckets.empty("b", t0), None, "never seen");
        assert!(
            buckets
                .take("a", t0 + wait + Duration::from_millis(1))
                .is_ok()
        );
        assert!(buckets.take("b", t0).is_err(), "no room for a second name");
        assert!(
            buckets.take("b", t0 + Duration::from_secs(5)).is_ok(),
            "idle names are removed"
        );
    }
}
