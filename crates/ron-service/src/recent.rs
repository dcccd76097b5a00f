//! How a service has answered lately, for `/api/v1/status`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ron_http::AnswerCounts;
use ron_proto::status::RecentAnswers;

/// How far back answers count.
const WINDOW: Duration = Duration::from_secs(300);
/// Time between two samples: as between two polls of a console.
const STEP: Duration = Duration::from_secs(5);

/// The sums of the window, which the thread of the feed writes; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent(Arc<Shown>);

#[derive(Debug, Default)]
struct Shown {
    counts: OnceLock<Arc<AnswerCounts>>,
    requests: AtomicU64,
    server_errors: AtomicU64,
}

impl Recent {
    /// Counts the answers of the API, which has just started.
    pub fn follow(&self, counts: Arc<AnswerCounts>) {
        let _ = self.0.counts.set(counts);
    }

    pub fn answers(&self) -> RecentAnswers {
        RecentAnswers {
            requests: self.0.requests.load(Ordering::Relaxed),
            server_errors: self.0.server_errors.load(Ordering::Relaxed),
        }
    }
}

/// The answers of the window, by sample.
#[derive(Debug)]
pub(crate) struct Window {
    recent: Recent,
    samples: VecDeque<(Instant, u64, u64)>,
    /// The counts at the last sample; none if the service was not ready then, because what it refused meanwhile is no failure.
    last: Option<(u64, u64)>,
    due: Option<Instant>,
}

impl Window {
    pub const fn new(recent: Recent) -> Self {
        Self {
            recent,
            samples: VecDeque::new(),
            last: None,
            due: None,
        }
    }

    /// Takes a sample, if it is time for one.
    pub fn sample(&mut self, now: Instant, ready: bool) {
        let Some(counts) = self.recent.0.counts.get() else {
            return;
        };
        if self.due.is_some_and(|due| now < due) {
            return;
        }
        self.due = Some(now + STEP);
        let (all, failed) = counts.read();
        if let (Some(last), true) = (self.last, ready) {
            self.samples.push_back((
                now,
                all.saturating_sub(last.0),
                failed.saturating_sub(last.1),
            ));
        }
        self.last = ready.then_some((all, failed));
        let old = |at: Instant| now.saturating_duration_since(at) > WINDOW;
        while self.samples.front().is_some_and(|(at, ..)| old(*at)) {
            self.samples.pop_front();
        }
        let sums = self.samples.iter();
        let (all, failed) = sums.fold((0, 0), |sum, (_, all, failed)| {
            (sum.0 + all, sum.1 + failed)
        });
        self.recent.0.requests.store(all, Ordering::Relaxed);
        self.recent.0.server_errors.store(failed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, ManualClock};

    use super::*;

    #[test]
    fn answers_count_for_five_minutes_and_while_the_service_is_ready() {
        let counts = Arc::new(AnswerCounts::default());
        let recent = Recent::default();
        let mut window = Window::new(recent.clone());
        let start = ManualClock::at(0).now();
        let mut sample = |seconds: u64, ready: bool| {
            window.sample(start + Duration::from_secs(seconds), ready);
            let shown = recent.answers();
            (shown.requests, shown.server_errors)
        };
        assert_eq!(sample(0, true), (0, 0), "the API has not started");
        recent.follow(counts.clone());
        let answer = |ok: u64, failed: u64| counts.add(ok + failed, failed);
        answer(5, 5);
        assert_eq!(sample(1, true), (0, 0), "what was before the first sample");
        answer(20, 10);
        assert_eq!(sample(3, true), (0, 0), "not yet time for the next");
        assert_eq!(sample(6, true), (30, 10));
        answer(0, 7);
        assert_eq!(sample(11, false), (30, 10), "not ready");
        answer(0, 7);
        assert_eq!(sample(16, true), (30, 10), "nor before that");
        answer(1, 0);
        assert_eq!(sample(21, true), (31, 10));
        assert_eq!(sample(306, true), (31, 10));
        assert_eq!(sample(311, true), (1, 0), "the oldest are gone");
        assert_eq!(sample(400, true), (0, 0));
    }

    #[test]
    fn a_share_counts_from_some_requests_on() {
        let failing = |requests, server_errors| {
            RecentAnswers {
                requests,
                server_errors,
            }
            .failing()
        };
        assert_eq!(failing(0, 0), None);
        assert_eq!(failing(19, 19), None);
        assert_eq!(failing(20, 5), Some(0.25));
        assert_eq!(failing(200, 2), None);
        assert_eq!(failing(200, 3), Some(0.015));
    }
}
