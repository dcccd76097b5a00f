//! Notices a disk that hangs: a call that does not return can report nothing itself, so the thread
//! that makes it leaves the time at which it began, and readiness looks at that.
//!
//! No thread is woken for it: `/readyz`, `/metrics` and the status page look when they are asked,
//! without any I/O.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::credits::Credits;
use crate::deadline::Deadline;
use crate::metrics::Counter;
use crate::sync::{AtomicU64, Ordering};
use crate::time::SharedClock;

/// A call that takes longer hangs. Far above a flush of a slow disk, and below one second, within
/// which a load balancer must learn of it.
pub const HANGS_AFTER: Duration = Duration::from_millis(750);

/// Watches the calls of one thread to its disk; calls do not overlap. Clones share it.
#[derive(Clone, Debug)]
pub struct DiskWatch(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    op: &'static str,
    clock: SharedClock,
    /// Times below are milliseconds since then, plus 1.
    base: Instant,
    /// When the present call began; 0 while there is none.
    began: AtomicU64,
    /// `began` of the latest call that was counted as hanging.
    counted: AtomicU64,
    timeouts: Counter,
}

/// Watches the calls of several threads to one disk, which may overlap. Clones share it.
#[derive(Clone, Debug)]
pub struct DiskWatches {
    each: Arc<[DiskWatch]>,
    /// Turns of [`DiskWatches::try_call`], one per watch.
    turns: Credits,
}

/// A call that has not returned for longer than [`HANGS_AFTER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HungDisk {
    /// As in `io_timeouts_total{op}`.
    pub op: &'static str,
    /// How long the call has taken so far.
    pub took: Duration,
}

impl From<HungDisk> for io::Error {
    fn from(hung: HungDisk) -> Self {
        Self::new(io::ErrorKind::TimedOut, hung.to_string())
    }
}

impl fmt::Display for HungDisk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, seconds) = (self.op, self.took.as_secs_f32());
        write!(
            out,
            "the disk has not answered a call of `{op}` for {seconds:.1} s; the service continues when it does"
        )
    }
}

impl DiskWatch {
    pub(crate) fn new(op: &'static str, clock: SharedClock, timeouts: Counter) -> Self {
        let base = clock.now();
        Self(Arc::new(Watched {
            op,
            clock,
            base,
            began: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            timeouts,
        }))
    }

    /// Makes calls to the disk.
    pub fn call<R>(&self, calls: impl FnOnce() -> R) -> R {
        self.0.began.store(self.0.now(), Ordering::SeqCst);
        // A guard, so that a panic ends the call as well: its thread is started again.
        let _ended = Ended(&self.0);
        calls()
    }

    /// Begins a call, unless one is under way; it ends when the guard is dropped.
    fn claim(&self) -> Option<Ended<'_>> {
        let (began, now) = (&self.0.began, self.0.now());
        let claimed = began.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
        claimed.is_ok().then(|| Ended(&self.0))
    }

    /// The present call, if it hangs.
    pub fn hung(&self) -> Option<HungDisk> {
        let began = self.0.began.load(Ordering::SeqCst);
        let hung = self.0.hung_since(began)?;
        if self.0.count(began) {
            tracing::error!(event = "disk_hangs", why = %hung);
        }
        Some(hung)
    }
}

impl DiskWatches {
    pub(crate) fn new(watches: Vec<DiskWatch>) -> Self {
        Self {
            turns: Credits::new(watches.len()),
            each: watches.into(),
        }
    }

    /// Makes calls to the disk. With more callers at one time than there are watches, the last ones are
    /// not watched; the disk hangs for those before them as well.
    pub fn call<R>(&self, calls: impl FnOnce() -> R) -> R {
        let _ended = self.each.iter().find_map(DiskWatch::claim);
        calls()
    }

    /// Makes calls to the disk on a thread that has other work as well: refused at once while a call
    /// hangs, and when all watches stay taken for [`HANGS_AFTER`]. With fewer watches than such
    /// threads, a disk that hangs never holds all of them.
    pub fn try_call<R>(&self, calls: impl FnOnce() -> R) -> Result<R, HungDisk> {
        if let Some(hung) = self.each.iter().find_map(DiskWatch::hung) {
            return Err(hung);
        }
        let (op, took) = (
            self.each.first().map_or("", |watch| watch.0.op),
            HANGS_AFTER,
        );
        let turn = self.turns.acquire(Deadline::within(HANGS_AFTER));
        let _turn = turn.ok_or(HungDisk { op, took })?;
        Ok(self.call(calls))
    }
}

impl Watched {
    fn now(&self) -> u64 {
        let since = self.clock.now().saturating_duration_since(self.base);
        since.as_millis() as u64 + 1
    }

    fn hung_since(&self, began: u64) -> Option<HungDisk> {
        let took = Duration::from_millis(self.now().saturating_sub(began));
        let (op, hung) = (self.op, began > 0 && took > HANGS_AFTER);
        hung.then_some(HungDisk { op, took })
    }

    /// Counts a call that hangs; true the first time.
    fn count(&self, began: u64) -> bool {
        // Compares times, not a flag: a late look at a call that has returned must not mark the next one.
        let first = self.counted.fetch_max(began, Ordering::SeqCst) < began;
        if first {
            self.timeouts.inc();
        }
        first
    }
}

struct Ended<'a>(&'a Watched);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let began = self.0.began.swap(0, Ordering::SeqCst);
        if let Some(HungDisk { op, took }) = self.0.hung_since(began) {
            self.0.count(began);
            tracing::warn!(
                event = "disk_answered",
                op,
                after_ms = took.as_millis() as u64
            );
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::*;
    use crate::{ManualClock, Registry};

    #[test]
    fn a_call_that_hangs_is_seen_from_outside_and_counted_once() {
        let registry = Registry::new("t");
        let timeouts = registry.counter("timeouts_total", "Calls that hung.");
        let clock = ManualClock::at(1_000);
        let watch = DiskWatch::new("append", clock.clone(), timeouts.clone());
        let seen = |after| {
            watch.call(|| {
                clock.advance(after);
                (watch.hung(), watch.hung())
            })
        };

        assert_eq!(watch.hung(), None, "no call");
        assert_eq!(seen(HANGS_AFTER), (None, None), "slow, but it works");
        let hung = HungDisk {
            op: "append",
            took: HANGS_AFTER + Duration::from_millis(1),
        };
        assert_eq!(seen(hung.took), (Some(hung), Some(hung)));
        assert_eq!((watch.hung(), timeouts.get()), (None, 1), "it has returned");
        watch.call(|| clock.advance(Duration::from_secs(9)));
        assert_eq!(timeouts.get(), 2, "counted when nobody looked, too");
    }

    #[test]
    fn a_call_that_hangs_is_seen_within_a_second() {
        let timeouts = Registry::new("t").counter("timeouts_total", "Calls that hung.");
        let clock = ManualClock::at(1_000);
        let watch = DiskWatch::new("append", clock.clone(), timeouts);
        let after = |ms| {
            watch.call(|| {
                clock.advance(Duration::from_millis(ms));
                watch.hung().is_some()
            })
        };
        // The probe that asks takes its part of the second.
        assert!(after(900));
        assert!(!after(500), "a flush of a slow disk");
    }

    #[test]
    fn calls_that_overlap_are_watched_each() {
        let timeouts = Registry::new("t").counter("timeouts_total", "Calls that hung.");
        let clock = ManualClock::at(1_000);
        let watch = || DiskWatch::new("library", clock.clone(), timeouts.clone());
        let each = [watch(), watch()];
        let watches = DiskWatches::new(each.to_vec());
        let hung = || each.each_ref().map(|watch| watch.hung().is_some());
        watches.call(|| {
            clock.advance(HANGS_AFTER);
            watches.call(|| {
                clock.advance(Duration::from_millis(1));
                assert_eq!(hung(), [true, false], "the second has just begun");
                clock.advance(HANGS_AFTER);
                assert_eq!(hung(), [true, true]);
                watches.call(|| ()); // more callers than watches
                assert_eq!(hung(), [true, true]);
            });
            assert_eq!(hung(), [true, false]);
        });
        assert_eq!((hung(), timeouts.get()), ([false, false], 2));
        watches.call(|| assert_eq!(hung(), [false, false]));
    }

    #[test]
    fn a_call_that_may_be_refused_waits_for_no_disk_that_hangs() {
        let timeouts = Registry::new("t").counter("timeouts_total", "Calls that hung.");
        let clock = ManualClock::at(1_000);
        let watch = DiskWatch::new("library", clock.clone(), timeouts);
        let watches = DiskWatches::new(vec![watch]);
        let nested = watches.try_call(|| {
            let taken = watches.try_call(|| ());
            clock.advance(HANGS_AFTER + Duration::from_millis(1));
            (taken, watches.try_call(|| ()))
        });
        let hung = |took| HungDisk {
            op: "library",
            took,
        };
        let (taken, refused) = nested.expect("the first");
        assert_eq!(taken, Err(hung(HANGS_AFTER)), "the only turn is taken");
        let took = HANGS_AFTER + Duration::from_millis(1);
        assert_eq!(refused, Err(hung(took)), "at once");
        assert_eq!(watches.try_call(|| 7), Ok(7), "it has returned");
    }

    #[test]
    fn a_panic_ends_the_call() {
        let timeouts = Registry::new("t").counter("timeouts_total", "Calls that hung.");
        let clock = ManualClock::at(1_000);
        let watch = DiskWatch::new("append", clock.clone(), timeouts);
        let call = std::panic::AssertUnwindSafe(|| watch.call(|| panic!("in the call")));
        assert!(std::panic::catch_unwind(call).is_err());
        clock.advance(Duration::from_secs(9));
        assert_eq!(watch.hung(), None);
    }
}
