//! Publishes checkpoints: signs the durable head, stores the note atomically, then shows it to
//! readers. It has one owner, on any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_kernel::Deadline;

use super::errors::CheckpointError;
use super::reader::LogReader;
use super::state::{Published, Shared};
use crate::checkpoint::Checkpoint;
use crate::note::{Note, NoteSignature, NoteSigner, SignFailed, VerifierKey};
use crate::store::{LogStore, StoreError, Writer};
use ron_files::{DiskLock, write_atomic};

pub(crate) const CHECKPOINT_NAME: &str = "checkpoint";
/// Maximum time for each call to the engine that keeps a checkpoint.
const ENGINE_WITHIN: Duration = Duration::from_secs(5);

/// The checkpoints of a log that an engine keeps, through a session of their own: the writer's may wait for the engine's standby.
pub(crate) struct EngineCheckpoints {
    pub store: Box<dyn LogStore>,
    /// The epoch under which this node writes; 0 for a standby.
    pub epoch: Arc<AtomicU64>,
    pub verifiers: Vec<VerifierKey>,
}

impl std::fmt::Debug for EngineCheckpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineCheckpoints")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl EngineCheckpoints {
    fn deadline() -> Deadline {
        Deadline::within(ENGINE_WITHIN)
    }

    /// For a standby the newest checkpoint of the engine. `None` for the holder, which may sign `next`: the engine has this head,
    /// or a later one.
    fn newest(
        &mut self,
        shared: &Arc<Shared>,
        next: &Checkpoint,
    ) -> Result<Option<(Checkpoint, String)>, CheckpointError> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        if epoch != 0 {
            let head = self.store.head(Self::deadline())?;
            let behind =
                head.size < next.size || (head.size == next.size && head.root != next.root);
            if behind && head.epoch == epoch {
                let why = format!(
                    "it has {} entries, and {} are acknowledged",
                    head.size, next.size
                );
                return Err(StoreError::Lost(why).into());
            }
            if head.epoch == epoch {
                return Ok(None);
            }
        }
        let newest = self.store.checkpoint(Self::deadline())?;
        let (size, text) = newest.ok_or(CheckpointError::NoneYet)?;
        if size > shared.tree.with(|t| t.size) {
            // The entries come with what this node reads next.
            return Err(CheckpointError::NoneYet);
        }
        if size < shared.published_size() {
            // What is published is evidence: it is not taken back for what another node has signed before.
            return Err(CheckpointError::NoneYet);
        }
        let origin = Some(shared.meta.origin.as_str());
        let read = match &self.verifiers[..] {
            [] => Checkpoint::read_unverified(&text, origin),
            keys => Checkpoint::open(&text, keys, origin),
        };
        let checkpoint = read.map_err(|fault| CheckpointError::Foreign(fault.to_string()))?;
        let root = LogReader(Arc::clone(shared)).root_at(checkpoint.size);
        let root = root.map_err(|e| CheckpointError::Foreign(e.to_string()))?;
        if root != checkpoint.root {
            let why = format!("its root at {} entries is another", checkpoint.size);
            return Err(CheckpointError::Foreign(why));
        }
        Ok(Some((checkpoint, text)))
    }

    fn put(&mut self, size: u64, note: &str) -> Result<(), CheckpointError> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let writer = Writer::Owner { epoch };
        Ok(self
            .store
            .put_checkpoint(writer, size, note, Self::deadline())?)
    }
}

/// The right to publish checkpoints of one log.
#[derive(Debug)]
pub struct Checkpointer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Option<EngineCheckpoints>,
    /// Excludes other processes for as long as checkpoints may be written.
    pub(crate) _lock: Arc<dyn DiskLock>,
}

impl Checkpointer {
    /// Number of durable entries that the published checkpoint does not cover.
    pub fn uncovered(&self) -> u64 {
        let covered = self.shared.published_size();
        self.shared.tree.with(|t| t.size) - covered
    }

    /// Signs the durable head with all `signers`, stores and publishes it; returns the note. When
    /// nothing was appended since the last checkpoint, returns that one and signs nothing. On an
    /// error the last checkpoint stays published.
    ///
    /// Of a log in an engine, the holder also gives the note to the engine, before it is published; a standby signs nothing and
    /// takes over the newest note that the engine has.
    pub fn publish(&mut self, signers: &[&dyn NoteSigner]) -> Result<Arc<str>, CheckpointError> {
        self.publish_with(|checkpoint| checkpoint.sign(signers))
    }

    /// As [`Checkpointer::publish`], with signers that are fetched after the head was read: when a
    /// key is added before an entry is appended, every checkpoint that covers the entry is signed
    /// by that key.
    pub fn publish_by(
        &mut self,
        signers: impl FnOnce() -> Result<Vec<Box<dyn NoteSigner>>, SignFailed>,
    ) -> Result<Arc<str>, CheckpointError> {
        self.publish_with(|checkpoint| {
            let signers = signers()?;
            let all: Vec<&dyn NoteSigner> = signers.iter().map(AsRef::as_ref).collect();
            checkpoint.sign(&all)
        })
    }

    fn publish_with(
        &mut self,
        sign: impl FnOnce(&Checkpoint) -> Result<String, SignFailed>,
    ) -> Result<Arc<str>, CheckpointError> {
        if self.shared.is_poisoned() {
            return Err(CheckpointError::Poisoned);
        }
        // Size and root from one load of the snapshot: the writer may replace it between two.
        let checkpoint = self.shared.tree.with(|t| Checkpoint {
            origin: self.shared.meta.origin.clone(),
            size: t.size,
            root: t.root,
        });
        #[cfg(mutant = "head")] // size and root of two moments
        let checkpoint = if ron_kernel::mutant("head") {
            let size = self.shared.tree.with(|t| t.size);
            let root = self.shared.tree.with(|t| t.root);
            Checkpoint {
                size,
                root,
                ..checkpoint
            }
        } else {
            checkpoint
        };
        let last = self.shared.published.load();
        if let Some(last) = last
            .as_ref()
            .as_ref()
            .filter(|p| p.checkpoint == checkpoint)
        {
            return Ok(Arc::clone(&last.text));
        }
        if let Some(engine) = &mut self.engine {
            let newest = engine.newest(&self.shared, &checkpoint)?;
            if let Some((checkpoint, text)) = newest {
                return self.store(checkpoint, text);
            }
        }
        let text = sign(&checkpoint)?;
        if let Some(engine) = &mut self.engine {
            engine.put(checkpoint.size, &text)?;
        }
        self.store(checkpoint, text)
    }

    /// Adds signatures (of witnesses, or of further keys) to the published checkpoint `text` for
    /// which they were made. A line of a key that already signed replaces the old one. The
    /// signatures are not checked here.
    pub fn add_signatures(
        &mut self,
        text: &str,
        lines: &[NoteSignature],
    ) -> Result<Arc<str>, CheckpointError> {
        if self.shared.is_poisoned() {
            return Err(CheckpointError::Poisoned);
        }
        let last = self.shared.published.load();
        let last = last
            .as_ref()
            .as_ref()
            .filter(|p| *p.text == *text)
            .ok_or(CheckpointError::Superseded)?;
        let mut note = Note::parse(text).map_err(|_| CheckpointError::Superseded)?;
        for line in lines {
            note.signatures
                .retain(|s| (&s.name, s.key_id) != (&line.name, line.key_id));
            note.signatures.push(line.clone());
        }
        let note = note.to_string();
        if let Some(engine) = &mut self.engine {
            if engine.epoch.load(Ordering::SeqCst) == 0 {
                // A standby shows the notes of the holder, which has cosignatures of its own added.
                return Err(CheckpointError::Superseded);
            }
            engine.put(last.checkpoint.size, &note)?;
        }
        self.store(last.checkpoint.clone(), note)
    }

    pub(crate) fn store(
        &self,
        checkpoint: Checkpoint,
        text: String,
    ) -> Result<Arc<str>, CheckpointError> {
        let shared = &self.shared;
        if let Err(e) = write_atomic(&*shared.disk, &shared.dir, CHECKPOINT_NAME, text.as_bytes()) {
            shared.poison_by("writing the checkpoint", &e);
            return Err(CheckpointError::Io(e));
        }
        // Durable first, visible second: a reader must never see a checkpoint that a crash takes
        // back.
        let text: Arc<str> = text.into();
        shared.published.store(Some(Published {
            text: Arc::clone(&text),
            checkpoint,
        }));
        Ok(text)
    }
}
