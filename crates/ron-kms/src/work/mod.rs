//! The operations: signing on the signer pool, changes of keys on the store thread, verification on the
//! HTTP worker's thread, and the answers that leave once their leaf is durable.

pub mod answering;
pub mod attest;
pub mod derive;
pub mod device_jobs;
pub mod envelope;
pub mod fair;
pub mod jobs;
pub mod key_request;
pub mod lifecycle;
pub mod log_key;
pub mod notes;
pub mod operation;
pub mod policy;
pub mod refresh;
pub mod schedule;
pub mod sign;
pub mod signer;
pub mod task_key;
pub mod uses;
pub mod verify;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ron_custody::backend::Backends;
use ron_custody::index::KeyIndex;
use ron_custody::keys::note::Checkpoint;
use ron_custody::keys::wrapping::WrappingKeys;
use ron_custody::store::MadeKey;
use ron_custody::{Cause, Refusal};
use ron_http::{Principal, PrincipalKind, Responder, Trace};
use ron_kernel::time::Instant;
use ron_kernel::{
    ClockAlarm, Credit, Credits, Deadline, Receiver, Recv, ReplySender, SendError, Sender,
    SharedClock, SharedRandom, Snapshot, ThreadCtx,
};
use ron_proto::Problem;
use ron_proto::kms::{
    AdoptKey, BackupKey, CreateKey, ExportKey, ImportKey, RestoreKey, RotateLogKey,
};
use ron_proto::values::{Alias, Kid, Tenant};
use ron_tlog::append::LogReader;

use crate::audit::engine_appender::NewestKeys;
use crate::audit::entry::{Basis, Entry, Items, NoCaller};
use crate::audit::leaf::{Draft, Op};
use crate::audit::proofs::ProofJob;
use crate::audit::{AuditHealth, LogRing};
use crate::errors::problem;
use crate::metrics::Metrics;
use crate::replay::Replay;
use crate::settings::{InForce, Settings};
use fair::{FairQueue, PushError};
use jobs::{DeviceJob, KeyMadeJob};
use key_request::KeyRequest;
use notes::SignedNotes;
use operation::Work;
use policy::BroughtPolicy;
use uses::UsesJob;

/// Maximum items of a batch; bounds how many batches may reserve credits at the same time.
const BATCH_LEAVES: usize = ron_proto::kms::BATCH_ITEMS_MAX;

/// The actor in leaves of scheduled operations.
const SELF: &str = "ron-kms";

/// The state that the threads of the service share.
pub struct Kms {
    /// The configuration in force.
    pub settings: InForce,
    pub backends: Backends,
    /// All keys, as one snapshot; the store thread replaces it.
    pub index: Snapshot<KeyIndex>,
    /// Operation ids of signatures and envelope operations.
    pub replay: Arc<Replay>,
    /// Whether other nodes may change the keys.
    pub is_shared: bool,
    /// Room in the audit queue: one credit per leaf, taken before the work is done.
    pub credits: Credits,
    /// Bounds how many batches reserve credits at the same time: few enough that all of them can finish.
    pub batch_slots: Credits,
    /// Whether the audit log can be written.
    pub health: AuditHealth,
    /// The policy notes that were signed.
    pub notes: SignedNotes,
    /// The keys that imported keys are wrapped to.
    pub wrapping: WrappingKeys,
    pub metrics: Arc<Metrics>,
    pub clock: SharedClock,
    pub random: SharedRandom,
    /// Origin of the audit log.
    pub origin: String,
    /// Jobs for the signers.
    pub sign: FairQueue<SignJob>,
    /// Jobs for keys in devices, one queue per device.
    pub device_queues: Vec<device_jobs::DeviceQueue>,
    /// Jobs for the store thread.
    pub store_tx: Sender<StoreJob>,
    /// Finished operations for the appender.
    pub audit_tx: Sender<Entry>,
    /// Answers that wait for their proof.
    pub proof_tx: Sender<ProofJob>,
    /// Reads the audit log; `None` when it could not be opened.
    pub log: Option<LogReader>,
    /// The keys that sign its checkpoints.
    pub ring: Arc<LogRing>,
}

/// The context of a request: its caller, its deadline and where the answer goes.
pub struct CallContext {
    pub caller: Principal,
    /// Where the answer goes.
    pub responder: Responder,
    /// The job is refused if work on it has not begun by then.
    pub deadline: Deadline,
    /// When the request was parsed.
    pub since: Instant,
    /// How long the answer may wait for the proof of its leaf (`Prefer: wait=N`).
    pub proof_until: Option<Deadline>,
    /// The alias by which the path names the key.
    pub alias: Option<Alias>,
    /// Where the request comes from; `None` over a Unix socket.
    pub peer: Option<IpAddr>,
}

impl CallContext {
    /// Refuses a request whose deadline has passed.
    fn in_time(&self) -> Result<(), Refusal> {
        if self.deadline.expired() {
            return Err(Refusal::new(
                Cause::DeadlineExceeded,
                "the request waited longer than its deadline; nothing was done",
            ));
        }
        Ok(())
    }
}

/// A job for a signer, or for a thread that waits for a device.
pub struct SignJob {
    pub call: CallContext,
    pub what: Box<dyn Work>,
}

/// Whether a new key may have the purpose of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purposes {
    Shared,
    /// It must be free, as in Vault's API, to which it is the name of one key.
    Single,
}

/// Work for the store thread.
pub enum StoreJob {
    /// `POST /keys`.
    Create(CallContext, Box<CreateKey>, Purposes),
    /// `POST /keys/adopt`.
    Adopt(CallContext, Box<AdoptKey>),
    /// A change of a key.
    Change(CallContext, Kid, KeyRequest),
    /// `POST /keys/import`.
    Import(CallContext, Box<ImportKey>, Purposes),
    /// `POST /keys/.../export`.
    Export(CallContext, Kid, Box<ExportKey>),
    /// `POST /keys/.../backup`.
    Backup(CallContext, Kid, BackupKey),
    /// `POST /keys/restore`.
    Restore(CallContext, Box<RestoreKey>, Purposes),
    /// A rotation or destruction may be due for a key; the store thread decides again.
    Due(Kid),
    /// `POST /log_key/rotate`.
    RotateLogKey(CallContext, RotateLogKey),
    /// `PUT /issuer_policy`.
    IssuerPolicy(CallContext, Box<BroughtPolicy>),
    /// A checkpoint that a `note` key is to sign: remembered in the store first. Its credits are already
    /// reserved.
    Checkpoint(SignJob, Items<Credit>),
    /// A checkpoint that a device's key is about to sign: remember it only.
    Remember(Kid, Checkpoint, ReplySender<Result<(), Refusal>>),
    /// Reserve a block of nonces of an AES-GCM key.
    Uses(UsesJob),
    /// Read what other nodes have changed.
    Refresh,
    /// A device has made a key for a change that waits, or has failed to.
    KeyMade(Box<KeyMadeJob>),
    /// A device has destroyed all versions of a key, or has failed to.
    KeyDestroyed(Kid, Result<(), Refusal>),
}

impl StoreJob {
    /// The request that it is done for, where it is for one.
    pub const fn call(&self) -> Option<&CallContext> {
        match self {
            Self::Create(call, ..)
            | Self::Adopt(call, _)
            | Self::Change(call, ..)
            | Self::Import(call, ..)
            | Self::Export(call, ..)
            | Self::Backup(call, ..)
            | Self::Restore(call, ..)
            | Self::RotateLogKey(call, _)
            | Self::IssuerPolicy(call, _)
            | Self::Checkpoint(SignJob { call, .. }, _) => Some(call),
            Self::KeyMade(job) => Some(&job.waiting.call),
            Self::Remember(..)
            | Self::Uses(_)
            | Self::Refresh
            | Self::Due(_)
            | Self::KeyDestroyed(..) => None,
        }
    }
}

impl Kms {
    /// Takes a reloaded configuration.
    pub fn adopt(&self, settings: Settings) {
        self.backends.adopt(&settings.devices);
        self.settings.store(settings);
    }

    /// Maximum time of a request.
    pub fn sign_deadline(&self) -> Duration {
        self.settings.with(|settings| settings.keys.sign_deadline)
    }

    /// Maximum wait for room in the audit queue.
    fn reserve_wait(&self) -> Duration {
        self.settings.with(|settings| settings.keys.reserve_wait)
    }

    /// The context of an operation that the service does by itself, for a key of `tenant`. The answer goes
    /// nowhere.
    pub fn internal_call(&self, tenant: &Tenant) -> CallContext {
        let deadline = Deadline::within(self.sign_deadline());
        let (responder, _) = Responder::detached(deadline);
        CallContext {
            caller: Principal {
                name: SELF.into(),
                client: None,
                tenant: tenant.clone(),
                scopes: Arc::from([]),
                caveats: Arc::from([]),
                budgets: Arc::from([]),
                kind: PrincipalKind::Service,
                key_prefixes: None,
                jti: None,
            },
            responder,
            deadline,
            since: self.clock.now(),
            proof_until: None,
            alias: None,
            peer: None,
        }
    }

    /// Queues a job for the signers or for the threads of its device, or answers 429 at once.
    pub fn submit_sign(&self, job: SignJob) {
        let device_queue = match self.queue_for(&*job.what) {
            Ok(queue) => queue,
            Err(refusal) => return self.refuse_unlogged(job.call, &refusal),
        };
        let taken = match device_queue {
            Some(tx) => match tx.try_send(DeviceJob::Use(Box::new(job))) {
                Err(SendError::Full(DeviceJob::Use(job))) => {
                    Err((*job, Refusal::busy(tx.retry_after_s())))
                }
                Err(SendError::Closed(DeviceJob::Use(job))) => {
                    Err((*job, Refusal::new(Cause::Draining, "")))
                }
                _ => Ok(()),
            },
            None => self.push_fair(job),
        };
        if let Err((job, refusal)) = taken {
            self.refuse_unlogged(job.call, &refusal);
        }
    }

    /// Appends a job to its tenant's queue in front of the signers.
    fn push_fair(&self, job: SignJob) -> Result<(), (SignJob, Refusal)> {
        let (tenant, cost) = (job.call.caller.tenant.clone(), job.what.cost());
        let busy = || Refusal::busy(self.sign.retry_after_s());
        self.sign.push(&tenant, cost, job).map_err(|why| match why {
            PushError::Full(job) => (job, busy()),
            PushError::Share(job) => {
                let share = self.metrics.rejects.with_label_values(&["tenant_share"]);
                share.inc();
                (job, busy())
            }
            PushError::Closed(job) => (job, Refusal::new(Cause::Draining, "")),
        })
    }

    /// Queues a job for the store thread, or refuses it at once.
    pub fn submit_store(&self, job: StoreJob) {
        let (job, refusal) = match self.store_tx.try_send(job) {
            Ok(()) => return,
            Err(SendError::Full(job)) => (job, Refusal::busy(self.store_tx.retry_after_s())),
            Err(SendError::Closed(job)) => (job, Refusal::new(Cause::Draining, "")),
        };
        self.refuse_store_job(job, refusal);
    }

    /// Refuses a store job that will not be done, to whatever waits for it.
    pub fn refuse_store_job(&self, job: StoreJob, refusal: Refusal) {
        match job {
            StoreJob::Create(call, ..)
            | StoreJob::Adopt(call, _)
            | StoreJob::Change(call, ..)
            | StoreJob::Import(call, _, _)
            | StoreJob::Export(call, ..)
            | StoreJob::Backup(call, ..)
            | StoreJob::Restore(call, ..)
            | StoreJob::RotateLogKey(call, _)
            | StoreJob::IssuerPolicy(call, _)
            | StoreJob::Checkpoint(SignJob { call, .. }, _) => {
                self.refuse_unlogged(call, &refusal);
            }
            StoreJob::Uses(job) => job.refuse(refusal),
            StoreJob::Refresh => {} // the next job, or the next pause, reads too
            StoreJob::Due(_) | StoreJob::KeyDestroyed(..) => {} // still due: the scheduler sends it again
            StoreJob::KeyMade(job) => {
                // The device has made a key that no change will use now.
                if let (Ok(MadeKey::Device(key)), None) = (job.made, &job.order.adopt) {
                    self.discard(key);
                }
                self.refuse_unlogged(job.waiting.call, &refusal);
            }
            StoreJob::Remember(_, _, reply) => {
                let _ = reply.send(Err(refusal)); // the waiting thread may have timed out
            }
        }
    }

    /// Answers a refusal that has no leaf: overload, drain, a lost audit log, a passed deadline.
    pub fn refuse_unlogged(&self, call: CallContext, refusal: &Refusal) {
        self.metrics
            .rejects
            .with_label_values(&[refusal.cause.code()])
            .inc();
        call.responder.send(problem(refusal.clone()));
    }

    /// The checks before any work: the deadline has not passed, the audit log can be written, and there is room for
    /// `leaves` leaves, which is reserved here. If one fails, nothing is done and nothing is logged.
    pub fn admit(&self, call: &CallContext, leaves: usize) -> Result<Items<Credit>, Refusal> {
        self.may_begin(call)?;
        let until = call.deadline.earlier(Deadline::within(self.reserve_wait()));
        let busy = || {
            self.metrics
                .rejects
                .with_label_values(&["audit_queue_full"])
                .inc();
            Refusal::busy(self.audit_tx.retry_after_s())
        };
        // At most `batch_slots_max` batches hold this while they reserve, and a queue has room for all of them: without
        // it, batches could each hold part of the credits and wait for the rest until their deadlines.
        let _slot = match leaves {
            0..=1 => None,
            _ => Some(self.batch_slots.acquire(until).ok_or_else(busy)?),
        };
        let mut credits = Items::with_capacity(leaves);
        for _ in 0..leaves {
            let credit = self
                .credits
                .try_acquire()
                .or_else(|| self.credits.acquire(until));
            credits.push(credit.ok_or_else(busy)?);
        }
        Ok(credits)
    }

    /// Checks that the deadline has not passed, that the audit log can be written, and that the date is known.
    fn may_begin(&self, call: &CallContext) -> Result<(), Refusal> {
        call.in_time()?;
        self.health.check()?;
        match self.clock.date_unknown() {
            Some(alarm) => Err(Refusal::date_unknown(&alarm)),
            None => Ok(()),
        }
    }

    /// What a result with this key is decided from now; `None` where this node alone changes the keys.
    pub fn basis(&self, kid: &Kid) -> Option<Basis> {
        self.is_shared.then(|| Basis {
            index: self.index.load(),
            keys: Items::from_buf([kid.clone()]),
        })
    }

    /// Hands an entry to the appender. Its credits guarantee room, so a full queue is a defect; a closed queue
    /// means that the appender has already stopped. Either way the callers get `audit_unavailable`, never success.
    pub fn enter(&self, entry: Entry) {
        let deadline = Deadline::within(Duration::from_secs(1));
        if let Err(SendError::Full(entry) | SendError::Closed(entry)) =
            self.audit_tx.send(entry, deadline)
        {
            entry.fail();
        }
    }

    /// Queues a leaf about the service itself; waits up to `audit.reserve_wait` for room.
    pub fn log_service(&self, draft: Draft) -> Result<(), Refusal> {
        let credit = self.credits.acquire(Deadline::within(self.reserve_wait()));
        let credit = credit.ok_or_else(|| Refusal::busy(self.audit_tx.retry_after_s()))?;
        let drafts = Items::from_buf([draft]);
        let credits = Items::from_buf([credit]);
        self.enter(Entry::new(drafts, NoCaller, credits));
        Ok(())
    }

    /// Queues the leaf about a date that `by` accepts. Its time is still that of the service's own date.
    pub fn log_date(&self, by: &Principal, alarm: ClockAlarm) -> Result<(), Problem> {
        let context = format!("the machine's date is {} ms ahead", alarm.ahead_ms);
        let draft = Draft {
            context: Some(context),
            request_id: Trace::current(),
            ..Draft::new(Op::AcceptDate, &by.name, by.tenant.as_str())
        };
        self.health.check().map_err(problem)?;
        self.log_service(draft).map_err(problem)
    }

    /// How many batches may reserve credits at the same time.
    pub fn batch_slots_max(audit_queue: usize) -> usize {
        (audit_queue / BATCH_LEAVES).max(1)
    }

    /// Number of leaves known to be durable. A lower bound: the outbox stores it as the place where the search for
    /// an interrupted change's leaf begins.
    pub fn log_size(&self) -> u64 {
        self.log.as_ref().map_or(0, LogReader::size_durable)
    }
}

impl NewestKeys for Kms {
    fn index(&self) -> Arc<KeyIndex> {
        self.index.load()
    }

    fn ask(&self) {
        // A full queue: the store thread reads before each of its jobs.
        let _ = self.store_tx.try_send(StoreJob::Refresh);
    }
}

/// Longest single wait of a thread without jobs.
const IDLE: Duration = Duration::from_secs(60);

/// Runs `take` on every job until shutdown, then on every job that is still queued.
pub fn each_job<T>(jobs: &Receiver<T>, ctx: &ThreadCtx, mut take: impl FnMut(T)) {
    loop {
        match jobs.recv(&ctx.shutdown, Deadline::within(IDLE)) {
            Recv::Item(job) => take(job),
            Recv::Timeout => {}
            Recv::Shutdown | Recv::Closed => break,
        }
    }
    while let Some(job) = jobs.try_recv() {
        take(job);
    }
}
