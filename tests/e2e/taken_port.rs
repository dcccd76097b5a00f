//! A service is down, and another user of the host takes its ports, or puts a socket in the place
//! of its socket. Every caller keeps calling: services with their tokens, the command line with
//! client secrets and passports, nginx with the questions of its visitors. None of them sends the
//! other user a secret, calls fail with a clear error, and succeed again when the real service is
//! back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ron_client::{Credential, RewarderClient};
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, Reply};
use ron_kernel::Deadline;
use ron_proto::rewarder::{ComputeRequest, ImportKind, RewardPolicy, RunState};
use ron_proto::{ContentId, EpochId, b64};
use ron_tests::tools::{Process, service};
use ron_tests::{
    CALL, SERVICES, base_port, free_port, http_client, ok, read_json, ron_binary, ron_on,
    takes_passports, unhurried, until, workspace,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A user without any rights here.
const NOBODY: u32 = 65534;

/// The six services as separate processes.
struct Rig {
    dir: TempDir,
    base: u16,
    running: BTreeMap<&'static str, Process>,
}

impl Rig {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = base_port();
        let init = ["init", "--base-port", &base.to_string()];
        ok(&ron_on(dir.path(), &init));
        let mut rig = Self {
            dir,
            base,
            running: BTreeMap::new(),
        };
        rig.append("ron-ledger", "[actions]\nenable_reload = true\n");
        rig.append("svc-admin", "[actions]\nenable_reload = true\n");
        let admin = rig.config("svc-admin");
        let text = std::fs::read_to_string(&admin).unwrap();
        let text = text.replace("[auth]\n", "[auth]\nmode = \"passport\"\n");
        std::fs::write(&admin, format!("read_only = false\n{text}")).unwrap();
        for name in SERVICES {
            rig.run(name);
        }
        for name in SERVICES {
            rig.ready(name);
        }
        rig
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn config(&self, name: &str) -> PathBuf {
        self.path().join(name).join("config.toml")
    }

    fn append(&self, name: &str, lines: &str) {
        let file = std::fs::File::options()
            .append(true)
            .open(self.config(name));
        write!(file.unwrap(), "\n{lines}").unwrap();
    }

    fn run(&mut self, name: &'static str) {
        let mut command = service(name, &self.config(name), ["log.level=error"]);
        let child = Process::start(unhurried(&mut command));
        self.running.insert(name, child);
    }

    fn port(&self, name: &str) -> u16 {
        let at = SERVICES.iter().position(|s| *s == name).unwrap();
        self.base + 10 * at as u16
    }

    fn readyz(&self, name: &str) -> Option<Reply> {
        get(&format!("http://127.0.0.1:{}/readyz", self.port(name) + 5))
    }

    fn ready(&self, name: &str) {
        until(name, || {
            self.readyz(name)
                .is_some_and(|reply| takes_passports(&reply))
        });
    }

    /// Ends a service and gives its ports to the thief.
    fn taken(&mut self, name: &'static str) -> Thief {
        let service = self.running.remove(name).unwrap();
        let pid = service.0.id().to_string();
        drop(service);
        assert!(!Path::new("/proc").join(pid).join("fd").exists(), "{name}");
        Thief::on([self.port(name), self.port(name) + 5])
    }

    /// Starts the real service again, once its ports are free.
    fn back(&mut self, name: &'static str, thief: Thief) {
        thief.heard_nothing(name);
        self.run(name);
        self.ready(name);
    }

    fn ron(&self, args: &[&str]) -> Output {
        ron_on(self.path(), args)
    }

    /// A command that works once the services it needs are back.
    fn works(&self, args: &[&str]) -> String {
        let mut out = self.ron(args);
        until(&args.join(" "), || {
            out = self.ron(args);
            out.status.success()
        });
        ok(&out)
    }

    /// A command that fails with these words.
    fn fails(&self, args: &[&str], words: &[&str]) {
        let out = self.ron(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{args:?} worked");
        for word in words {
            assert!(said.contains(word), "{args:?}: {word} is not in: {said}");
        }
    }

    fn token(&self, audience: &str) -> String {
        let out = self.works(&["token", "--audience", audience, "--ttl", "1h"]);
        out.trim().to_owned()
    }
}

fn get(url: &str) -> Option<Reply> {
    http_client()
        .call(Call::get(url, Deadline::within(CALL)))
        .ok()
}

fn post(url: &str, token: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let mut all = vec![("Authorization", bearer.as_str())];
    all.extend(headers);
    let body = body.to_string().into_bytes();
    let call = Call::post_json(url, body, Deadline::within(CALL)).headers(&all);
    http_client()
        .call(call)
        .unwrap_or_else(|e| panic!("{url}: {e}"))
}

/// Listens in the place of a service, records everything, and gives responses that please callers:
/// keys of its own, and success.
struct Thief {
    heard: Arc<Mutex<Vec<u8>>>,
    over: Arc<AtomicBool>,
    ports: [u16; 2],
    listening: Vec<JoinHandle<()>>,
}

impl Thief {
    fn on(ports: [u16; 2]) -> Self {
        let (heard, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let listen = |port: u16| {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            let (heard, over) = (Arc::clone(&heard), Arc::clone(&over));
            std::thread::spawn(move || take_all(&listener, &heard, &over))
        };
        let listening = ports.map(listen).into();
        Self {
            heard,
            over,
            ports,
            listening,
        }
    }

    fn heard_nothing(mut self, name: &str) {
        self.end();
        let heard = self.heard.lock().unwrap();
        let text = String::from_utf8_lossy(&heard);
        assert!(
            heard.is_empty(),
            "who took the ports of {name} heard: {text}"
        );
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for port in self.ports {
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
        for thread in self.listening.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Thief {
    fn drop(&mut self) {
        self.end();
    }
}

fn thiefs_key() -> Ed25519Key {
    Ed25519Key::from_seed(&[13; 32])
}

fn take_all(listener: &TcpListener, heard: &Arc<Mutex<Vec<u8>>>, over: &AtomicBool) {
    let mut open = Vec::new();
    while let Ok((stream, _)) = listener.accept() {
        if over.load(Ordering::SeqCst) {
            break;
        }
        open.push(stream.try_clone().unwrap());
        let heard = Arc::clone(heard);
        std::thread::spawn(move || take(stream, &heard));
    }
    for stream in open {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn take(mut stream: TcpStream, heard: &Mutex<Vec<u8>>) {
    let x = b64::url(&thiefs_key().public());
    let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "thief", "x": x}]});
    let keys = keys.to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{keys}",
        keys.len()
    );
    let mut bytes = [0; 8192];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        heard.lock().unwrap().extend_from_slice(&bytes[..n]);
        if bytes[..n].windows(4).any(|w| w == b"\r\n\r\n")
            && stream.write_all(answer.as_bytes()).is_err()
        {
            return;
        }
    }
}

/// nginx asks the issuer's socket about every visitor, as docs/ops/README.md shows.
fn nginx(rig: &Rig, dir: &Path) -> (Process, String) {
    let client = read_json(&rig.path().join("clients/operator.json"));
    let pair = format!("operator:{}", client["client_secret"].as_str().unwrap());
    let port = free_port();
    let (at, root) = (dir.display(), rig.path().display());
    std::fs::create_dir(dir.join("www")).unwrap();
    std::fs::write(dir.join("www/page.txt"), "the page").unwrap();
    let text = format!(
        "daemon off;\nmaster_process off;\npid {at}/nginx.pid;\nerror_log {at}/error.log;\nevents {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/f; \
         uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         map $http_authorization $passport {{ \"~^Bearer (?<bearer>[A-Za-z0-9._~-]+)$\" $bearer; default none; }}\n\
         server {{ listen 127.0.0.1:{port}; root {at}/www; location / {{ auth_request /introspect; }}\n\
         location = /introspect {{ internal; proxy_pass http://unix:{root}/run/svc-passport/api.sock:/oauth2/introspect;\n\
         proxy_method POST; proxy_set_header Authorization \"Basic {}\"; proxy_set_header Host localhost;\n\
         proxy_set_header Content-Type application/x-www-form-urlencoded; proxy_set_header Prefer handling=strict;\n\
         proxy_set_body \"token=$passport\"; }} }} }}\n",
        b64::std(pair.as_bytes())
    );
    std::fs::write(dir.join("nginx.conf"), text).unwrap();
    let child = Command::new("/usr/sbin/nginx")
        .arg("-c")
        .arg(dir.join("nginx.conf"))
        .stderr(Stdio::null())
        .spawn()
        .expect("installed by scripts/setup.sh");
    let child = Process(child);
    until("nginx listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    (child, format!("http://127.0.0.1:{port}/page.txt"))
}

fn visits(url: &str, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let call = Call::get(url, Deadline::within(CALL));
    let headers = [("Authorization", bearer.as_str())];
    http_client().call(call.headers(&headers)).unwrap().status
}

const ISSUE: [&str; 7] = ["wallet", "issue", "acct:a", "5", "--asset", "ron", "--key"];

fn issue(key: &'static str) -> Vec<&'static str> {
    ISSUE.into_iter().chain([key]).collect()
}

/// The wallet and the rewarder have tokens for the ledger, the console one for its health port.
fn the_ledger(rig: &mut Rig, console: &str) {
    let act = |rig: &Rig| {
        let url = format!(
            "http://127.0.0.1:{}/api/nodes/ron-ledger/reload",
            rig.port("svc-admin")
        );
        let own = [("X-Ron-Console", "1")];
        post(&url, console, &own, &json!({"confirm": "ron-ledger"})).status
    };
    until("the console knows the ledger", || act(rig) == 200);
    let thief = rig.taken("ron-ledger");
    rig.fails(&issue("while-taken"), &["svc-wallet"]);
    assert_ne!(act(rig), 200, "the action is not done");
    until("the wallet misses the ledger", || {
        rig.readyz("svc-wallet")
            .is_some_and(|reply| reply.status == 503)
    });
    rig.back("ron-ledger", thief);
    rig.works(&issue("while-taken"));
    until("the action is done again", || act(rig) == 200);
}

/// The issuer and the rewarder have tokens for the KMS, and so has the operator.
fn the_kms(rig: &mut Rig) {
    let thief = rig.taken("ron-kms");
    rig.fails(&["kms", "list"], &["ron-kms", "not reached", "hint:"]);
    rig.fails(
        &["token", "--audience", "svc-wallet", "--ttl", "7m"],
        &["svc-passport"],
    );
    until("the issuer misses the KMS", || {
        rig.readyz("svc-passport")
            .is_some_and(|reply| reply.status == 503)
    });
    rig.back("ron-kms", thief);
    rig.works(&["kms", "list"]);
    rig.token("svc-wallet");
}

/// An epoch is to be signed for by the KMS and paid by the ledger, and both are taken.
fn the_rewarder(rig: &mut Rig) {
    let policy = std::fs::read(rig.path().join("policy/reward.json")).unwrap();
    let rules: RewardPolicy = serde_json::from_slice(&policy).unwrap();
    let (pool, asset) = (rules.pool.account.to_string(), rules.asset.to_string());
    let amount = rules.pool.amount_minor.to_string();
    let fund = ["wallet", "issue", &pool, &amount, "--asset", &asset];
    rig.works(&[&fund[..], &["--key", "pool"]].concat());
    let usage = std::fs::read(workspace().join("examples/rocketpool/interval-03.csv")).unwrap();
    let sealed = svc_rewarder::inputs::import::csv(&*usage, ImportKind::Totals).unwrap();
    let cid = sealed.info().cid;
    let url = format!("http://127.0.0.1:{}", rig.port("svc-rewarder"));
    let credential = Credential::bearer(&rig.token("svc-rewarder"));
    let rewarder = RewarderClient::new(&url, credential, Arc::new(http_client()));
    let soon = || Deadline::within(CALL);
    let sent = rewarder.put_csv(&cid, ImportKind::Totals, usage, soon());
    sent.unwrap();
    let kms = rig.taken("ron-kms");
    let ledger = rig.taken("ron-ledger");
    let epoch: EpochId = "taken:1".parse().unwrap();
    let request = ComputeRequest {
        snapshot: cid,
        policy_id: rules.id.clone(),
        policy_hash: ContentId::of(&policy),
        dry_run: false,
        adjusts: None,
    };
    let asked = rewarder.compute(&epoch, &request, Duration::ZERO, soon());
    asked.unwrap();
    let waits_for = |peer: &str| {
        until(peer, || {
            let run = rewarder.epoch(&epoch, soon()).unwrap();
            run.reason.is_some_and(|r| format!("{r:?}").contains(peer))
        });
    };
    waits_for("kms");
    rig.back("ron-kms", kms);
    waits_for("ledger");
    rig.back("ron-ledger", ledger);
    until("the epoch is paid", || {
        rewarder.epoch(&epoch, soon()).unwrap().state == RunState::Settled
    });
}

/// Signed by the thief's own key, and otherwise as the issuer would sign.
fn forged(good: &str) -> String {
    let part = |at: usize| -> Value {
        let text = good.split('.').nth(at).unwrap();
        serde_json::from_slice(&b64::from_url(text).unwrap()).unwrap()
    };
    let header = json!({"alg": "EdDSA", "kid": "thief", "typ": part(0)["typ"]});
    let written = |value: &Value| b64::url(value.to_string().as_bytes());
    let signed = format!("{}.{}", written(&header), written(&part(1)));
    let signature = b64::url(&thiefs_key().sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Clients have secrets for the issuer, services ask it for keys, nginx shows it the passports of
/// visitors.
fn the_issuer(rig: &mut Rig) {
    let dir = tempfile::tempdir().unwrap();
    let (_nginx, page) = nginx(rig, dir.path());
    let good = rig.token("svc-wallet");
    assert_eq!(visits(&page, &good), 200);
    let thief = rig.taken("svc-passport");
    let unreached = ["svc-passport", "not reached", "hint:"];
    rig.fails(&["token"], &unreached);
    rig.fails(&["token", "verify", &good], &unreached);
    rig.fails(
        &["wallet", "balance", "acct:a", "--asset", "ron"],
        &unreached,
    );
    rig.fails(&["demo"], &unreached);
    assert_eq!(visits(&page, &good), 500, "nginx lets nobody in");
    // A service that starts now has no keys, and trusts no others.
    drop(rig.running.remove("svc-wallet"));
    rig.run("svc-wallet");
    let wallet = format!("http://127.0.0.1:{}/v1/issue", rig.port("svc-wallet"));
    until("the wallet is there without keys", || {
        let reply = rig.readyz("svc-wallet");
        reply.is_some_and(|reply| String::from_utf8_lossy(&reply.body).contains("passports"))
    });
    let body = json!({"to": "acct:thief", "asset": "ron", "amount_minor": "9"});
    let key = [("Idempotency-Key", "forged")];
    let refused = post(&wallet, &forged(&good), &key, &body);
    assert_eq!(
        refused.status,
        503,
        "{}",
        String::from_utf8_lossy(&refused.body)
    );
    rig.back("svc-passport", thief);
    rig.ready("svc-wallet");
    assert_eq!(post(&wallet, &forged(&good), &key, &body).status, 401);
    until("nginx lets in again", || visits(&page, &good) == 200);
    rig.token("svc-wallet");
}

/// The command line has passports for the wallet.
fn the_wallet(rig: &mut Rig) {
    let thief = rig.taken("svc-wallet");
    rig.fails(&issue("no-wallet"), &["svc-wallet", "not reached", "hint:"]);
    let balance = ["wallet", "balance", "acct:a", "--asset", "ron"];
    rig.fails(&balance, &["svc-wallet", "not reached"]);
    rig.back("svc-wallet", thief);
    rig.works(&issue("no-wallet"));
    let out = rig.works(&balance);
    assert!(out.contains("amount     10"), "{out}");
}

#[test]
fn a_program_on_the_ports_of_a_service_gets_no_credential() {
    let mut rig = Rig::start();
    let console = rig.token("svc-admin");
    the_ledger(&mut rig, &console);
    the_kms(&mut rig);
    the_rewarder(&mut rig);
    the_issuer(&mut rig);
    the_wallet(&mut rig);
}

/// Another user who listens on a socket, and what arrives there: `came` for a connection, then
/// `heard N` bytes.
struct OtherUser {
    _process: Process,
    said: Arc<Mutex<Vec<String>>>,
}

const OTHER_USER: &str = "
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
s.listen()
print('listens', flush=True)
while True:
    c, _ = s.accept()
    c.settimeout(20)
    print('came', flush=True)
    try:
        print('heard', len(c.recv(65536)), flush=True)
    except OSError:
        print('heard 0', flush=True)
    c.close()
";

/// A Python that other users may run; they may not reach the one of the tests.
fn python_for_other_users() -> &'static str {
    let usual = "/usr/bin/python3";
    if Path::new(usual).exists() {
        usual
    } else {
        "python3"
    }
}

impl OtherUser {
    fn on(socket: &Path) -> Self {
        let user = NOBODY.to_string();
        let mut child = Command::new("setpriv")
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .args([python_for_other_users(), "-c", OTHER_USER])
            .arg(socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let other = Self {
            _process: Process(child),
            said,
        };
        until("the other user listens", || other.saw("listens") == 1);
        other
    }

    fn saw(&self, line: &str) -> usize {
        self.said
            .lock()
            .unwrap()
            .iter()
            .filter(|l| *l == line)
            .count()
    }

    /// At least this many more callers connected, and every one of them disconnected without
    /// sending a byte.
    fn was_left(&self, at_least: usize) {
        until("callers come and leave", || {
            let (came, nothing) = (self.saw("came"), self.saw("heard 0"));
            let said = self.said.lock().unwrap();
            let words = said
                .iter()
                .find(|l| l.starts_with("heard") && *l != "heard 0");
            assert_eq!(words, None);
            came >= at_least && nothing >= at_least
        });
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

#[test]
fn another_user_on_the_socket_of_a_service_gets_no_credential() {
    if !is_root() {
        println!("not run: listening as another user needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let base = base_port();
    ok(&ron_on(
        dir.path(),
        &["init", "--base-port", &base.to_string()],
    ));
    // The other user was given access, against the rules.
    let run = dir.path().join("run");
    let mode = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).unwrap();
    };
    mode(dir.path());
    mode(&run);
    for name in ["ron-kms", "svc-passport", "ron-ledger"] {
        chown(run.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let on = |name: &str| OtherUser::on(&run.join(name).join("api.sock"));
    let [kms, issuer, ledger] = ["ron-kms", "svc-passport", "ron-ledger"].map(on);
    let refused = |args: &[&str]| {
        let out = ron_on(dir.path(), args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{args:?}");
        assert!(said.contains("runs as uid 65534, not as 0"), "{said}");
    };
    refused(&["kms", "list"]);
    refused(&["token"]);
    refused(&["wallet", "balance", "acct:a", "--asset", "ron"]);
    let given = format!("unix:{}/ron-kms/api.sock", run.display());
    refused(&["kms", "list", "--url", &given]);
    let file = dir.path().join("svc-wallet/config.toml");
    let wallet = Command::new(ron_binary().with_file_name("svc-wallet"))
        .arg("--config")
        .arg(file)
        .args(["--set", "log.level=error"])
        .stdout(Stdio::null())
        .spawn();
    let _wallet = Process(wallet.unwrap());
    kms.was_left(2);
    issuer.was_left(2);
    ledger.was_left(2);
}

#[test]
fn a_list_of_addresses_written_by_another_user_is_not_trusted() {
    if !is_root() {
        println!("not run: giving a file to another user needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    ok(&ron_on(dir.path(), &["init"]));
    let endpoint = |service: &str| {
        json!({"service": service, "api": "http://127.0.0.1:9", "health": "http://127.0.0.1:9",
               "api_socket": "unix:/tmp/none.sock", "uid": 0})
    };
    let list = json!({"pid": std::process::id(), "services": SERVICES.map(endpoint)});
    let file = dir.path().join("run/endpoints.json");
    std::fs::write(&file, list.to_string()).unwrap();
    let said = || String::from_utf8_lossy(&ron_on(dir.path(), &["token"]).stderr).into_owned();
    assert!(said().contains("not reached"), "{}", said());
    chown(&file, Some(NOBODY), None).unwrap();
    assert!(said().contains("is not believed"), "{}", said());
}

#[test]
fn a_secret_goes_over_plain_http_only_with_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let base = base_port();
    ok(&ron_on(
        dir.path(),
        &["init", "--base-port", &base.to_string()],
    ));
    let thief = Thief::on([base, base + 10]);
    let url = format!("http://127.0.0.1:{base}");
    let list = ["kms", "list", "--url", &url];
    let out = ron_on(dir.path(), &list);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    for word in ["service token", "plain TCP", "hint:", "--insecure-loopback"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // Without a socket a client's secret would go to the port.
    let config = dir.path().join("svc-passport/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("uds_path"));
    std::fs::write(&config, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let out = ron_on(dir.path(), &["token"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    for word in ["svc-passport", "uds_path", "--insecure-loopback"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    thief.heard_nothing("ron-kms and svc-passport");
    let mut thief = Thief::on([base, base + 10]);
    let open = |args: &[&str]| ron_on(dir.path(), &[args, &["--insecure-loopback"]].concat());
    assert!(!open(&list).status.success() && !open(&["token"]).status.success());
    thief.end();
    let heard = String::from_utf8_lossy(&thief.heard.lock().unwrap()).into_owned();
    assert!(heard.contains("ron_operator_") && heard.contains("Basic "));
}
