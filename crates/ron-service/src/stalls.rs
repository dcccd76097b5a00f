//! Whether the process runs when it should: a thread that waits until a moment wakes much later on a processor that is taken away.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ready::{ReadyBoard, STALLS};

/// A waiting thread that wakes this much too late was kept from running. On a processor that two dozen threads want, it wakes within a tenth of that.
const LATE: Duration = Duration::from_millis(200);
/// How far back wake-ups count.
const WINDOW: Duration = Duration::from_secs(30);
/// Late wake-ups in the window from which on the service is degraded. One alone may be a debugger, a suspended host or a snapshot of it.
const MANY: usize = 8;
/// Late wake-ups in the window down to which it stays so.
const FEW: usize = 2;

/// What one thread has seen; it reports to the board.
pub(crate) struct Stalls {
    board: ReadyBoard,
    late: VecDeque<(Instant, Duration)>,
    is_shown: bool,
}

impl Stalls {
    pub const fn new(board: ReadyBoard) -> Self {
        Self {
            board,
            late: VecDeque::new(),
            is_shown: false,
        }
    }

    /// The thread woke too late `by` this time.
    pub fn woke(&mut self, by: Duration, now: Instant) {
        if by >= LATE {
            self.late.push_back((now, by));
        }
        let is_old = |at: Instant| now.saturating_duration_since(at) > WINDOW;
        while self.late.front().is_some_and(|(at, _)| is_old(*at)) {
            self.late.pop_front();
        }
        let is_many = self.late.len() >= if self.is_shown { FEW } else { MANY };
        match (is_many, self.is_shown) {
            (true, false) => self.board.degrade(STALLS, self.why()),
            (false, true) => self.board.clear(STALLS),
            _ => {}
        }
        self.is_shown = is_many;
    }

    fn why(&self) -> String {
        let most = self.late.iter().map(|(_, by)| *by).max();
        format!(
            "the process is often kept from running: {} times within {} s a thread woke too late, by up to {:.1} s; look for a limit of its CPU time \
             (cgroup), a host with too much to do, or swapping",
            self.late.len(),
            WINDOW.as_secs(),
            most.unwrap_or_default().as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Clock as _, ManualClock, Registry};

    use super::*;

    #[test]
    fn a_process_that_runs_a_tenth_of_the_time_is_degraded_until_it_runs_again() {
        let board = ReadyBoard::new(&Registry::new("t"));
        let mut stalls = Stalls::new(board.clone());
        let start = ManualClock::at(0).now();
        let mut woke = |second: u64, late_ms: u64| {
            let late = Duration::from_millis(late_ms);
            stalls.woke(late, start + Duration::from_secs(second) + late);
            board.causes().len()
        };
        assert_eq!(woke(0, 60_000), 0, "one pause, however long");
        for second in 60..120 {
            assert_eq!(woke(second, 199), 0, "a busy host");
        }
        for second in 120..127 {
            assert_eq!(woke(second, 900 - (second - 120)), 0);
        }
        assert_eq!(woke(127, 250), 1);
        for second in 128..156 {
            assert_eq!(woke(second, 1), 1, "second {second}: not calm for long");
        }
        assert_eq!(woke(158, 1), 0);
        assert_eq!(woke(159, 500), 0, "begins again with the same number");
    }

    #[test]
    fn the_reason_has_figures_and_what_to_do() {
        let board = ReadyBoard::new(&Registry::new("t"));
        let mut stalls = Stalls::new(board.clone());
        let now = ManualClock::at(0).now();
        for late_ms in [200, 900, 200, 200, 200, 200, 200, 200] {
            stalls.woke(Duration::from_millis(late_ms), now);
        }
        let why = board.causes().remove(0).2;
        assert!(why.contains("8 times within 30 s"), "{why}");
        assert!(why.contains("by up to 0.9 s; look for"), "{why}");
    }
}
