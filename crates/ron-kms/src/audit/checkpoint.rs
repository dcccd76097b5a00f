//! The checkpoint thread: signs the head of the log one interval after a new leaf, or at once after many leaves, keeps
//! copies of the checkpoint, and signs once more when the stop leaf is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::time::Instant;
use ron_kernel::{
    Deadline, DiskWatch, Receiver, Recv, Sender, SharedClock, Shutdown, ShutdownTrigger, ThreadCtx,
};
use ron_service::ReadyBoard;
use ron_service::log_host::asker::Published;
use ron_tlog::CheckpointError;
use ron_tlog::append::{Checkpointer, LogReader};
use ron_tlog::note::NoteSignature;
use ron_tlog::store::StoreError;

use super::health::{AuditHealth, Fault};
use super::proofs::ProofJob;
use super::ring::LogRing;
use crate::metrics::Metrics;
use crate::settings::{InForce, NOTICE, Settings};

/// How much later than its interval a checkpoint may be before it counts as late.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// Maximum wait of the last checkpoint for the stop leaf.
const FINAL_WAIT: Duration = Duration::from_secs(5);
/// Maximum sleep of the idle thread; wake-ups and shutdown end it earlier.
const IDLE: Duration = Duration::from_secs(60);

/// A wake-up of the checkpoint thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is a leaf that no checkpoint covers.
    NewLeaf,
    /// `audit.checkpoint_ops` leaves are uncovered: sign at once.
    Many,
    /// Cosignatures for the published checkpoint of this text, to be stored with it.
    Cosigned(Arc<str>, Vec<NoteSignature>),
}

/// Notifies the checkpoint thread of new leaves; called by the appender. All orderings are `SeqCst`: `idle` and the log's
/// sizes form a store-then-load pattern on both sides, which weaker orderings do not make safe.
pub struct Signal {
    idle: AtomicBool,
    many_sent: AtomicBool,
    /// When the oldest uncovered leaf was appended, as [`Signal::now_ms`]; 0 when all are covered.
    uncovered_since_ms: AtomicU64,
    settings: InForce,
    wake: Sender<Wake>,
    reader: LogReader,
    clock: SharedClock,
    started: Instant,
}

impl Signal {
    /// Sends a wake-up for the first leaf while the checkpoint thread is idle, and another after `audit.checkpoint_ops`
    /// uncovered leaves.
    pub fn new(
        settings: InForce,
        wake: Sender<Wake>,
        reader: LogReader,
        clock: SharedClock,
    ) -> Self {
        let started = clock.now();
        Self {
            idle: AtomicBool::new(false),
            many_sent: AtomicBool::new(false),
            uncovered_since_ms: AtomicU64::new(0),
            settings,
            wake,
            reader,
            clock,
            started,
        }
    }

    /// Milliseconds since the service started, plus 1: no date, which may be set at any time.
    fn now_ms(&self) -> u64 {
        let since = self.clock.now().saturating_duration_since(self.started);
        since.as_millis() as u64 + 1
    }

    /// Called after each durable append.
    pub fn appended(&self) {
        // Kept if it is set already: the age is that of the oldest uncovered leaf.
        let _ = self.uncovered_since_ms.compare_exchange(
            0,
            self.now_ms(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        // Either this swap sees `idle`, or the checkpoint thread sees the new leaf: it sets `idle` before it
        // reads the log's size a last time.
        if self.idle.swap(false, Ordering::SeqCst) {
            self.send(Wake::NewLeaf);
        }
        let uncovered = self
            .reader
            .size_durable()
            .saturating_sub(self.reader.checkpoint_size());
        let many = self.settings.with(|settings| settings.keys.checkpoint_ops);
        if uncovered >= many && !self.many_sent.swap(true, Ordering::SeqCst) {
            self.send(Wake::Many);
        }
    }

    /// At most one wake-up of each kind is queued at a time, so the queue cannot be full.
    fn send(&self, wake: Wake) {
        if self.wake.try_send(wake).is_err() {
            tracing::warn!(event = "checkpoint_wake_lost");
        }
    }

    /// Called after each checkpoint. Leaves appended since it was begun, at `begun_ms`, wait for the next one.
    fn covered(&self, begun_ms: u64, more: impl Fn() -> bool) {
        self.uncovered_since_ms.store(0, Ordering::SeqCst);
        // A leaf that became durable before this store is seen by `more`; the append of a later one finds 0 and sets
        // the time itself.
        if more() {
            let _ = self.uncovered_since_ms.compare_exchange(
                0,
                begun_ms,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// Time from the first uncovered leaf to the checkpoint.
    fn interval(&self) -> Duration {
        let keys = |settings: &Settings| settings.keys.checkpoint_interval;
        self.settings.with(keys)
    }

    /// How long the oldest uncovered leaf has waited.
    pub fn age(&self) -> Duration {
        match self.uncovered_since_ms.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now_ms().saturating_sub(since)),
        }
    }

    /// Called by the appender after each batch and at least once a second: exports the age and reports an overdue
    /// checkpoint.
    pub fn watch(&self, metrics: &Metrics, ready: &ReadyBoard) {
        let age = self.age();
        metrics.checkpoint_age.set(age.as_secs().cast_signed());
        if age > self.interval() + LATE_AFTER {
            ready.missing(
                "checkpoint",
                "the last checkpoint of the audit log is overdue",
            );
        }
    }
}

/// The checkpoint thread's state.
pub struct CheckpointThread {
    /// The log's one publisher of checkpoints.
    pub checkpointer: Checkpointer,
    pub ring: Arc<LogRing>,
    /// Shared with the appender.
    pub signal: Arc<Signal>,
    pub wakes: Receiver<Wake>,
    /// Notices writes that hang; `None` for a log in an engine, whose answers are not those of a disk.
    pub disk: Option<DiskWatch>,
    /// Directories and names of the copies of the newest checkpoint.
    pub anchors: Vec<(Dir, String)>,
    /// Set to failed by a failed write.
    pub health: AuditHealth,
    /// Where an overdue checkpoint is reported.
    pub ready: ReadyBoard,
    pub metrics: Arc<Metrics>,
    /// Fired by the appender after the stop leaf.
    pub last_leaf: Shutdown,
    /// Wake-ups of the thread that requests cosignatures; `None` without a witness policy.
    pub witness: Option<Sender<Published>>,
    /// Wake-ups of the thread that sends proofs.
    pub proofs: Sender<ProofJob>,
    /// Fired after the last checkpoint.
    pub finished: ShutdownTrigger,
}

impl CheckpointThread {
    /// Runs until shutdown; its last step is a checkpoint over the stop leaf.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        while !ctx.shutdown.is_set() {
            if !self.wait_for_leaf(ctx) {
                continue;
            }
            let mut due = Deadline::within(self.signal.interval());
            loop {
                let noticed = Deadline::within(NOTICE);
                match self.wakes.recv(&ctx.shutdown, due.earlier(noticed)) {
                    Recv::Item(Wake::NewLeaf) => {} // the interval runs already
                    Recv::Item(Wake::Cosigned(text, lines)) => self.cosign(&text, &lines),
                    Recv::Item(Wake::Many) => break self.publish(),
                    Recv::Timeout if due.expired() => break self.publish(),
                    // A reload may have made the interval shorter.
                    Recv::Timeout => due = due.capped(self.signal.interval()),
                    Recv::Shutdown | Recv::Closed => break,
                }
            }
        }
        if !self.last_leaf.wait(Deadline::within(FINAL_WAIT)) {
            tracing::warn!(event = "final_checkpoint_without_stop_leaf");
        }
        self.publish();
        self.finished.fire();
    }

    /// True when a leaf needs a checkpoint; otherwise sleeps until a wake-up, and is false after any other one.
    fn wait_for_leaf(&mut self, ctx: &ThreadCtx) -> bool {
        self.signal.idle.store(true, Ordering::SeqCst);
        // Read after `idle` is set, see `Signal::appended`: a leaf in between either counts here or sends a wake-up.
        if self.health.is_ok() && self.checkpointer.uncovered() > 0 {
            self.signal.idle.store(false, Ordering::SeqCst);
            return true;
        }
        match self.wakes.recv(&ctx.shutdown, Deadline::within(IDLE)) {
            Recv::Item(Wake::Cosigned(text, lines)) => {
                self.cosign(&text, &lines);
                false
            }
            Recv::Item(_) => true,
            _ => false,
        }
    }

    /// Stores cosignatures with the checkpoint that they were made for. It is no error that a newer checkpoint has
    /// superseded it.
    fn cosign(&mut self, text: &str, lines: &[NoteSignature]) {
        match self.checkpointer.add_signatures(text, lines) {
            Ok(_) | Err(CheckpointError::Superseded | CheckpointError::Poisoned) => {}
            // The next checkpoint is cosigned again.
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("cosignatures cannot be stored: {error}"),
                );
            }
        }
    }

    /// Signs and stores the present head of the log.
    pub fn publish(&mut self) {
        if !self.health.is_ok() {
            return;
        }
        // Cleared before the head is read: leaves that the head does not cover can then send a wake-up again.
        self.signal.many_sent.store(false, Ordering::SeqCst);
        let begun_ms = self.signal.now_ms();
        let ring = &self.ring;
        let publish = || self.checkpointer.publish_by(|| ring.signers());
        match watched(self.disk.as_ref(), publish) {
            Ok(note) => {
                // Read after publishing, so that a slow disk counts as late too.
                let age = self.signal.age();
                self.signal
                    .covered(begun_ms, || self.checkpointer.uncovered() > 0);
                if age > self.signal.interval() + LATE_AFTER {
                    self.metrics.checkpoint_late.inc();
                }
                self.ready.present("checkpoint");
                self.keep_anchor(&note);
                // A full queue is no loss: the thread is awake and will read the newest checkpoint.
                let _ = self.proofs.try_send(ProofJob::Check);
                if let Some(witness) = &self.witness {
                    let _ = witness.try_send(Published);
                }
            }
            // Tried again after the interval; an overdue checkpoint is reported as any.
            Err(error) if is_passing(&error) => {
                tracing::warn!(event = "checkpoint_waits", %error);
            }
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("no checkpoint can be written: {error}"),
                );
            }
        }
    }

    fn keep_anchor(&self, note: &str) {
        let mut failed = None;
        for (dir, name) in &self.anchors {
            // Watched, although it is often another disk: while it hangs, no checkpoint is published either.
            let write = || dir.write(name, note.as_bytes());
            if let Err(error) = watched(self.disk.as_ref(), write) {
                let path = dir.file(name);
                tracing::warn!(event = "anchor_not_written", path = %path.display(), %error);
                failed = Some(format!(
                    "the copy of the checkpoint {}: {error}",
                    path.display()
                ));
            }
        }
        match failed {
            None => self.ready.clear("anchor"),
            Some(why) => self.ready.degrade("anchor", why),
        }
    }
}

fn watched<T>(disk: Option<&DiskWatch>, call: impl FnOnce() -> T) -> T {
    match disk {
        Some(disk) => disk.call(call),
        None => call(),
    }
}

/// Whether a later try may succeed: the engine of the log is away, or another process has claimed the log, which the appender
/// reports.
fn is_passing(error: &CheckpointError) -> bool {
    let lost = |error: &StoreError| matches!(error, StoreError::Lost(_) | StoreError::Damaged(_));
    match error {
        CheckpointError::Engine(error) => !lost(error),
        error => matches!(error, CheckpointError::NoneYet),
    }
}
