//! Logs a repeated failure once and then only at intervals, because a log full of repetitions hides
//! other events.

/// Minimum interval between two log lines about the same failure, in milliseconds.
const AGAIN_MS: u64 = 30_000;

/// The last logged failure. Pure.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    said: Option<Said>,
}

#[derive(Debug)]
struct Said {
    what: String,
    at_ms: u64,
    /// Number of repetitions since then that were not logged.
    kept: u64,
}

impl Quiet {
    /// Records a failure. `Some` when it must be logged, with the number of repetitions suppressed
    /// since the last log line.
    pub(super) fn failed(&mut self, what: &str, now_ms: u64) -> Option<u64> {
        if let Some(said) = &mut self.said
            && said.what == what
            && now_ms.saturating_sub(said.at_ms) < AGAIN_MS
        {
            said.kept += 1;
            return None;
        }
        let before = self.said.replace(Said {
            what: what.to_owned(),
            at_ms: now_ms,
            kept: 0,
        });
        let same = before.filter(|said| said.what == what);
        Some(same.map_or(0, |said| said.kept))
    }

    /// Records a success; true when there had been a failure.
    pub(super) fn well(&mut self) -> bool {
        self.said.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_said_once_in_half_a_minute() {
        let mut quiet = Quiet::default();
        assert!(!quiet.well());
        assert_eq!(quiet.failed("no room", 1_000), Some(0));
        let said: Vec<u64> = (0..1_300)
            .filter_map(|n| quiet.failed("no room", 1_000 + 50 * n))
            .collect();
        assert_eq!(said, [600, 599], "20 times a second for 65 s");
        assert_eq!(quiet.failed("no key", 66_000), Some(0), "another failure");
        assert_eq!(quiet.failed("no room", 66_050), Some(0), "and back");
        assert_eq!(quiet.failed("no room", 60_000), None, "the clock went back");
        assert!(quiet.well());
        assert!(!quiet.well());
        assert_eq!(
            quiet.failed("no room", 66_100),
            Some(0),
            "after it was well"
        );
    }
}
