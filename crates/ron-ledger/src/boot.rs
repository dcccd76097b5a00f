//! Assembles the service: directory, key, engine, threads, routes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, MemoryDisk, SharedDisk};
use ron_kernel::{ClosedCounter, Deadline, Receiver, Snapshot, ThreadCtx, Topology, queue};
use ron_proto::scope;
use ron_proto::status::STANDBY;
use ron_service::events::{Event, EventKind};
use ron_service::lag::{Follower, FollowerLag};
use ron_service::log_engine;
use ron_service::log_host::archive::{ArchiveAfter, ArchiveParts, LogArchive};
use ron_service::log_host::asker::WitnessSettings;
use ron_service::log_host::cosign::{WitnessTimes, Witnesses};
use ron_service::log_host::{
    Base, CheckpointPlan, CheckpointRoom, KeyView, LogHost, note_key, routes,
};
use ron_service::{Boot, Chassis, ReadyBoard, Running, Service, StartError, Table};
use ron_tlog::{Checkpointer, Ed25519NoteSigner, LogReader};

use crate::api::{Api, router};
use crate::core::State;
use crate::engine::{Engine, EngineOptions};
use crate::feed::{self, Feed};
use crate::health::Health;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::node::{self, Sides};
use crate::projection::{self, Projection, ProjectionReader};
use crate::role;
use crate::settings::{Settings, TABLE};
use crate::topology::{CHECKPOINT, EVENTS, POLLS, PROJECT, TOPOLOGY};
use crate::witness;
use crate::writer::{self, WriterParts};

/// The projection as operators and callers read of it.
const PROJECTION_LAG: Follower = Follower {
    name: "projection_lag",
    what: "the projection",
};
/// Pause before the projection is reopened after a failure.
const PROJECTION_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Readiness causes beside those of other modules.
const CAUSES: [&str; 7] = [
    role::ENGINE,
    "log",
    "projection",
    "snapshot",
    STANDBY,
    "store",
    "witness",
];

/// The ledger as a service.
pub struct RonLedger;

impl Service for RonLedger {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;

    /// Starts the service. Returns once its ports answer and the ledger accepts commits.
    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            chassis,
            data_dir,
            ..
        } = boot;
        let asked = WitnessSettings::load(&chassis.config.load(), &settings.witness)
            .map_err(|problem| vec![problem])?;
        chassis.ready.declare(&CAUSES);
        chassis.ready.declare(&log_engine::CAUSES);
        chassis.capabilities(&["commit", "events", "holds", "resolve", "settle"]);

        let Opened {
            engine,
            signer,
            checkpointer,
            node,
        } = open(&chassis, &settings, data_dir.as_ref())?;
        let metrics = Metrics::new(&chassis.registry);
        let reader = engine.shared().reader().clone();
        let role = node.as_ref().map(Sides::role);
        if let Some(role) = role.clone() {
            let entries = reader.clone();
            chassis.show_log(move || role.shown.doc(entries.size_durable()));
        }
        let checkpoints = checkpoint_room(&chassis, checkpointer, &signer, &reader);
        let keys = KeyView::of(signer.verifier().clone());
        let witnessed =
            witness::spawn(&chassis, asked.as_ref(), role, &keys, &reader, &checkpoints)?;
        spawn_checkpoints(&chassis, &checkpoints);
        let host = LogHost {
            reader,
            keys,
            entries_scope: scope::LEDGER_AUDIT,
            cosigned: witnessed.cosigned,
        };
        let archive = archive(&chassis, &settings, &engine);
        let archive_after = archive.as_ref().map(LogArchive::after);
        let with = WriterParts {
            archive,
            ..writer_parts(&chassis, &settings, &metrics, node, witnessed.heads)
        };
        let (ledger, notifications) = writer::spawn(engine, with);
        let feed = spawn_feed(&chassis, &ledger, notifications.events, &metrics);
        let wanted = data_dir.filter(|_| settings.projection);
        let (history, lag) = spawn_projection(&chassis, &ledger, wanted, notifications.project);

        let prefixes = Arc::new(Snapshot::new(settings.prefixes()));
        let times = asked.map(|witness| witness.times);
        on_reload(&chassis, prefixes.clone(), times, archive_after);
        chassis.on_drained(move || checkpoints.finish());
        let api = Arc::new(Api {
            ledger,
            feed,
            history,
            lag,
            pool_prefixes: prefixes,
            log: host.clone(),
            sup: chassis.sup.clone(),
        });
        chassis.serve(router(&api).add_all(routes(Base::Log, &host)))
    }
}

fn archive(chassis: &Chassis, settings: &Settings, engine: &Engine) -> Option<LogArchive> {
    let parts = ArchiveParts {
        clock: &chassis.clock,
        ready: &chassis.ready,
        registry: &chassis.registry,
    };
    settings.archive.of(engine.archiver(), parts)
}

fn on_reload(
    chassis: &Chassis,
    prefixes: Arc<Snapshot<Vec<String>>>,
    times: Option<WitnessTimes>,
    archive_after: Option<ArchiveAfter>,
) {
    chassis.on_reload(move |new: Settings| {
        prefixes.store(new.prefixes());
        if let Some(times) = &times {
            new.witness.change(times);
        }
        if let Some(after) = &archive_after {
            after.change(&new.archive);
        }
        Ok(())
    });
}

fn writer_parts(
    chassis: &Chassis,
    settings: &Settings,
    metrics: &Metrics,
    node: Option<Sides>,
    witnesses: Option<Witnesses>,
) -> WriterParts {
    WriterParts {
        sup: chassis.sup.clone(),
        km: chassis.km.clone(),
        clock: chassis.clock.clone(),
        metrics: metrics.clone(),
        health: Arc::new(Readiness::new(chassis)),
        room: chassis.room.clone(),
        commits: settings.commits,
        node: node::spawn(chassis, settings, node, witnesses),
        archive: None,
    }
}

struct Opened {
    engine: Engine,
    signer: Arc<Ed25519NoteSigner>,
    checkpointer: Checkpointer,
    /// Of a ledger whose log is in an engine.
    node: Option<Sides>,
}

fn open(chassis: &Chassis, settings: &Settings, home: Option<&Dir>) -> Result<Opened, StartError> {
    let mut options = EngineOptions::new(settings.origin.0.clone());
    options.random = chassis.random.clone();
    options.snapshot_every = settings.snapshot_every;
    options.limits = settings.limits();
    options.archive_dir.clone_from(&settings.archive.dir);
    let sessions = node::sessions(chassis, settings, home)?;
    let (disk, dir, signer): (SharedDisk, PathBuf, _) = match home {
        Some(dir) => {
            let fresh = !dir.exists("log/log.meta").map_err(StartError::failed)?;
            let signer = note_key::load_or_make(dir, &settings.origin.0, &*chassis.random, fresh);
            // The writer and its snapshots have watches of their own.
            (chassis.disk.clone(), dir.path().to_owned(), signer)
        }
        None => (
            Arc::new(MemoryDisk::new()),
            PathBuf::from("/ledger"),
            note_key::ephemeral(&settings.origin.0, &*chassis.random),
        ),
    };
    let signer = signer.map_err(|why| {
        StartError::io(why, "the checkpoints of the log are signed with this key")
    })?;
    options.verifier = Some(signer.verifier().clone());
    let started = chassis.clock.now();
    let (mut engine, node) = node::open(chassis, settings, disk, &dir, options, sessions)?;
    chassis
        .clock
        .resume_after(engine.shared().state(State::ts).0);
    let found = engine.opened();
    tracing::info!(
        event = "ledger_opened",
        seq = engine.shared().head(),
        snapshot_seq = found.snapshot_seq,
        replayed = found.replayed,
        took_ms = u64::try_from(chassis.clock.now().duration_since(started).as_millis())
            .unwrap_or(u64::MAX),
    );
    for why in &found.skipped {
        tracing::warn!(event = "snapshot_skipped", reason = %why);
    }
    let checkpointer = engine
        .take_checkpointer()
        .ok_or_else(|| StartError::failed("the log has no checkpointer"))?;
    Ok(Opened {
        engine,
        signer: Arc::new(signer),
        checkpointer,
        node,
    })
}

fn checkpoint_room(
    chassis: &Chassis,
    checkpointer: Checkpointer,
    signer: &Arc<Ed25519NoteSigner>,
    reader: &LogReader,
) -> Arc<CheckpointRoom> {
    CheckpointRoom::new(
        checkpointer,
        signer.clone(),
        reader.clone(),
        CheckpointPlan::default(),
        chassis.ready.clone(),
        chassis.clock.clone(),
        &chassis.registry,
        "log",
    )
}

fn spawn_checkpoints(chassis: &Chassis, room: &Arc<CheckpointRoom>) {
    let run = Arc::clone(room);
    chassis.sup.spawn(&CHECKPOINT, move |ctx| run.run(ctx));
}

/// Reports the ledger's health as readiness causes.
struct Readiness(ReadyBoard, ClosedCounter);

impl Readiness {
    fn new(chassis: &Chassis) -> Self {
        let errors = &chassis.km.io_errors;
        errors.declare(["store", "snapshot"]);
        Self(chassis.ready.clone(), errors.clone())
    }
}

impl Health for Readiness {
    fn store_failed(&self, why: &str) {
        self.1.with_label_values(&["store"]).inc();
        self.0.missing("store", why);
    }
    fn snapshot(&self, why: Option<&str>) {
        match why {
            Some(why) => {
                self.1.with_label_values(&["snapshot"]).inc();
                self.0.degrade("snapshot", why);
            }
            None => self.0.clear("snapshot"),
        }
    }
    fn engine(&self, why: Option<&str>) {
        match why {
            Some(why) => self.0.missing(role::ENGINE, why),
            None => self.0.present(role::ENGINE),
        }
    }
    fn not_compared(&self, why: &str) {
        // Cleared when a quorum has cosigned the log again.
        self.0.degrade("witness", why);
    }
    fn standby(&self, what: Option<&str>) {
        match what {
            Some(what) => self.0.degrade(STANDBY, what),
            None => self.0.clear(STANDBY),
        }
    }
    fn role(&self, role: &'static str, epoch: Option<u64>) {
        let event = Event::warn(EventKind::LogRole).reason(role);
        let event = match epoch {
            Some(epoch) => event.number(epoch),
            None => event,
        };
        self.0.events().publish(event);
    }
}

fn spawn_feed(
    chassis: &Chassis,
    ledger: &Ledger,
    notifications: Receiver<()>,
    metrics: &Metrics,
) -> Feed {
    let (tx, polls) = queue(&POLLS, POLLS.capacity, &chassis.km);
    let (ledger, metrics) = (ledger.clone(), metrics.clone());
    chassis.sup.spawn(&EVENTS, move |ctx| {
        feed::run(ctx, &polls, &notifications, &ledger, &metrics);
    });
    Feed::new(tx)
}

fn spawn_projection(
    chassis: &Chassis,
    ledger: &Ledger,
    dir: Option<Dir>,
    notifications: Receiver<()>,
) -> (Option<ProjectionReader>, Arc<FollowerLag>) {
    let lag = FollowerLag::new(
        &chassis.registry,
        PROJECTION_LAG,
        chassis.clock.clone(),
        chassis.ready.clone(),
    );
    let reader = dir.clone().map(ProjectionReader::new);
    let (ledger, ready, of_thread) = (ledger.clone(), chassis.ready.clone(), lag.clone());
    chassis.sup.spawn(&PROJECT, move |ctx| match &dir {
        Some(dir) => project(ctx, dir, &notifications, &ledger, &of_thread, &ready),
        // Without a directory the thread only idles, so that the topology table stays true.
        None => while !ctx.shutdown.wait(Deadline::within(Duration::from_secs(60))) {},
    });
    (reader, lag)
}

fn project(
    ctx: &ThreadCtx,
    dir: &Dir,
    notifications: &Receiver<()>,
    ledger: &Ledger,
    lag: &FollowerLag,
    ready: &ReadyBoard,
) {
    let origin = ledger.head().origin;
    while !ctx.shutdown.is_set() {
        let opened = Projection::open(dir, &origin, ledger.head_seq());
        let ended = opened.and_then(|p| {
            ready.clear("projection");
            projection::run(ctx, p, notifications, ledger, lag)
        });
        if let Err(e) = ended {
            tracing::warn!(event = "projection_failed", error = %e);
            ready.degrade("projection", e.to_string());
            ctx.shutdown.wait(Deadline::within(PROJECTION_RETRY_PAUSE));
        }
    }
}
