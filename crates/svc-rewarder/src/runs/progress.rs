//! Progress of a run: counters that stages add to and readers load, without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ron_proto::rewarder::RunProgress;

use crate::calculus::Watch;

/// The counters of one run. All accesses are relaxed: the counters are for display, and no other
/// memory is read on the strength of their values.
#[derive(Debug, Default)]
pub struct Progress {
    rows_total: AtomicU64,
    rows_read: AtomicU64,
    shares: AtomicU64,
    intents_total: AtomicU64,
    intents_settled: AtomicU64,
    attempts: AtomicU32,
    /// When this settlement attempt began (unix ms; 0 = not settling) and where it started.
    since_ms: AtomicU64,
    since_index: AtomicU64,
}

impl Progress {
    /// A computation begins over `rows` accounts.
    pub fn begin_compute(&self, rows: u64) {
        self.rows_total.store(rows, Ordering::Relaxed);
        self.rows_read.store(0, Ordering::Relaxed);
        self.shares.store(0, Ordering::Relaxed);
    }

    /// Everything of `rows` accounts was computed, by this process or one before.
    pub fn computed(&self, rows: u64) {
        for counter in [&self.rows_total, &self.rows_read, &self.shares] {
            counter.store(rows, Ordering::Relaxed);
        }
    }

    /// The payout table has `intents` rows.
    pub fn sealed(&self, intents: u64) {
        self.intents_total.store(intents, Ordering::Relaxed);
    }

    /// Counts a settlement attempt.
    pub fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// Payouts are written from index `from` on, starting now.
    pub fn begin_settle(&self, from: u64, now_ms: u64) {
        self.intents_settled.store(from, Ordering::Relaxed);
        self.since_index.store(from, Ordering::Relaxed);
        self.since_ms.store(now_ms.max(1), Ordering::Relaxed);
    }

    /// The ledger has acknowledged all payouts below `next`.
    pub fn settled_to(&self, next: u64) {
        self.intents_settled.store(next, Ordering::Relaxed);
    }

    /// Settlement stopped, finished or not.
    pub fn end_settle(&self) {
        self.since_ms.store(0, Ordering::Relaxed);
    }

    /// Number of settlement attempts.
    pub fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// The progress as the API shows it.
    pub fn view(&self, now_ms: u64) -> RunProgress {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (total, settled) = (load(&self.intents_total), load(&self.intents_settled));
        let since_ms = load(&self.since_ms);
        let done = settled.saturating_sub(load(&self.since_index));
        let eta_ms = (since_ms > 0 && done > 0).then(|| {
            let spent = u128::from(now_ms.saturating_sub(since_ms));
            let left = spent * u128::from(total.saturating_sub(settled)) / u128::from(done);
            u64::try_from(left).unwrap_or(u64::MAX)
        });
        RunProgress {
            rows_total: load(&self.rows_total),
            rows_read: load(&self.rows_read),
            shares_computed: load(&self.shares),
            intents_total: total,
            intents_settled: settled,
            eta_ms,
        }
    }
}

/// A [`crate::calculus::Watch`] that counts into a [`Progress`].
pub struct Counting<'a, F: Fn() -> bool + Sync> {
    pub progress: &'a Progress,
    /// True when the result is no longer needed.
    pub cancelled: F,
}

impl<F: Fn() -> bool + Sync> Watch for Counting<'_, F> {
    fn weighed(&self, rows: u64) {
        self.progress.rows_read.fetch_add(rows, Ordering::Relaxed);
    }
    fn shared(&self, rows: u64) {
        self.progress.shares.fetch_add(rows, Ordering::Relaxed);
    }
    fn cancelled(&self) -> bool {
        (self.cancelled)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eta_follows_the_rate_of_this_attempt() {
        let progress = Progress::default();
        progress.sealed(1_000);
        assert_eq!(progress.view(5_000).eta_ms, None);
        progress.begin_settle(500, 10_000);
        assert_eq!(progress.view(10_000).eta_ms, None, "nothing to measure yet");
        progress.settled_to(600);
        let view = progress.view(11_000);
        assert_eq!((view.intents_settled, view.eta_ms), (600, Some(4_000)));
        progress.end_settle();
        assert_eq!(progress.view(12_000).eta_ms, None);
    }
}
