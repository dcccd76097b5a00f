//! Use numbers of ciphers with a nonce: taken by signers and device threads, reserved in blocks by the store
//! thread. Before the first number of a block is used, the block is durable in the store and its
//! leaf is in the audit queue.

use std::time::Duration;

use ron_custody::keys::UseNumbers;
use ron_custody::{Cause, Refusal};
use ron_kernel::{Deadline, ReplySender, SendError, reply};
use ron_proto::values::Kid;

use super::lifecycle::{Lifecycle, store_down};
use super::{Kms, SELF, StoreJob};
use crate::audit::entry::{Entry, Items, NoCaller};
use crate::audit::leaf::{Draft, Op};

/// Maximum wait of a signer for a block.
const BLOCK_WAIT: Duration = Duration::from_secs(1);

/// Work for the store thread: reserve the next block of a key's version.
pub struct UsesJob {
    pub kid: Kid,
    pub version: u32,
    /// The waiting signer; `None` when the block is requested ahead of need.
    pub reply: Option<ReplySender<Result<(), Refusal>>>,
}

impl UsesJob {
    /// Refuses the block to the waiting signer, if any.
    pub fn refuse(self, refusal: Refusal) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(refusal)); // the signer's deadline has passed
        }
    }
}

impl Kms {
    /// A use number of this version that is never given out twice. Waits for a block when no number is left, and
    /// requests the next block ahead when less than a quarter of one is left.
    pub(super) fn use_number(
        &self,
        (kid, version): (&Kid, u32),
        numbers: &UseNumbers,
        deadline: Deadline,
    ) -> Result<u32, Refusal> {
        let until = deadline.earlier(Deadline::within(BLOCK_WAIT));
        loop {
            if let Some(number) = numbers.take() {
                let block = self.settings.with(|settings| settings.keys.nonce_block);
                if numbers.left() < block / 4 && numbers.claim_request() {
                    self.ask_ahead(kid, version, numbers);
                }
                return Ok(number);
            }
            if until.expired() {
                return Err(Refusal::new(
                    Cause::DeadlineExceeded,
                    "the next block of nonces was not reserved in time; nothing was done",
                ));
            }
            let (to, from) = reply();
            let job = UsesJob {
                kid: kid.clone(),
                version,
                reply: Some(to),
            };
            match self.store_tx.try_send(StoreJob::Uses(job)) {
                Ok(()) => {}
                Err(SendError::Full(_)) => {
                    return Err(Refusal::busy(self.store_tx.retry_after_s()));
                }
                Err(SendError::Closed(_)) => return Err(Refusal::new(Cause::Draining, "")),
            }
            // No answer: the deadline has passed or the store thread has ended; the next round of the loop
            // finds out which. An answer does not carry the number: other signers may have used up the block.
            if let Ok(answer) = from.wait(until) {
                answer?;
            }
        }
    }

    fn ask_ahead(&self, kid: &Kid, version: u32, numbers: &UseNumbers) {
        let job = UsesJob {
            kid: kid.clone(),
            version,
            reply: None,
        };
        if self.store_tx.try_send(StoreJob::Uses(job)).is_err() {
            numbers.withdraw_request(); // the next use requests it again
        }
    }
}

impl Lifecycle {
    /// Reserves a block, unless an earlier job already has.
    pub(super) fn uses(&mut self, job: UsesJob) {
        let done = self.reserve(&job);
        match (job.reply, done) {
            (Some(reply), done) => {
                let _ = reply.send(done); // the signer's deadline has passed
            }
            // The request flag stays set. The signer that finds no number left sends a job of its own and waits.
            (None, Err(refusal)) => tracing::warn!(
                event = "nonce_block_not_reserved",
                reason = refusal.cause.code()
            ),
            (None, Ok(())) => {}
        }
    }

    fn reserve(&mut self, job: &UsesJob) -> Result<(), Refusal> {
        if self.stopped {
            return Err(store_down());
        }
        let gone = || Refusal::new(Cause::NotFound, "there is no such key or version");
        let secret = self.store.secret(&job.kid, job.version).ok_or_else(gone)?;
        let numbers = secret.open()?.use_numbers().ok_or_else(gone)?;
        let settings = self.kms.settings.load();
        let (block, cap) = (settings.keys.nonce_block, settings.keys.nonce_cap);
        // Several signers may have queued a job for the same shortage; one block serves them all.
        if numbers.left() >= block / 4 && numbers.left() > 0 {
            return Ok(());
        }
        // Room for the leaf first: a block without a leaf in the log must not be used.
        let credit = self
            .kms
            .credits
            .acquire(Deadline::within(settings.keys.reserve_wait))
            .ok_or_else(|| Refusal::busy(self.kms.audit_tx.retry_after_s()))?;
        let Some((from, to)) = self
            .store
            .reserve_uses(&job.kid, job.version, block, cap)
            .map_err(|e| self.store_failed(&e))?
        else {
            if numbers.left() > 0 {
                return Ok(());
            }
            return Err(Refusal::new(
                Cause::UsesExhausted,
                format!("this version has wrapped {cap} times, which is its limit; rotate the key"),
            ));
        };
        let draft = Draft {
            // The number of uses reserved so far.
            context: Some(to.to_string()),
            version: Some(job.version),
            counted: true,
            store_version_after: Some(self.store.version()),
            ..Draft::new(Op::ReserveUses, SELF, job.kid.tenant.as_str()).about(&job.kid)
        };
        let drafts = Items::from_buf([draft]);
        // Queued before the numbers are released: in the log, this leaf precedes every use of the block.
        let credits = Items::from_buf([credit]);
        self.kms.enter(Entry::new(drafts, NoCaller, credits));
        self.kms.metrics.nonce_blocks.inc();
        numbers.fill(from, to);
        Ok(())
    }
}
