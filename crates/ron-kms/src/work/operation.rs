//! One pipeline for everything that signers do: `look up -> reserve -> run -> leaf -> render`. An [`Operation`] says how one
//! item is run and what its leaf holds; [`Request`] takes one item or a batch of them through the steps.
//!
//! ```text
//!  operation id ──> repeated: its remembered answer
//!       │ new
//!       └──> room for the leaf ──> run on one snapshot ──> Draft + Unlogged ──> the log ──> Logged ──> render ──> answer
//! ```
//!
//! A batch is many single operations: an item with an `op_id` is the same operation as the single call with that `op_id`.

use std::net::IpAddr;
use std::sync::Arc;

use ron_custody::backend::BackendId;
use ron_custody::index::{Key, KeyIndex};
use ron_custody::keys::note;
use ron_custody::rights::may_do;
use ron_custody::{Cause, Refusal};
use ron_http::{Principal, Response};
use ron_kernel::{Credit, Deadline};
use ron_proto::kms::KeyOp;
use ron_proto::values::{Alias, Kid, OpId, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answering::{Answer, Answering, Item, Remembered, recalled};
use super::task_key::TaskKey;
use super::{CallContext, Kms, SignJob, StoreJob};
use crate::audit::entry::{
    Basis, DurableLeaves, Entry, Items, Label, Logged, ReplyBody, Timing, Unlogged,
};
use crate::audit::leaf::{Draft, OK, Op};
use crate::audit::proofs::ProofRequest;
use crate::errors::problem;
use crate::replay::{Lookup, Ticket};

/// One operation: what it does with a key, and what its leaf says.
pub trait Operation: Send + 'static {
    /// The result. The journal holds it as JSON when the operation has an id; fields that must not be there are skipped.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    fn op(&self) -> Op;

    /// The key as the request names it, if the operation has one.
    fn task_key(&self) -> Option<&TaskKey>;

    /// The same, to look an alias up.
    fn task_key_mut(&mut self) -> Option<&mut TaskKey>;

    /// The name of the key, as far as it is known.
    fn key(&self) -> Option<&Kid> {
        self.task_key()?.kid()
    }

    /// Another key that the operation uses, and what it does with that: the caller needs the right to that too.
    fn other_key(&self) -> Option<(&TaskKey, KeyOp)> {
        None
    }

    /// The same, to look an alias up.
    fn other_key_mut(&mut self) -> Option<&mut TaskKey> {
        None
    }

    /// Operation id and SHA-256 of the whole request.
    fn op_id(&self) -> Option<(OpId, [u8; 32])>;

    /// The caller's remark, which a key's policy may ask for.
    fn context(&self) -> Option<&str> {
        None
    }

    /// The cost in Ed25519 signatures.
    fn cost(&self) -> u64 {
        1
    }

    /// The leaf, as far as it is known before the operation has run.
    fn draft(&self, caller: &Principal) -> Draft;

    /// Checks the caller and the key, and performs the operation. Fills `draft` as far as the checks get, so that the leaf
    /// of a refusal names what is known.
    fn run(&self, at: &mut Run<'_>, draft: &mut Draft) -> Result<Self::Output, Stop>;

    /// The result in the leaf and the metrics.
    fn result(_: &Self::Output) -> &'static str {
        OK
    }

    /// Completes a remembered answer with what the journal does not hold.
    fn again(
        &self,
        _: &KeyIndex,
        _: (&Principal, Deadline),
        remembered: Logged<Self::Output>,
    ) -> Answer<Self::Output> {
        Ok(remembered)
    }
}

/// What an operation runs with.
pub struct Run<'a> {
    pub kms: &'a Kms,
    /// Number, public key and private key of a version come from this one snapshot.
    pub index: &'a KeyIndex,
    pub caller: &'a Principal,
    pub peer: Option<IpAddr>,
    pub deadline: Deadline,
    pub gate: &'a mut dyn CheckpointGate,
}

impl<'a> Run<'a> {
    /// The key, if the caller may use it and an alias still names it.
    pub fn key(&self, asked: &TaskKey) -> Result<&'a Arc<Key>, Refusal> {
        let kid = asked.check(self.index, &self.caller.tenant)?;
        self.index.find(self.caller, kid)
    }
}

/// Why an operation has no result.
pub enum Stop {
    Refusal(Refusal),
    /// Only the store thread can perform it.
    Forward,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

/// The store must remember a checkpoint before a `note` key signs it. Each calling thread has its own way to get
/// there, and implements it here.
pub trait CheckpointGate {
    /// Allows the checkpoint after remembering it. The whole-store version after that, unless the leaf must not state it.
    fn pass(
        &mut self,
        kms: &Kms,
        key: &Key,
        to: &note::Checkpoint,
        deadline: Deadline,
    ) -> Result<Option<u64>, Stop>;
}

/// Refuses checkpoints in a batch: a signer does not wait for the store thread, let alone once per item.
struct NotInBatch;

impl CheckpointGate for NotInBatch {
    fn pass(
        &mut self,
        _: &Kms,
        _: &Key,
        _: &note::Checkpoint,
        _: Deadline,
    ) -> Result<Option<u64>, Stop> {
        let detail = "checkpoints are signed one at a time; use /sign";
        Err(Refusal::new(Cause::Unsupported, detail).into())
    }
}

/// The operations of one request, whatever their type.
pub trait Work: Send {
    /// Notes that the request names the key of all operations by this alias.
    fn name_by(&mut self, alias: &Alias);

    /// Cost in Ed25519 signatures, for [`super::fair`].
    fn cost(&self) -> u64;

    /// The device that holds the keys; `None` for local and for unknown keys. A batch that needs two devices is refused,
    /// because one thread would wait for both.
    fn holder(&self, index: &KeyIndex) -> Result<Option<BackendId>, Refusal>;

    /// Takes the operations through the pipeline. `credits` is the room for their leaves, if it is reserved already.
    fn run(
        self: Box<Self>,
        kms: &Kms,
        call: CallContext,
        gate: &mut dyn CheckpointGate,
        credits: Items<Credit>,
    );
}

/// One operation or a batch of one kind, and how its answer is rendered.
pub struct Request<O, R> {
    /// An `Err` could not be parsed and is refused without a leaf.
    tasks: Items<Result<O, Refusal>>,
    /// Not a batch: the operation may wait for the store.
    single: bool,
    /// Gets one answer per task, in order.
    render: R,
}

/// A single operation; `render` gets its answer.
pub fn one<O: Operation, B: Into<ReplyBody>>(
    task: O,
    render: impl FnOnce(Answer<O::Output>) -> Result<B, Refusal> + Send + 'static,
) -> Box<dyn Work> {
    Box::new(Request {
        tasks: Items::from_buf([Ok(task)]),
        single: true,
        render: rendered(render),
    })
}

/// The render function of a request with one answer.
fn rendered<M, B: Into<ReplyBody>>(
    render: impl FnOnce(Answer<M>) -> Result<B, Refusal> + Send + 'static,
) -> impl FnOnce(Items<Answer<M>>) -> ReplyBody + Send + 'static {
    |mut answers| {
        let answer = answers.pop().expect("a request has one answer per task");
        render(answer).map_or_else(|refusal| Response::from(problem(refusal)).into(), B::into)
    }
}

/// A batch; `render` gets one answer per task, in order.
pub fn many<O: Operation>(
    tasks: impl IntoIterator<Item = Result<O, Refusal>>,
    render: impl FnOnce(Items<Answer<O::Output>>) -> Response + Send + 'static,
) -> Box<dyn Work> {
    Box::new(Request {
        tasks: tasks.into_iter().collect(),
        single: false,
        render: move |answers: Items<Answer<O::Output>>| ReplyBody::Now(render(answers)),
    })
}

/// A task after its operation id was looked up.
enum Start<O: Operation> {
    New(O, Option<Ticket>),
    /// Repeated, or not an operation: has no leaf.
    Known(Answer<O::Output>),
}

impl<O, R> Work for Request<O, R>
where
    O: Operation,
    R: FnOnce(Items<Answer<O::Output>>) -> ReplyBody + Send + 'static,
{
    fn name_by(&mut self, alias: &Alias) {
        let keys = self.tasks.iter_mut().flatten();
        keys.filter_map(O::task_key_mut)
            .for_each(|key| key.name_by(alias));
    }

    fn cost(&self) -> u64 {
        let one = |task: &Result<O, Refusal>| task.as_ref().map_or(1, O::cost);
        self.tasks.iter().map(one).sum()
    }

    fn holder(&self, index: &KeyIndex) -> Result<Option<BackendId>, Refusal> {
        let keys = self.tasks.iter().flatten().flat_map(keys_of);
        let mut ids = keys.filter_map(|(kid, _)| index.keys.get(kid.kid()?)?.held_by());
        let first = ids.next();
        if ids.any(|id| Some(id) != first) {
            let detail = "a request may use the keys of one device only; send two";
            return Err(Refusal::new(Cause::Unsupported, detail));
        }
        Ok(first.cloned())
    }

    fn run(
        self: Box<Self>,
        kms: &Kms,
        call: CallContext,
        gate: &mut dyn CheckpointGate,
        credits: Items<Credit>,
    ) {
        let Self {
            tasks,
            single,
            render,
        } = *self;
        // Before any work, also that of repeating an answer: the caller of an expired request is gone.
        if let Err(refusal) = call.in_time() {
            return kms.refuse_unlogged(call, &refusal);
        }
        let look_up = |task| kms.look_up(&call, task);
        let starts: Items<Start<O>> = tasks.into_iter().map(look_up).collect();
        let new = starts.iter().filter(|s| matches!(s, Start::New(..)));
        // Reserved before any key is used: a result without room for its leaf could never be answered. A repetition has
        // no leaf, and works while the audit queue is full.
        let credits = match kms.reserve(&call, new.count(), credits) {
            Ok(credits) => credits,
            Err(refusal) => {
                // The operation ids are free before the caller can use them again.
                drop(starts);
                return kms.refuse_unlogged(call, &refusal);
            }
        };
        // Loaded after the wait for credits, so that the operation uses the newest head.
        let index = kms.index.load();
        let mut not_in_batch = NotInBatch;
        let gate = if single { gate } else { &mut not_in_batch };
        let mut drafts = Items::with_capacity(credits.len());
        let mut items = Items::with_capacity(starts.len());
        let mut keys = Items::new();
        let mut is_guarded = false;
        for start in starts {
            let (task, ticket) = match start {
                Start::New(task, ticket) => (task, ticket),
                Start::Known(answer) => {
                    items.push(Item::Known(answer));
                    continue;
                }
            };
            let mut at = Run {
                kms,
                index: &index,
                caller: &call.caller,
                peer: call.peer,
                deadline: call.deadline,
                gate: &mut *gate,
            };
            match run_one(&mut at, &task, ticket) {
                Ok((mut item, mut draft)) => {
                    draft.request_id = call.responder.trace().cloned();
                    if kms.is_shared {
                        // An answer that another node remembers may be completed from the keys, also of what is refused here.
                        is_guarded |= task.op_id().is_some();
                        let used = keys_of(&task).filter_map(|(key, _)| key.kid());
                        keys.extend(used.filter(|_| item.is_output()).cloned());
                        item.recall_by(|| {
                            Box::new(move |index, by, answer| task.again(index, by, answer))
                        });
                    }
                    items.push(item);
                    drafts.push(draft);
                }
                // Only a single operation asks for this, so no other item is lost.
                Err(Forward(ticket)) => {
                    // Released before the job is sent: the store thread looks the operation id up itself, and with the
                    // ticket held it would find the operation in flight.
                    drop(ticket);
                    let tasks = Items::from_buf([Ok(task)]);
                    let what = Box::new(Self {
                        tasks,
                        single,
                        render,
                    });
                    let job = SignJob { call, what };
                    return kms.submit_store(StoreJob::Checkpoint(job, credits));
                }
            }
        }
        let waiting = kms.answering(call, items, render);
        if drafts.is_empty() {
            let reply = waiting.reply(DurableLeaves::none(), &mut Vec::new());
            return reply.send();
        }
        let basis = (is_guarded || !keys.is_empty()).then_some(Basis { index, keys });
        kms.enter(Entry::new(drafts, waiting, credits).decided_from(basis));
    }
}

/// The keys that an operation uses, and what it does with each as far as a policy decides about it.
fn keys_of<O: Operation>(task: &O) -> impl Iterator<Item = (&TaskKey, Option<KeyOp>)> {
    let own = task.task_key().map(|key| (key, task.op().key_op()));
    let other = task.other_key().map(|(key, op)| (key, Some(op)));
    own.into_iter().chain(other)
}

/// Refuses what the policies of the keys do not allow, and a use of the other key that the credential does not. A credential or an
/// alias that does not fit is left to the operation, which refuses it.
fn authorised<O: Operation>(at: &Run<'_>, task: &O, context: Option<&str>) -> Result<(), Refusal> {
    if let Some((_, op)) = task.other_key() {
        // What is done with the operation's own key was checked by its route.
        may_do(at.caller, op)?;
    }
    for (asked, op) in keys_of(task) {
        let key = asked.kid().and_then(|kid| at.index.keys.get(kid));
        let key = key.filter(|key| key.access.policy.is_some());
        let (Some(key), Some(op)) = (key, op) else {
            continue;
        };
        if at.index.may_use(at.caller, &key.kid).is_err() {
            continue;
        }
        let now = Timestamp(at.kms.clock.unix_ms());
        key.authorise(at.caller, op, (now, context, at.peer))?;
    }
    Ok(())
}

/// Only the store thread can perform the operation.
struct Forward(Option<Ticket>);

/// Runs an operation; its item and its leaf.
fn run_one<O: Operation>(
    at: &mut Run<'_>,
    task: &O,
    ticket: Option<Ticket>,
) -> Result<(Item<O::Output>, Draft), Forward> {
    let mut draft = task.draft(at.caller);
    // Counted for existing keys only: counters of invented names would grow without bound.
    draft.counted = task
        .key()
        .is_some_and(|kid| at.index.keys.contains_key(kid));
    let label = |result| Label {
        op: task.op().as_str(),
        alg: task.key().map_or("none", |kid| kid.alg.as_str()),
        result,
    };
    let made = match authorised(at, task, task.context()) {
        Ok(()) => task.run(at, &mut draft),
        Err(refusal) => Err(refusal.into()),
    };
    let item = match made {
        Ok(made) => {
            let label = label(O::result(&made));
            let remembered = ticket.map(Remembered::new);
            Item::Output(Unlogged::new(made), label, remembered)
        }
        Err(Stop::Refusal(refusal)) => {
            let label = label(refusal.cause.code());
            let ticket = ticket.filter(|_| at.kms.is_shared);
            Item::Refusal(refusal, label, ticket.map(Remembered::new))
        }
        Err(Stop::Forward) => return Err(Forward(ticket)),
    };
    if let Item::Output(_, label, _) | Item::Refusal(_, label, _) = &item
        && label.result != OK
    {
        label.result.clone_into(&mut draft.result);
    }
    Ok((item, draft))
}

impl Kms {
    /// Looks the operation id up: a repeated operation gets its answer again, every other task is new.
    fn look_up<O: Operation>(&self, call: &CallContext, task: Result<O, Refusal>) -> Start<O> {
        let task = match task {
            Ok(task) => task,
            Err(refusal) => return Start::Known(Err(refusal)),
        };
        let Some((op_id, body)) = task.op_id() else {
            return Start::New(task, None);
        };
        // An answer is repeated only to callers with access to the key. Others go on to their refusal, which is a leaf.
        let caller = &call.caller;
        let index = self.index.load();
        let may_use = |(key, op): (&TaskKey, Option<KeyOp>)| {
            let kid = key.check(&index, &caller.tenant);
            let usable = |kid: &&Kid| index.may_use(caller, kid).is_ok();
            let Some(kid) = kid.ok().filter(usable) else {
                return false;
            };
            let Some(key) = index.keys.get(kid) else {
                return true; // without a key there is no policy
            };
            let now = Timestamp(self.clock.unix_ms());
            let context = task.context();
            op.is_none_or(|op| key.authorise(caller, op, (now, context, call.peer)).is_ok())
        };
        let may_do = |(_, op)| may_do(caller, op).is_ok();
        if !keys_of(&task).all(may_use) || !task.other_key().is_none_or(may_do) {
            return Start::New(task, None);
        }
        let begun = self
            .replay
            .begin(&caller.tenant, op_id, body, self.clock.unix_ms());
        let known = match begun {
            Ok(Lookup::New(ticket)) => return Start::New(task, Some(ticket)),
            Ok(Lookup::Repeated(json)) => {
                let by = (caller, call.deadline);
                recalled(&json).and_then(|remembered| task.again(&index, by, remembered))
            }
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = &known {
            let code = refusal.cause.code();
            self.metrics.rejects.with_label_values(&[code]).inc();
        }
        Start::Known(known)
    }

    /// Room for `leaves` leaves: what is reserved already, or reserved now.
    fn reserve(
        &self,
        call: &CallContext,
        leaves: usize,
        reserved: Items<Credit>,
    ) -> Result<Items<Credit>, Refusal> {
        if leaves == 0 {
            return Ok(Items::new());
        }
        if reserved.is_empty() {
            return self.admit(call, leaves);
        }
        self.may_begin(call)?;
        Ok(reserved)
    }

    /// Logs the outcome of an operation of the store thread that changes nothing there; the caller is answered once its
    /// leaf is durable.
    pub(super) fn log_answer<M: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        call: CallContext,
        (outcome, basis): (Result<M, Refusal>, Option<Basis>),
        mut draft: Draft,
        credits: Items<Credit>,
        render: impl FnOnce(Answer<M>) -> Result<Response, Refusal> + Send + 'static,
    ) {
        let alg = draft.alg.as_deref().and_then(|alg| alg.parse().ok());
        let label = |result| Label {
            op: draft.op.as_str(),
            alg: alg.map_or("none", ron_proto::values::Alg::as_str),
            result,
        };
        let item = match outcome {
            Ok(made) => Item::Output(Unlogged::new(made), label(OK), None),
            Err(refusal) => {
                let label = label(refusal.cause.code());
                label.result.clone_into(&mut draft.result);
                Item::Refusal(refusal, label, None)
            }
        };
        let waiting = self.answering(call, Items::from_buf([item]), rendered(render));
        let entry = Entry::new(Items::from_buf([draft]), waiting, credits);
        self.enter(entry.decided_from(basis));
    }

    fn answering<M, R>(
        &self,
        call: CallContext,
        items: Items<Item<M>>,
        render: R,
    ) -> Answering<M, R> {
        let to = |until| ProofRequest {
            to: self.proof_tx.clone(),
            until,
        };
        Answering {
            timing: self.timing(&call),
            proof: call.proof_until.map(to),
            caller: call.caller,
            deadline: call.deadline,
            responder: call.responder,
            items,
            render,
        }
    }

    /// The start time and clock of a request, for the latency metrics.
    pub(super) fn timing(&self, call: &CallContext) -> Timing {
        Timing {
            metrics: self.metrics.clone(),
            since: call.since,
            clock: self.clock.clone(),
        }
    }
}
