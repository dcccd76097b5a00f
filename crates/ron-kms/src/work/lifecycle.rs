//! The store thread: the only writer of keys. Creates, rotates, and remembers checkpoints before
//! a `note` key signs them.
//!
//! A change goes: operation id looked up -> checked -> key generated and sealed -> one store
//! transaction (with the leaf in the outbox) -> leaf durable -> settled in the store -> snapshot
//! swapped -> answered. A crash in between is mended at the next start from the outbox.

use std::sync::Arc;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_http::Response;
use ron_kernel::{Credit, Deadline, Receiver, ThreadCtx, reply};
use ron_proto::jcs;
use ron_proto::kms::{CreateKey, KeyBackend, PayloadPolicy, RotateAnswer, RotateRequest};
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Kid, OpId, Timestamp};
use ron_service::ReadyBoard;
use serde::Serialize;
use uuid::Uuid;

use super::answer::Done;
use super::task::{CheckpointGate, Gate, SignTask, sign};
use super::{Asked, Kms, StoreJob};
use crate::audit::appender::Entry;
use crate::audit::leaf::{LEAF_VERSION, Leaf, OK, Op};
use crate::audit::writer::Draft;
use crate::backend::BackendKind;
use crate::engine::each_job;
use crate::error::{Refusal, Why};
use crate::keys::index::may_use;
use crate::keys::{Key, note, payload};
use crate::store::write::{NewVersion, OpRow, Pending};
use crate::store::{KeyStore, StoreError};

/// How long a change waits for its leaf before the store gives up.
pub(super) const LEAF_WAIT: Duration = Duration::from_secs(10);

/// The store thread's state.
pub struct Lifecycle {
    /// What is shared.
    pub kms: Arc<Kms>,
    /// The store.
    pub store: KeyStore,
    /// Its jobs.
    pub jobs: Receiver<StoreJob>,
    /// Where a failed store is shown.
    pub ready: ReadyBoard,
    /// A write failed, or a change is stuck without its leaf: nothing more is changed.
    pub stopped: bool,
}

/// A finished change: status and body of its answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) json: String,
    pub(super) location: Option<String>,
}

/// How a change starts.
enum Begun {
    /// It was done before.
    Seen(Answer),
    /// It is new, and there is room for its leaf.
    New(Vec<Credit>),
}

/// What a change is about, for its leaf and its idempotency row.
pub(super) struct Change<'a> {
    pub(super) op: Op,
    pub(super) op_id: OpId,
    pub(super) body: [u8; 32],
    pub(super) asked: &'a Asked,
}

impl Lifecycle {
    /// Runs until shutdown, then finishes what is queued.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        let jobs = self.jobs.clone();
        each_job(&jobs, ctx, |job| self.tick(job));
    }

    /// Does one job.
    pub fn tick(&mut self, job: StoreJob) {
        match job {
            StoreJob::Create(asked, request) => self.create(asked, &request),
            StoreJob::Rotate(asked, kid, request) => self.rotate(asked, &kid, &request),
            StoreJob::RotateLogKey(asked, request) => self.rotate_log_key(asked, &request),
            StoreJob::Checkpoint(asked, task, credits) => self.checkpoint(asked, &task, credits),
            StoreJob::Remember(kid, to, reply) => {
                let _ = reply.send(self.remember(&kid, &to)); // who asked may have given up
            }
            StoreJob::Uses(job) => self.uses(job),
        }
    }

    fn create(&mut self, asked: Asked, request: &CreateKey) {
        let body = body_hash(Op::Create, "", request);
        let kid = Kid {
            tenant: request.tenant.clone(),
            purpose: request.purpose.clone(),
            alg: request.alg,
            id: self.new_uuid(),
        };
        let mut leaf = leaf_of(Op::Create, &asked, request.op_id, &body);
        leaf.alg = Some(request.alg.as_str().to_owned());
        leaf.purpose = Some(request.purpose.to_string());
        let change = Change {
            op: Op::Create,
            op_id: request.op_id,
            body,
            asked: &asked,
        };
        let credits = match self.begin(&change, &kid) {
            Ok(Begun::Seen(answer)) => return respond(asked, answer),
            Ok(Begun::New(credits)) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(asked, &refusal),
        };
        let result = self.check_create(&asked, request, &kid).and_then(|()| {
            let now = Timestamp(self.kms.clock.unix_ms());
            let backend = wanted_backend(&self.store, request.backend);
            self.store
                .new_key(&kid, backend, request.payload.clone(), now)
        });
        match result {
            Err(refusal) => self.refuse(asked, leaf, false, refusal, credits),
            Ok(new) => {
                leaf.key = Some(kid.to_string());
                let outcome = self.change(&change, new, leaf, credits);
                self.finish(asked, Op::Create, kid.alg.as_str(), outcome);
            }
        }
    }

    fn rotate(&mut self, asked: Asked, kid: &Kid, request: &RotateRequest) {
        let op_id = request.op_id.unwrap_or_else(|| OpId(self.new_uuid()));
        let body = body_hash(Op::Rotate, &kid.to_string(), request);
        let mut leaf = leaf_of(Op::Rotate, &asked, op_id, &body);
        leaf.alg = Some(kid.alg.as_str().to_owned());
        leaf.purpose = Some(kid.purpose.to_string());
        leaf.key = Some(kid.to_string());
        let change = Change {
            op: Op::Rotate,
            op_id,
            body,
            asked: &asked,
        };
        let credits = match self.begin(&change, kid) {
            Ok(Begun::Seen(answer)) => return respond(asked, answer),
            Ok(Begun::New(credits)) => credits,
            Err(refusal) => return self.kms.refuse_unlogged(asked, &refusal),
        };
        let counted = self.store.key(kid).is_some();
        let now = Timestamp(self.kms.clock.unix_ms());
        let result = may_use(&asked.caller, kid)
            .and_then(|()| check_rotate(self.store.key(kid), request))
            .and_then(|()| self.store.next_version(kid, now));
        match result {
            Err(refusal) => self.refuse(asked, leaf, counted, refusal, credits),
            Ok(new) => {
                let outcome = self.change(&change, new, leaf, credits);
                self.finish(asked, Op::Rotate, kid.alg.as_str(), outcome);
            }
        }
    }

    /// Signs a checkpoint after remembering it.
    fn checkpoint(&mut self, asked: Asked, task: &SignTask, credits: Vec<Credit>) {
        let ticket = match self.kms.first_time(&asked, task) {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(answer)) => return self.kms.repeat(asked, &answer),
            Err(refusal) => return self.kms.refuse_unlogged(asked, &refusal),
        };
        if asked.deadline.expired() {
            let late = Refusal::new(
                Why::DeadlineExceeded,
                "the request waited too long; nothing was done",
            );
            return self.kms.refuse_unlogged(asked, &late);
        }
        let (kms, now) = (self.kms.clone(), self.kms.clock.unix_ms());
        let index = kms.index.load();
        let mut gate = Remember { lifecycle: self };
        let until = asked.deadline;
        if let Some(outcome) = sign(&index, &asked.caller, task, now, until, &mut gate) {
            kms.enter_sign(asked, task, outcome, ticket, credits);
        }
    }

    /// The answer that this operation id got before, or room for the leaf of a new operation.
    /// Whoever may not use the key learns nothing from an operation id: that goes on to its
    /// refusal, which is a leaf.
    fn begin(&mut self, change: &Change<'_>, kid: &Kid) -> Result<Begun, Refusal> {
        if may_use(&change.asked.caller, kid).is_ok()
            && let Some(answer) = self.admit_change(change)?
        {
            return Ok(Begun::Seen(answer));
        }
        self.kms.admit(change.asked, 1).map(Begun::New)
    }

    /// Refuses while nothing can be changed; otherwise the answer this operation id got before,
    /// if any.
    pub(super) fn admit_change(&mut self, change: &Change<'_>) -> Result<Option<Answer>, Refusal> {
        if self.stopped {
            return Err(store_down());
        }
        let now = Timestamp(self.kms.clock.unix_ms());
        let tenant = &change.asked.caller.tenant;
        let seen = self
            .store
            .seen_op(tenant, change.op_id, now)
            .map_err(|e| self.store_failed(&e))?;
        match seen {
            None => Ok(None),
            Some(seen) if seen.body != change.body => Err(Refusal::new(
                Why::OpIdMismatch,
                "this op_id was used with another body within 24 hours; use a new one",
            )),
            Some(seen) => match seen.answer {
                Some(json) => Ok(Some(Answer {
                    status: status_of(change.op),
                    json,
                    location: None,
                })),
                None => Err(Refusal::new(
                    Why::InFlight,
                    "the operation with this op_id is not finished",
                )),
            },
        }
    }

    fn check_create(&self, asked: &Asked, request: &CreateKey, kid: &Kid) -> Result<(), Refusal> {
        may_use(&asked.caller, kid)?;
        if !self.kms.settings.algs.contains(&request.alg) {
            return Err(unsupported());
        }
        if request.exportable {
            return Err(Refusal::new(
                Why::Unsupported,
                "this backend makes no exportable keys",
            ));
        }
        if !request.alg.signs() && request.payload != PayloadPolicy::Any {
            return Err(Refusal::new(
                Why::BadRequest,
                "only keys that sign have a payload policy; leave `payload` out",
            ));
        }
        payload::check_policy(&request.payload)
    }

    /// Stores the new version, waits for its leaf, settles and publishes it.
    fn change(
        &mut self,
        change: &Change<'_>,
        new: NewVersion,
        mut leaf: Leaf,
        credits: Vec<Credit>,
    ) -> Result<Answer, Refusal> {
        leaf.version = Some(new.number);
        let public = new.public.raw();
        leaf.output_sha256 = (!public.is_empty()).then(|| hex::encode(sha256(public)));
        let pending = Pending {
            tenant: change.asked.caller.tenant.clone(),
            op_id: change.op_id,
            kid: new.kid.clone(),
            number: new.number,
            leaf: leaf.to_bytes(),
            log_size: self.kms.log_size(),
            version_before: self.store.version(),
        };
        let now = Timestamp(self.kms.clock.unix_ms());
        let op = OpRow {
            tenant: pending.tenant.clone(),
            op_id: change.op_id,
            body: change.body,
            now,
        };
        self.store
            .commit(new, &op, &pending.leaf, pending.log_size)
            .map_err(|e| self.store_failed(&e))?;
        let mut draft = Draft::new(leaf, true);
        draft.store_version_after = Some(self.store.version());
        let (to, from) = reply();
        self.kms.enter(Entry {
            drafts: vec![draft],
            done: Done::Change(to),
            credits,
        });
        let Ok(Ok(birth)) = from.wait(Deadline::within(LEAF_WAIT)) else {
            // The change is stored but its leaf is not known to be durable: the next start
            // settles it. Until then nothing more is changed.
            self.stopped = true;
            self.ready.missing(
                "store",
                "a change waits for its audit leaf; restart to settle it",
            );
            return Err(Refusal::audit_down());
        };
        let json = settle(
            &mut self.store,
            &pending,
            change.op,
            birth,
            &self.kms.origin,
        )
        .map_err(|e| self.store_failed(&e))?;
        let index = self.store.index();
        self.kms.metrics.show_keys(&index);
        self.kms.index.store(index);
        let location = (change.op == Op::Create).then(|| format!("/v1/kms/keys/{}", pending.kid));
        Ok(Answer {
            status: status_of(change.op),
            json,
            location,
        })
    }

    pub(super) fn finish(
        &self,
        asked: Asked,
        op: Op,
        alg: &'static str,
        outcome: Result<Answer, Refusal>,
    ) {
        let timing = self.kms.timing(&asked);
        match outcome {
            Ok(answer) => {
                timing.count(op.as_str(), alg, OK);
                respond(asked, answer);
            }
            Err(refusal) => {
                timing.count(op.as_str(), alg, refusal.why.code());
                asked
                    .responder
                    .send(ron_proto::problem::Problem::from(refusal));
            }
        }
    }

    /// A refused operation is a leaf too.
    pub(super) fn refuse(
        &self,
        asked: Asked,
        mut leaf: Leaf,
        counted: bool,
        refusal: Refusal,
        credits: Vec<Credit>,
    ) {
        refusal.why.code().clone_into(&mut leaf.result);
        let timing = self.kms.timing(&asked);
        let alg = leaf
            .alg
            .as_deref()
            .and_then(|a| a.parse().ok())
            .map_or("none", ron_proto::values::Alg::as_str);
        let label = (leaf.op.as_str(), alg);
        let done = Done::Refused {
            responder: asked.responder,
            refusal,
            label,
            timing,
        };
        self.kms.enter(Entry {
            drafts: vec![Draft::new(leaf, counted)],
            done,
            credits,
        });
    }

    /// Remembers a checkpoint in the store, or refuses it when it does not extend the last one.
    fn remember(&mut self, kid: &Kid, to: &note::Checkpoint) -> Result<(), Refusal> {
        if self.stopped {
            return Err(store_down());
        }
        let before = self.store.note_head(kid);
        if before.as_ref() == Some(to) {
            return Ok(());
        }
        if before.is_some_and(|last| !last.may_be_followed_by(to)) {
            return Err(Refusal::new(
                Why::CheckpointRefused,
                "this key has signed a checkpoint that this one does not extend",
            ));
        }
        self.store
            .advance_note(kid, to)
            .map_err(|e| self.store_failed(&e))
    }

    pub(super) fn store_failed(&mut self, error: &StoreError) -> Refusal {
        self.stopped = true;
        self.ready.missing(
            "store",
            "the key store cannot be written; restart after mending it",
        );
        tracing::error!(event = "store_failed", %error);
        store_down()
    }

    pub(super) fn new_uuid(&self) -> Uuid {
        let mut random = [0_u8; 10];
        self.kms.random.fill(&mut random);
        uuid::Builder::from_unix_timestamp_millis(self.kms.clock.unix_ms(), &random).into_uuid()
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

/// Refuses every job until shutdown: the store's state was lost in a panic.
pub fn refuse_all(kms: &Kms, jobs: &Receiver<StoreJob>, ctx: &ThreadCtx) {
    each_job(jobs, ctx, |job| kms.refuse_store_job(job, store_down()));
}

/// Marks a change as durable at `birth` and remembers its answer, which is returned. Also used at
/// start for a change that a crash interrupted.
pub fn settle(
    store: &mut KeyStore,
    pending: &Pending,
    op: Op,
    birth: u64,
    origin: &str,
) -> Result<String, StoreError> {
    store.mark_born(pending, birth);
    let key = store
        .key(&pending.kid)
        .ok_or_else(|| StoreError::Tampered("the outbox names a key that is not there".into()))?;
    let mut document = key.to_doc(origin);
    let receipt = LogReceipt {
        log: origin.to_owned(),
        index: birth,
    };
    let json = if op == Op::Rotate {
        to_json(&RotateAnswer {
            op_id: pending.op_id,
            document,
            receipt,
        })
    } else {
        document.receipt = Some(receipt);
        to_json(&document)
    };
    store.settle(pending, birth, &json)?;
    Ok(json)
}

pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("documents hold strings and integers only")
}

fn check_rotate(key: Option<Key>, request: &RotateRequest) -> Result<(), Refusal> {
    let key = key.ok_or_else(|| Refusal::new(Why::NotFound, "there is no such key"))?;
    let head = key.head().number;
    match request.expected_head {
        Some(expected) if expected != head => Err(Refusal::new(
            Why::StaleHead,
            "the key was rotated since; read it again",
        )
        .with_head(head)),
        _ => Ok(()),
    }
}

pub(super) fn respond(asked: Asked, answer: Answer) {
    let response = Response::bytes(answer.status, "application/json", answer.json.into_bytes());
    asked.responder.send(match answer.location {
        Some(location) => response.header("location", location),
        None => response,
    });
}

fn status_of(op: Op) -> u16 {
    if op == Op::Create { 201 } else { 200 }
}

/// The backend that a request names, or the store's own.
fn wanted_backend(store: &KeyStore, named: Option<KeyBackend>) -> BackendKind {
    let named = named.and_then(|name| BackendKind::from_name(name.as_str()));
    named.unwrap_or(store.backends().local())
}

fn unsupported() -> Refusal {
    Refusal::new(
        Why::Unsupported,
        "no configured backend makes keys of this algorithm, or `algs` leaves it out",
    )
}

pub(super) fn store_down() -> Refusal {
    let detail = "the key store cannot be written, so no key is made or changed; see /readyz";
    Refusal {
        retry_after_s: 5,
        ..Refusal::new(Why::StoreUnavailable, detail)
    }
}

/// SHA-256 over the operation's name, its key and its canonical body.
pub(crate) fn body_hash(op: Op, key: &str, body: &impl Serialize) -> [u8; 32] {
    let mut framed = format!("{}\0{key}\0", op.as_str()).into_bytes();
    framed.extend(jcs::to_vec(body).expect("a request holds strings and integers"));
    sha256(&framed)
}

pub(super) fn leaf_of(op: Op, asked: &Asked, op_id: OpId, body: &[u8; 32]) -> Leaf {
    Leaf {
        actor: asked.caller.name.clone(),
        alg: None,
        context: None,
        input_sha256: Some(hex::encode(body)),
        key: None,
        key_op_counter: None,
        op,
        op_id: Some(op_id.to_string()),
        output_sha256: None,
        prev_store_version: 0,
        purpose: None,
        result: OK.to_owned(),
        tenant: asked.caller.tenant.to_string(),
        ts: 0,
        v: LEAF_VERSION,
        version: None,
    }
}
