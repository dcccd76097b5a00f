//! The handle of a running ledger: commits go through the writer's queue, reads see the durable
//! state.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use ron_files::DiskRoom;
use ron_kernel::{
    Deadline, SendError, Sender, SharedClock, SharedRandom, Shutdown, WaitError, reply,
};
use ron_proto::ledger::{
    BudgetDoc, BudgetId, Closed, ClosedCause, Entry, EntryAnswer, Event, EventPage, Head,
    LogRecord, RecordPage, RequestKey, TxId,
};
use ron_proto::{Amount, Timestamp, b64};
use ron_tlog::append::TreeHead;
use ron_tlog::{Hash, ReadError};

use crate::answers::{self, LogEntry};
use crate::core::{BadEntry, Kind, Leaf, Op, Outcome, State, Verdict, key_hash, with_holds};
use crate::engine::{Atomicity, CommitError, Committed, Request, Shared, decode_entry, read_entry};
use crate::originals;
use crate::requests::{BadRequest, ops_of, resolution_of};
use crate::role::Role;

/// Why a request got no answers.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// An entry is malformed; nothing was done.
    #[error("entries[{index}].{bad}")]
    Bad { index: usize, bad: BadEntry },
    /// The queue is full; nothing was done.
    #[error("the commit queue is full; retry in {retry_after_s} s")]
    Busy { retry_after_s: u32 },
    /// The deadline passed before work began; nothing was done.
    #[error("the deadline passed before the entries were processed; nothing was done")]
    Expired,
    /// The ledger writes nothing until an operator has intervened; nothing was done.
    #[error("{}", .0.detail)]
    Closed(Closed),
    /// The ledger is stopping, or could not read its key index; nothing was done.
    #[error("{0}")]
    Unable(String),
    /// It is unknown whether the entries are in the log; a repetition of the same request returns
    /// the outcome.
    #[error("the outcome is not known: {0}; send the same request again")]
    Unknown(String),
}

/// Called once with the answers of a job.
pub(crate) type Reply = Box<dyn FnOnce(Result<Vec<EntryAnswer>, SubmitError>) + Send>;

/// One request in the queue of the writer.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) deadline: Deadline,
    pub(crate) reply: Reply,
}

/// The outcome of the requests of one batch, with the callers that wait for it.
pub(crate) struct Decided {
    pub(crate) requests: Vec<Request>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) result: Result<Committed, CommitError>,
}

/// A job on its way to the writer. Where the writer ends before it takes the job, nothing is done, and the caller is told so.
pub(crate) struct Queued(Option<Job>);

impl Queued {
    pub(crate) const fn new(job: Job) -> Self {
        Self(Some(job))
    }

    /// Takes the job over, with the duty to answer it.
    pub(crate) fn take(mut self) -> Option<Job> {
        self.0.take()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            (job.reply)(Err(SubmitError::Unable(STOPPING.to_owned())));
        }
    }
}

/// Pause between two looks at what a standby has.
const POLL: Duration = Duration::from_millis(5);
const STOPPING: &str = "the ledger is stopping";

/// Whether the writer accepts work; one state for all threads.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU8,
    clock: SharedClock,
    room: DiskRoom,
    /// Of a ledger whose log is in an engine.
    role: Option<Arc<Role>>,
}

impl Gate {
    pub(crate) fn new(clock: SharedClock, room: DiskRoom, role: Option<Arc<Role>>) -> Self {
        Self {
            state: AtomicU8::new(OPEN),
            clock,
            room,
            role,
        }
    }

    /// Closes the gate; `why` is [`POISONED`], [`LOST`] or [`BROKEN`], and the graver reason wins. Returns whether it was open.
    pub(crate) fn close(&self, why: u8) -> bool {
        let before = self.state.fetch_max(why, Ordering::AcqRel);
        // A node that cannot write leaves the log to another. After a loss in the engine no node may take it over.
        if ![before, why].contains(&LOST)
            && let Some(role) = &self.role
        {
            role.set_active(false);
        }
        before == OPEN
    }

    /// Whether the log is in an engine, which several nodes share.
    const fn is_shared(&self) -> bool {
        self.role.is_some()
    }

    /// Whether the gate is closed until the next start.
    pub(crate) fn is_shut(&self) -> bool {
        self.state.load(Ordering::Acquire) != OPEN
    }

    /// Why nothing is written, or `None`. The log itself knows what closed it.
    pub(crate) fn closed(&self, shared: &Shared) -> Option<Closed> {
        let log = shared.reader();
        let state = self.state.load(Ordering::Acquire);
        if state == OPEN
            && let Some(role) = &self.role
            && let Some(closed) = role.closed()
        {
            return Some(closed);
        }
        let (cause, why) = match state {
            BROKEN => (
                ClosedCause::Broken,
                "an invariant of its books did not hold".to_owned(),
            ),
            LOST => (
                ClosedCause::EngineLostData,
                "the engine of its log lost what it had acknowledged".to_owned(),
            ),
            OPEN if !log.poisoned() => match self.clock.date_unknown() {
                Some(alarm) => (ClosedCause::DateUnknown, alarm.to_string()),
                None => (ClosedCause::DiskFull, self.room.check().err()?.to_string()),
            },
            _ => match log.write_failure() {
                Some(failure) if failure.no_room() => (
                    ClosedCause::DiskFull,
                    format!("its disk is full ({})", failure.text),
                ),
                Some(failure) => (
                    ClosedCause::DiskFailed,
                    format!("its disk failed ({})", failure.text),
                ),
                None => (
                    ClosedCause::DiskFailed,
                    "an earlier write failed".to_owned(),
                ),
            },
        };
        let hint = cause.hint();
        let detail = format!("the ledger is closed for writing: {why}; nothing was done; {hint}");
        Some(Closed {
            cause,
            detail,
            active: None,
        })
    }
}

/// States of the gate: open but for the clock, the room on the disk and the role, and permanently closed because of the disk, of what
/// the engine lost, or of an invariant.
const OPEN: u8 = 0;
pub(crate) const POISONED: u8 = 1;
pub(crate) const LOST: u8 = 2;
pub(crate) const BROKEN: u8 = 3;

/// A handle of a running ledger; cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    pub(crate) shared: Arc<Shared>,
    pub(crate) commits: Sender<Queued>,
    pub(crate) gate: Arc<Gate>,
    /// Gives the salts of private records.
    pub(crate) random: SharedRandom,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ledger(head {})", self.shared.head())
    }
}

impl From<BadRequest> for SubmitError {
    fn from(BadRequest { index, bad }: BadRequest) -> Self {
        Self::Bad { index, bad }
    }
}

impl Ledger {
    /// Checks the entries of a commit.
    pub fn request(
        &self,
        entries: Vec<Entry>,
        atomicity: Atomicity,
    ) -> Result<Request, SubmitError> {
        let entries = entries.into_iter().map(|entry| self.with_original(entry));
        let entries = entries.collect::<Result<_, _>>()?;
        Ok(Request {
            ops: ops_of(entries, atomicity, &*self.random)?,
            atomicity,
        })
    }

    /// Puts what a reversed entry moved into its reversal. Read here, on the caller's thread: the log
    /// does not change, so the writer need not read it.
    fn with_original(&self, mut entry: Entry) -> Result<Entry, SubmitError> {
        if let Entry::Reverse { tx, original, .. } = &mut entry {
            let unable = |e: ReadError| SubmitError::Unable(e.to_string());
            let found = self.leaf(*tx).map_err(unable)?;
            *original = found.and_then(|(leaf, _)| {
                let found = self.shared.state(|s| originals::original(&leaf, s));
                found.ok().map(Into::into)
            });
        }
        Ok(entry)
    }

    /// How much of an entry is reversed, in minor units.
    pub fn reversed(&self, tx: TxId) -> Amount {
        Amount(self.shared.state(|s| s.reversed(tx.seq())))
    }

    /// Checks the key of a resolve.
    pub fn resolution(&self, key: RequestKey) -> Result<Request, SubmitError> {
        Ok(Request {
            ops: vec![resolution_of(key, &*self.random)?],
            atomicity: Atomicity::Independent,
        })
    }

    /// Commits entries and waits for their answers, at most until `deadline`.
    pub fn commit(
        &self,
        entries: Vec<Entry>,
        atomicity: Atomicity,
        deadline: Deadline,
    ) -> Result<Vec<EntryAnswer>, SubmitError> {
        self.wait(self.request(entries, atomicity)?, deadline)
    }

    /// The outcome of a key; a key without an entry is permanently abandoned.
    pub fn resolve(&self, key: RequestKey, deadline: Deadline) -> Result<EntryAnswer, SubmitError> {
        let request = self.resolution(key)?;
        let answer = self.wait(request, deadline)?.into_iter().next();
        answer.ok_or_else(|| SubmitError::Unknown("the writer gave no answer".to_owned()))
    }

    fn wait(&self, request: Request, deadline: Deadline) -> Result<Vec<EntryAnswer>, SubmitError> {
        let (tx, rx) = reply();
        // A caller that stopped waiting is not an error: the entries are in the log, and a repeated
        // request is answered from there.
        self.submit(
            request,
            deadline,
            Box::new(move |answer| drop(tx.send(answer))),
        );
        match rx.wait(deadline) {
            Ok(answer) => answer,
            Err(WaitError::Timeout) => Err(SubmitError::Unknown("the deadline passed".to_owned())),
            Err(WaitError::Dropped) => Err(SubmitError::Unknown("the writer stopped".to_owned())),
        }
    }

    /// Hands a request to the writer. `reply` is called exactly once: by the thread that makes the
    /// answers, or immediately when the request is not accepted.
    pub(crate) fn submit(&self, request: Request, deadline: Deadline, reply: Reply) {
        if let Some(why) = self.gate.closed(&self.shared) {
            let first = self.replay(&request.ops);
            return reply(first.ok_or(SubmitError::Closed(why)));
        }
        let job = Queued::new(Job {
            request,
            deadline,
            reply,
        });
        match self.commits.try_send(job) {
            Ok(()) => {}
            Err(SendError::Full(job)) => {
                let retry_after_s = self.commits.retry_after_s();
                if let Some(job) = job.take() {
                    (job.reply)(Err(SubmitError::Busy { retry_after_s }));
                }
            }
            Err(SendError::Closed(job)) => drop(job),
        }
    }

    /// The first answers, if every entry already has one; used while nothing new can be written.
    pub fn replay(&self, ops: &[Op]) -> Option<Vec<EntryAnswer>> {
        let keys: Vec<_> = ops.iter().map(Op::key).collect();
        let found = self.shared.keys().resolve(&keys).ok()?;
        let hold_of = |op: &Op| op.hold_item().and_then(|i| found.get(i).copied().flatten());
        ops.iter()
            .zip(&found)
            .map(|(op, seq)| known_answer(&self.shared, op, (*seq)?, hold_of(op)).ok())
            .collect()
    }

    /// The last durable sequence that readers find in the books too.
    pub fn head_seq(&self) -> u64 {
        let durable = self.shared.head();
        if self.gate.is_shared() {
            // A standby has its copy of the log before it has decided the entries again.
            return durable.min(self.shared.state(State::seq));
        }
        durable
    }

    /// Whether its log is in an engine, so that other nodes may write it.
    pub fn has_other_nodes(&self) -> bool {
        self.gate.is_shared()
    }

    /// Which node of the ledger writes instead of this one, or that none does; `None` for a ledger in files and for the active node.
    pub fn standby(&self) -> Option<Closed> {
        if !self.gate.is_shared() {
            return None;
        }
        let closed = self.gate.closed(&self.shared);
        closed.filter(|closed| closed.cause == ClosedCause::NotActive)
    }

    /// Waits until this node has the entry; false when it does not get it in time.
    pub fn reaches(&self, seq: u64, deadline: Deadline) -> bool {
        let (_trigger, never) = Shutdown::pair();
        while self.head_seq() < seq {
            if deadline.expired() {
                return false;
            }
            never.wait(Deadline::within(POLL));
        }
        true
    }

    pub fn head(&self) -> Head {
        let reader = self.shared.reader();
        let mut head = reader.head();
        let size = self.head_seq() + 1;
        if size < head.size
            && let Ok(root) = reader.root_at(size)
        {
            head = TreeHead { size, root };
        }
        Head {
            origin: reader.origin().to_owned(),
            seq: head.size.saturating_sub(1),
            size: head.size,
            root: b64::std(&head.root),
            ts: self.shared.state(State::ts),
            checkpoint_size: reader.checkpoint_size(),
            closed: self.gate.closed(&self.shared),
        }
    }

    /// What was spent under a budget.
    pub fn budget(&self, id: BudgetId) -> BudgetDoc {
        let row = self.shared.state(|s| s.budget(id));
        BudgetDoc {
            spent_minor: Amount(row.spent),
            day_minor: Amount(row.day_spent),
            day: Timestamp::from_utc_day(row.day),
        }
    }

    /// The entry at `seq`; `None` when there is none yet.
    pub fn event(&self, seq: u64) -> Result<Option<Event>, ReadError> {
        if seq == 0 || seq > self.shared.head() {
            return Ok(None);
        }
        let (leaf, hash) = read_entry(self.shared.reader(), seq)?;
        Ok(Some(answers::event(LogEntry::of(&leaf, hash))))
    }

    /// The last entry that is not later than `ts`; 0 when all are.
    pub fn last_at(&self, ts: Timestamp) -> Result<u64, ReadError> {
        let (mut low, mut after) = (0, self.shared.head() + 1);
        while after - low > 1 {
            let middle = low + (after - low) / 2;
            let (leaf, _) = read_entry(self.shared.reader(), middle)?;
            if leaf.ts <= ts {
                low = middle;
            } else {
                after = middle;
            }
        }
        Ok(low)
    }

    /// Leaf and private record at `seq`, which must be there.
    pub fn record(&self, seq: u64) -> Result<(Vec<u8>, Vec<u8>), ReadError> {
        self.shared.reader().record(seq)
    }

    /// At most `limit` records after `after`, in order.
    pub fn records(&self, after: u64, limit: u64) -> Result<RecordPage, ReadError> {
        let head = self.shared.head();
        let mut records = Vec::new();
        let last = head.min(after.saturating_add(limit));
        if after < last {
            let range = after + 1..last + 1;
            self.shared.reader().records(range, |seq, leaf, private| {
                records.push(LogRecord {
                    seq,
                    leaf: leaf.to_vec(),
                    private: private.to_vec(),
                });
                Ok::<(), ReadError>(())
            })?;
        }
        Ok(RecordPage {
            records,
            next: last.max(after.min(head)),
            head,
        })
    }

    pub fn tx(&self, txid: TxId) -> Result<Option<Event>, ReadError> {
        let found = self.leaf(txid)?;
        Ok(found.map(|(leaf, hash)| answers::event(LogEntry::of(&leaf, hash))))
    }

    /// The entry of a transaction id and its hash in the tree.
    fn leaf(&self, txid: TxId) -> Result<Option<(Leaf, Hash)>, ReadError> {
        if txid.seq() == 0 || txid.seq() > self.shared.head() {
            return Ok(None);
        }
        let found = read_entry(self.shared.reader(), txid.seq())?;
        Ok(Some(found).filter(|(leaf, _)| leaf.txid() == txid))
    }

    /// The entry committed under a key.
    pub fn by_key(&self, key: RequestKey) -> Result<Option<Event>, ReadError> {
        let found = self
            .shared
            .keys()
            .find(key_hash(key))
            .map_err(|source| ReadError::Io { index: 0, source })?;
        found.map_or(Ok(None), |seq| self.event(seq))
    }

    /// At most `limit` entries after `after`, in order.
    pub fn events(&self, after: u64, limit: u64) -> Result<EventPage, ReadError> {
        self.shared.events(after, limit)
    }
}

impl Shared {
    /// The entries after `after`, at most `limit`.
    pub fn events(&self, after: u64, limit: u64) -> Result<EventPage, ReadError> {
        let head = self.head();
        let mut events = Vec::new();
        let last = head.min(after.saturating_add(limit));
        if after < last {
            self.reader()
                .records(after + 1..last + 1, |seq, bytes, private| {
                    let (leaf, hash) = decode_entry(seq, bytes, private)?;
                    events.push(answers::event(LogEntry::of(&leaf, hash)));
                    Ok::<(), ReadError>(())
                })?;
        }
        Ok(EventPage {
            events,
            next: last.max(after.min(head)),
            head,
        })
    }
}

/// The answer to `op` whose key (or epoch, or index) belongs to the entry at `seq`. The hold that an entry of the same
/// commit makes was made by the entry at `hold`.
fn known_answer(
    shared: &Shared,
    op: &Op,
    seq: u64,
    hold: Option<u64>,
) -> Result<EntryAnswer, ReadError> {
    let (leaf, hash) = read_entry(shared.reader(), seq)?;
    let first = LogEntry::of(&leaf, hash);
    // A resolve asks for the outcome of the key, whatever its request was.
    if op.kind() == Kind::Abandon {
        return Ok(answers::answer(first).as_replayed());
    }
    let Some(hold) = hold else {
        return Ok(answers::replayed(op, first));
    };
    let (made, _) = read_entry(shared.reader(), hold)?;
    Ok(answers::replayed(&op.with_hold(made.txid()), first))
}

/// Makes the answers for the durable outcomes of one request, which was decided at `ts`.
pub(crate) fn answer_all(
    shared: &Shared,
    ops: &[Op],
    ts: Timestamp,
    outcomes: &[Outcome],
) -> Result<Vec<EntryAnswer>, SubmitError> {
    let resolved = match outcomes.first() {
        Some(Outcome::Fresh { seq, .. }) => with_holds(ops, *seq),
        _ => Cow::Borrowed(ops),
    };
    let known_seq = |i: usize| match outcomes.get(i) {
        Some(Outcome::Known { seq }) => Some(*seq),
        _ => None,
    };
    let one = |(op, outcome): (&Op, &Outcome)| match outcome {
        Outcome::Fresh {
            seq,
            verdict,
            batch,
        } => Ok(answers::answer(LogEntry {
            seq: *seq,
            ts,
            batch: *batch,
            op,
            verdict,
            leaf_hash: shared.reader().leaf_hash(*seq)?,
        })),
        Outcome::Mixed => Ok(answers::mismatch(op)),
        Outcome::Rejected(why) => Ok(answers::rejected(why)),
        Outcome::Known { seq } => {
            known_answer(shared, op, *seq, op.hold_item().and_then(known_seq))
        }
    };
    let all: Result<Vec<EntryAnswer>, ReadError> = resolved.iter().zip(outcomes).map(one).collect();
    all.map_err(|e| SubmitError::Unknown(e.to_string()))
}

/// `done`, `refused`, `rejected` (refused without a leaf) or `replayed`, as a metric label.
pub(crate) const fn outcome_label(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Fresh {
            verdict: Verdict::Done(_),
            ..
        } => "done",
        Outcome::Fresh {
            verdict: Verdict::Refused(_),
            ..
        } => "refused",
        Outcome::Rejected(_) => "rejected",
        Outcome::Known { .. } | Outcome::Mixed => "replayed",
    }
}
