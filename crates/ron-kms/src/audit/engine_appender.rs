//! The appender thread of a node whose keys are in an engine: other nodes change the keys, and the engine may be away.
//!
//! ```text
//!  entries ──> waiting ──append under the version of the keys──┬─> done: the answers leave
//!     ^           ^                                            ├─> repeats: they leave the batch, with their first answers
//!     │           └── decided again <── newer keys <── Stale ──┤
//!     │                                                        ├─> refused: 503; what records a change stays, and is tried again
//!     └── nothing is taken until it is known <── Unknown ──────┘
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ron_custody::index::KeyIndex;
use ron_custody::store::AnswerSealer;
use ron_custody::{Cause, Refusal};
use ron_kernel::{Deadline, DiskWatch, Receiver, Recv, Shutdown, ShutdownTrigger, ThreadCtx};
use ron_service::ReadyBoard;
use ron_service::log_node::LogNode;
use ron_tlog::append::{EngineError, OnceAppended};
use ron_tlog::store::{Once, Repeat, StoreError};

use super::checkpoint::Signal;
use super::engine_writer::EngineWriter;
use super::entry::{DurableLeaves, Entry, PlannedLeaves};
use super::health::{AuditHealth, Fault};
use super::leaf::{Draft, Op};
use crate::metrics::Metrics;
use crate::replay::{OnceId, other_body, unreadable_answer};

/// How often the engine is asked who holds the log, when there is nothing to append.
const POLL: Duration = Duration::from_secs(1);
/// Pause before an engine that is away is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Pause while newer keys are read.
const STALE: Duration = Duration::from_millis(2);
/// How often the store thread is asked for newer keys.
const ASK: Duration = Duration::from_millis(20);
/// Maximum wait of a result for newer keys.
const STALE_MAX: Duration = Duration::from_secs(2);
/// Maximum time at the end of the thread for what is not appended yet and the stop leaf, so that a drain without the engine ends
/// within the default `drain_deadline`.
const FINISH: Duration = Duration::from_millis(1_500);
/// Separates the ids of this service from others in the engine.
pub const SCOPE: &str = "ron-kms";

/// Keys that the engine has newer ones than.
struct Stale {
    version: u64,
    until: Deadline,
    ask: Deadline,
}

/// Which operation of which entry an id is of.
struct Owner {
    entry: usize,
    item: usize,
    id: OnceId,
}

impl Owner {
    fn once(&self, answer: Vec<u8>) -> Once {
        Once {
            scope: SCOPE.to_owned(),
            key: self.id.key(),
            body_hash: self.id.body,
            answer,
        }
    }
}

/// The keys that this node has of those that all nodes change.
pub trait NewestKeys: Send + Sync {
    fn index(&self) -> Arc<KeyIndex>;

    /// Has newer ones read; does not wait for that.
    fn ask(&self);
}

/// What the thread is built from.
pub struct EngineAppenderParts {
    pub writer: EngineWriter,
    pub keys: Arc<dyn NewestKeys>,
    /// Set to unavailable while the engine is, and to failed for good.
    pub health: AuditHealth,
    /// Origin of the log, for receipts.
    pub origin: String,
    pub metrics: Arc<Metrics>,
    /// Seals the answers that the engine keeps.
    pub answers: AnswerSealer,
    /// Notices writes of the counters that hang.
    pub disk: DiskWatch,
    /// Where entries come from.
    pub entries: Receiver<Entry>,
    /// Number of leaves from which no further entry joins an append.
    pub batch_leaves: usize,
    /// Wakes the checkpoint thread.
    pub signal: Arc<Signal>,
    /// Where an overdue checkpoint is shown.
    pub ready: ReadyBoard,
    /// What operators see of the log.
    pub node: Arc<LogNode>,
    /// Fired when the stop leaf is written.
    pub finished: ShutdownTrigger,
}

pub struct EngineAppender {
    parts: EngineAppenderParts,
    /// In the order in which they came; each has its credits, which bound their number.
    waiting: VecDeque<Entry>,
    /// Of an append without a known outcome.
    undecided: Option<Vec<Entry>>,
    stale: Option<Stale>,
    is_unavailable: bool,
    poll: Deadline,
}

impl EngineAppender {
    pub fn new(parts: EngineAppenderParts) -> Self {
        Self {
            parts,
            waiting: VecDeque::new(),
            undecided: None,
            stale: None,
            is_unavailable: false,
            poll: Deadline::within(POLL),
        }
    }

    /// Runs until shutdown, then writes the queued entries and the stop leaf.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        loop {
            let pause = Deadline::within(self.pause());
            match self.parts.entries.recv(&ctx.shutdown, pause) {
                Recv::Item(entry) => self.waiting.push_back(entry),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
            self.tick();
        }
        let (_trigger, never) = Shutdown::pair();
        let end = Deadline::within(FINISH);
        self.parts.writer.end_at(end);
        let give_up = self.parts.writer.give_up_at();
        loop {
            self.tick();
            let is_done = self.waiting.is_empty() && self.undecided.is_none();
            // A call may have failed because the engine starts again.
            let is_lost = self.is_unavailable && give_up.expired();
            if end.expired() || is_lost || is_done {
                break;
            }
            never.wait(Deadline::within(self.pause()));
        }
        self.stop(end.earlier(give_up));
        self.parts.finished.fire();
    }

    fn pause(&self) -> Duration {
        if self.is_unavailable || self.undecided.is_some() {
            AGAIN
        } else if self.waiting.is_empty() {
            POLL
        } else {
            STALE
        }
    }

    /// Takes what is queued, and appends what can be appended.
    pub fn tick(&mut self) {
        while let Some(entry) = self.parts.entries.try_recv() {
            self.waiting.push_back(entry);
        }
        if !self.parts.health.is_ok() {
            return self.give_up(&Refusal::audit_down());
        }
        if self.undecided.is_some() && !self.resolve() {
            return;
        }
        let index = self.parts.keys.index();
        self.decide_again(&index);
        loop {
            let batch = self.take(&index);
            if batch.is_empty() {
                break;
            }
            if !self.append(batch, &index) {
                return;
            }
        }
        self.probe();
        let parts = &self.parts;
        parts.signal.watch(&parts.metrics, &parts.ready);
    }

    /// Compares what results were decided from with the newest keys. A result that would be another one now is refused.
    fn decide_again(&mut self, index: &Arc<KeyIndex>) {
        if self
            .stale
            .as_ref()
            .is_some_and(|stale| stale.version != index.store_version)
        {
            self.stale = None;
        }
        let too_long = self
            .stale
            .as_ref()
            .is_some_and(|stale| stale.until.expired());
        let mut changed = Vec::new();
        for mut entry in std::mem::take(&mut self.waiting) {
            let Some(basis) = &mut entry.basis else {
                self.waiting.push_back(entry);
                continue;
            };
            if too_long {
                entry.refuse(&decided_from_old_keys());
            } else if index.decides_as(&basis.index, &basis.keys) {
                basis.index = index.clone();
                self.waiting.push_back(entry);
            } else {
                changed.push(entry);
            }
        }
        self.repeat_or_refuse(changed, index);
        if self.waiting.is_empty() {
            self.stale = None;
        }
        if let Some(stale) = self.stale.as_mut().filter(|stale| stale.ask.expired()) {
            stale.ask = Deadline::within(ASK);
            self.parts.keys.ask();
        }
    }

    /// Of results that would be others now: answers those of which all was done before, and refuses the rest.
    fn repeat_or_refuse(&mut self, mut changed: Vec<Entry>, index: &KeyIndex) {
        let (_, mut owners, refused) = self.ids(&changed);
        owners.extend(refused);
        owners.sort_by_key(|owner| owner.id);
        if !owners.is_empty() {
            let found = self.find(Some(index.store_version), &owners);
            // A failure is reported by the next append; the clients send their requests again.
            let repeats = found.unwrap_or_default();
            self.repeat(&mut changed, index, (repeats, &owners));
        }
        for entry in changed {
            if entry.drafts.is_empty() {
                answer(entry, DurableLeaves::none());
            } else {
                entry.refuse(&decided_from_old_keys());
            }
        }
    }

    /// The entries of the next append. Where the keys are known to be old, only those that do not depend on them.
    fn take(&mut self, index: &KeyIndex) -> Vec<Entry> {
        let is_old = self
            .stale
            .as_ref()
            .is_some_and(|stale| stale.version == index.store_version);
        let (mut batch, mut leaves) = (Vec::new(), 0);
        for entry in std::mem::take(&mut self.waiting) {
            if leaves < self.parts.batch_leaves && !(is_old && entry.basis.is_some()) {
                leaves += entry.drafts.len();
                batch.push(entry);
            } else {
                self.waiting.push_back(entry);
            }
        }
        batch
    }

    /// Appends the leaves of a batch and answers its entries. False when the engine is away.
    fn append(&mut self, mut batch: Vec<Entry>, index: &KeyIndex) -> bool {
        loop {
            // Of an entry that has only repeated operations nothing is left to append.
            for entry in batch.extract_if(.., |entry| entry.drafts.is_empty()) {
                answer(entry, DurableLeaves::none());
            }
            if batch.is_empty() {
                return true;
            }
            let (once, owners, refused) = self.ids(&batch);
            let guarded = batch.iter().any(|entry| entry.basis.is_some());
            let version = guarded.then_some(index.store_version);
            if !refused.is_empty() {
                match self.find(version, &refused) {
                    Ok(repeats) if repeats.is_empty() => {}
                    Ok(repeats) => {
                        self.repeat(&mut batch, index, (repeats, &refused));
                        continue;
                    }
                    Err(error) => return self.not_appended(batch, index.store_version, error),
                }
            }
            let drafts: Vec<&Draft> = batch.iter().flat_map(|entry| &entry.drafts).collect();
            match self.parts.writer.append(&drafts, version, &once) {
                Ok(OnceAppended::Done(first)) => {
                    self.done(batch, first);
                    return true;
                }
                Ok(OnceAppended::Repeats(repeats)) => {
                    self.repeat(&mut batch, index, (repeats, &owners));
                }
                Err(error) => return self.not_appended(batch, index.store_version, error),
            }
        }
    }

    /// Looks for operations that are refused now and were done before.
    fn find(
        &mut self,
        version: Option<u64>,
        refused: &[Owner],
    ) -> Result<Vec<Repeat>, EngineError> {
        let once = refused.iter().map(|owner| owner.once(Vec::new()));
        let once: Vec<Once> = once.collect();
        self.parts.writer.find(version, &once)
    }

    /// The ids of a batch with their answers, and those of operations that are refused, in the order that the engine wants.
    fn ids(&self, batch: &[Entry]) -> (Vec<Once>, Vec<Owner>, Vec<Owner>) {
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        let mut next = self.parts.writer.size();
        for (entry, waits) in batch.iter().enumerate() {
            let leaves = PlannedLeaves::new(&self.parts.origin, next);
            for planned in waits.waiting.planned(leaves) {
                let (item, id) = (planned.item, planned.id);
                let owner = Owner { entry, item, id };
                match planned.answer {
                    Some(answer) => all.push((owner, answer)),
                    None => refused.push(owner),
                }
            }
            next += waits.leaves;
        }
        all.sort_by_key(|(owner, _)| owner.id);
        refused.sort_by_key(|owner| owner.id);
        let answers = &self.parts.answers;
        let once = all.iter().map(|(owner, answer)| {
            let sealed = answers.seal(&owner.id.about(), answer);
            owner.once(sealed)
        });
        let once = once.collect();
        let owners = all.into_iter().map(|(owner, _)| owner).collect();
        (once, owners, refused)
    }

    /// Takes operations that were done before out of a batch. Their ids were found while the keys were those of `index`, from
    /// which an answer may be decrypted again.
    fn repeat(
        &self,
        batch: &mut [Entry],
        index: &KeyIndex,
        (repeats, owners): (Vec<Repeat>, &[Owner]),
    ) {
        for repeat in repeats {
            let Owner { entry, item, id } = &owners[repeat.at];
            let before = if repeat.same_body {
                let opened = self.parts.answers.open(&id.about(), &repeat.answer);
                opened.ok_or_else(unreadable_answer)
            } else {
                Err(other_body())
            };
            let entry = &mut batch[*entry];
            let position = entry.waiting.repeated(*item, index, before);
            entry.drafts.remove(position);
            entry.leaves -= 1;
        }
    }

    fn done(&mut self, batch: Vec<Entry>, first: u64) {
        self.parts.signal.appended();
        let mut index = first;
        for entry in batch {
            let leaves = DurableLeaves::new(&self.parts.origin, index, entry.leaves);
            index += entry.leaves;
            answer(entry, leaves);
        }
        self.back();
        let EngineAppenderParts { disk, writer, .. } = &mut self.parts;
        disk.call(|| writer.keep_state(false));
    }

    /// Nothing of the batch is in the log, or nobody knows yet. False when the engine is away.
    fn not_appended(&mut self, batch: Vec<Entry>, version: u64, error: EngineError) -> bool {
        match error {
            EngineError::Store(StoreError::Stale) => {
                self.put_back(batch);
                self.stale = Some(Stale {
                    version,
                    until: Deadline::within(STALE_MAX),
                    ask: Deadline::within(Duration::ZERO),
                });
                true
            }
            EngineError::Store(error @ StoreError::Unknown(_)) => {
                self.undecided = Some(batch);
                self.unavailable(&error.to_string());
                false
            }
            EngineError::Store(error @ StoreError::Refused(_)) => {
                self.unavailable(&error.to_string());
                self.put_back(batch);
                self.refuse_callers();
                false
            }
            error => {
                self.fail(&error);
                batch.into_iter().for_each(Entry::fail);
                self.give_up(&Refusal::audit_down());
                false
            }
        }
    }

    /// Before what came later: leaves of changes state the versions of the store in their order.
    fn put_back(&mut self, batch: Vec<Entry>) {
        for entry in batch.into_iter().rev() {
            self.waiting.push_front(entry);
        }
    }

    /// Asks what became of the append without a known outcome. False while that is still not known.
    fn resolve(&mut self) -> bool {
        match self.parts.writer.resolve() {
            Ok(Some(range)) => {
                let batch = self.undecided.take().unwrap_or_default();
                self.done(batch, range.start);
                true
            }
            Ok(None) => {
                let batch = self.undecided.take().unwrap_or_default();
                self.put_back(batch);
                self.refuse_callers();
                self.back();
                true
            }
            Err(EngineError::Store(error @ (StoreError::Unknown(_) | StoreError::Refused(_)))) => {
                self.unavailable(&error.to_string());
                false
            }
            Err(error) => {
                self.fail(&error);
                self.give_up(&Refusal::audit_down());
                false
            }
        }
    }

    /// Refuses what waits, but for what is done already and has to be recorded.
    fn refuse_callers(&mut self) {
        for entry in std::mem::take(&mut self.waiting) {
            if entry.waiting.is_done() {
                self.waiting.push_back(entry);
            } else {
                entry.refuse(&Refusal::audit_down());
            }
        }
    }

    /// Notices an engine that is away or back, and another process that has claimed the log.
    fn probe(&mut self) {
        if !self.is_unavailable && !self.poll.expired() {
            return;
        }
        self.poll = Deadline::within(POLL);
        match self.parts.writer.probe() {
            Ok(()) => self.back(),
            Err(EngineError::Store(error @ (StoreError::Refused(_) | StoreError::Unknown(_)))) => {
                self.unavailable(&error.to_string());
            }
            Err(error) => self.fail(&error),
        }
    }

    fn unavailable(&mut self, why: &str) {
        self.is_unavailable = true;
        self.parts.health.engine(Some(why));
    }

    fn back(&mut self) {
        self.is_unavailable = false;
        self.poll = Deadline::within(POLL);
        self.parts.health.engine(None);
    }

    /// Nothing is appended any more until the next start.
    fn fail(&self, error: &EngineError) {
        let (fault, why) = match error {
            EngineError::Store(StoreError::Fenced) => (
                Fault::Failure,
                "another process has claimed the audit log: audit.origin has to be another on each node".to_owned(),
            ),
            EngineError::Store(StoreError::Lost(_) | StoreError::Damaged(_)) => {
                tracing::error!(event = "engine_lost_data", %error);
                (Fault::Tampering, error.to_string())
            }
            error => (
                Fault::Failure,
                format!("the audit log cannot be written: {error}"),
            ),
        };
        self.parts.node.stopped();
        self.parts.health.fail(fault, &why);
    }

    fn give_up(&mut self, why: &Refusal) {
        let undecided = self.undecided.take();
        for entry in undecided.into_iter().flatten() {
            entry.refuse(&Refusal::new(
                Cause::DeadlineExceeded,
                "it is not known whether the leaf is in the audit log: send the request again with the same op_id",
            ));
        }
        self.waiting.drain(..).for_each(|entry| entry.refuse(why));
    }

    fn stop(&mut self, end: Deadline) {
        self.give_up(&Refusal::audit_down());
        if !self.parts.health.is_ok() {
            return;
        }
        let draft = Draft::service(Op::Stop, "drained");
        let EngineAppenderParts { disk, writer, .. } = &mut self.parts;
        match writer.append_by(&draft, end) {
            Ok(_) => disk.call(|| writer.keep_state(true)),
            // The counters are not kept: they may have leaves that are not in the log.
            Err(error) => tracing::warn!(event = "stop_leaf_not_written", %error),
        }
    }
}

fn answer(entry: Entry, leaves: DurableLeaves<'_>) {
    // The ids are free before the answer leaves, and what they stand for is in the engine.
    let reply = entry.waiting.complete(leaves, &mut Vec::new());
    if let Some(reply) = reply {
        reply.send();
    }
}

fn decided_from_old_keys() -> Refusal {
    let detail = "the key was changed at another node while the result waited for its leaf; nothing was done: send the request again";
    Refusal::new(Cause::AuditUnavailable, detail)
}
