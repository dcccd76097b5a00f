//! KMS, issuer, ledger and wallet as processes of their own, to be stopped, killed and restarted
//! one by one.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::tools::{self, Process};
use crate::{
    CALM, base_port, has_keys, http_client, metric, ok, ron_binary, ron_on, takes_passports,
    unhurried, until,
};
use ron_client::{Credential, WalletClient};
use ron_http::{Call, CallError, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use serde_json::{Value, json};
use tempfile::TempDir;

const NEEDED: [(&str, u16); 4] = [
    ("ron-kms", 0),
    ("svc-passport", 1),
    ("ron-ledger", 2),
    ("svc-wallet", 3),
];

/// The four services, each a process of its own, killed on drop.
pub struct Rig {
    pub dir: TempDir,
    base: u16,
    pub children: BTreeMap<&'static str, Process>,
    pub http: HttpClient,
    pub token: String,
    /// Environment of the ledger.
    ledger_env: Vec<(&'static str, PathBuf)>,
    /// Settings of the wallet.
    pub wallet_set: Vec<&'static str>,
    /// Requests that were refused temporarily and repeated.
    again: AtomicU64,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let again = self.again.load(Ordering::Relaxed);
        println!("{again} requests were repeated");
    }
}

impl Rig {
    pub fn start() -> Self {
        Self::start_with(|_| Vec::new())
    }

    /// The same; `env` returns the ledger's environment for the data directory.
    pub fn start_with(env: impl FnOnce(&Path) -> Vec<(&'static str, PathBuf)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger_env = env(dir.path());
        let base = base_port();
        ok(&ron_on(
            dir.path(),
            &["init", "--base-port", &base.to_string()],
        ));
        let mut rig = Self {
            dir,
            base,
            children: BTreeMap::new(),
            http: http_client(),
            token: String::new(),
            ledger_env,
            wallet_set: Vec::new(),
            again: AtomicU64::new(0),
        };
        for (name, _) in NEEDED {
            rig.run(name);
        }
        for (name, _) in NEEDED {
            rig.wait_ready(name);
        }
        let mut made = rig.ask_for_token();
        // On a busy machine the issuer may be late; a retry costs nothing.
        for _ in 0..5 {
            if made.status.success() {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
            made = rig.ask_for_token();
        }
        ok(&made).trim().clone_into(&mut rig.token);
        rig
    }

    fn ask_for_token(&self) -> std::process::Output {
        let args = ["token", "--audience", "svc-wallet", "--ttl", "1h"];
        ron_on(self.dir.path(), &args)
    }

    pub fn run(&mut self, name: &'static str) {
        let mut command = Command::new(ron_binary().with_file_name(name));
        if name == "svc-wallet" {
            let set = self.wallet_set.iter().flat_map(|pair| ["--set", pair]);
            command.args(set);
        }
        let child = unhurried(&mut command)
            .arg("--config")
            .arg(self.dir.path().join(name).join("config.toml"))
            .args(["--set", "log.level=error"])
            .envs(if name == "ron-ledger" {
                self.ledger_env.clone()
            } else {
                Vec::new()
            })
            .stdout(Stdio::null())
            .stderr(self.errors(name))
            .spawn()
            .unwrap();
        self.children.insert(name, Process(child));
    }

    /// Where a program's log lines go: to the test's own output, or to a file where the test reads
    /// them.
    fn errors(&self, name: &str) -> Stdio {
        if name != "ron-ledger" || self.ledger_env.is_empty() {
            return Stdio::inherit();
        }
        let path = self.ledger_log();
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().into()
    }

    /// The ledger's log lines, when it has an environment of its own.
    pub fn ledger_log(&self) -> PathBuf {
        self.dir.path().join("ron-ledger.log")
    }

    pub fn kill(&mut self, name: &'static str) {
        let mut child = self.children.remove(name).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn signal(&self, name: &str, signal: &str) {
        tools::signal(self.children[name].id(), signal);
    }

    pub fn port(&self, name: &str) -> u16 {
        let at = NEEDED.iter().find(|(n, _)| *n == name).unwrap().1;
        // The order of services in a fleet's ports.
        self.base + 10 * at
    }

    fn readyz(&self, name: &str) -> Result<Reply, CallError> {
        let url = format!("http://127.0.0.1:{}/readyz", self.port(name) + 5);
        let by = Deadline::within(Duration::from_secs(2));
        self.http.call(Call::get(&url, by))
    }

    /// Waits until it is ready and accepts passports.
    pub fn wait_ready(&self, name: &str) {
        self.wait(name, "ready", Duration::from_secs(30), takes_passports);
    }

    /// Waits until it reports that it drains.
    pub fn wait_drain(&self, name: &str) {
        self.wait(name, "draining", Duration::from_secs(30), |reply| {
            String::from_utf8_lossy(&reply.body).contains("\"draining\"")
        });
    }

    pub fn wait_status(&self, name: &str, status: u16, at_most: Duration) -> Duration {
        let what = status.to_string();
        self.wait(name, &what, at_most, |reply| reply.status == status)
    }

    /// Waits until nothing but `parts` is missing, also not the keys of its issuer.
    pub fn wait_without(&self, name: &str, parts: &[&str]) {
        let what = format!("ready but for {parts:?}");
        self.wait(name, &what, Duration::from_secs(30), |reply| {
            let doc: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
            doc["missing"] == json!(parts) && has_keys(&doc)
        });
    }

    fn wait(
        &self,
        name: &str,
        what: &str,
        at_most: Duration,
        wanted: impl Fn(&Reply) -> bool,
    ) -> Duration {
        let began = Instant::now();
        loop {
            let answer = self.readyz(name);
            if answer.as_ref().is_ok_and(&wanted) {
                break;
            }
            let said = answer.map(|reply| String::from_utf8_lossy(&reply.body).into_owned());
            assert!(
                began.elapsed() < at_most,
                "{name} is not {what} within {at_most:?}: {said:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    }

    pub fn call(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Reply, CallError> {
        let url = format!("http://127.0.0.1:{}{path}", self.port("svc-wallet"));
        let bearer = format!("Bearer {}", self.token);
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(key.map(|k| ("Idempotency-Key", k)));
        self.http.call(Call {
            method,
            url: &url,
            headers: &headers,
            body: body.map(|b| b.to_string().into_bytes()),
            content_type: body.map(|_| "application/json"),
            deadline: Deadline::within(Duration::from_secs(10)),
            idempotent: false,
        })
    }

    pub fn issue(&self, key: &str, to: &str, n: u64) -> Result<Reply, CallError> {
        let body = json!({"to": to, "asset": "ron", "amount_minor": n.to_string()});
        self.call(Method::POST, "/v1/issue", Some(key), Some(&body))
    }

    /// Repeats a call that is refused while the ledger does not answer, as the response says. Each
    /// repetition is counted.
    pub fn patiently(&self, call: impl Fn() -> Reply) -> Reply {
        let began = Instant::now();
        loop {
            let reply = call();
            let again = reply.status == 429 || code(&reply) == "retry_later";
            if !again || began.elapsed() > Duration::from_secs(20) {
                return reply;
            }
            self.again.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a phase without faults; see [`Rig::was_calm`].
    pub fn calm(&self) {
        self.again.store(0, Ordering::Relaxed);
    }

    /// Fails when more than a few requests were repeated since [`Rig::calm`]: otherwise
    /// [`Rig::patiently`] would hide a burst of refusals in a phase without faults.
    pub fn was_calm(&self) {
        let again = self.again.load(Ordering::Relaxed);
        assert!(again <= CALM, "{again} requests were repeated");
    }

    /// Waits until the wallet's feed has copied everything up to this response, the ledger's last.
    pub fn wait_copied(&self, answer: &Reply) {
        let made: Value = serde_json::from_slice(&answer.body).unwrap();
        until("the feed copies the answer", || {
            Some(self.wallet_metric("svc_wallet_feed_seq ")) == made["receipt"]["seq"].as_u64()
        });
    }

    /// A client of the wallet, with the rig's token.
    pub fn wallet(&self) -> WalletClient {
        WalletClient::new(
            &format!("http://127.0.0.1:{}", self.port("svc-wallet")),
            Credential::bearer(&self.token),
            Arc::new(http_client()),
        )
    }

    /// The value of a metric of the wallet, 0 when it is absent.
    pub fn wallet_metric(&self, line: &str) -> u64 {
        let health = format!("http://127.0.0.1:{}", self.port("svc-wallet") + 5);
        metric(&self.http, &health, line).map_or(0, |value| value.parse().unwrap())
    }

    pub fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, None, None).unwrap()
    }

    /// Gives a key up.
    pub fn abandon(&self, key: &str) -> Reply {
        let path = format!("/v1/ops/{key}/abandon");
        self.call(Method::POST, &path, None, Some(&json!({})))
            .unwrap()
    }

    pub fn balance(&self, account: &str) -> Value {
        let reply =
            self.patiently(|| self.get(&format!("/v1/balance?account={account}&asset=ron")));
        assert_eq!(
            reply.status,
            200,
            "{}",
            String::from_utf8_lossy(&reply.body)
        );
        serde_json::from_slice(&reply.body).unwrap()
    }
}

/// The code of a problem document.
pub fn code(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    body["code"].as_str().unwrap_or("").to_owned()
}
