//! An engine in memory: a primary with a journal, and a standby that has the first part of it. It
//! fails in every way that the contract names, and can have one defect.

mod sessions;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ron_kernel::{Deadline, Random as _, SeededRandom};
use ron_tlog::store::{
    Appended, Batch, Head, LogBeat, LogStore, MakeBatch, Once, Refusal, Repeat, StoreError,
    StoredBatch, Transit, Writer,
};
use ron_tlog::tree::{Hash, empty_root};

use crate::contract::{Rig, TwoHosts, wait_for};

/// How the next write ends, whatever the state of the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Refused,
    /// Carried out and on the standby; the answer is lost.
    UnknownDone,
    /// The request is lost.
    UnknownNot,
    /// The request arrives after the next write of another session.
    UnknownLate,
    /// Carried out at the primary alone, with a notice.
    UnknownLocal,
}

pub const FAULTS: [Fault; 5] = [
    Fault::Refused,
    Fault::UnknownDone,
    Fault::UnknownNot,
    Fault::UnknownLate,
    Fault::UnknownLocal,
];

/// A number below `n`.
pub fn below(random: &SeededRandom, n: u8) -> u8 {
    let mut byte = [0];
    random.fill(&mut byte);
    byte[0] % n
}

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    None,
    AcknowledgesUnknown,
    IgnoresEpoch,
    IgnoresSeen,
    IgnoresSize,
    IgnoresRoot,
    ClaimsAreLocal,
    ClaimsTwice,
    ForgetsIds,
    KeepsIdsOfFailedAppends,
    ConfirmsNothing,
    AsynchronousUnnoticed,
    CheckpointsOfThePast,
    ReadsSkip,
    IgnoresGuard,
}

pub const DEFECTS: [Defect; 14] = [
    Defect::AcknowledgesUnknown,
    Defect::IgnoresEpoch,
    Defect::IgnoresSeen,
    Defect::IgnoresSize,
    Defect::IgnoresRoot,
    Defect::ClaimsAreLocal,
    Defect::ClaimsTwice,
    Defect::ForgetsIds,
    Defect::KeepsIdsOfFailedAppends,
    Defect::ConfirmsNothing,
    Defect::AsynchronousUnnoticed,
    Defect::CheckpointsOfThePast,
    Defect::ReadsSkip,
    Defect::IgnoresGuard,
];

/// A write, with what it requires when it is carried out.
#[derive(Clone, Debug)]
enum Op {
    Create,
    Claim {
        seen: u64,
        holder: String,
    },
    /// With the version that the guard must have, if any.
    Append(Option<u64>, Writer, Vec<Once>, Batch),
    Run(u64, Vec<Batch>),
    Checkpoint(Writer, u64, String),
    Ids(Vec<Once>),
    Beat,
    Message,
    /// Gives the guard this version.
    Version(u64),
}

/// One log as a journal makes it.
#[derive(Clone, Debug, Default)]
struct Log {
    size: u64,
    root: Hash,
    epoch: u64,
    holder: String,
    batches: Vec<StoredBatch>,
    checkpoints: BTreeMap<u64, String>,
    beat: u64,
}

#[derive(Clone, Debug, Default)]
struct View {
    logs: BTreeMap<String, Log>,
    ids: BTreeMap<(String, String), Once>,
    version: u64,
}

impl View {
    fn apply(&mut self, log: &str, op: &Op, defect: Defect) -> Result<(), StoreError> {
        if matches!(op, Op::Create) {
            self.logs.entry(log.into()).or_insert_with(|| Log {
                root: empty_root(),
                ..Log::default()
            });
        }
        if let Op::Version(version) = op {
            self.version = *version;
            return Ok(());
        }
        let state = self.logs.get_mut(log).expect("the log was created");
        let is_past =
            |writer: &Writer| matches!(writer, Writer::Owner { epoch } if *epoch != state.epoch);
        match op {
            Op::Create | Op::Message | Op::Version(_) => {}
            Op::Beat => state.beat += 1,
            Op::Claim { seen, holder } => {
                if state.epoch != *seen && defect != Defect::IgnoresSeen {
                    return Err(StoreError::Fenced);
                }
                state.epoch += 1;
                state.holder.clone_from(holder);
            }
            Op::Ids(ids) => self.take(ids),
            Op::Append(version, writer, ids, batch) => {
                let moved = match writer {
                    Writer::Owner { .. } => StoreError::Fenced,
                    Writer::Shared => StoreError::Moved,
                };
                let taken = |id: &Once| self.ids.contains_key(&name(id));
                let is_shared = matches!(writer, Writer::Shared);
                if is_past(writer) && defect != Defect::IgnoresEpoch
                    || is_shared && Transit::of_holder(&state.holder).is_some()
                    || state.size != batch.place.first && defect != Defect::IgnoresSize
                    || state.root != batch.place.before && defect != Defect::IgnoresRoot
                    || ids.iter().any(taken) && defect != Defect::ForgetsIds
                {
                    return Err(moved);
                }
                let is_stale = version.is_some_and(|version| version != self.version);
                if is_stale && defect != Defect::IgnoresGuard {
                    return Err(StoreError::Stale);
                }
                let epoch = state.epoch;
                (state.size, state.root) = (batch.place.end(), batch.place.root);
                state.batches.push(StoredBatch {
                    batch: batch.clone(),
                    epoch,
                });
                self.take(ids);
            }
            Op::Run(epoch, run) => {
                let place = run[0].place;
                let writer = Writer::Owner { epoch: *epoch };
                if is_past(&writer) && defect != Defect::IgnoresEpoch
                    || state.size != place.first && defect != Defect::IgnoresSize
                    || state.root != place.before && defect != Defect::IgnoresRoot
                {
                    return Err(StoreError::Fenced);
                }
                for batch in run {
                    (state.size, state.root) = (batch.place.end(), batch.place.root);
                    state.batches.push(StoredBatch {
                        batch: batch.clone(),
                        epoch: *epoch,
                    });
                }
            }
            Op::Checkpoint(writer, size, note) => {
                if is_past(writer) && defect != Defect::CheckpointsOfThePast || *size > state.size {
                    return Err(StoreError::Fenced);
                }
                state.checkpoints.insert(*size, note.clone());
            }
        }
        Ok(())
    }

    fn take(&mut self, ids: &[Once]) {
        let ids = ids.iter().map(|id| (name(id), id.clone()));
        self.ids.extend(ids);
    }
}

fn name(id: &Once) -> (String, String) {
    (id.scope.clone(), id.key.clone())
}

#[derive(Debug)]
struct State {
    defect: Defect,
    view: View,
    journal: Vec<(String, Op)>,
    /// Length of the journal's first part, which the standby has.
    replicated: usize,
    /// Writes that wait for the standby, or are on their way: carried out later, in this order.
    waiting: VecDeque<(u64, String, Op)>,
    /// Outcomes of waiting writes that were carried out.
    ended: BTreeMap<u64, Result<Head, StoreError>>,
    next_ticket: u64,
    /// How the next writes end; `None` as they do without a fault.
    faults: VecDeque<Option<Fault>>,
    /// Number of reads until one is refused.
    reads: Option<usize>,
    has_standby: bool,
    is_synchronous: bool,
    /// Number of primaries that were lost.
    lost: u64,
}

impl State {
    fn head(&self, log: &str) -> Head {
        let log = &self.view.logs[log];
        Head {
            size: log.size,
            root: log.root,
            epoch: log.epoch,
            holder: log.holder.clone(),
        }
    }

    fn carry_out(&mut self, log: &str, op: Op) -> Result<(), StoreError> {
        self.view.apply(log, &op, self.defect)?;
        self.journal.push((log.into(), op));
        Ok(())
    }

    /// Carries out what waits: at the primary alone, unless the standby is there.
    fn carry_out_waiting(&mut self) {
        while let Some((ticket, log, op)) = self.waiting.pop_front() {
            let done = self.carry_out(&log, op);
            let head = done.map(|()| self.head(&log));
            self.ended.insert(ticket, head);
        }
        if self.has_standby && self.is_synchronous {
            self.replicated = self.journal.len();
        }
    }

    fn wait_later(&mut self, log: &str, op: Op) -> u64 {
        self.next_ticket += 1;
        self.waiting.push_back((self.next_ticket, log.into(), op));
        self.next_ticket
    }

    /// A write. A ticket comes with an unknown outcome that may still be waited for.
    fn write(&mut self, log: &str, op: Op) -> Result<(), (StoreError, Option<u64>)> {
        let unknown = || StoreError::Unknown("as the test wants it".into());
        match self.faults.pop_front().flatten() {
            Some(Fault::Refused) => {
                return Err((
                    Refusal::Unavailable("as the test wants it".into()).into(),
                    None,
                ));
            }
            Some(Fault::UnknownNot) => return Err((unknown(), None)),
            Some(Fault::UnknownLate) => {
                self.wait_later(log, op);
                return Err((unknown(), None));
            }
            Some(Fault::UnknownDone) => {
                self.carry_out(log, op).map_err(|error| (error, None))?;
                self.replicated = self.journal.len();
                return Err((unknown(), None));
            }
            Some(Fault::UnknownLocal) => {
                self.carry_out(log, op).map_err(|error| (error, None))?;
                return Err((unknown(), None));
            }
            None => {}
        }
        if !self.is_synchronous {
            if self.defect != Defect::AsynchronousUnnoticed {
                return Err((Refusal::Unsafe("no standby is named".into()).into(), None));
            }
            return self.carry_out(log, op).map_err(|error| (error, None));
        }
        let is_local = matches!(op, Op::Claim { .. }) && self.defect == Defect::ClaimsAreLocal
            || matches!(op, Op::Message) && self.defect == Defect::ConfirmsNothing;
        if is_local {
            return self.carry_out(log, op).map_err(|error| (error, None));
        }
        if !self.has_standby {
            let ticket = self.wait_later(log, op);
            return Err((unknown(), Some(ticket)));
        }
        let outcome = self.carry_out(log, op).map_err(|error| (error, None));
        self.carry_out_waiting(); // requests that were late arrive now
        outcome
    }
}

/// The engine. Its stores share it.
#[derive(Clone, Debug)]
pub struct MemoryEngine(Arc<Mutex<State>>);

impl MemoryEngine {
    pub fn new(defect: Defect) -> Self {
        Self(Arc::new(Mutex::new(State {
            defect,
            view: View::default(),
            journal: Vec::new(),
            replicated: 0,
            waiting: VecDeque::new(),
            ended: BTreeMap::new(),
            next_ticket: 0,
            faults: VecDeque::new(),
            reads: None,
            has_standby: true,
            is_synchronous: true,
            lost: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The next write ends so.
    pub fn fail_next(&self, fault: Fault) {
        self.state().faults.push_back(Some(fault));
    }

    /// The `n`-th write from now on ends so.
    pub fn fail_write(&self, n: usize, fault: Fault) {
        let mut state = self.state();
        state.faults.extend((1..n).map(|_| None));
        state.faults.push_back(Some(fault));
    }

    /// Loses the checkpoints of a log, as no engine does.
    pub fn forget_checkpoints(&self, log: &str) {
        let mut state = self.state();
        let log = state.view.logs.get_mut(log).expect("the log was created");
        log.checkpoints.clear();
    }

    /// Faults that no write has met do not happen.
    pub fn forget_faults(&self) {
        self.state().faults.clear();
    }

    /// Number of batches that the primary alone has: a failover loses them.
    pub fn unreplicated(&self) -> usize {
        let state = self.state();
        let tail = state.journal[state.replicated..].iter();
        tail.filter(|(_, op)| matches!(op, Op::Append(..) | Op::Run(..)))
            .count()
    }

    /// Whether a fault was not reached yet.
    pub fn has_faults(&self) -> bool {
        !self.state().faults.is_empty()
    }

    /// The next `n` reads give one batch each, and the one after them is refused.
    pub fn refuse_read_after(&self, n: usize) {
        self.state().reads = Some(n);
    }
}

impl TwoHosts for MemoryEngine {
    fn short(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn set_standby(&self, reachable: bool) {
        let mut state = self.state();
        state.has_standby = reachable;
        if reachable {
            state.carry_out_waiting();
            state.replicated = state.journal.len();
        }
    }

    fn set_synchronous(&self, synchronous: bool) {
        self.state().is_synchronous = synchronous;
    }

    fn cancel_waits(&self) {
        wait_for("a write waits", || !self.state().waiting.is_empty());
        self.state().carry_out_waiting();
    }

    fn restart_primary(&self) {
        self.state().carry_out_waiting();
    }
}

impl Rig for MemoryEngine {
    type Store = MemoryStore;
    type Beat = MemoryBeat;

    fn store(&self, log: &str, holder: &str) -> MemoryStore {
        let mut state = self.state();
        if !state.view.logs.contains_key(log) {
            state
                .carry_out(log, Op::Create)
                .expect("it requires nothing");
            state.replicated = state.journal.len();
        }
        let read_at = state.lost;
        drop(state);
        MemoryStore {
            engine: self.clone(),
            log: log.into(),
            holder: holder.into(),
            unresolved: false,
            claim: None,
            read_at,
        }
    }

    fn set_version(&self, version: u64) {
        let mut state = self.state();
        let written = state.write("", Op::Version(version));
        written.expect("no fault is set");
    }

    fn beat(&self, log: &str) -> MemoryBeat {
        MemoryBeat(self.store(log, "beat"))
    }

    fn fail_over(&self) {
        let mut state = self.state();
        state.lost += 1;
        while let Some((ticket, ..)) = state.waiting.pop_front() {
            let gone = StoreError::Unknown("the session is gone".into());
            state.ended.insert(ticket, Err(gone));
        }
        let kept = state.replicated;
        state.journal.truncate(kept);
        let (mut view, journal) = (View::default(), state.journal.clone());
        for (log, op) in &journal {
            let applied = view.apply(log, op, state.defect);
            applied.expect("it was carried out in this order");
        }
        (state.view, state.has_standby) = (view, true);
    }
}

/// A log of the engine in memory.
#[derive(Debug)]
pub struct MemoryStore {
    engine: MemoryEngine,
    log: String,
    holder: String,
    unresolved: bool,
    claim: Option<PendingClaim>,
    /// The primary at which it has read last, by the number of those before it.
    read_at: u64,
}

/// A claim without a known outcome.
#[derive(Clone, Copy, Debug)]
struct PendingClaim {
    seen: u64,
    /// An earlier claim of the same call was lost, and may come into force.
    again: bool,
    /// By which it is waited for, unless the session is gone.
    ticket: Option<u64>,
}

impl MemoryStore {
    fn write(&self, op: Op) -> Result<(), StoreError> {
        let outcome = self.engine.state().write(&self.log, op);
        outcome.map_err(|(error, _)| error)
    }

    /// Sends a claim from `compared`; `again` when an earlier one of the same call was lost.
    fn send(&mut self, seen: u64, compared: u64, again: bool) -> Result<Head, StoreError> {
        let holder = self.holder.clone();
        let mut state = self.engine.state();
        let claim = Op::Claim {
            seen: compared,
            holder,
        };
        let outcome = state.write(&self.log, claim);
        let head = state.head(&self.log);
        drop(state);
        let (error, ticket) = match outcome {
            Ok(()) => return self.ended(Ok(head), seen, again),
            Err(failed) => failed,
        };
        if matches!(error, StoreError::Unknown(_)) {
            self.claim = Some(PendingClaim {
                seen,
                again,
                ticket,
            });
            return Err(error);
        }
        self.ended(Err(error), seen, again)
    }

    fn ended(
        &mut self,
        outcome: Result<Head, StoreError>,
        seen: u64,
        again: bool,
    ) -> Result<Head, StoreError> {
        let head = self.engine.state().head(&self.log);
        let is_ours = head.epoch > seen && head.holder == self.holder;
        if outcome == Err(StoreError::Fenced) && again && is_ours {
            return self.send(seen, head.epoch, true); // fenced by our own claim, which was lost
        }
        if !matches!(outcome, Err(StoreError::Refused(_))) {
            self.claim = None;
        }
        self.unresolved &= outcome.is_err();
        outcome
    }
}

impl LogStore for MemoryStore {
    fn head(&mut self, _deadline: Deadline) -> Result<Head, StoreError> {
        let state = self.engine.state();
        self.read_at = state.lost;
        Ok(state.head(&self.log))
    }

    fn claim(&mut self, seen: u64, _deadline: Deadline) -> Result<Head, StoreError> {
        let defect = self.engine.state().defect;
        match self.claim {
            Some(claim) if claim.seen != seen => Err(Refusal::Unresolved.into()),
            Some(claim) if defect != Defect::ClaimsTwice => {
                if let Some(ticket) = claim.ticket {
                    let ended = self.engine.state().ended.remove(&ticket);
                    let outcome = ended.ok_or(StoreError::Unknown("the claim waits".into()))?;
                    if matches!(outcome, Err(StoreError::Unknown(_))) {
                        self.claim = Some(PendingClaim {
                            ticket: None,
                            ..claim
                        });
                        return outcome;
                    }
                    return self.ended(outcome, seen, claim.again);
                }
                let head = self.engine.state().head(&self.log);
                let is_ours = head.epoch > seen && head.holder == self.holder;
                self.send(seen, if is_ours { head.epoch } else { seen }, true)
            }
            _ => self.send(seen, seen, false),
        }
    }

    fn append_guarded(
        &mut self,
        version: Option<u64>,
        writer: Writer,
        once: &[Once],
        batch: &mut MakeBatch<'_>,
        _deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        let is_owner = matches!(writer, Writer::Owner { .. });
        if is_owner && (self.unresolved || self.claim.is_some()) {
            return Err(Refusal::Unresolved.into());
        }
        let ids = once.iter().map(|id| (&id.scope, &id.key));
        if !ids.is_sorted_by(|one, next| one < next) {
            return Err(Refusal::Rejected("ids must be sorted and distinct".into()).into());
        }
        let mut state = self.engine.state();
        let defect = state.defect;
        let (mut fresh, mut repeats) = (Vec::new(), Vec::new());
        for (at, id) in once.iter().enumerate() {
            match state.view.ids.get(&name(id)) {
                Some(first) if defect != Defect::ForgetsIds => repeats.push(Repeat {
                    at,
                    same_body: first.body_hash == id.body_hash,
                    answer: first.answer.clone(),
                }),
                _ => fresh.push(id.clone()),
            }
        }
        let Some(batch) = batch(&repeats) else {
            let is_stale = version.is_some_and(|version| version != state.view.version);
            if is_stale && defect != Defect::IgnoresGuard {
                return Err(StoreError::Stale);
            }
            if !repeats.is_empty() {
                state
                    .write(&self.log, Op::Message)
                    .map_err(|(error, _)| match error {
                        StoreError::Unknown(why) => Refusal::Unavailable(why).into(),
                        error => error,
                    })?;
            }
            return Ok(Appended {
                place: None,
                repeats,
            });
        };
        let place = Some(batch.place);
        let outcome = state.write(&self.log, Op::Append(version, writer, fresh.clone(), batch));
        if outcome.is_err() && defect == Defect::KeepsIdsOfFailedAppends {
            let _ = state.carry_out(&self.log, Op::Ids(fresh));
        }
        match outcome {
            Err((StoreError::Unknown(_), _)) if defect == Defect::AcknowledgesUnknown => {}
            Err((error, _)) => {
                self.unresolved |= is_owner && matches!(error, StoreError::Unknown(_));
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok(Appended { place, repeats })
    }

    fn append_run(
        &mut self,
        epoch: u64,
        run: &[Batch],
        _deadline: Deadline,
    ) -> Result<(), StoreError> {
        if self.unresolved || self.claim.is_some() {
            return Err(Refusal::Unresolved.into());
        }
        let outcome = self.write(Op::Run(epoch, run.to_vec()));
        self.unresolved |= matches!(outcome, Err(StoreError::Unknown(_)));
        outcome
    }

    fn read_from(
        &mut self,
        first: u64,
        bytes_max: usize,
        _deadline: Deadline,
    ) -> Result<Vec<StoredBatch>, StoreError> {
        let mut state = self.engine.state();
        self.read_at = state.lost;
        let bytes_max = match state.reads {
            None => bytes_max,
            Some(0) => {
                state.reads = None;
                return Err(Refusal::Unavailable("as the test wants it".into()).into());
            }
            Some(n) => {
                state.reads = Some(n - 1);
                1
            }
        };
        let skipped = usize::from(state.defect == Defect::ReadsSkip && first > 0);
        let batches = state.view.logs[&self.log].batches.iter();
        let (mut total, mut read) = (0, Vec::new());
        for stored in batches
            .filter(|b| b.batch.place.first >= first)
            .skip(skipped)
        {
            total += stored.batch.frame.len();
            if total > bytes_max && !read.is_empty() {
                break;
            }
            read.push(stored.clone());
        }
        Ok(read)
    }

    fn confirm(&mut self, _deadline: Deadline) -> Result<(), StoreError> {
        // A session ends with its primary: the next one says nothing of what was read at the last.
        let lost = self.engine.state().lost;
        if std::mem::replace(&mut self.read_at, lost) != lost {
            return Err(StoreError::Unknown("the session is gone".into()));
        }
        self.write(Op::Message)
    }

    fn put_checkpoint(
        &mut self,
        writer: Writer,
        size: u64,
        note: &str,
        _deadline: Deadline,
    ) -> Result<(), StoreError> {
        self.write(Op::Checkpoint(writer, size, note.into()))
    }

    fn checkpoint(&mut self, _deadline: Deadline) -> Result<Option<(u64, String)>, StoreError> {
        let state = self.engine.state();
        let newest = state.view.logs[&self.log].checkpoints.last_key_value();
        Ok(newest.map(|(size, note)| (*size, note.clone())))
    }
}

/// The beat of a log in memory.
#[derive(Debug)]
pub struct MemoryBeat(MemoryStore);

impl LogBeat for MemoryBeat {
    fn beat(&mut self, _deadline: Deadline) -> Result<(), StoreError> {
        let log = &self.0.log;
        self.0.engine.state().carry_out(log, Op::Beat)
    }

    fn observe(&mut self, _deadline: Deadline) -> Result<u64, StoreError> {
        Ok(self.0.engine.state().view.logs[&self.0.log].beat)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ron_tlog::tree::Frontier;

    use super::*;
    use crate::contract::{append, batch, rules, soon};

    #[test]
    fn the_engine_in_memory_keeps_the_contract() {
        for (rule, check) in rules() {
            println!("{rule}");
            check(&MemoryEngine::new(Defect::None));
        }
        for seed in 0..300 {
            one_holder_under_faults(&MemoryEngine::new(Defect::None), seed);
            if seed % 3 == 0 {
                shared_writers_under_faults(&MemoryEngine::new(Defect::None), seed);
            }
        }
    }

    /// A claim that waits for the standby is lost with the primary, and made again at the next one.
    #[test]
    fn a_claim_that_was_lost_with_its_primary_is_made_again() {
        let engine = MemoryEngine::new(Defect::None);
        let mut store = engine.store("lost claim", "a");
        engine.set_standby(false);
        for _ in 0..2 {
            assert!(matches!(
                store.claim(0, soon()),
                Err(StoreError::Unknown(_))
            ));
        }
        engine.fail_over();
        assert!(matches!(
            store.claim(0, soon()),
            Err(StoreError::Unknown(_))
        ));
        assert_eq!(store.claim(0, soon()).unwrap().epoch, 1);
    }

    /// What was read at a primary is not made final by a write at the one after it.
    #[test]
    fn what_was_read_at_a_lost_primary_is_not_confirmed_at_the_next() {
        let engine = MemoryEngine::new(Defect::None);
        let mut holder = engine.store("confirmed", "a");
        let epoch = holder.claim(0, soon()).unwrap().epoch;
        let next = batch(&mut Frontier::new(), &["one"]);
        engine.fail_next(Fault::UnknownLocal);
        assert!(append(&mut holder, Writer::Owner { epoch }, &next, soon()).is_err());
        let mut follower = engine.store("confirmed", "b");
        assert_eq!(follower.read_from(0, 100, soon()).unwrap().len(), 1);
        engine.fail_over();
        assert!(matches!(
            follower.confirm(soon()),
            Err(StoreError::Unknown(_))
        ));
        assert!(follower.read_from(0, 100, soon()).unwrap().is_empty());
        follower.confirm(soon()).unwrap();
    }

    #[test]
    fn the_contract_finds_every_defect() {
        for defect in DEFECTS {
            let broken = |check: fn(&MemoryEngine)| {
                let engine = MemoryEngine::new(defect);
                catch_unwind(AssertUnwindSafe(|| check(&engine))).is_err()
            };
            let found = rules().into_iter().find(|(_, check)| broken(*check));
            let (rule, _) = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
            println!("{defect:?}: {rule}");
        }
    }

    /// The tree of the batches that a store shows, and their entries. Each root is that of the entries.
    fn shown(store: &mut MemoryStore) -> (Frontier, Vec<String>) {
        let (mut tree, mut entries) = (Frontier::new(), Vec::new());
        for stored in store.read_from(0, usize::MAX, soon()).unwrap() {
            let text = String::from_utf8(stored.batch.frame.clone()).unwrap();
            let lines: Vec<&str> = text.split('\n').collect();
            assert_eq!(
                batch(&mut tree, &lines),
                stored.batch,
                "a root of other entries"
            );
            entries.extend(lines.into_iter().map(str::to_owned));
        }
        (tree, entries)
    }

    /// Several writers of one log, whose tails may vanish, each entry under an id: what was done is in
    /// the log once, and all roots are those of the entries before them.
    fn shared_writers_under_faults(engine: &MemoryEngine, seed: u64) {
        let random = SeededRandom::new(seed);
        let mut stores = ["a", "b", "c"].map(|holder| engine.store("shared faults", holder));
        let mut expected = Vec::new();
        for n in 0..60 {
            let at = usize::from(below(&random, 3));
            // The tail was read some time ago.
            let (tree, _) = shown(&mut stores[at]);
            if below(&random, 3) == 0 {
                let other = (at + 1) % 3;
                let (mut tree, _) = shown(&mut stores[other]);
                let entry = format!("{n} between");
                let next = batch(&mut tree, &[entry.as_str()]);
                engine.fail_next(Fault::UnknownLocal);
                let _ = append(&mut stores[other], Writer::Shared, &next, soon());
                let (later, _) = shown(&mut stores[at]);
                if below(&random, 2) == 0 {
                    engine.fail_over();
                }
                if below(&random, 2) == 0 {
                    let (mut tree, _) = shown(&mut stores[other]);
                    let entry = format!("{n} instead");
                    let next = batch(&mut tree, &[entry.as_str()]);
                    append(&mut stores[other], Writer::Shared, &next, soon()).unwrap();
                    expected.push(entry);
                }
                one_of_shared(engine, &mut stores[at], later, n, &random, &mut expected);
            } else {
                one_of_shared(engine, &mut stores[at], tree, n, &random, &mut expected);
            }
        }
        engine.fail_over();
        let (_, found) = shown(&mut stores[0]);
        for entry in &expected {
            let times = found.iter().filter(|found| *found == entry).count();
            assert_eq!(times, 1, "seed {seed}: {entry}");
        }
        for entry in &found {
            // An append that was given up without an answer may be there, once.
            let times = found.iter().filter(|other| *other == entry).count();
            assert!(
                times == 1 && (expected.contains(entry) || entry.contains("between")),
                "seed {seed}: {entry}"
            );
        }
    }

    /// One entry of a shared writer that has read `tree`: until it is done or refused.
    fn one_of_shared(
        engine: &MemoryEngine,
        store: &mut MemoryStore,
        mut tree: Frontier,
        n: u64,
        random: &SeededRandom,
        expected: &mut Vec<String>,
    ) {
        let fault = |engine: &MemoryEngine| {
            if below(random, 2) == 0 {
                engine.fail_next(FAULTS[usize::from(below(random, 5))]);
            }
        };
        let entry = format!("{n}");
        let ids = [Once {
            scope: "shared".into(),
            key: entry.clone(),
            body_hash: [1; 32],
            answer: Vec::new(),
        }];
        loop {
            let next = batch(&mut tree, &[entry.as_str()]);
            fault(engine);
            let mut appended = store
                .append(Writer::Shared, &ids, &mut |_| Some(next.clone()), soon())
                .map(|_| true);
            while matches!(appended, Err(StoreError::Unknown(_))) {
                if below(random, 4) == 0 {
                    engine.fail_over();
                }
                fault(engine);
                match store.resolve(Writer::Shared, &ids, &next, soon()) {
                    Ok(resolution) => appended = Ok(resolution.done),
                    Err(StoreError::Unknown(_) | StoreError::Refused(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            match appended {
                Ok(true) => {
                    expected.push(entry);
                    return;
                }
                Err(StoreError::Refused(_)) => return,
                Ok(false) | Err(StoreError::Moved) => tree = shown(store).0,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// One holder appends, with every outcome by chance, kills of the primary between them: what
    /// was done is in the log once, what was not is not.
    fn one_holder_under_faults(engine: &MemoryEngine, seed: u64) {
        let random = SeededRandom::new(seed);
        let below = |n: u8| below(&random, n);
        let mut store = engine.store("faults", "a");
        let mut epoch = store.claim(0, soon()).unwrap().epoch;
        let mut tree = Frontier::new();
        let mut expected = Vec::new();
        for n in 0..40 {
            let mut longer = tree.clone();
            let entry = format!("{n} of {seed}");
            let next = batch(&mut longer, &[entry.as_str()]);
            if below(2) == 0 {
                engine.fail_next(FAULTS[usize::from(below(5))]);
            }
            let appended = append(&mut store, Writer::Owner { epoch }, &next, soon());
            if below(4) == 0 {
                engine.fail_over();
            }
            let is_done = match appended {
                Ok(_) => true,
                Err(StoreError::Refused(_)) => false,
                Err(StoreError::Unknown(_)) => loop {
                    if below(3) == 0 {
                        engine.fail_next(FAULTS[usize::from(below(5))]);
                    }
                    match store.resolve(Writer::Owner { epoch }, &[], &next, soon()) {
                        Ok(resolution) => {
                            epoch = resolution.head.epoch;
                            break resolution.done;
                        }
                        Err(StoreError::Unknown(_) | StoreError::Refused(_)) => {}
                        Err(error) => panic!("{seed}: {error:?}"),
                    }
                },
                Err(error) => panic!("{seed}: {error:?}"),
            };
            if is_done {
                tree = longer;
                expected.push(next);
            }
        }
        let read = store.read_from(0, usize::MAX, soon()).unwrap();
        let read: Vec<Batch> = read.into_iter().map(|stored| stored.batch).collect();
        assert_eq!(read, expected, "seed {seed}");
    }
}
