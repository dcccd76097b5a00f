//! A ledger whose log is in an engine, on each of its nodes: a standby follows, any node takes over, and what a commit could not
//! find out is found out later.
//!
//! ```text
//!  open_shared ──> a standby ──follow──> entries of the holder, decided again
//!                      └──claim──> the holder ──commit──> done, refused, or Undecided ──resolve──> done or not
//! ```

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_files::Disk;
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_tlog::Checkpoint;
use ron_tlog::append::{EngineError as LogError, EngineLog};
use ron_tlog::store::{Head, LogStore, StoreError};

use crate::core::{Delta, KeyHash, State, genesis};
use crate::engine::{
    CommitError, Committed, Engine, EngineError, EngineOptions, Shared, check_genesis,
};
use crate::journal::{Journal, of_engine};
use crate::replay::{Books, Replay};

/// The two sessions of a node with the engine: for batches, and for checkpoints.
pub type Sessions = [Box<dyn LogStore>; 2];

/// Why a node did not follow or take over.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// An entry of the holder cannot be read, or contradicts the ones before it: the holder decides by other rules, or something
    /// was changed. The node stops.
    #[error(transparent)]
    Entry(#[from] EngineError),
}

/// What became of a commit without a known outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// No commit was undecided.
    Nothing,
    /// Its entries are in the log.
    Done(Committed),
    /// Nothing of it is in the log, and nothing will be.
    NotDone,
}

/// The books that all threads read, as entries of the holder come in.
struct Followed<'a>(&'a Shared);

impl Books for Followed<'_> {
    fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        self.0.state(read)
    }

    fn used(&self, keys: impl Iterator<Item = Option<KeyHash>>) -> io::Result<Option<usize>> {
        let keys: Vec<_> = keys.collect();
        let found = self.0.keys().resolve(&keys)?;
        Ok(found.iter().position(Option::is_some))
    }

    fn apply(&mut self, delta: Delta, last_seq: u64, ts: Timestamp) {
        self.0.apply(delta, last_seq, ts);
    }
}

impl Engine {
    /// Opens this node's copy of a ledger in `dir`, or begins one, as a standby. `within` is the maximum time of one commit.
    pub fn open_shared(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: EngineOptions,
        sessions: Sessions,
        within: Duration,
    ) -> Result<Self, CopyError> {
        disk.create_dir_all(dir).map_err(EngineError::from)?;
        let [store, checkpoints] = sessions;
        let (disk_of_log, log_dir) = (Arc::clone(&disk), dir.join("log"));
        let log = EngineLog::open(disk_of_log, &log_dir, options.of_log(), store, checkpoints)?;
        let log = Box::new(log);
        Ok(Self::on(
            Journal::Shared { log, within },
            disk,
            dir,
            options,
        )?)
    }

    /// The epoch under which this node writes; `None` for a standby, and for a ledger in files.
    pub fn epoch(&self) -> Option<u64> {
        match &self.log {
            Journal::Files(_) => None,
            Journal::Shared { log, .. } => log.epoch(),
        }
    }

    /// The newest head that the engine shows: its epoch, for a claim, and its holder. Provisional.
    pub fn log_head(&mut self, deadline: Deadline) -> Result<Head, CopyError> {
        Ok(self.shared_log()?.head(deadline)?)
    }

    /// Takes over what the holder has written; returns the number of new entries. They are decided again: a holder that decides
    /// otherwise is not followed.
    pub fn follow(&mut self, deadline: Deadline) -> Result<u64, CopyError> {
        self.shared_log()?.follow(deadline)?;
        self.learn()
    }

    /// Becomes the holder, when the epoch is `seen`. `known` are heads that a witness or an anchor has. A new log gets its first
    /// leaf, with the time `now`. After `Unknown` call it again with the same `seen`.
    pub fn claim(
        &mut self,
        seen: u64,
        known: &[Checkpoint],
        now: Timestamp,
        deadline: Deadline,
    ) -> Result<(), CopyError> {
        self.shared_log()?.claim(seen, known, deadline)?;
        self.learn()?;
        // Of a commit that was undecided, what there was of it has just come.
        self.undecided = None;
        if self.log.size() == 0 {
            let first = [genesis(now, &self.options.origin)];
            self.shared_log()?.append(&first, deadline)?;
        }
        Ok(())
    }

    /// Finds out what became of a commit that was [`CommitError::Undecided`].
    pub fn resolve(&mut self, deadline: Deadline) -> Result<Resolved, CommitError> {
        let Some(undecided) = self.undecided.take() else {
            return Ok(Resolved::Nothing);
        };
        let resolved = match &mut self.log {
            Journal::Files(_) => return Ok(Resolved::Nothing),
            Journal::Shared { log, .. } => log.resolve(deadline).map_err(of_engine),
        };
        match resolved {
            Ok(Some(_)) => {
                let (batch, committed) = *undecided;
                let (last, ts) = (batch.last_seq(), batch.ts);
                self.shared.apply(batch.delta, last, ts);
                Ok(Resolved::Done(committed))
            }
            Ok(None) => Ok(Resolved::NotDone),
            // The new holder's log has it or not; this node learns that when it follows.
            Err(CommitError::Standby) => Err(CommitError::Standby),
            Err(error) => {
                self.undecided = Some(undecided);
                Err(error)
            }
        }
    }

    fn shared_log(&mut self) -> Result<&mut EngineLog, CopyError> {
        match &mut self.log {
            Journal::Shared { log, .. } => Ok(log),
            Journal::Files(_) => Err(LogError::Store(StoreError::Fenced).into()),
        }
    }

    /// Decides the entries of the holder again that are in the copy and not in the books; also those that an earlier call has
    /// copied before it failed. Returns their number.
    fn learn(&mut self) -> Result<u64, CopyError> {
        let (from, end) = (self.shared.state(State::seq) + 1, self.log.size());
        let reader = self.log.reader();
        if from == 1 && end > 0 {
            check_genesis(&reader, &self.options.origin)?;
        }
        if end <= from {
            return Ok(0);
        }
        let mut replay = Replay::on(Followed(&self.shared));
        let read = |seq, leaf: &[u8], private: &[u8]| {
            let read = replay.leaf(seq, leaf, private);
            read.map(drop).map_err(EngineError::from)
        };
        reader.records(from..end, read)?;
        replay.decide().map_err(EngineError::from)?;
        Ok(end - from)
    }
}
