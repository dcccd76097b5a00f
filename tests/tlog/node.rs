//! A KMS and a witness as processes of their own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_auth::service_token;
use ron_http::{Call, CallError, HttpClient, Method, Reply};
use ron_kernel::{Deadline, OsRandom};
use ron_tests::tools::{Process, service, signal};
pub use ron_tests::witness::WitnessHome;
use ron_tests::{CALL, free_port, http_client, json, metric, ok, ron_on};
use ron_tlog::note::VerifierKey;
use serde_json::{Value, json};
use tempfile::TempDir;

pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Retries until it holds; panics after 20 seconds with the last state.
pub fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(state) => assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {state}"),
        }
        pause(20);
    }
}

/// What `ron init` made, for one KMS.
pub struct Home {
    dir: TempDir,
    token: String,
    pub vkey: VerifierKey,
    pub ledger_vkey: VerifierKey,
    pub revocations_vkey: VerifierKey,
}

impl Home {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        ok(&ron_on(dir.path(), &["init"]));
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect(name);
        let verifiers: Value = serde_json::from_str(&read("verifiers.json")).expect("JSON");
        let key = |name: &str| {
            let line = verifiers[name].as_str().expect("a key");
            VerifierKey::parse(line).expect("a verifier key")
        };
        Self {
            token: read("clients/operator.kms.token").trim().to_owned(),
            vkey: key("audit_vkey"),
            ledger_vkey: key("ledger_vkey"),
            revocations_vkey: key("revocations_vkey"),
            dir,
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The KMS's data directory.
    pub fn data(&self) -> PathBuf {
        self.path().join("ron-kms/data")
    }

    /// Starts the KMS on its own data directory.
    pub fn start(&self, sets: &[(&str, &str)]) -> Kms {
        self.start_on(&self.data(), sets)
    }

    /// Starts the KMS on another copy of its data directory; returns as soon as it responds.
    pub fn start_on(&self, data: &Path, sets: &[(&str, &str)]) -> Kms {
        self.start_service("ron-kms", data, sets, &self.token)
    }

    /// Starts the ledger on a data directory; requests carry the wallet's token.
    pub fn start_ledger(&self, data: &Path, sets: &[(&str, &str)]) -> Kms {
        let token = self.path().join("svc-wallet/ron-ledger.token");
        let token = std::fs::read_to_string(token).expect("the wallet's token");
        self.start_service("ron-ledger", data, sets, token.trim())
    }

    /// Lets the operator's token of the KMS revoke passports, too.
    pub fn let_revoke(&self) {
        let path = self.path().join("svc-passport/config.toml");
        let config = std::fs::read_to_string(&path).expect("a configuration");
        let hash = service_token::hash(&self.token);
        let principal = format!(
            "[[auth.principals]]\nname = \"operator\"\ntenant = \"ron\"\nscopes = [\"passport:admin\"]\nsha256 = \"{hash}\"\n"
        );
        std::fs::write(&path, config + &principal).expect("written");
    }

    /// Starts the issuer on a data directory.
    pub fn start_issuer(&self, data: &Path, sets: &[(&str, &str)]) -> Kms {
        self.start_service("svc-passport", data, sets, &self.token)
    }

    /// Why the issuer does not start on a data directory.
    pub fn refused_issuer(&self, data: &Path, sets: &[(&str, &str)]) -> String {
        let data = data.display().to_string();
        let own = [("data_dir", data.as_str()), ("bind_addr", "127.0.0.1:0")];
        let sets = own.iter().chain(sets);
        let sets = sets.map(|(key, value)| format!("{key}={value}"));
        let config = self.path().join("svc-passport/config.toml");
        let ended = service("svc-passport", &config, sets).output();
        let ended = ended.expect("it runs");
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }

    fn start_service(&self, name: &str, data: &Path, sets: &[(&str, &str)], token: &str) -> Kms {
        let (api, health) = (free_port(), free_port());
        let data = data.display().to_string();
        let (api, health) = (format!("127.0.0.1:{api}"), format!("127.0.0.1:{health}"));
        let run = self.path().join("run").join(name);
        let socket = run.join(format!("{api}.sock")).display().to_string();
        let health_socket = run.join(format!("{health}.sock")).display().to_string();
        let own = [
            ("data_dir", data.as_str()),
            ("bind_addr", &api),
            ("health_addr", &health),
            // Several may run at once, each on sockets of its own.
            ("uds_path", &socket),
            ("health_uds_path", &health_socket),
            ("log.level", "error"),
        ];
        let sets = own.iter().chain(sets);
        let sets = sets.map(|(key, value)| format!("{key}={value}"));
        let config = self.path().join(name).join("config.toml");
        let kms = Kms {
            child: Process::start(&mut service(name, &config, sets)),
            api: format!("http://{api}"),
            socket: format!("unix:{socket}"),
            health: format!("http://{health}"),
            token: token.to_owned(),
            http: http_client(),
        };
        eventually("the service answers", || {
            let url = format!("{}/version", kms.api);
            kms.try_get(&url).map(|_| ()).map_err(|e| e.to_string())
        });
        kms
    }
}

/// A running KMS, or ledger, killed on drop.
pub struct Kms {
    child: Process,
    pub api: String,
    /// The same over its Unix socket, where service tokens are accepted.
    pub socket: String,
    pub health: String,
    token: String,
    pub http: HttpClient,
}

impl Kms {
    fn try_get(&self, url: &str) -> Result<Reply, CallError> {
        self.http.call(Call::get(url, Deadline::within(CALL)))
    }

    /// GET of a path of the API, with the operator's token.
    pub fn get(&self, path: &str) -> Reply {
        let bearer = format!("Bearer {}", self.token);
        let url = format!("{}{path}", self.socket);
        let headers = [("Authorization", bearer.as_str())];
        let call = Call::get(&url, Deadline::within(CALL)).headers(&headers);
        self.http
            .call(call)
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    pub fn text(&self, path: &str) -> String {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}");
        String::from_utf8(reply.body).expect("text")
    }

    pub fn post(&self, path: &str, body: &Value, prefer: Option<&str>) -> Reply {
        let bearer = format!("Bearer {}", self.token);
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(prefer.map(|p| ("Prefer", p)));
        let url = format!("{}{path}", self.socket);
        let call = Call::post_json(&url, body.to_string().into_bytes(), Deadline::within(CALL));
        let call = call.headers(&headers);
        self.http
            .call(call)
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// POST that may fail, as it does when the service is killed.
    pub fn try_post(&self, path: &str, body: &Value) -> Result<Reply, CallError> {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("Authorization", bearer.as_str())];
        let url = format!("{}{path}", self.socket);
        let call = Call::post_json(&url, body.to_string().into_bytes(), Deadline::within(CALL));
        self.http.call(call.headers(&headers))
    }

    /// `kill -9`, while other threads still call.
    pub fn kill_now(&self) {
        signal(self.child.id(), "-KILL");
    }

    /// Makes an Ed25519 key for any message; returns its name.
    pub fn key(&self, purpose: &str) -> String {
        let op = ron_proto::OpId::from_random(OsRandom.bytes()).to_string();
        let body = json!({"tenant": "ron", "purpose": purpose, "alg": "ed25519", "op_id": op});
        let made = json(&self.post("/v1/kms/keys", &body, None), 201);
        made["key"].as_str().expect("a key").to_owned()
    }

    pub fn sign(&self, key: &str, message: &str, prefer: Option<&str>) -> Reply {
        let body = json!({"key": key, "message": URL_SAFE_NO_PAD.encode(message)});
        self.post("/v1/kms/sign", &body, prefer)
    }

    /// Whether verification still works.
    pub fn verifies(&self, key: &str, message: &str, signatures: &Value) -> bool {
        let message = URL_SAFE_NO_PAD.encode(message);
        let body = json!({"key": key, "message": message, "signatures": signatures});
        json(&self.post("/v1/kms/verify", &body, None), 200)["ok"] == true
    }

    /// Status and text of `/readyz`.
    pub fn ready(&self) -> (u16, String) {
        let reply = self
            .try_get(&format!("{}/readyz", self.health))
            .expect("answers");
        (reply.status, String::from_utf8(reply.body).expect("text"))
    }

    pub fn metric(&self, line: &str) -> f64 {
        let found = metric(&self.http, &self.health, line);
        found.and_then(|v| v.parse().ok()).unwrap_or(0.0)
    }

    pub fn wait_ready(&self) {
        eventually("ready", || match self.ready() {
            (200, _) => Ok(()),
            (_, text) => Err(text),
        });
    }

    /// SIGTERM; the exit must be clean.
    pub fn stop(mut self) {
        assert_eq!(self.child.stop(), Some(0));
    }
}

/// POST of text; returns the response.
pub fn post_text(http: &HttpClient, url: &str, body: &str) -> Reply {
    let call = Call {
        method: Method::POST,
        body: Some(body.as_bytes().to_vec()),
        content_type: Some("text/plain; charset=utf-8"),
        ..Call::get(url, Deadline::within(CALL))
    };
    http.call(call).unwrap_or_else(|e| panic!("{url}: {e}"))
}
