//! Completion of a request: the answer that leaves once its leaf is durable, or the refusal when the append failed.

use std::time::Duration;

use ron_http::{Responder, Response};
use ron_kernel::time::Instant;
use ron_kernel::{ReplySender, SharedClock};
use ron_proto::kms::{AttestAnswer, ItemError, SignAnswer, SignBatchAnswer, SignResult};
use ron_proto::problem::Problem;
use ron_proto::receipt::LogReceipt;

use super::envelope::{EnvelopeOutput, RespondWith};
use crate::audit::appender::Completion;
use crate::audit::leaf::OK;
use crate::audit::proofs::ProofRequest;
use crate::error::Refusal;
use crate::metrics::Metrics;
use crate::replay::{JournalRecord, Ticket};

/// The append failed, so the leaf of a change is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDurable;

/// What every waiting answer carries for the latency metrics.
#[derive(Clone)]
pub struct Timing {
    pub metrics: Metrics,
    /// When the request was parsed.
    pub since: Instant,
    /// The clock that `since` is from.
    pub clock: SharedClock,
}

impl Timing {
    fn took(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.since)
    }

    /// Counts an operation and observes the time from its request until now.
    pub fn count(&self, op: &'static str, alg: &'static str, result: &'static str) {
        self.metrics.op(op, alg, result, self.took());
    }
}

/// One item of a batch.
pub enum Item {
    /// A signature, which has a leaf; the ticket exists when the item has an `op_id`.
    Signed(SignAnswer, Option<Ticket>),
    /// Refused; has a leaf.
    Refused(Refusal, &'static str),
    /// An item without its own leaf: a repeated operation, or an item that names no key.
    Known(SignResult),
}

pub enum EnvelopeItem {
    /// A finished operation, which has a leaf; operation, algorithm and result are labels of the metrics.
    Done(
        EnvelopeOutput,
        (&'static str, &'static str, &'static str),
        Option<Ticket>,
    ),
    /// Refused; has a leaf.
    Refused(Refusal, (&'static str, &'static str)),
    /// An item without its own leaf: a repeated operation, or an item that could not be parsed.
    Known(Result<EnvelopeOutput, Refusal>),
}

/// The envelope operations of one request.
pub struct EnvelopeDone {
    /// Where the answer goes.
    pub responder: Responder,
    /// One per operation. Items with a leaf stand in the order of their leaves.
    pub items: Vec<EnvelopeItem>,
    pub shape: RespondWith,
    pub timing: Timing,
}

impl EnvelopeDone {
    /// Fills in the receipts and answers. The leaves are durable, the first at index `first`.
    pub fn complete(self, origin: &str, first: u64) {
        let mut index = first;
        let timing = self.timing;
        let one = |item| match item {
            EnvelopeItem::Done(mut made, (op, alg, result), _) => {
                made.receipt = receipt(origin, index);
                index += 1;
                timing.count(op, alg, result);
                Ok(made)
            }
            // A refusal takes an index too: it has a leaf.
            EnvelopeItem::Refused(refusal, (op, alg)) => {
                index += 1;
                timing.count(op, alg, refusal.why.code());
                Err(refusal)
            }
            EnvelopeItem::Known(result) => result,
        };
        let results = self.items.into_iter().map(one).collect();
        self.responder.send((self.shape)(results));
    }

    /// The leaves are not durable.
    fn fail(self) {
        self.responder.send(Problem::from(Refusal::audit_down()));
    }
}

/// What to do once the leaves of an [`Entry`](crate::audit::appender::Entry) are durable.
pub enum Done {
    Sign {
        /// Where the answer goes.
        responder: Responder,
        /// The answer, but for its receipt.
        answer: Box<SignAnswer>,
        /// Records the answer under its operation id.
        ticket: Option<Ticket>,
        /// Set when the caller asked for the inclusion proof (`Prefer: wait=N`).
        proof: Option<ProofRequest>,
        timing: Timing,
    },
    Batch {
        /// Where the answer goes.
        responder: Responder,
        /// One per item. Items with a leaf stand in the order of their leaves.
        items: Vec<Item>,
        timing: Timing,
    },
    Envelope(Box<EnvelopeDone>),
    /// Attestation of where a key is held.
    Attest {
        /// Where the answer goes.
        responder: Responder,
        /// The answer, but for its receipt.
        answer: Box<AttestAnswer>,
        timing: Timing,
    },
    /// A refusal that has a leaf.
    Refused {
        /// Where the answer goes.
        responder: Responder,
        refusal: Refusal,
        /// Operation name and algorithm, for the metrics.
        label: (&'static str, &'static str),
        timing: Timing,
    },
    /// An operation whose answer needs only the index of its leaf.
    Other {
        /// Where the answer goes.
        responder: Responder,
        make: Box<dyn FnOnce(u64) -> Response + Send>,
        /// Operation name and algorithm, for the metrics.
        label: (&'static str, &'static str),
        timing: Timing,
    },
    /// A leaf about the service itself: nobody waits.
    Logged,
    /// A change of a key: the store thread waits for the index of its leaf.
    Change(ReplySender<Result<u64, NotDurable>>),
}

/// A receipt for the leaf at `index`, in the log `origin`.
fn receipt(origin: &str, index: u64) -> LogReceipt {
    LogReceipt {
        log: origin.to_owned(),
        index,
    }
}

impl Completion for Done {
    fn remembers(&self) -> bool {
        match self {
            Self::Sign { ticket, .. } => ticket.is_some(),
            Self::Batch { items, .. } => {
                let remembers = |item: &Item| matches!(item, Item::Signed(_, Some(_)));
                items.iter().any(remembers)
            }
            Self::Envelope(done) => {
                let remembers =
                    |item: &EnvelopeItem| matches!(item, EnvelopeItem::Done(_, _, Some(_)));
                done.items.iter().any(remembers)
            }
            _ => false,
        }
    }

    fn remember(&mut self, origin: &str, mut index: u64, into: &mut Vec<JournalRecord>) {
        let json = |answer: &SignAnswer| {
            serde_json::to_vec(answer).expect("an answer holds strings and integers only")
        };
        match self {
            Self::Sign { answer, ticket, .. } => {
                answer.receipt = receipt(origin, index);
                into.extend(ticket.take().map(|ticket| ticket.with(json(answer))));
            }
            Self::Batch { items, .. } => {
                for item in items {
                    if let Item::Signed(answer, ticket) = item {
                        answer.receipt = receipt(origin, index);
                        into.extend(ticket.take().map(|ticket| ticket.with(json(answer))));
                    }
                    index += u64::from(!matches!(item, Item::Known(_)));
                }
            }
            Self::Envelope(done) => {
                for item in &mut done.items {
                    if let EnvelopeItem::Done(made, _, ticket) = item {
                        made.receipt = receipt(origin, index);
                        into.extend(ticket.take().map(|ticket| ticket.with(made.remembered())));
                    }
                    index += u64::from(!matches!(item, EnvelopeItem::Known(_)));
                }
            }
            _ => {}
        }
    }

    fn complete(self: Box<Self>, origin: &str, index: u64) {
        match *self {
            Self::Sign {
                responder,
                mut answer,
                ticket: _,
                proof,
                timing,
            } => {
                answer.receipt = receipt(origin, index);
                timing.count("sign", answer.key.alg.as_str(), OK);
                match proof {
                    Some(proof) => proof.send(answer, responder),
                    None => responder.send(Response::json(200, &*answer)),
                }
            }
            Self::Batch {
                responder,
                items,
                timing,
            } => {
                let results = batch_results(items, origin, index, &timing);
                responder.send(Response::json(200, &SignBatchAnswer { results }));
            }
            Self::Refused {
                responder,
                refusal,
                label,
                timing,
            } => {
                timing.count(label.0, label.1, refusal.why.code());
                responder.send(Problem::from(refusal));
            }
            Self::Envelope(done) => done.complete(origin, index),
            Self::Attest {
                responder,
                mut answer,
                timing,
            } => {
                answer.receipt = receipt(origin, index);
                timing.count("attest", answer.statement.key.alg.as_str(), OK);
                responder.send(Response::json(200, &*answer));
            }
            Self::Other {
                responder,
                make,
                label,
                timing,
            } => {
                timing.count(label.0, label.1, OK);
                responder.send(make(index));
            }
            Self::Logged => {}
            Self::Change(reply) => {
                let _ = reply.send(Ok(index)); // the store thread timed out and refuses changes from now on
            }
        }
    }

    fn fail(self: Box<Self>) {
        let down = || Problem::from(Refusal::audit_down());
        match *self {
            Self::Sign { responder, .. }
            | Self::Batch { responder, .. }
            | Self::Other { responder, .. }
            | Self::Attest { responder, .. }
            | Self::Refused { responder, .. } => {
                responder.send(down());
            }
            Self::Envelope(done) => done.fail(),
            Self::Logged => {}
            Self::Change(reply) => {
                let _ = reply.send(Err(NotDurable));
            }
        }
    }
}

fn batch_results(items: Vec<Item>, origin: &str, first: u64, timing: &Timing) -> Vec<SignResult> {
    let mut index = first;
    let mut next = || {
        index += 1;
        receipt(origin, index - 1)
    };
    let one = |item: Item| match item {
        Item::Signed(mut answer, _) => {
            answer.receipt = next();
            timing.count("sign", answer.key.alg.as_str(), OK);
            signed(answer)
        }
        Item::Refused(refusal, alg) => {
            next();
            timing.count("sign", alg, refusal.why.code());
            failed(refusal.to_item())
        }
        Item::Known(result) => result,
    };
    items.into_iter().map(one).collect()
}

/// A batch result with a signature.
pub fn signed(answer: SignAnswer) -> SignResult {
    SignResult {
        answer: Some(answer),
        error: None,
    }
}

/// A batch result with an error.
pub fn failed(error: ItemError) -> SignResult {
    SignResult {
        answer: None,
        error: Some(error),
    }
}
