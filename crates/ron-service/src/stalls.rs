//! Whether a process runs when it should: its main thread sleeps until a moment, and wakes much later on a processor that is taken
//! away from it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ron_kernel::Deadline;

use crate::chassis::Running;
use crate::ready::STALLS;

/// From here on a wake-up is late. On a processor that two dozen threads want, a thread waits some milliseconds for its turn.
const LATE: Duration = Duration::from_millis(50);
/// A single pause counts at most so much: it may be a debugger, or a host that was suspended.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How far back pauses count.
const WINDOW: Duration = Duration::from_secs(30);
/// Pauses in the window from which on the process is degraded, and below which it is not any more.
const MANY: Duration = Duration::from_secs(6);
const FEW: Duration = Duration::from_secs(2);

/// What the main thread of a process has seen.
#[derive(Debug, Default)]
pub struct Stalls {
    pauses: VecDeque<(Instant, Duration)>,
    is_shown: bool,
}

#[derive(Debug, PartialEq)]
enum Change {
    /// The process is degraded from now on, and why.
    Begins(String),
    Ends,
}

impl Stalls {
    /// The main thread of these services slept until `due` at the longest, and has just woken.
    pub fn woke<'a>(&mut self, due: Deadline, services: impl IntoIterator<Item = &'a Running>) {
        let Some(change) = self.note(due, due.overdue()) else {
            return;
        };
        for service in services {
            match &change {
                Change::Begins(why) => service.board().degrade(STALLS, why),
                Change::Ends => service.board().clear(STALLS),
            }
        }
    }

    fn note(&mut self, due: Deadline, late: Duration) -> Option<Change> {
        let now = due.at() + late;
        if late >= LATE {
            self.pauses.push_back((now, late.min(PAUSE_MAX)));
        }
        let is_old = |at: Instant| now.saturating_duration_since(at) > WINDOW;
        while self.pauses.front().is_some_and(|(at, _)| is_old(*at)) {
            self.pauses.pop_front();
        }
        let sum: Duration = self.pauses.iter().map(|(_, pause)| *pause).sum();
        let is_stalled = sum >= if self.is_shown { FEW } else { MANY };
        match (
            std::mem::replace(&mut self.is_shown, is_stalled),
            is_stalled,
        ) {
            (false, true) => Some(Change::Begins(self.why(sum))),
            (true, false) => Some(Change::Ends),
            _ => None,
        }
    }

    fn why(&self, sum: Duration) -> String {
        format!(
            "the process is often kept from running: {} pauses with {:.0} s together in {} s; look for a limit of its CPU time (cgroup), \
             a host with too much to do, or swapping",
            self.pauses.len(),
            sum.as_secs_f64(),
            WINDOW.as_secs()
        )
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, ManualClock};

    use super::*;

    #[test]
    fn a_process_that_runs_a_tenth_of_the_time_is_degraded_until_it_runs_again() {
        let mut stalls = Stalls::default();
        let start = ManualClock::at(0).now();
        let mut note = |at_ms: u64, late_ms: u64| {
            let due = Deadline::at_instant(start + Duration::from_millis(at_ms));
            stalls.note(due, Duration::from_millis(late_ms))
        };
        assert_eq!(note(0, 60_000), None, "one pause, however long");
        for turn in 0..1_000 {
            assert_eq!(note(60_000 + 100 * turn, 49), None, "a busy host");
        }
        for second in 200..206 {
            assert_eq!(note(1_000 * second, 900), None);
        }
        let Some(Change::Begins(why)) = note(206_000, 900) else {
            panic!("too often");
        };
        assert!(why.contains("7 pauses with 6 s together in 30 s"), "{why}");
        assert_eq!(note(207_000, 900), None, "known");
        let calm = (208..260).find(|second| note(1_000 * second, 1) == Some(Change::Ends));
        assert_eq!(calm, Some(236), "when the window has two of them");
        assert_eq!(
            note(261_000, 900),
            None,
            "begins again with the same number"
        );
    }
}
