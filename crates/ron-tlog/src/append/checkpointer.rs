//! Publishes checkpoints: signs the durable head, stores the note atomically, then shows it to
//! readers. It has one owner, on any thread.

use std::sync::Arc;

use super::errors::CheckpointError;
use super::reader::LogReader;
use super::state::{Published, Shared};
use crate::checkpoint::Checkpoint;
use crate::note::{Note, NoteSignature, NoteSigner, SignFailed, VerifierKey};
use ron_files::{DiskLock, write_atomic};

pub(crate) const CHECKPOINT_NAME: &str = "checkpoint";

/// The right to publish checkpoints of one log.
#[derive(Debug)]
pub struct Checkpointer {
    pub(crate) shared: Arc<Shared>,
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

    /// Takes over a checkpoint that another node of the log has signed, when this tree has its root.
    pub(crate) fn adopt(
        &mut self,
        text: &str,
        verifiers: &[VerifierKey],
    ) -> Result<(), CheckpointError> {
        let origin = Some(self.shared.meta.origin.as_str());
        let read = match verifiers {
            [] => Checkpoint::read_unverified(text, origin),
            keys => Checkpoint::open(text, keys, origin),
        };
        let foreign = |why: String| CheckpointError::Foreign(why);
        let checkpoint = read.map_err(|fault| foreign(fault.to_string()))?;
        let root = LogReader(Arc::clone(&self.shared)).root_at(checkpoint.size);
        let root = root.map_err(|e| foreign(e.to_string()))?;
        if root != checkpoint.root {
            return Err(foreign(format!(
                "it has another root at {} entries",
                checkpoint.size
            )));
        }
        self.store(checkpoint, text.to_owned()).map(drop)
    }

    /// Signs the durable head without storing the note; `None` when the published checkpoint is that of the head.
    pub(crate) fn sign(
        &self,
        signers: &[&dyn NoteSigner],
    ) -> Result<Option<(Checkpoint, String)>, CheckpointError> {
        let checkpoint = self.shared.tree.with(|t| Checkpoint {
            origin: self.shared.meta.origin.clone(),
            size: t.size,
            root: t.root,
        });
        let last = self.shared.published.load();
        if last
            .as_ref()
            .as_ref()
            .is_some_and(|p| p.checkpoint == checkpoint)
        {
            return Ok(None);
        }
        let text = checkpoint.sign(signers)?;
        Ok(Some((checkpoint, text)))
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
        let text = sign(&checkpoint)?;
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
        self.store(last.checkpoint.clone(), note.to_string())
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
