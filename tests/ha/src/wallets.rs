//! Two wallets over one ledger, whose unresolved keys are in one database.
#![allow(clippy::disallowed_methods)] // the way to the ledger has threads that end with the test

use std::io::{Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ron_http::{Method, Reply};
use ron_ledger::RonLedger;
use ron_service::Running;
use rustix::process::Signal;
use serde_json::{Value, json};
use svc_wallet::SvcWallet;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::contract::{soon, wait_for};
use crate::services::{Caller, private_dir, put, start, stop, wallet_policy};

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
    bank: Caller,
}

impl Rig {
    fn start() -> Self {
        let dir = private_dir();
        let wallet = Caller::new("ron", "svc-wallet");
        put(dir.path(), "ledger.token", wallet.token.as_bytes());
        let policy_key = wallet_policy(dir.path());
        let wallets = wallet.principal(&["ledger:commit", "ledger:read"]);
        Self {
            ledger: start::<RonLedger>(&format!(
                "amnesia = true\n[ledger]\nprojection = false\n{wallets}"
            )),
            dir,
            policy_key,
            bank: Caller::new("default", "bank"),
        }
    }

    /// A wallet that reaches the ledger at a port; `records` are the lines that say where it keeps its records.
    fn wallet(&self, ledger_port: u16, records: &str) -> Running {
        // It holds the ledger for healthy all the time, and takes every request.
        let wallet = start::<SvcWallet>(&format!(
            "amnesia = true\n\
             [ledger]\nurl = \"http://127.0.0.1:{ledger_port}\"\ntoken_file = \"{0}/ledger.token\"\n\
             tries = 1\nsilent_after = \"10s\"\nhangs_after = \"10s\"\n\
             [policy]\ndir = \"{0}\"\npublic_keys = [\"{1}\"]\n\
             [records]\n{records}\n{2}",
            self.dir.path().display(),
            self.policy_key,
            self.bank.principal(&["wallet:read", "wallet:issue"]),
        ));
        wallet.wait_ready(soon()).expect("it gets ready");
        wallet
    }

    fn issue(&self, wallet: &Running, key: &str, amount: u64) -> Reply {
        let body = json!({"to": "a", "asset": "ron", "amount_minor": amount.to_string()});
        self.bank
            .call(wallet, Method::POST, "/v1/issue", Some(key), Some(&body))
    }

    /// Sends a request until it is done: the key makes that safe.
    fn issue_in_the_end(&self, wallet: &Running, key: &str, amount: u64) {
        wait_for("the issue is done", || {
            self.issue(wallet, key, amount).status == 200
        });
    }

    fn ask(&self, wallet: &Running, key: &str) -> Reply {
        self.bank.get(wallet, &format!("/v1/ops/{key}"))
    }

    /// What a wallet says of a key, once its database has answered in time.
    fn outcome(&self, wallet: &Running, key: &str) -> String {
        let mut outcome = None;
        wait_for("the database answers in time", || {
            let reply = self.ask(wallet, key);
            if reply.status != 503 {
                let told = json(&reply);
                outcome = told["outcome"].as_str().map(str::to_owned);
            }
            outcome.is_some()
        });
        outcome.expect("an outcome")
    }

    /// Waits until a wallet says that a key was never used, which only its database can tell.
    fn wait_for_never(&self, wallet: &Running) {
        wait_for("the wallet knows what its database has", || {
            self.ask(wallet, "never").status == 404
        });
    }
}

fn json(reply: &Reply) -> Value {
    let text = String::from_utf8_lossy(&reply.body);
    assert_eq!(reply.status, 200, "{text}");
    serde_json::from_slice(&reply.body).expect("JSON")
}

/// The lines of a configuration for records in a database.
fn records(cluster: &Cluster) -> String {
    format!("url = \"{}\"", cluster.primary.url())
}

/// What one wallet has said of a key, another knows: it is open until the ledger has it or its caller gives it up.
#[test]
fn a_key_that_is_open_at_one_wallet_is_open_at_all() {
    let cluster = Cluster::pair();
    let rig = Rig::start();
    let ledger = rig.ledger.api_addr();
    let way = Way::to(ledger);
    let records = records(&cluster);
    let a = rig.wallet(way.port, &records);
    let b = rig.wallet(ledger.port(), &records);
    rig.issue_in_the_end(&a, "before", 5);
    // The first transaction also connects and makes the tables.
    for wallet in [&a, &b] {
        rig.wait_for_never(wallet);
    }

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
    rig.wait_for_never(&b);

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
    rig.issue_in_the_end(&b, "open", 7);
    assert_eq!(rig.outcome(&b, "open"), "done");
    let (path, empty) = ("/v1/ops/gone/abandon", json!({}));
    let given_up = rig.bank.call(&b, Method::POST, path, None, Some(&empty));
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
        let balance = rig.bank.get(wallet, "/v1/balance?account=a&asset=ron");
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
    cluster.primary.signal(Signal::STOP);
    let records = format!("{}\ndurability = \"storage\"", records(&cluster));
    let a = rig.wallet(way.port, &records);
    let b = rig.wallet(ledger.port(), &records);
    // The ledger has the truth.
    rig.issue_in_the_end(&a, "before", 5);
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
    rig.wait_for_never(&b);
    // It outlives the wallet that recorded it.
    way.set_open(true);
    stop(a);
    let outcome = rig.outcome(&b, "open");
    assert!(["open", "done"].contains(&outcome.as_str()), "{outcome}");
    stop(b);
}
