//! Two wallets over one ledger, whose unresolved keys are in one database.
#![allow(clippy::disallowed_methods)] // the way to the ledger has threads that end with the test

use std::io::{Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use ron_auth::service_token;
use ron_crypto::sign::Ed25519Key;
use ron_http::{Call, ClientConfig, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_ledger::RonLedger;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::{b64, jcs};
use ron_service::{Config, Parts, Running, Service};
use rustix::process::Signal;
use serde_json::{Value, json};
use svc_wallet::SvcWallet;
use tempfile::TempDir;

use crate::cluster::{Cluster, wait_for};
use crate::contract::soon;

/// A way to a server that holds back what it carries while it is closed.
struct Way {
    port: u16,
    is_open: Arc<AtomicBool>,
}

impl Way {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let is_open = Arc::new(AtomicBool::new(true));
        let open = Arc::clone(&is_open);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let copies = (client.try_clone(), server.try_clone());
                let (Ok(client_too), Ok(server_too)) = copies else {
                    continue;
                };
                let (there, back) = (Arc::clone(&open), Arc::clone(&open));
                thread::spawn(move || pass(client, server, &there));
                thread::spawn(move || pass(server_too, client_too, &back));
            }
        });
        Self { port, is_open }
    }

    fn set_open(&self, open: bool) {
        self.is_open.store(open, Ordering::Release);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_open: &AtomicBool) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length) = from.read(&mut bytes) {
        while !is_open.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        if length == 0 || to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Half::Both), to.shutdown(Half::Both)); // one of them may be closed
}

/// The ledger, wallets, and a caller of theirs.
struct Rig {
    dir: TempDir,
    ledger: Running,
    policy_key: String,
    token: String,
    http: HttpClient,
}

fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::write(&path, bytes).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// A caller with a service token; a service itself is of the tenant `ron`.
fn principal(tenant: &str, name: &str, token: &str, scopes: &[&str]) -> String {
    let hash = service_token::hash(token);
    format!(
        "[[auth.principals]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\nscopes = {scopes:?}\n"
    )
}

fn start<S: Service>(more: &str) -> Running {
    let text = format!("amnesia = true\ninsecure_loopback = true\n{more}");
    let config = Config::from_toml(S::TABLE, Path::new("ha/config.toml"), &text);
    let config = config.unwrap_or_else(|problems| panic!("{problems:?}"));
    let parts = Parts::ephemeral(S::TABLE.service).expect("free ports");
    ron_service::start::<S>(config, parts).expect("it starts")
}

impl Rig {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("its mode");
        let wallet = service_token::generate("svc-wallet", &[1; 32]);
        put(dir.path(), "ledger.token", wallet.as_bytes());
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
        put(dir.path(), "wallet.json", &bytes);
        let sig = ron_service::signed_policy::signature_bytes(&sig).expect("a document");
        put(dir.path(), "wallet.json.sig", &sig);
        let scopes = ["ledger:commit", "ledger:read"];
        let wallets = principal("ron", "svc-wallet", &wallet, &scopes);
        Self {
            ledger: start::<RonLedger>(&format!("[ledger]\nprojection = false\n{wallets}")),
            dir,
            policy_key: b64::url(&key.public()),
            token: service_token::generate("bank", &[2; 32]),
            http: HttpClient::new(ClientConfig {
                breaker: None,
                insecure_loopback: true,
                ..ClientConfig::default()
            }),
        }
    }

    /// A wallet that reaches the ledger at a port and keeps its records in a database.
    fn wallet(&self, ledger_port: u16, database: &str) -> Running {
        let scopes = ["wallet:read", "wallet:issue"];
        // It holds the ledger for healthy all the time, and takes every request.
        let wallet = start::<SvcWallet>(&format!(
            "[ledger]\nurl = \"http://127.0.0.1:{ledger_port}\"\ntoken_file = \"{0}/ledger.token\"\n\
             tries = 1\nsilent_after = \"10s\"\nhangs_after = \"10s\"\n\
             [policy]\ndir = \"{0}\"\npublic_keys = [\"{1}\"]\n\
             [records]\nurl = \"{database}\"\n{2}",
            self.dir.path().display(),
            self.policy_key,
            principal("default", "bank", &self.token, &scopes),
        ));
        wallet.wait_ready(soon()).expect("it gets ready");
        wallet
    }

    fn call(
        &self,
        wallet: &Running,
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
            url: &format!("{}{path}", wallet.api_url()),
            headers: &headers,
            body: body.map(|body| body.to_string().into_bytes()),
            content_type: body.map(|_| "application/json"),
            deadline: Deadline::within(Duration::from_secs(60)),
            idempotent: false,
        });
        called.expect("the wallet answers")
    }

    fn issue(&self, wallet: &Running, key: &str, amount: u64) -> Reply {
        let body = json!({"to": "a", "asset": "ron", "amount_minor": amount.to_string()});
        self.call(wallet, Method::POST, "/v1/issue", Some(key), Some(&body))
    }

    fn ask(&self, wallet: &Running, key: &str) -> Reply {
        self.call(wallet, Method::GET, &format!("/v1/ops/{key}"), None, None)
    }

    fn outcome(&self, wallet: &Running, key: &str) -> String {
        let told = json(&self.ask(wallet, key));
        told["outcome"].as_str().expect("an outcome").to_owned()
    }
}

fn json(reply: &Reply) -> Value {
    let text = String::from_utf8_lossy(&reply.body);
    assert_eq!(reply.status, 200, "{text}");
    serde_json::from_slice(&reply.body).expect("JSON")
}

fn stop(mut wallet: Running) {
    let report = wallet.drain(Duration::from_secs(30));
    assert!(report.stragglers.is_empty(), "{:?}", report.stragglers);
}

/// What one wallet has said of a key, another knows: it is open until the ledger has it or its caller gives it up.
#[test]
fn a_key_that_is_open_at_one_wallet_is_open_at_all() {
    let cluster = Cluster::pair();
    let rig = Rig::start();
    let ledger = rig.ledger.api_addr();
    let way = Way::to(ledger);
    let database = format!(
        "postgresql://ron@127.0.0.1:{}/postgres",
        cluster.primary.port
    );
    let a = rig.wallet(way.port, &database);
    let b = rig.wallet(ledger.port(), &database);
    assert_eq!(rig.issue(&a, "before", 5).status, 200);

    way.set_open(false);
    let keys = ["open", "gone"];
    let unknown = ron_kernel::scoped(2, |at| rig.issue(&a, keys[at], 7));
    for (key, reply) in keys.iter().zip(&unknown) {
        let text = String::from_utf8_lossy(&reply.body);
        let place = format!("/v1/ops/{key}");
        assert_eq!(reply.status, 504, "{text}");
        assert_eq!(reply.header("location"), Some(place.as_str()), "{text}");
    }
    for _ in 0..2 {
        for key in keys {
            assert_eq!(rig.outcome(&b, key), "open", "asking gives nothing up");
        }
    }
    assert_eq!(rig.ask(&b, "never").status, 404);

    // Without its standby the database may not be the one that has the newest records.
    cluster.set_standby(false);
    let silent = rig.ask(&b, "never");
    assert_eq!(
        silent.status,
        503,
        "{}",
        String::from_utf8_lossy(&silent.body)
    );
    assert_eq!(rig.outcome(&b, "open"), "open");
    cluster.set_standby(true);

    // Sent again, and given up, at the other wallet.
    assert_eq!(rig.issue(&b, "open", 7).status, 200);
    assert_eq!(rig.outcome(&b, "open"), "done");
    let given_up = rig.call(
        &b,
        Method::POST,
        "/v1/ops/gone/abandon",
        None,
        Some(&json!({})),
    );
    assert_eq!(json(&given_up)["outcome"], "refused");

    // What the first wallet has sent arrives late, and changes nothing.
    way.set_open(true);
    for wallet in [&a, &b] {
        // Until the first reaches the ledger again, it says that they are open, or nothing (503).
        for (key, outcome) in [("open", "done"), ("gone", "refused")] {
            wait_for("the wallet has asked the ledger", || {
                let reply = rig.ask(wallet, key);
                if reply.status == 503 {
                    return false;
                }
                let told = json(&reply);
                let told = told["outcome"].as_str().expect("an outcome");
                assert!(told == outcome || told == "open", "{key}: {told}");
                told == outcome
            });
        }
        let balance = rig.call(
            wallet,
            Method::GET,
            "/v1/balance?account=a&asset=ron",
            None,
            None,
        );
        assert_eq!(json(&balance)["amount_minor"], "12");
    }
    let left = "SELECT count(*) FROM svc_wallet.unresolved";
    wait_for("records of keys with an outcome are deleted", || {
        cluster.primary.admin(left, &[]).int8(0, 0) == Ok(0)
    });
    stop(a);
    stop(b);
}

/// A database that is away at the start and later: reads of what is known go on, nothing is guessed, nothing has to be restarted.
#[test]
fn a_wallet_goes_on_without_its_database() {
    let cluster = Cluster::alone();
    let rig = Rig::start();
    let ledger = rig.ledger.api_addr();
    let way = Way::to(ledger);
    let database = format!(
        "postgresql://ron@127.0.0.1:{}/postgres",
        cluster.primary.port
    );
    cluster.primary.signal(Signal::STOP);
    let options = format!("{database}\"\ndurability = \"storage");
    let a = rig.wallet(way.port, &options);
    let b = rig.wallet(ledger.port(), &options);
    assert_eq!(
        rig.issue(&a, "before", 5).status,
        200,
        "the ledger has the truth"
    );
    assert_eq!(rig.outcome(&b, "before"), "done");
    assert_eq!(
        rig.ask(&b, "never").status,
        503,
        "never 404 while it is away"
    );

    way.set_open(false);
    let unknown = rig.issue(&a, "open", 7);
    assert_eq!(unknown.status, 504);
    assert_eq!(unknown.header("location"), None, "it is not recorded");
    cluster.primary.signal(Signal::CONT);
    // The record follows.
    wait_for("the other wallet knows the key", || {
        rig.ask(&b, "open").status == 200
    });
    assert_eq!(rig.outcome(&b, "open"), "open");
    assert_eq!(rig.ask(&b, "never").status, 404);
    // It outlives the wallet that recorded it.
    way.set_open(true);
    stop(a);
    let outcome = rig.outcome(&b, "open");
    assert!(["open", "done"].contains(&outcome.as_str()), "{outcome}");
    stop(b);
}
