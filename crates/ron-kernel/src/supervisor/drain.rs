//! The drain: each stage in turn is stopped and joined; threads that do not end are counted and
//! named.

use std::time::Duration;

use super::{Entry, Supervisor};
use crate::deadline::Deadline;
use crate::exit;
use crate::locks::assert_no_locks;
use crate::metrics::{ClosedCounter, DRAINED};
use crate::sync::now;
use crate::topology::Stage;

/// How a drain went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainReport {
    /// Names of threads that were still running at the deadline.
    pub stragglers: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

impl DrainReport {
    /// The process's exit code after this drain: [`exit::OK`] or [`exit::STRAGGLERS`].
    pub fn exit_code(&self) -> u8 {
        if self.stragglers.is_empty() {
            exit::OK
        } else {
            exit::STRAGGLERS
        }
    }
}

impl Supervisor {
    /// Begins the drain, then stops stage after stage and joins each before the next, all within
    /// `within`. Threads that have not ended by then are counted, named and left behind.
    pub fn drain(&self, within: Duration) -> DrainReport {
        assert_no_locks("a drain");
        let start = now();
        let deadline = Deadline::at_instant(start + within);
        self.begin_drain();
        #[cfg(mutant = "drain")] // stops all stages at once
        if crate::sync::mutant("drain") {
            self.0.stages.iter().for_each(|stage| stage.0.fire());
        }
        let canceled = &self.0.metrics.tasks_canceled;
        let mut late = Vec::new();
        for stage in Stage::ALL {
            // Closed before its token fires: a thread that is started from here on would not be in
            // the entries that are joined below.
            let entries = self.close_stage(stage);
            self.0.stages[stage as usize].0.fire();
            // A stage that does not stop leaves each stage after it a tenth of the time, so that
            // writers flush although a worker hangs.
            let reserved = within / 10 * self.stages_after(stage);
            let share = Deadline::at_instant(start + within.saturating_sub(reserved));
            late.extend(join(entries, share, canceled));
        }
        // Late threads of early stages have the whole time: later stages may have unblocked them.
        let stragglers = self.count_stragglers(join(late, deadline, canceled));
        let [clean, some_late] = DRAINED;
        let result = if stragglers.is_empty() {
            clean
        } else {
            some_late
        };
        self.0.metrics.drains.with_label_values(&[result]).inc();
        DrainReport {
            stragglers,
            took: now() - start,
        }
    }

    /// [`exit::FATAL`] when a critical thread used up its restarts, else the report's exit code.
    pub fn exit_code(&self, report: &DrainReport) -> u8 {
        if self.fatal().is_some() {
            exit::FATAL
        } else {
            report.exit_code()
        }
    }

    /// Forbids further threads in the stage and returns those that were started.
    fn close_stage(&self, stage: Stage) -> Vec<Entry> {
        let mut threads = self.0.threads.lock();
        threads.closed[stage as usize] = true;
        let all = std::mem::take(&mut threads.entries);
        let (ours, rest) = all.into_iter().partition(|e| e.spec.stage == stage);
        threads.entries = rest;
        ours
    }

    /// Number of stages after this one that still have threads.
    fn stages_after(&self, stage: Stage) -> u32 {
        let threads = self.0.threads.lock();
        let has = |later: &Stage| threads.entries.iter().any(|e| e.spec.stage == *later);
        let later = Stage::ALL.into_iter().filter(|s| *s > stage);
        later.filter(has).count() as u32
    }

    /// Counts and names the threads that did not end.
    fn count_stragglers(&self, entries: Vec<Entry>) -> Vec<String> {
        let mut names = Vec::new();
        for entry in entries {
            let aborted = &self.0.metrics.tasks_aborted;
            aborted.with_label_values(&[entry.spec.name]).inc();
            tracing::error!(
                service = self.0.topology.service,
                event = "thread_left_behind",
                thread = %entry.name
            );
            names.push(entry.name);
        }
        names
    }
}

/// Joins and counts the threads that end before the deadline; returns the others.
fn join(entries: Vec<Entry>, deadline: Deadline, canceled: &ClosedCounter) -> Vec<Entry> {
    let mut late = Vec::new();
    for entry in entries {
        // A join has no deadline, so the thread's last act is awaited first.
        if !entry.ended.wait(deadline) {
            late.push(entry);
            continue;
        }
        let handle = entry.handle.lock().take();
        if let Some(handle) = handle {
            handle.join();
        }
        canceled.with_label_values(&[entry.spec.name]).inc();
    }
    late
}
