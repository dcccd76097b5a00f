//! A ron-kms process with a configuration of its own, to be killed and started again.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_http::{Call, CallError, HttpClient, Reply};
use ron_kernel::Deadline;
use ron_tests::tools::{Process, service};
pub use ron_tests::until;
use ron_tests::{free_port, http_client, ron_binary};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Every scope that the callers of these tests need.
const SCOPES: [&str; 8] = [
    "create", "read", "sign", "verify", "rotate", "wrap", "unwrap", "audit",
];

/// A running ron-kms, killed on drop.
pub struct Service {
    pub dir: TempDir,
    /// URL of its Unix socket, where service tokens are accepted.
    pub url: String,
    pub health: String,
    pub http: HttpClient,
    child: Process,
    /// Distinguishes the operation ids of its keys from those of other services.
    salt: u128,
}

/// The token of these tests; a service maps it to the tenant `acme`.
pub fn token() -> String {
    format!("ron_acme_{}", ron_proto::b64::url(&sha256(b"acme")))
}

pub fn op_id(n: u128) -> String {
    uuid::Uuid::from_u128((7 << 76) | (1 << 63) | n).to_string()
}

impl Service {
    /// Starts one with these lines in front of its configuration.
    pub fn start(more: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), more)
    }

    pub fn start_in(dir: TempDir, more: &str) -> Self {
        let (api, health) = (free_port(), free_port());
        let mut text = format!(
            "data_dir = \"{}\"\nbind_addr = \"127.0.0.1:{api}\"\nhealth_addr = \"127.0.0.1:{health}\"\n\
             uds_path = \"{1}/run/api.sock\"\nsigners = 2\n{more}\n",
            dir.path().join("data").display(),
            dir.path().display()
        );
        let scopes = SCOPES.map(|s| format!("\"kms:{s}\"")).join(", ");
        let hash = hex::encode(sha256(token().as_bytes()));
        write!(
            text,
            "[[auth.principals]]\nname = \"acme\"\ntenant = \"acme\"\nsha256 = \"{hash}\"\n\
             scopes = [{scopes}, \"kms:admin\"]\n"
        )
        .unwrap();
        std::fs::write(dir.path().join("ron-kms.toml"), text).unwrap();
        write_private(&dir.path().join("token"), &token());
        let child = run(dir.path());
        let service = Self {
            url: format!("unix:{}/run/api.sock", dir.path().display()),
            dir,
            health: format!("http://127.0.0.1:{health}"),
            http: http_client(),
            child,
            salt: u128::from(api) << 32,
        };
        service.wait_ready();
        service
    }

    pub fn wait_ready(&self) {
        let url = format!("{}/readyz", self.health);
        until("it is ready", || {
            let soon = Deadline::within(Duration::from_secs(5));
            self.http
                .call(Call::get(&url, soon))
                .map_or(0, |r| r.status)
                == 200
        });
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts it again, on the same ports and data.
    pub fn again(&mut self) {
        self.child = run(self.dir.path());
        self.wait_ready();
    }

    /// The text at a public path.
    pub fn get(&self, path: &str) -> String {
        let url = format!("{}:{path}", self.url);
        let by = Deadline::within(Duration::from_secs(20));
        let reply = self.http.call(Call::get(&url, by)).unwrap();
        String::from_utf8(reply.body).unwrap()
    }

    /// POST below `/v1/kms/`; `None` without a response.
    pub fn try_post(&self, path: &str, body: &Value) -> Option<Reply> {
        self.send(path, body).ok()
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        match self.send(path, body) {
            Ok(reply) => reply,
            Err(why) => panic!("no answer to {path}: {why:?}"),
        }
    }

    fn send(&self, path: &str, body: &Value) -> Result<Reply, CallError> {
        let (url, bearer) = (
            format!("{}/v1/kms/{path}", self.url),
            format!("Bearer {}", token()),
        );
        let by = Deadline::within(Duration::from_secs(20));
        let call = Call::post_json(&url, body.to_string().into_bytes(), by);
        self.http.call(call.headers(&[("Authorization", &bearer)]))
    }

    /// Makes a key in the named backend; returns the key's name.
    pub fn create(&self, alg: &str, backend: &str, n: u128) -> String {
        let body = json!({
            "tenant": "acme", "purpose": "tests", "alg": alg, "backend": backend,
            "op_id": op_id(self.salt + n),
        });
        let made = ron_tests::json(&self.post("keys", &body), 201);
        assert_eq!(made["backend"], backend);
        made["key"].as_str().unwrap().to_owned()
    }

    /// The value of a metric line, 0 when it is absent.
    pub fn metric(&self, line: &str) -> u64 {
        let found = ron_tests::metric(&self.http, &self.health, line);
        found.map_or(0, |v| v.parse().unwrap())
    }

    /// `ron kms ...` against it.
    pub fn ron(&self, arguments: &[&str]) -> std::process::Output {
        Command::new(ron_binary())
            .args(["kms", "--url", &self.url, "--token-file"])
            .arg(self.dir.path().join("token"))
            .args(arguments)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }
}

fn run(dir: &Path) -> Process {
    let mut command = service("ron-kms", &dir.join("ron-kms.toml"), [""; 0]);
    Process::start(command.stderr(Stdio::null()))
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> PathBuf {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}
