//! Why a ledger does not open, and why a batch is not committed.

use std::io;

use ron_tlog::{AppendError, OpenError, ReadError};

use crate::core::Broken;
use crate::replay::ReplayError;

/// Why a ledger does not open.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the ledger's log: {0}")]
    Log(#[from] OpenError),
    #[error("reading the ledger's log: {0}")]
    Read(#[from] ReadError),
    #[error("writing the ledger's first leaf: {0}")]
    Genesis(#[from] AppendError),
    #[error("the ledger's data directory: {0}")]
    Io(#[from] io::Error),
    /// An entry contradicts the ones before it.
    #[error(
        "the ledger does not open: {0}; check it with the offline verification and restore a backup"
    )]
    Replay(#[from] ReplayError),
    /// The log has a different origin, or is not a ledger's.
    #[error("the ledger does not open: {0}")]
    Foreign(String),
}

/// Why a batch was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The write failed midway: only reopening the log shows whether the batch is in it.
    #[error("the outcome is not known: {0}")]
    Unknown(AppendError),
    /// The log's engine has not said yet whether the batch is in it. [`crate::engine::Engine::resolve`] finds out; until then nothing else is
    /// committed.
    #[error("the outcome is not known yet: {0}")]
    Undecided(String),
    /// The log's engine is away or not safe to write to; nothing was done.
    #[error("nothing was done: {0}")]
    Unavailable(String),
    /// Another node holds the log; nothing was done here.
    #[error("this node is a standby of the ledger")]
    Standby,
    /// The log's engine lost or changed what it had acknowledged; nothing is written.
    #[error("{0}")]
    Lost(String),
    /// An earlier write failed; nothing was done.
    #[error("the ledger is closed for writing since a write failed; it must be restarted")]
    Poisoned,
    /// The key index could not be read; nothing was done.
    #[error("the key index cannot be read: {0}")]
    Keys(io::Error),
    /// The result would break an invariant; nothing was done, and the ledger stops.
    #[error(transparent)]
    Broken(#[from] Broken),
}
