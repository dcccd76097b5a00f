//! Services in this process, as the tests of two nodes start and call them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use ron_auth::service_token;
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::status::{LogNodeDoc, ServiceStatus};
use ron_proto::{b64, jcs};
use ron_service::{Config, Parts, Running, Service};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::contract::{soon, wait_for};

/// A directory that a service accepts.
pub fn private_dir() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("its mode");
    dir
}

/// Writes a file that only its owner may read, as services want of secrets.
pub fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::write(&path, bytes).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// Writes a signed wallet policy under which every principal may read and issue; returns the key that has signed it.
pub fn wallet_policy(dir: &Path) -> String {
    let key = Ed25519Key::from_seed(&[7; 32]);
    let policy = json!({"version": 1, "rules": [{
        "principal": "*", "actions": ["read", "issue"], "accounts": ["*"], "assets": ["*"],
    }]});
    let bytes = jcs::canonicalize(&policy);
    let sig = PolicySig {
        alg: "ed25519".to_owned(),
        key: b64::url(&key.public()),
        value: b64::url(&key.sign(&policy_message("wallet", &bytes))),
    };
    put(dir, "wallet.json", &bytes);
    let sig = ron_service::signed_policy::signature_bytes(&sig).expect("a document");
    put(dir, "wallet.json.sig", &sig);
    b64::url(&key.public())
}

/// Starts a service; the error is its own.
pub fn try_start<S: Service>(more: &str) -> Result<Running, String> {
    let text = format!("insecure_loopback = true\n{more}");
    let config = Config::from_toml(S::TABLE, Path::new("ha/config.toml"), &text);
    let config = config.unwrap_or_else(|problems| panic!("{problems:?}"));
    let parts = Parts::ephemeral(S::TABLE.service).expect("free ports");
    ron_service::start::<S>(config, parts).map_err(|error| format!("{error:?}"))
}

pub fn start<S: Service>(more: &str) -> Running {
    try_start::<S>(more).expect("it starts")
}

pub fn stop(mut service: Running) {
    let report = service.drain(Duration::from_secs(30));
    assert!(report.stragglers.is_empty(), "{:?}", report.stragglers);
}

/// Each service says that its database has no standby, and no longer when it has one again.
pub fn name_a_lost_standby(nodes: &[&Running], cluster: &mut Cluster) {
    let named = |node: &&Running| {
        let degraded = node.ready().degraded;
        degraded.iter().any(|cause| cause == "engine_standby")
    };
    assert!(!nodes.iter().any(named));
    cluster.without_standby(|| {
        wait_for("the lost standby is named", || nodes.iter().all(named));
    });
    wait_for("the standby is back", || !nodes.iter().any(named));
}

/// A principal with a service token, and its connections.
pub struct Caller {
    tenant: &'static str,
    name: &'static str,
    pub token: String,
    pub http: HttpClient,
}

impl Caller {
    /// A service is of the tenant `ron`.
    pub fn new(tenant: &'static str, name: &'static str) -> Self {
        Self {
            tenant,
            name,
            token: service_token::generate(name, &[1; 32]),
            http: HttpClient::new(ClientConfig {
                breaker: None,
                insecure_loopback: true,
                ..ClientConfig::default()
            }),
        }
    }

    /// Its entry in the configuration of the service that it calls.
    pub fn principal(&self, scopes: &[&str]) -> String {
        let (tenant, name) = (self.tenant, self.name);
        let hash = service_token::hash(&self.token);
        format!(
            "[[auth.principals]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\nscopes = {scopes:?}\n"
        )
    }

    pub fn call(
        &self,
        service: &Running,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Reply {
        let bearer = format!("Bearer {}", self.token);
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(key.map(|key| ("Idempotency-Key", key)));
        let called = self.http.call(Call {
            method,
            url: &format!("{}{path}", service.api_url()),
            headers: &headers,
            body: body.map(|body| body.to_string().into_bytes()),
            content_type: body.map(|_| "application/json"),
            deadline: Deadline::within(Duration::from_secs(60)),
            idempotent: false,
        });
        called.expect("the service answers")
    }

    pub fn get(&self, service: &Running, path: &str) -> Reply {
        self.call(service, Method::GET, path, None, None)
    }

    /// What a service tells a scraper of itself.
    pub fn metrics(&self, service: &Running) -> String {
        let url = format!("{}/metrics", service.health_url());
        let reply = self.http.call(Call::get(&url, soon()));
        let metrics = reply.expect("the health port answers").body;
        String::from_utf8(metrics).expect("text")
    }

    /// Number of entries that a checkpoint of the service's log covers which its witnesses have cosigned; `metric` has it.
    pub fn cosigned(&self, service: &Running, metric: &str) -> u64 {
        let metrics = self.metrics(service);
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix(metric));
        line.map_or(0, |size| size.trim().parse().expect("a number"))
    }

    /// What the node tells operators of its part in a log, on the health port.
    pub fn log_of(&self, node: &Running) -> LogNodeDoc {
        let url = format!("{}/api/v1/status", node.health_url());
        let reply = self.http.call(Call::get(&url, soon()));
        let body = reply.expect("the health port answers").body;
        let status: ServiceStatus = serde_json::from_slice(&body).expect("a status");
        status.log.expect("a shared log")
    }
}
