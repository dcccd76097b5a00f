//! The thread that has checkpoints cosigned: after each one it asks the witnesses of the policy, keeps the cosignatures with the
//! checkpoint, and says when they stay away. It is never in the path of a signature; but a witness that remembers another history
//! of this log stops all writes.

use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, Receiver, Recv, Sender, SharedClock, Shutdown, ThreadCtx};
use ron_service::ReadyBoard;
use ron_service::log_host::CosignedView;
use ron_service::log_host::cosign::{CosignedNote, Witnesses};
use ron_tlog::append::LogReader;
use ron_tlog::note::Note;

use super::checkpoint::Wake;
use super::health::{AuditHealth, Fault};
use super::proofs::ProofJob;
use crate::metrics::Metrics;

/// Pause before witnesses that did not answer are asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long an idle thread sleeps; a checkpoint wakes it.
const IDLE: Duration = Duration::from_secs(60);
/// How long the last round waits for the last checkpoint.
const FINAL_WAIT: Duration = Duration::from_secs(5);

/// A checkpoint was published.
#[derive(Clone, Copy, Debug)]
pub struct Published;

/// The thread's state.
pub struct WitnessThread {
    /// Whom to ask.
    pub witnesses: Witnesses,
    /// The log.
    pub reader: LogReader,
    /// Where the newest cosigned checkpoint is shown.
    pub view: CosignedView,
    /// Wakes.
    pub wakes: Receiver<Published>,
    /// To the thread that stores checkpoints.
    pub store: Sender<Wake>,
    /// To those who wait for proofs.
    pub proofs: Sender<ProofJob>,
    /// Turned to "no" by a witness that remembers another history.
    pub health: AuditHealth,
    /// Where lateness is shown.
    pub ready: ReadyBoard,
    /// Metrics.
    pub metrics: Metrics,
    /// Time.
    pub clock: SharedClock,
    /// Longer than this without a quorum weakens the service.
    pub late: Duration,
    /// When the oldest checkpoint that waits for its quorum was first seen, Unix milliseconds.
    pub since_ms: Option<u64>,
    /// Fired after the last checkpoint.
    pub last_checkpoint: Shutdown,
}

impl WitnessThread {
    /// Runs until shutdown; the last act is a round over the last checkpoint.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        while !ctx.shutdown.is_set() {
            let pause = if self.tick() { IDLE } else { AGAIN };
            match self.wakes.recv(&ctx.shutdown, Deadline::within(pause)) {
                Recv::Item(Published) | Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        if self.last_checkpoint.wait(Deadline::within(FINAL_WAIT)) {
            self.tick();
        }
    }

    /// One round over the newest checkpoint; true when nothing is left to ask.
    pub fn tick(&mut self) -> bool {
        let (Some(text), Some(head)) = (self.reader.checkpoint(), self.reader.checkpoint_head())
        else {
            return true;
        };
        if !self.health.is_ok() || head.size <= self.view.size() {
            return true;
        }
        let now_ms = self.clock.unix_ms();
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let round = self.witnesses.round(&text, &self.reader);
        let count = |result: &str, n: usize| {
            let counter = self
                .metrics
                .evidence
                .witness_asked
                .with_label_values(&[result]);
            counter.inc_by(n as u64);
        };
        count("cosigned", round.lines.len());
        count("failed", round.failures.len());
        if let Some(why) = round.betrayal {
            count("betrayed", 1);
            self.health.fail(Fault::Tampering, &why);
            return true;
        }
        for why in &round.failures {
            tracing::warn!(event = "not_cosigned", size = head.size, why);
        }
        if self.keep(&text, head.size, round.lines) {
            self.since_ms = None;
            self.ready.clear("witness");
            return round.failures.is_empty();
        }
        let late_ms = u64::try_from(self.late.as_millis()).unwrap_or(u64::MAX);
        if self.clock.unix_ms().saturating_sub(since_ms) > late_ms {
            let why = format!(
                "no quorum of witnesses has cosigned a checkpoint for {} s: {}",
                self.clock.unix_ms().saturating_sub(since_ms) / 1000,
                round.failures.join("; ")
            );
            self.ready.degrade("witness", why);
        }
        false
    }

    /// Has new cosignatures stored, and shows the checkpoint once its quorum is there.
    fn keep(&self, text: &Arc<str>, size: u64, lines: Vec<ron_tlog::note::NoteSignature>) -> bool {
        let Ok(mut note) = Note::parse(text) else {
            return false;
        };
        note.signatures.extend(lines.iter().cloned());
        let witnessed = self.witnesses.policy().witnessed(&note);
        if witnessed {
            self.view.show(CosignedNote {
                text: note.to_string().into(),
                size,
            });
            self.metrics.evidence.cosigned_size.set(size.cast_signed());
            let _ = self.proofs.try_send(ProofJob::Look); // full: it is awake and will look
        }
        if !lines.is_empty() {
            let wake = Wake::Cosigned(Arc::clone(text), lines);
            if self.store.try_send(wake).is_err() {
                tracing::warn!(event = "cosignatures_not_stored", size);
            }
        }
        witnessed
    }
}
