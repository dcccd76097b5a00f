//! The signer pool: reserves room for the leaf, checks the policy, signs, and hands the result to the
//! appender, which answers.

use ron_http::Response;
use ron_kernel::{Receiver, ThreadCtx};
use ron_proto::kms::SignAnswer;
use serde::de::DeserializeOwned;

use super::answer::{Done, Item, Timing, failed, signed};
use super::fair::Turn;
use super::held::AskStore;
use super::task::{CheckpointGate, Gate, Outcome, SignTask, sign};
use super::{CallContext, Kms, SignJob, SignOp, StoreJob};
use crate::audit::appender::{Completion as _, Entry};
use crate::audit::proofs::ProofRequest;
use crate::error::{Refusal, Why};
use crate::index::may_use;
use crate::index::{Key, KeyIndex};
use crate::keys::note;
use crate::replay::{Lookup, Ticket};

/// Forwards checkpoints to the store thread, the only thread that may remember them.
struct Forward;

impl CheckpointGate for Forward {
    fn pass(&mut self, _: &Key, _: &note::Checkpoint) -> Result<Gate, Refusal> {
        Ok(Gate::Forward)
    }
}

/// Refuses checkpoints in a batch: a signer does not wait for the store thread, let alone once per item.
struct NotInBatch;

impl CheckpointGate for NotInBatch {
    fn pass(&mut self, _: &Key, _: &note::Checkpoint) -> Result<Gate, Refusal> {
        Err(Refusal::new(
            Why::Unsupported,
            "checkpoints are signed one at a time; use /sign",
        ))
    }
}

/// The loop of one signer.
pub fn run(kms: &Kms, turns: &Receiver<Turn>, ctx: &ThreadCtx) {
    kms.sign.run(turns, ctx, |job| kms.sign_job(job));
}

impl Kms {
    /// Performs one job and hands its result to the appender; called by signers and by device threads.
    pub fn sign_job(&self, job: SignJob) {
        match job.what {
            SignOp::One(task) => self.sign_one(job.call, task),
            SignOp::Batch(tasks) => self.sign_batch(job.call, tasks),
            SignOp::Envelope(envelope) => self.envelope(job.call, envelope),
            SignOp::Attest(task) => self.attest_job(job.call, &task),
        }
    }

    fn sign_one(&self, call: CallContext, task: Box<SignTask>) {
        // Before the credits: a repetition has no leaf and must work while the audit queue is full.
        let ticket = match self.first_time(&call, &task) {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(answer)) => return self.repeat(call, &answer),
            Err(refusal) => return self.refuse_unlogged(call, &refusal),
        };
        let credits = match self.admit(&call, 1) {
            Ok(credits) => credits,
            Err(refusal) => return self.refuse_unlogged(call, &refusal),
        };
        // Loaded after the wait for credits, so that the signature is made with the newest head.
        let index = self.index.load();
        let now = self.clock.unix_ms();
        let until = call.deadline;
        let held = index
            .keys
            .get(&task.key)
            .is_some_and(|key| key.held_by().is_some());
        let mut ask = AskStore {
            kms: self,
            deadline: until,
        };
        let gate: &mut dyn CheckpointGate = if held { &mut ask } else { &mut Forward };
        if let Some(outcome) = sign(&index, &call.caller, &task, now, until, gate) {
            self.enter_sign(call, &task, outcome, ticket, credits);
        } else {
            // Released before the job is sent: the store thread begins the operation id itself, and with the ticket held it
            // would find the operation in flight.
            drop(ticket);
            self.submit_store(StoreJob::Checkpoint(call, task, credits));
        }
    }

    /// Hands the outcome of one signature to the appender.
    pub(super) fn enter_sign(
        &self,
        call: CallContext,
        task: &SignTask,
        outcome: Outcome,
        ticket: Option<Ticket>,
        credits: Vec<ron_kernel::Credit>,
    ) {
        let timing = self.timing(&call);
        let proof = self.proof_request(&call);
        let responder = call.responder;
        let done = match outcome.result {
            Ok(answer) => {
                self.metrics.evidence.signatures_made.inc();
                Done::Sign {
                    responder,
                    answer: Box::new(answer),
                    ticket,
                    proof,
                    timing,
                }
            }
            Err(refusal) => {
                let label = ("sign", task.key.alg.as_str());
                Done::Refused {
                    responder,
                    refusal,
                    label,
                    timing,
                }
            }
        };
        self.enter(Entry {
            drafts: vec![outcome.draft],
            done: Box::new(done),
            credits,
        });
    }

    /// Answers a repeated operation with its remembered answer.
    pub(super) fn repeat(&self, call: CallContext, answer: &SignAnswer) {
        match self.proof_request(&call) {
            Some(proof) => proof.send(Box::new(answer.clone()), call.responder),
            None => call.responder.send(Response::json(200, answer)),
        }
    }

    /// Where the answer waits for its proof, when the caller asked for one.
    fn proof_request(&self, call: &CallContext) -> Option<ProofRequest> {
        let until = call.proof_until?;
        let to = self.proof_tx.clone();
        Some(ProofRequest { to, until })
    }

    fn sign_batch(&self, call: CallContext, tasks: Vec<Result<SignTask, Refusal>>) {
        // One credit per item, because repetitions are found only below. Unused credits are freed with the entry.
        let credits = match self.admit(&call, tasks.len()) {
            Ok(credits) => credits,
            Err(refusal) => return self.refuse_unlogged(call, &refusal),
        };
        let index = self.index.load();
        let mut drafts = Vec::with_capacity(tasks.len());
        let mut items = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (item, draft) = self.batch_item(&index, &call, task);
            items.push(item);
            drafts.extend(draft);
        }
        let timing = self.timing(&call);
        let done = Done::Batch {
            responder: call.responder,
            items,
            timing,
        };
        if drafts.is_empty() {
            return Box::new(done).complete(&self.origin, 0);
        }
        self.enter(Entry {
            drafts,
            done: Box::new(done),
            credits,
        });
    }

    fn batch_item(
        &self,
        index: &KeyIndex,
        call: &CallContext,
        task: Result<SignTask, Refusal>,
    ) -> (Item, Option<crate::audit::writer::Draft>) {
        let known = |refusal: &Refusal| (Item::Known(failed(refusal.to_item())), None);
        let task = match task {
            Ok(task) => task,
            Err(refusal) => return known(&refusal),
        };
        let ticket = match self.first_time(call, &task) {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(answer)) => return (Item::Known(signed(*answer)), None),
            Err(refusal) => return known(&refusal),
        };
        let now = self.clock.unix_ms();
        let until = call.deadline;
        let Some(outcome) = sign(index, &call.caller, &task, now, until, &mut NotInBatch) else {
            return known(&Refusal::new(Why::Internal, "a batch item was forwarded"));
        };
        let item = match outcome.result {
            Ok(answer) => {
                self.metrics.evidence.signatures_made.inc();
                Item::Signed(answer, ticket)
            }
            Err(refusal) => Item::Refused(refusal, task.key.alg.as_str()),
        };
        (item, Some(outcome.draft))
    }

    /// Looks the operation id up, if there is one. `Ok(Ok(ticket))` begins a new operation, `Ok(Err(answer))` is the
    /// remembered answer of a repeated one, `Err` refuses.
    pub(super) fn first_time(
        &self,
        call: &CallContext,
        task: &SignTask,
    ) -> Result<Result<Option<Ticket>, Box<SignAnswer>>, Refusal> {
        let Some((op_id, body)) = task.op else {
            return Ok(Ok(None));
        };
        // An answer is repeated only to callers with access to the key. Others go on to their refusal, which is
        // a leaf.
        if may_use(&call.caller, &task.key).is_err() {
            return Ok(Ok(None));
        }
        match self
            .replay
            .begin(&call.caller.tenant, op_id, body, self.clock.unix_ms())?
        {
            Lookup::New(ticket) => Ok(Ok(Some(ticket))),
            Lookup::Repeated(answer) => Ok(Err(Box::new(recalled(&answer)?))),
        }
    }

    /// The start time and clock of a request, for the latency metrics.
    pub(crate) fn timing(&self, call: &CallContext) -> Timing {
        Timing {
            metrics: self.metrics.clone(),
            since: call.since,
            clock: self.clock.clone(),
        }
    }
}

/// Parses a remembered answer. An answer of another type means that the `op_id` was used for another operation.
pub(super) fn recalled<T: DeserializeOwned>(json: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(json).map_err(|_| {
        Refusal::new(
            Why::OpIdMismatch,
            "this op_id was used for another operation within 24 hours; use a new one",
        )
    })
}
