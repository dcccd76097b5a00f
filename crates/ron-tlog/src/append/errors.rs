//! The errors of a log, one type per phase. Each text says what to do next.

use std::io;
use std::path::PathBuf;

use crate::checkpoint::CheckpointFault;
use crate::note::SignFailed;
use crate::store::StoreError;

/// A log could not be opened. No entry was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Another process (or this one) has the log open for writing.
    #[error("the log in {} is in use: another process writes it; stop that one first", .0.display())]
    InUse(PathBuf),
    /// A file is of a newer format.
    #[error("{file} is of format {found}, this program knows up to {known}: use a newer program")]
    NewerFormat {
        file: String,
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// The directory belongs to another log.
    #[error(
        "the directory holds the log `{found}`, not `{wanted}`: check the configured directory and origin"
    )]
    Origin {
        /// Origin in the directory.
        found: String,
        wanted: String,
    },
    /// The checkpoint cannot be trusted.
    #[error(
        "the stored checkpoint is not acceptable ({0}): restore the log from a good copy, or pin the right verifier key"
    )]
    Checkpoint(#[from] CheckpointFault),
    /// An entry or file was changed, lost or removed.
    #[error(
        "the log is damaged at entry {index}: {why}; nothing is written to it; verify it offline and restore it from a good copy"
    )]
    Damaged {
        /// First damaged entry, as far as it can be determined.
        index: u64,
        why: String,
    },
    /// A change was refused; nothing was written.
    #[error("nothing was changed: {0}")]
    Refused(String),
    /// An option is out of range.
    #[error("{0}")]
    Options(&'static str),
}

impl OpenError {
    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

/// Why a log was closed for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFailure {
    /// The kind of the disk's error.
    pub kind: io::ErrorKind,
    /// What failed and how.
    pub text: String,
}

impl WriteFailure {
    /// True when there was no room on the disk, or no more for this user.
    pub const fn no_room(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.kind, StorageFull | QuotaExceeded)
    }
}

/// A batch was not appended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// An entry is longer than the log allows; nothing was written.
    #[error("entry {at} of the batch has {bytes} bytes, the log admits {most}")]
    EntryTooLarge {
        /// Its position in the batch.
        at: usize,
        bytes: usize,
        /// The maximum in bytes.
        most: usize,
    },
    /// The batch as a whole is too long; nothing was written. Split it.
    #[error("the batch has {bytes} bytes, at most {most} can be made durable at once")]
    BatchTooLarge {
        bytes: usize,
        /// The maximum in bytes.
        most: usize,
    },
    /// The disk failed. Whether the entries are in the log is unknown until it is opened again;
    /// none may be acknowledged.
    #[error("{what} failed: {source}; the log is closed for writing until it is opened again")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    /// An earlier write failed; nothing was written.
    #[error("the log is closed for writing since an earlier write failed; open it again")]
    Poisoned,
}

/// A segment was not archived; it stays as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The archive's disk did not keep what was written.
    #[error("{} was read back and is not the segment that was written: check the disk of the archive", .0.display())]
    ReadBack(PathBuf),
}

impl ArchiveError {
    pub(crate) fn io(path: &std::path::Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// A checkpoint was not published; the last one stays published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The key could not sign; retry later.
    #[error(transparent)]
    Sign(#[from] SignFailed),
    /// The disk failed; the log is closed for writing.
    #[error(
        "writing the checkpoint failed: {0}; the log is closed for writing until it is opened again"
    )]
    Io(io::Error),
    /// An earlier write failed.
    #[error("the log is closed for writing since an earlier write failed; open it again")]
    Poisoned,
    /// The checkpointer was taken with `take_checkpointer`.
    #[error("checkpoints of this log are published by its checkpointer, which was handed out")]
    HandedOut,
    /// The engine that keeps the log did not take the checkpoint, or could not be read.
    #[error("the checkpoint is not in the engine: {0}")]
    Engine(#[from] StoreError),
    /// A standby has no checkpoint to show: the holder has signed none yet that covers what this node has.
    #[error("the holder of the log has not signed what this node has yet")]
    NoneYet,
    /// The checkpoint of another node of the log does not fit this copy.
    #[error("the checkpoint that the engine has is not one of this log: {0}")]
    Foreign(String),
    /// The signatures to be added do not fit the checkpoint that is published now.
    #[error("the signatures belong to another checkpoint than the published one")]
    Superseded,
}

/// An entry, tile or bundle could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such entry (yet).
    #[error("entry {index} is not in the log, which has {size}")]
    NotFound { index: u64, size: u64 },
    #[error("reading entry {index}: {source}")]
    Io {
        /// The entry that was being read.
        index: u64,
        source: io::Error,
    },
    /// The stored bytes are not those that were appended.
    #[error("the log is damaged at entry {index}: {why}; verify it offline")]
    Damaged {
        /// First entry known to be affected.
        index: u64,
        why: String,
    },
}

/// A proof could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The entry is durable, but no checkpoint covers it yet. Retry after the next checkpoint.
    #[error("entry {index} is not covered by a checkpoint yet ({covered} are)")]
    NotYetCovered {
        index: u64,
        /// Size of the last checkpoint.
        covered: u64,
    },
    /// There is no such entry.
    #[error("entry {index} is not in the log, which has {size}")]
    NotFound { index: u64, size: u64 },
    /// The hashes could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The offline check failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", index.map_or(String::new(), |i| format!("entry {i}: ")))]
pub struct VerifyError {
    /// First bad entry; `None` when no entry is the cause (no checkpoint, wrong key, unreadable
    /// directory).
    pub index: Option<u64>,
    pub why: String,
}

impl VerifyError {
    pub(crate) fn at(index: u64, why: impl Into<String>) -> Self {
        Self {
            index: Some(index),
            why: why.into(),
        }
    }

    pub(crate) fn whole(why: impl Into<String>) -> Self {
        Self {
            index: None,
            why: why.into(),
        }
    }
}
