//! The writer thread, and the two threads that work for it: answers and snapshots.
//!
//! ```text
//!  commits ──> led-writer: take queued jobs, decide, one flush, apply ──> led-answer: receipts, replies
//!                   │ due?                                        └──> notifies event feed and projection
//!                   └──> led-snapshot: state image, keys to a file
//! ```

use std::sync::Arc;
use std::time::Duration;

use ron_files::DiskRoom;
use ron_kernel::{
    Deadline, DiskWatch, KernelMetrics, Receiver, Recv, Sender, SharedClock, Supervisor, ThreadCtx,
    queue,
};
use ron_proto::Timestamp;
use ron_proto::ledger::EntryKind;
use ron_service::log_host::archive::{ARCHIVE_EVERY, LogArchive};

use crate::core::Kind;
use crate::engine::{CommitError, Committed, Engine, Request, Shared, SnapshotJob, Snapshotter};
use crate::health::Health;
use crate::ledger::{
    BROKEN, Decided, Gate, Job, LOST, Ledger, POISONED, Queued, Reply, SubmitError, answer_all,
    outcome_label,
};
use crate::metrics::Metrics;
use crate::standby::{FOLLOW, Node, NodeParts, Stop};
use crate::topology::{
    ANSWER, ANSWERS, COMMITS, NOTIFY_EVENTS, NOTIFY_PROJECT, SNAPSHOT, SNAPSHOTS, WRITER,
};

/// Maximum entries in one flush; jobs are taken whole, so the last one may exceed it.
const BATCH_ENTRIES: usize = 4_096;
/// Maximum jobs in one flush.
const BATCH_JOBS: usize = 1_024;
/// Maximum pause between two checks for due holds.
const IDLE: Duration = Duration::from_millis(250);
/// Longest single wait of a writer that has no holds and shares its log with no other node.
const NO_HOLDS: Duration = Duration::from_secs(60);
/// How long the writer waits for space in the answers queue before it answers itself.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Minimum number of new entries for a snapshot when the service stops.
const LAST_SNAPSHOT_FROM: u64 = 20_000;

/// Notifications of new entries, one queue per reader of the log.
#[derive(Debug)]
pub struct Notifications {
    pub events: Receiver<()>,
    pub project: Receiver<()>,
}

pub struct WriterParts {
    pub sup: Supervisor,
    pub km: KernelMetrics,
    pub clock: SharedClock,
    pub metrics: Metrics,
    pub health: Arc<dyn Health>,
    /// Room on the disk of the log.
    pub room: DiskRoom,
    /// Capacity of the commit queue.
    pub commits: usize,
    /// Of a ledger whose log is in an engine.
    pub node: Option<NodeParts>,
    /// Archives segments of the log.
    pub archive: Option<LogArchive>,
}

/// The state of the writer thread.
struct Writer {
    commits: Receiver<Queued>,
    answers: Sender<Decided>,
    snapshots: Sender<SnapshotJob>,
    snapshotter: Snapshotter,
    notifications: [Sender<()>; 2],
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    clock: SharedClock,
    metrics: Metrics,
    health: Arc<dyn Health>,
    sup: Supervisor,
    disk: DiskWatch,
}

/// Starts the threads for writing, answers and snapshots.
pub fn spawn(engine: Engine, parts: WriterParts) -> (Ledger, Notifications) {
    let (commits_tx, commits) = queue(&COMMITS, parts.commits, &parts.km);
    let (answers, answers_rx) = queue(&ANSWERS, ANSWERS.capacity, &parts.km);
    let (snapshots, snapshots_rx) = queue(&SNAPSHOTS, SNAPSHOTS.capacity, &parts.km);
    let (events_tx, events) = queue(&NOTIFY_EVENTS, 1, &parts.km);
    let (project_tx, project) = queue(&NOTIFY_PROJECT, 1, &parts.km);
    let shared = engine.shared();
    // The thread that writes snapshots, and the writer at the end.
    let watches = parts.sup.watch_disks("snapshot", 2);
    let snapshotter = engine.snapshotter().watch_disk(watches);
    let random = Arc::clone(engine.random());
    let role = parts.node.as_ref().map(|node| Arc::clone(&node.role));
    let gate = Arc::new(Gate::new(parts.clock.clone(), parts.room, role));
    let node = parts.node.map(|node| {
        let (clock, health) = (parts.clock.clone(), Arc::clone(&parts.health));
        Node::new(node, clock, health)
    });
    let writer = Writer {
        commits,
        answers,
        snapshots,
        snapshotter: snapshotter.clone(),
        notifications: [events_tx, project_tx],
        shared: Arc::clone(&shared),
        gate: Arc::clone(&gate),
        clock: parts.clock,
        metrics: parts.metrics.clone(),
        health: Arc::clone(&parts.health),
        sup: parts.sup.clone(),
        disk: parts.sup.watch_disk("commit"),
    };
    writer.report();
    let (closed, handle) = (Arc::clone(&gate), parts.sup.clone());
    parts.sup.spawn_owner(
        &WRITER,
        (engine, node),
        move |(engine, node), ctx| writer.run(engine, node, ctx),
        move || {
            closed.close(BROKEN);
            handle.set_fatal("the ledger's writer panicked; it starts again from its log");
            None
        },
    );
    let for_answers = (Arc::clone(&shared), Arc::clone(&gate));
    parts.sup.spawn(&ANSWER, move |ctx| {
        run_answers(ctx, &answers_rx, &for_answers.0, &for_answers.1);
    });
    let (metrics, health, archive) = (parts.metrics, parts.health, parts.archive);
    parts.sup.spawn(&SNAPSHOT, move |ctx| {
        run_snapshots(
            ctx,
            &snapshots_rx,
            &snapshotter,
            archive.clone(),
            &metrics,
            &*health,
        );
    });
    let ledger = Ledger {
        shared,
        commits: commits_tx,
        random,
        gate,
    };
    (ledger, Notifications { events, project })
}

impl Writer {
    fn run(&self, mut engine: Engine, mut node: Option<Node>, ctx: &ThreadCtx) {
        loop {
            let pause = self.pause(&engine, node.as_ref());
            let first = match self.commits.recv(&ctx.shutdown, Deadline::within(pause)) {
                Recv::Item(job) => job.take(),
                Recv::Timeout => None,
                Recv::Shutdown | Recv::Closed => break,
            };
            self.step(&mut engine, node.as_mut(), first);
        }
        while let Some(job) = self.commits.try_recv() {
            self.step(&mut engine, node.as_mut(), job.take());
        }
        if let Some(given_up) = node.as_mut().and_then(Node::give_up) {
            self.conclude(given_up);
        }
        self.last_snapshot(&mut engine);
        // The queue also closes when an embedder drops its handles before it drains.
        ctx.wait_for_shutdown();
    }

    /// When the next hold expires; not while nothing is written.
    fn next_expiry(&self, engine: &Engine) -> Option<Timestamp> {
        let next = engine.next_expiry()?;
        self.gate.closed(&self.shared).is_none().then_some(next)
    }

    /// One step: a batch, or what the role of this node of a shared ledger asks for.
    fn step(&self, engine: &mut Engine, node: Option<&mut Node>, first: Option<Job>) {
        let Some(node) = node else {
            return self.tick(engine, None, first);
        };
        if node.is_held() {
            // Nothing is decided before it is known what the books are.
            self.refuse(first, "an earlier commit has no known outcome yet");
            if let Some(settled) = node.settle(engine) {
                if settled.result.is_ok() {
                    self.notify();
                }
                self.conclude(settled);
            }
            return;
        }
        if self.gate.is_shut() {
            return self.refuse(first, "the ledger is closed for writing");
        }
        let is_idle = first.is_none();
        let done = if engine.epoch().is_some() {
            self.tick(engine, Some(node), first);
            // A commit says the same of the engine.
            if is_idle { node.watch(engine) } else { Ok(()) }
        } else {
            self.refuse(first, "this node of the ledger is a standby");
            node.stand_by(engine)
                .map(|came| self.followed(engine, came))
        };
        if let Err(Stop { gate, why }) = done {
            self.close(gate, &why);
        }
    }

    /// After entries of the holder have come.
    fn followed(&self, engine: &mut Engine, came: u64) {
        if came > 0 {
            self.notify();
            self.report();
            self.snapshot_when_due(engine);
        }
    }

    /// Answers a job that came before the gate was closed, and those behind it.
    fn refuse(&self, first: Option<Job>, why: &str) {
        let mut next = first;
        while let Some(job) = next {
            let closed = self.gate.closed(&self.shared);
            (job.reply)(Err(closed.map_or_else(
                || SubmitError::Unable(why.to_owned()),
                SubmitError::Closed,
            )));
            next = self.commits.try_recv().and_then(Queued::take);
        }
    }

    /// Reports the outcome of a batch, and hands it on to be answered.
    fn conclude(&self, decided: Decided) {
        if let Err(e) = &decided.result {
            self.failed(e);
        }
        if !decided.replies.is_empty() {
            self.hand_to_answerer(decided);
        }
        self.report();
    }

    fn notify(&self) {
        for notifications in &self.notifications {
            // The queue keeps one notification, which is enough; a reader that ended needs none.
            let _ = notifications.try_send(());
        }
    }

    /// Time until the next hold expires, at most [`IDLE`], as the date may be set; without holds a commit ends the pause. Shorter
    /// while a standby follows, and while a commit has no outcome.
    fn pause(&self, engine: &Engine, node: Option<&Node>) -> Duration {
        let is_quick = |node: &Node| node.is_held() || engine.epoch().is_none();
        if node.is_some_and(is_quick) && !self.gate.is_shut() {
            return FOLLOW;
        }
        if node.is_none() && engine.next_expiry().is_none() {
            return NO_HOLDS;
        }
        let due = self
            .next_expiry(engine)
            .map(|at| Duration::from_millis(at.0.saturating_sub(self.clock.unix_ms())));
        due.map_or(IDLE, |d| d.min(IDLE))
    }

    /// One batch: the first job and those queued behind it, or only the holds that are due.
    fn tick(&self, engine: &mut Engine, node: Option<&mut Node>, first: Option<Job>) {
        let now = Timestamp(self.clock.unix_ms());
        if first.is_none() && self.next_expiry(engine).is_none_or(|at| at > now) {
            return;
        }
        let (requests, replies) = self.gather(first);
        let started = self.clock.now();
        let before = self.shared.head();
        // Blocks for one fdatasync; meanwhile further jobs queue up and form the next batch (group
        // commit).
        let result = self.disk.call(|| engine.commit(now, &requests));
        let new = self.shared.head() - before;
        if new > 0 {
            self.metrics.flushes.inc();
            self.metrics.batch_size.observe(new as f64);
            self.metrics
                .commit_seconds
                .observe(self.clock.now().duration_since(started).as_secs_f64());
            self.notify();
        }
        if let Some(node) = node {
            node.report_role(engine);
            match &result {
                Ok(_) => self.health.engine(None),
                Err(e @ CommitError::Undecided(_)) => {
                    self.failed(e);
                    return node.hold(requests, replies);
                }
                Err(e @ CommitError::Unavailable(_)) => self.health.engine(Some(&e.to_string())),
                Err(_) => {}
            }
        }
        self.conclude(Decided {
            requests,
            replies,
            result,
        });
        self.snapshot_when_due(engine);
    }

    /// The first job and those queued behind it; jobs whose deadline has passed are answered here.
    fn gather(&self, first: Option<Job>) -> (Vec<Request>, Vec<Reply>) {
        let (mut requests, mut replies, mut entries) = (Vec::new(), Vec::new(), 0);
        let mut next = first;
        while let Some(job) = next {
            if job.deadline.expired() {
                self.metrics.expired.inc();
                (job.reply)(Err(SubmitError::Expired));
            } else {
                entries += job.request.ops.len();
                requests.push(job.request);
                replies.push(job.reply);
            }
            next = if entries < BATCH_ENTRIES && requests.len() < BATCH_JOBS {
                self.commits.try_recv().and_then(Queued::take)
            } else {
                None
            };
        }
        (requests, replies)
    }

    fn failed(&self, e: &CommitError) {
        if matches!(e, CommitError::Standby) {
            tracing::warn!(event = "ledger_fenced");
        } else {
            tracing::error!(event = "commit_failed", error = %e);
        }
        let gate = match e {
            CommitError::Broken(_) => BROKEN,
            CommitError::Lost(_) => LOST,
            CommitError::Unknown(_) | CommitError::Poisoned => POISONED,
            CommitError::Keys(_)
            | CommitError::Undecided(_)
            | CommitError::Unavailable(_)
            | CommitError::Standby => return,
        };
        self.close(gate, &e.to_string());
    }

    /// Nothing is written until the next start.
    fn close(&self, gate: u8, why: &str) {
        self.health.store_failed(why);
        if self.gate.close(gate) {
            let event = match gate {
                LOST => "engine_lost_data",
                _ => "ledger_closed",
            };
            tracing::error!(event, reason = why);
        }
        if gate == BROKEN {
            self.sup.set_fatal(why);
        }
    }

    fn hand_to_answerer(&self, decided: Decided) {
        self.count(&decided);
        match self.answers.send(decided, Deadline::within(ANSWER_WAIT)) {
            Ok(()) => {}
            Err(ron_kernel::SendError::Full(d) | ron_kernel::SendError::Closed(d)) => {
                answer(&self.shared, &self.gate, d);
            }
        }
    }

    fn count(&self, decided: &Decided) {
        let Ok(committed) = &decided.result else {
            return;
        };
        let mut counts: Vec<(Kind, &'static str, u64)> = Vec::new();
        for (request, list) in decided.requests.iter().zip(&committed.outcomes) {
            for (op, d) in request.ops.iter().zip(list) {
                let (kind, label) = (op.kind(), outcome_label(d));
                match counts.iter_mut().find(|c| c.0 == kind && c.1 == label) {
                    Some(c) => c.2 += 1,
                    None => counts.push((kind, label, 1)),
                }
            }
        }
        for (kind, label, n) in counts {
            self.metrics
                .entries
                .with_label_values(&[EntryKind::from(kind).as_str(), label])
                .inc_by(n);
        }
    }

    fn report(&self) {
        let as_i64 = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics
            .head
            .set(i64::try_from(self.shared.head()).unwrap_or(i64::MAX));
        let (accounts, holds) = self.shared.state(|s| (s.account_count(), s.hold_count()));
        self.metrics.accounts.set(as_i64(accounts));
        self.metrics.holds.set(as_i64(holds));
        let (memory, files, bytes) = self.shared.keys().sizes();
        self.metrics.keys_memory.set(as_i64(memory));
        self.metrics.keys_files.set(as_i64(files));
        self.metrics.keys_bytes.set(as_i64(bytes));
    }

    fn snapshot_when_due(&self, engine: &mut Engine) {
        if let Some(job) = engine.begin_snapshot(false) {
            self.hand_to_snapshotter(job);
        }
    }

    fn hand_to_snapshotter(&self, job: SnapshotJob) {
        if let Err(ron_kernel::SendError::Full(job) | ron_kernel::SendError::Closed(job)) =
            self.snapshots.try_send(job)
        {
            // Only one snapshot is taken at a time, so the snapshot thread has ended; the keys must
            // not stay set aside.
            write_snapshot(&self.snapshotter, &job, &self.metrics, &*self.health);
        }
    }

    /// At a clean stop: the next start reads this snapshot instead of the log's tail.
    fn last_snapshot(&self, engine: &mut Engine) {
        if self.shared.head() - engine.snapshot_seq() < LAST_SNAPSHOT_FROM {
            return;
        }
        if let Some(job) = engine.begin_snapshot(true) {
            write_snapshot(&self.snapshotter, &job, &self.metrics, &*self.health);
        }
    }
}

/// The thread's body. It stops one stage after the writer, so that no decision stays unanswered.
fn run_answers(ctx: &ThreadCtx, answers: &Receiver<Decided>, shared: &Shared, gate: &Gate) {
    loop {
        match answers.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(60))) {
            Recv::Item(decided) => answer(shared, gate, decided),
            Recv::Timeout => {}
            Recv::Shutdown | Recv::Closed => break,
        }
    }
    while let Some(decided) = answers.try_recv() {
        answer(shared, gate, decided);
    }
}

fn answer(shared: &Shared, gate: &Gate, decided: Decided) {
    match decided.result {
        Ok(Committed { ts, outcomes }) => {
            let asked = decided.requests.iter().zip(decided.replies);
            for ((request, reply), list) in asked.zip(&outcomes) {
                reply(answer_all(shared, &request.ops, ts, list));
            }
        }
        Err(e) => {
            for reply in decided.replies {
                reply(Err(match (&e, gate.closed(shared)) {
                    (CommitError::Unknown(why), _) => SubmitError::Unknown(why.to_string()),
                    (CommitError::Undecided(why), _) => SubmitError::Unknown(why.clone()),
                    (CommitError::Keys(_), _) | (_, None) => SubmitError::Unable(e.to_string()),
                    (_, Some(why)) => SubmitError::Closed(why),
                }));
            }
        }
    }
}

fn run_snapshots(
    ctx: &ThreadCtx,
    jobs: &Receiver<SnapshotJob>,
    to: &Snapshotter,
    mut archive: Option<LogArchive>,
    metrics: &Metrics,
    health: &dyn Health,
) {
    loop {
        // One segment at a time: a snapshot does not wait for all that are due.
        let archive = archive.as_mut();
        let pause = archive.map_or(ARCHIVE_EVERY, |archive| archive.step(&ctx.shutdown));
        match jobs.recv(&ctx.shutdown, Deadline::within(pause)) {
            Recv::Item(job) => write_snapshot(to, &job, metrics, health),
            Recv::Timeout => {}
            Recv::Shutdown | Recv::Closed => break,
        }
    }
}

fn write_snapshot(to: &Snapshotter, job: &SnapshotJob, metrics: &Metrics, health: &dyn Health) {
    let timer = metrics.snapshot_seconds.start_timer();
    let done = to.write(job);
    timer.observe_duration();
    match done {
        Ok(()) => {
            metrics.snapshots.with_label_values(&["done"]).inc();
            health.snapshot(None);
        }
        Err(e) => {
            metrics.snapshots.with_label_values(&["failed"]).inc();
            tracing::error!(event = "snapshot_failed", error = %e);
            health.snapshot(Some(&e.to_string()));
        }
    }
}
