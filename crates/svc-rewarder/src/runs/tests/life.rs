//! One run of the service between two crashes, stepped by hand, and the inputs to feed it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_files::Dir;
use ron_http::{Body, Responder, Response};
use ron_kernel::queue::bare_queue;
use ron_kernel::{Deadline, Receiver, ReplyWaiter, Sender, Shutdown, ShutdownTrigger, SystemClock};
use ron_proto::b64;
use ron_proto::policy::{PolicySig, digest_message, policy_message};
use ron_proto::rewarder::{ImportKind, ManifestSig, POLICY_KIND, SignedPolicy};
use ron_proto::values::{ContentId, EpochId, Tenant};
use serde_json::json;

use super::ledger::SimLedger;
use crate::boot::MIGRATIONS;
use crate::inline::Calc;
use crate::inputs::import;
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::intake::Scratch;
use crate::library::Library;
use crate::manifest::run_key;
use crate::metrics::Metrics;
use crate::runs::artifact::ArtifactWriter;
use crate::runs::emitter::Emitter;
use crate::runs::ports::{PortError, Signer};
use crate::runs::registry::Registry;
use crate::runs::retention::Retention;
use crate::runs::scheduler::{Memory, RunStore, Scheduler};
use crate::runs::worker::{ResultItem, Worker};
use crate::runs::{Intent, Job, Run, RunAction, RunId, RunRequest, Update, db};
use crate::topology::{Q_INTENTS, Q_RESULTS, Q_UPDATES, Q_WORK, Q_WORK_REQ};
use ron_service::pinned::{KeyRing, PinnedKey};

pub(super) fn key(seed: u8) -> Ed25519Key {
    Ed25519Key::from_seed(&[seed; 32])
}

pub(super) fn ring(seed: u8) -> KeyRing {
    KeyRing::new(vec![PinnedKey::new(
        Some("test".into()),
        key(seed).public(),
    )])
}

pub(super) struct TestSigner(pub(super) u8);

impl Signer for TestSigner {
    fn sign(&self, commitment: &ContentId, _: Deadline) -> Result<ManifestSig, PortError> {
        let signature = key(self.0).sign(&digest_message("blake3", &commitment.0));
        Ok(ManifestSig {
            alg: "ed25519".into(),
            key: "test".into(),
            value: b64::url(&signature),
            receipt: None,
        })
    }
}

pub(super) struct SqlStore(pub(super) rusqlite::Connection);

impl SqlStore {
    pub(super) fn open(root: &Path) -> Self {
        let db = rusqlite::Connection::open(root.join("runs.db")).expect("a database");
        // A crash here loses memory, not power: the database need not wait for a disk.
        db.execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;")
            .expect("pragmas");
        if db.prepare("SELECT * FROM run").is_err() {
            for migration in MIGRATIONS {
                db.execute_batch(migration.sql).expect("the schema");
            }
        }
        Self(db)
    }
}

impl RunStore for SqlStore {
    fn put(&mut self, run: &Run) -> Result<(), String> {
        db::put(&self.0, run).map_err(|error| error.to_string())
    }

    fn remove(&mut self, id: &RunId) -> Result<(), String> {
        db::remove(&self.0, id).map_err(|error| error.to_string())
    }
}

/// One run of the service between two crashes, stepped by hand.
pub(super) struct Life {
    pub(super) scheduler: Scheduler,
    pub(super) memory: Memory,
    pub(super) worker: Worker,
    pub(super) writer: ArtifactWriter,
    pub(super) emitter: Emitter,
    pub(super) work: Receiver<Job>,
    pub(super) results: Receiver<ResultItem>,
    pub(super) intents: Receiver<Intent>,
    pub(super) updates: Receiver<Update>,
    pub(super) work_tx: Sender<Job>,
    pub(super) shutdown: Shutdown,
    pub(super) _trigger: ShutdownTrigger,
}

impl Life {
    pub(super) fn begin(root: &Path, ledger: &Arc<SimLedger>, auto_settle: bool) -> Self {
        let store = SqlStore::open(root);
        let runs = db::load(&store.0).expect("readable");
        let life = Self::over(&Dir::os(root), (Box::new(store), runs), ledger, auto_settle);
        let mut life = life.expect("a disk without faults");
        life.scheduler.store_fault = Box::new(|why| panic!("{why}"));
        life
    }

    /// The same over a directory of any disk and the service's store in it.
    pub(super) fn over(
        dir: &Dir,
        (store, runs): (Box<dyn RunStore>, Vec<Run>),
        ledger: &Arc<SimLedger>,
        auto_settle: bool,
    ) -> io::Result<Self> {
        let metrics = Metrics::new(&ron_kernel::Registry::new("test"));
        let clock = SystemClock::shared();
        let (_, work_req) = bare_queue(&Q_WORK_REQ, 8);
        let (work_tx, work) = bare_queue(&Q_WORK, 2);
        let (results_tx, results) = bare_queue(&Q_RESULTS, 8);
        let (intents_tx, intents) = bare_queue(&Q_INTENTS, 8);
        let (updates_tx, updates) = bare_queue(&Q_UPDATES, 64);
        let registry = Registry::new(runs);
        let scheduler = Scheduler {
            work_req,
            updates: updates.clone(),
            work: work_tx.clone(),
            intents: intents_tx,
            registry: registry.clone(),
            auto_settle,
            can_settle: true,
            compute_budget: Duration::from_mins(1),
            room: ron_files::DiskRoom::unlimited(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            events: ron_service::events::Events::default(),
            store_fault: Box::new(|_| {}),
        };
        let memory = scheduler.resume(store);
        let (trigger, shutdown) = Shutdown::pair();
        Ok(Self {
            scheduler,
            memory,
            worker: Worker {
                library: library_in(dir),
                artifacts: dir.join("runs"),
                origin: None,
                scratch: Scratch::open(dir.join("intake"))?,
                spool: dir.join("spool"),
                pool: Calc::Here,
                work: work.clone(),
                results: results_tx,
                updates: updates_tx.clone(),
                clock: clock.clone(),
                metrics: metrics.clone(),
            },
            writer: ArtifactWriter {
                root: dir.join("runs"),
                results: results.clone(),
                updates: updates_tx.clone(),
                metrics: metrics.clone(),
                retention: Retention {
                    root: dir.join("runs"),
                    library: library_in(dir),
                    registry: registry.clone(),
                    artifacts: Duration::ZERO,
                    snapshots: Duration::ZERO,
                    clock: clock.clone(),
                    swept: metrics.swept.clone(),
                },
                disk: Box::new(|_| {}),
            },
            emitter: Emitter {
                root: dir.join("runs"),
                intents: intents.clone(),
                updates: updates_tx,
                ledger: ledger.clone(),
                signer: Arc::new(TestSigner(2)),
                pinned: ring(2),
                principal: "svc-rewarder".parse().expect("a principal"),
                call_timeout: Duration::from_secs(1),
                retry_pause: Duration::from_millis(100),
                clock,
                metrics,
                upstream: Box::new(|_| {}),
                ledger_unavailable: Box::new(|_| {}),
            },
            work,
            results,
            intents,
            updates,
            work_tx,
            shutdown,
            _trigger: trigger,
        })
    }

    /// Performs one step; false when there is nothing to do.
    pub(super) fn step(&mut self) -> bool {
        self.scheduler.tick(&mut self.memory, &self.shutdown);
        if let Some(update) = self.updates.try_recv() {
            self.scheduler.handle_update(&mut self.memory, &update);
        } else if let Some(job) = self.work.try_recv() {
            self.worker.tick(job, &self.shutdown);
        } else if let Some(item) = self.results.try_recv() {
            self.writer.tick(item, &self.shutdown);
        } else if let Some(intent) = self.intents.try_recv() {
            self.emitter.tick(&intent, &self.shutdown);
        } else {
            return false;
        }
        true
    }

    pub(super) fn settle_down(&mut self) {
        while self.step() {}
    }

    pub(super) fn ask(&mut self, epoch: &str, ask: RunAction, wait: bool) -> ReplyWaiter<Response> {
        let by = Deadline::within(Duration::from_secs(5));
        let (responder, answer) = Responder::detached(by);
        let asked = RunRequest {
            tenant: tenant(),
            epoch: epoch.parse().expect("an epoch"),
            action: ask,
            wait: wait.then_some(Duration::from_secs(4)),
            compute_by: None,
            responder,
        };
        self.scheduler.handle_request(&mut self.memory, asked);
        answer
    }

    /// Lets `pause` pass, then handles what is due in the scheduler.
    pub(super) fn tick_after(&mut self, pause: Duration) {
        self.shutdown.wait(Deadline::within(pause));
        self.scheduler.tick(&mut self.memory, &self.shutdown);
    }

    pub(super) fn run(&self, epoch: &str) -> Run {
        let epoch = epoch.parse().expect("an epoch");
        let entry = self.scheduler.registry.current(&tenant(), &epoch);
        (*entry.expect("a run").run).clone()
    }
}

pub(super) fn tenant() -> Tenant {
    Tenant::default()
}

pub(super) fn library(root: &Path) -> Library {
    library_in(&Dir::os(root))
}

pub(super) fn library_in(dir: &Dir) -> Library {
    Library::new(dir.clone(), None, ring(1))
}

pub(super) fn signed(pool: u128) -> SignedPolicy {
    signed_as(&json!({"pool": {"account": "pool:default/test", "amount_minor": pool.to_string()}}))
}

/// The same with these fields replaced.
pub(super) fn signed_as(edit: &serde_json::Value) -> SignedPolicy {
    let mut policy = json!({
        "format": 1, "tenant": "default", "id": "test", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/test", "amount_minor": "10000"},
        "metrics": {"m": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/test"}
    });
    for (field, value) in edit.as_object().expect("an object of replaced fields") {
        policy[field] = value.clone();
    }
    let message = policy_message(POLICY_KIND, &ron_proto::jcs::canonicalize(&policy));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "test".into(),
        value: b64::url(&key(1).sign(&message)),
    };
    SignedPolicy { policy, signature }
}

/// Stores a policy and usage of `rows` accounts; returns the request to compute them.
pub(super) fn inputs(root: &Path, epoch: &str, rows: usize, dry_run: bool) -> RunAction {
    adjusting(root, epoch, rows, dry_run, None)
}

/// The same, for an epoch that corrects another.
pub(super) fn adjusting(
    root: &Path,
    epoch: &str,
    rows: usize,
    dry_run: bool,
    corrects: Option<&str>,
) -> RunAction {
    let adjusts: Option<EpochId> = corrects.map(|epoch| epoch.parse().expect("an epoch"));
    let library = library(root);
    let policy = library.verify(&signed(10_000)).expect("signed");
    library.put_policy(&tenant(), &policy).expect("stored");
    let sealed = import::csv(usage(rows).as_bytes(), ImportKind::Totals).expect("good rows");
    library.put_snapshot(&tenant(), &sealed, 0).expect("stored");
    compute(epoch, &sealed, &policy, adjusts, dry_run)
}

/// Usage of so many accounts.
pub(super) fn usage(rows: usize) -> String {
    let mut text = String::from("account,metric,amount\n");
    for row in 0..rows {
        text.push_str(&format!("acc:{row:05},m,{}\n", row + 1));
    }
    text
}

/// The request to compute an epoch.
pub(super) fn compute(
    epoch: &str,
    sealed: &Sealed,
    policy: &VerifiedPolicy,
    adjusts: Option<EpochId>,
    dry_run: bool,
) -> RunAction {
    let epoch: EpochId = epoch.parse().expect("an epoch");
    RunAction::Compute {
        snapshot: sealed.cid(),
        policy_id: policy.policy.id.clone(),
        policy_hash: policy.hash,
        run_key: run_key(
            &tenant(),
            &epoch,
            adjusts.as_ref(),
            &sealed.cid(),
            &policy.hash,
            policy.policy.rule_set,
        ),
        adjusts,
        dry_run,
        by: "operator".into(),
    }
}

pub(super) fn status(answer: ReplyWaiter<Response>) -> (u16, serde_json::Value) {
    let response = answer
        .wait(Deadline::within(Duration::from_secs(1)))
        .expect("an answer");
    let body = match &response.body {
        Body::Problem(problem) => json!({"code": problem.code}),
        other => serde_json::from_slice(other.as_bytes()).expect("JSON"),
    };
    (response.status, body)
}
