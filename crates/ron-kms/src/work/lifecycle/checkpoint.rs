//! Checkpoints of `note` keys: remembered in the store before they are signed, so that a key never signs two
//! checkpoints of which neither extends the other, also across a crash.

use ron_custody::index::Key;
use ron_custody::keys::note::Checkpoint;
use ron_custody::store::StoreError;
use ron_custody::{Cause, Refusal};
use ron_kernel::{Credit, Deadline};
use ron_proto::values::Kid;

use super::recover::{ChangeError, MOVES_MAX, moved};
use super::{Lifecycle, store_down};
use crate::audit::entry::Items;
use crate::work::operation::{CheckpointGate, Stop};
use crate::work::{Kms, SignJob};

impl Lifecycle {
    /// Signs a checkpoint after remembering it.
    pub(super) fn checkpoint(&mut self, job: SignJob, credits: Items<Credit>) {
        let kms = self.kms.clone();
        let mut gate = Remember { lifecycle: self };
        job.what.run(&kms, job.call, &mut gate, credits);
    }

    /// Remembers a checkpoint in the store, or refuses it when it does not extend the last one.
    pub(super) fn remember(&mut self, kid: &Kid, to: &Checkpoint) -> Result<(), Refusal> {
        if self.stopped {
            return Err(store_down());
        }
        for _ in 0..MOVES_MAX {
            match self.try_remember(kid, to) {
                Err(ChangeError::Moved) => self.read_again()?,
                done => return Ok(done?),
            }
        }
        Err(moved())
    }

    fn try_remember(&mut self, kid: &Kid, to: &Checkpoint) -> Result<(), ChangeError> {
        let before = self.store.note_head(kid);
        if before.as_ref() == Some(to) {
            return Ok(());
        }
        if before.is_some_and(|last| !last.may_be_followed_by(to)) {
            return Err(Refusal::new(
                Cause::CheckpointRefused,
                "this key has signed a checkpoint that this one does not extend",
            )
            .into());
        }
        self.store.advance_note(kid, to).map_err(|e| match e {
            StoreError::Moved => ChangeError::Moved,
            e => self.store_failed(&e).into(),
        })
    }
}

/// Remembers a checkpoint in the store, or refuses it when it does not extend the last one.
struct Remember<'a> {
    lifecycle: &'a mut Lifecycle,
}

impl CheckpointGate for Remember<'_> {
    fn pass(
        &mut self,
        _: &Kms,
        key: &Key,
        to: &Checkpoint,
        _: Deadline,
    ) -> Result<Option<u64>, Stop> {
        self.lifecycle.remember(&key.kid, to)?;
        Ok(Some(self.lifecycle.store.version()))
    }
}
