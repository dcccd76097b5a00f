//! The drain: stage after stage is told to stop and joined; who does not come is counted and named.

use std::time::{Duration, Instant};

use super::{Entry, Supervisor};
use crate::exit;
use crate::locks::assert_no_locks;
use crate::reply::WaitError;
use crate::time::Deadline;
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
    /// Drains: begins, then stops stage after stage, joining each before the next, all within
    /// `within`. Threads that do not end in time are counted, named and left behind.
    pub fn drain(&self, within: Duration) -> DrainReport {
        assert_no_locks("a drain");
        let start = Instant::now();
        let deadline = Deadline::within(within);
        self.begin_drain();
        #[cfg(mutant = "drain")] // tells all stages at once
        if crate::sync::mutant("drain") {
            self.0.stages.iter().for_each(|stage| stage.0.fire());
        }
        let mut stragglers = Vec::new();
        for stage in Stage::ALL {
            let entries = self.close_stage(stage);
            self.0.stages[stage as usize].0.fire();
            stragglers.extend(self.join(entries, deadline));
        }
        let result = if stragglers.is_empty() {
            "clean"
        } else {
            "stragglers"
        };
        self.0.metrics.drains.with_label_values(&[result]).inc();
        DrainReport {
            stragglers,
            took: start.elapsed(),
        }
    }

    /// [`exit::FATAL`] when a critical thread flapped, else what the drain's report says.
    pub fn exit_code(&self, report: &DrainReport) -> u8 {
        if self.fatal().is_some() {
            exit::FATAL
        } else {
            report.exit_code()
        }
    }

    /// From here on no thread is started in the stage; hands out those that were.
    fn close_stage(&self, stage: Stage) -> Vec<Entry> {
        let mut threads = self.0.threads.lock();
        threads.closed[stage as usize] = true;
        let all = std::mem::take(&mut threads.entries);
        let (ours, rest) = all.into_iter().partition(|e| e.spec.stage == stage);
        threads.entries = rest;
        ours
    }

    fn join(&self, entries: Vec<Entry>, deadline: Deadline) -> Vec<String> {
        let mut late = Vec::new();
        for entry in entries {
            if entry.ended.wait(deadline) == Err(WaitError::Timeout) {
                let aborted = &self.0.metrics.tasks_aborted;
                aborted.with_label_values(&[entry.spec.name]).inc();
                tracing::error!(
                    service = self.0.topology.service,
                    event = "thread_left_behind",
                    thread = %entry.name
                );
                late.push(entry.name);
                continue;
            }
            let handle = entry.handle.lock().take();
            if let Some(handle) = handle {
                handle.join();
            }
        }
        late
    }
}
