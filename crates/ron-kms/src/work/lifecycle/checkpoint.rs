//! Checkpoints of `note` keys: remembered in the store before they are signed, so that a key never signs two
//! checkpoints of which neither extends the other, also across a crash.

use ron_custody::index::Key;
use ron_custody::keys::note;
use ron_kernel::{Credit, Deadline};

use super::Lifecycle;
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
        to: &note::Checkpoint,
        _: Deadline,
    ) -> Result<Option<u64>, Stop> {
        self.lifecycle.remember(&key.kid, to)?;
        Ok(Some(self.lifecycle.store.version()))
    }
}
