//! Logs a repeated failure once and then only at intervals, because a log full of repetitions hides
//! other events.

/// Minimum interval between two log lines about the same failure, in milliseconds.
const REPEAT_INTERVAL_MS: u64 = 30_000;

/// The last logged failure. Pure.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    last: Option<LoggedFailure>,
}

#[derive(Debug)]
struct LoggedFailure {
    message: String,
    at_ms: u64,
    /// Number of repetitions since then that were not logged.
    suppressed: u64,
}

impl FailureLog {
    /// Records a failure. `Some` when it must be logged, with the number of repetitions suppressed
    /// since the last log line.
    pub(super) fn failed(&mut self, message: &str, now_ms: u64) -> Option<u64> {
        if let Some(last) = &mut self.last
            && last.message == message
            && now_ms.saturating_sub(last.at_ms) < REPEAT_INTERVAL_MS
        {
            last.suppressed += 1;
            return None;
        }
        let previous = self.last.replace(LoggedFailure {
            message: message.to_owned(),
            at_ms: now_ms,
            suppressed: 0,
        });
        let same = previous.filter(|previous| previous.message == message);
        Some(same.map_or(0, |previous| previous.suppressed))
    }

    /// Records a success; true when there had been a failure.
    pub(super) fn recovered(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_failure_is_logged_once_in_half_a_minute() {
        let mut failures = FailureLog::default();
        assert!(!failures.recovered());
        assert_eq!(failures.failed("no room", 1_000), Some(0));
        let suppressed: Vec<u64> = (0..1_300)
            .filter_map(|n| failures.failed("no room", 1_000 + 50 * n))
            .collect();
        assert_eq!(suppressed, [600, 599], "20 times a second for 65 s");
        assert_eq!(
            failures.failed("no key", 66_000),
            Some(0),
            "another failure"
        );
        assert_eq!(failures.failed("no room", 66_050), Some(0), "and back");
        assert_eq!(
            failures.failed("no room", 60_000),
            None,
            "the clock went back"
        );
        assert!(failures.recovered());
        assert!(!failures.recovered());
        assert_eq!(
            failures.failed("no room", 66_100),
            Some(0),
            "after a recovery"
        );
    }
}
