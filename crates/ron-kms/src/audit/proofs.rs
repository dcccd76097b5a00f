//! Answers that wait for their proof (`Prefer: wait=N`). Their leaf is durable already; the answer leaves with the proof once a
//! checkpoint (a cosigned one where witnesses are configured) covers the leaf, or without a proof when its time is up.

use std::sync::Arc;

use ron_http::{Responder, Response};
use ron_kernel::{Deadline, Receiver, Recv, Sender, Shutdown, ThreadCtx};
use ron_proto::kms::SignAnswer;
use ron_service::log_host::LogHost;
use std::time::Duration;

use crate::metrics::Metrics;

/// Maximum answers that wait at a time; further ones leave without their proof.
const WAITING_MAX: usize = 4096;
/// Longest single wait while no answer waits, and while one does: a wake-up is lost when the queue is full.
const IDLE: Duration = Duration::from_secs(60);
const CHECK: Duration = Duration::from_secs(1);
/// Maximum wait for the last checkpoint at shutdown.
const FINAL_WAIT: Duration = Duration::from_secs(2);

/// An answer that waits.
pub struct WaitingAnswer {
    /// The answer, complete except for its proof.
    pub answer: Box<SignAnswer>,
    pub responder: Responder,
    pub until: Deadline,
}

/// A message to the proof thread.
pub enum ProofJob {
    /// An answer that waits.
    Wait(WaitingAnswer),
    /// A checkpoint or cosignature was published: check the waiting answers.
    Check,
}

/// The wish of one caller for a proof: where the answer waits, and until when.
pub struct ProofRequest {
    /// The thread that makes proofs.
    pub to: Sender<ProofJob>,
    pub until: Deadline,
}

impl ProofRequest {
    /// Queues the answer for its proof; sends it without one when the queue is full.
    pub fn send(self, answer: Box<SignAnswer>, responder: Responder) {
        let until = self.until;
        let job = ProofJob::Wait(WaitingAnswer {
            answer,
            responder,
            until,
        });
        match self.to.try_send(job) {
            Ok(()) => {}
            Err(
                ron_kernel::SendError::Full(ProofJob::Wait(waiting))
                | ron_kernel::SendError::Closed(ProofJob::Wait(waiting)),
            ) => send(waiting, None),
            Err(_) => unreachable!("an answer was sent"),
        }
    }
}

fn send(waiting: WaitingAnswer, proof: Option<String>) {
    let mut answer = waiting.answer;
    answer.proof = proof;
    let mut response = Response::json(200, &*answer);
    if answer.proof.is_some() {
        response = response.header("preference-applied", "wait");
    }
    waiting.responder.send(response);
}

pub struct ProofThread {
    pub jobs: Receiver<ProofJob>,
    pub host: LogHost,
    /// Whether a proof must end in a cosigned checkpoint.
    pub witnessed: bool,
    pub waiting: Vec<WaitingAnswer>,
    pub metrics: Arc<Metrics>,
    /// Fired after the last checkpoint.
    pub last_checkpoint: Shutdown,
}

impl ProofThread {
    /// Runs until shutdown, then sends every waiting answer.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        let mut covered = 0;
        loop {
            match self.jobs.recv(&ctx.shutdown, self.next_due()) {
                Recv::Item(job) => self.take(job),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
            while let Some(job) = self.jobs.try_recv() {
                self.take(job);
            }
            let now = self.covered();
            let due = self.waiting.iter().any(|w| w.until.expired());
            // A sweep passes over all waiting answers: only when one of them can leave.
            if now != covered || due {
                covered = now;
                self.sweep(covered);
            }
        }
        self.last_checkpoint.wait(Deadline::within(FINAL_WAIT));
        while let Some(job) = self.jobs.try_recv() {
            self.take(job);
        }
        self.sweep(self.covered());
        for waiting in std::mem::take(&mut self.waiting) {
            self.give_up(waiting);
        }
    }

    fn next_due(&self) -> Deadline {
        let idle = if self.waiting.is_empty() { IDLE } else { CHECK };
        let idle = Deadline::within(idle);
        let due = self.waiting.iter().map(|w| w.until);
        due.fold(idle, Deadline::earlier)
    }

    /// Number of leaves under the newest checkpoint that a proof may end in.
    fn covered(&self) -> u64 {
        if self.witnessed {
            self.host.cosigned.size()
        } else {
            self.host.reader.checkpoint_size()
        }
    }

    fn take(&mut self, job: ProofJob) {
        let ProofJob::Wait(waiting) = job else { return };
        if waiting.answer.receipt.log != self.host.reader.origin() {
            // A repeated answer of another node, which has the proof.
            return send(waiting, None);
        }
        if waiting.answer.receipt.index < self.covered() {
            self.prove(waiting);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push(waiting);
        } else {
            self.give_up(waiting);
        }
    }

    fn sweep(&mut self, covered: u64) {
        let mut keep = Vec::with_capacity(self.waiting.len());
        for waiting in std::mem::take(&mut self.waiting) {
            if waiting.answer.receipt.index < covered {
                self.prove(waiting);
            } else if waiting.until.expired() {
                self.give_up(waiting);
            } else {
                keep.push(waiting);
            }
        }
        self.waiting = keep;
    }

    fn prove(&self, waiting: WaitingAnswer) {
        let proof = self.host.proof(waiting.answer.receipt.index);
        if let Err(error) = &proof {
            tracing::error!(event = "proof_not_made", %error);
        }
        let label = if proof.is_ok() { "proved" } else { "failed" };
        self.metrics
            .evidence
            .proof_waits
            .with_label_values(&[label])
            .inc();
        send(waiting, proof.ok());
    }

    /// Sends an answer whose time is up. With witnesses configured but late, it still gets a proof to the log's own
    /// checkpoint if that covers the leaf.
    fn give_up(&self, waiting: WaitingAnswer) {
        let proof = self.host.proof(waiting.answer.receipt.index).ok();
        let label = if proof.is_some() {
            "unwitnessed"
        } else {
            "late"
        };
        self.metrics
            .evidence
            .proof_waits
            .with_label_values(&[label])
            .inc();
        send(waiting, proof);
    }
}
