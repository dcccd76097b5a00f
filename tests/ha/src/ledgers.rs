//! Two ledgers as services, whose log is in one database: who writes, and what a caller is told.
#![allow(clippy::disallowed_methods)] // a test waits

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_auth::service_token;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_ledger::RonLedger;
use ron_service::{Config, Parts, Running, Service as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, wait_for};

/// The nodes' directories, a caller, and the database.
struct Rig {
    cluster: Cluster,
    dirs: [TempDir; 3],
    token: String,
    http: HttpClient,
}

fn private(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("its mode");
}

impl Rig {
    fn new(cluster: Cluster) -> Self {
        let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a temporary directory"));
        for dir in &dirs {
            private(dir.path());
        }
        Self {
            cluster,
            dirs,
            token: service_token::generate("svc-wallet", &[1; 32]),
            http: HttpClient::new(ClientConfig {
                breaker: None,
                insecure_loopback: true,
                ..ClientConfig::default()
            }),
        }
    }

    fn key(&self, node: usize) -> PathBuf {
        self.dirs[node].path().join("note.key")
    }

    /// All nodes sign with the key of the first.
    fn copy_key(&self, to: usize) {
        fs::copy(self.key(0), self.key(to)).expect("a copy");
    }

    fn try_start(&self, node: usize) -> Result<Running, String> {
        let text = format!(
            "data_dir = \"{}\"\ninsecure_loopback = true\n\
             [log]\nurl = \"postgresql://ron@127.0.0.1:{}/postgres\"\nnode = \"http://node-{node}\"\n\
             commit_within = \"1s\"\n\
             [ledger]\nprojection = false\n\
             [[auth.principals]]\nname = \"svc-wallet\"\ntenant = \"ron\"\nsha256 = \"{}\"\n\
             scopes = [\"ledger:commit\", \"ledger:read\", \"ledger:audit\"]\n",
            self.dirs[node].path().display(),
            self.cluster.primary.port,
            service_token::hash(&self.token),
        );
        let config = Config::from_toml(RonLedger::TABLE, Path::new("ha/config.toml"), &text);
        let config = config.unwrap_or_else(|problems| panic!("{problems:?}"));
        let parts = Parts::ephemeral(RonLedger::TABLE.service).expect("free ports");
        ron_service::start::<RonLedger>(config, parts).map_err(|error| format!("{error:?}"))
    }

    fn start(&self, node: usize) -> Running {
        self.try_start(node).expect("it starts")
    }

    fn call(&self, node: &Running, method: Method, path: &str, body: Option<&Value>) -> Reply {
        let bearer = format!("Bearer {}", self.token);
        let called = self.http.call(Call {
            method,
            url: &format!("{}{path}", node.api_url()),
            headers: &[("Authorization", bearer.as_str())],
            body: body.map(|body| body.to_string().into_bytes()),
            content_type: body.map(|_| "application/json"),
            deadline: Deadline::within(Duration::from_secs(60)),
            idempotent: false,
        });
        called.expect("the ledger answers")
    }

    fn issue(&self, node: &Running, key: &str) -> Reply {
        let entry = json!({
            "kind": "issue", "tenant": "t", "principal": "p", "key": key,
            "to": "alice", "asset": "ron", "amount_minor": "5",
        });
        let body = json!({"entries": [entry], "linked": false});
        self.call(node, Method::POST, "/v1/ledger/commit", Some(&body))
    }

    /// Status and code of an answer, and the node it names.
    fn refusal(&self, node: &Running, key: &str) -> (u16, String, Option<String>) {
        let reply = self.issue(node, key);
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let code = told["code"].as_str().unwrap_or_default().to_owned();
        let active = told["details"]["active"].as_str().map(str::to_owned);
        (reply.status, code, active)
    }

    fn head(&self, node: &Running) -> Value {
        let reply = self.call(node, Method::GET, "/v1/ledger/head", None);
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    fn is_active(&self, node: &Running) -> bool {
        self.head(node).get("closed").is_none()
    }
}

fn stop(mut node: Running) {
    let report = node.drain(Duration::from_secs(30));
    assert!(report.stragglers.is_empty(), "{:?}", report.stragglers);
}

/// One node writes, the other follows and takes over; requests that are sent again have their first answer.
#[test]
fn the_other_node_takes_over_and_knows_every_key() {
    let rig = Rig::new(Cluster::pair());
    let one = rig.start(0);
    wait_for("the first node is active", || rig.is_active(&one));
    let Err(refused) = rig.try_start(1) else {
        panic!("a node without the key has started");
    };
    assert!(refused.contains("note.key"), "{refused}");
    rig.copy_key(1);
    let two = rig.start(1);
    assert_eq!(rig.issue(&one, "k1").status, 200);
    wait_for("the second node follows", || {
        rig.head(&two)["root"] == rig.head(&one)["root"]
    });
    wait_for("it knows the node that writes", || {
        rig.refusal(&two, "k2") == (503, "not_active".into(), Some("http://node-0".into()))
    });
    // A request that was answered is answered by a standby too.
    assert_eq!(rig.issue(&two, "k1").body, rig.issue(&one, "k1").body);
    wait_for("its checkpoint covers the entry", || {
        rig.head(&two)["checkpoint_size"] == 2
    });
    stop(one);
    wait_for("the second node is active", || rig.is_active(&two));
    assert_eq!(rig.issue(&two, "k2").status, 200);
    let one = rig.start(0);
    wait_for("the first node follows", || {
        rig.head(&one)["root"] == rig.head(&two)["root"]
    });
    let named = (503, "not_active".into(), Some("http://node-1".into()));
    wait_for("it knows the other", || rig.refusal(&one, "k3") == named);
    let account = "/v1/ledger/accounts/alice";
    let read = |node| rig.call(node, Method::GET, account, None).body;
    assert_eq!(read(&one), read(&two));
    stop(one);
    stop(two);
}

/// Without the database's standby nothing is acknowledged and reads go on; afterwards nothing has to be restarted.
#[test]
fn writes_wait_for_the_databases_standby_and_reads_go_on() {
    let rig = Rig::new(Cluster::pair());
    let node = rig.start(0);
    wait_for("the node is active", || rig.is_active(&node));
    assert_eq!(rig.issue(&node, "before").status, 200);
    rig.cluster.set_standby(false);
    let statuses = ron_kernel::scoped(2, |n| rig.issue(&node, &format!("away-{n}")).status);
    // Not known, or not done: nothing else can be said.
    assert!(
        statuses.iter().all(|status| [503, 504].contains(status)),
        "{statuses:?}"
    );
    assert_eq!(
        rig.head(&node)["seq"],
        1,
        "nothing is shown that is not on both hosts"
    );
    assert_eq!(
        rig.call(&node, Method::GET, "/v1/ledger/accounts/alice", None)
            .status,
        200
    );
    rig.cluster.set_standby(true);
    for n in 0..2 {
        let key = format!("away-{n}");
        wait_for("the request is answered", || {
            rig.issue(&node, &key).status == 200
        });
    }
    assert_eq!(rig.head(&node)["seq"], 3, "each key once");
    stop(node);
}
