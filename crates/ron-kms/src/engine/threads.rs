//! Builds and starts the threads of the log: appender, checkpoints, cosignatures, proofs.

use std::sync::Arc;

use ron_custody::store::AnswerSealer;
use ron_files::Dir;
use ron_kernel::{
    KernelMetrics, Receiver, Sender, Shutdown, ShutdownTrigger, Supervisor, ThreadCtx, ThreadSpec,
    queue,
};
use ron_proto::Timestamp;
use ron_service::ReadyBoard;
use ron_service::log_engine;
use ron_service::log_host::LogHost;
use ron_service::log_host::asker::{OpenQuestions, Published};
use ron_service::log_host::cosign::{WitnessTimes, Witnesses};
use ron_service::log_node::LogNode;

use super::log::{LogWriter, OpenedLog};
use super::shared::Shown;
use crate::audit::AuditHealth;
use crate::audit::appender::Appender;
use crate::audit::checkpoint::{CheckpointThread, Signal, Wake};
use crate::audit::engine_appender::{EngineAppender, EngineAppenderParts};
use crate::audit::engine_writer::EngineWriter;
use crate::audit::entry::Entry;
use crate::audit::health::Fault;
use crate::audit::proofs::{ProofJob, ProofThread};
use crate::audit::witness::{WitnessThread, WitnessedAudit};
use crate::replay::Journal;
use crate::topology::{
    AUDIT, CHECKPOINT, CHECKPOINT_QUEUE, PROOFS, UPKEEP, WITNESS, WITNESS_QUEUE,
};
use crate::work::Kms;

/// The parts that the threads of the log are built from.
pub struct Audit {
    pub opened: OpenedLog,
    /// The copies of the checkpoint.
    pub anchors: Vec<(Dir, String)>,
    /// Results that wait for their leaves.
    pub entries: Receiver<Entry>,
    /// Answers that wait for their proofs.
    pub proofs: Receiver<ProofJob>,
    pub witnesses: Option<(Witnesses, WitnessTimes)>,
    pub host: LogHost,
    /// What records the answers of operations with an `op_id`.
    pub keeps: Keeps,
}

/// Where answers are remembered.
pub enum Keeps {
    Journal(Box<Journal>),
    /// In the engine, beside the leaves; and what operators see of the log there.
    Engine(AnswerSealer, Shown),
}

impl Audit {
    /// Starts the threads of the log.
    pub fn spawn(self, sup: &Supervisor, km: &KernelMetrics, kms: &Arc<Kms>, ready: &ReadyBoard) {
        let handles = Handles {
            sup,
            km,
            kms,
            ready,
        };
        spawn(&handles, self);
    }
}

/// What building the threads needs besides their parts.
struct Handles<'a> {
    sup: &'a Supervisor,
    km: &'a KernelMetrics,
    kms: &'a Arc<Kms>,
    ready: &'a ReadyBoard,
}

fn spawn(handles: &Handles<'_>, audit: Audit) {
    let Audit {
        opened,
        anchors,
        entries,
        proofs,
        witnesses,
        host,
        keeps,
    } = audit;
    let (sup, kms) = (handles.sup, handles.kms);
    let settings = kms.settings.load();
    let (wake, wakes) = queue(&CHECKPOINT_QUEUE, CHECKPOINT_QUEUE.capacity, handles.km);
    let signal = Arc::new(Signal::new(
        kms.settings.clone(),
        wake.clone(),
        opened.reader,
        kms.clock.clone(),
    ));
    // The order of the end: the appender writes the stop leaf, then the checkpoint thread signs over it, then the
    // proof and witness threads use that checkpoint. Each waits for the signal of the one before.
    let (finished, last_leaf) = Shutdown::pair();
    let (last_published, last_checkpoint) = Shutdown::pair();
    let witnessed = witnesses
        .as_ref()
        .is_some_and(|(w, _)| w.policy().needs_witnesses());
    let witness = witnesses
        .map(|witnesses| ask_witnesses(handles, witnesses, &host, wake, last_checkpoint.clone()));
    let proving = ProofThread {
        jobs: proofs,
        host,
        witnessed,
        waiting: Vec::new(),
        metrics: kms.metrics.clone(),
        last_checkpoint,
    };
    let checkpoints = CheckpointThread {
        checkpointer: opened.checkpointer,
        ring: kms.ring.clone(),
        signal: signal.clone(),
        wakes,
        disk: (!kms.is_shared).then(|| sup.watch_disk("checkpoint")),
        anchors,
        health: kms.health.clone(),
        ready: handles.ready.clone(),
        metrics: kms.metrics.clone(),
        last_leaf,
        witness,
        proofs: kms.proof_tx.clone(),
        finished: last_published,
    };
    let appending = Appending {
        writer: opened.writer,
        keeps,
        entries,
        signal,
        finished,
    };
    let health = || kms.health.clone();
    spawn_writer(sup, &PROOFS, proving, health(), ProofThread::run);
    appending.spawn(handles, settings.keys.batch_leaves);
    let run = CheckpointThread::run;
    spawn_writer(sup, &CHECKPOINT, checkpoints, health(), run);
}

/// What the appender is built from.
struct Appending {
    writer: LogWriter,
    keeps: Keeps,
    entries: Receiver<Entry>,
    signal: Arc<Signal>,
    finished: ShutdownTrigger,
}

impl Appending {
    fn spawn(self, handles: &Handles<'_>, batch_leaves: usize) {
        let Handles {
            sup, kms, ready, ..
        } = handles;
        let disk = sup.watch_disk("audit");
        let health = kms.health.clone();
        match (self.writer, self.keeps) {
            (LogWriter::Files(writer), Keeps::Journal(journal)) => {
                let appender = Appender {
                    writer: *writer,
                    journal: *journal,
                    disk,
                    clock: kms.clock.clone(),
                    entries: self.entries,
                    health: kms.health.clone(),
                    origin: kms.origin.clone(),
                    batch_leaves,
                    signal: self.signal,
                    ready: (*ready).clone(),
                    metrics: kms.metrics.clone(),
                    finished: self.finished,
                };
                spawn_writer(sup, &AUDIT, appender, health, Appender::run);
                // No table is tended, and each row of the topology is a thread.
                sup.spawn(&UPKEEP, ThreadCtx::wait_for_shutdown);
            }
            (LogWriter::Engine(writer), Keeps::Engine(answers, shown)) => {
                let node = show(handles, &writer, shown);
                let appender = EngineAppender::new(EngineAppenderParts {
                    writer: *writer,
                    keys: (*kms).clone(),
                    health: kms.health.clone(),
                    origin: kms.origin.clone(),
                    metrics: kms.metrics.clone(),
                    answers,
                    disk,
                    entries: self.entries,
                    batch_leaves,
                    signal: self.signal,
                    ready: (*ready).clone(),
                    node,
                    finished: self.finished,
                });
                spawn_writer(sup, &AUDIT, appender, health, EngineAppender::run);
            }
            _ => unreachable!("keys and log are in the same place"),
        }
    }
}

/// Starts the thread that tends the tables of the engine.
fn show(handles: &Handles<'_>, writer: &EngineWriter, shown: Shown) -> Arc<LogNode> {
    let (sup, node) = (handles.sup, shown.node);
    let to = log_engine::Shown {
        node: node.clone(),
        durability: shown.durability,
        ready: handles.ready.clone(),
        clock: handles.kms.clock.clone(),
    };
    if let Some(epoch) = writer.epoch() {
        node.writes(epoch, Timestamp(to.clock.unix_ms()));
    }
    let body = move |upkeep, ctx: &ThreadCtx| log_engine::tend(ctx, upkeep, &to);
    let lost = log_engine::lost(
        sup,
        "the thread that tends the tables of the audit log panicked",
    );
    sup.spawn_owner(&UPKEEP, shown.upkeep, body, lost);
    node
}

/// Spawns a thread that owns `state`. After a panic the state is not used again: the log is closed until the next
/// start, and the supervisor is asked to end the process, so that the next start checks what is on disk.
fn spawn_writer<T: Send + 'static>(
    sup: &Supervisor,
    spec: &'static ThreadSpec,
    state: T,
    health: AuditHealth,
    run: fn(&mut T, &ThreadCtx),
) {
    let handle = sup.clone();
    let body = move |mut state: T, ctx: &ThreadCtx| run(&mut state, ctx);
    sup.spawn_owner(spec, state, body, move || {
        health.fail(Fault::Failure, "a thread of the audit log panicked");
        handle.set_fatal("a thread of the audit log panicked");
        None
    });
}

/// Starts the thread that requests cosignatures; the sender notifies it of published checkpoints.
fn ask_witnesses(
    handles: &Handles<'_>,
    (witnesses, times): (Witnesses, WitnessTimes),
    host: &LogHost,
    store: Sender<Wake>,
    last_checkpoint: Shutdown,
) -> Sender<Published> {
    let kms = handles.kms;
    let (to, wakes) = queue(&WITNESS_QUEUE, WITNESS_QUEUE.capacity, handles.km);
    let log = WitnessedAudit {
        store,
        proofs: kms.proof_tx.clone(),
        health: kms.health.clone(),
    };
    let thread = WitnessThread {
        log,
        witnesses,
        reader: host.reader.clone(),
        view: host.cosigned.clone(),
        wakes,
        ready: handles.ready.clone(),
        metrics: kms.metrics.evidence.witness.clone(),
        clock: kms.clock.clone(),
        times,
        open: OpenQuestions::default(),
        last_checkpoint,
    };
    let health = kms.health.clone();
    spawn_writer(handles.sup, &WITNESS, thread, health, WitnessThread::run);
    to
}
