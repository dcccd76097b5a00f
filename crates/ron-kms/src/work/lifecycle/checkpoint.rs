//! Checkpoints of `note` keys: remembered in the store before they are signed, so that a key never signs two
//! checkpoints of which neither extends the other, also across a crash.

use ron_kernel::Credit;

use super::Lifecycle;
use crate::error::{Refusal, Why};
use crate::index::Key;
use crate::keys::note;
use crate::work::CallContext;
use crate::work::task::{CheckpointGate, Gate, SignTask, sign};

impl Lifecycle {
    /// Signs a checkpoint after remembering it.
    pub(super) fn checkpoint(&mut self, call: CallContext, task: &SignTask, credits: Vec<Credit>) {
        let ticket = match self.kms.first_time(&call, task) {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(answer)) => return self.kms.repeat(call, &answer),
            Err(refusal) => return self.kms.refuse_unlogged(call, &refusal),
        };
        if call.deadline.expired() {
            let late = Refusal::new(
                Why::DeadlineExceeded,
                "the request waited too long; nothing was done",
            );
            return self.kms.refuse_unlogged(call, &late);
        }
        let (kms, now) = (self.kms.clone(), self.kms.clock.unix_ms());
        let index = kms.index.load();
        let mut gate = Remember { lifecycle: self };
        let until = call.deadline;
        if let Some(outcome) = sign(&index, &call.caller, task, now, until, &mut gate) {
            kms.enter_sign(call, task, outcome, ticket, credits);
        }
    }
}

/// Remembers a checkpoint in the store, or refuses it when it does not extend the last one.
struct Remember<'a> {
    lifecycle: &'a mut Lifecycle,
}

impl CheckpointGate for Remember<'_> {
    fn pass(&mut self, key: &Key, to: &note::Checkpoint) -> Result<Gate, Refusal> {
        self.lifecycle.remember(&key.kid, to)?;
        Ok(Gate::Sign {
            store_version_after: Some(self.lifecycle.store.version()),
        })
    }
}
