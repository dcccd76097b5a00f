//! The appender thread: collects what waits, makes its leaves durable at once, then answers.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Credit, Deadline, Receiver, Recv, SharedClock, ShutdownTrigger, ThreadCtx};
use ron_service::ReadyBoard;

use super::checkpoint::Signal;
use super::health::{AuditHealth, Fault};
use super::leaf::{Leaf, Op};
use super::writer::{AuditWriter, Draft};
use crate::metrics::Metrics;
use crate::replay::Journal;
use crate::work::answer::Done;

/// A result that waits for its leaves.
pub struct Entry {
    /// One leaf each.
    pub drafts: Vec<Draft>,
    /// What happens once they are durable, or are known not to be.
    pub done: Done,
    /// The room that was reserved; given back when the entry is done with.
    pub credits: Vec<Credit>,
}

/// The appender's state.
pub struct Appender {
    /// The log.
    pub writer: AuditWriter,
    /// Remembers what was answered to operations with an id.
    pub journal: Journal,
    /// Time.
    pub clock: SharedClock,
    /// Where entries come from.
    pub entries: Receiver<Entry>,
    /// Turned to "no" by a failed append.
    pub health: AuditHealth,
    /// Origin of the log, for receipts.
    pub origin: String,
    /// Most leaves of one append.
    pub batch_leaves: usize,
    /// Tells the checkpoint thread.
    pub signal: Arc<Signal>,
    /// Where an overdue checkpoint is shown.
    pub ready: ReadyBoard,
    /// Metrics.
    pub metrics: Metrics,
    /// Fired when the last leaf is written.
    pub finished: ShutdownTrigger,
}

impl Appender {
    /// Runs until shutdown, then writes what is left and the stop leaf.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        let mut batch = Vec::new();
        loop {
            match self
                .entries
                .recv(&ctx.shutdown, Deadline::within(Duration::from_secs(1)))
            {
                Recv::Item(first) => {
                    batch.push(first);
                    self.collect(&mut batch);
                    self.tick(&mut batch);
                }
                Recv::Timeout => self.signal.watch(&self.metrics, &self.ready),
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        while let Some(entry) = self.entries.try_recv() {
            batch.push(entry);
            self.collect(&mut batch);
            self.tick(&mut batch);
        }
        self.stop();
        self.finished.fire();
    }

    /// Takes what is queued, up to the most leaves of one append.
    fn collect(&self, batch: &mut Vec<Entry>) {
        let mut leaves: usize = batch.iter().map(|e| e.drafts.len()).sum();
        // A batch request brings at most 1000 leaves, so the limit may be passed by 999.
        while leaves < self.batch_leaves {
            let Some(entry) = self.entries.try_recv() else {
                return;
            };
            leaves += entry.drafts.len();
            batch.push(entry);
        }
    }

    /// Makes the leaves of `batch` durable and answers everyone in it. Leaves it empty.
    pub fn tick(&mut self, batch: &mut Vec<Entry>) {
        if !self.health.is_ok() {
            batch.drain(..).for_each(|entry| entry.done.fail());
            return;
        }
        let drafts = batch.iter_mut().flat_map(|entry| entry.drafts.iter_mut());
        match self.writer.append(drafts) {
            Ok(mut index) => {
                self.signal.appended();
                let mut remembered = Vec::new();
                for entry in batch.drain(..) {
                    let (leaves, first) = (entry.drafts.len() as u64, index);
                    index += leaves;
                    if entry.done.remembers() {
                        remembered.push((entry, first));
                    } else {
                        entry.done.complete(&self.origin, first);
                    }
                }
                self.remember(remembered);
                self.writer.keep_state(false);
                self.signal.watch(&self.metrics, &self.ready);
            }
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("the audit log cannot be written: {error}"),
                );
                batch.drain(..).for_each(|entry| entry.done.fail());
            }
        }
    }

    /// Answers those whose answers must be known after a crash, once they are: the others of their
    /// batch do not wait for this second sync.
    fn remember(&mut self, mut entries: Vec<(Entry, u64)>) {
        let mut settling = Vec::new();
        for (entry, index) in &mut entries {
            entry.done.remember(&self.origin, *index, &mut settling);
        }
        match self.journal.keep(settling, self.clock.unix_ms()) {
            Ok(()) => {
                for (entry, index) in entries {
                    entry.done.complete(&self.origin, index);
                }
            }
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("the replay journal cannot be written: {error}"),
                );
                for (entry, _) in entries {
                    entry.done.fail();
                }
            }
        }
    }

    fn stop(&mut self) {
        if !self.health.is_ok() {
            return;
        }
        let leaf = Leaf::service(Op::Stop, "drained", 0);
        let mut draft = Draft::new(leaf, false);
        match self.writer.append(std::iter::once(&mut draft)) {
            Ok(_) => self.writer.keep_state(true),
            // The counters count the leaf that is not there; kept, they would accuse the log at the next start.
            Err(error) => self.health.fail(
                Fault::Failure,
                &format!("the stop leaf was not written: {error}"),
            ),
        }
    }
}
