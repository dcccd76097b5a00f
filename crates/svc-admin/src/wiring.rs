//! Composition of the console: threads, queues, the reload hook, the gate, the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ron_auth::RonAuthorizer;
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::{
    Deadline, Receiver, Sender, Snapshot, Stage, Supervisor, ThreadCtx, ThreadSpec, queue,
};
use ron_proto::Timestamp;
use ron_proto::admin::{EpochList, LogHeads};
use ron_service::{Chassis, Config, DataDir, Parts, ReadyBoard, Running, StartError};

use crate::actions::{Job, Runner};
use crate::api::{Console, router};
use crate::audit::{Audit, Event as AuditEvent, SeenHead};
use crate::config::{AuthMode, Settings};
use crate::discovery::Discovered;
use crate::epochs::EpochWatch;
use crate::fleet::{DuePoll, Event, Fleet};
use crate::gate::Gate;
use crate::logs::LogWatch;
use crate::metrics;
use crate::topology::{
    ACTIONS, ACTIONS_QUEUE, AUDIT, DISCOVERY, EPOCHS, LOG_HEADS, POLLS, SAMPLERS, SCHEDULER,
    TOPOLOGY, VIEW,
};
use crate::view::{Builder, empty_board};

/// The watcher notices a reload after at most this long.
const NOTICE: Duration = Duration::from_millis(250);

/// Starts the console: samplers, builder, watchers, API and page.
pub fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let bound = parts.api.local_addr().map_err(StartError::failed)?;
    let settings = Settings::from_config(&config, bound.ip())?;
    let data = match config.path_opt("data_dir") {
        Some(_) => DataDir::open(&config)?.map(Arc::new),
        None => None,
    };
    let mut chassis = Chassis::new(&TOPOLOGY, &config, &parts)?;
    if settings.auth == AuthMode::None {
        tracing::info!(event = "auth_none", bind = %bound, "every caller that reaches this address may view the console; actions are off");
    }
    let path = data.as_ref().map(|dir| dir.join("admin.db"));
    let (audit, lines, seen) =
        Audit::open(path, chassis.clock.clone(), &chassis.registry, &chassis.km)
            .map_err(StartError::failed)?;
    let audit = Arc::new(audit);
    let shared = Arc::new(Snapshot::new(settings));
    let gate = authorize(&mut chassis, &config, &shared, &audit)?;
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
    let console = console(&chassis, &shared, &fleet, &audit, jobs, gate);
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
    spawn_audit(&chassis, &audit, lines, data);
    spawn_sampling(&chassis, &console, samplers, events);
    spawn_watchers(&chassis, &console, client, seen);
    chassis
        .sup
        .spawn(row(&DISCOVERY), move |ctx| watcher.run(ctx));
    reload(&chassis, shared, bound.ip());
    chassis.capabilities(&[
        "actions",
        "audit",
        "auth:ingress",
        "auth:none",
        "auth:passport",
        "epochs",
        "file-discovery",
        "log-heads",
        "page",
    ]);
    chassis.serve(router(&console))
}

/// The state of the handlers, before anything is published.
fn console(
    chassis: &Chassis,
    settings: &Arc<Snapshot<Settings>>,
    fleet: &Arc<Fleet>,
    audit: &Arc<Audit>,
    jobs: Sender<Job>,
    gate: Arc<Gate>,
) -> Arc<Console> {
    let now = Timestamp(chassis.clock.unix_ms());
    Arc::new(Console {
        fleet: fleet.clone(),
        board: Arc::new(empty_board()),
        heads: Arc::new(Snapshot::new(LogHeads {
            as_of: now,
            logs: Vec::new(),
        })),
        epochs: Arc::new(Snapshot::new(EpochList {
            as_of: now,
            sources: Vec::new(),
            epochs: Vec::new(),
        })),
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

/// Passports and service tokens are checked in every mode: the health port's actions need them.
fn authorize(
    chassis: &mut Chassis,
    config: &Config,
    settings: &Arc<Snapshot<Settings>>,
    audit: &Arc<Audit>,
) -> Result<Arc<Gate>, StartError> {
    let section = auth_section(config);
    let passports = RonAuthorizer::from_section(
        "svc-admin",
        &section,
        &[],
        &chassis.registry,
        chassis.clock.clone(),
        chassis.peers.clone(),
        config.path_opt("data_dir"),
    )
    .map_err(StartError::config_text)?;
    passports.on_state(chassis.ready.hook("passports"));
    chassis.ready.declare(&["discovery"]);
    passports.spawn(&chassis.sup, &TOPOLOGY);
    let reloaded = passports.clone();
    chassis.on_reload(move |new| reloaded.reload(&auth_section(new)));
    let gate = Arc::new(Gate::new(
        passports,
        settings.clone(),
        audit.clone(),
        &chassis.registry,
    ));
    chassis.authorizer = gate.clone();
    Ok(gate)
}

/// The `auth` keys without the console's own.
fn auth_section(config: &Config) -> serde_json::Value {
    let mut section = config.section("auth");
    if let Some(map) = section.as_object_mut() {
        map.remove("mode");
    }
    section
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

/// Stores the new settings; the watcher notices them by their address.
fn reload(chassis: &Chassis, settings: Arc<Snapshot<Settings>>, bound: std::net::IpAddr) {
    chassis.on_reload(move |new| {
        let new = Settings::from_config(new, bound).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            lines.join("; ")
        })?;
        settings.store(new);
        Ok(())
    });
}

fn spawn_audit(
    chassis: &Chassis,
    audit: &Arc<Audit>,
    lines: Receiver<AuditEvent>,
    data: Option<Arc<DataDir>>,
) {
    let (audit, degraded) = (audit.clone(), chassis.ready.hook("audit"));
    chassis.sup.spawn(row(&AUDIT), move |ctx| {
        // The directory stays locked as long as its writer lives.
        let _held = &data;
        audit.run(&lines, &degraded, ctx);
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
    chassis.sup.spawn(row(&VIEW), move |ctx| {
        Builder::default().run(&fleet, &board, ctx);
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
    let (fleet, heads) = (console.fleet.clone(), console.heads.clone());
    chassis
        .sup
        .spawn(row(&LOG_HEADS), move |ctx| watch.run(&fleet, &heads, ctx));
    let watch = EpochWatch { client, clock };
    let (fleet, epochs) = (console.fleet.clone(), console.epochs.clone());
    chassis
        .sup
        .spawn(row(&EPOCHS), move |ctx| watch.run(&fleet, &epochs, ctx));
}

fn row(spec: &ThreadSpec) -> &'static ThreadSpec {
    ron_service::topology_thread(&TOPOLOGY, spec.name)
}
