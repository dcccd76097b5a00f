//! The store thread: the only writer of keys. Makes and changes keys, on request and on schedule, and remembers
//! checkpoints before a `note` key signs them.
//!
//! The steps of a change: look up the operation id -> check -> generate and seal the key -> one store
//! transaction (with the leaf in the outbox) -> leaf durable -> marked complete in the store -> snapshot
//! swapped -> answer. After a crash in between, the next start completes the change from the outbox.

mod adopt;
mod backup;
mod checkpoint;
pub mod complete;
pub mod device;
mod pauses;
pub mod peers;
pub mod plan;
pub mod recover;
mod rights;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_custody::keys::{aead_of, payload};
use ron_custody::store::{KeyStore, OpRecord, OpRow, OpsCheck, Pending, StoreError};
use ron_custody::store::{Order, PlanError};
use ron_custody::{Cause, Refusal};
use ron_files::Dir;
use ron_http::Response;
use ron_kernel::{Credit, Deadline, Receiver, Recv, ThreadCtx};
use ron_proto::kms::{CreateKey, PayloadPolicy};
use ron_proto::values::{Kid, OpId, Tenant, Timestamp};
use ron_service::ReadyBoard;
use ron_service::events::{Event, EventKind};
use uuid::Uuid;

use super::jobs::DeferredKind;
use super::key_request::{KeyRequest, body_hash};
use super::{CallContext, Kms, Purposes, StoreJob, each_job};
use crate::audit::entry::{Items, Label};
use crate::audit::leaf::{Draft, OK, Op};
use crate::errors::problem;
use complete::{Answer, complete_change, makes_key, repeated_answer};
use peers::PeerLogs;
use plan::{By, Plan, Planner};
use recover::{ChangeError, Committed, MOVES_MAX, Recovery, moved, unfinished_elsewhere};

/// How long a change waits for its leaf before the store refuses further changes until the next start. Longer than a
/// disk hangs that recovers.
pub(super) const LEAF_WAIT: Duration = Duration::from_mins(5);

/// The store thread's state.
pub struct Lifecycle {
    /// Shared with all threads of the service.
    pub kms: Arc<Kms>,
    pub store: KeyStore,
    pub jobs: Receiver<StoreJob>,
    /// Where a failed store is shown.
    pub ready: ReadyBoard,
    /// Directory of the log; `None` with amnesia on.
    pub log_dir: Option<Dir>,
    /// Local keys that are being made, by tenant.
    pub making: BTreeMap<Tenant, usize>,
    /// Keys on whose scheduled change a device works, and until when it is not started again (Unix milliseconds).
    pub device_busy: BTreeMap<Kid, u64>,
    /// Keys that their device has just destroyed; emptied once the store has recorded it.
    pub gone: BTreeSet<Kid>,
    /// A write failed, or a change is stuck without its leaf: every further change is refused until a restart.
    pub stopped: bool,
    /// How far the rows of operations were compared with their MACs.
    pub operations: OpsCheck,
    /// Where other nodes change the keys too.
    pub recovery: Recovery,
    /// The logs of other nodes that this node's log names.
    pub peers: PeerLogs,
}

/// The result of [`Lifecycle::begin`].
enum Admission {
    /// The operation was done before; its answer.
    Repeated(Answer),
    /// The operation is new; the credits for its leaf.
    New(Items<Credit>),
}

/// What a change is about, for its leaf and its idempotency row.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) op: Op,
    pub(super) op_id: OpId,
    pub(super) body: [u8; 32],
}

impl Lifecycle {
    /// Runs until shutdown, then finishes what is queued.
    pub fn run(&mut self, ctx: &ThreadCtx) {
        let jobs = self.jobs.clone();
        self.recovery.shutdown = self.kms.is_shared.then(|| ctx.shutdown.clone());
        self.ready.declare(&[pauses::OPERATIONS]);
        loop {
            match jobs.recv(&ctx.shutdown, Deadline::within(self.pause())) {
                Recv::Item(job) => self.take(job),
                Recv::Timeout => self.idle(),
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        let mut failed = false;
        while let Some(job) = jobs.try_recv() {
            // An engine that is away is not waited for once per job.
            if failed {
                let refusal = Refusal::new(Cause::Draining, "");
                self.kms.refuse_store_job(job, refusal);
                continue;
            }
            self.take(job);
            failed = self.recovery.is_waiting();
        }
    }

    fn take(&mut self, job: StoreJob) {
        if self.kms.is_shared {
            self.tick_shared(job);
        } else {
            self.tick(job);
        }
    }

    /// A job where other nodes change the keys too.
    pub fn tick_shared(&mut self, job: StoreJob) {
        if let Err(refusal) = self.prepare() {
            return self.kms.refuse_store_job(job, refusal);
        }
        self.tick(job);
        self.publish_newest();
    }

    pub fn tick(&mut self, job: StoreJob) {
        let _scope = job.call().map(|call| call.responder.enter());
        match job {
            StoreJob::Refresh => {} // it was read before the job
            StoreJob::Create(call, request, purposes) => self.create(call, request, purposes),
            StoreJob::Adopt(call, request) => self.adopt(call, request),
            StoreJob::Change(call, kid, request) => self.change_key(call, &kid, request),
            StoreJob::Import(call, request, purposes) => self.import(call, &request, purposes),
            StoreJob::Export(call, kid, request) => self.export(call, &kid, &request),
            StoreJob::Backup(call, kid, request) => self.backup(call, &kid, &request),
            StoreJob::Restore(call, request, purposes) => self.restore(call, &request, purposes),
            StoreJob::Due(kid) => self.due(&kid),
            StoreJob::RotateLogKey(call, request) => self.rotate_log_key(call, &request),
            StoreJob::IssuerPolicy(call, brought) => self.put_policy(call, *brought),
            StoreJob::Checkpoint(job, credits) => self.checkpoint(job, credits),
            StoreJob::Remember(kid, to, reply) => {
                let _ = reply.send(self.remember(&kid, &to)); // the device thread may have timed out
            }
            StoreJob::Uses(job) => self.uses(job),
            StoreJob::KeyMade(job) => self.made(*job),
            StoreJob::KeyDestroyed(kid, done) => self.gone(&kid, done),
        }
    }

    fn create(&mut self, call: CallContext, request: Box<CreateKey>, purposes: Purposes) {
        // Chosen once: if a device has to make the key, the resumed change makes the same one.
        let kid = Kid {
            tenant: request.tenant.clone(),
            purpose: request.purpose.clone(),
            alg: request.alg,
            id: self.new_uuid(),
        };
        self.create_as(call, (request, purposes), kid);
    }

    fn create_as(
        &mut self,
        call: CallContext,
        (request, purposes): (Box<CreateKey>, Purposes),
        kid: Kid,
    ) {
        let change = Change {
            op: Op::Create,
            op_id: request.op_id,
            body: body_hash(Op::Create, "", &request),
        };
        let ordered = self.perform(call, change, &kid, |this, call| {
            // There was none when the request came, or the request would have been answered with it.
            if purposes == Purposes::Single && this.has_named(call, &kid) {
                let detail = "another request makes a key of this name: ask again";
                return Err(Refusal::new(Cause::InFlight, detail).into());
            }
            this.plan_create(call, &request, &kid)
        });
        if let Some((order, call)) = ordered {
            self.order(order, call, DeferredKind::Create(request, purposes));
        }
    }

    /// Whether the caller finds a key of this purpose, as by a name in Vault's API.
    fn has_named(&self, call: &CallContext, wanted: &Kid) -> bool {
        let index = self.kms.index.load();
        let mut named = index.of_purpose(&wanted.tenant, wanted.purpose.clone());
        named.any(|key| key.state.is_kept() && index.may_use(&call.caller, &key.kid).is_ok())
    }

    /// Changes a key that exists.
    fn change_key(&mut self, call: CallContext, kid: &Kid, request: KeyRequest) {
        let change = Change {
            op: request.op(),
            op_id: request.op_id().unwrap_or_else(|| OpId(self.new_uuid())),
            body: request.body_hash(kid),
        };
        let ordered = self.perform(call, change, kid, |this, call| {
            this.authorise(call, kid, change.op.key_op())?;
            this.planner()
                .plan(kid, &request, By::of(call, change.op_id))
        });
        if let Some((order, call)) = ordered {
            self.order(order, call, DeferredKind::Change(request));
        }
    }

    /// Makes or changes a key as `plan` says, once per operation id. Returns the order and the request context when a device
    /// has to make a key first.
    fn perform(
        &mut self,
        call: CallContext,
        change: Change,
        kid: &Kid,
        plan: impl Fn(&Self, &CallContext) -> Result<Plan, PlanError>,
    ) -> Option<(Order, CallContext)> {
        for _ in 0..MOVES_MAX {
            let credits = match self.begin(&call, change, kid) {
                Ok(Admission::New(credits)) => credits,
                Ok(Admission::Repeated(answer)) => {
                    answer.send(call);
                    return None;
                }
                Err(refusal) => {
                    self.kms.refuse_unlogged(call, &refusal);
                    return None;
                }
            };
            let draft = draft_of(change, &call).about(kid);
            let outcome = match plan(self, &call) {
                Err(PlanError::KeyMissing(order)) => return Some((order, call)),
                Err(PlanError::Refusal(refusal)) => {
                    self.refuse_change(call, (change.op, kid), draft, refusal, credits);
                    return None;
                }
                Ok(plan) => self.change(&call, change, plan, draft, credits),
            };
            match outcome {
                // Another node was faster: decided again from its keys.
                Err(ChangeError::Moved) => {
                    if let Err(refusal) = self.read_again() {
                        self.kms.refuse_unlogged(call, &refusal);
                        return None;
                    }
                }
                outcome => {
                    let outcome = outcome.map_err(Refusal::from);
                    self.finish(call, change.op, kid.alg.as_str(), outcome);
                    return None;
                }
            }
        }
        self.kms.refuse_unlogged(call, &moved());
        None
    }

    /// Logs the refusal of a change.
    fn refuse_change(
        &self,
        call: CallContext,
        (op, kid): (Op, &Kid),
        draft: Draft,
        refusal: Refusal,
        credits: Items<Credit>,
    ) {
        // A refused key never exists, so its leaf names none.
        let key = draft.key.clone().filter(|_| !makes_key(op));
        let counted = self.store.key(kid).is_some();
        let draft = Draft {
            key,
            counted,
            ..draft
        };
        self.refuse(call, draft, refusal, credits);
    }

    /// Performs the scheduled change of a key, if it is still due.
    fn due(&mut self, kid: &Kid) {
        if self.stopped || self.device_busy(kid) {
            return;
        }
        let (op, plan) = match self.planner().automatic(kid) {
            Ok(Some(due)) => due,
            Ok(None) => return,
            Err(PlanError::KeyMissing(order)) => {
                let call = self.kms.internal_call(&kid.tenant);
                return self.order(order, call, DeferredKind::Due);
            }
            Err(PlanError::Refusal(refusal)) => {
                tracing::warn!(event = "schedule_refused", reason = refusal.cause.code());
                return;
            }
        };
        match self.gone_from_device(kid, &plan) {
            Ok(true) => {}
            Ok(false) => return,
            Err(refusal) => {
                tracing::warn!(event = "destruction_waits", reason = refusal.cause.code());
                return;
            }
        }
        let call = self.kms.internal_call(&kid.tenant);
        let change = Change {
            op,
            op_id: OpId(self.new_uuid()),
            body: body_hash(op, &kid.to_string(), &()),
        };
        let draft = draft_of(change, &call).about(kid);
        // Without room for the leaf the change stays due and the scheduler sends it again.
        let Ok(credits) = self.kms.admit(&call, 1) else {
            return;
        };
        let outcome = self.change(&call, change, plan, draft, credits);
        self.finish(call, op, kid.alg.as_str(), outcome.map_err(Refusal::from));
    }

    fn planner(&self) -> Planner<'_> {
        Planner {
            store: &self.store,
            settings: self.kms.settings.with(|settings| settings.keys.lifecycle),
            random: self.kms.random.as_ref(),
            now: Timestamp(self.kms.clock.unix_ms()),
        }
    }

    /// The answer that this operation id got before, or the credits for the leaf of a new operation.
    /// A caller without access to the key must not learn from an operation id: its request goes on to
    /// its refusal, which is a leaf.
    fn begin(
        &mut self,
        call: &CallContext,
        change: Change,
        kid: &Kid,
    ) -> Result<Admission, Refusal> {
        if self.authorise(call, kid, change.op.key_op()).is_ok()
            && let Some(answer) = self.admit_change(call, change)?
        {
            return Ok(Admission::Repeated(answer));
        }
        self.kms.admit(call, 1).map(Admission::New)
    }

    /// Refuses while the store cannot be written; otherwise the answer this operation id got before, if any.
    pub(super) fn admit_change(
        &mut self,
        call: &CallContext,
        change: Change,
    ) -> Result<Option<Answer>, Refusal> {
        if self.stopped {
            return Err(store_down());
        }
        let now = Timestamp(self.kms.clock.unix_ms());
        let tenant = &call.caller.tenant;
        let seen = self
            .store
            .find_op((tenant, change.op_id), now)
            .map_err(|e| self.store_failed(&e))?;
        let (body, answer) = match seen {
            None => return Ok(None),
            Some(OpRecord::Damaged) => {
                return Err(Refusal::new(
                    Cause::AnswersLost,
                    "the record of this operation is damaged, and nothing was done now: the audit log says whether it was done before; if it \
                     was not, use a new op_id",
                ));
            }
            Some(OpRecord::Known { body, answer }) => (body, answer),
        };
        if body != change.body {
            return Err(Refusal::new(
                Cause::OpIdMismatch,
                "this op_id was used with another body within 24 hours; use a new one",
            ));
        }
        match answer {
            Some(kept) => repeated_answer(&self.store, (change.op, change.op_id), kept).map(Some),
            None => Err(Refusal::new(
                Cause::InFlight,
                "the operation with this op_id is not finished",
            )),
        }
    }

    /// The checks for a new key, generated or imported.
    fn check_new_key(
        &self,
        call: &CallContext,
        kid: &Kid,
        policy: &PayloadPolicy,
    ) -> Result<(), Refusal> {
        self.may_use(call, kid)?;
        if !self
            .kms
            .settings
            .with(|settings| settings.keys.algs.contains(&kid.alg))
        {
            return Err(Refusal::new(
                Cause::Unsupported,
                "no configured backend makes keys of this algorithm, or `algs` leaves it out",
            ));
        }
        if !kid.alg.signs() && *policy != PayloadPolicy::Any {
            return Err(Refusal::new(
                Cause::BadRequest,
                "only keys that sign have a payload policy; leave `payload` out",
            ));
        }
        payload::check_policy(policy, kid.alg)
    }

    fn plan_create(
        &self,
        call: &CallContext,
        ask: &CreateKey,
        kid: &Kid,
    ) -> Result<Plan, PlanError> {
        self.check_new_key(call, kid, &ask.payload)?;
        let planner = self.planner();
        let backends = self.store.backends();
        let backend = ask.backend.unwrap_or(backends.local());
        let backend = backends.named(backend, ask.token.as_ref())?;
        let is_local = backend.is_local();
        let mut change = self
            .store
            .new_key(kid, backend, ask.payload.clone(), planner.now)?;
        change.meta.exportable = ask.exportable;
        if ask.derived && (aead_of(kid.alg).is_none() || !is_local) {
            let detail = "keys are derived by context from local keys of aes128-gcm, aes256-gcm and chacha20-poly1305; leave `derived` out";
            return Err(Refusal::new(Cause::Unsupported, detail).into());
        }
        change.meta.derived = ask.derived;
        if let Some(every) = ask.rotate_every {
            planner.set_rotation(&mut change.meta, every)?;
        }
        Ok(Plan::of(change))
    }

    /// Commits a plan to the store, waits for its leaf, marks it complete and publishes it.
    fn change(
        &mut self,
        call: &CallContext,
        change: Change,
        plan: Plan,
        mut draft: Draft,
        credits: Items<Credit>,
    ) -> Result<Answer, ChangeError> {
        let Plan {
            change: planned,
            context,
        } = plan;
        if planned.new.is_some() && self.store.is_unfinished(&planned.kid) {
            return Err(unfinished_elsewhere().into());
        }
        draft.counted = true;
        draft.version = Some(planned.version());
        draft.context = context;
        let other = planned.other.as_ref().map(|(kid, _)| kid.clone());
        let new = planned.new.as_ref();
        let public = new.map(|new| new.public.raw());
        let public = public.filter(|raw| !raw.is_empty());
        draft.output_sha256 = public.map(|raw| hex::encode(sha256(raw)));
        let pending = Pending {
            tenant: call.caller.tenant.clone(),
            op_id: change.op_id,
            kid: planned.kid.clone(),
            number: new.map_or(0, |new| new.number),
            leaf: draft.to_json(),
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
            .commit(planned, &op, &pending.leaf, pending.log_size)
            .map_err(|e| match e {
                StoreError::Moved => ChangeError::Moved,
                e => self.store_failed(&e).into(),
            })?;
        draft.store_version_after = Some(self.store.version());
        let committed = || Committed::Key(Box::new(pending.clone()), change.op);
        let receipt = self.log_change(draft, credits, committed)?;
        let done = complete_change(&mut self.store, &pending, change.op, &receipt);
        let answer = self.completed(done, committed, &receipt)?;
        for kid in std::iter::once(&pending.kid).chain(&other) {
            self.publish(kid);
        }
        let changed = Event::info(EventKind::KeyChanged);
        let changed = changed.reason(change.op.as_str());
        self.ready.events().publish(changed);
        Ok(answer)
    }

    /// Replaces the key in the snapshot that all threads read.
    fn publish(&self, kid: &Kid) {
        if self.kms.is_shared {
            // Other keys may have been read again too.
            return self.publish_all();
        }
        let Some(key) = self.store.key(kid) else {
            return;
        };
        let index = self.kms.index.load().with(key, self.store.version());
        self.kms.metrics.show_keys(&index);
        self.kms.index.store(index);
    }

    pub(super) fn finish(
        &self,
        call: CallContext,
        op: Op,
        alg: &'static str,
        outcome: Result<Answer, Refusal>,
    ) {
        let result = outcome.as_ref().map_or_else(|r| r.cause.code(), |_| OK);
        let op = op.as_str();
        self.kms.timing(&call).count(Label { op, alg, result });
        match outcome {
            Ok(answer) => answer.send(call),
            Err(refusal) => call.responder.send(problem(refusal)),
        }
    }

    /// Logs a refusal as a leaf; the caller is answered once it is durable.
    pub(super) fn refuse(
        &self,
        call: CallContext,
        draft: Draft,
        refusal: Refusal,
        credits: Items<Credit>,
    ) {
        let outcome = Err::<(), _>(refusal);
        self.kms
            .log_answer(call, (outcome, None), draft, credits, |answer| {
                Ok(Response::json(200, &answer?.output))
            });
    }

    pub(super) fn store_failed(&mut self, error: &StoreError) -> Refusal {
        if self.kms.is_shared {
            return self.engine_failed(error);
        }
        // The failed commit may be on disk or not, so memory and file may differ until the next start reads the file.
        self.stopped = true;
        let errors = &self.kms.metrics.io_errors;
        errors.with_label_values(&["store"]).inc();
        self.ready.missing(
            "store",
            "the key store cannot be written; repair its disk, then restart the service",
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

/// Refuses every job until shutdown: the store thread's state was lost in a panic.
pub fn refuse_all(kms: &Kms, jobs: &Receiver<StoreJob>, ctx: &ThreadCtx) {
    each_job(jobs, ctx, |job| kms.refuse_store_job(job, store_down()));
}

pub(super) fn store_down() -> Refusal {
    let detail = "the key store cannot be written, so no key is made or changed; see /readyz";
    Refusal {
        retry_after_s: 5,
        ..Refusal::new(Cause::StoreUnavailable, detail)
    }
}

/// The draft of a change's leaf, about no key yet.
pub(super) fn draft_of(change: Change, call: &CallContext) -> Draft {
    Draft {
        input_sha256: Some(hex::encode(change.body)),
        op_id: Some(change.op_id.to_string()),
        request_id: call.responder.trace().cloned(),
        ..Draft::new(change.op, &call.caller.name, call.caller.tenant.as_str())
    }
}
