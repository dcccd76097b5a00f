//! A running rewarder and a caller, for tests over HTTP.

#![allow(dead_code, clippy::disallowed_methods)] // each test takes what it needs

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::service_token;
use ron_client::{Credential, RewarderClient};
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::{Deadline, SharedNet};
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{ComputeRequest, POLICY_KIND, SignedPolicy, SnapshotInfo};
use ron_proto::{b64, jcs};
use ron_service::{Config, Parts, Running};
use serde_json::{Value, json};
use svc_rewarder::SvcRewarder;
use svc_rewarder::settings::TABLE;

const SEED: [u8; 32] = [8; 32];

/// The key that signs policies.
pub fn key() -> Ed25519Key {
    Ed25519Key::from_seed(&[1; 32])
}

pub fn by() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

/// A ready service with these lines at the top of its configuration, and a caller of it.
pub fn start(top: &str) -> (Running, Caller) {
    start_with(top, |_| {})
}

/// The same, with these sockets.
pub fn start_on(top: &str, net: SharedNet) -> (Running, Caller) {
    start_with(top, |parts| parts.net = net)
}

/// The same, with other parts.
pub fn start_with(top: &str, change: impl FnOnce(&mut Parts)) -> (Running, Caller) {
    let token = service_token::generate("tester", &SEED);
    // On a RAM disk: the socket is a file.
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let text = format!(
        "{top}\nuds_only = true\nuds_path = \"{}\"\n[policy]\npublic_keys = [\"{}\"]\n\
         [[auth.principals]]\nname = \"tester\"\nsha256 = \"{}\"\n\
         scopes = [\"rewarder:run\", \"rewarder:read\"]\n",
        dir.path().join("run/api.sock").display(),
        b64::url(&key().public()),
        service_token::hash(&token)
    );
    let file = Some((Path::new("test.toml"), text.as_str()));
    let config = Config::load(&TABLE, file, &|_| None, &[]).expect("a good configuration");
    let mut parts = Parts::ephemeral("svc-rewarder").expect("parts");
    change(&mut parts);
    let running = ron_service::start::<SvcRewarder>(config, parts).expect("it starts");
    running.wait_ready(by()).expect("it gets ready");
    let caller = Caller {
        http: Arc::new(HttpClient::new(ClientConfig::default())),
        base: running.api_url(),
        health: running.health_url(),
        token,
        _dir: dir,
    };
    (running, caller)
}

/// Stops a service and checks that it leaves no thread behind.
pub fn end(mut running: Running) {
    let report = running.drain(Duration::from_secs(10));
    assert_eq!(report.stragglers, Vec::<String>::new());
}

/// A policy of one pool of 1000 and one metric `m`, with these fields replaced.
pub fn policy(edit: &Value) -> SignedPolicy {
    let mut policy = json!({
        "format": 1, "tenant": "default", "id": "test", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/test", "amount_minor": "1000"},
        "metrics": {"m": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/test"}
    });
    for (field, value) in edit.as_object().expect("an object of replaced fields") {
        policy[field] = value.clone();
    }
    let message = policy_message(POLICY_KIND, &jcs::canonicalize(&policy));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "k".into(),
        value: b64::url(&key().sign(&message)),
    };
    SignedPolicy { policy, signature }
}

/// A caller with every scope.
pub struct Caller {
    http: Arc<HttpClient>,
    base: String,
    health: String,
    token: String,
    _dir: tempfile::TempDir,
}

impl Caller {
    /// The typed client of this caller.
    pub fn typed(&self) -> RewarderClient {
        RewarderClient::new(
            &self.base,
            Credential::bearer(&self.token),
            self.http.clone(),
        )
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// One call; returns any status.
    pub fn call(&self, method: Method, path: &str, body: Option<(&str, &[u8])>) -> Reply {
        let call = Call {
            method,
            url: &format!("{}{path}", self.base),
            headers: &[("Authorization", &format!("Bearer {}", self.token))],
            body: body.map(|(_, bytes)| bytes.to_vec()),
            content_type: body.map(|(kind, _)| kind),
            deadline: by(),
            idempotent: false,
        };
        self.http.call(call).expect("an answer")
    }

    /// GET that must answer JSON with this status.
    pub fn get(&self, path: &str, status: u16) -> Value {
        let reply = self.call(Method::GET, path, None);
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, status, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// The answer of `/readyz`.
    pub fn readyz(&self) -> Reply {
        let url = format!("{}/readyz", self.health);
        self.http.call(Call::get(&url, by())).expect("an answer")
    }

    /// The text of the metrics page.
    pub fn metrics(&self) -> String {
        let url = format!("{}/metrics", self.health);
        let page = self.http.call(Call::get(&url, by())).expect("an answer");
        String::from_utf8(page.body).expect("text")
    }

    /// Uploads CSV rows without their header; returns the sealed snapshot.
    pub fn upload(&self, rows: &str) -> SnapshotInfo {
        let text = format!("account,metric,amount\n{rows}");
        let body = Some(("text/csv", text.as_bytes()));
        let reply = self.call(Method::POST, "/rewarder/snapshots", body);
        assert!(matches!(reply.status, 200 | 201), "{}", reply.status);
        reply.json().expect("what was sealed")
    }

    /// Stores a policy and usage; returns the request to compute an epoch from them.
    pub fn inputs(&self, policy: &SignedPolicy, rows: &str) -> ComputeRequest {
        let id = policy.policy["id"].as_str().expect("an id");
        let id = id.parse().expect("an id");
        let stored = self.typed().put_policy(&id, policy, by());
        ComputeRequest {
            snapshot: self.upload(rows).cid,
            policy_hash: stored.expect("stored").hash,
            policy_id: id,
            dry_run: false,
            adjusts: None,
        }
    }
}
