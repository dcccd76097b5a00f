//! A small service on the chassis: its whole life over real sockets, six times in one process.

#![allow(clippy::type_complexity, clippy::nonminimal_bool)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use ron_http::{ApiInfo, Call, ClientConfig, Method, PrincipalKind, Reply, Response, Route};
use ron_kernel::{Count, Deadline, Stage, ThreadSpec, exit};
use ron_proto::scope;
use ron_proto::status::{Health, Readiness, ServiceStatus, TopologyDoc};

use super::*;
use crate::config::{ConfigProblem, Settings as _, Table};

crate::settings! {
    #[allow(dead_code)] // the secret is only shown
    pub(crate) struct Sample {
        /// Items in one batch.
        "batch" => batch: u32 = "8", range("1", "64"), reloadable;
        /// A secret for the test.
        "vault.pin" => pin: String = "0000", secret, reloadable;
    }
}
static TABLE: Table = Table {
    service: "svc-sample",
    defaults: &[],
    keys: Sample::GROUPS,
};

impl ServiceSettings for Sample {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        config.read().map_err(|problem| vec![problem])
    }
}

fn batch(config: &Config) -> u32 {
    config.read::<Sample>().unwrap().batch
}
static TOPOLOGY: Topology = crate::topology! {
    service: "svc-sample", prefix: "smp",
    threads: [ThreadSpec { name: "smp-loop", count: Count::One, stage: Stage::Write, critical: true, job: "waits" }],
    queues: [],
    locks: [],
};

const THREADS: ChassisThreads = ChassisThreads::of(&TOPOLOGY);

/// Authorizes `Bearer <scope>` with that scope, under its name or as `<scope>#<name>`.
struct ByScope;
impl Authorizer for ByScope {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        let token = head
            .bearer()
            .ok_or_else(|| Problem::unauthorized("no token"))?;
        let (scope, name) = token.split_once('#').unwrap_or((token, token));
        let principal = Principal {
            name: name.to_owned(),
            scopes: Arc::from([scope.to_owned()]),
            kind: PrincipalKind::Service,
            ..Principal::public()
        };
        match need {
            Need::Scope(wanted) if *wanted != scope => Err(Problem::forbidden("scope")),
            _ => Ok(principal),
        }
    }
}

pub(super) fn start(
    config: &Config,
    drained: &Arc<AtomicU32>,
    hook: Option<fn(Sample) -> Result<(), String>>,
) -> Result<Running, StartError> {
    let parts = Parts::ephemeral("svc-sample")?;
    let mut chassis = Chassis::new(&TOPOLOGY, THREADS, config, &parts, None)?;
    chassis.authorizer = Arc::new(ByScope);
    let idle = |ctx: &ron_kernel::ThreadCtx| {
        while !ctx.shutdown.wait(Deadline::within(Duration::from_secs(60))) {}
    };
    for name in ["smp-loop", "smp-auth-keys", "smp-auth-feed"] {
        chassis
            .sup
            .spawn(crate::topology_thread(&TOPOLOGY, name), idle);
    }
    chassis.capabilities(&["b", "a"]);
    if let Some(hook) = hook {
        chassis.on_reload(hook);
    }
    let drained = drained.clone();
    chassis.on_drained(move || {
        drained.fetch_add(1, Ordering::SeqCst);
    });
    let info = ApiInfo {
        title: "svc-sample",
        version: "0",
        description: "A test.",
    };
    let hello = Route::get("/hello", Need::Scope(scope::KMS_READ), |_| {
        Ok(Response::text(200, "hello"))
    });
    let need = Need::Scope(scope::KMS_READ);
    let write = Route::new(Method::POST, "/write", need, |_, responder| {
        responder.send(Response::text(200, "written"));
    });
    chassis.serve(Router::new(info).add(hello).add(write))
}

pub(super) fn config(pairs: &[(&str, &str)]) -> Config {
    let pairs: Vec<(&str, &str)> = [("amnesia", "true")]
        .into_iter()
        .chain(pairs.iter().copied())
        .collect();
    Config::from_pairs(&TABLE, &pairs).unwrap()
}

/// Started, and all threads running, so that no test observes the first milliseconds.
pub(super) fn started(pairs: &[(&str, &str)]) -> Running {
    settled(start(&config(pairs), &Arc::default(), None).unwrap())
}

fn settled(running: Running) -> Running {
    let (_keep, never) = Shutdown::pair();
    let patience = Deadline::within(Duration::from_secs(10));
    while !(running.ready().ready && running.ready().degraded.is_empty()) && !patience.expired() {
        never.wait(Deadline::within(Duration::from_millis(2)));
    }
    running
}

pub(super) fn client() -> HttpClient {
    HttpClient::new(ClientConfig::default())
}

pub(super) fn get(client: &HttpClient, url: &str) -> Reply {
    client
        .call(Call::get(url, Deadline::within(Duration::from_secs(5))))
        .unwrap()
}

pub(super) fn post(client: &HttpClient, url: &str, token: &str) -> Reply {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let call = Call {
        body: None,
        content_type: None,
        ..Call::post_json(url, Vec::new(), Deadline::within(Duration::from_secs(5)))
    };
    client.call(call.headers(&headers)).unwrap()
}

#[test]
fn the_health_port_tells_everything_and_the_api_port_only_what_is_public() {
    let running = started(&[]);
    let (client, api, ops) = (client(), running.api_url(), running.health_url());
    assert_eq!(get(&client, &format!("{ops}/healthz")).body, b"ok\n");
    let ready = get(&client, &format!("{ops}/readyz"));
    assert_eq!(ready.status, 200);
    assert_eq!(ready.json::<Readiness>().unwrap(), running.ready());
    let metrics = String::from_utf8(get(&client, &format!("{ops}/metrics")).body).unwrap();
    for name in [
        "svc_sample_queue_depth{queue=\"http\"}",
        "svc_sample_http_requests_total",
        "svc_sample_readyz_degraded",
        "svc_sample_config_reload_duration_seconds",
        "svc_sample_tasks_spawned_total",
    ] {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    let status: ServiceStatus = get(&client, &format!("{ops}/api/v1/status"))
        .json()
        .unwrap();
    assert_eq!(
        (
            status.service.as_str(),
            status.ready,
            status.health,
            status.amnesia
        ),
        ("svc-sample", true, Health::Healthy, true)
    );
    assert_eq!(status.capabilities, ["a", "b"]);
    assert!(
        status
            .planes
            .iter()
            .any(|plane| plane.name == "smp-loop" && plane.ready)
    );
    for base in [&api, &ops] {
        let version: ops::VersionDoc = get(&client, &format!("{base}/version")).json().unwrap();
        assert_eq!(version.service, "svc-sample");
        assert_eq!(get(&client, &format!("{base}/openapi.json")).status, 200);
    }
    assert_eq!(get(&client, &format!("{api}/hello")).status, 401);
    assert_eq!(get(&client, &format!("{api}/metrics")).status, 404);
    let bearer = [("authorization", "Bearer kms:read")];
    let hello = client
        .call(
            Call::get(
                &format!("{api}/hello"),
                Deadline::within(Duration::from_secs(5)),
            )
            .headers(&bearer),
        )
        .unwrap();
    assert_eq!(hello.body, b"hello");
}

#[test]
fn live_threads_are_those_of_the_table() {
    let running = started(&[("http.workers", "3")]);
    let doc: TopologyDoc = get(
        &client(),
        &format!("{}/api/v1/topology", running.health_url()),
    )
    .json()
    .unwrap();
    let rows: BTreeSet<&str> = TOPOLOGY.threads.iter().map(|row| row.name).collect();
    assert_eq!(
        doc.threads
            .iter()
            .map(|row| row.name.as_str())
            .collect::<BTreeSet<_>>(),
        rows
    );
    for row in &doc.threads {
        let wanted = if row.name == "smp-http-" { 3 } else { 1 };
        assert_eq!((row.count, row.live), (wanted, wanted), "{}", row.name);
    }
    assert_eq!(doc.queues.len(), TOPOLOGY.queues.len());
    assert_eq!(crate::topology_faults(&TOPOLOGY), Vec::<String>::new());
}

#[test]
fn six_start_in_one_process_each_within_half_a_second_and_drain_cleanly() {
    let drained = Arc::new(AtomicU32::new(0));
    let clock = ron_kernel::SystemClock::shared();
    let begin = clock.now();
    let mut all: Vec<Running> = (0..6)
        .map(|_| start(&config(&[]), &drained, None).unwrap())
        .collect();
    for running in &all {
        running
            .wait_ready(Deadline::within(Duration::from_secs(5)))
            .unwrap();
    }
    let took = clock.now() - begin;
    println!("six services took {took:?} to be ready");
    for running in &mut all {
        let report = running.drain(Duration::from_secs(3));
        assert_eq!(
            (report.stragglers.clone(), running.exit_code(&report)),
            (Vec::new(), exit::OK)
        );
        assert!(running.ready().missing.contains(&"draining".to_owned()));
        assert!(
            std::net::TcpStream::connect(running.api_addr()).is_err(),
            "the listener is closed"
        );
    }
    assert_eq!(
        drained.load(Ordering::SeqCst),
        6,
        "each final hook ran once"
    );
    drop(all);
    assert_eq!(drained.load(Ordering::SeqCst), 6, "and not again");
}

#[test]
fn readiness_follows_causes_and_names_them() {
    let running = started(&[]);
    let url = format!("{}/readyz", running.health_url());
    let client = client();
    running.shared.ready.declare(&["kms", "store"]);
    running.shared.ready.degrade("kms", "no answer");
    let ready: Readiness = get(&client, &url).json().unwrap();
    assert_eq!(
        (ready.ready, ready.degraded),
        (true, vec!["kms".to_owned()])
    );
    running.shared.ready.missing("store", "poisoned");
    let reply = get(&client, &url);
    assert_eq!((reply.status, reply.retry_after_s()), (503, Some(2)));
    let status: ServiceStatus = get(&client, &format!("{}/api/v1/status", running.health_url()))
        .json()
        .unwrap();
    assert_eq!(status.health, Health::Down);
    assert!(
        status
            .planes
            .iter()
            .any(|plane| plane.name == "store" && plane.reason.as_deref() == Some("poisoned"))
    );
    running.shared.ready.present("store");
    assert_eq!(get(&client, &url).status, 200);
}

/// A path for a socket of the health port, and the directory that removes it.
pub(super) fn health_socket() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/health.sock");
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn actions_are_off_until_enabled_and_need_their_scope() {
    let client = client();
    let (_dir, socket) = health_socket();
    let off = started(&[("health_uds_path", &socket)]);
    let over_unix = format!("unix:{socket}:");
    assert_eq!(off.health_unix_path().unwrap().to_str(), Some(&*socket));
    assert_eq!(get(&client, &format!("{over_unix}/readyz")).status, 200);
    let url = format!("{over_unix}/api/v1/shutdown");
    assert_eq!(post(&client, &url, "admin:view").status, 403);
    let reply = post(&client, &url, "admin:operate");
    assert_eq!(reply.status, 403);
    assert!(
        reply
            .problem()
            .unwrap()
            .detail
            .contains("actions.enable_shutdown")
    );
    assert!(!off.stop_requested());
    drop(off);
    let on = started(&[
        ("health_uds_path", &socket),
        ("actions.enable_shutdown", "true"),
        ("actions.enable_reload", "true"),
    ]);
    assert_eq!(
        get(&client, &format!("{over_unix}/api/v1/shutdown")).status,
        405
    );
    let reply = post(
        &client,
        &format!("{over_unix}/api/v1/reload"),
        "admin:operate",
    );
    assert_eq!(
        (
            reply.status,
            reply.json::<ops::ActionDoc>().unwrap().result.as_str()
        ),
        (200, "unchanged")
    );
    assert_eq!(
        post(
            &client,
            &format!("{over_unix}/api/v1/shutdown"),
            "admin:operate"
        )
        .status,
        200
    );
    assert!(on.stop_requested() && on.stop_token().is_set());
}

#[test]
fn a_reload_is_taken_on_whole_or_not_at_all() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    fn hook(settings: Sample) -> Result<(), String> {
        if settings.batch == 13 {
            return Err("13 is not liked".into());
        }
        SEEN.store(settings.batch, Ordering::SeqCst);
        Ok(())
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let write = |text: &str| std::fs::write(&path, format!("amnesia = true\n{text}")).unwrap();
    let load = |path: &Path| {
        Config::from_toml(&TABLE, path, &std::fs::read_to_string(path).unwrap()).unwrap()
    };
    write("batch = 8\n");
    let running = start(&load(&path), &Arc::default(), Some(hook)).unwrap();
    assert!(running.reload_from_file().unwrap().is_empty());
    let refused = |words: [&str; 2]| {
        assert_eq!(running.ready().degraded, ["reload"]);
        let url = format!("{}/api/v1/status", running.health_url());
        let status: ServiceStatus = get(&client(), &url).json().unwrap();
        assert_eq!((status.ready, status.health), (true, Health::Degraded));
        let plane = status.planes.iter().find(|plane| plane.name == "reload");
        let reason = plane.unwrap().reason.clone().unwrap();
        let said = reason.starts_with("the changed configuration was refused");
        assert!(
            said && words.iter().all(|word| reason.contains(word)),
            "{reason}"
        );
        let dir = dir.path().to_str().unwrap();
        assert!(!reason.contains(dir), "no path: {reason}");
    };

    write("batch = 9\n[vault]\npin = \"1234\"\n[limits]\nrate_per_second = 1\n");
    let diff = running.reload_from_file().unwrap();
    assert_eq!(
        diff.summary(),
        "limits.rate_per_second: 0 -> 1; batch: 8 -> 9; vault.pin: [redacted] -> [redacted]"
    );
    assert_eq!(
        (batch(&running.config()), SEEN.load(Ordering::SeqCst)),
        (9, 9)
    );
    // The new rate is in force.
    let bearer = [("authorization", "Bearer kms:read")];
    let url = format!("{}/hello", running.api_url());
    let client = client();
    let ask = || {
        client
            .call(Call::get(&url, Deadline::within(Duration::from_secs(5))).headers(&bearer))
            .unwrap()
            .status
    };
    assert_eq!((ask(), ask()), (200, 429));

    write("batch = 10\nmax_conns = 5\n[http]\nworkers = 2\n");
    let error = running.reload_from_file().unwrap_err();
    assert_eq!(
        error.to_string(),
        "these keys need a restart: max_conns (the HTTP front is built with it), http.workers (threads read it at their start)"
    );
    refused(["http.workers", "restart the service"]);
    write("batch = 13\n");
    assert_eq!(
        running.reload_from_file().unwrap_err(),
        ReloadError::Refused("13 is not liked".into())
    );
    refused(["13 is not liked", "correct it"]);
    write("batch = 1000\nbatsch = 1\n");
    let ReloadError::Invalid(problems) = running.reload_from_file().unwrap_err() else {
        panic!("invalid")
    };
    assert_eq!(problems.len(), 2);
    refused(["2 problems", "reload_refused"]);
    assert_eq!(batch(&running.config()), 9, "the old one stays");
    let metrics = running.shared.registry.render();
    for line in [
        "svc_sample_config_reloads_total{result=\"ok\"} 1",
        "svc_sample_config_reloads_total{result=\"refused\"} 2",
        "svc_sample_config_reloads_total{result=\"invalid\"} 1",
        "svc_sample_config_reloads_total{result=\"unchanged\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    write("batch = 9\n[vault]\npin = \"1234\"\n");
    running.reload_from_file().unwrap();
    assert_eq!(running.ready().degraded, [""; 0], "nothing is left of it");
}

#[test]
fn a_port_in_use_is_one_clear_line() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap().to_string();
    let config = config(&[("bind_addr", &addr)]);
    let Err(error) = Parts::bind(&config) else {
        panic!("the port is in use")
    };
    assert_eq!(error.exit_code(), exit::CONFIG);
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("bind_addr {addr} is in use (")) && !text.contains('\n'),
        "{text}"
    );
}

#[test]
fn a_failed_start_leaves_no_thread_and_no_listener() {
    let parts = Parts::ephemeral("svc-sample").unwrap();
    let health = parts.health.local_addr().unwrap();
    let chassis = Chassis::new(&TOPOLOGY, THREADS, &config(&[]), &parts, None).unwrap();
    let url = format!("http://{health}/readyz");
    let starting: Readiness = get(&client(), &url).json().unwrap();
    assert_eq!(starting.missing, ["starting"]);
    let sup = chassis.sup.clone();
    drop(chassis);
    drop(parts);
    assert!(sup.planes().iter().all(|plane| plane.live == 0));
    assert!(std::net::TcpStream::connect(health).is_err());
}

#[test]
fn before_it_has_started_nobody_is_let_in() {
    let parts = Parts::ephemeral("svc-sample").unwrap();
    let (_dir, socket) = health_socket();
    let pairs = [
        ("actions.enable_shutdown", "true"),
        ("health_uds_path", &*socket),
    ];
    let chassis = Chassis::new(&TOPOLOGY, THREADS, &config(&pairs), &parts, None).unwrap();
    let url = format!("unix:{socket}:/api/v1/shutdown");
    assert_eq!(post(&client(), &url, "admin:operate").status, 503);
    assert!(!chassis.shared.stop.1.is_set());
}
