//! The signer pool: takes the jobs of local keys through the pipeline of [`super::operation`].

use std::time::Duration;

use ron_custody::index::Key;
use ron_custody::keys::note::Checkpoint;
use ron_custody::{Cause, Refusal};
use ron_kernel::{Deadline, Receiver, ThreadCtx, reply};

use super::fair::Turn;
use super::operation::{CheckpointGate, Stop};
use super::{Kms, SignJob, StoreJob};
use crate::audit::entry::Items;

/// Maximum wait of a device's thread for the store to remember a checkpoint.
const REMEMBER_WAIT: Duration = Duration::from_secs(5);

/// The way of signers and device threads to the store thread, the only thread that may remember checkpoints. A signer
/// forwards the operation; a device's thread may block, so it has the store remember the checkpoint and goes on.
struct ThroughStore;

impl CheckpointGate for ThroughStore {
    fn pass(
        &mut self,
        kms: &Kms,
        key: &Key,
        to: &Checkpoint,
        deadline: Deadline,
    ) -> Result<Option<u64>, Stop> {
        if key.held_by().is_none() {
            return Err(Stop::Forward);
        }
        let (answer, waiter) = reply();
        let job = StoreJob::Remember(key.kid.clone(), *to, answer);
        if kms.store_tx.try_send(job).is_err() {
            return Err(Refusal::busy(kms.store_tx.retry_after_s()).into());
        }
        // Bounded also for a caller with a long deadline: this thread serves other keys of the device too.
        let until = deadline.earlier(Deadline::within(REMEMBER_WAIT));
        let Ok(remembered) = waiter.wait(until) else {
            let detail = "the store did not remember the checkpoint in time; nothing was signed";
            return Err(Refusal::new(Cause::DeadlineExceeded, detail).into());
        };
        remembered?;
        // Not stated: leaves of other changes may be appended before this one.
        Ok(None)
    }
}

/// The loop of one signer.
pub fn run(kms: &Kms, turns: &Receiver<Turn>, ctx: &ThreadCtx) {
    kms.sign.run(turns, ctx, |job| kms.sign_job(job));
}

impl Kms {
    /// Performs one job and hands its result to the appender; called by signers and by device threads.
    pub fn sign_job(&self, job: SignJob) {
        let _scope = job.call.responder.enter();
        let credits = Items::new();
        job.what.run(self, job.call, &mut ThroughStore, credits);
    }
}
