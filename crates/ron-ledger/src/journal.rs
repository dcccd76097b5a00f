//! The log behind the books: files of this host, or an engine that two hosts share, with a copy here.

use std::time::Duration;

use ron_kernel::Deadline;
use ron_tlog::append::{Archiver, EngineError as LogError, EngineLog};
use ron_tlog::store::StoreError;
use ron_tlog::{AppendError, Checkpointer, Hash, Log, LogReader};

use crate::core::{Broken, Record};
use crate::errors::CommitError;

/// Where leaves become durable.
#[derive(Debug)]
pub(crate) enum Journal {
    Files(Box<Log>),
    Shared {
        log: Box<EngineLog>,
        /// Maximum time for one append.
        within: Duration,
    },
}

impl Journal {
    pub fn size(&self) -> u64 {
        match self {
            Self::Files(log) => log.size(),
            Self::Shared { log, .. } => log.size(),
        }
    }

    pub fn root(&self) -> Hash {
        match self {
            Self::Files(log) => log.root(),
            Self::Shared { log, .. } => log.root(),
        }
    }

    pub fn reader(&self) -> LogReader {
        match self {
            Self::Files(log) => log.reader(),
            Self::Shared { log, .. } => log.reader(),
        }
    }

    pub fn archiver(&self) -> Archiver {
        match self {
            Self::Files(log) => log.archiver(),
            Self::Shared { log, .. } => log.archiver(),
        }
    }

    pub fn poisoned(&self) -> bool {
        match self {
            Self::Files(log) => log.poisoned(),
            Self::Shared { log, .. } => log.poisoned(),
        }
    }

    pub fn take_checkpointer(&mut self) -> Option<Checkpointer> {
        match self {
            Self::Files(log) => log.take_checkpointer(),
            Self::Shared { log, .. } => log.take_checkpointer(),
        }
    }

    /// Appends the leaves of one decision, all or none, and returns the sequence of the first.
    pub fn append(&mut self, records: &[Record]) -> Result<u64, CommitError> {
        match self {
            Self::Files(log) => log.append(records).map_err(of_disk),
            Self::Shared { log, within } => log
                .append(records, Deadline::within(*within))
                .map_err(of_engine),
        }
    }
}

fn of_disk(error: AppendError) -> CommitError {
    match error {
        AppendError::Poisoned => CommitError::Poisoned,
        AppendError::EntryTooLarge { .. } | AppendError::BatchTooLarge { .. } => {
            CommitError::Broken(Broken(format!("the batch does not fit the log: {error}")))
        }
        error => CommitError::Unknown(error),
    }
}

/// What an outcome of the engine means for a commit.
pub(crate) fn of_engine(error: LogError) -> CommitError {
    match error {
        LogError::Copy(error) => of_disk(error),
        LogError::Standby | LogError::Store(StoreError::Fenced) => CommitError::Standby,
        LogError::Store(StoreError::Unknown(why)) => CommitError::Undecided(why),
        LogError::Store(error @ (StoreError::Lost(_) | StoreError::Damaged(_))) => {
            CommitError::Lost(error.to_string())
        }
        error => CommitError::Unavailable(error.to_string()),
    }
}
