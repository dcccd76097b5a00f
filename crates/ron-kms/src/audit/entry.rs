//! What waits for its leaf. An answer gets its receipt from the log, after its leaf is durable, and cannot be written down
//! without one.

use std::sync::Arc;
use std::time::Duration;

use ron_custody::Refusal;
use ron_custody::index::KeyIndex;
use ron_http::{Responder, Response};
use ron_kernel::time::Instant;
use ron_kernel::{Credit, ReplySender, SharedClock};
use ron_proto::kms::SignAnswer;
use ron_proto::receipt::LogReceipt;
use ron_proto::values::Kid;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::leaf::Draft;
use super::proofs::ProofRequest;
use crate::errors::problem;
use crate::metrics::Metrics;
use crate::replay::{JournalRecord, OnceId};

/// The items of one request. Most requests have one, which then needs no allocation.
pub type Items<T> = SmallVec<[T; 1]>;

/// A result whose leaf is not durable yet; only [`DurableLeaves::log`] opens it.
pub struct Unlogged<A>(A);

impl<A> Unlogged<A> {
    pub fn new(made: A) -> Self {
        Self(made)
    }
}

/// A result with the receipt of its durable leaf. Made by the log, and read back from the journal, which holds nothing
/// else.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Logged<A> {
    pub output: A,
    receipt: LogReceipt,
}

impl<A> Logged<A> {
    pub fn receipt(&self) -> &LogReceipt {
        &self.receipt
    }

    pub fn into_parts(self) -> (A, LogReceipt) {
        (self.output, self.receipt)
    }
}

impl<A: Serialize> Logged<A> {
    /// As it is remembered.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an answer holds strings and integers only")
    }
}

/// The places that the leaves of an entry will have if the next append succeeds, for the answers that are kept with them. Nothing
/// of such an answer may leave.
pub struct PlannedLeaves<'a> {
    origin: &'a str,
    next: u64,
}

impl<'a> PlannedLeaves<'a> {
    /// Leaves of the log `origin`, from index `first` on.
    pub(super) fn new(origin: &'a str, first: u64) -> Self {
        Self {
            origin,
            next: first,
        }
    }

    /// Passes over a leaf.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// What [`DurableLeaves::log`] will give, as JSON.
    pub fn answer<A: Serialize>(&mut self, unlogged: &Unlogged<A>) -> Vec<u8> {
        let logged = Logged {
            output: &unlogged.0,
            receipt: LogReceipt {
                log: self.origin.to_owned(),
                index: self.next,
            },
        };
        self.next += 1;
        logged.to_json()
    }
}

/// The durable leaves of one entry, given out in the order of its drafts.
pub struct DurableLeaves<'a> {
    origin: &'a str,
    next: u64,
    end: u64,
}

impl<'a> DurableLeaves<'a> {
    /// `count` leaves of the log `origin`, from index `first` on.
    pub(super) fn new(origin: &'a str, first: u64, count: u64) -> Self {
        let end = first + count;
        Self {
            origin,
            next: first,
            end,
        }
    }

    /// For an entry without leaves: repeated answers and requests that could not be parsed.
    pub fn none() -> Self {
        Self::new("", 0, 0)
    }

    /// The receipt of the next leaf.
    pub fn receipt(&mut self) -> LogReceipt {
        LogReceipt {
            log: self.origin.to_owned(),
            index: self.advance(),
        }
    }

    /// The result of the next leaf, with its receipt.
    pub fn log<A>(&mut self, unlogged: Unlogged<A>) -> Logged<A> {
        Logged {
            output: unlogged.0,
            receipt: self.receipt(),
        }
    }

    /// Passes over the leaf of a refusal; returns its index.
    pub fn advance(&mut self) -> u64 {
        assert!(self.next < self.end, "an entry has one draft per answer");
        self.next += 1;
        self.next - 1
    }
}

/// What a finished operation is counted as: its name, its algorithm and its result.
#[derive(Clone, Copy)]
pub struct Label {
    pub op: &'static str,
    pub alg: &'static str,
    pub result: &'static str,
}

/// The start of a request, for the latency metrics.
#[derive(Clone)]
pub struct Timing {
    pub metrics: Arc<Metrics>,
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
    pub fn count(&self, label: Label) {
        self.metrics
            .op(label.op, label.alg, label.result, self.took());
    }
}

/// The content of a [`Reply`].
pub enum ReplyBody {
    Now(Response),
    /// A signature, which waits for its inclusion proof where the caller wants one (`Prefer: wait=N`).
    Signature(Box<SignAnswer>),
}

impl From<Response> for ReplyBody {
    fn from(response: Response) -> Self {
        Self::Now(response)
    }
}

impl From<SignAnswer> for ReplyBody {
    fn from(answer: SignAnswer) -> Self {
        Self::Signature(Box::new(answer))
    }
}

/// A rendered answer. It leaves once everything that it promises is durable.
pub struct Reply {
    pub responder: Responder,
    pub body: ReplyBody,
    /// Where a signature waits for its proof.
    pub proof: Option<ProofRequest>,
    /// The operations that the reply finishes.
    pub counted: Items<Label>,
    pub timing: Timing,
}

impl Reply {
    pub fn send(self) {
        for label in self.counted {
            self.timing.count(label);
        }
        match (self.body, self.proof) {
            (ReplyBody::Now(response), _) => self.responder.send(response),
            (ReplyBody::Signature(answer), Some(proof)) => proof.send(answer, self.responder),
            (ReplyBody::Signature(answer), None) => {
                self.responder.send(Response::json(200, &*answer));
            }
        }
    }

    /// Sends `audit_unavailable` instead.
    pub fn fail(self) {
        refuse(self.responder, &Refusal::audit_down());
    }
}

/// Answers why the leaf is not in the log, whatever was computed.
pub fn refuse(responder: Responder, why: &Refusal) {
    responder.send(problem(why.clone()));
}

/// The answer to an operation with an id, as it will be.
pub struct PlannedAnswer {
    /// Position of the operation in its request.
    pub item: usize,
    pub id: OnceId,
    /// `None` of a refusal, which is not remembered: its id is free for another try.
    pub answer: Option<Vec<u8>>,
}

/// What waits for the leaves of an [`Entry`]; the appender calls [`Waiting::complete`] or [`Waiting::fail`], once.
pub trait Waiting: Send {
    /// The leaves are durable. Returns the answer, if anybody waits for one, and adds to `journal` what must be durable
    /// before it leaves.
    fn complete(
        self: Box<Self>,
        leaves: DurableLeaves<'_>,
        journal: &mut Vec<JournalRecord>,
    ) -> Option<Reply>;

    /// The leaves are not durable.
    fn fail(self: Box<Self>, why: &Refusal);

    /// The answers to operations with an id, for leaves at these places.
    fn planned(&self, _leaves: PlannedLeaves<'_>) -> Vec<PlannedAnswer> {
        Vec::new()
    }

    /// The operation at `item` was done before, by this node or another, with this answer: it has no leaf here. Returns the
    /// position of its leaf among those of the entry.
    fn repeated(&mut self, item: usize, _: &KeyIndex, _: Result<Vec<u8>, Refusal>) -> usize {
        item
    }

    /// Whether the leaves have to be in the log in any case, once it can be written: what they record is done.
    fn is_done(&self) -> bool {
        false
    }
}

/// NoCaller waits: a leaf about the service itself.
pub struct NoCaller;

impl Waiting for NoCaller {
    fn complete(
        self: Box<Self>,
        _: DurableLeaves<'_>,
        _: &mut Vec<JournalRecord>,
    ) -> Option<Reply> {
        None
    }

    fn fail(self: Box<Self>, _: &Refusal) {}

    fn is_done(&self) -> bool {
        true
    }
}

/// The append failed, so the leaf of a change is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotDurable;

/// The store thread waits for the leaf of a change. It may have timed out; then it refuses changes from now on.
impl Waiting for ReplySender<Result<LogReceipt, NotDurable>> {
    fn complete(
        self: Box<Self>,
        mut leaves: DurableLeaves<'_>,
        _: &mut Vec<JournalRecord>,
    ) -> Option<Reply> {
        let _ = self.send(Ok(leaves.receipt()));
        None
    }

    fn fail(self: Box<Self>, _: &Refusal) {
        let _ = self.send(Err(NotDurable));
    }

    fn is_done(&self) -> bool {
        true
    }
}

/// The keys that a result was decided from.
pub struct Basis {
    pub index: Arc<KeyIndex>,
    /// Those of them that it was made with.
    pub keys: Items<Kid>,
}

/// A finished operation, or a batch of them, whose answer waits for its leaves.
pub struct Entry {
    pub(super) drafts: Items<Draft>,
    /// Number of drafts; the writer takes them.
    pub(super) leaves: u64,
    pub(super) waiting: Box<dyn Waiting>,
    /// The reserved room; freed when the entry is dropped, after its answer.
    pub(super) credits: Items<Credit>,
    /// Set where other nodes may change the keys: the leaves are appended only while the result is right.
    pub(super) basis: Option<Basis>,
}

impl Entry {
    /// `waiting` takes one receipt, or passes over one leaf, for each of `drafts`, in their order.
    pub fn new(
        drafts: Items<Draft>,
        waiting: impl Waiting + 'static,
        credits: Items<Credit>,
    ) -> Self {
        Self {
            leaves: drafts.len() as u64,
            drafts,
            waiting: Box::new(waiting),
            credits,
            basis: None,
        }
    }

    /// The same, of a result that was decided from keys which other nodes may change.
    pub fn decided_from(self, basis: Option<Basis>) -> Self {
        Self { basis, ..self }
    }

    /// The entry cannot be appended.
    pub fn fail(self) {
        self.refuse(&Refusal::audit_down());
    }

    /// The entry cannot be appended, for this reason.
    pub fn refuse(self, why: &Refusal) {
        self.waiting.fail(why);
    }
}
