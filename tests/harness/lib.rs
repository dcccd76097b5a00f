//! The test harness: a real fleet (`ron up`, its own process and data directory, free ports), real
//! HTTP, the `ron` command line as a user runs it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used
)] // a harness may panic and wait

pub mod consumers;
mod disk;
pub mod foreign;
pub mod in_process;
pub mod issuer;
pub mod line;
pub mod processes;
pub mod tools;
pub mod verifiers;
pub mod witness;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use ron_client::{Credential, WalletClient};
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tools::{Process, signal};

pub use ron_files::trial::{Draws, number};

/// The services, in the order in which they start.
pub use ron_services::NAMES as SERVICES;

/// Timeout of one call.
pub const CALL: Duration = Duration::from_secs(20);
/// Maximum repeated calls in a test that is not about load, on a machine with other work.
pub const CALM: u64 = 20;
/// Maximum wait for a fleet to be ready.
const START: Duration = Duration::from_secs(60);

/// The `ron` binary of the profile that the tests were built with.
pub fn ron_binary() -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    let profile = exe
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps");
    let ron = profile.join("ron");
    assert!(
        ron.exists(),
        "{} is missing: build the binaries first (cargo build --release --workspace --bins --lib), or run scripts/test.sh",
        ron.display()
    );
    ron
}

/// The PKCS#11 module of the same profile.
pub fn pkcs11_module() -> PathBuf {
    let module = ron_binary().with_file_name("libron_pkcs11.so");
    assert!(
        module.exists(),
        "{} is missing: cargo build --release --workspace --bins --lib, or run scripts/test.sh",
        module.display()
    );
    module
}

/// An HTTP client without a circuit breaker: it may call a service as often as it likes while the
/// service is killed and restarted. Typed clients with it retry temporary refusals.
pub fn http_client() -> HttpClient {
    HttpClient::new(ClientConfig {
        breaker: None,
        patience: CALL,
        ..ClientConfig::default()
    })
}

/// The rest of a line of the metrics page below `health`, after the given beginning.
pub fn metric(http: &HttpClient, health: &str, line: &str) -> Option<String> {
    let url = format!("{health}/metrics");
    let page = http.call(Call::get(&url, Deadline::within(CALL)));
    let page = page.unwrap_or_else(|e| panic!("{url}: {e}")).body;
    let text = String::from_utf8(page).expect("text");
    let found = text.lines().find_map(|l| l.strip_prefix(line));
    found.map(|value| value.trim().to_owned())
}

/// Changes a database with Python's SQLite.
pub fn sqlite(file: &Path, statement: &str) {
    let program = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute(sys.argv[2]); db.commit(); db.close()";
    let args = ["-c", program, file.to_str().unwrap(), statement];
    ok(&Command::new("python3").args(args).output().unwrap());
}

/// Waits until `holds`, for half a minute at most.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The answer to a read of the ledger's history. It is 503 while the history lacks an entry that it
/// must have, on a busy machine for longer than the service waits; then the read is repeated.
pub fn caught_up(read: impl Fn() -> Reply) -> Reply {
    let mut reply = read();
    until("the history has the entry", || {
        if reply.status == 503 {
            reply = read();
        }
        reply.status != 503
    });
    reply
}

/// The base URL of a socket of a service on a data directory: `api` or `health`.
pub fn socket_of(dir: &Path, service: &str, which: &str) -> String {
    format!("unix:{}/run/{service}/{which}.sock", dir.display())
}

/// Settings for a second instance of a service with the same configuration: sockets of its own
/// below `dir`.
pub fn own_sockets(dir: &Path, service: &str) -> [String; 2] {
    let path = |which: &str| dir.join("sockets").join(format!("{service}-{which}.sock"));
    [
        format!("uds_path={}", path("api").display()),
        format!("health_uds_path={}", path("health").display()),
    ]
}

/// The place of a second instance of a service with the same configuration: ports, sockets and data
/// of its own.
pub struct OwnPlace {
    /// Port of its API.
    pub api: u16,
    pub health: u16,
    /// The settings for this place, each for one `--set`.
    pub sets: Vec<String>,
}

/// A place below `dir`, on ports that are free at this moment.
pub fn own_place(dir: &Path, service: &str) -> OwnPlace {
    let (api, health) = (free_port(), free_port());
    let data = dir.join(format!("{service}-data"));
    let mut sets = vec![
        format!("data_dir={}", data.display()),
        format!("bind_addr=127.0.0.1:{api}"),
        format!("health_addr=127.0.0.1:{health}"),
    ];
    sets.extend(own_sockets(dir, service));
    OwnPlace { api, health, sets }
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("in the workspace")
        .to_owned()
}

/// The Python of the tests (scripts/setup.sh makes it).
pub fn python() -> PathBuf {
    let set = std::env::var_os("RON_TEST_PYTHON").map(PathBuf::from);
    let python = set.unwrap_or_else(|| workspace().join("target/test-venv/bin/python"));
    assert!(
        python.exists(),
        "{} is missing: run scripts/setup.sh",
        python.display()
    );
    python
}

/// The program of `cargo xtask`, of the profile that the tests were built with.
pub fn xtask() -> Command {
    Command::new(ron_binary().with_file_name("xtask"))
}

/// A base port whose six services' ports are free at this moment, different for every caller in
/// this process. Below the range of outgoing connections.
pub fn base_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    const BLOCKS: u16 = 330;
    let seed = (std::process::id() % u32::from(BLOCKS)) as u16;
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..BLOCKS {
        let n = TAKEN.fetch_add(1, Ordering::Relaxed);
        let base = 12_000 + (seed + n) % BLOCKS * 60;
        if (0..6).all(|i| free(base + i * 10) && free(base + i * 10 + 5)) {
            return base;
        }
    }
    panic!("no block of ports is free between 12000 and 32000");
}

/// A port that is free at this moment, for a program that cannot be given 0; different for every
/// caller in this process.
pub fn free_port() -> u16 {
    base_port()
}

/// Removes limits that would make a test's outcome depend on the machine's speed. Services get
/// longer timeouts for each other than operators want: several fleets share a machine's cores here,
/// and a thread that is not scheduled looks like one that hangs. Callers have no rate limit, and no
/// limit of failures: a fast machine would exceed the defaults. A test about any of these sets its
/// own.
pub fn unhurried(command: &mut Command) -> &mut Command {
    for service in SERVICES {
        let prefix = service.replace('-', "_").to_uppercase();
        command.env(format!("{prefix}_DRAIN_DEADLINE"), "15s");
        let failures = format!("{prefix}_LIMITS_AUTH_FAILURES_PER_SECOND");
        command.env(failures, "0");
    }
    command
        .env("SVC_WALLET_LIMITS_RATE_PER_SECOND", "0")
        .env("SVC_WALLET_LEDGER_SILENT_AFTER", "2s")
        .env("SVC_WALLET_LEDGER_HANGS_AFTER", "5s")
}

/// A running `ron up`, killed on drop.
pub struct Fleet {
    dir: Arc<TempDir>,
    child: Process,
    pub http: Arc<HttpClient>,
    endpoints: Value,
}

impl Fleet {
    /// Starts one in a new data directory.
    pub fn start() -> Self {
        Self::start_in(Arc::new(
            tempfile::tempdir().expect("a temporary directory"),
        ))
    }

    /// Starts one in a data directory that may have been used before.
    pub fn start_in(dir: Arc<TempDir>) -> Self {
        Self::run(dir, unhurried(&mut up()))
    }

    /// Starts one in a new data directory, whose services write all their log lines, in this format, to a file. At level info
    /// a request may have no line, when many others end in the same second.
    pub fn start_logging(format: &str, log: File) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::start_logging_in(Arc::new(dir), format, log)
    }

    /// The same in a data directory that may have been used before.
    pub fn start_logging_in(dir: Arc<TempDir>, format: &str, log: File) -> Self {
        let mut command = up();
        let args = ["--log-level", "debug", "--log-format", format];
        Self::run(dir, unhurried(command.args(args).stderr(log)))
    }

    /// The same, with further environment.
    pub fn start_with(dir: Arc<TempDir>, env: &[(&str, PathBuf)]) -> Self {
        let env = env.iter().map(|(key, value)| (key, value));
        Self::run(dir, unhurried(&mut up()).envs(env))
    }

    /// Starts one in a new data directory with the default limits and timeouts of operators.
    pub fn as_by_default() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::run(Arc::new(dir), &mut up())
    }

    fn run(dir: Arc<TempDir>, command: &mut Command) -> Self {
        let fleet = Self::run_as_it_is(dir, command);
        // `ron up` waits for passports too, but on a busy machine not long enough.
        let started = Instant::now();
        for service in SERVICES {
            let url = format!("{}/readyz", fleet.health(service));
            while !takes_passports(&fleet.get(&url, None)) {
                assert!(started.elapsed() < START, "{service} takes no passports");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        fleet
    }

    /// Starts one whose services may refuse the issuer, and so passports.
    pub fn start_distrusting(dir: Arc<TempDir>) -> Self {
        Self::run_as_it_is(dir, unhurried(&mut up()))
    }

    fn run_as_it_is(dir: Arc<TempDir>, command: &mut Command) -> Self {
        let mut child = spawn_up(dir.path(), command);
        let out = child.stdout.take().expect("piped");
        let started = Instant::now();
        let mut ready = false;
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if line == "ready" {
                ready = true;
                break;
            }
            assert!(started.elapsed() < START, "not ready within {START:?}");
        }
        if !ready {
            let status = child.wait().expect("it ended");
            panic!("ron up ended before it was ready: {status}");
        }
        let text = std::fs::read(dir.path().join("run/endpoints.json")).expect("endpoints.json");
        Self {
            endpoints: serde_json::from_slice(&text).expect("JSON"),
            dir,
            child: Process(child),
            http: Arc::new(http_client()),
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory, to start again in it.
    pub fn keep_dir(&self) -> Arc<TempDir> {
        self.dir.clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Base URL of a service's API.
    pub fn api(&self, service: &str) -> String {
        self.url(service, "api")
    }

    /// Base URL of a service's health port.
    pub fn health(&self, service: &str) -> String {
        self.url(service, "health")
    }

    /// Base URL of the Unix socket of a service's API, which accepts service tokens and client
    /// secrets.
    pub fn api_socket(&self, service: &str) -> String {
        self.url(service, "api_socket")
    }

    /// Base URL of the Unix socket of a service's health port.
    pub fn health_socket(&self, service: &str) -> String {
        self.url(service, "health_socket")
    }

    fn url(&self, service: &str, place: &str) -> String {
        let services = self.endpoints["services"].as_array().expect("a list");
        let found = services.iter().find(|s| s["service"] == service);
        found
            .and_then(|s| s[place].as_str())
            .expect("a known service and place")
            .to_owned()
    }

    /// `ron <args> --data-dir <dir>`; its output.
    pub fn ron(&self, args: &[&str]) -> Output {
        ron_on(self.dir(), args)
    }

    /// A token for the operator.
    pub fn token(&self, audience: &str, scope: Option<&str>) -> String {
        let mut args = vec!["token", "--audience", audience];
        if let Some(scope) = scope {
            args.extend(["--scope", scope]);
        }
        let out = self.ron(&args);
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout)
            .expect("text")
            .trim()
            .to_owned()
    }

    pub fn get(&self, url: &str, token: Option<&str>) -> Reply {
        self.send(Method::GET, url, token, None, &[])
    }

    /// POST of JSON, any status.
    pub fn post(
        &self,
        url: &str,
        token: Option<&str>,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Reply {
        self.send(Method::POST, url, token, Some(body), headers)
    }

    /// One call, not retried.
    pub fn send(
        &self,
        method: Method,
        url: &str,
        token: Option<&str>,
        body: Option<&str>,
        more: &[(&str, &str)],
    ) -> Reply {
        let bearer = token.map(|t| format!("Bearer {t}"));
        let own_type = more
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let mut headers = more.to_vec();
        if let Some(bearer) = &bearer {
            headers.push(("Authorization", bearer));
        }
        self.http
            .call(Call {
                method,
                url,
                headers: &headers,
                body: body.map(|b| b.as_bytes().to_vec()),
                content_type: body.filter(|_| !own_type).map(|_| "application/json"),
                deadline: Deadline::within(CALL),
                idempotent: false,
            })
            .unwrap_or_else(|e| panic!("{method} {url}: {e}"))
    }

    /// The operator's own credential at the KMS, which is accepted only on its socket.
    pub fn operator_token(&self) -> String {
        let path = self.dir().join("clients/operator.kms.token");
        let text = std::fs::read_to_string(path).expect("the operator's token");
        text.trim().to_owned()
    }

    /// The token by which one service calls another, which is accepted only on the callee's socket.
    pub fn service_token(&self, caller: &str, callee: &str) -> String {
        let path = self.dir().join(caller).join(format!("{callee}.token"));
        let text = std::fs::read_to_string(path).expect("the service's token");
        text.trim().to_owned()
    }

    /// The issuer's revocations, as the wallet reads them; the query is empty or begins with `?`.
    pub fn revocations(&self, query: &str) -> Reply {
        let url = format!(
            "{}/v1/passport/events{query}",
            self.api_socket("svc-passport")
        );
        self.get(
            &url,
            Some(&self.service_token("svc-wallet", "svc-passport")),
        )
    }

    /// A POST to the KMS by the operator; returns its response, which must have the expected
    /// status.
    pub fn kms(&self, path: &str, body: &Value, status: u16) -> Value {
        let url = format!("{}/v1/kms/{path}", self.api_socket("ron-kms"));
        let reply = self.post(&url, Some(&self.operator_token()), &body.to_string(), &[]);
        json(&reply, status)
    }

    /// What `ron init` made: names and public keys.
    pub fn bootstrap(&self) -> Value {
        read_json(&self.dir().join("bootstrap.json"))
    }

    /// Makes a key of the issuer for each algorithm, lets its signed policy offer `offered` for the
    /// wallet, and ends the fleet; returns the keys' names, for the issuer's configuration.
    pub fn offer_issuer_keys<const N: usize>(
        &mut self,
        algs: [&str; N],
        offered: &[&str],
    ) -> [String; N] {
        let mut at = 0;
        let keys = algs.map(|alg| {
            at += 1;
            let op_id = format!("01890a5d-ac96-774b-bcce-b302099a80{at:02x}");
            let made = self.kms(
                "keys",
                &json!({
                    "tenant": "ron", "purpose": "issuer", "alg": alg, "op_id": op_id,
                    "payload": {"jwt": {"typ": ["at+jwt"], "iss": self.bootstrap()["issuer"], "issuer_policy": true, "max_ttl_s": 3600}}
                }),
                201,
            );
            made["key"].as_str().expect("a name").to_owned()
        });
        self.change_issuer_policy(|policy| {
            let rules = policy["clients"][0]["audiences"].as_array_mut();
            for rule in rules.expect("rules of a client") {
                if rule["audience"] == "svc-wallet" {
                    rule["algs"] = json!(offered);
                }
            }
        });
        assert_eq!(self.stop(), Some(0));
        keys
    }

    /// Puts a signed wallet policy in force that has these rules after those that are there.
    pub fn add_wallet_rules<const N: usize>(&self, rules: [Value; N]) {
        self.change_wallet_policy(|policy| {
            policy["rules"].as_array_mut().expect("rules").extend(rules);
        });
    }

    /// Signs a changed wallet policy of the next version and waits until svc-wallet has it in force.
    pub fn change_wallet_policy(&self, change: impl FnOnce(&mut Value)) {
        let path = self.dir().join("policy/wallet.json");
        let mut policy = read_json(&path);
        let version = policy["version"].as_u64().expect("a number") + 1;
        policy["version"] = version.into();
        change(&mut policy);
        std::fs::write(&path, policy.to_string()).expect("the policy is written");
        let file = path.to_str().expect("UTF-8");
        ok(&self.ron(&["policy", "sign", "--kind", "wallet", file]));
        signal(self.pid(), "-HUP");
        let metric = "svc_wallet_policy_version{kind=\"wallet\"}";
        until("the new policy", || {
            self.metric("svc-wallet", metric) >= version as f64
        });
    }

    /// Puts the next version of the issuer policy where the issuer reads it, signed, and at once in
    /// force in the KMS.
    pub fn change_issuer_policy(&self, change: impl FnOnce(&mut Value)) {
        let path = self.dir().join("policy/issuer.json");
        let mut policy = read_json(&path);
        let version = policy["version"].as_u64().expect("a number");
        policy["version"] = (version + 1).into();
        change(&mut policy);
        std::fs::write(&path, policy.to_string()).expect("the policy is written");
        let file = path.to_str().expect("UTF-8");
        ok(&self.ron(&["policy", "sign", "--kind", "issuer", file]));
        let sig = read_json(&self.dir().join("policy/issuer.json.sig"));
        let url = format!("{}/v1/kms/issuer_policy", self.api_socket("ron-kms"));
        let body = json!({"policy": policy, "signature": sig}).to_string();
        let token = self.operator_token();
        let put = self.send(Method::PUT, &url, Some(&token), Some(&body), &[]);
        assert_eq!(json(&put, 200)["version"], version + 1);
    }

    /// A typed client of the wallet.
    pub fn wallet(&self) -> WalletClient {
        let token = self.token("svc-wallet", None);
        WalletClient::new(
            &self.api("svc-wallet"),
            Credential::bearer(&token),
            self.http.clone(),
        )
    }

    /// The value of a metric line such as `x_total{a="b"}`, 0 when it is absent.
    pub fn metric(&self, service: &str, line: &str) -> f64 {
        let found = metric(&self.http, &self.health(service), line);
        found.and_then(|v| v.parse().ok()).unwrap_or(0.0)
    }

    /// Fails when typed clients had to repeat more than a few calls: their retries would hide a
    /// burst of refusals in a phase without faults.
    pub fn was_calm(&self) {
        let repeats = self.http.repeats();
        assert!(repeats <= CALM, "{repeats} calls were repeated");
    }

    /// Kills it at once, as a power cut of the process would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM; returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.child.stop()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        println!("{} calls were repeated", self.http.repeats());
        self.kill();
    }
}

fn up() -> Command {
    let mut command = Command::new(ron_binary());
    command.arg("up");
    command
}

fn spawn_up(dir: &Path, command: &mut Command) -> Child {
    command
        .args(["--base-port", "0", "--data-dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("ron starts")
}

/// `ron <args> --data-dir <dir>`; its output.
pub fn ron_on(dir: &Path, args: &[&str]) -> Output {
    Command::new(ron_binary())
        .args(args)
        .arg("--data-dir")
        .arg(dir)
        .output()
        .expect("ron runs")
}

/// Output of a command that must succeed.
pub fn ok(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "failed with {:?}\nstdout: {text}\nstderr: {}",
        out.status.code(),
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// The JSON of a response with the expected status.
pub fn json(reply: &Reply, status: u16) -> Value {
    let text = String::from_utf8_lossy(&reply.body);
    assert_eq!(reply.status, status, "{text}");
    serde_json::from_slice(&reply.body).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// True if `/readyz` says that the service accepts passports too. A service is ready earlier:
/// service tokens work without the issuer, which itself needs some of the services that read its
/// keys.
pub fn takes_passports(readyz: &Reply) -> bool {
    readyz.status == 200 && serde_json::from_slice(&readyz.body).is_ok_and(|doc| has_keys(&doc))
}

/// Whether the service whose `/readyz` says `doc` has its issuer's keys.
fn has_keys(doc: &Value) -> bool {
    let degraded = doc["degraded"].as_array();
    degraded.is_none_or(|all| !all.contains(&json!("passports")))
}

/// The JSON in a file.
pub fn read_json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Copies a directory tree.
pub fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .expect("cp runs");
    assert!(status.success());
}
