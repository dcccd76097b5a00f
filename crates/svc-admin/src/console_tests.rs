//! The console as its users meet it: started on free ports, watching itself, called over HTTP.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, ClientConfig, HttpClient, Reply};
use ron_kernel::Deadline;
use ron_kernel::net::{AcceptError, ListeningSocket, SharedConnection, SharedListener, SocketId};
use ron_proto::admin::{
    FacetList, LogHeads, LogVerdict, MetricNames, MetricsSummary, NodeState, NodeStatus, Overview,
    QueryAnswer, UiConfig,
};
use ron_service::{Config, Parts, Running};

use crate::settings::TABLE;

struct Console {
    running: Running,
    client: HttpClient,
}

impl Console {
    /// A console that watches itself and a port without a listener.
    fn start() -> Self {
        let parts = Parts::ephemeral("svc-admin").expect("two free ports");
        let own = parts.health.local_addr().expect("bound");
        let nobody = std::net::TcpListener::bind("127.0.0.1:0")
            .expect("a free port")
            .local_addr()
            .expect("bound");
        let text = format!(
            "[sampler]\nmetrics_interval = \"250ms\"\nmetrics_window = \"10s\"\n\
             [[nodes]]\nid = \"self\"\nhealth_url = \"http://{own}\"\n\
             [[nodes]]\nid = \"gone\"\nhealth_url = \"http://{nobody}\"\napi_url = \"http://{nobody}\"\nlog_path = \"/log/v1\"\n"
        );
        let config = Config::from_toml(&TABLE, Path::new("test.toml"), &text)
            .expect("a valid configuration");
        let running = ron_service::start::<crate::SvcAdmin>(config, parts).expect("starts");
        Self {
            running,
            client: HttpClient::new(ClientConfig::default()),
        }
    }

    fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let url = format!("{}{path}", self.running.api_url());
        self.client
            .call(Call::get(&url, soon()).headers(headers))
            .expect("an answer")
    }

    fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}");
        serde_json::from_slice(&reply.body).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Reads the overview until the condition holds.
    fn until(&self, what: &str, wanted: impl Fn(&Overview) -> bool) -> Overview {
        let deadline = soon();
        loop {
            let overview: Overview = self.read("/api/overview");
            if wanted(&overview) {
                return overview;
            }
            assert!(!deadline.expired(), "{what} did not come: {overview:?}");
            self.running
                .supervisor()
                .fatal_token()
                .wait(Deadline::within(Duration::from_millis(50)));
        }
    }
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

#[test]
fn the_console_watches_and_shows() {
    let mut console = Console::start();
    let overview = console.until("a rate", |o| {
        let own = o.nodes.iter().find(|n| n.summary.id == "self");
        own.is_some_and(|n| {
            n.summary.state == NodeState::Healthy && n.rates.request_rate.is_some_and(|r| r > 0.0)
        }) && o
            .nodes
            .iter()
            .any(|n| n.summary.id == "gone" && n.summary.state == NodeState::Down)
    });
    assert_eq!(overview.nodes[0].summary.id, "gone", "problems come first");
    assert_eq!(
        overview.nodes[0].summary.reasons[0].code,
        "connection_refused"
    );
    assert_eq!(
        overview.nodes[1].summary.service.as_deref(),
        Some("svc-admin")
    );
    assert!(
        overview.nodes[1]
            .planes
            .iter()
            .any(|p| p.name == "adm-view")
    );

    let status: NodeStatus = console.read("/api/nodes/self/status");
    assert!(
        status
            .queues
            .iter()
            .any(|q| q.name == "http" && q.capacity.is_some()),
        "{:?}",
        status.queues
    );
    assert!(
        status
            .threads
            .iter()
            .any(|t| t.name == "adm-samp" && t.live == Some(2)),
        "{:?}",
        status.threads
    );
    let summary: MetricsSummary = console.read("/api/nodes/self/metrics/summary");
    assert_eq!(summary.times_ms.len(), summary.request_rate.len());
    let facets: FacetList = console.read("/api/nodes/self/metrics/facets");
    assert!(
        facets.facets.iter().any(|f| f.facet == "GET /api/overview"),
        "{facets:?}"
    );
    let query: QueryAnswer = console
        .read("/api/nodes/self/metrics/query?name=svc_admin_nodes&labels=state%3D%22down%22");
    assert_eq!((query.series.len(), query.step_seconds), (1, None));
    let names: MetricNames = console.read("/api/nodes/self/metrics/names");
    let has = |name: &str, kept: bool| {
        let mut all = names.metrics.iter();
        all.any(|metric| metric.name == name && metric.kept == kept)
    };
    assert!(has("svc_admin_nodes", false) && has("node:cpu_cores", true));
    assert!(has("process_open_fds", false) && !has("none", false));
    // The first minute has not ended.
    let history: QueryAnswer =
        console.read("/api/nodes/self/metrics/query?name=node:cpu_cores&window=7d");
    assert_eq!(
        (history.series.len(), history.step_seconds),
        (0, Some(60.0))
    );
    let config: UiConfig = console.read("/api/ui-config");
    assert!(config.read_only);
    let report = console.running.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, [] as [String; 0]);
}

#[test]
fn refusals_and_caching() {
    let console = Console::start();
    console.until("a first poll", |o| o.counts.unknown == 0);
    for (path, status) in [
        ("/api/nodes/none/status", 404),
        ("/api/nodes/self/metrics/query", 400),
        ("/api/nodes/self/metrics/query?name=x&kind=odd", 400),
        ("/api/nodes/self/metrics/query?name=x&labels=%7B", 400),
        ("/api/nodes/self/metrics/query?name=x&window=soon", 400),
        (
            "/api/nodes/self/metrics/query?name=node:cpu_cores&labels=a%3D%22b%22",
            400,
        ),
        (
            "/api/nodes/self/metrics/query?name=node:cpu_cores&kind=rate",
            400,
        ),
        ("/api/nodes/none/metrics/names", 404),
        ("/api/overview?x=1", 400),
        ("/nothing", 404),
    ] {
        assert_eq!(console.get(path).status, status, "{path}");
    }
    let page = console.get("/");
    assert!(
        page.header("content-security-policy")
            .is_some_and(|csp| csp.starts_with("default-src 'none'"))
    );
    let tag = page.header("etag").expect("a tag").to_owned();
    assert_eq!(
        console.get_with("/", &[("if-none-match", &tag)]).status,
        304
    );
    assert_eq!(console.get("/openapi.json").status, 200);

    let mut socket = TcpStream::connect(console.running.api_addr()).expect("connects");
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("set");
    socket
        .write_all(b"GET /api/overview HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("allowed_hosts"),
        "{answer}"
    );
}

#[test]
fn an_unreachable_log_is_said_to_be_so() {
    let console = Console::start();
    let deadline = soon();
    loop {
        let heads: LogHeads = console.read("/api/log-heads");
        if let [head] = heads.logs.as_slice() {
            assert_eq!(
                (head.id.as_str(), head.verdict),
                ("gone", LogVerdict::Unreachable)
            );
            return;
        }
        assert!(!deadline.expired(), "no head came");
        console
            .running
            .supervisor()
            .fatal_token()
            .wait(Deadline::within(Duration::from_millis(50)));
    }
}

/// A socket on loopback that says it listens elsewhere.
#[derive(Debug)]
struct Elsewhere(SharedListener);

impl ListeningSocket for Elsewhere {
    fn id(&self) -> SocketId<'_> {
        self.0.id()
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        Some(([192, 0, 2, 1], 7480).into())
    }

    fn listen(&self, backlog: u32) -> io::Result<()> {
        self.0.listen(backlog)
    }

    fn accept(&self) -> Result<(SharedConnection, Option<SocketAddr>), AcceptError> {
        self.0.accept()
    }
}

#[test]
fn without_authentication_only_a_socket_on_loopback_is_served() {
    let start = |elsewhere: bool| {
        let text = "[auth]\nmode = \"none\"\n";
        let config = Config::from_toml(&TABLE, Path::new("test.toml"), text).expect("valid");
        let mut parts = Parts::ephemeral("svc-admin").expect("two free ports");
        if elsewhere {
            parts.api = Arc::new(Elsewhere(parts.api));
        }
        ron_service::start::<crate::SvcAdmin>(config, parts)
    };
    assert!(start(false).is_ok());
    let refused = start(true).expect_err("a socket that others reach");
    assert!(refused.to_string().contains("192.0.2.1:7480"), "{refused}");
}
