//! Authorisation of the console, on the real process: every route refuses a caller without an
//! identity, headers count from listed proxies only; host names, cross-site requests, read-only,
//! roles, and a line in the audit for every denial. Also nodes behind TLS and Unix sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::admin::{AuditList, NodeState, Overview};
use ron_tests::tools::{Process, service};
use ron_tests::{Fleet, free_port, http_client, json};
use serde_json::Value;

const OWN: (&str, &str) = ("X-Ron-Console", "1");
const INGRESS: &str = "[auth]\nmode = \"ingress\"\n[ingress]\nproxies = [\"127.0.0.0/8\"]\n\
    viewer_groups = [\"staff\"]\noperator_groups = [\"sre\"]\nadmin_groups = [\"root\"]\n";
const VIEWER: &[(&str, &str)] = &[("X-User", "vera"), ("X-Groups", "staff")];

/// svc-admin as a process of its own, killed on drop.
struct Console {
    _child: Process,
    dir: tempfile::TempDir,
    api: u16,
    health: u16,
    http: HttpClient,
}

impl Console {
    /// Starts with this configuration, preceded by the addresses and the data directory.
    fn start(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (api, health) = (free_port(), free_port());
        let text = format!(
            "bind_addr = \"127.0.0.1:{api}\"\nhealth_addr = \"127.0.0.1:{health}\"\ndata_dir = \"{}\"\n{text}",
            dir.path().join("data").display()
        );
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let mut command = service("svc-admin", &path, ["log.level=error"]);
        let http = http_client();
        let console = Self {
            _child: Process::start(&mut command),
            dir,
            api,
            health,
            http,
        };
        let started = Instant::now();
        while !console.answers("/api/ui-config") {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "it does not start"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        console
    }

    fn answers(&self, path: &str) -> bool {
        let url = format!("http://127.0.0.1:{}{path}", self.api);
        let call = Call::get(&url, Deadline::within(Duration::from_secs(2)));
        self.http.call(call).is_ok_and(|reply| reply.status == 200)
    }

    fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let url = format!("http://127.0.0.1:{}{path}", self.api);
        let posts = method == Method::POST;
        let call = Call {
            method,
            url: &url,
            headers,
            body: posts.then(|| body.as_bytes().to_vec()),
            content_type: posts.then_some("application/json"),
            deadline: Deadline::within(Duration::from_secs(10)),
            idempotent: false,
        };
        self.http.call(call).unwrap()
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.call(Method::GET, path, headers, "")
    }

    fn act(&self, action: &str, headers: &[(&str, &str)]) -> Reply {
        let path = format!("/api/nodes/n/{action}");
        self.call(Method::POST, &path, headers, "{\"confirm\":\"n\"}")
    }

    /// A GET written by hand, because the client sets `Host` itself.
    fn with_host(&self, host: &str, path: &str, more: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.api)).unwrap();
        let text =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// The audit as `action subject result reason`, oldest first, once it has `n` lines.
    fn lines(&self, who: &[(&str, &str)], n: usize) -> Vec<String> {
        let started = Instant::now();
        loop {
            let list: AuditList =
                serde_json::from_slice(&self.get("/api/audit", who).body).unwrap();
            if list.entries.len() >= n || started.elapsed() > Duration::from_secs(5) {
                let say = |e: &ron_proto::admin::AuditEntry| {
                    let reason = e.reason.as_deref().unwrap_or("-");
                    format!("{} {} {} {reason}", e.action, e.subject, e.result)
                };
                return list.entries.iter().rev().map(say).collect();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Calls every route of the document that is not public, and expects 401.
    fn refuses_all(&self) {
        let doc = json(&self.get("/openapi.json", &[]), 200);
        let mut asked = 0;
        for (path, item) in doc["paths"].as_object().unwrap() {
            let public = ["/api/ui-config", "/api/session"].contains(&path.as_str());
            if !path.starts_with("/api/") || public {
                continue;
            }
            for method in [Method::GET, Method::POST] {
                if item.get(method.as_str().to_ascii_lowercase()).is_some() {
                    let real = path.replace("{id}", "n");
                    let reply = self.call(method, &real, &[OWN], "{\"confirm\":\"n\"}");
                    assert_eq!(reply.status, 401, "{method} {path} {}", code(&reply));
                    asked += 1;
                }
            }
        }
        assert!(asked >= 13, "{asked} routes");
    }
}

fn code(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
    format!("{} {}", reply.status, body["code"].as_str().unwrap_or("-"))
}

#[test]
fn only_a_listed_proxy_names_the_user() {
    let node = "[[nodes]]\nid = \"n\"\nhealth_url = \"http://127.0.0.1:1\"\n";
    let console = Console::start(&format!("{INGRESS}{node}"));
    console.refuses_all();
    assert_eq!(console.get("/api/overview", VIEWER).status, 200);
    // DNS rebinding: the browser's name for this host is not listed.
    let user = "X-User: vera\r\nX-Groups: staff\r\n";
    assert_eq!(console.with_host("127.0.0.1", "/api/overview", user).0, 200);
    for path in ["/api/overview", "/api/ui-config", "/", "/app.js"] {
        let (status, answer) = console.with_host("rebound.example", path, user);
        assert_eq!(status, 403, "{path}");
        assert!(answer.contains("allowed_hosts"), "{answer}");
    }
    // The server enforces read-only, whatever the page shows.
    let operator = [("X-User", "otto"), ("X-Groups", "sre"), OWN];
    assert_eq!(code(&console.act("reload", &operator)), "403 read_only");
    assert_eq!(
        code(&console.act("reload", &[VIEWER, &[OWN]].concat())),
        "403 read_only"
    );
    // Cross-site.
    for evil in [
        ("Origin", "https://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        let headers = [operator.as_slice(), &[evil]].concat();
        assert_eq!(
            code(&console.act("reload", &headers)),
            "403 cross_site",
            "{evil:?}"
        );
    }
    let lines = console.lines(VIEWER, 4);
    for denied in [
        "reload otto denied read_only",
        "reload vera denied read_only",
        "reload otto denied cross_site",
    ] {
        assert!(
            lines.iter().any(|line| line == denied),
            "{denied}: {lines:#?}"
        );
    }
    assert_eq!(lines.len(), 4, "{lines:#?}");
}

#[test]
fn headers_of_an_unlisted_peer_are_spoofed() {
    let console = Console::start(&INGRESS.replace("127.0.0.0/8", "192.0.2.0/24"));
    assert_eq!(console.get("/api/overview", VIEWER).status, 401);
    assert_eq!(console.get("/api/ui-config", &[]).status, 200);
}

/// Passports of a real fleet; the console under test is another one, whose node is the fleet's
/// ledger.
#[test]
fn passports_say_what_their_holders_may_do() {
    let fleet = Fleet::start();
    let issuer = fleet.api_socket("svc-passport");
    let config = std::fs::read_to_string(fleet.dir().join("svc-admin/config.toml")).unwrap();
    let name = config
        .lines()
        .find_map(|l| {
            l.strip_prefix("issuer = ")?
                .trim_matches('"')
                .to_owned()
                .into()
        })
        .expect("the fleet's issuer");
    let vkey = fleet.bootstrap()["note_vkey"].clone();
    let token = fleet.dir().join("svc-admin/svc-passport.token");
    let text = format!(
        "read_only = false\n[actions]\nenable_reload = true\nenable_shutdown = true\n[auth]\nmode = \"passport\"\nissuer = \"{name}\"\n\
         jwks_url = \"{issuer}/.well-known/jwks.json\"\nnote_vkey = [{vkey}]\ntoken_file = {token:?}\n\
         [[nodes]]\nid = \"n\"\nhealth_url = \"{}\"\n",
        fleet.health("ron-ledger")
    );
    let console = Console::start(&text);
    let viewer = format!("Bearer {}", fleet.token("svc-admin", Some("admin:view")));
    let operator = format!(
        "Bearer {}",
        fleet.token("svc-admin", Some("admin:view admin:operate"))
    );
    let viewer = [("Authorization", viewer.as_str()), OWN];
    let operator = [("Authorization", operator.as_str()), OWN];
    let started = Instant::now();
    while console.get("/api/overview", &viewer).status != 200 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the keys do not come"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    console.refuses_all();
    let broken = [("Authorization", "Bearer e30.e30.AA"), OWN];
    assert_eq!(console.get("/api/overview", &broken).status, 401);
    let wrong = format!("Bearer {}", fleet.token("svc-wallet", None));
    assert_eq!(
        console
            .get("/api/overview", &[("Authorization", &wrong)])
            .status,
        401
    );
    assert_eq!(code(&console.act("reload", &viewer)), "403 forbidden");
    assert_eq!(code(&console.act("shutdown", &operator)), "403 forbidden");
    // Passes every gate but the last: this console has no credential for the node.
    assert_eq!(code(&console.act("reload", &operator)), "403 no_credential");
    let lines = console.lines(&viewer, 3);
    assert_eq!(lines.len(), 3, "{lines:#?}");
    let about = |what: &str, end: &str| {
        let found = lines
            .iter()
            .any(|l| l.starts_with(what) && l.ends_with(end));
        assert!(found, "{what} .. {end}: {lines:#?}");
    };
    about("reload ", "denied forbidden");
    about("shutdown ", "denied forbidden");
    about("reload ", "denied no_credential");
}

/// nginx in front of a health port: TLS on one side, a Unix socket on the other.
fn nginx(dir: &Path, health: u16) -> (Process, u16) {
    let port = free_port();
    let key = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), key.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), key.signing_key.serialize_pem()).unwrap();
    let at = dir.display();
    let conf = format!(
        "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         server {{ listen 127.0.0.1:{port} ssl; listen unix:{at}/node.sock;\n\
         ssl_protocols TLSv1.3; ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem;\n\
         location / {{ proxy_pass http://127.0.0.1:{health}; }} }} }}\n"
    );
    let path = dir.join("nginx.conf");
    std::fs::write(&path, conf).unwrap();
    let binary = ["/usr/sbin/nginx", "/usr/bin/nginx"];
    let binary = binary.iter().find(|p| Path::new(p).exists());
    let child = Command::new(binary.expect("nginx is installed by scripts/setup.sh"))
        .arg("-p")
        .arg(dir)
        .arg("-c")
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    (Process(child.unwrap()), port)
}

/// nginx, ended by SIGTERM in every case: killed, it would leave its worker behind.
struct Proxy(Process);

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn nodes_behind_tls_and_unix_sockets_are_watched() {
    let watched = Console::start("");
    let dir = tempfile::tempdir().unwrap();
    let (proxy, port) = nginx(dir.path(), watched.health);
    let proxy = Proxy(proxy);
    let other = tempfile::tempdir().unwrap();
    let other_ca = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(other.path().join("ca.pem"), other_ca.cert.pem()).unwrap();
    let console = |ca: &Path| {
        Console::start(&format!(
            "[tls]\npeer_ca_path = \"{}\"\n[sampler]\nmetrics_interval = \"500ms\"\nmetrics_window = \"10s\"\n\
             [[nodes]]\nid = \"tls\"\nhealth_url = \"https://127.0.0.1:{port}\"\n\
             [[nodes]]\nid = \"unix\"\nhealth_url = \"unix:{}/node.sock\"\n",
            ca.display(),
            dir.path().display()
        ))
    };
    let trusting = console(&dir.path().join("cert.pem"));
    let doubting = console(&other.path().join("ca.pem"));
    let state = |of: &Console, id: &str| {
        let overview: Overview =
            serde_json::from_slice(&of.get("/api/overview", &[]).body).unwrap();
        let row = overview
            .nodes
            .into_iter()
            .find(|n| n.summary.id == id)
            .unwrap();
        (
            row.summary.state,
            row.summary.service,
            row.rates.request_rate,
        )
    };
    let until = |of: &Console, id: &str, want: NodeState| {
        let started = Instant::now();
        while state(of, id).0 != want {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{id} is {:?}",
                state(of, id)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    for id in ["tls", "unix"] {
        until(&trusting, id, NodeState::Healthy);
        assert_eq!(state(&trusting, id).1.as_deref(), Some("svc-admin"));
    }
    // A certificate from an unknown authority counts as an outage.
    until(&doubting, "tls", NodeState::Down);
    until(&doubting, "unix", NodeState::Healthy);
    assert!(watched.dir.path().exists());
    drop(proxy);
    until(&trusting, "tls", NodeState::Down);
}
