//! A log that several nodes write at once, whose batches an engine keeps ([`crate::store`], [`Writer::Shared`]). Each node has a
//! copy of it, as [`EngineLog`] has.
//!
//! ```text
//!  append ──> the engine compares size and root ──┬─> done
//!                                                 ├─> Moved     another was first ──> refresh ──> make it again
//!                                                 └─> Unknown   the same batch again: its place is compared ──> done or not
//! ```
//!
//! **Invariant:** the copy has only batches that are final, and checkpoints are signed for what the copy has.
//! **Invariant:** after [`SharedLog::refresh`] the copy has all that was acknowledged to any node before the call.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ron_files::Disk;
use ron_kernel::Deadline;

use super::archiver::Archiver;
use super::engine_log::{EngineError, EngineLog};
use super::errors::CheckpointError;
use super::log::{LogOptions, Record};
use super::reader::LogReader;
use crate::note::{NoteSignature, NoteSigner};
use crate::store::{Head, LogStore, Refusal, StoreError, Writer};
use crate::tree::Hash;

/// A log in an engine that other nodes write too. One thread owns it.
#[derive(Debug)]
pub struct SharedLog {
    log: EngineLog,
    /// Whether the engine was found to extend all that this node knows to be acknowledged.
    checked: bool,
}

impl SharedLog {
    /// Opens the copy in `dir`, or begins one. Nothing is asked of the engine before the first call. All nodes sign checkpoints
    /// with one key, so that of one size they have the same.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        store: Box<dyn LogStore>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            log: EngineLog::open_copy(disk, dir, options, store)?,
            checked: false,
        })
    }

    /// Changes how many bytes of batches are read from the engine at a time; at least one batch is.
    #[must_use]
    pub fn reading(self, bytes: usize) -> Self {
        Self {
            log: self.log.reading(bytes),
            ..self
        }
    }

    /// As [`super::Log::archiver`], of this node's copy.
    pub fn archiver(&self) -> Archiver {
        self.log.archiver()
    }

    /// A handle for readers: entries, tiles and proofs of what is final.
    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    /// Number of final entries that this node has.
    pub fn size(&self) -> u64 {
        self.log.size()
    }

    pub fn root(&self) -> Hash {
        self.log.root()
    }

    /// True once the copy could not be written.
    pub fn poisoned(&self) -> bool {
        self.log.poisoned()
    }

    /// Signs and publishes the head of what this node has. `NoneYet` before the engine was found to extend what was signed before.
    pub fn publish_checkpoint(
        &mut self,
        signer: &dyn NoteSigner,
    ) -> Result<Arc<str>, CheckpointError> {
        if !self.checked {
            return Err(CheckpointError::NoneYet);
        }
        self.log.publish_checkpoint(signer)
    }

    /// Adds signatures, such as those of witnesses, to the published checkpoint `text`. They stay with this node.
    pub fn add_signatures(
        &mut self,
        text: &str,
        lines: &[NoteSignature],
    ) -> Result<Arc<str>, CheckpointError> {
        self.log.add_signatures(text, lines)
    }

    /// Finds out what became of an append without a known outcome, reads on to the end, and makes sure by a write that it is the
    /// end. Returns the indexes of the entries that came. What came before an error is kept.
    ///
    /// `Lost` is an alarm: the engine is behind this node, or has another log.
    pub fn refresh(&mut self, deadline: Deadline) -> Result<Range<u64>, EngineError> {
        let from = self.size();
        self.resolve(deadline)?;
        let mut head = self.log.head(deadline)?;
        if self.is_ahead_of(&head) {
            // Perhaps read from a server that is the primary no more, which a write finds out.
            self.log.confirm(deadline)?;
            head = self.log.head(deadline)?;
            if self.is_ahead_of(&head) {
                let why = format!(
                    "it has {} entries, and {} of this node are final or of another log",
                    head.size,
                    self.size()
                );
                return Err(StoreError::Lost(why).into());
            }
        }
        while !self.log.follow(deadline)?.is_empty() {}
        if !self.checked {
            // Other nodes may have gone on since the head was read, and all that was followed is final.
            let (size, root) = (self.size(), self.root());
            self.log.check(&Head { size, root, ..head }, &[])?;
        }
        // That nothing follows was read from a server that may have lost its standby, and with it its part.
        self.log.confirm(deadline)?;
        self.checked = true;
        Ok(from..self.size())
    }

    /// Whether this node has entries that a head does not have.
    fn is_ahead_of(&self, head: &Head) -> bool {
        head.size < self.size() || (head.size == self.size() && head.root != self.root())
    }

    /// Appends a batch behind what this node has, and returns the index of its first entry.
    ///
    /// `Refused`: nothing was changed. `Moved`: nothing was changed, because another node was first; call [`SharedLog::refresh`], and
    /// make the batch again. `Unknown`: nothing of the batch may be answered; appends are refused until [`SharedLog::resolve`] or
    /// [`SharedLog::refresh`] has said what became of it.
    pub fn append<R: Record>(
        &mut self,
        records: &[R],
        deadline: Deadline,
    ) -> Result<u64, EngineError> {
        if !self.checked {
            let why = "the end of the log was not read yet".to_owned();
            return Err(StoreError::from(Refusal::Unavailable(why)).into());
        }
        let first = self.log.size();
        // Without ids none is in use, so all of the batch is done.
        self.log
            .append_as(Writer::Shared, records, None, &[], deadline)?;
        Ok(first)
    }

    /// Appends what `make` makes of the log, until the deadline, and returns its indexes. `make` gets the indexes of the entries that came since it
    /// was called last; it is called again when other nodes were first, and gives nothing to give up.
    ///
    /// Errors are those of [`SharedLog::append`]; `Moved` when other nodes were first until the deadline.
    pub fn append_by<R: Record>(
        &mut self,
        make: &mut dyn FnMut(Range<u64>) -> Vec<R>,
        deadline: Deadline,
    ) -> Result<Range<u64>, EngineError> {
        let mut came = self.size()..self.size();
        loop {
            let records = make(came);
            let from = self.size();
            match self.append(&records, deadline) {
                Ok(first) => return Ok(first..first + records.len() as u64),
                Err(EngineError::Store(StoreError::Moved)) => {}
                Err(EngineError::Store(StoreError::Unknown(why))) => {
                    if let Some(done) = self.resolve_by(deadline, why)? {
                        return Ok(done);
                    }
                }
                Err(error) => return Err(error),
            }
            if deadline.expired() {
                return Err(StoreError::Moved.into());
            }
            // Nothing of it is in the log, whatever becomes of the write that makes final what was read.
            self.refresh(deadline).map_err(|error| match error {
                EngineError::Store(StoreError::Unknown(why)) => {
                    StoreError::from(Refusal::Unavailable(why)).into()
                }
                error => error,
            })?;
            came = from..self.size();
        }
    }

    /// Finds out what became of an append that was unknown: the indexes of its entries when they are in the log, and `None` when
    /// they are not and never will be. Also `None` when no append is unknown.
    pub fn resolve(&mut self, deadline: Deadline) -> Result<Option<Range<u64>>, EngineError> {
        self.log.resolve_as(Writer::Shared, deadline)
    }

    /// The same, tried until the deadline. `why` the outcome is unknown is the answer when it stays so.
    fn resolve_by(
        &mut self,
        deadline: Deadline,
        why: String,
    ) -> Result<Option<Range<u64>>, EngineError> {
        while !deadline.expired() {
            match self.resolve(deadline) {
                Err(EngineError::Store(StoreError::Unknown(_))) => {}
                Err(EngineError::Store(StoreError::Refused(_))) => break,
                outcome => return outcome,
            }
        }
        Err(StoreError::Unknown(why).into())
    }
}
