//! The stages stepped by hand over a simulated ledger: every crash point, every kind of "away".
//!
//! Fault model: a crash loses everything in memory and keeps the store and the directories as
//! they are; a ledger call may be lost before it is carried out, or carried out and its answer
//! lost. The simulated ledger keeps the rules of the real one: an epoch is bound to one manifest
//! for ever, payouts come in index order and are known by index, the books must close.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_http::{Body, Responder, Response};
use ron_kernel::queue::bare_queue;
use ron_kernel::{
    Deadline, LockSpec, RankedMutex, Receiver, ReplyWaiter, Sender, Shutdown, ShutdownTrigger,
    SystemClock,
};
use ron_proto::b64;
use ron_proto::ledger::{
    AccountDoc, BalanceDoc, CommitAnswer, Entry, EntryAnswer, EpochDoc, EpochState, Receipt,
    RefusalCode, TxId, escrow_account,
};
use ron_proto::policy::{PolicySig, digest_message, policy_message};
use ron_proto::rewarder::{ImportKind, ManifestSig, POLICY_KIND, RunState, SignedPolicy};
use ron_proto::values::{Account, Amount, ContentId, EpochId, Tenant, Timestamp};
use serde_json::json;

use super::artifact::ArtifactWriter;
use super::emitter::Emitter;
use super::library::{Library, LibraryError};
use super::ports::{Ledger, PortError, Signer};
use super::registry::Registry;
use super::scheduler::{Memory, RunStore, Scheduler};
use super::worker::{ResultItem, Worker};
use super::{Ask, Asked, Intent, Job, Run, Update, db};
use crate::inputs::import;
use crate::inputs::keys::{KeyRing, PinnedKey};
use crate::manifest::{dir, run_key, verify};
use crate::metrics::Metrics;
use crate::topology::{Q_INTENTS, Q_RESULTS, Q_UPDATES, Q_WORK, Q_WORK_REQ};

fn key(seed: u8) -> Ed25519Key {
    Ed25519Key::from_seed(&[seed; 32])
}

fn ring(seed: u8) -> KeyRing {
    KeyRing::new(vec![PinnedKey::new(
        Some("test".into()),
        key(seed).public(),
    )])
}

static SIM_LOCK: LockSpec = LockSpec {
    name: "sim",
    rank: 1,
    guards: "the simulated ledger",
};

#[derive(Default)]
struct Books {
    balances: BTreeMap<String, u128>,
    epochs: BTreeMap<(Tenant, EpochId), EpochDoc>,
    paid: BTreeMap<(String, u64), u128>,
    seq: u64,
}

/// A ledger in memory whose k-th call can be lost, before or after it is carried out.
struct SimLedger {
    books: RankedMutex<Books>,
    calls: AtomicU64,
    lose_call: AtomicU64,
    lose_answer: AtomicU64,
    away: AtomicU64,
}

impl SimLedger {
    fn new(pool: u128) -> Arc<Self> {
        let mut books = Books::default();
        books.balances.insert("pool:test".into(), pool);
        Arc::new(Self {
            books: RankedMutex::new(&SIM_LOCK, books),
            calls: AtomicU64::new(0),
            lose_call: AtomicU64::new(u64::MAX),
            lose_answer: AtomicU64::new(u64::MAX),
            away: AtomicU64::new(0),
        })
    }

    fn guarded<T>(&self, act: impl FnOnce(&mut Books) -> T) -> Result<T, PortError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let gone = |at: &AtomicU64| at.load(Ordering::SeqCst) == call;
        if self.away.load(Ordering::SeqCst) == 1 || gone(&self.lose_call) {
            return Err(PortError::Away("lost".into()));
        }
        let answer = act(&mut self.books.lock());
        if gone(&self.lose_answer) {
            Err(PortError::Away("answer lost".into()))
        } else {
            Ok(answer)
        }
    }

    fn balance(&self, account: &str) -> u128 {
        self.books
            .lock()
            .balances
            .get(account)
            .copied()
            .unwrap_or(0)
    }
}

fn done(books: &mut Books, entry: &Entry, replayed: bool) -> EntryAnswer {
    if !replayed {
        books.seq += 1;
    }
    let (seq, txid) = (books.seq, TxId(u128::from(books.seq)));
    let receipt = Receipt {
        txid,
        op: entry.kind(),
        from: None,
        to: None,
        asset: None,
        amount_minor: None,
        nonce: None,
        idem: String::new(),
        ts: Timestamp(0),
        seq,
        receipt_hash: ContentId([0; 32]),
    };
    EntryAnswer::Done {
        seq,
        txid,
        receipt,
        replayed,
    }
}

fn refused(code: RefusalCode, expected: Option<u64>) -> EntryAnswer {
    EntryAnswer::Refused {
        code,
        seq: None,
        expected,
        replayed: false,
    }
}

fn apply(books: &mut Books, entry: &Entry) -> EntryAnswer {
    match entry {
        Entry::EpochOpen {
            tenant,
            epoch,
            from,
            asset,
            amount_minor,
            commitment,
            sum_root,
            recipients,
            ..
        } => {
            if let Some(doc) = books.epochs.get(&(tenant.clone(), epoch.clone())) {
                let same = doc.commitment == *commitment && doc.sum_root == *sum_root;
                return if same {
                    done(books, entry, true)
                } else {
                    refused(RefusalCode::EpochConflict, None)
                };
            }
            let pool = books.balances.entry(from.to_string()).or_default();
            let Some(rest) = pool.checked_sub(amount_minor.0) else {
                return refused(RefusalCode::InsufficientFunds, None);
            };
            *pool = rest;
            let doc = EpochDoc {
                tenant: tenant.clone(),
                epoch: epoch.clone(),
                state: EpochState::Open,
                commitment: *commitment,
                sum_root: *sum_root,
                asset: asset.clone(),
                from: from.clone(),
                escrow: escrow_account(tenant, epoch),
                recipients: *recipients,
                amount_minor: *amount_minor,
                paid_minor: Amount::ZERO,
                next_index: 0,
                opened_seq: books.seq + 1,
                closed_seq: None,
            };
            books.epochs.insert((tenant.clone(), epoch.clone()), doc);
            done(books, entry, false)
        }
        Entry::Payout {
            tenant,
            epoch,
            index,
            to,
            amount_minor,
            ..
        } => {
            let Some(doc) = books.epochs.get_mut(&(tenant.clone(), epoch.clone())) else {
                return refused(RefusalCode::EpochUnknown, None);
            };
            if *index < doc.next_index {
                return done(books, entry, true);
            }
            if *index > doc.next_index {
                return refused(RefusalCode::IndexGap, Some(doc.next_index));
            }
            doc.next_index += 1;
            doc.paid_minor.0 += amount_minor.0;
            assert!(
                doc.paid_minor <= doc.amount_minor,
                "paid more than the escrow holds"
            );
            *books.balances.entry(to.to_string()).or_default() += amount_minor.0;
            let twice = books
                .paid
                .insert((epoch.to_string(), *index), amount_minor.0);
            assert_eq!(twice, None, "payout {index} made twice");
            done(books, entry, false)
        }
        Entry::EpochClose { tenant, epoch, .. } => {
            let Some(doc) = books.epochs.get_mut(&(tenant.clone(), epoch.clone())) else {
                return refused(RefusalCode::EpochUnknown, None);
            };
            if doc.next_index < doc.recipients {
                return refused(RefusalCode::EpochIncomplete, None);
            }
            let again = std::mem::replace(&mut doc.state, EpochState::Closed) == EpochState::Closed;
            done(books, entry, again)
        }
        other => panic!("the rewarder may not make {other:?}"),
    }
}

impl Ledger for SimLedger {
    fn account(&self, account: &Account, _: Deadline) -> Result<AccountDoc, PortError> {
        self.guarded(|books| AccountDoc {
            account: account.clone(),
            nonce: 0,
            frozen: false,
            balances: vec![BalanceDoc {
                asset: "ron".parse().expect("an asset"),
                amount_minor: Amount(books.balances.get(account.as_str()).copied().unwrap_or(0)),
                available_minor: Amount::ZERO,
            }],
            holds: Vec::new(),
            seq: books.seq,
            ts: Timestamp(0),
        })
    }

    fn epoch(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        _: Deadline,
    ) -> Result<Option<EpochDoc>, PortError> {
        self.guarded(|books| books.epochs.get(&(tenant.clone(), epoch.clone())).cloned())
    }

    fn commit(&self, entries: Vec<Entry>, _: Deadline) -> Result<CommitAnswer, PortError> {
        assert!(entries.len() <= ron_proto::ledger::MAX_ENTRIES);
        self.guarded(|books| CommitAnswer {
            results: entries.iter().map(|entry| apply(books, entry)).collect(),
        })
    }
}

struct TestSigner(u8);

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

struct SqlStore(rusqlite::Connection);

impl SqlStore {
    fn open(root: &Path) -> Self {
        let db = rusqlite::Connection::open(root.join("runs.db")).expect("a database");
        let schema = db::SCHEMA_1.replace("CREATE TABLE run", "CREATE TABLE IF NOT EXISTS run");
        db.execute_batch(&schema).expect("the schema");
        Self(db)
    }
}

impl RunStore for SqlStore {
    fn put(&mut self, run: &Run) -> Result<(), String> {
        db::put(&self.0, run).map_err(|error| error.to_string())
    }
}

/// A service between two crashes, stepped by hand.
struct Life {
    scheduler: Scheduler,
    memory: Memory,
    worker: Worker,
    writer: ArtifactWriter,
    emitter: Emitter,
    work: Receiver<Job>,
    results: Receiver<ResultItem>,
    intents: Receiver<Intent>,
    updates: Receiver<Update>,
    work_tx: Sender<Job>,
    shutdown: Shutdown,
    _trigger: ShutdownTrigger,
}

impl Life {
    fn begin(root: &Path, ledger: &Arc<SimLedger>, auto_settle: bool) -> Self {
        let metrics = Metrics::new(&ron_kernel::Registry::new("test"));
        let clock = SystemClock::shared();
        let (_, work_req) = bare_queue(&Q_WORK_REQ, 8);
        let (work_tx, work) = bare_queue(&Q_WORK, 2);
        let (results_tx, results) = bare_queue(&Q_RESULTS, 8);
        let (intents_tx, intents) = bare_queue(&Q_INTENTS, 8);
        let (updates_tx, updates) = bare_queue(&Q_UPDATES, 64);
        let store = SqlStore::open(root);
        let registry = Registry::new(db::load(&store.0).expect("readable"));
        let scheduler = Scheduler {
            work_req,
            updates: updates.clone(),
            work: work_tx.clone(),
            intents: intents_tx.clone(),
            registry,
            auto_settle,
            can_settle: true,
            compute_budget: Duration::from_secs(60),
            clock: clock.clone(),
            metrics: metrics.clone(),
            store_fault: Box::new(|why| panic!("{why}")),
        };
        let memory = scheduler.resume(Box::new(store));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .expect("a thread");
        let (trigger, shutdown) = Shutdown::pair();
        Self {
            scheduler,
            memory,
            worker: Worker {
                library: library(root),
                pool: Arc::new(pool),
                work: work.clone(),
                results: results_tx,
                updates: updates_tx.clone(),
                metrics: metrics.clone(),
            },
            writer: ArtifactWriter {
                root: root.join("runs"),
                results: results.clone(),
                intents: intents_tx,
                emits: true,
                updates: updates_tx.clone(),
                metrics: metrics.clone(),
                disk: Box::new(|_| {}),
            },
            emitter: Emitter {
                root: root.join("runs"),
                intents: intents.clone(),
                updates: updates_tx,
                ledger: ledger.clone(),
                signer: Arc::new(TestSigner(2)),
                pinned: ring(2),
                principal: "svc-rewarder".parse().expect("a principal"),
                call_timeout: Duration::from_secs(1),
                clock,
                metrics,
                upstream: Box::new(|_| {}),
            },
            work,
            results,
            intents,
            updates,
            work_tx,
            shutdown,
            _trigger: trigger,
        }
    }

    /// Does one thing; false when there is nothing to do.
    fn step(&mut self) -> bool {
        self.scheduler.tick(&mut self.memory, &self.shutdown);
        if let Some(update) = self.updates.try_recv() {
            self.scheduler.updated(&mut self.memory, &update);
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

    fn settle_down(&mut self) {
        while self.step() {}
    }

    fn ask(&mut self, epoch: &str, ask: Ask, wait: bool) -> ReplyWaiter<Response> {
        let by = Deadline::within(Duration::from_secs(5));
        let (responder, answer) = Responder::detached(by);
        let asked = Asked {
            id: (tenant(), epoch.parse().expect("an epoch")),
            ask,
            wait: wait.then_some(Duration::from_secs(4)),
            compute_by: None,
            responder,
        };
        self.scheduler
            .asked(&mut self.memory, asked, &self.shutdown);
        answer
    }

    fn run(&self, epoch: &str) -> Run {
        let id = (tenant(), epoch.parse().expect("an epoch"));
        (*self.scheduler.registry.get(&id).expect("a run").run).clone()
    }
}

fn tenant() -> Tenant {
    Tenant::default()
}

fn library(root: &Path) -> Library {
    Library::new(root.to_owned(), None, ring(1))
}

fn signed(pool: u128) -> SignedPolicy {
    let policy = json!({
        "format": 1, "id": "test", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:test", "amount_minor": pool.to_string()},
        "metrics": {"m": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:test"}
    });
    let message = policy_message(POLICY_KIND, &ron_proto::jcs::canonicalize(&policy));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "test".into(),
        value: b64::url(&key(1).sign(&message)),
    };
    SignedPolicy { policy, signature }
}

/// Stores a policy and usage of `rows` accounts; the request for them.
fn inputs(root: &Path, epoch: &str, rows: usize, dry_run: bool) -> Ask {
    let library = library(root);
    let policy = library.verify(&signed(10_000)).expect("signed");
    library.put_policy(&tenant(), &policy).expect("stored");
    let mut text = String::from("account,metric,amount\n");
    for row in 0..rows {
        text.push_str(&format!("acc:{row:05},m,{}\n", row + 1));
    }
    let sealed = import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    library.put_snapshot(&tenant(), &sealed).expect("stored");
    let epoch: EpochId = epoch.parse().expect("an epoch");
    Ask::Compute {
        snapshot: sealed.cid(),
        policy_id: policy.policy.id.clone(),
        policy_hash: policy.hash,
        run_key: run_key(
            &tenant(),
            &epoch,
            &sealed.cid(),
            &policy.hash,
            policy.policy.rule_set,
        ),
        dry_run,
    }
}

fn status(answer: ReplyWaiter<Response>) -> (u16, serde_json::Value) {
    let response = answer
        .wait(Deadline::within(Duration::from_secs(1)))
        .expect("an answer");
    let body = match &response.body {
        Body::Problem(problem) => json!({"code": problem.code}),
        other => serde_json::from_slice(other.as_bytes()).expect("JSON"),
    };
    (response.status, body)
}

fn check_paid(ledger: &SimLedger, recipients: usize) {
    let books = ledger.books.lock();
    let payees = books
        .balances
        .iter()
        .filter(|(account, _)| account.starts_with("acc:"));
    let paid: u128 = payees.map(|(_, amount)| amount).sum();
    assert_eq!(paid, 10_000, "every unit is paid");
    assert_eq!(books.paid.len(), recipients, "every payee once");
}

#[test]
fn a_run_goes_from_request_to_settled() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 2_500, false);
    let first = life.ask("e1", ask.clone(), false);
    assert_eq!(status(first).0, 202);
    assert_eq!(
        db::load(&SqlStore::open(root.path()).0)
            .expect("rows")
            .len(),
        1,
        "durable before 202"
    );
    let waiting = life.ask("e1", ask.clone(), true);
    life.settle_down();
    let (code, body) = status(waiting);
    assert_eq!((code, body["state"].as_str()), (200, Some("settled")));
    let recipients = body["totals"]["recipients"].as_u64().expect("a number");
    assert!(recipients > 2_000, "several batches");
    assert_eq!(body["progress"]["intents_settled"], recipients);
    check_paid(&ledger, usize::try_from(recipients).expect("few"));
    assert_eq!(
        status(life.ask("e1", ask, false)).0,
        200,
        "at once if it exists"
    );
    let other = inputs(root.path(), "e1", 3, false);
    let (code, body) = status(life.ask("e1", other, false));
    assert_eq!((code, body["code"].as_str()), (409, Some("epoch_conflict")));
    let pins = verify::Pins {
        policy: ring(1),
        manifest: ring(2),
    };
    let dir = dir::path(
        &root.path().join("runs"),
        &tenant(),
        &"e1".parse().expect("e"),
        false,
    );
    verify::verify_run_dir(&dir, &pins).expect("verifies offline");
    assert!(dir.join(dir::LEDGER).exists(), "evidence is kept");
}

#[test]
fn a_crash_at_any_step_pays_everyone_once() {
    for crash_at in 0.. {
        let root = tempfile::tempdir().expect("a directory");
        let ledger = SimLedger::new(10_000);
        let ask = inputs(root.path(), "e1", 40, false);
        let mut life = Life::begin(root.path(), &ledger, true);
        assert_eq!(status(life.ask("e1", ask.clone(), false)).0, 202);
        let mut steps = 0;
        while steps < crash_at && life.step() {
            steps += 1;
        }
        let finished = steps < crash_at;
        drop(life);
        let mut life = Life::begin(root.path(), &ledger, true);
        life.settle_down();
        assert_eq!(
            life.run("e1").state,
            RunState::Settled,
            "crash at {crash_at}"
        );
        check_paid(&ledger, 40);
        if finished {
            assert!(
                crash_at > 5,
                "the test must have had steps to crash between"
            );
            return;
        }
    }
}

#[test]
fn a_lost_call_or_answer_changes_nothing() {
    for lost in 0..6 {
        for answer in [false, true] {
            let root = tempfile::tempdir().expect("a directory");
            let ledger = SimLedger::new(10_000);
            let fault = if answer {
                &ledger.lose_answer
            } else {
                &ledger.lose_call
            };
            fault.store(lost, Ordering::SeqCst);
            let mut life = Life::begin(root.path(), &ledger, true);
            let ask = inputs(root.path(), "e1", 40, false);
            let _ = life.ask("e1", ask, false);
            life.settle_down();
            assert_eq!(
                life.run("e1").state,
                RunState::Settled,
                "call {lost}, answer {answer}"
            );
            check_paid(&ledger, 40);
        }
    }
}

fn retry_until_settled(life: &mut Life, epoch: &str) {
    let by = Deadline::within(Duration::from_secs(5));
    while life.run(epoch).state != RunState::Settled {
        assert!(!by.expired(), "stuck: {:?}", life.run(epoch));
        if !life.step() {
            life.shutdown
                .wait(Deadline::within(Duration::from_millis(10)));
        }
    }
}

#[test]
fn a_short_pool_or_an_absent_ledger_holds_and_goes_on_by_itself() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(9_999);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 40, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    let run = life.run("e1");
    assert_eq!(run.state, RunState::Held);
    assert_eq!(run.reason.expect("a reason").code, "pool_short");
    ledger.away.store(1, Ordering::SeqCst);
    ledger
        .books
        .lock()
        .balances
        .insert("pool:test".into(), 10_000);
    while life
        .run("e1")
        .reason
        .is_none_or(|reason| reason.code != "ledger_unavailable")
    {
        if !life.step() {
            life.shutdown
                .wait(Deadline::within(Duration::from_millis(10)));
        }
    }
    ledger.away.store(0, Ordering::SeqCst);
    retry_until_settled(&mut life, "e1");
    check_paid(&ledger, 40);
}

#[test]
fn another_manifest_is_refused_even_after_everything_is_lost() {
    let ledger = SimLedger::new(20_000);
    let first = tempfile::tempdir().expect("a directory");
    let mut life = Life::begin(first.path(), &ledger, true);
    let ask = inputs(first.path(), "e1", 40, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    check_paid(&ledger, 40);
    let fresh = tempfile::tempdir().expect("another, empty directory");
    let mut life = Life::begin(fresh.path(), &ledger, true);
    let other = inputs(fresh.path(), "e1", 41, false);
    let waiting = life.ask("e1", other.clone(), true);
    life.settle_down();
    let (code, body) = status(waiting);
    assert_eq!((code, body["code"].as_str()), (409, Some("epoch_conflict")));
    let (code, body) = status(life.ask("e1", other, false));
    assert_eq!(
        (code, body["code"].as_str()),
        (409, Some("epoch_conflict")),
        "and stays so"
    );
    check_paid(&ledger, 40);
    let right = inputs(fresh.path(), "e1", 40, false);
    let waiting = life.ask("e1", right, true);
    life.settle_down();
    assert_eq!(status(waiting).0, 200, "the true inputs are found settled");
    check_paid(&ledger, 40);
}

#[test]
fn settlement_waits_to_be_asked_when_it_is_not_automatic() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, false);
    let ask = inputs(root.path(), "e1", 40, false);
    let waiting = life.ask("e1", ask, true);
    life.settle_down();
    let (code, body) = status(waiting);
    assert_eq!((code, body["state"].as_str()), (200, Some("sealed")));
    assert_eq!(ledger.balance("pool:test"), 10_000, "nothing moved");
    let waiting = life.ask("e1", Ask::Settle, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "settled");
    check_paid(&ledger, 40);
    assert_eq!(status(life.ask("e2", Ask::Settle, false)).0, 404);
}

#[test]
fn a_dry_run_never_pays_and_leaves_the_epoch_free() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let dry = inputs(root.path(), "e1", 41, true);
    let waiting = life.ask("e1", dry, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "sealed");
    assert_eq!(status(life.ask("e1", Ask::Settle, false)).0, 409);
    assert_eq!(
        ledger.calls.load(Ordering::SeqCst),
        0,
        "the ledger is not even asked"
    );
    let dry_commitment = life.run("e1").commitment;
    let live = inputs(root.path(), "e1", 40, false);
    let waiting = life.ask("e1", live, true);
    life.settle_down();
    assert_eq!(status(waiting).1["state"], "settled");
    assert_ne!(life.run("e1").commitment, dry_commitment);
    check_paid(&ledger, 40);
}

#[test]
fn a_full_work_queue_answers_429_after_one_retry() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    for epoch in ["e1", "e2"] {
        let ask = inputs(root.path(), epoch, 4, false);
        assert_eq!(status(life.ask(epoch, ask, false)).0, 202);
    }
    assert_eq!(life.work_tx.len(), 2, "the queue holds two");
    let ask = inputs(root.path(), "e3", 4, false);
    let (code, body) = status(life.ask("e3", ask.clone(), false));
    assert_eq!((code, body["code"].as_str()), (429, Some("busy")));
    while life.work.try_recv().is_some() {}
    assert_eq!(
        status(life.ask("e3", ask, false)).0,
        202,
        "and may be sent again"
    );
}

#[test]
fn an_idle_epoch_settles_with_nothing_to_pay() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    let ask = inputs(root.path(), "e1", 0, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    assert_eq!(life.run("e1").state, RunState::Settled);
    assert_eq!(ledger.balance("pool:test"), 10_000);
}

#[test]
fn a_manifest_signed_by_another_key_is_not_paid() {
    let root = tempfile::tempdir().expect("a directory");
    let ledger = SimLedger::new(10_000);
    let mut life = Life::begin(root.path(), &ledger, true);
    life.emitter.signer = Arc::new(TestSigner(9));
    let ask = inputs(root.path(), "e1", 40, false);
    let _ = life.ask("e1", ask, false);
    life.settle_down();
    let run = life.run("e1");
    assert_eq!(run.reason.expect("held").code, "signature_invalid");
    assert_eq!(ledger.balance("pool:test"), 10_000);
}

#[test]
fn altered_stored_inputs_are_refused_by_name() {
    let root = tempfile::tempdir().expect("a directory");
    let ask = inputs(root.path(), "e1", 4, false);
    let Ask::Compute {
        policy_id,
        policy_hash,
        snapshot,
        ..
    } = ask
    else {
        panic!("a compute")
    };
    let library = library(root.path());
    let policy = root.path().join("policies/tenant-default/test.v1.json");
    let good = std::fs::read(&policy).expect("stored");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&policy, bad).expect("writable");
        let error = library
            .policy(&tenant(), &policy_id, &policy_hash)
            .expect_err("altered");
        assert!(
            matches!(error, LibraryError::Refused(_)),
            "byte {at}: {error}"
        );
        assert!(
            error.to_string().contains("policy test version 1"),
            "byte {at}: {error}"
        );
    }
    let name = format!("snapshots/tenant-default/{}.bin", hex::encode(snapshot.0));
    let mut bytes = std::fs::read(root.path().join(&name)).expect("stored");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(root.path().join(&name), bytes).expect("writable");
    let error = library.snapshot(&tenant(), &snapshot).expect_err("altered");
    assert!(error.to_string().contains("is damaged"), "{error}");
}

#[test]
fn policy_versions_only_grow() {
    let root = tempfile::tempdir().expect("a directory");
    let library = library(root.path());
    let put = |version: u64, pool: u128| {
        let mut policy = signed(pool).policy;
        policy["version"] = version.into();
        let message = policy_message(POLICY_KIND, &ron_proto::jcs::canonicalize(&policy));
        let value = b64::url(&key(1).sign(&message));
        let signature = PolicySig {
            alg: "ed25519".into(),
            key: "test".into(),
            value,
        };
        let verified = library
            .verify(&SignedPolicy { policy, signature })
            .expect("signed");
        library.put_policy(&tenant(), &verified)
    };
    assert!(put(2, 10).expect("new"));
    assert!(!put(2, 10).expect("the same again"));
    assert!(matches!(put(2, 11), Err(LibraryError::Conflict(_))));
    assert!(matches!(put(1, 10), Err(LibraryError::Conflict(_))));
    assert!(put(10, 10).expect("newer"));
    let id = "test".parse().expect("an id");
    assert_eq!(
        library
            .newest_policy(&tenant(), &id)
            .expect("there")
            .policy
            .version,
        10
    );
}

#[test]
fn a_full_batch_of_the_longest_payouts_fits_one_commit() {
    let longest = |length: usize| "a".repeat(length);
    let entry = Entry::Payout {
        principal: longest(160).parse().expect("a principal"),
        tenant: longest(64).parse().expect("a tenant"),
        epoch: longest(64).parse().expect("an epoch"),
        index: ron_proto::ledger::MAX_WIRE_INTEGER,
        to: longest(160).parse().expect("an account"),
        asset: longest(32).parse().expect("an asset"),
        amount_minor: Amount::MAX,
    };
    let bytes = serde_json::to_vec(&entry).expect("JSON").len() + 1;
    let batch = bytes * ron_proto::ledger::MAX_ENTRIES + 100;
    assert!(batch <= ron_proto::ledger::MAX_COMMIT_BYTES, "{batch}");
}
