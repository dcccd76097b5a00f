//! A log whose batches an engine keeps ([`crate::store`]). Its directory is a copy: it serves entries, tiles and proofs, and is
//! not flushed on the way to an answer.
//!
//! ```text
//!  open ──> a standby ──follow──> batches that are final        claim ──> the holder ──append──> done, or nothing
//!                │                                                │                        └──> Unknown ──resolve──> done or not
//!                └── no root of its own: every batch must         └── the engine's head must extend all that this
//!                    continue the tree that the copy has              host knows to be acknowledged
//! ```
//!
//! **Invariant:** the copy has only batches that are final; it grows, and is never cut by what the engine says.
//! **Invariant:** an engine that is behind the copy, behind a signed head, or has another root there, has lost data: no batch is
//! written to it and no checkpoint is signed.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ron_kernel::Deadline;

use super::archiver::Archiver;
use super::checkpointer::{Checkpointer, EngineCheckpoints};
use super::errors::{AppendError, CheckpointError, OpenError, ReadError};
use super::frame;
use super::layout::Salt;
use super::log::{Encoded, Log, LogOptions, Record};
use super::reader::LogReader;
use crate::checkpoint::Checkpoint;
use crate::note::{NoteSignature, NoteSigner};
use crate::store::{
    Batch, Head, LogStore, Once, Place, Refusal, Repeat, StoreError, StoredBatch, Tail, Writer,
    check_extends,
};
use crate::tree::Hash;
use ron_files::Disk;

/// Bytes of batches that are read from the engine at a time.
const READ_BYTES: usize = 8 << 20;

/// Why a log that an engine keeps did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine's answer, with what it means for the log.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The copy in the directory failed. What the engine has done is done.
    #[error(transparent)]
    Copy(#[from] AppendError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] ReadError),
    /// This node has not claimed the log.
    #[error("this node is a standby of the log: the holder writes it")]
    Standby,
}

/// What became of an append with ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceAppended {
    /// Index of the first entry: all of the batch is in the log, and its ids are taken.
    Done(u64),
    /// These ids were in use, so nothing is in the log and no id was taken. The caller answers their requests from what is stored,
    /// and appends the others, at indexes of their own.
    Repeats(Vec<Repeat>),
}

/// An append without a known outcome.
#[derive(Debug)]
struct Pending {
    batch: Batch,
    encoded: Encoded,
}

/// A log in an engine, as one node has it. One thread owns it.
pub struct EngineLog {
    log: Log,
    /// Of the checksums of batches in the engine; the copy has its own.
    salt: Salt,
    store: Box<dyn LogStore>,
    tail: Tail,
    /// Heads that were acknowledged before this node opened the log.
    known: Vec<Checkpoint>,
    /// 0 for a standby; the checkpointer reads it.
    epoch: Arc<AtomicU64>,
    pending: Option<Pending>,
    read_bytes: usize,
}

impl std::fmt::Debug for EngineLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineLog")
            .field("log", &self.log)
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

fn lost(why: impl Into<String>) -> EngineError {
    StoreError::Lost(why.into()).into()
}

impl EngineLog {
    /// Opens the copy in `dir`, or begins one, as a standby. A copy with a fault is begun again: the engine has all of it. The two
    /// stores are sessions of one holder: one for batches, one for checkpoints, which another thread may publish
    /// ([`EngineLog::take_checkpointer`]).
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        store: Box<dyn LogStore>,
        checkpoints: Box<dyn LogStore>,
    ) -> Result<Self, EngineError> {
        let verifiers = options.verifiers.clone();
        let mut opened = Self::open_copy(disk, dir, options, store)?;
        if let Some(checkpointer) = &mut opened.log.checkpointer {
            checkpointer.engine = Some(EngineCheckpoints {
                store: checkpoints,
                epoch: Arc::clone(&opened.epoch),
                verifiers,
            });
        }
        Ok(opened)
    }

    /// The same without a session for checkpoints: they are signed here, and stay here.
    pub(super) fn open_copy(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        store: Box<dyn LogStore>,
    ) -> Result<Self, EngineError> {
        let salt = frame::salt_of(&options.origin);
        let known = options.known_heads.clone();
        let (log, seen) = Log::open_copy(disk, dir, options)?;
        Ok(Self {
            tail: Tail::after(log.size()),
            known: known.into_iter().chain(seen).collect(),
            log,
            salt,
            store,
            epoch: Arc::new(AtomicU64::new(0)),
            pending: None,
            read_bytes: READ_BYTES,
        })
    }

    /// Changes how many bytes of batches are read from the engine at a time; at least one batch is.
    #[must_use]
    pub fn reading(mut self, bytes: usize) -> Self {
        self.read_bytes = bytes;
        self
    }

    /// As [`Log::archiver`], of this node's copy.
    pub fn archiver(&self) -> Archiver {
        self.log.archiver()
    }

    /// A handle for readers: entries, tiles and proofs of what is final.
    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    /// Number of final entries.
    pub fn size(&self) -> u64 {
        self.log.size()
    }

    pub fn root(&self) -> Hash {
        self.log.root()
    }

    /// The epoch under which this node writes; `None` for a standby.
    pub fn epoch(&self) -> Option<u64> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        (epoch != 0).then_some(epoch)
    }

    fn set_epoch(&self, epoch: Option<u64>) {
        self.epoch.store(epoch.unwrap_or(0), Ordering::SeqCst);
    }

    /// Takes the right to publish checkpoints, for the thread that publishes them. `None` the second time.
    pub fn take_checkpointer(&mut self) -> Option<Checkpointer> {
        self.log.take_checkpointer()
    }

    /// Publishes a checkpoint, as long as the checkpointer was not taken.
    pub fn publish_checkpoint(
        &mut self,
        signer: &dyn NoteSigner,
    ) -> Result<Arc<str>, CheckpointError> {
        self.log.publish_checkpoint(signer)
    }

    /// Adds signatures to the published checkpoint, as long as the checkpointer was not taken.
    pub(super) fn add_signatures(
        &mut self,
        text: &str,
        lines: &[NoteSignature],
    ) -> Result<Arc<str>, CheckpointError> {
        self.log.add_signatures(text, lines)
    }

    /// True once the copy could not be written.
    pub fn poisoned(&self) -> bool {
        self.log.poisoned()
    }

    /// The newest head that the engine shows. Provisional. A holder that sees the claim of another node is a standby from then on,
    /// unless an append has no known outcome: [`EngineLog::resolve`] says that. Refused while a migration has the log, so that no
    /// node learns an epoch that it could claim.
    pub fn head(&mut self, deadline: Deadline) -> Result<Head, EngineError> {
        let head = self.store.head(deadline)?;
        let transit = head.transit().map(|transit| transit.to_string());
        #[cfg(mutant = "unfenced")] // a holder without work does not compare the epoch
        if ron_kernel::mutant("unfenced") {
            return Ok(head);
        }
        if self.pending.is_none() && self.epoch().is_some_and(|own| own < head.epoch) {
            self.set_epoch(None);
        }
        match transit {
            Some(why) => Err(StoreError::from(Refusal::Transit(why)).into()),
            None => Ok(head),
        }
    }

    /// Reads on as a standby. Returns the indexes of the entries that came; an empty range
    /// when the end is reached. `Lost` is an alarm: the engine is behind this node, or has another log.
    pub fn follow(&mut self, deadline: Deadline) -> Result<Range<u64>, EngineError> {
        let from = self.log.size();
        let store = &mut *self.store;
        let read = self.tail.follow(store, self.read_bytes, deadline)?;
        self.take(read)?;
        Ok(from..self.log.size())
    }

    /// Takes the log over from the holder of epoch `seen`, and reads what this node does not have yet. `known` are heads that a
    /// witness or an anchor has: the engine must extend them, and the newest checkpoint of this node. Returns the indexes of the
    /// entries that came.
    ///
    /// `Unknown`: call it again with the same `seen`.
    pub fn claim(
        &mut self,
        seen: u64,
        known: &[Checkpoint],
        deadline: Deadline,
    ) -> Result<Range<u64>, EngineError> {
        let from = self.log.size();
        let head = self.store.claim(seen, deadline)?;
        // What is read from now on was replicated before the claim, so that it is final.
        while self.log.size() < head.size {
            let mut read = self
                .store
                .read_from(self.log.size(), self.read_bytes, deadline)?;
            // What a later holder has added is provisional, and no part of what was claimed.
            read.retain(|stored| stored.batch.place.end() <= head.size);
            if read.is_empty() {
                let why = format!("it has {} entries and does not return them", head.size);
                return Err(lost(why));
            }
            self.take(read)?;
        }
        if let Err(error) = self.check(&head, known) {
            // The answer to a claim may be an old one: the claim waited for the standby, and meanwhile another holder has claimed
            // the log and written, which this node has read. Then nothing is lost.
            let is_lost = matches!(error, EngineError::Store(StoreError::Lost(_)));
            if is_lost && self.store.head(deadline)?.epoch != head.epoch {
                self.set_epoch(None);
                return Err(StoreError::Fenced.into());
            }
            return Err(error);
        }
        self.set_epoch(Some(head.epoch));
        self.pending = None;
        Ok(from..self.log.size())
    }

    /// Appends a batch and returns the index of its first entry. When this returns, all of it is durable on both hosts.
    ///
    /// `Refused`: nothing was changed. `Fenced`: another node holds the log; this one is a standby. `Unknown`: nothing of the batch
    /// may be answered; appends are refused until [`EngineLog::resolve`] has said what became of it.
    pub fn append<R: Record>(
        &mut self,
        records: &[R],
        deadline: Deadline,
    ) -> Result<u64, EngineError> {
        let first = self.log.size();
        // Without ids none is in use, so all of the batch is done.
        self.append_once(records, None, &[], deadline)?;
        Ok(first)
    }

    /// As [`EngineLog::append`], once for each id in `once`, across all logs of the engine, and only while the guard has `version`:
    /// [`LogStore::append_guarded`], whose outcome `Stale` says that nothing was changed and that the entries have to be decided again.
    ///
    /// The answers in `once` may name the indexes of the entries, which begin at [`EngineLog::size`]: either all of them are in the
    /// log, or none.
    pub fn append_once<R: Record>(
        &mut self,
        records: &[R],
        version: Option<u64>,
        once: &[Once],
        deadline: Deadline,
    ) -> Result<OnceAppended, EngineError> {
        let epoch = self.epoch().ok_or(EngineError::Standby)?;
        self.append_as(Writer::Owner { epoch }, records, version, once, deadline)
    }

    /// Which of these ids are in use; none is taken, and their answers are not looked at. `Stale` as for an append.
    pub fn find_once(
        &mut self,
        version: Option<u64>,
        once: &[Once],
        deadline: Deadline,
    ) -> Result<Vec<Repeat>, EngineError> {
        let epoch = self.epoch().ok_or(EngineError::Standby)?;
        let writer = Writer::Owner { epoch };
        // Without a batch nothing is appended, and so no id is taken either.
        let found = self
            .store
            .append_guarded(version, writer, once, &mut |_| None, deadline)?;
        Ok(found.repeats)
    }

    pub(super) fn append_as<R: Record>(
        &mut self,
        writer: Writer,
        records: &[R],
        version: Option<u64>,
        once: &[Once],
        deadline: Deadline,
    ) -> Result<OnceAppended, EngineError> {
        if self.is_unresolved() {
            return Err(StoreError::from(Refusal::Unresolved).into());
        }
        self.log.admit(records)?;
        let first = self.log.size();
        if records.is_empty() {
            return Ok(OnceAppended::Done(first));
        }
        let encoded = self.log.encode(records, &self.salt);
        let batch = Batch {
            place: Place {
                first,
                count: records.len() as u32,
                before: self.log.root(),
                root: encoded.root,
            },
            frame: std::mem::take(&mut self.log.buffer),
        };
        let done = self.store.append_guarded(
            version,
            writer,
            once,
            &mut |repeats| repeats.is_empty().then(|| batch.clone()),
            deadline,
        );
        match done {
            Ok(appended) if appended.place.is_none() => Ok(OnceAppended::Repeats(appended.repeats)),
            Ok(_) => {
                self.copy(encoded, batch)?;
                Ok(OnceAppended::Done(first))
            }
            Err(StoreError::Fenced) => {
                self.set_epoch(None);
                Err(StoreError::Fenced.into())
            }
            #[cfg(mutant = "undecided")] // acknowledged before it is known what became of it
            Err(StoreError::Unknown(_)) if ron_kernel::mutant("undecided") => {
                self.copy(encoded, batch)?;
                Ok(OnceAppended::Done(first))
            }
            Err(StoreError::Unknown(why)) => {
                self.pending = Some(Pending { batch, encoded });
                Err(StoreError::Unknown(why).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Finds out what became of an append that was unknown: the indexes of its entries when they are in the log, and `None` when
    /// they are not and never will be. Also `None` when no append is unknown.
    pub fn resolve(&mut self, deadline: Deadline) -> Result<Option<Range<u64>>, EngineError> {
        let epoch = self.epoch().ok_or(EngineError::Standby)?;
        self.resolve_as(Writer::Owner { epoch }, deadline)
    }

    /// Whether an append has no known outcome.
    pub(super) fn is_unresolved(&self) -> bool {
        self.pending.is_some()
    }

    pub(super) fn resolve_as(
        &mut self,
        writer: Writer,
        deadline: Deadline,
    ) -> Result<Option<Range<u64>>, EngineError> {
        let Some(pending) = &self.pending else {
            return Ok(None);
        };
        #[cfg(mutant = "reclaimed")] // with the newest epoch, whosever it is
        let writer = match ron_kernel::mutant("reclaimed") {
            true => Writer::Owner {
                epoch: self.store.head(deadline)?.epoch,
            },
            false => writer,
        };
        let resolved = self.store.resolve(writer, &[], &pending.batch, deadline);
        let resolution = match resolved {
            Ok(resolution) => resolution,
            Err(StoreError::Fenced) => {
                // The new holder alone knows whether the batch is in its log.
                self.set_epoch(None);
                self.pending = None;
                return Err(StoreError::Fenced.into());
            }
            Err(error) => return Err(error.into()),
        };
        if matches!(writer, Writer::Owner { .. }) {
            self.set_epoch(Some(resolution.head.epoch));
        }
        #[cfg(mutant = "guessed")] // what was not acknowledged is not there
        let resolution = match ron_kernel::mutant("guessed") {
            true => crate::store::Resolution {
                done: false,
                ..resolution
            },
            false => resolution,
        };
        let Some(pending) = self.pending.take().filter(|_| resolution.done) else {
            return Ok(None);
        };
        let Pending { batch, encoded } = pending;
        let place = batch.place;
        self.copy(encoded, batch)?;
        Ok(Some(place.first..place.end()))
    }

    /// Adds final batches of the engine to the copy.
    fn take(&mut self, read: Vec<StoredBatch>) -> Result<(), EngineError> {
        for stored in read {
            let encoded = self.decode(&stored.batch)?;
            self.copy(encoded, stored.batch)?;
        }
        Ok(())
    }

    /// Writes a batch that is final to the copy, and shows it to readers.
    fn copy(&mut self, encoded: Encoded, mut batch: Batch) -> Result<(), EngineError> {
        let salt = &self.log.shared.meta.salt;
        frame::reseal(&mut batch.frame, batch.place.first, salt);
        self.log.copy_batch(encoded, &batch.frame)?;
        self.tail = Tail::after(self.log.size());
        Ok(())
    }

    /// Checks that a batch of the engine is whole and continues this tree.
    fn decode(&self, batch: &Batch) -> Result<Encoded, EngineError> {
        let place = &batch.place;
        let first = self.log.size();
        if (place.first, place.before) != (first, self.log.root()) {
            return Err(lost(format!(
                "its batch at entry {} does not continue the {first} entries that this node has",
                place.first
            )));
        }
        let begin = self.log.begin(place.count as usize);
        Ok(frame::decode(batch, &self.salt, begin)?)
    }

    /// A replicated write: what this node has read before is final.
    pub(super) fn confirm(&mut self, deadline: Deadline) -> Result<(), EngineError> {
        Ok(self.store.confirm(deadline)?)
    }

    /// Compares the engine's head with all that is known to be acknowledged.
    pub(super) fn check(&self, head: &Head, known: &[Checkpoint]) -> Result<(), EngineError> {
        let reader = self.log.reader();
        let own = reader.checkpoint_head();
        let known = known.iter().chain(&self.known).chain(&own);
        let mut heads = vec![(self.log.size(), self.log.root())];
        heads.extend(known.map(|c| (c.size, c.root)));
        let mut failed = None;
        let root_at = |size: u64| {
            if size == head.size {
                return Some(head.root);
            }
            reader.root_at(size).map_err(|e| failed = Some(e)).ok()
        };
        let checked = check_extends(head, &heads, root_at);
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(checked?),
        }
    }
}
