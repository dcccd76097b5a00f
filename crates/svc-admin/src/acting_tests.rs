//! Actions on the fleet over HTTP: identities, gates, cross-site requests, the audit, reload of the
//! roster.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use ron_files::Dir;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::{Deadline, KernelMetrics, Registry, SystemClock};
use ron_proto::admin::{ActionAnswer, AuditList, NodeList};
use ron_service::{Config, Parts, Running};
use serde_json::Value;

use crate::audit::Audit;
use crate::settings::TABLE;

const VIEWER: &[(&str, &str)] = &[("X-User", "vera"), ("X-Groups", "staff")];
const OPERATOR: &[(&str, &str)] = &[("X-User", "otto"), ("X-Groups", "sre")];
const OWN: (&str, &str) = ("X-Ron-Console", "1");

/// A console that may act on another console, which plays the node.
struct Pair {
    dir: tempfile::TempDir,
    console: Running,
    node: Running,
    client: HttpClient,
}

fn start(path: &Path, text: &str) -> Running {
    std::fs::write(path, text).expect("written");
    let config = Config::from_toml(&TABLE, path, text).expect("a valid configuration");
    ron_service::start::<crate::SvcAdmin>(
        config,
        Parts::ephemeral("svc-admin").expect("two free ports"),
    )
    .expect("starts")
}

impl Pair {
    fn start(more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let token = ron_auth::service_token::generate("console", &[7; 32]);
        let hash = ron_auth::service_token::hash(&token);
        let node = start(
            &dir.path().join("node.toml"),
            &format!(
                "health_uds_path = \"{}\"\n[actions]\nenable_reload = true\n\
                 [[auth.principals]]\nname = \"console\"\nscopes = [\"admin:operate\"]\nsha256 = \"{hash}\"\n",
                dir.path().join("run/health.sock").display()
            ),
        );
        let credential = dir.path().join("token");
        std::fs::write(&credential, token).expect("written");
        std::fs::set_permissions(&credential, std::fs::Permissions::from_mode(0o600)).expect("set");
        let socket = node.health_unix_path().expect("it is configured");
        let text = console_text(dir.path(), &format!("unix:{}", socket.display()), more);
        let console = start(&dir.path().join("console.toml"), &text);
        Self {
            dir,
            console,
            node,
            client: HttpClient::new(ClientConfig::default()),
        }
    }

    fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let url = format!("{}{path}", self.console.api_url());
        self.client
            .call(Call {
                method,
                url: &url,
                headers,
                body: (method == Method::POST).then(|| body.as_bytes().to_vec()),
                content_type: (method == Method::POST).then_some("application/json"),
                deadline: Deadline::within(Duration::from_secs(10)),
                idempotent: false,
            })
            .expect("an answer")
    }

    fn act(&self, action: &str, who: &[(&str, &str)], confirm: &str) -> Reply {
        let headers = [who, &[OWN]].concat();
        let body = format!("{{\"confirm\":\"{confirm}\"}}");
        self.call(
            Method::POST,
            &format!("/api/nodes/n/{action}"),
            &headers,
            &body,
        )
    }

    fn audit(&self) -> AuditList {
        let reply = self.call(Method::GET, "/api/audit", VIEWER, "");
        serde_json::from_slice(&reply.body).expect("an audit")
    }

    /// The audit's lines as `action subject result reason`, oldest first, once there are `n`.
    fn lines(&self, n: usize) -> Vec<String> {
        let deadline = Deadline::within(Duration::from_secs(5));
        loop {
            let list = self.audit();
            if list.entries.len() >= n || deadline.expired() {
                let say = |e: &ron_proto::admin::AuditEntry| {
                    let reason = e.reason.as_deref().unwrap_or("-");
                    format!("{} {} {} {reason}", e.action, e.subject, e.result)
                };
                return list.entries.iter().rev().map(say).collect();
            }
            self.console
                .fatal_token()
                .wait(Deadline::within(Duration::from_millis(20)));
        }
    }
}

fn console_text(dir: &Path, node: &str, more: &str) -> String {
    format!(
        "data_dir = \"{0}/data\"\n{more}\n[auth]\nmode = \"ingress\"\n\
         [ingress]\nproxies = [\"127.0.0.0/8\"]\nviewer_groups = [\"staff\"]\noperator_groups = [\"sre\"]\nadmin_groups = [\"root\"]\n\
         [actions]\nenable_reload = true\n\
         [[nodes]]\nid = \"n\"\nhealth_url = \"{node}\"\ncredential_file = \"{0}/token\"\n",
        dir.display()
    )
}

fn code(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
    format!("{} {}", reply.status, body["code"].as_str().unwrap_or("-"))
}

#[test]
fn every_api_route_authenticates() {
    let pair = Pair::start("");
    let openapi = pair.call(Method::GET, "/openapi.json", &[], "");
    let doc: Value = serde_json::from_slice(&openapi.body).expect("JSON");
    let mut asked = 0;
    for (path, item) in doc["paths"].as_object().expect("paths") {
        if !path.starts_with("/api/") || path == "/api/ui-config" || path == "/api/session" {
            continue;
        }
        let real = path.replace("{id}", "n");
        for method in [Method::GET, Method::POST] {
            if item.get(method.as_str().to_ascii_lowercase()).is_none() {
                continue;
            }
            let body = "{\"confirm\":\"n\"}";
            let reply = pair.call(method, &real, &[OWN], body);
            assert_eq!(reply.status, 401, "{method} {path} {}", code(&reply));
            let said = &item[method.as_str().to_ascii_lowercase()];
            let scopes = &said["security"][0]["bearer"];
            assert_eq!(
                scopes[0], "admin:view",
                "{method} {path} is said to be public"
            );
            assert!(said["responses"]["401"].is_object(), "{method} {path}");
            asked += 1;
        }
    }
    assert!(asked >= 13, "{asked} routes");
    assert_eq!(
        pair.call(Method::GET, "/api/ui-config", &[], "").status,
        200
    );
    assert_eq!(pair.call(Method::GET, "/", &[], "").status, 200);
    assert!(pair.audit().entries.is_empty(), "nobody was there");
}

/// Refused callers without an identity leave no lines, so that they cannot push out those of known
/// callers.
#[test]
fn a_flood_without_identities_pushes_nothing_out_of_the_audit() {
    let unlimited = "read_only = false\nlimits.auth_failures_per_second = 0";
    let mut pair = Pair::start(unlimited);
    assert_eq!(pair.act("reload", OPERATOR, "n").status, 200);
    for _ in 0..3_000 {
        assert_eq!(pair.act("shutdown", &[], "n").status, 401);
    }
    assert_eq!(pair.act("reload", OPERATOR, "n").status, 200);
    let lines = pair.lines(4);
    assert_eq!(
        lines,
        ["reload otto started -", "reload otto done -"].repeat(2)
    );
    assert_eq!(pair.audit().dropped, 0);
    let shown = pair.audit().entries;
    pair.console.drain(Duration::from_secs(5));
    let home = Dir::os(pair.dir.path().join("data"));
    let registry = Registry::new("t");
    let metrics = KernelMetrics::new(&registry);
    let clock = SystemClock::shared();
    let (kept, _, _) = Audit::open(Some(home), clock, &registry, &metrics).expect("opens");
    assert_eq!(kept.list().entries, shown, "the file has the same");
}

/// Without authentication nobody is the local operator, and nobody may act.
#[test]
fn without_authentication_no_attempt_is_in_the_audit() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = console_text(dir.path(), "http://127.0.0.1:1", "").replace("ingress\"", "none\"");
    let console = start(&dir.path().join("c.toml"), &text);
    let base = console.api_url();
    let client = HttpClient::new(ClientConfig::default());
    let deadline = || Deadline::within(Duration::from_secs(5));
    let act = Call {
        method: Method::POST,
        url: &format!("{base}/api/nodes/n/reload"),
        headers: &[OWN],
        body: Some(b"{\"confirm\":\"n\"}".to_vec()),
        content_type: Some("application/json"),
        deadline: deadline(),
        idempotent: false,
    };
    assert_eq!(code(&client.call(act).expect("an answer")), "403 read_only");
    let url = format!("{base}/api/audit");
    let reply = client.call(Call::get(&url, deadline())).expect("an answer");
    let audit: AuditList = serde_json::from_slice(&reply.body).expect("an audit");
    assert!(audit.entries.is_empty());
    let url = format!("{}/metrics", console.health_url());
    let page = client.call(Call::get(&url, deadline())).expect("an answer");
    let page = String::from_utf8(page.body).expect("text");
    let counted = "svc_admin_auth_failures_total{reason=\"no_identity\"} 1\n";
    assert!(page.contains(counted), "{page}");
}

#[test]
fn headers_count_from_listed_proxies_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let text =
        console_text(dir.path(), "http://127.0.0.1:1", "").replace("127.0.0.0/8", "10.0.0.0/8");
    let console = start(&dir.path().join("c.toml"), &text);
    let url = format!("{}/api/overview", console.api_url());
    let call = Call::get(&url, Deadline::within(Duration::from_secs(5))).headers(OPERATOR);
    let reply = HttpClient::new(ClientConfig::default())
        .call(call)
        .expect("an answer");
    assert_eq!(reply.status, 401, "a spoofed header");
}

#[test]
fn actions_pass_every_gate_or_are_on_record_as_denied() {
    let pair = Pair::start("read_only = false");
    assert_eq!(code(&pair.act("reload", VIEWER, "n")), "403 forbidden");
    assert_eq!(
        code(&pair.act("shutdown", OPERATOR, "n")),
        "403 action_disabled"
    );
    assert_eq!(
        code(&pair.act("reload", OPERATOR, "other")),
        "400 bad_request"
    );
    let done = pair.act("reload", OPERATOR, "n");
    assert_eq!(done.status, 200, "{}", String::from_utf8_lossy(&done.body));
    let answer: ActionAnswer = serde_json::from_slice(&done.body).expect("an answer");
    assert_eq!(
        (answer.action.as_str(), answer.result.as_str()),
        ("reload", "unchanged")
    );
    let want = [
        "reload vera denied forbidden",
        "shutdown otto denied action_disabled",
        "reload otto denied bad_request",
        "reload otto started -",
        "reload otto done -",
    ];
    assert_eq!(pair.lines(5), want);
    assert!(pair.audit().durable);
    // The node is gone: nothing was done, and the response says so.
    let Pair { node, .. } = &pair;
    assert!(node.ready().ready);
    let body = "{\"confirm\":\"n\"}";
    let check = |extra: &[(&str, &str)], want: &str| {
        let headers = [OPERATOR, extra].concat();
        let reply = pair.call(Method::POST, "/api/nodes/n/reload", &headers, body);
        assert_eq!(code(&reply), want, "{extra:?}");
    };
    check(&[], "403 cross_site");
    check(&[OWN, ("Sec-Fetch-Site", "cross-site")], "403 cross_site");
    check(&[OWN, ("Origin", "https://evil.example")], "403 cross_site");
    check(
        &[
            OWN,
            ("Origin", "http://localhost:1"),
            ("Sec-Fetch-Site", "same-origin"),
        ],
        "200 -",
    );
    let lines = pair.lines(10);
    assert_eq!(
        lines
            .iter()
            .filter(|l| l.ends_with("denied cross_site"))
            .count(),
        3
    );
}

#[test]
fn read_only_is_held_on_the_server() {
    let pair = Pair::start("");
    assert_eq!(code(&pair.act("reload", OPERATOR, "n")), "403 read_only");
    assert_eq!(pair.lines(1), ["reload otto denied read_only"]);
    // A refresh is not an action.
    let again = pair.call(
        Method::POST,
        "/api/nodes/n/refresh",
        &[VIEWER, &[OWN]].concat(),
        "",
    );
    assert_eq!(again.status, 202);
}

#[test]
fn a_node_that_is_gone_says_that_nothing_was_done() {
    let mut pair = Pair::start("read_only = false");
    pair.node.drain(Duration::from_secs(5));
    assert_eq!(
        code(&pair.act("reload", OPERATOR, "n")),
        "502 upstream_connect"
    );
    assert_eq!(
        pair.lines(2).last().map(String::as_str),
        Some("reload otto failed upstream_connect")
    );
}

#[test]
fn reload_and_discovery_change_the_roster_without_a_restart() {
    let pair = Pair::start("");
    let ids = || {
        let reply = pair.call(Method::GET, "/api/nodes", VIEWER, "");
        let list: NodeList = serde_json::from_slice(&reply.body).expect("nodes");
        let mut ids: Vec<String> = list.nodes.into_iter().map(|n| n.id).collect();
        ids.sort();
        ids
    };
    let until = |want: &[&str]| {
        let deadline = Deadline::within(Duration::from_secs(8));
        while ids() != want && !deadline.expired() {
            pair.console
                .fatal_token()
                .wait(Deadline::within(Duration::from_millis(50)));
        }
        assert_eq!(ids(), want);
    };
    until(&["n"]);
    let path = pair.dir.path().join("console.toml");
    let old = std::fs::read_to_string(&path).expect("read");
    let targets = pair.dir.path().join("targets.yml");
    std::fs::write(&targets, "- targets: ['127.0.0.1:1']\n").expect("written");
    let new = old.replace("id = \"n\"", "id = \"m\"").replace(
        "[auth]\n",
        &format!("discovery.files = [\"{}\"]\n[auth]\n", targets.display()),
    );
    std::fs::write(&path, new).expect("written");
    pair.console.reload_from_file().expect("taken on");
    until(&["127.0.0.1-1", "m"]);
    std::fs::write(&targets, "[]").expect("written");
    until(&["m"]);
    let bad = old.replace("mode = \"ingress\"", "mode = \"ingress\"\nnonsense = 1");
    std::fs::write(&path, bad).expect("written");
    pair.console.reload_from_file().expect_err("refused");
    assert_eq!(ids(), ["m"], "the old configuration stays");
}
