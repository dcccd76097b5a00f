//! The base of every service: supervisor, metrics, readiness, the two HTTP fronts, reload, drain.
//!
//! A service adds its threads, routes and hooks to the [`Chassis`] that [`crate::start`] has made, and
//! ends with [`Chassis::serve`]. The health port answers from the first moment (not ready, cause `starting`),
//! the API from `serve` on.

mod bases;
mod inherited;
mod ops;
mod otlp;
mod parts;
mod running;
mod transport;

pub use inherited::Inherited;
pub use parts::Parts;
pub use running::{ReloadError, Running};
pub use transport::client_config;

use crate::config::{ChassisSettings, Config, ServiceSettings};
use crate::datadir::DataDir;
use crate::error::StartError;
use crate::event_feed::{EVENT_POLLS_MAX, FeedMessage, FeedSource};
use crate::events::{Event, EventKind, Events};
use crate::kept_date::KeptDate;
use crate::ready::ReadyBoard;
use crate::records::{EngineAccess, SharedEngines};
use crate::topology::{ChassisThreads, HOOKS_LOCK, HTTP_QUEUE, OPS_QUEUE};
use crate::vitals::{self, Certificates};
use ron_auth::{AuthConfig, RonAuthorizer};
use ron_files::{Dir, DiskRoom, SharedDisk};
use ron_http::{
    Authorizer, ClientConfig, DenyAll, Front, FrontHandle, FrontSpec, HttpClient, Limits, Method,
    Need, Principal, Proxies, RequestHead, Router, Transport,
};
use ron_kernel::net::SharedListener;
use ron_kernel::{
    BreakerLimits, ClockAlarm, ClosedCounter, Counter, Histogram, KernelMetrics, LockSpec,
    QueueSpec, RankedMutex, Registry, Sender, SharedClock, SharedNet, SharedRandom, Shutdown,
    ShutdownTrigger, Snapshot, Supervisor, TokenBuckets, Topology,
};
use ron_proto::Problem;
use ron_proto::status::LogNodeDoc;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

static HOOKS_LOCK_SPEC: LockSpec = HOOKS_LOCK;
static HTTP_QUEUE_SPEC: QueueSpec = HTTP_QUEUE;
static OPS_QUEUE_SPEC: QueueSpec = OPS_QUEUE;

/// The results of a reload, as metric labels.
const RELOADED: [&str; 4] = ["ok", "unchanged", "refused", "invalid"];
/// A reload reads files and swaps snapshots.
const RELOAD_BUCKETS: &[f64] = &[0.001, 0.01, 0.1, 1.0, 10.0];
/// Maximum connections of the health port. A scraper, an orchestrator and an operator need few;
/// above half of the limit, idle connections of the peer with the most are closed, so there is
/// always space for these clients.
const OPS_CONNS: usize = 256;
/// Threads beside those of the API that use files of the data directory at one time. A disk that hangs
/// is noticed with any number of them: calls above it are not watched, but those below it are.
const FILES_THREADS: usize = 8;
/// Maximum callers whose rate is tracked at one time.
const RATE_CALLERS: usize = 16_384;

type ReloadHook = Arc<dyn Fn(&Config) -> Result<(), ReloadError> + Send + Sync>;
type DrainedHook = Box<dyn FnOnce() + Send>;
type LogHook = Box<dyn Fn() -> LogNodeDoc + Send + Sync>;
type DateHook = Arc<dyn Fn(&DateAccepted<'_>) -> Result<(), Problem> + Send + Sync>;

#[derive(Default)]
struct Hooks {
    reload: Vec<ReloadHook>,
    drained: Vec<DrainedHook>,
    date: Vec<DateHook>,
}

/// An operator is about to have the service believe the machine's date.
#[derive(Debug)]
pub struct DateAccepted<'a> {
    pub by: &'a Principal,
    /// How the machine's date differs from the service's own.
    pub alarm: ClockAlarm,
}

/// State shared by the modules of the chassis and the running service.
pub(crate) struct Shared {
    pub topology: &'static Topology,
    pub sup: Supervisor,
    pub registry: Registry,
    pub clock: SharedClock,
    pub ready: ReadyBoard,
    pub events: Events,
    event_polls: Sender<FeedMessage>,
    pub room: DiskRoom,
    pub config: Arc<Snapshot<Config>>,
    pub instance: String,
    pub started: Instant,
    pub capabilities: OnceLock<Vec<String>>,
    log: OnceLock<LogHook>,
    pub stop: (ShutdownTrigger, Shutdown),
    pub tls: transport::ServedTls,
    pub peers: ClientConfig,
    pub reloads: ClosedCounter,
    pub reload_seconds: Histogram,
    pub reloading: AtomicBool,
    hooks: RankedMutex<Hooks>,
    authorizer: OnceLock<Arc<dyn Authorizer>>,
    rates: Snapshot<Option<Rates>>,
    rate_limited: Counter,
}

pub struct Chassis {
    pub topology: &'static Topology,
    pub sup: Supervisor,
    pub km: KernelMetrics,
    pub registry: Registry,
    pub clock: SharedClock,
    pub random: SharedRandom,
    net: SharedNet,
    pub disk: SharedDisk,
    /// The engines of logs that several nodes share.
    pub engines: SharedEngines,
    /// How they are reached.
    pub engine_access: EngineAccess,
    pub ready: ReadyBoard,
    /// What an operator wants on a timeline.
    pub events: Events,
    /// Room on the disk of the data directory.
    pub room: DiskRoom,
    /// The configuration in force; a reload replaces it.
    pub config: Arc<Snapshot<Config>>,
    pub instance: String,
    /// Base URLs by which clients reach the API, the one to publish first.
    pub public_urls: Vec<String>,
    /// Base URLs of the API for clients with certificates; empty if it has no address for them alone.
    pub mtls_urls: Vec<String>,
    /// Decides about callers of both ports. A service that replaces it does so before
    /// [`Chassis::serve`].
    pub authorizer: Arc<dyn Authorizer>,
    /// For calls to other services; closed at the end of the drain.
    pub client: Arc<HttpClient>,
    /// Settings for further clients of this service; a reload rereads its certificates.
    pub peers: ClientConfig,
    shared: Arc<Shared>,
    threads: ChassisThreads,
    /// Its threads start with the API; `None` in tests that authorize callers otherwise.
    auth: Option<Arc<RonAuthorizer>>,
    api: SharedListener,
    mtls: Option<SharedListener>,
    ops: FrontHandle,
    guard: StartGuard,
    date: Option<KeptDate>,
    /// The data directory, with calls that are watched.
    pub(crate) files: Option<Dir>,
    /// After `guard`, which drains the threads of a failed start: they use the directory until then.
    data: Option<DataDir>,
}

/// Drains the threads again when a start fails halfway.
struct StartGuard(Option<Supervisor>);

impl Drop for StartGuard {
    fn drop(&mut self) {
        if let Some(sup) = self.0.take() {
            sup.drain(Duration::from_secs(1));
        }
    }
}

impl Chassis {
    /// Starts the health port and creates the parts that every service needs. `threads` are rows of
    /// `topology`. `data` stays locked until the drain ends.
    pub(crate) fn new(
        topology: &'static Topology,
        threads: ChassisThreads,
        config: &Config,
        parts: &Parts,
        data: Option<DataDir>,
    ) -> Result<Self, StartError> {
        let registry = parts.registry.clone();
        let km = KernelMetrics::new(&registry);
        let sup = Supervisor::with_cores(topology, km.clone(), parts.clock.clone(), parts.cores);
        let guard = StartGuard(Some(sup.clone()));
        let events = Events::new(&km, parts.clock.clone());
        events.follow(&sup);
        events.spawn_log(&sup, threads.ops_log);
        let dir = data.as_ref().map(DataDir::dir);
        let watches = sup.watch_disks("files", config.chassis().http_workers + FILES_THREADS);
        let files = dir.map(|dir| dir.watched(watches));
        // Before anything may depend on a date that is wrong.
        let date = files
            .clone()
            .map(|dir| KeptDate::resume(dir, parts.clock.clone()));
        let date = date.transpose()?;
        let room = config.chassis().disk_room(dir, &parts.clock);
        let certificates = Certificates::new(&registry, config.chassis());
        let ready = ReadyBoard::starting(&registry, topology, room.clone(), events.clone());
        let ready = ready.with_certificates(certificates);
        let feed = FeedSource {
            events: events.clone(),
            ready: ready.clone(),
            sup: sup.clone(),
            service: topology.service,
            instance: parts.instance.clone(),
            random: parts.random.clone(),
        };
        let event_polls = feed.spawn(threads.ops_events, &km);
        let mut peers = transport::client_config(config)?;
        peers.random = parts.random.clone();
        peers.net = parts.net.clone();
        peers.on_breaker = events.of_breakers();
        let tls = transport::server_tls(config.chassis())?;
        vitals::export(&registry, dir.cloned());
        vitals::export_clock(&registry, &parts.clock);
        let shared = Arc::new(Shared {
            topology,
            sup: sup.clone(),
            registry: registry.clone(),
            clock: parts.clock.clone(),
            ready: ready.clone(),
            events: events.clone(),
            event_polls,
            room: room.clone(),
            config: Arc::new(Snapshot::new(config.clone())),
            instance: parts.instance.clone(),
            started: parts.clock.now(),
            capabilities: OnceLock::new(),
            log: OnceLock::new(),
            stop: parts.stop.clone(),
            tls,
            peers: peers.clone(),
            reloads: registry.counter_closed(
                "config_reloads_total",
                "Reloads of the configuration, by result.",
                &[("result", &RELOADED)],
            ),
            reload_seconds: registry.histogram(
                "config_reload_duration_seconds",
                "Time of a reload, in seconds.",
                RELOAD_BUCKETS,
            ),
            reloading: AtomicBool::new(false),
            hooks: RankedMutex::new(&HOOKS_LOCK_SPEC, Hooks::default()),
            authorizer: OnceLock::new(),
            rates: Snapshot::new(rates(config.chassis())),
            rate_limited: registry.counter(
                "rate_limited_total",
                "Requests refused because their caller exceeded its rate.",
            ),
        });
        let ops = start_ops(&shared, &threads, parts, &km)?;
        let api = parts.api.clone();
        Ok(Self {
            topology,
            sup,
            km,
            registry,
            clock: parts.clock.clone(),
            random: parts.random.clone(),
            net: parts.net.clone(),
            disk: parts.disk.clone(),
            engines: parts.engines.clone(),
            engine_access: EngineAccess {
                net: parts.net.clone(),
                stop: parts.stop.1.clone(),
                grace: config.chassis().drain_deadline / 10,
            },
            ready,
            events,
            room,
            config: shared.config.clone(),
            instance: parts.instance.clone(),
            authorizer: Arc::new(DenyAll),
            client: Arc::new(transport::client(peers.clone())),
            peers,
            public_urls: bases::of_api(config.chassis(), &*api)?,
            mtls_urls: bases::of_mtls(config.chassis(), parts.mtls.as_deref())?,
            api,
            mtls: parts.mtls.clone(),
            shared,
            threads,
            auth: None,
            ops,
            guard,
            date,
            files,
            data,
        })
    }

    /// Replaces the breakers of [`Chassis::client`]; for the start of a service, before it passes the
    /// client on.
    pub fn limit_breakers(&mut self, limits: BreakerLimits) {
        self.client = Arc::new(transport::client(ClientConfig {
            breaker: Some(limits),
            ..self.peers.clone()
        }));
    }

    /// The TCP address at which the API is going to listen.
    pub fn api_addr(&self) -> Option<SocketAddr> {
        self.api.local_addr()
    }

    /// Names for `/api/v1/status` of what this build and configuration can do.
    pub fn capabilities(&self, names: &[&str]) {
        let mut names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        names.sort();
        let _ = self.shared.capabilities.set(names);
    }

    /// What `/api/v1/status` says of this node's part in a log that several nodes share.
    pub fn show_log(&self, log: impl Fn() -> LogNodeDoc + Send + Sync + 'static) {
        let _ = self.shared.log.set(Box::new(log));
    }

    /// Registers a hook that a reload calls with the new settings, before they take effect. An
    /// error refuses the reload, and the hooks that have already run are run again with the old
    /// settings.
    pub fn on_reload<S: ServiceSettings>(
        &self,
        hook: impl Fn(S) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let hook: ReloadHook = Arc::new(move |config| {
            let settings = S::from_config(config).map_err(ReloadError::Invalid)?;
            hook(settings).map_err(ReloadError::Refused)
        });
        self.shared.hooks.lock().reload.push(hook);
    }

    /// Sets the authorizer of both ports. Its threads start in [`Chassis::serve`], when the service's
    /// stores are open, and it is reloaded after the hooks of the service, so nothing of a reload is in
    /// force there when one of them refuses.
    pub(crate) fn authorize_with(&mut self, auth: Arc<RonAuthorizer>) {
        self.authorizer = auth.clone();
        self.auth = Some(auth);
    }

    /// Registers a hook that records that an operator accepts the machine's date, before the service believes it. An error
    /// refuses the acceptance.
    pub fn on_date_accepted(
        &self,
        hook: impl Fn(&DateAccepted<'_>) -> Result<(), Problem> + Send + Sync + 'static,
    ) {
        self.shared.hooks.lock().date.push(Arc::new(hook));
    }

    /// Registers a hook for the end of the drain, after every thread has ended; hooks run in the
    /// order added. Used for final checkpoints.
    pub fn on_drained(&self, hook: impl FnOnce() + Send + 'static) {
        self.shared.hooks.lock().drained.push(Box::new(hook));
    }

    /// Opens the API and declares the service started. Adds `/version` and `/openapi.json` to the
    /// routes.
    pub fn serve(mut self, router: Router) -> Result<Running, StartError> {
        let date = self.date.take();
        self.sup.spawn(self.threads.date, move |ctx| match &date {
            Some(date) => date.run(ctx),
            None => ctx.wait_for_shutdown(),
        });
        if let Some(auth) = self.auth.take() {
            auth.spawn(&self.sup, self.threads.auth);
            let hook: ReloadHook = Arc::new(move |config| {
                let settings = AuthConfig::clone(config.auth());
                auth.reload(settings).map_err(ReloadError::Refused)
            });
            self.shared.hooks.lock().reload.push(hook);
        }
        let mut bases = std::mem::take(&mut self.public_urls);
        bases.append(&mut self.mtls_urls);
        bases.extend(bases::of_health(self.ops.addr()));
        self.authorizer.served_at(&bases);
        let _ = self.shared.authorizer.set(self.authorizer.clone());
        let spans = otlp::start(&self);
        let config = self.config.load();
        let listen = transport::listen(
            config.chassis(),
            &self.net,
            (self.api, self.mtls),
            self.shared.tls.clone(),
        )?;
        let spec = FrontSpec {
            poll: self.threads.http_poll,
            workers: self.threads.http_workers,
            queue: &HTTP_QUEUE_SPEC,
            spans,
        };
        let api = Front::start(
            &spec,
            listen,
            router.add(ops::version_route(self.topology.service)),
            Arc::new(Gate {
                shared: self.shared.clone(),
                port: Port::Api,
            }),
            limits(config.chassis()),
            config.chassis().http_workers,
            &self.sup,
            &self.registry,
            &self.km,
            self.clock.clone(),
            &*self.random,
        )
        .map_err(|e| StartError::failed(format!("the API front did not start: {e}")))?;
        self.ready.recent().follow(api.answers());
        // The last hook, and only of a start that has succeeded: another process must not open the directory before the last
        // write.
        let data = self.data.take();
        let unlock = Box::new(move || drop(data));
        self.shared.hooks.lock().drained.push(unlock);
        self.guard.0 = None;
        self.ready.started();
        let uds = api.unix_path().map(|path| path.display().to_string());
        let health_uds = self.ops.unix_path().map(|path| path.display().to_string());
        self.events
            .publish(Event::info(EventKind::Started).why(format_args!(
                "version {}, api {}{}, health {}{}",
                env!("CARGO_PKG_VERSION"),
                api.addr(),
                uds.map_or_else(String::new, |path| format!(" and {path}")),
                self.ops.addr(),
                health_uds.map_or_else(String::new, |path| format!(" and {path}")),
            )));
        Ok(Running::new(self.shared, api, self.ops, self.client))
    }
}

fn start_ops(
    shared: &Arc<Shared>,
    threads: &ChassisThreads,
    parts: &Parts,
    km: &KernelMetrics,
) -> Result<FrontHandle, StartError> {
    let spec = FrontSpec {
        poll: threads.ops_poll,
        workers: threads.ops_workers,
        queue: &OPS_QUEUE_SPEC,
        // Monitors ask there, not clients.
        spans: None,
    };
    let config = shared.config.load();
    let limits = Limits {
        max_conns: OPS_CONNS,
        long_polls: EVENT_POLLS_MAX,
        long_polls_per_peer: EVENT_POLLS_MAX,
        ..limits(config.chassis())
    };
    let listen = transport::listen_ops(config.chassis(), &parts.net, parts.health.clone())?;
    Front::start(
        &spec,
        listen,
        ops::router(shared),
        Arc::new(Gate {
            shared: shared.clone(),
            port: Port::Health,
        }),
        limits,
        config.chassis().ops_workers,
        &shared.sup,
        &shared.registry,
        km,
        shared.clock.clone(),
        &*parts.random,
    )
    .map_err(|e| StartError::failed(format!("the health front did not start: {e}")))
}

fn limits(settings: &ChassisSettings) -> Limits {
    Limits {
        max_body_bytes: settings.body_max.as_usize(),
        public_body_bytes: settings.public_body_max.as_usize(),
        body_memory: settings.body_memory.as_usize(),
        long_polls: settings.long_polls,
        long_polls_per_peer: settings.long_polls_per_peer,
        auth_failures_per_second: settings.auth_failures_per_second,
        trusted_proxies: Proxies::at(settings.trusted_proxies.clone()),
        read_timeout: settings.read_timeout,
        body_timeout: settings.read_timeout,
        write_timeout: settings.write_timeout,
        idle_timeout: settings.idle_timeout,
        request_deadline: settings.request_deadline,
        max_conns: settings.max_conns,
        max_in_flight: settings.max_in_flight,
        decompress_ratio: settings.decompress_ratio,
        ..Limits::default()
    }
}

/// The rate limits per caller.
struct Rates {
    buckets: TokenBuckets,
    /// Tokens of a bucket that writes leave to reads.
    for_reads: u32,
}

fn rates(settings: &ChassisSettings) -> Option<Rates> {
    let per_second = settings.rate_per_second;
    let burst = per_second.max(settings.burst);
    let share = u64::from(burst) * u64::from(settings.read_share_percent) / 100;
    (per_second > 0).then(|| Rates {
        buckets: TokenBuckets::new(per_second, burst, RATE_CALLERS),
        for_reads: u32::try_from(share).unwrap_or(burst),
    })
}

/// Which of the two fronts a gate protects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Api,
    Health,
}

/// Calls the service's authorizer (before it is set, refuses everything), then applies the caller's
/// own rate. On the health port actions are accepted only over a Unix socket or TLS: a token sent
/// to a plain port may have been received by any process that held it.
struct Gate {
    shared: Arc<Shared>,
    port: Port,
}

impl Gate {
    fn may_act(&self, head: &RequestHead, need: &Need) -> Result<(), Problem> {
        let plain = self.port == Port::Health && head.transport == Transport::Tcp;
        // First, because every request to the API passes here; it needs no configuration lookup.
        if !plain || *need == Need::Public {
            return Ok(());
        }
        let config = self.shared.config.load();
        let settings = config.chassis();
        if settings.insecure_loopback && head.is_from_loopback() {
            return Ok(());
        }
        let way = match &settings.health_uds_path {
            Some(path) => format!("send them to its Unix socket, {}", path.display()),
            None => "set health_uds_path and send them to that Unix socket".to_owned(),
        };
        Err(Problem::forbidden(format!(
            "the plain TCP health port accepts no actions, since any user of the host can occupy such a port: {way}"
        )))
    }
}

impl Authorizer for Gate {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        self.may_act(head, need)?;
        let Some(authorizer) = self.shared.authorizer.get() else {
            return Err(Problem::unavailable("the service is starting", 1));
        };
        let principal = authorizer.authorize(head, need)?;
        self.shared.rates.with(|rates| {
            let Some(rates) = rates else { return Ok(()) };
            let reads = head.method == Method::GET || head.method == Method::HEAD;
            let floor = if reads { 0 } else { rates.for_reads };
            rates
                .buckets
                .take_above(&principal.name, self.shared.clock.now(), floor)
                .map_err(|wait| {
                    self.shared.rate_limited.inc();
                    Problem::rate_limited(
                        u32::try_from(wait.as_secs())
                            .unwrap_or(u32::MAX)
                            .saturating_add(1),
                    )
                })
        })?;
        Ok(principal)
    }
}

impl Shared {
    /// A copy of the reload hooks; they are called without the lock.
    fn reload_hooks(&self) -> Vec<ReloadHook> {
        self.hooks.lock().reload.clone()
    }
    /// A copy of the hooks of an accepted date; they are called without the lock.
    fn date_hooks(&self) -> Vec<DateHook> {
        self.hooks.lock().date.clone()
    }
    fn take_drained_hooks(&self) -> Vec<DrainedHook> {
        std::mem::take(&mut self.hooks.lock().drained)
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod events_tests;
#[cfg(test)]
#[path = "rates_tests.rs"]
mod rates_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
#[cfg(test)]
#[path = "transport_tests.rs"]
mod transport_tests;
