//! Clients pay through takeovers: two ledgers and two wallets as processes, on a PostgreSQL pair. The ledger that writes is killed or
//! stands still, again and again; every payment is made once, and its caller is told so.
#![cfg(feature = "postgres")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a test waits, and its clients are threads

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ron_client::{Credential, LedgerClient, WalletClient};
use ron_ha::cluster::Cluster;
use ron_ha::contract::wait_for;
use ron_ha::processes::Node;
use ron_ha::services::{Caller, put, wallet_policy};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::Deadline;
use ron_proto::Amount;
use ron_proto::ledger::{Details, Head, RequestKey};
use ron_proto::wallet::IssueMoney;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ha-node");
/// Clients of ron-client, each with an account of its own; another is one of the Python SDK.
const CLIENTS: usize = 3;
const AMOUNT: u64 = 5;
/// Within which a client wants the outcome of a payment.
const PATIENCE: Duration = Duration::from_secs(90);

fn http() -> Arc<HttpClient> {
    Arc::new(HttpClient::new(ClientConfig {
        breaker: None,
        insecure_loopback: true,
        patience: PATIENCE,
        ..ClientConfig::default()
    }))
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(5))
}

/// Two ledgers and two wallets.
struct Fleet {
    ledgers: [Node; 2],
    wallets: [Node; 2],
    token: String,
    /// The ledgers' own state, each of a client of one node.
    heads: [LedgerClient; 2],
    _cluster: Cluster,
}

impl Fleet {
    fn start() -> Self {
        let cluster = Cluster::pair();
        let database = cluster.primary.url();
        let ledgers = [
            Node::new(PROGRAM, "ron-ledger"),
            Node::new(PROGRAM, "ron-ledger"),
        ];
        let wallets = [
            Node::new(PROGRAM, "svc-wallet"),
            Node::new(PROGRAM, "svc-wallet"),
        ];
        let (wallet, bank) = (
            Caller::new("ron", "svc-wallet"),
            Caller::new("default", "bank"),
        );
        let callers = wallet.principal(&["ledger:commit", "ledger:read", "ledger:audit"]);
        for node in &ledgers {
            node.configure(&format!(
                "[log]\nurl = \"{database}\"\nnode = \"{}\"\n[ledger]\nprojection = false\n{callers}",
                node.url
            ));
        }
        let callers = bank.principal(&["wallet:read", "wallet:issue"]);
        for node in &wallets {
            let key = wallet_policy(node.dir.path());
            put(node.dir.path(), "ledger.token", wallet.token.as_bytes());
            node.configure(&format!(
                "[ledger]\nurl = \"{},{}\"\ntoken_file = \"{2}/ledger.token\"\n\
                 [policy]\ndir = \"{2}\"\npublic_keys = [\"{key}\"]\n[records]\nurl = \"{database}\"\n{callers}",
                ledgers[0].url,
                ledgers[1].url,
                node.dir.path().display(),
            ));
        }
        let reads = |node: &Node| {
            let http = Arc::new(HttpClient::new(ClientConfig {
                breaker: None,
                insecure_loopback: true,
                ..ClientConfig::default()
            }));
            LedgerClient::new(&node.url, Credential::bearer(&wallet.token), http)
        };
        let heads = [reads(&ledgers[0]), reads(&ledgers[1])];
        let mut fleet = Self {
            ledgers,
            wallets,
            token: bank.token,
            heads,
            _cluster: cluster,
        };
        fleet.ledgers[0].start();
        wait_for("the first ledger is active", || fleet.active() == Some(0));
        // Checkpoints of both nodes are signed with one key.
        for name in ["note.key", "log.vkey"] {
            let [a, b] = &fleet.ledgers;
            let key =
                fs::read(a.dir.path().join("data").join(name)).expect("the first node made it");
            put(&b.dir.path().join("data"), name, &key);
        }
        fleet.ledgers[1].start();
        fleet.wallets.iter_mut().for_each(Node::start);
        fleet
    }

    fn head(&self, node: usize) -> Option<Head> {
        self.heads[node].head(soon()).ok()
    }

    /// The node that writes.
    fn active(&self) -> Option<usize> {
        (0..2).find(|node| self.head(*node).is_some_and(|head| head.closed.is_none()))
    }

    fn wallet_urls(&self) -> String {
        format!("{}, {}", self.wallets[0].url, self.wallets[1].url)
    }

    /// The node that writes, once the other follows.
    fn active_of_two(&self) -> usize {
        let mut active = None;
        wait_for("a ledger is active, and the other follows", || {
            active = self.active();
            let seqs = [0, 1].map(|node| self.head(node).map(|head| head.seq));
            active.is_some() && seqs.iter().all(Option::is_some)
        });
        active.expect("it was found")
    }

    /// The node that writes is gone for a while. Returns after which time the other one wrote.
    fn disturb(&mut self, kill: bool) -> Duration {
        let active = self.active_of_two();
        let began = Instant::now();
        if kill {
            self.ledgers[active].kill();
        } else {
            self.ledgers[active].signal(Signal::STOP);
        }
        let other = 1 - active;
        wait_for("the other ledger is active", || {
            self.head(other).is_some_and(|head| head.closed.is_none())
        });
        let took = began.elapsed();
        if kill {
            self.ledgers[active].start();
        } else {
            self.ledgers[active].signal(Signal::CONT);
        }
        wait_for("the first ledger is a standby", || {
            self.head(active).is_some_and(|head| head.is_of_standby())
        });
        took
    }

    /// Every process is stopped and started again, one after the other: the standby first, as in an upgrade. With a directory of
    /// programs it is an upgrade to those.
    fn roll(&mut self, to: Option<&Path>) {
        if let Some(to) = to {
            for node in self.ledgers.iter_mut().chain(&mut self.wallets) {
                node.program = to.join(node.name);
                println!("{} is to be {}", node.name, version(&node.program));
            }
        }
        let active = self.active_of_two();
        for node in [1 - active, active] {
            self.ledgers[node].stop();
            self.ledgers[node].start();
            wait_for("the ledger answers again", || self.head(node).is_some());
        }
        self.active_of_two();
        let account = "account-0".parse().expect("an account");
        for wallet in &mut self.wallets {
            wallet.stop();
            wallet.start();
            let client = WalletClient::new(&wallet.url, Credential::bearer(&self.token), http());
            wait_for("the wallet answers again", || {
                client.account(&account, soon()).is_ok()
            });
        }
    }
}

/// What the program says of its version.
fn version(program: &Path) -> String {
    let out = Command::new(program).arg("--version").output();
    let out = out.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// The payments of one client: the sequence of each key in the ledger.
type Paid = BTreeMap<String, u64>;

/// What the clients tell while they pay.
#[derive(Debug, Default)]
struct Progress {
    over: AtomicBool,
    /// Payments that are done, of each client.
    done: [AtomicU64; CLIENTS],
    slowest_ms: AtomicU64,
}

impl Progress {
    fn done(&self) -> [u64; CLIENTS] {
        self.done
            .each_ref()
            .map(|done| done.load(Ordering::Acquire))
    }
}

/// Pays until the test is over; each payment has to end as done.
fn pay(wallet: &WalletClient, number: usize, progress: &Progress) -> Paid {
    let mut paid = Paid::new();
    let request = IssueMoney {
        to: format!("account-{number}").parse().expect("an account"),
        asset: "ron".parse().expect("an asset"),
        amount_minor: Amount(AMOUNT.into()),
        details: Details::default(),
    };
    while !progress.over.load(Ordering::Acquire) {
        let key = format!("rust-{number}-{}", paid.len());
        let began = Instant::now();
        let done = wallet.issue(
            &key.parse().expect("a key"),
            &request,
            Deadline::within(PATIENCE),
        );
        let done = done.unwrap_or_else(|error| panic!("{key}: {error}"));
        let took = began.elapsed().as_millis() as u64;
        progress.slowest_ms.fetch_max(took, Ordering::AcqRel);
        progress.done[number].fetch_add(1, Ordering::AcqRel);
        paid.insert(key, done.receipt.seq);
    }
    paid
}

/// The same with the Python SDK, which is to be stopped by closing its input.
fn python(urls: &str, token: &str) -> Child {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let set = std::env::var_os("RON_TEST_PYTHON").map(PathBuf::from);
    Command::new(set.unwrap_or_else(|| root.join("target/test-venv/bin/python")))
        .arg(root.join("tests/ha/tests/pay.py"))
        .args([urls, &AMOUNT.to_string()])
        .env("PYTHONPATH", root.join("sdk/python/src"))
        .env("RON_TOKEN", token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("scripts/setup.sh installs it")
}

/// `DONE KEY SEQ` for each payment.
fn python_paid(mut child: Child) -> Paid {
    drop(child.stdin.take());
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let lines: Vec<String> = lines.map(|line| line.expect("text")).collect();
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{:?}", lines.last());
    let paid = lines.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let ["done", key, seq] = words[..] else {
            panic!("a payment was not done: {line}");
        };
        (key.to_owned(), seq.parse().expect("a sequence"))
    });
    paid.collect()
}

fn rounds() -> usize {
    let rounds = std::env::var("RON_ROUNDS").ok();
    rounds.map_or(1, |rounds| rounds.parse().expect("RON_ROUNDS is a number"))
}

#[test]
fn clients_pay_through_takeovers() {
    let mut fleet = Fleet::start();
    let progress = Arc::new(Progress::default());
    let payer = |number| {
        let wallet = WalletClient::new(
            &fleet.wallet_urls(),
            Credential::bearer(&fleet.token),
            http(),
        );
        let progress = Arc::clone(&progress);
        std::thread::spawn(move || pay(&wallet, number, &progress))
    };
    let payers: Vec<_> = (0..CLIENTS).map(payer).collect();
    let other = python(&fleet.wallet_urls(), &fleet.token);
    // Payments go on between the takeovers, at the node that has taken over.
    let all_are_paid = || {
        let before = progress.done();
        wait_for("every client is paid again", || {
            progress
                .done()
                .iter()
                .zip(before)
                .all(|(now, before)| *now >= before + 2)
        });
    };

    let (mut active, mut paid_again) = (Vec::new(), Vec::new());
    for round in 0..rounds() {
        for kill in [true, false] {
            all_are_paid();
            let began = Instant::now();
            active.push(fleet.disturb(kill));
            all_are_paid();
            paid_again.push(began.elapsed());
            println!(
                "round {round}: {}; another is active after {:?}, every client was paid twice after {:?}",
                if kill { "killed" } else { "stopped" },
                active[active.len() - 1],
                paid_again[paid_again.len() - 1],
            );
        }
    }
    all_are_paid();
    progress.slowest_ms.store(0, Ordering::Release);
    let newer = std::env::var_os("RON_UPGRADE_TO").filter(|dir| !dir.is_empty());
    fleet.roll(newer.map(PathBuf::from).as_deref());
    all_are_paid();
    let rolled_ms = progress.slowest_ms.load(Ordering::Acquire);
    println!(
        "all four processes were stopped and started again; the slowest payment meanwhile took {rolled_ms} ms"
    );
    progress.over.store(true, Ordering::Release);
    let mut accounts: BTreeMap<String, Paid> = BTreeMap::new();
    accounts.insert("account-python".to_owned(), python_paid(other));
    for (number, payer) in payers.into_iter().enumerate() {
        let paid = payer.join().expect("every payment is done");
        accounts.insert(format!("account-{number}"), paid);
    }

    let mut seqs = BTreeMap::new();
    for (account, paid) in &accounts {
        assert!(!paid.is_empty(), "{account} was never paid");
        let account: ron_proto::Account = account.parse().expect("an account");
        // Both ledgers: what a standby follows is the same.
        for ledger in &fleet.heads {
            let wanted = paid.values().max().copied();
            wait_for("the ledger has the last payment", || {
                ledger.head(soon()).ok().map(|head| head.seq) >= wanted
            });
            let balance = ledger.account(&account, soon()).expect("it is answered");
            let total: u128 = balance
                .balances
                .iter()
                .map(|balance| balance.amount_minor.0)
                .sum();
            assert_eq!(total, u128::from(AMOUNT) * paid.len() as u128, "{account}");
        }
        for (key, seq) in paid {
            let request = RequestKey {
                tenant: "default".parse().expect("a tenant"),
                principal: "bank".parse().expect("a name"),
                key: key.parse().expect("a key"),
            };
            let event = fleet.heads[0]
                .by_key(&request, soon())
                .expect("the ledger has it");
            assert_eq!(
                event.seq, *seq,
                "{key} has one entry, the one that its caller was told"
            );
            assert_eq!(
                seqs.insert(*seq, key.clone()),
                None,
                "two payments are one entry"
            );
        }
    }
    active.sort();
    paid_again.sort();
    let [active, paid_again] =
        [active, paid_again].map(|took| (took[took.len() / 2], took[took.len() - 1]));
    println!(
        "{} payments; another ledger is active after {active:?} (median, worst), clients are paid again after {paid_again:?}; slowest payment {} ms",
        seqs.len(),
        progress.slowest_ms.load(Ordering::Acquire),
    );
}
