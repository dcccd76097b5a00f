//! The checkpoint thread: signs the head of the log one interval after a new leaf, or at once
//! after many, keeps a copy in a second place, and signs once more when the last leaf is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_crypto::Secret32;
use ron_crypto::hash::hkdf_sha256;
use ron_crypto::mldsa::MlDsa44Key;
use ron_kernel::{
    Deadline, Receiver, Recv, Sender, SharedClock, Shutdown, ShutdownTrigger, ThreadCtx,
};
use ron_service::ReadyBoard;
use ron_tlog::append::{Checkpointer, LogReader};
use ron_tlog::note::{NoteSignature, NoteSigner, SignFailed, VerifierKey};
use ron_tlog::{CheckpointError, Cosigner, CosignerKey};

use super::health::{AuditHealth, Fault};
use super::proofs::ProofJob;
use super::witness::Published;
use crate::keys::SecretKey;
use crate::metrics::Metrics;
use crate::store::LogIdentity;

/// How much later than its interval a checkpoint may be.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// How long the last checkpoint waits for the last leaf.
const FINAL_WAIT: Duration = Duration::from_secs(5);
/// How long an idle thread sleeps; only shutdown and new leaves wake it earlier.
const IDLE: Duration = Duration::from_secs(60);

/// Sets the second key apart from everything else that may ever be derived from the log key.
const SECOND_KEY: &[u8] = b"ron-kms/v1/log-key/ml-dsa-44";

/// Signs checkpoints with the log key that is sealed in the store.
pub struct LogSigner {
    verifier: VerifierKey,
    key: Arc<SecretKey>,
}

impl LogSigner {
    /// The signer of this log; fails when the origin is not a valid note name.
    pub fn new(identity: &LogIdentity) -> Result<Self, String> {
        let verifier = VerifierKey::ed25519(&identity.origin, &identity.public)
            .map_err(|e| format!("the origin of the audit log cannot name a note key: {e}"))?;
        Ok(Self {
            verifier,
            key: identity.key.clone(),
        })
    }

    /// What verifies the checkpoints.
    pub fn verifier(&self) -> &VerifierKey {
        &self.verifier
    }
}

impl NoteSigner for LogSigner {
    fn name(&self) -> &str {
        self.verifier.name()
    }

    fn key_id(&self) -> u32 {
        self.verifier.key_id()
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, SignFailed> {
        Ok(self.key.sign(text).to_vec())
    }
}

/// Signs checkpoints a second time with ML-DSA-44 (`audit.ml_dsa`). Its key is derived from the sealed log key, so it is backed up,
/// sealed and replaced with it; whoever knows only the public keys cannot get from one to the other.
pub struct SecondSigner {
    cosigner: Cosigner,
    clock: SharedClock,
}

impl SecondSigner {
    /// The second signer of this log.
    pub fn new(identity: &LogIdentity, clock: SharedClock) -> Result<Self, String> {
        let SecretKey::Ed25519(key) = &*identity.key else {
            return Err("the log key is not an Ed25519 key".into());
        };
        let mut seed = Secret32::zeroed();
        hkdf_sha256(b"", key.seed().expose(), SECOND_KEY, seed.expose_mut());
        let key = MlDsa44Key::from_seed(&seed).map_err(|e| e.to_string())?;
        let cosigner = Cosigner::ml_dsa_44(&identity.origin, key).map_err(|e| e.to_string())?;
        Ok(Self { cosigner, clock })
    }

    /// What verifies its lines.
    pub fn verifier(&self) -> &CosignerKey {
        self.cosigner.verifier()
    }
}

impl NoteSigner for SecondSigner {
    fn name(&self) -> &str {
        self.cosigner.verifier().name()
    }

    fn key_id(&self) -> u32 {
        self.cosigner.verifier().key_id()
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, SignFailed> {
        let text = std::str::from_utf8(text).map_err(|e| SignFailed(e.to_string()))?;
        let time_s = (self.clock.unix_ms() / 1000).max(1);
        let line = self.cosigner.cosign(text, time_s);
        line.map(|line| line.signature)
            .ok_or_else(|| SignFailed("the text is no checkpoint".into()))
    }
}

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
    /// The log key.
    pub signer: LogSigner,
    /// Its second line, where that is switched on.
    pub second: Option<SecondSigner>,
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
        match self
            .checkpointer
            .publish(&signers(&self.signer, self.second.as_ref()))
        {
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

/// Everyone who signs a checkpoint.
pub fn signers<'a>(
    signer: &'a LogSigner,
    second: Option<&'a SecondSigner>,
) -> Vec<&'a dyn NoteSigner> {
    let mut all: Vec<&dyn NoteSigner> = vec![signer];
    all.extend(second.map(|s| s as &dyn NoteSigner));
    all
}

/// Replaces the file as a whole, durably.
fn write_whole(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let temporary = path.with_extension("tmp");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}
