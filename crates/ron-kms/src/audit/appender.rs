//! The appender thread: collects the waiting entries, makes their leaves durable with one flush, then answers.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Credit, Deadline, Receiver, Recv, SharedClock, ShutdownTrigger, ThreadCtx};
use ron_service::ReadyBoard;

use super::checkpoint::Signal;
use super::health::{AuditHealth, Fault};
use super::leaf::{Leaf, Op};
use super::writer::{AuditWriter, Draft};
use crate::metrics::Metrics;
use crate::replay::{Journal, JournalRecord};

/// What waits for the leaves of an [`Entry`].
pub trait Completion: Send {
    /// Whether the journal must hold the answer before it leaves.
    fn remembers(&self) -> bool;
    /// Appends the records for the journal to `into`. The leaves are durable, the first at `index` of the log `origin`.
    fn remember(&mut self, origin: &str, index: u64, into: &mut Vec<JournalRecord>);
    /// Answers. The leaves are durable, the first at `index` of the log `origin`.
    fn complete(self: Box<Self>, origin: &str, index: u64);
    /// The leaves are not durable: every caller gets `audit_unavailable`, whatever was computed.
    fn fail(self: Box<Self>);
}

/// A finished operation, or a batch of them, whose answer waits for its leaves.
pub struct Entry {
    pub drafts: Vec<Draft>,
    /// What to do once the leaves are durable, or the append has failed.
    pub done: Box<dyn Completion>,
    /// The reserved room; freed when the entry is dropped, after its answer.
    pub credits: Vec<Credit>,
}

pub struct Appender {
    pub writer: AuditWriter,
    /// Records the answers of operations with an `op_id`.
    pub journal: Journal,
    pub clock: SharedClock,
    /// Where entries come from.
    pub entries: Receiver<Entry>,
    /// Set to failed by a failed append.
    pub health: AuditHealth,
    /// Origin of the log, for receipts.
    pub origin: String,
    /// Number of leaves from which no further entry joins an append.
    pub batch_leaves: usize,
    /// Wakes the checkpoint thread.
    pub signal: Arc<Signal>,
    /// Where an overdue checkpoint is shown.
    pub ready: ReadyBoard,
    pub metrics: Metrics,
    /// Fired when the stop leaf is written.
    pub finished: ShutdownTrigger,
}

impl Appender {
    /// Runs until shutdown, then writes the queued entries and the stop leaf.
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
        // The work stage drains before the write stage, so no request's entry can follow the stop leaf.
        self.stop();
        self.finished.fire();
    }

    /// Takes queued entries until `batch_leaves` is reached.
    fn collect(&self, batch: &mut Vec<Entry>) {
        let mut leaves: usize = batch.iter().map(|e| e.drafts.len()).sum();
        // An entry is not split: one batch request has at most 1000 leaves, so an append may exceed the limit by 999.
        while leaves < self.batch_leaves {
            let Some(entry) = self.entries.try_recv() else {
                return;
            };
            leaves += entry.drafts.len();
            batch.push(entry);
        }
    }

    /// Makes the leaves of `batch` durable and answers every entry. Leaves `batch` empty.
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
                    // Entries without an operation id are answered at once; the others need the journal's sync too.
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

    /// Writes the answers of entries with an operation id to the journal, with a second sync, then sends them. The
    /// other entries of the batch do not wait for it.
    fn remember(&mut self, mut entries: Vec<(Entry, u64)>) {
        let mut records = Vec::new();
        for (entry, index) in &mut entries {
            entry.done.remember(&self.origin, *index, &mut records);
        }
        match self.journal.keep(records, self.clock.unix_ms()) {
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
            // `keep_state` is not called: the counters already count the leaf that is not there, and the next start
            // would take its absence for tampering.
            Err(error) => self.health.fail(
                Fault::Failure,
                &format!("the stop leaf was not written: {error}"),
            ),
        }
    }
}
