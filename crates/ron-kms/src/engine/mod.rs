//! The KMS without HTTP: opens the store and the audit log, builds the queues and starts the threads.

pub mod counter;
pub mod distrust;
pub mod log;
mod replay_check;
pub mod shared;
pub mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_custody::backend::{self, Backends, DeviceHandles};
use ron_custody::keys::wrapping::WrappingKeys;
use ron_custody::store::LogSigner;
use ron_custody::store::{FILE_NAME, KeyStore, OpsCheck, StoreError, StoreSettings};
use ron_files::{Dir, Disk, DiskRoom, FileError, MemoryDisk};
use ron_http::HttpClient;
use ron_kernel::{
    Credits, KernelMetrics, Receiver, Registry, SharedClock, SharedRandom, Snapshot, Supervisor,
    ThreadCtx, queue,
};
use ron_proto::scope;
use ron_proto::values::Timestamp;
use ron_service::ReadyBoard;
use ron_service::config::NoteName;
use ron_service::log_host::archive::{ArchiveParts, LogArchive};
use ron_service::log_host::asker::WitnessSettings;
use ron_service::log_host::{CosignedView, KeyView, LogHost};
use ron_service::records::RecordStore;
use ron_tlog::append::{LogReader, OpenError, refuse_copy};

use crate::audit::entry::Entry;
use crate::audit::health::Fault;
use crate::audit::proofs::ProofJob;
use crate::audit::scrub::Scrub;
use crate::audit::{self, AuditHealth, LogRing};
use crate::metrics::Metrics;
use crate::replay::{Bounds, Journal, Replay};
use crate::settings::{InForce, Settings};
use crate::topology::{
    ATTEST, AUDIT_QUEUE, PROOF_QUEUE, SCHEDULER, SCRUB, SIGN_QUEUE, SIGNERS, STORE, STORE_QUEUE,
};
use crate::work::fair::{FairQueue, Turn};
use crate::work::lifecycle::peers::PeerLogs;
use crate::work::lifecycle::recover::{POLICY, Recovery};
use crate::work::lifecycle::{Lifecycle, refuse_all};
use crate::work::notes::SignedNotes;
use crate::work::refresh::Refresher;
use crate::work::{Kms, StoreJob, device_jobs, schedule, signer};

use distrust::Distrust;
use log::{OpenWith, OpenedLog};
use shared::SharedParts;
use threads::{Audit, Keeps};

/// What the engine needs from the chassis or from [`crate::embedded::Custody`].
pub struct EngineParts {
    pub sup: Supervisor,
    pub registry: Registry,
    /// Metrics of the queues and threads.
    pub km: KernelMetrics,
    pub clock: SharedClock,
    pub random: SharedRandom,
    /// Where the engine reports missing or degraded parts.
    pub ready: ReadyBoard,
    /// Room on the disk of the data directory.
    pub room: DiskRoom,
    /// The data directory; `None` with amnesia on.
    pub home: Option<Dir>,
    /// Disk of the audit log, the files beside it and the journal, which have watches of their own. `None`: that of the data
    /// directory, or one in memory with amnesia on.
    pub disk: Option<Arc<dyn Disk>>,
    /// The witness policy and its times; `None` without one.
    pub witness: Option<WitnessSettings>,
    /// Client for the requests to witnesses.
    pub http: Arc<HttpClient>,
    /// Of a node whose keys and audit log are in an engine.
    pub shared: Option<SharedParts>,
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is an audit log without the key store that it belongs to.
    #[error(
        "{} is missing beside an audit log: restore it from a backup, or end a `ron kms migrate --to files` that was interrupted with \
         --resume; a new store must not continue the log of another", .0.display()
    )]
    StoreMissing(PathBuf),
    /// The directory has keys in a file, and those of the configuration are in an engine.
    #[error(
        "{} has keys, and records.url names a database: move them there with `ron kms migrate`, end a move that was interrupted with \
         --resume, or use an empty data_dir", .0.display()
    )]
    OtherStore(PathBuf),
    /// The directory has the copy of an audit log whose keys are in an engine.
    #[error("{0}")]
    InEngine(OpenError),
    /// The engine that has the keys and the log does not answer, or refuses this node.
    #[error("{0}")]
    Unavailable(String),
    /// The directory has the copy of the log of another node.
    #[error(
        "audit.origin is `{configured}`, and the audit log in data_dir is `{found}`: set audit.origin = \"{found}\" again, or give a \
         new node an empty data_dir"
    )]
    OtherLog { configured: String, found: String },
    /// The journal of answers cannot be read, or a newer program has written it.
    #[error("the journal of answers: {0}")]
    Replay(#[from] FileError),
    /// The keys of the audit log cannot sign under its origin.
    #[error("{0}")]
    LogKey(String),
    /// The witness policy does not fit this log.
    #[error("witness.policy_file: {0}")]
    Witness(String),
    /// A newer program has written the audit log.
    #[error("{0}")]
    Newer(String),
}

pub struct Engine {
    /// The state that the threads share; requests are submitted here.
    pub kms: Arc<Kms>,
    /// Reads the audit log; `None` when it could not be opened.
    pub reader: Option<LogReader>,
    /// The verifier keys of the audit log.
    pub keys: KeyView,
    /// The newest checkpoint that witnesses have cosigned.
    pub cosigned: CosignedView,
}

impl Engine {
    /// Opens the store and the log and starts the threads. A store that cannot be opened is an error. A log that
    /// cannot be trusted is not: signing and changes of keys are refused, verification works.
    pub fn start(settings: Settings, mut parts: EngineParts) -> Result<Self, EngineError> {
        let mut shared = parts.shared.take();
        let metrics = Metrics::new(&parts.registry, settings.backend.as_str());
        let now = Timestamp(parts.clock.unix_ms());
        let handles = handles(&parts, &metrics);
        let backends = backend::start(
            settings.backend,
            &settings.devices,
            &handles,
            &parts.random,
            &parts.http,
        );
        let top = top(&parts);
        let records = shared.as_mut().and_then(|shared| shared.records.take());
        let mut store = open_store(records, &settings, (&parts, &top), (backends.clone(), now))?;
        store.watch_disk(parts.sup.watch_disk("store"));
        report_damage(&store, &parts.ready);
        let in_force: InForce = Arc::new(Snapshot::new(settings));
        let settings = in_force.load();
        let ring = LogRing::new(store.log().clone(), in_force.clone(), parts.clock.clone());
        let ring = ring.map_err(EngineError::LogKey)?;
        let keys = ring.view().clone();
        let witness = parts.witness.as_ref();
        let witnesses = witness.map(|w| w.witnesses(keys.clone(), parts.http.clone()));
        let mut witnesses = witnesses.transpose().map_err(EngineError::Witness)?;
        let cosigned = CosignedView::default();
        let dir = top.join(audit::DIR);
        let anchors = log::anchors(&settings, &top, &store.log().origin);
        let with = OpenWith {
            dir: &dir,
            anchors: &anchors,
            settings: &settings,
            clock: parts.clock.clone(),
            random: &parts.random,
            metrics: metrics.clone(),
            witnesses: witnesses.as_mut(),
            ring: &ring,
            shared: shared.as_mut().and_then(SharedParts::sessions),
        };
        // The journal is opened before the log: opening the log appends a leaf, and a data directory that a newer
        // program has written must be refused unchanged.
        let (replay, mut journal) = if store.is_shared() {
            (Replay::in_engine(), None)
        } else {
            let (replay, journal) = open_journal(&settings, &metrics, &store, &top)?;
            (replay, Some(journal))
        };
        // Advances the TPM's counter before the start leaf is written.
        let counted = counter::compare(&settings.devices, &backends, &mut store);
        let mut opened = counted.and_then(|()| log::open(with, &mut store));
        if let (Ok(opened), Some(journal)) = (&mut opened, &mut journal) {
            replay_check::settle(journal, &replay, opened, (&settings, &parts.ready));
        }
        if let Err(distrust) = &opened {
            refuse_start(distrust, store.is_shared())?;
        }
        let log = opened.as_ref().ok().map(|o| o.reader.clone());
        let opens = (log, ring, replay);
        let (kms, queues) = assemble(in_force, &parts, metrics, &store, opens)?;
        let EngineParts {
            sup,
            registry,
            km,
            ready,
            witness,
            ..
        } = parts;
        spawn_refresher(&sup, &kms, ready.clone());
        // Without its log the store must not change: no leaf could record it.
        let stopped = opened.is_err();
        match opened {
            Ok(opened) => {
                let scrub = Scrub {
                    dir: dir.clone(),
                    keys: keys.clone(),
                    settings: kms.settings.clone(),
                    health: kms.health.clone(),
                };
                let archive = archive(&opened, &settings, (&kms.clock, &ready, &registry));
                sup.spawn(&SCRUB, move |ctx| scrub.run(ctx, archive.clone()));
                let audit = Audit {
                    host: log_host(&opened, &keys, &cosigned),
                    opened,
                    anchors,
                    entries: queues.audit,
                    proofs: queues.proofs,
                    witnesses: witnesses.zip(witness.map(|w| w.times)),
                    keeps: match shared {
                        None => Keeps::Journal(Box::new(journal.expect("the log is in files"))),
                        Some(shared) => Keeps::Engine(store.answers(), shared.shown()),
                    },
                };
                audit.spawn(&sup, &km, &kms, &ready);
            }
            Err(distrust) => kms.health.fail(distrust.fault, &distrust.why),
        }
        let peers = PeerLogs::named(&store);
        let lifecycle = Lifecycle {
            kms: kms.clone(),
            store,
            jobs: queues.store,
            ready,
            log_dir: settings.data_dir.is_some().then_some(dir),
            making: BTreeMap::new(),
            device_busy: BTreeMap::new(),
            gone: BTreeSet::new(),
            stopped,
            operations: OpsCheck::default(),
            recovery: Recovery::default(),
            peers,
        };
        spawn_store(&sup, lifecycle);
        spawn_signers(&sup, &kms, queues.turns, queues.devices);
        Ok(Self {
            reader: kms.log.clone(),
            kms,
            keys,
            cosigned,
        })
    }
}

fn archive(
    opened: &OpenedLog,
    settings: &Settings,
    (clock, ready, registry): (&SharedClock, &ReadyBoard, &Registry),
) -> Option<LogArchive> {
    let parts = ArchiveParts {
        clock,
        ready,
        registry,
    };
    settings.keys.archive.of(opened.archiver.clone(), parts)
}

/// Opens the keys, in the engine or in the data directory.
fn open_store(
    records: Option<Box<dyn RecordStore>>,
    settings: &Settings,
    (parts, top): (&EngineParts, &Dir),
    (backends, now): (Backends, Timestamp),
) -> Result<KeyStore, EngineError> {
    let with = store_settings(settings, parts.home.clone());
    if let Some(records) = records {
        return shared::open_store(records, &with, parts, (backends, now));
    }
    refuse_lost_store(parts, top)?;
    Ok(KeyStore::open(&with, backends, parts.random.clone(), now)?)
}

/// Any distrust of a log in files starts a service that verifies, but for the data of a newer program. A node that has not
/// reached its engine is started again instead.
fn refuse_start(distrust: &Distrust, is_shared: bool) -> Result<(), EngineError> {
    match distrust.fault {
        Fault::Newer => Err(EngineError::Newer(distrust.why.clone())),
        Fault::Unavailable | Fault::Failure if is_shared => {
            Err(EngineError::Unavailable(distrust.why.clone()))
        }
        _ => Ok(()),
    }
}

/// Refuses a data directory that has an audit log and no key store, or whose keys are in an engine.
fn refuse_lost_store(parts: &EngineParts, top: &Dir) -> Result<(), EngineError> {
    let Some(home) = &parts.home else {
        return Ok(());
    };
    // Before the keys are opened: what a move there has left of them must not be used.
    let log = top.join(audit::DIR);
    if let Err(refused @ OpenError::Refused(_)) = refuse_copy(&**log.disk(), log.path()) {
        return Err(EngineError::InEngine(refused));
    }
    let store = home.exists(FILE_NAME).unwrap_or(false);
    if !store && log.open_read("log.meta").is_ok() {
        return Err(EngineError::StoreMissing(home.file(FILE_NAME)));
    }
    Ok(())
}

/// Reports keys and versions whose records are damaged. The others work, so the service is only degraded.
fn report_damage(store: &KeyStore, ready: &ReadyBoard) {
    ready.declare(&["keys"]);
    let damaged = store.damaged();
    if damaged.is_empty() {
        return;
    }
    let records = damaged.join(", ");
    tracing::error!(event = "key_records_damaged", %records);
    ready.degrade(
        "keys",
        format!(
            "the stored records of {records} are damaged: a key is out of use, and a version (`#v`) verifies only; restore keys.db from a \
             backup, or rotate the keys of such versions"
        ),
    );
}

/// Reports a stored issuer policy that no pinned key has signed: `policy.public_keys` was changed since it was accepted.
fn report_policy(store: &KeyStore, in_force: bool, ready: &ReadyBoard) {
    ready.declare(&[POLICY]);
    let version = store.policy_version();
    if in_force || version == 0 {
        return;
    }
    let why = format!(
        "version {version} of the issuer policy is not signed by a key of policy.public_keys: the issuer's keys sign no \
         tokens until svc-passport brings one that is, of this version or a newer one"
    );
    tracing::error!(event = "issuer_policy_not_pinned", version);
    ready.degrade(POLICY, why);
}

/// The part of the settings that the key store needs.
pub fn store_settings(settings: &Settings, home: Option<Dir>) -> StoreSettings {
    StoreSettings {
        home,
        seal: settings.seal.clone(),
        origin: settings.keys.origin.clone().map(|NoteName(name)| name),
    }
}

/// Starts the thread that has devices attest their keys; none without devices.
fn spawn_refresher(sup: &Supervisor, kms: &Arc<Kms>, ready: ReadyBoard) {
    if kms.backends.devices().is_empty() {
        return;
    }
    let kms = kms.clone();
    let refresher = Refresher { kms, ready };
    sup.spawn(&ATTEST, move |ctx| refresher.run(ctx));
}

/// The handles that devices are started with.
fn handles(parts: &EngineParts, metrics: &Metrics) -> DeviceHandles {
    DeviceHandles {
        sup: parts.sup.clone(),
        metrics: metrics.devices.clone(),
        ready: parts.ready.clone(),
        clock: parts.clock.clone(),
    }
}

/// Starts the scheduler, the signer pool and the threads that wait for devices.
fn spawn_signers(
    sup: &Supervisor,
    kms: &Arc<Kms>,
    turns: Receiver<Turn>,
    devices: Vec<device_jobs::DeviceQueueEnd>,
) {
    let timed = kms.clone();
    sup.spawn(&SCHEDULER, move |ctx| schedule::run(&timed, ctx));
    let signing = kms.clone();
    let run = move |ctx: &ThreadCtx| signer::run(&signing, &turns, ctx);
    sup.spawn_pool(
        &SIGNERS,
        sup.pool_size(kms.settings.load().keys.signers, 64),
        run,
    );
    device_jobs::spawn(sup, kms, devices);
}

/// The receiving ends of the queues.
struct Queues {
    turns: Receiver<Turn>,
    store: Receiver<StoreJob>,
    audit: Receiver<Entry>,
    proofs: Receiver<ProofJob>,
    devices: Vec<device_jobs::DeviceQueueEnd>,
}

/// The data directory as the log and the journal see it; with amnesia on, one in memory.
fn top(parts: &EngineParts) -> Dir {
    let home = parts.home.as_ref();
    let path = home.map_or(Path::new("/"), Dir::path);
    let disk = parts
        .disk
        .clone()
        .or_else(|| home.map(|home| home.disk().clone()));
    Dir::new(disk.unwrap_or_else(|| Arc::new(MemoryDisk::new())), path)
}

/// The routes' view of the log.
fn log_host(opened: &OpenedLog, keys: &KeyView, cosigned: &CosignedView) -> LogHost {
    LogHost {
        reader: opened.reader.clone(),
        keys: keys.clone(),
        entries_scope: scope::KMS_AUDIT,
        cosigned: cosigned.clone(),
    }
}

/// Directory of the journal in the data directory.
pub const JOURNAL: &str = "replay";

/// Opens the journal of answers to operations with an `op_id`.
pub fn open_journal(
    settings: &Settings,
    metrics: &Metrics,
    store: &KeyStore,
    top: &Dir,
) -> Result<(Arc<Replay>, Journal), FileError> {
    let bounds = Bounds {
        capacity: settings.keys.replay_capacity,
        bytes_max: settings.keys.replay_bytes.0,
        remembered: metrics.replay_remembered.clone(),
        forgotten: metrics.replay_forgotten.clone(),
    };
    Replay::open(top.disk(), &top.file(JOURNAL), store.replay_key(), bounds)
}

/// Builds the shared state and the queues between the threads.
fn assemble(
    in_force: InForce,
    parts: &EngineParts,
    metrics: Arc<Metrics>,
    store: &KeyStore,
    (log, ring, replay): (Option<LogReader>, LogRing, Arc<Replay>),
) -> Result<(Arc<Kms>, Queues), EngineError> {
    let settings = in_force.load();
    let (turns_tx, turns) = queue(&SIGN_QUEUE, settings.keys.sign_queue, &parts.km);
    let (store_tx, store_rx) = queue(&STORE_QUEUE, settings.keys.store_queue, &parts.km);
    let (audit_tx, audit) = queue(&AUDIT_QUEUE, settings.keys.audit_queue, &parts.km);
    let (proof_tx, proofs) = queue(&PROOF_QUEUE, PROOF_QUEUE.capacity, &parts.km);
    let (device_queues, devices) =
        device_jobs::device_queues(store.backends(), settings.keys.sign_queue, &parts.km);
    let mut index = store.index();
    index.policy = store.policy_in_force(&settings.keys.policy_keys);
    report_policy(store, index.policy.is_some(), &parts.ready);
    metrics.show_keys(&index);
    let wrapping = wrapping_keys(store, parts)?;
    let kms = Kms {
        backends: store.backends().clone(),
        index: Snapshot::new(index),
        replay,
        is_shared: store.is_shared(),
        credits: Credits::new(settings.keys.audit_queue),
        batch_slots: Credits::new(Kms::batch_slots_max(settings.keys.audit_queue)),
        notes: SignedNotes::new(),
        wrapping,
        health: AuditHealth::new(parts.ready.clone(), parts.room.clone(), &metrics),
        metrics,
        clock: parts.clock.clone(),
        random: parts.random.clone(),
        origin: store.log().origin.clone(),
        sign: FairQueue::new(
            settings.keys.sign_queue,
            parts.sup.pool_size(settings.keys.signers, 64),
            turns_tx,
        ),
        device_queues,
        store_tx,
        audit_tx,
        proof_tx,
        log,
        ring: Arc::new(ring),
        settings: in_force,
    };
    let queues = Queues {
        turns,
        store: store_rx,
        audit,
        proofs,
        devices,
    };
    Ok((Arc::new(kms), queues))
}

/// The keys that callers wrap imported keys to, signed by the key of the audit log.
fn wrapping_keys(store: &KeyStore, parts: &EngineParts) -> Result<WrappingKeys, EngineError> {
    let signer =
        LogSigner::new(&store.log().origin, store.log().newest()).map_err(EngineError::LogKey)?;
    let now = Timestamp(parts.clock.unix_ms());
    WrappingKeys::make(parts.random.as_ref(), &signer, now).map_err(EngineError::LogKey)
}

fn spawn_store(sup: &Supervisor, lifecycle: Lifecycle) {
    let (kms, jobs, ready) = (
        lifecycle.kms.clone(),
        lifecycle.jobs.clone(),
        lifecycle.ready.clone(),
    );
    let run = move |lifecycle: Option<Lifecycle>, ctx: &ThreadCtx| match lifecycle {
        Some(mut lifecycle) => lifecycle.run(ctx),
        None => refuse_all(&kms, &jobs, ctx),
    };
    sup.spawn_owner(&STORE, Some(lifecycle), run, move || {
        ready.missing("store", "the store thread panicked; restart the service");
        Some(None)
    });
}
