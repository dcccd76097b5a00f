//! The appender thread: collects the waiting entries, makes their leaves durable with one flush, then answers.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{
    Credit, Deadline, DiskWatch, Receiver, Recv, SharedClock, ShutdownTrigger, ThreadCtx,
};
use ron_service::ReadyBoard;

use super::checkpoint::Signal;
use super::entry::{DurableLeaves, Entry, Items, Reply};
use super::health::{AuditHealth, Fault};
use super::leaf::{Draft, Op};
use super::writer::AuditWriter;
use crate::metrics::Metrics;
use crate::replay::{Journal, JournalRecord};

pub struct Appender {
    pub writer: AuditWriter,
    /// Records the answers of operations with an `op_id`.
    pub journal: Journal,
    /// Notices appends that hang, of leaves and of the journal.
    pub disk: DiskWatch,
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
    pub metrics: Arc<Metrics>,
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
            batch.drain(..).for_each(Entry::fail);
            return;
        }
        let drafts = batch.iter_mut().flat_map(|entry| entry.drafts.drain(..));
        match self.disk.call(|| self.writer.append(drafts)) {
            Ok(mut index) => {
                self.signal.appended();
                let (mut journal, mut unsent) = (Vec::new(), Vec::new());
                for entry in batch.drain(..) {
                    let leaves = DurableLeaves::new(&self.origin, index, entry.leaves);
                    index += entry.leaves;
                    let records = journal.len();
                    let Some(reply) = entry.waiting.complete(leaves, &mut journal) else {
                        continue;
                    };
                    // Entries without an operation id are answered at once; the others need the journal's sync too.
                    if journal.len() == records {
                        reply.send();
                    } else {
                        unsent.push((reply, entry.credits));
                    }
                }
                self.remember(journal, unsent);
                self.disk.call(|| self.writer.keep_state(false));
                self.signal.watch(&self.metrics, &self.ready);
            }
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("the audit log cannot be written: {error}"),
                );
                batch.drain(..).for_each(Entry::fail);
            }
        }
    }

    /// Writes the answers of entries with an operation id to the journal, with a second sync, then sends them. The
    /// other entries of the batch do not wait for it.
    fn remember(&mut self, journal: Vec<JournalRecord>, unsent: Vec<(Reply, Items<Credit>)>) {
        let now_ms = self.clock.unix_ms();
        match self.disk.call(|| self.journal.keep(journal, now_ms)) {
            Ok(()) => {
                for (reply, _credits) in unsent {
                    reply.send();
                }
            }
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("the replay journal cannot be written: {error}"),
                );
                for (reply, _credits) in unsent {
                    reply.fail();
                }
            }
        }
    }

    fn stop(&mut self) {
        if !self.health.is_ok() {
            return;
        }
        let draft = Draft::service(Op::Stop, "drained");
        match self
            .disk
            .call(|| self.writer.append(std::iter::once(draft)))
        {
            Ok(_) => self.disk.call(|| self.writer.keep_state(true)),
            // `keep_state` is not called: the counters already count the leaf that is not there, and the next start
            // would take its absence for tampering.
            Err(error) => self.health.fail(
                Fault::Failure,
                &format!("the stop leaf was not written: {error}"),
            ),
        }
    }
}
