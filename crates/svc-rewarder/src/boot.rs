//! Composition of the service: directories, store, queues, threads, routes.

use std::path::PathBuf;
use std::sync::Arc;

use rayon::{ThreadBuilder, ThreadPoolBuilder};
use ron_auth::RonAuthorizer;
use ron_client::{Credential, KmsClient, LedgerClient};
use ron_files::{Dir, DiskRoom, WatchedDisk};
use ron_kernel::{
    DiskWatch, DiskWatches, RankedMutex, Receiver, Sender, Supervisor, ThreadCtx, ThreadSpec,
    Topology, queue,
};
use ron_proto::rewarder::POLICY_KIND;
use ron_service::events::{Event, EventKind};
use ron_service::{
    Boot, Chassis, Migration, Running, Service, StartError, Store, StoreError, Table,
};

use crate::api::Api;
use crate::home::Home;
use crate::inline::Calc;
use crate::intake::fetch::Origin;
use crate::intake::{Intake, Scratch, Task};
use crate::library::Library;
use crate::metrics::Metrics;
use crate::runs::artifact::ArtifactWriter;
use crate::runs::emitter::Emitter;
use crate::runs::ports::KmsSigner;
use crate::runs::registry::Registry;
use crate::runs::retention::Retention;
use crate::runs::scheduler::{RunStore, Scheduler};
use crate::runs::worker::{ResultItem, Worker};
use crate::runs::{Intent, Job, Run, RunId, RunRequest, Update, db};
use crate::settings::{Keys, Settings, Settlement, TABLE};
use crate::topology::{
    ARTIFACT, CALC, EMIT, IMPORT, L_CALC, Q_IMPORTS, Q_INTENTS, Q_RESULTS, Q_UPDATES, Q_WORK,
    Q_WORK_REQ, SCHED, TOPOLOGY, WORK,
};

/// The store's schema, step by step.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "runs",
        sql: db::SCHEMA_1,
    },
    Migration {
        version: 2,
        name: "withdrawals",
        sql: db::SCHEMA_2,
    },
    Migration {
        version: 3,
        name: "approvals",
        sql: db::SCHEMA_3,
    },
    Migration {
        version: 4,
        name: "accounts",
        sql: db::SCHEMA_4,
    },
    Migration {
        version: 5,
        name: "dry runs side by side",
        sql: db::SCHEMA_5,
    },
    Migration {
        version: 6,
        name: "several assets",
        sql: db::SCHEMA_6,
    },
];

impl RunStore for Store {
    fn put(&mut self, run: &Run) -> Result<(), String> {
        self.write(|tx| Ok::<(), StoreError>(db::put(tx, run)?))
            .map_err(|error| error.to_string())
    }

    fn remove(&mut self, id: &RunId) -> Result<(), String> {
        self.write(|tx| Ok::<(), StoreError>(db::remove(tx, id)?))
            .map_err(|error| error.to_string())
    }
}

/// The rewarder as a service.
pub struct SvcRewarder;

impl Service for SvcRewarder {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;
    const ENFORCED_CAVEATS: &'static [&'static str] = &["account"];

    /// Starts the service. Returns once its ports answer; ledger and KMS need not be up.
    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            chassis,
            auth,
            data_dir,
        } = boot;
        // The stages have watches of their own, and make calls that take long.
        let data_dir = data_dir.map(|dir| Dir::new(chassis.disk.clone(), dir.path()));
        let home = Home::open(data_dir, &*chassis.random)?;
        let disk = chassis.sup.watch_disk("store");
        let store = open_store(home.root(), &disk).map_err(StartError::failed)?;
        let runs = store
            .read(|db| Ok::<_, StoreError>(db::load(db)?))
            .map_err(StartError::failed)?;
        chassis.ready.declare(&["policy", "store"]);
        let settle = if settings.settlement.is_some() {
            "settle"
        } else {
            "compute-only"
        };
        chassis.capabilities(&["compute", "prove", settle]);

        let store = (store, disk);
        let api = assemble(&chassis, &settings, auth, home.root(), store, runs)?;
        chassis.on_drained(move || drop(home));
        chassis.serve(api.router())
    }
}

/// The store, whose writes are watched. Without a reserve: requests that begin something are refused while
/// the disk is full, reports of what has begun are kept.
fn open_store(root: &Dir, disk: &DiskWatch) -> Result<Store, StoreError> {
    let mut store = Store::open_in(root, "rewarder.db", MIGRATIONS)?;
    store.watch_disk(disk.clone(), DiskRoom::unlimited());
    Ok(store)
}

struct Queues {
    imports: (Sender<Task>, Receiver<Task>),
    work_req: (Sender<RunRequest>, Receiver<RunRequest>),
    work: (Sender<Job>, Receiver<Job>),
    results: (Sender<ResultItem>, Receiver<ResultItem>),
    intents: (Sender<Intent>, Receiver<Intent>),
    updates: (Sender<Update>, Receiver<Update>),
}

impl Queues {
    fn new(chassis: &Chassis, keys: &Keys) -> Self {
        Self {
            imports: queue(&Q_IMPORTS, keys.queue_imports, &chassis.km),
            work_req: queue(&Q_WORK_REQ, keys.queue_work_req, &chassis.km),
            work: queue(&Q_WORK, keys.queue_work, &chassis.km),
            results: queue(&Q_RESULTS, keys.queue_results, &chassis.km),
            intents: queue(&Q_INTENTS, keys.queue_intents, &chassis.km),
            updates: queue(&Q_UPDATES, keys.queue_updates, &chassis.km),
        }
    }
}

/// Starts every stage and returns the state of the API.
fn assemble(
    chassis: &Chassis,
    settings: &Settings,
    auth: Arc<RonAuthorizer>,
    root: &Dir,
    (store, disk): (Store, DiskWatch),
    runs: Vec<Run>,
) -> Result<Api, StartError> {
    let metrics = Metrics::new(&chassis.registry);
    let queues = Queues::new(chassis, &settings.keys);
    let registry = Registry::new(runs);
    // One worker serves other requests also while all others wait for the disk.
    let workers = chassis.config.load().chassis().http_workers;
    let disk_of_handlers = chassis.sup.watch_disks("library", (workers - 1).max(1));
    let library = library(chassis, settings, root, disk_of_handlers.clone());
    let emitter = match &settings.settlement {
        Some(to) => Some(emitter(chassis, settings, to, root, &queues, &metrics)?),
        None => None,
    };
    sweep_spool(root).map_err(StartError::failed)?;
    let scratch = Scratch::open(root.join("intake")).map_err(StartError::failed)?;
    spawn_intake(chassis, settings, &library, &scratch, &queues);
    let fetches = spawn_workers(
        chassis,
        settings,
        root,
        (&library, &scratch),
        &queues,
        &metrics,
    )?;
    let can_settle = emitter.is_some();
    spawn_writer(
        chassis, settings, &library, root, &registry, &queues, &metrics,
    );
    if let Some(emitter) = emitter {
        chassis.sup.spawn(&EMIT, move |ctx| emitter.run(ctx));
    }
    let scheduler = Scheduler {
        store_fault: store_fault(chassis, &metrics),
        work_req: queues.work_req.1.clone(),
        updates: queues.updates.1.clone(),
        work: queues.work.0.clone(),
        intents: queues.intents.0.clone(),
        registry: registry.clone(),
        auto_settle: settings.keys.auto_settle && can_settle,
        can_settle,
        compute_budget: settings.compute_budget(),
        clock: chassis.clock.clone(),
        room: chassis.room.clone(),
        metrics,
        events: chassis.events.clone(),
    };
    spawn_scheduler(&chassis.sup, scheduler, store, root, disk);
    Ok(Api {
        registry,
        library,
        artifacts: root.join("runs"),
        work_req: queues.work_req.0,
        imports: queues.imports.0,
        uploads: scratch.dir().clone(),
        disk_of_handlers,
        fetches,
        explained: Arc::default(),
        auth,
        events: chassis.events.clone(),
        clock: chassis.clock.clone(),
        snapshot_bytes_max: settings.keys.snapshot_bytes_max.0,
    })
}

/// Starts the compute workers; whether they can fetch snapshots.
fn spawn_workers(
    chassis: &Chassis,
    settings: &Settings,
    root: &Dir,
    (library, scratch): (&Library, &Scratch),
    queues: &Queues,
    metrics: &Metrics,
) -> Result<bool, StartError> {
    let origin = origin(chassis, settings)?;
    let fetches = origin.is_some();
    let worker = Worker {
        library: library.clone(),
        artifacts: root.join("runs"),
        origin,
        scratch: scratch.clone(),
        spool: root.join("spool"),
        pool: calc_pool(&chassis.sup, settings)?,
        work: queues.work.1.clone(),
        results: queues.results.0.clone(),
        updates: queues.updates.0.clone(),
        clock: chassis.clock.clone(),
        metrics: metrics.clone(),
    };
    let body = move |ctx: &ThreadCtx| worker.run(ctx);
    chassis.sup.spawn_pool(&WORK, settings.keys.jobs, body);
    Ok(fetches)
}

/// Reports a failed store to readiness and metrics.
fn store_fault(chassis: &Chassis, metrics: &Metrics) -> Box<dyn Fn(String) + Send + Sync> {
    let ready = chassis.ready.clone();
    let errors = metrics.io_errors.with_label_values(&["store"]);
    Box::new(move |why| {
        errors.inc();
        ready.missing("store", why);
    })
}

/// Opens the library. Operators' policies that cannot be run are logged and degrade readiness.
fn library(chassis: &Chassis, settings: &Settings, root: &Dir, disk: DiskWatches) -> Library {
    let library = Library::new(
        root.clone(),
        settings.keys.policy_dir.clone(),
        settings.keys.policy_keys.clone(),
    )
    .with_snapshots(settings.keys.snapshot_dir.clone())
    .watch_disk(disk);
    let faults = library.policy_dir_faults();
    if !faults.is_empty() {
        let refused = Event::error(EventKind::PolicyRefused).reason(POLICY_KIND);
        chassis.events.publish(refused.why(faults.join("; ")));
        chassis.ready.degrade("policy", faults.join("; "));
    }
    library
}

/// Removes spooled tables that a crash left incomplete; their runs are computed again.
pub(crate) fn sweep_spool(root: &Dir) -> std::io::Result<()> {
    match root.join("spool").remove_all() {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn emitter(
    chassis: &Chassis,
    settings: &Settings,
    to: &Settlement,
    root: &Dir,
    queues: &Queues,
    metrics: &Metrics,
) -> Result<Emitter, StartError> {
    let credential = |file: &Option<PathBuf>| match file {
        Some(path) => Credential::from_file(path).map_err(StartError::config_text),
        None => Ok(Credential::none()),
    };
    let http = &chassis.client;
    let ledger = LedgerClient::new(
        &to.ledger_url,
        credential(&settings.keys.ledger_token_file)?,
        http.clone(),
    );
    let kms = KmsClient::new(
        &to.kms_url,
        credential(&settings.keys.kms_token_file)?,
        http.clone(),
    );
    Ok(Emitter {
        root: root.join("runs"),
        intents: queues.intents.1.clone(),
        updates: queues.updates.0.clone(),
        ledger: Arc::new(ledger),
        signer: Arc::new(KmsSigner {
            kms,
            key: to.key.clone(),
        }),
        pinned: settings.keys.manifest_keys.clone(),
        principal: settings.keys.ledger_principal.clone(),
        call_timeout: settings.keys.upstream_timeout,
        retry_pause: std::time::Duration::from_millis(100),
        clock: chassis.clock.clone(),
        metrics: metrics.clone(),
        upstream: Box::new(chassis.ready.hook("settlement")),
        ledger_unavailable: Box::new(chassis.ready.hook("ledger")),
    })
}

/// The rows of the stages that report to the scheduler.
const REPORTING: [&ThreadSpec; 3] = [&WORK, &ARTIFACT, &EMIT];

/// Whether no stage reports to the scheduler any more. A thread counts as ended after its body has returned, so after its last
/// report, and also when it is lost because its row has used its restarts up.
fn no_stage_reports(sup: &Supervisor) -> bool {
    let planes = sup.planes();
    let mut reporting = planes.iter().filter(|plane| {
        let is_of = |row: &&ThreadSpec| row.name.trim_end_matches('-') == plane.name;
        REPORTING.iter().any(is_of)
    });
    reporting.all(|plane| plane.live == 0)
}

fn spawn_writer(
    chassis: &Chassis,
    settings: &Settings,
    library: &Library,
    root: &Dir,
    registry: &Registry,
    queues: &Queues,
    metrics: &Metrics,
) {
    let writer = ArtifactWriter {
        root: root.join("runs"),
        results: queues.results.1.clone(),
        updates: queues.updates.0.clone(),
        metrics: metrics.clone(),
        retention: Retention {
            root: root.join("runs"),
            library: library.clone(),
            registry: registry.clone(),
            artifacts: settings.keys.retention,
            snapshots: settings.keys.snapshot_retention,
            clock: chassis.clock.clone(),
            swept: metrics.swept.clone(),
        },
        disk: Box::new(chassis.ready.hook("artifacts")),
    };
    chassis.sup.spawn(&ARTIFACT, move |ctx| writer.run(ctx));
}

fn spawn_intake(
    chassis: &Chassis,
    settings: &Settings,
    library: &Library,
    scratch: &Scratch,
    queues: &Queues,
) {
    // Only the flush of a snapshot takes as long as it is large.
    let watches = chassis.sup.watch_disks("intake", settings.keys.imports);
    let intake = Intake {
        disk: Arc::new(WatchedDisk::new(scratch.dir().disk().clone(), watches).except_flushes()),
        tasks: queues.imports.1.clone(),
        library: library.clone(),
        scratch: scratch.clone(),
        memory: settings.keys.import_memory.as_usize(),
        rows_max: settings.keys.rows_max,
        clock: chassis.clock.clone(),
    };
    let body = move |ctx: &ThreadCtx| intake.run(ctx);
    chassis.sup.spawn_pool(&IMPORT, settings.keys.imports, body);
}

/// The configured source of snapshots, if any.
fn origin(chassis: &Chassis, settings: &Settings) -> Result<Option<Origin>, StartError> {
    let Some(url) = &settings.keys.snapshot_url else {
        return Ok(None);
    };
    let credential = match &settings.keys.snapshot_token_file {
        Some(path) => Credential::from_file(path).map_err(StartError::config_text)?,
        None => Credential::none(),
    };
    let (cap, rate) = (
        settings.keys.snapshot_bytes_max.0,
        settings.keys.snapshot_min_rate.0,
    );
    Origin::new(url, credential, chassis.client.clone(), cap, rate)
        .map(|origin| Some(origin.up_to(settings.keys.rows_max)))
        .map_err(StartError::config_text)
}

/// A rayon pool whose threads belong to the supervisor. They end when the last worker drops the
/// pool, which happens when the work stage is drained, before their own stage is. One compute worker makes no pool: the
/// thread that has the epoch computes it, and would only wait for another.
fn calc_pool(sup: &Supervisor, settings: &Settings) -> Result<Calc, StartError> {
    let threads = sup.pool_size(settings.keys.compute_workers, 256);
    if threads == 1 {
        return Ok(Calc::Here);
    }
    let starters: Arc<RankedMutex<Vec<ThreadBuilder>>> =
        Arc::new(RankedMutex::new(&L_CALC, Vec::new()));
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .spawn_handler(|starter| {
            starters.lock().push(starter);
            Ok(())
        })
        .build()
        .map_err(StartError::failed)?;
    sup.spawn_pool(&CALC, threads, move |ctx| {
        let starter = starters.lock().pop();
        if let Some(starter) = starter {
            starter.run();
        }
        // The pool has ended.
        ctx.wait_for_shutdown();
    });
    Ok(Calc::Pool(Arc::new(pool)))
}

/// The scheduler owns the open store. After a panic it opens the file again.
fn spawn_scheduler(
    sup: &Supervisor,
    scheduler: Scheduler,
    store: Store,
    root: &Dir,
    disk: DiskWatch,
) {
    let (stages, root) = (sup.clone(), root.clone());
    let run = move |store: Store, ctx: &ThreadCtx| {
        let mut memory = scheduler.resume(Box::new(store));
        scheduler.run(&mut memory, ctx, &|| no_stage_reports(&stages));
    };
    let reopen = move || Some(open_store(&root, &disk).expect("the store could be opened before"));
    sup.spawn_owner(&SCHED, store, run, reopen);
}
