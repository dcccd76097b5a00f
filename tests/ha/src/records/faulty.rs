//! Records in a file that fail in every way that the contract names, and can have one defect.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ron_kernel::Deadline;
use ron_service::records::{
    FileRecords, RecordError, RecordStore, Refusal, Row, Statements, Value, Work,
};

use super::{FileRig, RecordRig};
use crate::contract::{TwoHosts, soon, wait_for};

/// How the next transaction ends, whatever the state of the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Refused,
    /// A transaction of others is in the way, once.
    Conflict,
    /// Committed; the answer is lost.
    UnknownDone,
    /// The request is lost.
    UnknownNot,
    /// The request arrives after the next transaction of another session.
    UnknownLate,
}

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    None,
    AcknowledgesUnknown,
    AsynchronousUnnoticed,
    ConfirmsNothing,
    ForgetsUnresolved,
    IgnoresEpoch,
    KeepsRolledBack,
    LosesCommits,
    ReadsBeforeItLocks,
    ResolvesByReading,
    ResolvesDone,
    ResolvesNot,
    ReturnsConflicts,
    SwallowsFailures,
}

pub const DEFECTS: [Defect; 13] = [
    Defect::AcknowledgesUnknown,
    Defect::AsynchronousUnnoticed,
    Defect::ConfirmsNothing,
    Defect::ForgetsUnresolved,
    Defect::IgnoresEpoch,
    Defect::KeepsRolledBack,
    Defect::LosesCommits,
    Defect::ReadsBeforeItLocks,
    Defect::ResolvesByReading,
    Defect::ResolvesDone,
    Defect::ResolvesNot,
    Defect::ReturnsConflicts,
    Defect::SwallowsFailures,
];

/// Statements that change something, as the work of a transaction gave them.
type Script = Vec<(String, Vec<Value>)>;

#[derive(Debug)]
struct State {
    defect: Defect,
    faults: VecDeque<Fault>,
    has_standby: bool,
    is_synchronous: bool,
    next_op: u64,
    /// Transactions that wait for the standby, or are on their way.
    waiting: VecDeque<(u64, Script)>,
    done: BTreeSet<u64>,
}

/// The engine. Its sessions share it.
#[derive(Clone, Debug)]
pub struct FaultyEngine {
    file: Arc<FileRig>,
    state: Arc<Mutex<State>>,
}

impl FaultyEngine {
    pub fn new(defect: Defect) -> Self {
        Self {
            file: Arc::new(FileRig::empty()),
            state: Arc::new(Mutex::new(State {
                defect,
                faults: VecDeque::new(),
                has_standby: true,
                is_synchronous: true,
                next_op: 0,
                waiting: VecDeque::new(),
                done: BTreeSet::new(),
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The next transaction ends so.
    pub fn fail_next(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    fn carry_out_waiting(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        for (op, script) in waiting {
            // As in an engine, one that others made impossible fails.
            if replay(&mut self.file.open(), &script) {
                self.state().done.insert(op);
            }
        }
    }
}

/// Runs what a transaction consisted of; false when it fails.
fn replay(inner: &mut FileRecords, script: &Script) -> bool {
    let mut work = |tx: &mut dyn Statements| {
        let mut run = script.iter().map(|(sql, params)| tx.query(sql, params));
        run.all(|done| done.is_ok())
    };
    inner.transact(&mut work, soon()) == Ok(true)
}

impl RecordRig for FaultyEngine {
    fn records(&self, _node: &str) -> Box<dyn RecordStore> {
        Box::new(FaultyRecords {
            inner: self.file.open(),
            engine: self.clone(),
            pending: None,
        })
    }
}

impl TwoHosts for FaultyEngine {
    fn short(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn set_standby(&self, reachable: bool) {
        self.state().has_standby = reachable;
        if reachable {
            self.carry_out_waiting();
        }
    }

    fn set_synchronous(&self, synchronous: bool) {
        self.state().is_synchronous = synchronous;
    }

    fn cancel_waits(&self) {
        wait_for("a write waits", || !self.state().waiting.is_empty());
        self.carry_out_waiting();
    }

    fn restart_primary(&self) {
        self.carry_out_waiting();
    }
}

/// A session of the engine.
#[derive(Debug)]
struct FaultyRecords {
    engine: FaultyEngine,
    inner: FileRecords,
    pending: Option<u64>,
}

/// Notes what changes something, and has the defects of single statements.
struct Recorder<'a> {
    inner: &'a mut dyn Statements,
    script: &'a mut Script,
    defect: Defect,
}

impl Recorder<'_> {
    fn note<T>(
        &mut self,
        done: Result<T, RecordError>,
        sql: &str,
        params: &[Value],
    ) -> Result<T, RecordError> {
        if done.is_ok() && !sql.starts_with("SELECT") {
            self.script.push((sql.into(), params.into()));
        }
        done
    }
}

impl Statements for Recorder<'_> {
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, RecordError> {
        let compares = sql.starts_with("UPDATE record_epoch SET epoch = epoch WHERE");
        if compares && self.defect == Defect::IgnoresEpoch {
            return Ok(1);
        }
        let done = self.inner.execute(sql, params);
        self.note(done, sql, params)
    }

    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>, RecordError> {
        let done = self.inner.query(sql, params);
        self.note(done, sql, params)
    }
}

impl FaultyRecords {
    /// Runs the work without keeping anything: whether it wants a commit, and what it changes.
    fn rehearse(
        &mut self,
        work: &mut Work<'_>,
        defect: Defect,
    ) -> Result<(bool, Script), RecordError> {
        let (mut commit, mut script) = (false, Script::new());
        let mut noted = |inner: &mut dyn Statements| {
            script.clear();
            commit = work(&mut Recorder {
                inner,
                script: &mut script,
                defect,
            });
            false
        };
        let ended = self.inner.transact(&mut noted, soon());
        if defect != Defect::SwallowsFailures {
            ended?;
        }
        Ok((commit, script))
    }

    /// Commits, if the work wants it.
    fn carry_out(
        &mut self,
        work: &mut Work<'_>,
        op: u64,
        defect: Defect,
    ) -> Result<bool, RecordError> {
        let committed = match defect {
            Defect::LosesCommits => return Ok(self.rehearse(work, defect)?.0),
            Defect::KeepsRolledBack | Defect::SwallowsFailures => {
                let (commit, script) = self.rehearse(work, defect)?;
                replay(&mut self.inner, &script);
                return Ok(commit);
            }
            Defect::ReadsBeforeItLocks => {
                let (commit, script) = self.rehearse(work, defect)?;
                // Others are between reading and writing.
                let (_trigger, never) = ron_kernel::Shutdown::pair();
                never.wait(Deadline::within(Duration::from_millis(20)));
                commit && replay(&mut self.inner, &script)
            }
            _ => {
                let mut noted = |inner: &mut dyn Statements| {
                    work(&mut Recorder {
                        inner,
                        script: &mut Script::new(),
                        defect,
                    })
                };
                self.inner.transact(&mut noted, soon())?
            }
        };
        if committed {
            self.engine.state().done.insert(op);
        }
        Ok(committed)
    }

    fn unknown(&mut self, op: u64, defect: Defect) -> Result<bool, RecordError> {
        if defect == Defect::AcknowledgesUnknown {
            return Ok(true);
        }
        self.pending = (defect != Defect::ForgetsUnresolved).then_some(op);
        Err(RecordError::Unknown("as the test wants it".into()))
    }
}

impl RecordStore for FaultyRecords {
    fn transact(&mut self, work: &mut Work<'_>, _deadline: Deadline) -> Result<bool, RecordError> {
        if self.pending.is_some() {
            return Err(Refusal::Unresolved.into());
        }
        let (defect, op, fault, waits) = {
            let mut state = self.engine.state();
            if !state.is_synchronous && state.defect != Defect::AsynchronousUnnoticed {
                return Err(Refusal::Unsafe("no standby is named".into()).into());
            }
            state.next_op += 1;
            let waits = !state.has_standby && state.is_synchronous;
            (state.defect, state.next_op, state.faults.pop_front(), waits)
        };
        match fault {
            Some(Fault::Refused) => {
                return Err(Refusal::Unavailable("as the test wants it".into()).into());
            }
            Some(Fault::Conflict) if defect == Defect::ReturnsConflicts => {
                return Err(RecordError::Conflict("as the test wants it".into()));
            }
            Some(Fault::Conflict) => {
                self.rehearse(work, defect)?;
            }
            Some(Fault::UnknownDone) => {
                self.carry_out(work, op, defect)?;
                return self.unknown(op, defect);
            }
            Some(Fault::UnknownNot) => return self.unknown(op, defect),
            None | Some(Fault::UnknownLate) => {}
        }
        if waits || fault == Some(Fault::UnknownLate) {
            let (commit, script) = self.rehearse(work, defect)?;
            if !commit {
                return Ok(false);
            }
            self.engine.state().waiting.push_back((op, script));
            return self.unknown(op, defect);
        }
        let committed = self.carry_out(work, op, defect);
        self.engine.carry_out_waiting(); // requests that were late arrive now
        committed
    }

    fn view(&mut self, work: &mut Work<'_>, deadline: Deadline) -> Result<(), RecordError> {
        self.inner.view(work, deadline)
    }

    fn confirm(&mut self, _deadline: Deadline) -> Result<(), RecordError> {
        let state = self.engine.state();
        if !state.has_standby && state.defect != Defect::ConfirmsNothing {
            return Err(RecordError::Unknown("the standby is away".into()));
        }
        Ok(())
    }

    fn resolve(&mut self, _deadline: Deadline) -> Result<bool, RecordError> {
        let mut state = self.engine.state();
        let Some(op) = self.pending else {
            return Err(Refusal::Rejected("no write is unknown".into()).into());
        };
        match state.defect {
            Defect::ResolvesDone | Defect::ResolvesNot => {
                self.pending = None;
                return Ok(state.defect == Defect::ResolvesDone);
            }
            Defect::ResolvesByReading => {}
            _ if !state.has_standby => {
                return Err(RecordError::Unknown("the standby is away".into()));
            }
            // It can arrive no more: its session is closed.
            _ => state.waiting.retain(|(other, _)| *other != op),
        }
        self.pending = None;
        Ok(state.done.contains(&op))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ron_kernel::{Random, SeededRandom};

    use super::*;
    use crate::records::{found, put, replicated_rules, rules};

    const FAULTS: [Fault; 5] = [
        Fault::Refused,
        Fault::Conflict,
        Fault::UnknownDone,
        Fault::UnknownNot,
        Fault::UnknownLate,
    ];

    /// All that the contract says, each part on an engine of its own.
    type Check = (String, Box<dyn Fn(&FaultyEngine)>);

    fn checks() -> Vec<Check> {
        let rules = rules().into_iter().chain(replicated_rules());
        let mut all: Vec<Check> = rules
            .map(|(rule, check)| (rule.to_owned(), Box::new(check) as Box<_>))
            .collect();
        for seed in 0..4 {
            let faults = move |engine: &FaultyEngine| two_writers_under_faults(engine, seed);
            all.push((format!("faults of seed {seed}"), Box::new(faults)));
        }
        all
    }

    #[test]
    fn the_faulty_engine_keeps_the_contract() {
        for (rule, check) in checks() {
            println!("{rule}");
            check(&FaultyEngine::new(Defect::None));
        }
    }

    #[test]
    fn the_contract_finds_every_defect() {
        for defect in DEFECTS {
            let broken = |check: &dyn Fn(&FaultyEngine)| {
                let engine = FaultyEngine::new(defect);
                catch_unwind(AssertUnwindSafe(|| check(&engine))).is_err()
            };
            let found = checks().into_iter().find(|(_, check)| broken(check));
            let (rule, _) = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
            println!("{defect:?}: {rule}");
        }
    }

    /// Two sessions write in turns, with every outcome by chance: what was done is there, what was not is not,
    /// and nothing comes later.
    fn two_writers_under_faults(engine: &FaultyEngine, seed: u64) {
        let random = SeededRandom::new(seed);
        let below = |n: u64| random.u64() % n;
        let mut stores = [engine.records("a"), engine.records("b")];
        let mut expected = Vec::new();
        for n in 0..30 {
            let store = &mut stores[below(2) as usize];
            let name = format!("{n:02}");
            if below(2) == 0 {
                engine.fail_next(FAULTS[below(5) as usize]);
            }
            let mut done = put(&mut **store, &name, n, soon()).map(|()| true);
            if matches!(done, Err(RecordError::Unknown(_))) {
                let unresolved = Err(Refusal::Unresolved.into());
                assert_eq!(put(&mut **store, &name, n, soon()), unresolved);
                done = store.resolve(soon());
            }
            match done {
                Ok(true) => expected.push((name, n)),
                Ok(false) | Err(RecordError::Refused(_)) => {}
                Err(error) => panic!("seed {seed}, {n}: {error:?}"),
            }
        }
        engine.state().faults.clear();
        put(&mut *engine.records("c"), "last", 99, soon()).unwrap();
        assert_eq!(
            found(engine, ""),
            [&expected[..], &[("last".into(), 99)]].concat()
        );
    }
}
