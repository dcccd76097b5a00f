//! The checkpoint thread: signs the head of the log one interval after a new leaf, or at once
//! after many, keeps a copy in a second place, and signs once more when the last leaf is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_kernel::{
    Deadline, Receiver, Recv, Sender, SharedClock, Shutdown, ShutdownTrigger, ThreadCtx,
};
use ron_service::ReadyBoard;
use ron_tlog::CheckpointError;
use ron_tlog::append::{Checkpointer, LogReader};
use ron_tlog::note::NoteSignature;

use super::health::{AuditHealth, Fault};
use super::proofs::ProofJob;
use super::ring::LogRing;
use super::witness::Published;
use crate::metrics::Metrics;

/// How much later than its interval a checkpoint may be.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// How long the last checkpoint waits for the last leaf.
const FINAL_WAIT: Duration = Duration::from_secs(5);
/// How long an idle thread sleeps; only shutdown and new leaves wake it earlier.
const IDLE: Duration = Duration::from_secs(60);

/// Why the checkpoint thread is woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is a leaf that no checkpoint covers.
    NewLeaf,
    /// There are so many that the interval does not matter.
    Many,
    /// Cosignatures for the published checkpoint of this text, to be stored with it.
    Cosigned(Arc<str>, Vec<NoteSignature>),
}

/// How the appender tells the checkpoint thread of new leaves.
pub struct Signal {
    idle: AtomicBool,
    many_sent: AtomicBool,
    /// When the oldest uncovered leaf was appended, Unix milliseconds; 0 when all are covered.
    uncovered_since_ms: AtomicU64,
    many: u64,
    late_ms: u64,
    wake: Sender<Wake>,
    reader: LogReader,
    clock: SharedClock,
}

impl Signal {
    /// Wakes through `wake` after `many` uncovered leaves, or for the first one.
    pub fn new(
        many: u64,
        interval: Duration,
        wake: Sender<Wake>,
        reader: LogReader,
        clock: SharedClock,
    ) -> Self {
        let late_ms = (interval + LATE_AFTER).as_millis() as u64;
        Self {
            idle: AtomicBool::new(false),
            many_sent: AtomicBool::new(false),
            uncovered_since_ms: AtomicU64::new(0),
            many,
            late_ms,
            wake,
            reader,
            clock,
        }
    }

    /// Called after each durable append.
    pub fn appended(&self) {
        let _ = self.uncovered_since_ms.compare_exchange(
            0,
            self.clock.unix_ms(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        // Either this sees `idle`, or the checkpoint thread, which sets it before it looks at the
        // log a last time, sees the new leaf.
        if self.idle.swap(false, Ordering::SeqCst) {
            self.send(Wake::NewLeaf);
        }
        let uncovered = self
            .reader
            .size_durable()
            .saturating_sub(self.reader.checkpoint_size());
        if uncovered >= self.many && !self.many_sent.swap(true, Ordering::SeqCst) {
            self.send(Wake::Many);
        }
    }

    /// At most one message of each kind is under way, so the queue cannot be full.
    fn send(&self, wake: Wake) {
        if self.wake.try_send(wake).is_err() {
            tracing::warn!(event = "checkpoint_wake_lost");
        }
    }

    /// Called after each checkpoint: what came since it was begun (at `begun_ms`) waits for the next one.
    fn covered(&self, begun_ms: u64, more: impl Fn() -> bool) {
        self.uncovered_since_ms.store(0, Ordering::SeqCst);
        // A leaf that was durable before the line above is seen here; a later one sets the time itself.
        if more() {
            let _ = self.uncovered_since_ms.compare_exchange(
                0,
                begun_ms,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// How long the oldest uncovered leaf has waited.
    pub fn age(&self) -> Duration {
        match self.uncovered_since_ms.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.clock.unix_ms().saturating_sub(since)),
        }
    }

    /// Called now and then by the appender: shows the age, and a checkpoint that does not come.
    pub fn watch(&self, metrics: &Metrics, ready: &ReadyBoard) {
        let age = self.age();
        metrics.checkpoint_age.set(age.as_secs().cast_signed());
        if age.as_millis() as u64 > self.late_ms {
            ready.missing(
                "checkpoint",
                "the last checkpoint of the audit log is overdue",
            );
        }
    }
}

/// The checkpoint thread's state.
pub struct CheckpointThread {
    /// The right to publish.
    pub checkpointer: Checkpointer,
    /// Who signs.
    pub ring: Arc<LogRing>,
    /// Shared with the appender.
    pub signal: Arc<Signal>,
    /// Wakes.
    pub wakes: Receiver<Wake>,
    /// Pause after a new leaf.
    pub interval: Duration,
    /// Further places for the newest checkpoint.
    pub anchors: Vec<PathBuf>,
    /// Turned to "no" by a failed write.
    pub health: AuditHealth,
    /// Where lateness is shown.
    pub ready: ReadyBoard,
    /// Metrics.
    pub metrics: Metrics,
    /// Fired by the appender after the last leaf.
    pub last_leaf: Shutdown,
    /// To the thread that asks witnesses, where a policy is configured.
    pub witness: Option<Sender<Published>>,
    /// To those who wait for proofs.
    pub proofs: Sender<ProofJob>,
    /// Fired after the last checkpoint.
    pub finished: ShutdownTrigger,
}

impl CheckpointThread {
    /// Runs until shutdown; the last act is a checkpoint over the stop leaf.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        while !ctx.shutdown.is_set() {
            if !self.wait_for_leaf(ctx) {
                continue;
            }
            let due = Deadline::within(self.interval);
            loop {
                match self.wakes.recv(&ctx.shutdown, due) {
                    Recv::Item(Wake::NewLeaf) => {}
                    Recv::Item(Wake::Cosigned(text, lines)) => self.cosign(&text, &lines),
                    Recv::Item(Wake::Many) | Recv::Timeout => break self.publish(),
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

    /// True when a leaf needs a checkpoint; otherwise goes idle until one comes.
    fn wait_for_leaf(&mut self, ctx: &ThreadCtx) -> bool {
        self.signal.idle.store(true, Ordering::SeqCst);
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

    /// Stores cosignatures with the checkpoint they were made for; a newer one may have come meanwhile.
    fn cosign(&mut self, text: &str, lines: &[NoteSignature]) {
        match self.checkpointer.add_signatures(text, lines) {
            Ok(_) | Err(CheckpointError::Superseded | CheckpointError::Poisoned) => {}
            Err(error) => {
                self.health.fail(
                    Fault::Failure,
                    &format!("cosignatures cannot be stored: {error}"),
                );
            }
        }
    }

    /// Signs and stores the head as it is now.
    pub fn publish(&mut self) {
        if !self.health.is_ok() {
            return;
        }
        self.signal.many_sent.store(false, Ordering::SeqCst);
        let begun_ms = self.signal.clock.unix_ms();
        let ring = &self.ring;
        match self.checkpointer.publish_by(|| ring.signers()) {
            Ok(note) => {
                // With the time that publishing took: a disk that hangs is late too.
                let age = self.signal.age();
                self.signal
                    .covered(begun_ms, || self.checkpointer.uncovered() > 0);
                if age > self.interval + LATE_AFTER {
                    self.metrics.checkpoint_late.inc();
                }
                self.ready.present("checkpoint");
                self.keep_anchor(&note);
                // Full means awake: the newest checkpoint will be looked at.
                let _ = self.proofs.try_send(ProofJob::Look);
                if let Some(witness) = &self.witness {
                    let _ = witness.try_send(Published);
                }
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
        for path in &self.anchors {
            if let Err(error) = write_whole(path, note) {
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

/// Replaces the file as a whole, durably.
pub fn write_whole(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}
