//! The rules of `docs/ops/alerts.yml` in a real Prometheus over a fleet of separate processes: their causes are brought
//! about, and each alert names the service that has the cause. The expressions are those of the file; only the windows
//! and the times that an alert waits are shortened. `docs/ops/drill.md` lists which alert is provoked where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::b64;
use ron_service::Running;
use ron_tests::in_process::{self, FailingClock};
use ron_tests::tools::{self, Process};
use ron_tests::{
    SERVICES, base_port, free_port, http_client, json, ok, ron_on, takes_passports, unhurried,
    until, workspace,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::disk_faults;
use crate::killed_workers::StopOnDrop;

/// Windows of the rules in the test, and how long an alert waits.
const WINDOW: &str = "15s";
const WAITS: &str = "2s";
/// Longest wait for the alerts of one step.
const PATIENCE: Duration = Duration::from_secs(120);
/// The service whose threads the test kills, so that it runs in the test's own process.
const INSIDE: &str = "svc-passport";
/// The pool of its threads that make tokens.
const WORKER: &str = "pass-issue";

mod causes;

use causes::{alter, descriptors, epoch, fill, flood, limit, locked, pay, refused, stutter};

type Alert = (String, String);

/// The rules with every window and every `for` shortened; the expressions stay as they are.
fn hurried(rules: &str) -> String {
    let line = |line: &str| match line.trim_start().strip_prefix("for: ") {
        Some(time) => line.replace(time, WAITS),
        None => windows(line),
    };
    rules.lines().map(|l| line(l) + "\n").collect()
}

/// A line with `[15s]` for each range, such as `[10m]`.
fn windows(line: &str) -> String {
    let mut parts = line.split('[');
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        text.push('[');
        match part.split_once(']') {
            Some((time, rest)) if is_duration(time) => text.extend([WINDOW, "]", rest]),
            _ => text.push_str(part),
        }
    }
    text
}

fn is_duration(text: &str) -> bool {
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    digits.len() + 1 == text.len() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A fleet that Prometheus watches.
struct Watched {
    dir: TempDir,
    base: u16,
    http: HttpClient,
    running: BTreeMap<&'static str, Process>,
    /// A letter in it is a fault of the ledger's disk.
    disk: PathBuf,
    clock: std::sync::Arc<FailingClock>,
    inside: Option<Running>,
    prometheus: u16,
}

impl Watched {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = base_port();
        ok(&ron_on(
            dir.path(),
            &["init", "--base-port", &base.to_string()],
        ));
        prepare(dir.path());
        let disk = dir.path().join("disk-fault");
        std::fs::write(&disk, "-").unwrap();
        disk_faults::library(dir.path());
        let mut fleet = Self {
            dir,
            base,
            http: http_client(),
            running: BTreeMap::new(),
            disk,
            clock: FailingClock::new(),
            inside: None,
            prometheus: free_port(),
        };
        for name in SERVICES.into_iter().filter(|name| *name != INSIDE) {
            fleet.run(name);
        }
        let sets = [
            ("limits.auth_failures_per_second", "0"),
            ("issue.workers", "2"),
        ];
        let clock = fleet.clock.clone();
        fleet.inside = Some(in_process::start(fleet.dir.path(), INSIDE, clock, &sets));
        for name in SERVICES {
            fleet.ready(name);
        }
        fleet.watch();
        fleet
    }

    fn run(&mut self, name: &'static str) {
        let dir = self.dir.path();
        let config = dir.join(name).join("config.toml");
        let mut command = tools::service(name, &config, settings(name, dir));
        if name == "ron-ledger" {
            let preload = dir.join("disk_fault.so");
            let faulty = dir.join("ron-ledger/data");
            command.env("LD_PRELOAD", preload);
            command.env("DISK_FAULT_FILE", &self.disk);
            command.env("DISK_FAULT_DIR", faulty);
        }
        // A file, because its lines are about the faults.
        let log = std::fs::File::create(dir.join(format!("{name}.log"))).unwrap();
        command.stderr(log);
        let child = Process::start(unhurried(&mut command));
        self.running.insert(name, child);
    }

    fn signal(&self, name: &str, signal: &str) {
        tools::signal(self.running[name].id(), signal);
    }

    fn ready(&self, name: &str) {
        let url = format!("{}/readyz", self.health(name));
        until(name, || self.get(&url).is_some_and(|r| takes_passports(&r)));
    }

    fn port(&self, name: &str) -> u16 {
        let at = SERVICES.iter().position(|s| *s == name).unwrap();
        self.base + at as u16 * 10
    }

    fn api(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}", self.port(name))
    }

    fn health(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}", self.port(name) + 5)
    }

    fn ron(&self, args: &[&str]) -> String {
        ok(&ron_on(self.dir.path(), args))
    }

    fn token(&self, audience: &str) -> String {
        let args = ["token", "--audience", audience, "--ttl", "1h"];
        self.ron(&args).trim().to_owned()
    }

    fn get(&self, url: &str) -> Option<Reply> {
        let call = Call::get(url, Deadline::within(Duration::from_secs(5)));
        self.http.call(call).ok()
    }

    /// One request, whose answer may not come in time.
    fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Reply> {
        let call = Call {
            method,
            url,
            headers,
            body: Some(body.as_bytes().to_vec()),
            content_type: None,
            deadline: Deadline::within(Duration::from_secs(20)),
            idempotent: false,
        };
        self.http.call(call).ok()
    }

    fn issue(&self, token: &str, key: &str, to: &str) -> Option<Reply> {
        let bearer = format!("Bearer {token}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Idempotency-Key", key),
            ("Content-Type", "application/json"),
        ];
        let body = json!({"to": to, "asset": "ron", "amount_minor": "1"}).to_string();
        let url = format!("{}/v1/issue", self.api("svc-wallet"));
        self.send(Method::POST, &url, &headers, &body)
    }

    /// Starts Prometheus with the shortened rules.
    fn watch(&mut self) {
        let dir = self.dir.path();
        let rules = std::fs::read_to_string(workspace().join("docs/ops/alerts.yml")).unwrap();
        std::fs::write(dir.join("alerts.yml"), hurried(&rules)).unwrap();
        let services = SERVICES.map(|name| (name, self.port(name) + 5));
        let rules = "rule_files: [alerts.yml]\n";
        let mut command = tools::prometheus(dir, self.prometheus, &services, rules);
        command.stderr(Stdio::null());
        let prometheus = Process::start(&mut command);
        self.running.insert("prometheus", prometheus);
        until("all targets", || {
            let up = self.query("sum(up)");
            up.first().is_some_and(|one| one["value"][1] == "6")
        });
    }

    /// The series that a query returns; none while Prometheus starts.
    fn query(&self, query: &str) -> Vec<Value> {
        let text = ron_client::encode(query);
        let port = self.prometheus;
        let url = format!("http://127.0.0.1:{port}/api/v1/query?query={text}");
        let Some(reply) = self.get(&url).filter(|reply| reply.status == 200) else {
            return Vec::new();
        };
        json(&reply, 200)["data"]["result"]
            .as_array()
            .unwrap()
            .clone()
    }

    fn alerts(&self, query: &str) -> BTreeSet<Alert> {
        let found = self.query(query);
        let alert = |series: &Value| {
            let labels = &series["metric"];
            let text = |label: &str| labels[label].as_str().unwrap_or_default().to_owned();
            (text("alertname"), self.named(&text("instance")))
        };
        found.iter().map(alert).collect()
    }

    /// The service whose health port an instance is.
    fn named(&self, instance: &str) -> String {
        let of = |name: &&&str| instance == format!("127.0.0.1:{}", self.port(name) + 5);
        let found = SERVICES.iter().find(of);
        found.map_or_else(|| instance.to_owned(), |&name| name.to_owned())
    }

    /// Every alert that has fired since the start, also those that are over.
    fn fired(&self) -> BTreeSet<Alert> {
        self.alerts("max_over_time(ALERTS{alertstate=\"firing\"}[1h])")
    }

    fn firing(&self) -> BTreeSet<Alert> {
        self.alerts("ALERTS{alertstate=\"firing\"}")
    }

    /// Waits until these alerts have fired for these services.
    fn fires(&self, expected: &[(&str, &str)]) {
        let expected: BTreeSet<Alert> = expected.iter().map(|&pair| own(pair)).collect();
        let began = Instant::now();
        loop {
            let fired = self.fired();
            let missing: Vec<_> = expected.difference(&fired).collect();
            if missing.is_empty() {
                return;
            }
            let patient = began.elapsed() < PATIENCE;
            assert!(patient, "not fired: {missing:?}, but {:?}", self.firing());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until none of these alerts fires any more.
    fn resolves(&self, expected: &[(&str, &str)]) {
        let expected: BTreeSet<Alert> = expected.iter().map(|&pair| own(pair)).collect();
        let began = Instant::now();
        loop {
            let firing = self.firing();
            let left: Vec<_> = expected.intersection(&firing).collect();
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "still firing: {left:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn own((name, service): (&str, &str)) -> Alert {
    (name.to_owned(), service.to_owned())
}

/// What some services are told beside their configuration.
fn settings(name: &str, dir: &Path) -> Vec<String> {
    let peers = format!("tls.peer_ca_path={}", dir.join("peers.pem").display());
    let of: &[&str] = match name {
        "ron-kms" => &["audit.scrub_interval=1s"],
        "svc-wallet" => &["webhook.retry_cap=1s", "queues.work=8"],
        "svc-rewarder" => &[&peers],
        "svc-admin" => &[
            "auth.mode=ingress",
            "ingress.proxies=127.0.0.0/8",
            "ingress.viewer_groups=staff",
            "sampler.metrics_interval=1s",
        ],
        _ => &[],
    };
    of.iter().map(|&set| set.to_owned()).collect()
}

/// An endpoint that nothing listens at, and authorities that end within a week.
fn prepare(dir: &Path) {
    let secret = dir.join("webhook.secret");
    std::fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let config = dir.join("svc-wallet/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = format!(
        "{text}\n[[webhooks]]\nname = \"shop\"\nurl = \"http://127.0.0.1:{}/hook\"\naccounts = [\"acct:shop\"]\nsecret_file = \"{}\"\n",
        free_port(),
        secret.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut authority = rcgen::CertificateParams::new(vec!["peers".to_owned()]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.not_after =
        (std::time::SystemTime::now() + Duration::from_secs(7 * 24 * 3600)).into();
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = authority.self_signed(&key).unwrap().pem();
    std::fs::write(dir.join("peers.pem"), pem).unwrap();
}

/// Many causes at a time, each in a service that can still do what the others need.
fn small_causes(fleet: &mut Watched, wallet: &str, rewarder: &str) {
    let paid = fleet.issue(wallet, "shop", "acct:shop").unwrap();
    json(&paid, 200);
    epoch(fleet, rewarder, "unfunded", &json!({}));
    let rail = json!({"guards": {"recipients_min": 2}});
    epoch(fleet, rewarder, "small", &rail);
    let stop = AtomicBool::new(false);
    let ballast = fleet.dir.path().join("ballast");
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| fill(&ballast, &stop));
        refused(fleet);
        let many = descriptors(fleet, "svc-admin");
        fleet.clock.kill(&format!("{WORKER}-0"), 0);
        // The next token that the other worker does not make.
        let args = ["token", "--audience", "ron-ledger"];
        until("the thread is killed", || {
            ron_on(fleet.dir.path(), &args);
            fleet.clock.all_killed()
        });
        let policy = fleet.dir.path().join("policy/wallet.json");
        let right = std::fs::read(&policy).unwrap();
        std::fs::write(&policy, "{\"version\": 99}").unwrap();
        fleet.signal("svc-wallet", "-HUP");
        drop(fleet.running.remove("svc-rewarder"));
        fleet.run("svc-rewarder");
        let _lock = locked(&fleet.dir.path().join("ron-ledger/data/projection.sqlite"));
        fleet.issue(wallet, "not-projected", "acct:payee");
        fleet.fires(&SMALL);
        std::fs::write(&policy, right).unwrap();
        fleet.signal("svc-wallet", "-HUP");
        limit(fleet, "svc-admin", many);
    });
}

/// A ledger that hangs, and what that does to the wallet; a key service that runs a tenth of the time beside it.
fn hanging_ledger(fleet: &Watched, wallet: &str) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for _ in 0..3 {
            scope.spawn(|| pay(fleet, wallet, &stop));
        }
        scope.spawn(|| stutter(fleet, "ron-kms", &stop));
        std::thread::sleep(Duration::from_secs(1));
        fleet.signal("ron-ledger", "-STOP");
        let _open = flood(fleet, wallet);
        fleet.fires(&HANGS);
        fleet.signal("ron-ledger", "-CONT");
    });
}

/// Alerts of [`small_causes`], with the service that each is about.
const SMALL: [(&str, &str); 14] = [
    ("RonActionDenied", "svc-admin"),
    ("RonAuthFailures", "ron-ledger"),
    ("RonCertificateEnds", "svc-rewarder"),
    ("RonClientCredentialsRefused", "svc-passport"),
    ("RonDescriptorsRunOut", "svc-admin"),
    ("RonDiskFills", "ron-ledger"),
    ("RonEpochHeld", "svc-rewarder"),
    ("RonEpochInReview", "svc-rewarder"),
    ("RonFollowerBehind", "ron-ledger"),
    ("RonProcessRestarts", "svc-rewarder"),
    ("RonReloadRefused", "svc-wallet"),
    ("RonServiceDegraded", "svc-wallet"),
    ("RonThreadsRestart", "svc-passport"),
    ("RonWebhookBehind", "svc-wallet"),
];
/// Those of them whose cause the test leaves.
const LASTING: [(&str, &str); 4] = [
    ("RonCertificateEnds", "svc-rewarder"),
    ("RonEpochHeld", "svc-rewarder"),
    ("RonEpochInReview", "svc-rewarder"),
    ("RonWebhookBehind", "svc-wallet"),
];
/// Alerts of [`hanging_ledger`].
const HANGS: [(&str, &str); 9] = [
    ("RonBusy", "svc-wallet"),
    ("RonConsoleSeesNodesDown", "svc-admin"),
    ("RonNotReady", "svc-wallet"),
    ("RonOutcomesUnknown", "svc-wallet"),
    ("RonServerErrors", "svc-wallet"),
    ("RonServiceDegraded", "ron-kms"),
    ("RonServiceDown", "ron-ledger"),
    ("RonSlow", "svc-wallet"),
    ("RonUpstreamFails", "svc-wallet"),
];
/// Alerts whose cause only a restart ends; the last one needs somebody who asks for a token.
const CLOSED: [(&str, &str); 3] = [
    ("RonAuditTampered", "ron-kms"),
    ("RonDiskErrors", "ron-ledger"),
    ("RonSigningFails", "svc-passport"),
];

#[test]
fn alerts_fire_for_their_causes_and_name_the_service_that_has_them() {
    let mut fleet = Watched::start();
    let (wallet, rewarder) = (fleet.token("svc-wallet"), fleet.token("svc-rewarder"));
    small_causes(&mut fleet, &wallet, &rewarder);
    hanging_ledger(&fleet, &wallet);
    let mut passing = [&SMALL[..], &HANGS].concat();
    passing.retain(|alert| !LASTING.contains(alert));
    fleet.resolves(&passing);
    // What a restart alone ends.
    std::fs::write(&fleet.disk, "s").unwrap();
    fleet.issue(&wallet, "lost", "acct:payee");
    let segment = "ron-kms/data/audit/00000000.seg";
    alter(&fleet.dir.path().join(segment));
    let (at_once, with_a_token) = CLOSED.split_at(2);
    fleet.fires(at_once);
    let args = ["token", "--audience", "svc-wallet"];
    assert!(!ron_on(fleet.dir.path(), &args).status.success());
    fleet.fires(with_a_token);
    only_there(&fleet);
    let firing = fleet.firing();
    for alert in LASTING.map(own) {
        assert!(firing.contains(&alert), "{alert:?}: {firing:?}");
    }
}

/// Alerts whose cause is in one service alone have blamed no other.
fn only_there(fleet: &Watched) {
    let fired = fleet.fired();
    for (name, service) in [
        ("RonActionDenied", "svc-admin"),
        ("RonAuditTampered", "ron-kms"),
        ("RonBusy", "svc-wallet"),
        ("RonCertificateEnds", "svc-rewarder"),
        ("RonClientCredentialsRefused", "svc-passport"),
        ("RonDescriptorsRunOut", "svc-admin"),
        ("RonDiskErrors", "ron-ledger"),
        ("RonReloadRefused", "svc-wallet"),
        ("RonSigningFails", "svc-passport"),
        ("RonThreadsRestart", "svc-passport"),
    ] {
        let named = |(of, service): &Alert| (of == name).then(|| service.clone());
        let blamed: Vec<String> = fired.iter().filter_map(named).collect();
        assert_eq!(blamed, [service], "{name}");
    }
}

#[test]
fn only_times_are_shortened() {
    let text = std::fs::read_to_string(workspace().join("docs/ops/alerts.yml")).unwrap();
    let short = hurried(&text);
    assert_eq!(
        short.matches(&format!("[{WINDOW}]")).count(),
        text.matches("m]").count() + text.matches("h]").count()
    );
    assert_eq!(
        short.matches(&format!("for: {WAITS}\n")).count(),
        text.matches("for: ").count()
    );
    assert_eq!(
        windows("x[10m] by [a-z] and y[6h]"),
        "x[15s] by [a-z] and y[15s]"
    );
}

#[test]
fn the_page_says_which_alerts_are_provoked_here() {
    let read = |name: &str| std::fs::read_to_string(workspace().join("docs/ops").join(name));
    let (rules, page) = (read("alerts.yml").unwrap(), read("drill.md").unwrap());
    let here: BTreeSet<&str> = [&SMALL[..], &HANGS, &CLOSED]
        .concat()
        .iter()
        .map(|(name, _)| *name)
        .collect();
    let alerts = rules
        .lines()
        .filter_map(|l| l.trim().strip_prefix("- alert: "));
    for name in alerts {
        let begin = format!("| `{name}` |");
        let row = page.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("{name} is not on the page"));
        assert_eq!(
            row.contains("tests/e2e/alerts.rs"),
            here.contains(name),
            "{name}"
        );
    }
}
