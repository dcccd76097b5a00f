//! Composition of the console: threads, queues, the reload hook, the gate, the API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ron_http::{ClientConfig, HttpClient};
use ron_kernel::{
    Deadline, Receiver, Sender, Snapshot, Stage, Supervisor, ThreadCtx, ThreadSpec, Topology, queue,
};
use ron_proto::Timestamp;
use ron_proto::admin::{EpochList, LogHeads};
use ron_service::{Boot, Chassis, ReadyBoard, Running, Service, StartError, Table};

use crate::actions::{Job, Runner};
use crate::api::{Console, router};
use crate::audit::{Audit, Event as AuditEvent};
use crate::discovery::Discovered;
use crate::epochs::EpochWatch;
use crate::event_watch::EventWatch;
use crate::fleet::{DuePoll, Event, Fleet};
use crate::gate::Gate;
use crate::history::History;
use crate::kept::{Contents, SeenHead};
use crate::keys::{self, KeyWatch};
use crate::logs::LogWatch;
use crate::metrics;
use crate::recorder::Recorder;
use crate::sessions::{LONGEST_MAX, Sessions};
use crate::settings::{AuthMode, Settings, TABLE};
use crate::timeline::Lines;
use crate::topology::{
    ACTIONS, ACTIONS_QUEUE, AUDIT, DISCOVERY, EPOCHS, EVENTS, LOG_HEADS, POLLS, SAMPLERS,
    SCHEDULER, SESSIONS, TOPOLOGY, VIEW,
};
use crate::view::{Builder, empty_board};

/// The watcher notices a reload after at most this long.
const NOTICE: Duration = Duration::from_secs(1);

/// The console as a service.
pub struct SvcAdmin;

impl Service for SvcAdmin {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;
    // Without one the console runs read-only and keeps no audit on disk.
    const NEEDS_DATA_DIR: bool = false;

    /// Starts the console: samplers, builder, watchers, API and page.
    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            mut chassis,
            auth,
            data_dir,
        } = boot;
        if settings.auth == AuthMode::None {
            check_bound(chassis.api_addr())?;
            tracing::info!(
                event = "auth_none",
                urls = chassis.public_urls.join(" "),
                "every caller that reaches this address may view the console; actions are off"
            );
        }
        let (audit, lines, kept) = Audit::open(
            data_dir,
            chassis.clock.clone(),
            &chassis.registry,
            &chassis.km,
        )
        .map_err(StartError::failed)?;
        let audit = Arc::new(audit);
        let shared = Arc::new(Snapshot::new(settings));
        chassis.ready.declare(&["discovery"]);
        auth.retain_revocations(LONGEST_MAX);
        let sessions = Sessions::new(
            shared.clone(),
            chassis.clock.clone(),
            chassis.random.clone(),
        );
        let gate = Arc::new(Gate::new(auth, sessions, shared.clone()));
        chassis.authorizer = gate.clone();
        let client = client(&chassis, &shared);
        let sampling = shared.load().sampling;
        let (fleet, events) = Fleet::new(
            sampling,
            client.clone(),
            chassis.clock.clone(),
            chassis.km.clone(),
        );
        let fleet = Arc::new(fleet);
        let (jobs, work) = queue(&ACTIONS_QUEUE, ACTIONS_QUEUE.capacity, &chassis.km);
        let Contents {
            heads,
            timeline,
            history,
        } = kept;
        let timeline = Lines::of(timeline, chassis.clock.unix_ms());
        let kept = (timeline, history);
        let console = console(&chassis, &shared, &fleet, &audit, jobs, gate, kept);
        metrics::export(&chassis.registry, &console.board);
        let samplers = Arc::new(SamplerPool::new(&chassis, &fleet));
        let watcher = Watcher {
            settings: shared.clone(),
            samplers: samplers.clone(),
            ready: chassis.ready.clone(),
        };
        // The first request must find the fleet, so the roster is read once before the ports serve.
        watcher.update(&mut Discovered::default(), &shared.load());
        Builder::default().tick(&fleet, &console.board);
        let runner = Runner {
            client: client.clone(),
            audit: audit.clone(),
            clock: chassis.clock.clone(),
        };
        chassis
            .sup
            .spawn(row(&ACTIONS), move |ctx| runner.run(&work, ctx));
        let ending = console.gate.clone();
        chassis
            .sup
            .spawn(row(&SESSIONS), move |ctx| ending.end_sessions(ctx));
        spawn_audit(&chassis, &audit, lines);
        spawn_sampling(&chassis, &console, samplers, events);
        spawn_watchers(&chassis, &console, client, heads);
        chassis
            .sup
            .spawn(row(&DISCOVERY), move |ctx| watcher.run(ctx));
        // The watcher notices new settings by their address.
        chassis.on_reload(move |new: Settings| {
            shared.store(new);
            Ok(())
        });
        chassis.capabilities(&[
            "actions",
            "audit",
            "auth:ingress",
            "auth:none",
            "auth:passport",
            "epochs",
            "file-discovery",
            "history",
            "keys",
            "log-heads",
            "page",
            "timeline",
        ]);
        chassis.serve(router(&console))
    }
}

/// Without authentication only loopback may be served. The configured address was checked with the
/// configuration; an embedder or the service manager may have bound another.
fn check_bound(api: Option<SocketAddr>) -> Result<(), StartError> {
    match api.filter(|addr| !addr.ip().is_loopback()) {
        None => Ok(()),
        Some(addr) => Err(StartError::io(
            format!("auth.mode none is for loopback only, and the API's socket listens at {addr}"),
            "use passport, or a socket on loopback",
        )),
    }
}

/// The state of the handlers, before anything is published.
fn console(
    chassis: &Chassis,
    settings: &Arc<Snapshot<Settings>>,
    fleet: &Arc<Fleet>,
    audit: &Arc<Audit>,
    jobs: Sender<Job>,
    gate: Arc<Gate>,
    (timeline, history): (Lines, History),
) -> Arc<Console> {
    let now = Timestamp(chassis.clock.unix_ms());
    Arc::new(Console {
        fleet: fleet.clone(),
        board: Arc::new(empty_board()),
        heads: Arc::new(Snapshot::new(LogHeads {
            as_of: now,
            logs: Vec::new(),
        })),
        keys: Arc::new(Snapshot::new(keys::empty(now))),
        epochs: Arc::new(Snapshot::new(EpochList {
            as_of: now,
            sources: Vec::new(),
            epochs: Vec::new(),
        })),
        timeline: Arc::new(Snapshot::new(timeline)),
        history: Arc::new(Snapshot::new(history)),
        audit: audit.clone(),
        jobs,
        gate,
        instance: chassis.instance.clone(),
        started: now,
        settings: settings.clone(),
    })
}

fn client(chassis: &Chassis, settings: &Snapshot<Settings>) -> Arc<HttpClient> {
    let sampling = settings.load().sampling;
    let client = Arc::new(HttpClient::new(ClientConfig {
        // Polls pace themselves, and an operator's call is made when it is asked for: a node that is back must be seen at once.
        breaker: None,
        max_idle_per_host: 2,
        max_response_bytes: sampling.max_body_bytes,
        connect_timeout: sampling.connect_timeout,
        // Slower retries than between services: a restarting node gets the time to bind its port.
        retry_base: Duration::from_millis(100),
        retry_cap: Duration::from_secs(2),
        ..chassis.peers.clone()
    }));
    // Closing the client at the start of the drain ends a hanging poll, which would otherwise hold
    // the drain up.
    let (closing, stop) = (client.clone(), chassis.sup.stage_token(Stage::Intake));
    stop.on_fire(move || closing.shutdown());
    client
}

/// The sampler threads: as many as the fleet needs, more when it grows.
struct SamplerPool {
    sup: Supervisor,
    fleet: Arc<Fleet>,
    due_polls: (Sender<DuePoll>, Receiver<DuePoll>),
    running: AtomicUsize,
}

impl SamplerPool {
    fn new(chassis: &Chassis, fleet: &Arc<Fleet>) -> Self {
        Self {
            sup: chassis.sup.clone(),
            fleet: fleet.clone(),
            due_polls: queue(&POLLS, POLLS.capacity, &chassis.km),
            running: AtomicUsize::new(0),
        }
    }

    /// Starts missing threads. One caller at a time.
    fn grow(&self) {
        let want = self.fleet.threads_for(self.fleet.roster().nodes.len());
        // The pool never shrinks: idle samplers only wait on the queue.
        let have = self.running.fetch_max(want, Ordering::AcqRel);
        let (fleet, due_polls) = (self.fleet.clone(), self.due_polls.1.clone());
        self.sup.grow_pool(row(&SAMPLERS), have, want, move |ctx| {
            fleet.sampler(&due_polls, ctx);
        });
    }
}

/// Updates the roster from configuration and discovery files. After the start only its own thread
/// calls it.
struct Watcher {
    settings: Arc<Snapshot<Settings>>,
    samplers: Arc<SamplerPool>,
    ready: ReadyBoard,
}

impl Watcher {
    /// Reads whenever the files are due, and soon after a reload.
    fn run(&self, ctx: &ThreadCtx) {
        let mut discovered = Discovered::default();
        let mut settings = self.settings.load();
        self.update(&mut discovered, &settings);
        let mut due = Deadline::within(settings.discovery.interval);
        while !ctx.shutdown.wait(Deadline::within(NOTICE)) {
            let now = self.settings.load();
            if Arc::ptr_eq(&now, &settings) && !due.expired() {
                continue;
            }
            settings = now;
            self.update(&mut discovered, &settings);
            due = Deadline::within(settings.discovery.interval);
        }
    }

    fn update(&self, discovered: &mut Discovered, settings: &Settings) {
        let problems = discovered.read(&settings.discovery.files);
        let changed = self
            .samplers
            .fleet
            .watch(&discovered.beside(&settings.nodes));
        if let Some((came, went)) = changed {
            tracing::info!(event = "roster", came = came.len(), went = went.len());
            self.samplers.grow();
        }
        if problems.is_empty() {
            self.ready.clear("discovery");
        } else {
            self.ready.degrade("discovery", problems.join("; "));
        }
    }
}

fn spawn_audit(chassis: &Chassis, audit: &Arc<Audit>, lines: Receiver<AuditEvent>) {
    let (audit, degraded) = (audit.clone(), chassis.ready.hook("audit"));
    let disk = chassis.sup.watch_disk("audit");
    chassis.sup.spawn(row(&AUDIT), move |ctx| {
        audit.run(&lines, &disk, &degraded, ctx);
    });
}

fn spawn_sampling(
    chassis: &Chassis,
    console: &Arc<Console>,
    samplers: Arc<SamplerPool>,
    events: Receiver<Event>,
) {
    let fleet = console.fleet.clone();
    chassis.sup.spawn(row(&SCHEDULER), move |ctx| {
        fleet.scheduler(&events, &samplers.due_polls.0, ctx);
    });
    let (fleet, board) = (console.fleet.clone(), console.board.clone());
    let published = chassis.events.clone();
    let (history, audit) = (console.history.clone(), console.audit.clone());
    chassis.sup.spawn(row(&VIEW), move |ctx| {
        let recorder = Recorder::new(history.clone(), audit.clone());
        Builder::of(published.clone()).run(&fleet, &board, recorder, ctx);
    });
}

fn spawn_watchers(
    chassis: &Chassis,
    console: &Arc<Console>,
    client: Arc<HttpClient>,
    seen: Vec<SeenHead>,
) {
    let clock = chassis.clock.clone();
    let watch = LogWatch::new(client.clone(), clock.clone(), console.audit.clone(), seen);
    let keys = KeyWatch {
        client: client.clone(),
        clock: clock.clone(),
    };
    let at = console.clone();
    chassis.sup.spawn(row(&LOG_HEADS), move |ctx| {
        let keys = || keys.tick(&at.fleet, &at.keys);
        watch.run(&at.fleet, &at.heads, keys, ctx);
    });
    spawn_timeline(chassis, console, client.clone());
    let watch = EpochWatch { client, clock };
    let (fleet, epochs) = (console.fleet.clone(), console.epochs.clone());
    chassis
        .sup
        .spawn(row(&EPOCHS), move |ctx| watch.run(&fleet, &epochs, ctx));
}

fn spawn_timeline(chassis: &Chassis, console: &Arc<Console>, client: Arc<HttpClient>) {
    let (clock, audit) = (chassis.clock.clone(), console.audit.clone());
    let kept = console.timeline.clone();
    // After a crash too it goes on after the lines that are published.
    let watch = move || EventWatch::new(client.clone(), clock.clone(), audit.clone(), &kept.load());
    let (first, at) = (watch(), console.clone());
    let run = move |watch: EventWatch, ctx: &ThreadCtx| {
        watch.run(&at.fleet, &at.board, &at.timeline, ctx);
    };
    chassis
        .sup
        .spawn_owner(row(&EVENTS), first, run, move || Some(watch()));
}

fn row(spec: &ThreadSpec) -> &'static ThreadSpec {
    ron_service::topology_thread(&TOPOLOGY, spec.name)
}
