//! The six binaries as processes of their own, each from the configuration file that `ron init`
//! makes, as `docs/separate-processes.md` shows.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use ron_http::Call;
use ron_kernel::Deadline;
use ron_tests::tools::{Process, service, signal};
use ron_tests::{
    CALL, SERVICES, base_port, http_client, metric, ok, ron_on, socket_of, takes_passports, until,
};

/// Processes, ended by their ids in every case.
struct Processes(Vec<(&'static str, Process)>);

fn start(dir: &Path, name: &str) -> Process {
    let config = dir.join(name).join("config.toml");
    Process::start(&mut service(name, &config, ["log.level=warn"]))
}

impl Processes {
    fn start(dir: &Path) -> Self {
        // Callers first: a service must cope with peers that have not started yet.
        let all = SERVICES.iter().rev();
        Self(all.map(|name| (*name, start(dir, name))).collect())
    }

    fn reload(&self) {
        for (_, child) in &self.0 {
            signal(child.id(), "-HUP");
        }
    }

    /// Ends one and starts it again.
    fn restart(&mut self, dir: &Path, name: &str) {
        let mut all = self.0.iter_mut();
        let (_, child) = all.find(|(of, _)| *of == name).expect("it runs");
        assert_eq!(child.stop(), Some(0), "{name}");
        *child = start(dir, name);
    }

    fn stop(mut self) -> Vec<(&'static str, Option<i32>)> {
        let all = self.0.iter_mut();
        all.map(|(name, child)| (*name, child.stop())).collect()
    }
}

fn ready(base: u16) {
    let http = http_client();
    for (name, port) in SERVICES.iter().zip((base + 5..).step_by(10)) {
        let url = format!("http://127.0.0.1:{port}/readyz");
        until(name, || {
            let answer = http.call(Call::get(&url, Deadline::within(CALL)));
            answer.as_ref().is_ok_and(takes_passports)
        });
    }
}

#[test]
fn six_processes_serve_the_whole_loop() {
    let dir = Arc::new(tempfile::tempdir().expect("a temporary directory"));
    let base = base_port();
    ok(&ron_on(
        dir.path(),
        &["init", "--base-port", &base.to_string()],
    ));
    let processes = Processes::start(dir.path());
    ready(base);
    let first = ok(&ron_on(dir.path(), &["demo", "--json"]));
    assert_eq!(first.lines().count(), 5, "{first}");
    for (name, code) in processes.stop() {
        assert_eq!(code, Some(0), "{name}");
    }
    // After a stop the same directory serves `ron up`, and nothing is paid again.
    let fleet = ron_tests::Fleet::start_in(dir);
    assert_eq!(ok(&fleet.ron(&["demo", "--json"])), first);
}

/// One look says which service is gone and which one hangs, before it says what suffers from that; a healthy service is not blamed.
#[test]
fn one_look_names_the_service_that_is_gone_and_the_one_that_hangs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let base = base_port();
    ok(&ron_on(
        dir.path(),
        &["init", "--base-port", &base.to_string()],
    ));
    let mut processes = Processes::start(dir.path());
    ready(base);
    let mut shown = ok(&ron_on(dir.path(), &["status", "--wait", "60"]));
    assert_eq!(shown.matches("healthy").count(), SERVICES.len(), "{shown}");

    let running = |name: &str| {
        let mut all = processes.0.iter();
        let found = all.find_map(|(of, one)| (*of == name).then(|| one.id()));
        found.expect("it runs")
    };
    let (ledger, passport) = (running("ron-ledger"), running("svc-passport"));
    signal(ledger, "-KILL");
    signal(passport, "-STOP");
    until("the wallet and the rewarder have lost their ledger", || {
        let out = ron_on(dir.path(), &["status"]);
        assert_eq!(out.status.code(), Some(1));
        shown = String::from_utf8_lossy(&out.stdout).into_owned();
        // The rewarder has nothing to pay, and tells of it all the same.
        shown.contains("svc-wallet (down)") && shown.contains("svc-rewarder (degraded)")
    });
    assert!(
        shown.contains("ledger: the ledger is unavailable"),
        "{shown}"
    );
    let at = |text: &str| {
        shown
            .find(text)
            .unwrap_or_else(|| panic!("{text}: {shown}"))
    };
    assert!(at("ron-ledger (no answer)") < at("svc-wallet (down)"));
    assert!(at("svc-passport (no answer)") < at("svc-wallet (down)"));
    assert!(shown.contains("ledger: the ledger does not answer"));
    let kms = at("ron-kms ");
    assert!(shown[kms..].starts_with("ron-kms       healthy"), "{shown}");
    let out = ron_on(dir.path(), &["status", "--wait", "1", "--json"]);
    assert_eq!(out.status.code(), Some(1), "a wait that ends unfulfilled");
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let error = |at: usize| json[at]["error"].as_str().map(|_| json[at]["at"].clone());
    let silent: Vec<_> = (0..SERVICES.len()).filter_map(error).collect();
    assert_eq!(silent, ["svc-passport", "ron-ledger"], "{json}");
    // The doctor tells a service that hangs from one that does not run.
    let out = ron_on(dir.path(), &["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    let verdict = |about: &str| {
        let mut found = findings.iter().filter(|one| one["about"] == about);
        found.next().map(|one| one["verdict"].clone())
    };
    assert_eq!(verdict("svc-passport state"), Some("fail".into()));
    assert_eq!(verdict("ron-kms state"), Some("ok".into()));
    assert_eq!(verdict("ron-ledger state"), None);

    signal(passport, "-CONT");
    let (_, gone) = processes
        .0
        .iter_mut()
        .find(|(of, _)| *of == "ron-ledger")
        .expect("it ran");
    gone.stop();
    *gone = start(dir.path(), "ron-ledger");
    ok(&ron_on(dir.path(), &["status", "--wait", "60"]));
    for (name, code) in processes.stop() {
        assert_eq!(code, Some(0), "{name}");
    }
}

/// One self-signed certificate for all services; a second call replaces it.
fn certificate(dir: &Path) -> [String; 2] {
    let own = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("rcgen");
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert, own.cert.pem()).expect("writes");
    std::fs::write(&key, own.signing_key.serialize_pem()).expect("writes");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    [cert, key].map(|path| path.display().to_string())
}

/// Puts every API of a fleet behind TLS, as on separate hosts: callers use `https`, and no API has
/// a socket. Returns the shared certificate and key.
fn behind_tls(dir: &Path, base: u16) -> [String; 2] {
    let [cert, key] = certificate(dir);
    let called = ["url = ", "api_url = ", "jwks_url = "];
    for name in SERVICES {
        let file = dir.join(name).join("config.toml");
        let old = std::fs::read_to_string(&file).expect("init wrote it");
        let secure = |line: &str| {
            let mut line = line.to_owned() + "\n";
            if called.iter().any(|key| line.starts_with(key)) {
                for (port, peer) in (base..).step_by(10).zip(SERVICES) {
                    let url = format!("https://127.0.0.1:{port}");
                    line = line.replace(&socket_of(dir, peer, "api"), &url);
                }
            }
            line
        };
        let lines = old.lines().filter(|line| !line.starts_with("uds_path"));
        let mut new: String = lines.map(secure).collect();
        let _ = write!(
            new,
            "\n[tls]\nenabled = true\ncert_path = \"{cert}\"\nkey_path = \"{key}\"\npeer_ca_path = \"{cert}\"\nclient_ca_path = \"{cert}\"\n",
        );
        std::fs::write(&file, new).expect("writes");
    }
    [cert, key]
}

/// The wallet has read the ledger's events.
fn wallet_follows(base: u16) {
    let at = SERVICES.iter().position(|name| *name == "ron-ledger");
    let port = base + 10 * at.expect("one of six") as u16 + 5;
    let line = "ron_ledger_http_request_duration_seconds_count\
                {method=\"GET\",route=\"/v1/ledger/events\"} ";
    let found = metric(&http_client(), &format!("http://127.0.0.1:{port}"), line);
    let count: u64 = found.map_or(0, |n| n.parse().expect("a count"));
    assert!(count > 0, "the wallet never read the ledger's events");
}

#[test]
fn six_processes_behind_tls_serve_the_whole_loop() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let base = base_port();
    ok(&ron_on(
        dir.path(),
        &["init", "--base-port", &base.to_string()],
    ));
    let [cert, key] = behind_tls(dir.path(), base);
    let mut processes = Processes::start(dir.path());
    ready(base);
    let refused = ron_on(dir.path(), &["demo", "--json"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("--ca"), "{why}");
    let refused = ron_on(dir.path(), &["--ca", &cert, "demo", "--json"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("--client-cert"),
        "{why}"
    );
    let ca = ["--ca", &cert, "--client-cert", &cert, "--client-key", &key];
    let with_ca = |args: &[&str]| ok(&ron_on(dir.path(), &[&ca, args].concat()));
    let out = with_ca(&["demo", "--json"]);
    assert_eq!(out.lines().count(), 5, "{out}");
    let token = with_ca(&["token", "get", "--audience", "svc-wallet"]);
    with_ca(&["token", "verify", token.trim()]);
    wallet_follows(base);

    // Renewed and reloaded: calls to peers that serve only the new certificate still succeed.
    certificate(dir.path());
    processes.reload();
    for name in ["ron-kms", "svc-passport", "ron-ledger"] {
        processes.restart(dir.path(), name);
    }
    ready(base);
    with_ca(&["wallet", "issue", "acct:renewed", "5", "--asset", "ron"]);
    assert_eq!(with_ca(&["demo", "--json"]), out);
    for (name, code) in processes.stop() {
        assert_eq!(code, Some(0), "{name}");
    }
}
