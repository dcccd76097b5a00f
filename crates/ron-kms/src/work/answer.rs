//! What happens to a request once its leaf is durable, or is known not to be.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Responder, Response};
use ron_kernel::time::Instant;
use ron_kernel::{ReplySender, SharedClock};
use ron_proto::kms::{AttestAnswer, ItemError, SignAnswer, SignBatchAnswer, SignResult};
use ron_proto::problem::Problem;
use ron_proto::receipt::LogReceipt;

use super::envelope::{self, Made, Shape};
use crate::audit::leaf::OK;
use crate::audit::proofs::ProofAsk;
use crate::error::Refusal;
use crate::metrics::Metrics;
use crate::replay::{SignTicket, Ticket};

/// The leaf of a change is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDurable;

/// What every waiting answer carries for the metrics.
#[derive(Clone)]
pub struct Timing {
    /// Where to count.
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

    /// Counts an operation that ends now.
    pub fn count(&self, op: &'static str, alg: &'static str, result: &'static str) {
        self.metrics.op(op, alg, result, self.took());
    }
}

/// One item of a batch.
pub enum Item {
    /// Signed; has a leaf.
    Signed(SignAnswer, Option<SignTicket>),
    /// Refused; has a leaf.
    Refused(Refusal, &'static str),
    /// Without a leaf of its own: a repetition, or an item that names no key.
    Known(SignResult),
}

/// One envelope operation.
pub enum EnvelopeItem {
    /// Done; operation, algorithm and result for the metrics.
    Made(
        Made,
        (&'static str, &'static str, &'static str),
        Option<Ticket<Made>>,
    ),
    /// Refused; has a leaf.
    Refused(Refusal, (&'static str, &'static str)),
    /// Without a leaf of its own: a repetition, or what could not be read.
    Known(Result<Made, Refusal>),
}

/// The envelope operations of one request.
pub struct EnvelopeDone {
    /// Where the answer goes.
    pub responder: Responder,
    /// One per operation; those with a leaf in the order of the leaves.
    pub items: Vec<EnvelopeItem>,
    /// Makes the answer.
    pub shape: Shape,
    /// For the metrics.
    pub timing: Timing,
}

impl EnvelopeDone {
    /// The leaves are durable, the first at `first`.
    pub fn complete(self, origin: &str, first: u64) {
        let mut index = first;
        let timing = self.timing;
        let one = |item| match item {
            EnvelopeItem::Made(mut made, (op, alg, result), ticket) => {
                made.receipt = LogReceipt {
                    log: origin.to_owned(),
                    index,
                };
                index += 1;
                timing.count(op, alg, result);
                if let Some(ticket) = ticket {
                    envelope::settle(ticket, &made);
                }
                Ok(made)
            }
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

/// Who waits for leaves.
pub enum Done {
    /// A signature.
    Sign {
        /// Where the answer goes.
        responder: Responder,
        /// The answer, but for its receipt.
        answer: Box<SignAnswer>,
        /// To remember the answer by its operation id.
        ticket: Option<SignTicket>,
        /// Where it waits for its proof, when the caller wishes so.
        proof: Option<ProofAsk>,
        /// For the metrics.
        timing: Timing,
    },
    /// A batch.
    Batch {
        /// Where the answer goes.
        responder: Responder,
        /// One per item; those with a leaf in the order of the leaves.
        items: Vec<Item>,
        /// For the metrics.
        timing: Timing,
    },
    /// Envelope operations.
    Envelope(Box<EnvelopeDone>),
    /// Evidence of where a key is.
    Attest {
        /// Where the answer goes.
        responder: Responder,
        /// The answer, but for its receipt.
        answer: Box<AttestAnswer>,
        /// For the metrics.
        timing: Timing,
    },
    /// A refusal of one of our own operations.
    Refused {
        /// Where the answer goes.
        responder: Responder,
        /// Why.
        refusal: Refusal,
        /// Operation name and algorithm, for the metrics.
        label: (&'static str, &'static str),
        /// For the metrics.
        timing: Timing,
    },
    /// One operation whose answer needs only the index of its leaf.
    Other {
        /// Where the answer goes.
        responder: Responder,
        /// Makes it.
        make: Box<dyn FnOnce(u64) -> Response + Send>,
        /// Operation name and algorithm, for the metrics.
        label: (&'static str, &'static str),
        /// For the metrics.
        timing: Timing,
    },
    /// Nobody: a leaf about the service itself.
    Logged,
    /// The store thread, which waits.
    Change(ReplySender<Result<u64, NotDurable>>),
}

impl Done {
    /// The leaves are durable, the first at `index` of the log `origin`.
    pub fn complete(self, origin: &str, index: u64) {
        match self {
            Self::Sign {
                responder,
                mut answer,
                ticket,
                proof,
                timing,
            } => {
                answer.receipt = LogReceipt {
                    log: origin.to_owned(),
                    index,
                };
                timing.count("sign", answer.key.alg.as_str(), OK);
                // Before the answer leaves: a repetition may follow it at once.
                if let Some(ticket) = ticket {
                    ticket.settle(&Arc::new((*answer).clone()));
                }
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
                let results = settle_items(items, origin, index, &timing);
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
                answer.receipt = LogReceipt {
                    log: origin.to_owned(),
                    index,
                };
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
                let _ = reply.send(Ok(index)); // the store thread gave up: it refuses from now on
            }
        }
    }

    /// The leaves are not durable: whatever was done, nobody is told that it was.
    pub fn fail(self) {
        let down = || Problem::from(Refusal::audit_down());
        match self {
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

fn settle_items(items: Vec<Item>, origin: &str, first: u64, timing: &Timing) -> Vec<SignResult> {
    let mut index = first;
    let mut next = || {
        index += 1;
        LogReceipt {
            log: origin.to_owned(),
            index: index - 1,
        }
    };
    let one = |item: Item| match item {
        Item::Signed(mut answer, ticket) => {
            answer.receipt = next();
            timing.count("sign", answer.key.alg.as_str(), OK);
            if let Some(ticket) = ticket {
                ticket.settle(&Arc::new(answer.clone()));
            }
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

/// A batch result without one.
pub fn failed(error: ItemError) -> SignResult {
    SignResult {
        answer: None,
        error: Some(error),
    }
}
