//! Composition of the service: policy, threads, queues, routes.

use std::sync::Arc;
use std::time::Duration;

use ron_auth::caveats;
use ron_client::{Credential, LedgerClient};
use ron_files::{Dir, DiskRoom};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::{Deadline, Gauge, Receiver, Sender, Snapshot, ThreadCtx, Topology, queue};
use ron_proto::wallet::WalletPolicy;
use ron_service::events::{Event, EventKind};
use ron_service::kept_policy::{KeptPolicy, Versioned as _, replaces};
use ron_service::lag::{Follower, FollowerLag};
use ron_service::records::{Engine, FileRecords, RecordStore};
use ron_service::signed_policy::{PolicyError, SignedPolicy, policy_paths};
use ron_service::{Boot, Chassis, ReadyBoard, Running, Service, StartError, Table, signed_policy};

use crate::answers::AnswersReader;
use crate::api::{self, Api, HoldFacts, WebhookHandle};
use crate::audit::{self, Audit};
use crate::balances::Balances;
use crate::commit::{CommitQueues, Committer};
use crate::events::{self, EventPoll, Watched};
use crate::feed::Feed;
use crate::inflight::InFlightTable;
use crate::metrics::Metrics;
use crate::own::{OwnEntries, OwnWrites, own_writes};
use crate::receipts::{self, WaitingReceipt};
use crate::settings::{Settings, TABLE};
use crate::topology::{
    AUDIT, AUDIT_QUEUE, COMMITTER, EVENTS, EVENTS_NOTIFY, EVENTS_QUEUE, FEED, OWN_QUEUE, PROBE,
    RECEIPTS, RECEIPTS_QUEUE, RESUME_QUEUE, TOPOLOGY, UNRESOLVED_QUEUE, UNRESOLVED_RECORDER, WATCH,
    WEBHOOKS, WORK_QUEUE,
};
use crate::unresolved::{self, Change, Recorder, UnresolvedKeys};
use crate::upstream::{SharedUpstream, Upstream};
use crate::watch::{self, Watch};
use crate::webhooks::{Endpoint, ProgressFile, Webhook, WebhookMetrics, WebhookParts};

/// Pause between two probes of the ledger. Writes notice a ledger that hangs by their own calls, so this bounds only how long an
/// idle wallet says that it is ready.
const PROBE_PAUSE: Duration = Duration::from_millis(250);
/// The pause while the ledger takes no writes, which a probe ends.
const TROUBLE_PAUSE: Duration = Duration::from_millis(50);

/// The feed as operators and callers read of it.
const FEED_LAG: Follower = Follower {
    name: "feed_lag",
    what: "the wallet's copy of the ledger's entries",
};
/// Maximum size of a webhook receiver's answer, in bytes; only its status counts.
const WEBHOOK_ANSWER_MAX: u64 = 1 << 20;

/// State shared by the threads and the handlers.
struct Shared {
    settings: Settings,
    answers: AnswersReader,
    upstream: SharedUpstream,
    /// Number of committer threads.
    committers: usize,
    /// The feed's own connections: they are closed first in a drain.
    feed_http: Arc<HttpClient>,
    feed_ledger: LedgerClient,
    /// Connections to the receivers of webhooks.
    webhook_http: Arc<HttpClient>,
    lag: Arc<FollowerLag>,
    watched: Arc<Watched>,
    watched_changed: Receiver<()>,
    in_flight: Arc<InFlightTable>,
    unresolved: Arc<UnresolvedKeys>,
    balances: Arc<Balances>,
    audit: Audit,
    metrics: Metrics,
}

/// The wallet as a service.
pub struct SvcWallet;

impl Service for SvcWallet {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;
    const ENFORCED_CAVEATS: &'static [&'static str] = &caveats::MONEY_KEYS;

    /// Starts the service. Returns once its ports answer; the ledger need not be up.
    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            mut chassis,
            auth,
            data_dir,
        } = boot;
        chassis.limit_breakers(settings.call_limits().breaker);
        let kept = KeptPolicy::new(data_dir.clone());
        let started = kept
            .start(load_policy(&settings), &settings.policy_keys)
            .map_err(|e| StartError::config_text(e.to_string()))?;
        chassis.ready.declare(&["policy"]);
        if let Some(why) = started.refused {
            let why = format!("the last accepted policy is in force: {why}");
            chassis.ready.degrade("policy", why);
        }
        auth.declare_reasons(["wallet_limits", "wallet_policy"]);
        chassis.capabilities(&[
            "batch", "burn", "freeze", "hold", "issue", "transfer", "webhooks",
        ]);

        let endpoints = settings.webhooks.iter().map(Endpoint::open);
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>();
        let endpoints = endpoints.map_err(StartError::config_text)?;
        let shared = share(&chassis, settings, data_dir.clone())?;
        let (own_writes, own_entries) =
            own_writes(queue(&OWN_QUEUE, OWN_QUEUE.capacity, &chassis.km));
        let queues = spawn_committers(&chassis, &shared, own_writes);
        spawn_probe(&chassis, &shared);
        spawn_feed(&chassis, &shared, own_entries);
        spawn_watch(&chassis, &shared);
        let event_polls = spawn_events(&chassis, &shared);
        let webhooks = spawn_webhooks(&chassis, &shared, endpoints, data_dir)?;
        let policy = Arc::new(Snapshot::new(started.policy));
        on_reload(&chassis, &policy, kept);
        let in_force = policy.clone();
        signed_policy::show_version(&chassis.registry, "wallet", move || {
            in_force.load().policy.version
        });

        let api = Arc::new(Api {
            policy,
            per_op_max: shared.settings.per_op_max,
            daily_max: shared.settings.daily_max,
            queues,
            room: chassis.room.clone(),
            receipts: spawn_receipts(&chassis, &shared),
            event_polls,
            watched: shared.watched.clone(),
            lag: shared.lag.clone(),
            webhooks,
            in_flight: shared.in_flight.clone(),
            unresolved: shared.unresolved.clone(),
            balances: shared.balances.clone(),
            holds: HoldFacts::default(),
            answers: shared.answers.clone(),
            upstream: shared.upstream.clone(),
            auth,
            audit: shared.audit.clone(),
            sup: chassis.sup.clone(),
            clock: chassis.clock.clone(),
            metrics: shared.metrics.clone(),
        });
        chassis.serve(api::router(&api))
    }
}

fn share(chassis: &Chassis, settings: Settings, home: Option<Dir>) -> Result<Shared, StartError> {
    let metrics = Metrics::new(&chassis.registry);
    let credential = || match &settings.ledger_token_file {
        Some(path) => Credential::from_file(path).map_err(StartError::config_text),
        None => Ok(Credential::none()),
    };
    let url = &settings.ledger_url;
    let client = LedgerClient::new(url, credential()?, chassis.client.clone());
    let feed_http = Arc::new(HttpClient::new(chassis.peers.clone()));
    let feed_ledger = LedgerClient::new(url, credential()?, feed_http.clone());
    let webhook_http = Arc::new(HttpClient::new(ClientConfig {
        max_idle_per_host: 1,
        max_response_bytes: WEBHOOK_ANSWER_MAX,
        connect_timeout: settings.webhook_deadline,
        breaker: None,
        ..chassis.peers.clone()
    }));
    let (changed, watched_changed) = queue(&EVENTS_NOTIFY, EVENTS_NOTIFY.capacity, &chassis.km);
    // One slot per committer, one for the probe.
    let committers = chassis.sup.pool_size(settings.committers, 64);
    let slots = committers + 1;
    let clock = chassis.clock.clone();
    let limits = settings.call_limits();
    let upstream = Upstream::new(
        client,
        slots,
        limits,
        clock.clone(),
        chassis.random.clone(),
        metrics.clone(),
    );
    let upstream = Arc::new(upstream);
    let unresolved = spawn_recorder(chassis, &settings, home.as_ref(), &metrics.unresolved)?;
    let audit = spawn_audit(chassis, home.as_ref());
    Ok(Shared {
        balances: Arc::new(Balances::new(
            settings.balances_keep,
            settings.balance_age(),
        )),
        answers: AnswersReader::new(
            home.map(|dir| dir.join("answers")),
            settings.answers_keep_for,
        ),
        settings,
        upstream,
        committers,
        feed_http,
        feed_ledger,
        webhook_http,
        lag: FollowerLag::new(
            &chassis.registry,
            FEED_LAG,
            clock.clone(),
            chassis.ready.clone(),
        ),
        watched: Arc::new(Watched::new(changed)),
        watched_changed,
        in_flight: Arc::new(InFlightTable::default()),
        unresolved,
        audit,
        metrics,
    })
}

fn spawn_audit(chassis: &Chassis, home: Option<&Dir>) -> Audit {
    let (lines, lines_rx) = queue(&AUDIT_QUEUE, AUDIT_QUEUE.capacity, &chassis.km);
    let dir = home.map(|dir| dir.join("audit"));
    chassis.km.io_errors.declare(["audit"]);
    let errors = chassis.km.io_errors.with_label_values(&["audit"]);
    chassis.sup.spawn(&AUDIT, move |ctx| {
        audit::run(ctx, &lines_rx, dir.clone(), &errors);
    });
    Audit::new(lines, chassis.clock.clone())
}

fn spawn_recorder(
    chassis: &Chassis,
    settings: &Settings,
    home: Option<&Dir>,
    count: &Gauge,
) -> Result<Arc<UnresolvedKeys>, StartError> {
    let (notes, notes_rx) = queue(&UNRESOLVED_QUEUE, UNRESOLVED_QUEUE.capacity, &chassis.km);
    if let Some(engine) = settings.records() {
        return share_records(chassis, &engine, home, (notes, notes_rx), count);
    }
    let (mut store, before) = unresolved::open(home).map_err(StartError::failed)?;
    // Without a reserve: what is kept free is meant for keys whose outcome is unknown.
    store.watch_disk(chassis.sup.watch_disk("unresolved"), DiskRoom::unlimited());
    let records: Box<dyn RecordStore> = Box::new(FileRecords::new(store));
    // After a panic the file is gone: callers are still answered, without a durable record.
    chassis.sup.spawn_owner(
        &UNRESOLVED_RECORDER,
        Some(records),
        move |records, ctx| {
            let recorder = Recorder {
                records,
                shared: None,
                is_failing: false,
            };
            unresolved::run(ctx, &notes_rx, recorder, Vec::new());
        },
        || Some(None),
    );
    Ok(Arc::new(UnresolvedKeys::new(before, notes, count.clone())))
}

/// The same with the records of all wallets in an engine, which need not answer yet.
fn share_records(
    chassis: &Chassis,
    engine: &Engine,
    home: Option<&Dir>,
    (notes, notes_rx): (Sender<Change>, Receiver<Change>),
    count: &Gauge,
) -> Result<Arc<UnresolvedKeys>, StartError> {
    let before = unresolved::of_file(home).map_err(StartError::failed)?;
    let late: Vec<Change> = before
        .iter()
        .map(|key| Change::Add(key.clone(), Vec::new()))
        .collect();
    let opened = engine.open(
        &unresolved::MIGRATIONS,
        &chassis.engine_access,
        &*chassis.random,
    );
    let records = opened.map_err(StartError::failed)?;
    chassis.ready.declare(&[unresolved::CAUSE]);
    let keys = Arc::new(UnresolvedKeys::shared(before, notes, count.clone()));
    let (shared, ready) = (keys.clone(), chassis.ready.clone());
    chassis.sup.spawn_owner(
        &UNRESOLVED_RECORDER,
        (Some(records), late),
        move |(records, late), ctx| {
            let recorder = Recorder {
                records,
                shared: Some((&shared, &ready)),
                is_failing: false,
            };
            unresolved::run(ctx, &notes_rx, recorder, late);
        },
        || Some((None, Vec::new())),
    );
    Ok(keys)
}

fn spawn_committers(chassis: &Chassis, shared: &Shared, own: OwnWrites) -> CommitQueues {
    let settings = &shared.settings;
    let capacity = settings.work.div_ceil(shared.committers);
    let queues = (0..shared.committers).map(|_| queue(&WORK_QUEUE, capacity, &chassis.km));
    let (senders, receivers): (Vec<_>, Vec<_>) = queues.unzip();
    let committer = Committer {
        calls: ron_http::JointCalls::default(),
        upstream: shared.upstream.clone(),
        in_flight: shared.in_flight.clone(),
        unresolved: shared.unresolved.clone(),
        balances: shared.balances.clone(),
        own,
        audit: shared.audit.clone(),
        clock: chassis.clock.clone(),
        metrics: shared.metrics.clone(),
    };
    chassis
        .sup
        .spawn_pool(&COMMITTER, shared.committers, move |ctx| {
            committer.run(ctx, &receivers[ctx.index]);
        });
    CommitQueues::new(senders)
}

fn spawn_receipts(chassis: &Chassis, shared: &Shared) -> Sender<WaitingReceipt> {
    let (sender, receiver) = queue(&RECEIPTS_QUEUE, RECEIPTS_QUEUE.capacity, &chassis.km);
    let upstream = shared.upstream.clone();
    chassis.sup.spawn(&RECEIPTS, move |ctx| {
        receipts::run(ctx, &receiver, &upstream);
    });
    sender
}

fn spawn_events(chassis: &Chassis, shared: &Shared) -> Sender<EventPoll> {
    let (sender, receiver) = queue(&EVENTS_QUEUE, EVENTS_QUEUE.capacity, &chassis.km);
    let (changed, watched) = (shared.watched_changed.clone(), shared.watched.clone());
    let upstream = shared.upstream.clone();
    chassis.sup.spawn(&EVENTS, move |ctx| {
        events::run(ctx, &receiver, &changed, &watched, &upstream);
    });
    sender
}

fn spawn_webhooks(
    chassis: &Chassis,
    shared: &Shared,
    endpoints: Vec<Endpoint>,
    home: Option<Dir>,
) -> Result<Vec<WebhookHandle>, StartError> {
    if endpoints.is_empty() {
        return Ok(Vec::new());
    }
    let dir = home.map(|home| home.join("webhooks"));
    if let Some(dir) = &dir {
        dir.create().map_err(StartError::failed)?;
    }
    let parts = WebhookParts {
        ledger: shared.feed_ledger.clone(),
        http: shared.webhook_http.clone(),
        timing: shared.settings.webhook_timing(),
        clock: chassis.clock.clone(),
        ready: chassis.ready.clone(),
        metrics: WebhookMetrics::new(&chassis.registry, &endpoints),
    };
    let mut handles = Vec::with_capacity(endpoints.len());
    let mut bodies = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        chassis.ready.declare(&[endpoint.cause]);
        let (resume, resumes) = queue(&RESUME_QUEUE, RESUME_QUEUE.capacity, &chassis.km);
        let file = ProgressFile::new(dir.clone(), &endpoint.name);
        let webhook = Arc::new(Webhook::new(endpoint, file, parts.clone()));
        handles.push((webhook.clone(), resume));
        bodies.push((webhook, resumes));
    }
    chassis.sup.spawn_pool(&WEBHOOKS, bodies.len(), move |ctx| {
        let (webhook, resumes) = &bodies[ctx.index];
        webhook.run(ctx, resumes);
    });
    Ok(handles)
}

fn spawn_probe(chassis: &Chassis, shared: &Shared) {
    let (upstream, ready) = (shared.upstream.clone(), chassis.ready.clone());
    let slot = shared.committers;
    ready.declare(&["ledger"]);
    ready.missing("ledger", "the ledger has not answered yet");
    chassis
        .sup
        .spawn(&PROBE, move |ctx| probe(ctx, &upstream, slot, &ready));
}

fn spawn_feed(chassis: &Chassis, shared: &Shared, own: OwnEntries) {
    let feed = Feed {
        ledger: shared.feed_ledger.clone(),
        balances: shared.balances.clone(),
        unresolved: shared.unresolved.clone(),
        watched: shared.watched.clone(),
        own,
        answers: shared.answers.clone(),
        keep: shared.settings.answers_keep,
        lag: shared.lag.clone(),
        metrics: shared.metrics.clone(),
    };
    chassis.sup.spawn(&FEED, move |ctx| feed.run(ctx));
}

fn spawn_watch(chassis: &Chassis, shared: &Shared) {
    let watch = Watch {
        upstream: shared.upstream.clone(),
        in_flight: shared.in_flight.clone(),
        unresolved: shared.unresolved.clone(),
        ready: chassis.ready.clone(),
        clock: chassis.clock.clone(),
        metrics: shared.metrics.clone(),
        sup: chassis.sup.clone(),
        followers: [shared.feed_http.clone(), shared.webhook_http.clone()],
    };
    chassis.ready.declare(&[watch::NO_WRITES]);
    chassis.sup.spawn(&WATCH, move |ctx| watch.run(ctx));
}

/// The probe thread's body: readiness follows the ledger's answer.
fn probe(ctx: &ThreadCtx, upstream: &Upstream, slot: usize, ready: &ReadyBoard) {
    loop {
        match upstream.probe(slot) {
            Ok(()) => ready.present("ledger"),
            Err(e) => ready.missing("ledger", format!("the ledger does not answer: {e}")),
        }
        let trouble = upstream.trouble().is_some();
        let pause = if trouble { TROUBLE_PAUSE } else { PROBE_PAUSE };
        if ctx.shutdown.wait(Deadline::within(pause)) {
            return;
        }
    }
}

/// Loads the signed policy from its files.
fn load_policy(settings: &Settings) -> Result<SignedPolicy<WalletPolicy>, PolicyError> {
    let found = signed_policy::load(&settings.policy_dir, "wallet", &settings.policy_keys)?;
    crate::policy::check(&found.policy).map_err(|why| {
        let (file, _) = policy_paths(&settings.policy_dir, "wallet");
        PolicyError {
            file: file.display().to_string(),
            why,
        }
    })?;
    Ok(found)
}

fn on_reload(
    chassis: &Chassis,
    policy: &Arc<Snapshot<SignedPolicy<WalletPolicy>>>,
    kept: KeptPolicy<WalletPolicy>,
) {
    let (policy, ready) = (policy.clone(), chassis.ready.clone());
    chassis.on_reload(move |settings: Settings| {
        let (new, old) = (load_policy(&settings), policy.load());
        let new = new.map_err(|e| e.to_string())?;
        let version = old.policy.version;
        if replaces(&new, Some(&*old), version).map_err(|e| e.to_string())? {
            // Durable before it is in force: after a crash no older policy may come back.
            kept.write(&new).map_err(|e| e.to_string())?;
            let adopted = Event::info(EventKind::PolicyAdopted).reason(WalletPolicy::KIND);
            let adopted = adopted.number(new.policy.version);
            policy.store(new);
            ready.events().publish(adopted);
        }
        ready.clear("policy");
        Ok(())
    });
}
