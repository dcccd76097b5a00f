//! Failures of database hosts under Patroni and etcd, while clients write to two ledgers: nothing that was acknowledged is lost
//! or done twice, and writes go on without a restart. Prints how long each failure stopped writes.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods
)] // a test may panic and wait

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_ha::apart;
use ron_ha::contract::wait_for;
use ron_ha::patroni::{Hosts, Part, pause};
use ron_http::{Method, Reply};
use ron_kernel::{Clock as _, Deadline, SystemClock};
use ron_ledger::RonLedger;
use ron_service::Running;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use ron_ha::services::{Caller, private_dir, start, stop};

/// Clients that write at one time.
const CLIENTS: usize = 4;
/// How long a host stays away: longer than Patroni's ttl of 20 s.
const AWAY: Duration = Duration::from_secs(30);
/// After this a client has given its request up, and the test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// A failure: its name, and what is done while clients write. It ends with all hosts back.
type Case = (&'static str, fn(&mut Hosts));

const CASES: [Case; 7] = [
    ("the primary's host is killed", |hosts| {
        let primary = hosts.primary();
        hosts.kill(primary, Part::All);
        pause(AWAY);
        hosts.restart(primary);
    }),
    ("the primary's host is stopped and goes on", |hosts| {
        let primary = hosts.primary();
        hosts.signal(primary, Part::All, Signal::STOP);
        pause(AWAY);
        hosts.signal(primary, Part::All, Signal::CONT);
    }),
    ("Patroni of the primary is frozen", |hosts| {
        let primary = hosts.primary();
        hosts.signal(primary, Part::Patroni, Signal::STOP);
        pause(AWAY);
        hosts.signal(primary, Part::Patroni, Signal::CONT);
    }),
    ("the synchronous standby's host is killed", |hosts| {
        let standby = hosts.synchronous();
        hosts.kill(standby, Part::All);
        pause(AWAY);
        hosts.restart(standby);
    }),
    (
        "the synchronous standby's host is stopped and goes on",
        |hosts| {
            let standby = hosts.synchronous();
            hosts.signal(standby, Part::All, Signal::STOP);
            pause(AWAY);
            hosts.signal(standby, Part::All, Signal::CONT);
        },
    ),
    ("etcd loses its majority", |hosts| {
        let primary = hosts.primary();
        let others = others(primary);
        for host in others {
            hosts.kill(host, Part::Etcd);
        }
        pause(AWAY);
        for host in others {
            hosts.restart(host);
        }
    }),
    ("the database is switched over", |hosts| {
        hosts.switch_over();
        pause(AWAY / 3);
    }),
];

/// Failures that need hosts with a network and a disk each.
const CASES_APART: [Case; 5] = [
    (
        "the primary is parted from the other hosts, and clients reach it",
        |hosts| {
            let primary = hosts.primary();
            cut_off(primary, &others(primary));
        },
    ),
    ("the primary is parted from all", |hosts| {
        cut_off_from_all(hosts.primary());
    }),
    ("the synchronous standby is parted from all", |hosts| {
        cut_off_from_all(hosts.synchronous());
    }),
    ("clients are parted from the primary", |hosts| {
        cut_off(hosts.primary(), &[apart::CLIENTS]);
    }),
    ("the disk of the primary's host is full", |hosts| {
        let primary = hosts.primary();
        apart::fill(hosts.disk(primary));
        pause(AWAY);
        apart::empty(hosts.disk(primary));
        // What a service manager does.
        hosts.restart(primary);
    }),
];

fn others(host: usize) -> [usize; 2] {
    [(host + 1) % 3, (host + 2) % 3]
}

/// For a while nothing gets from the host to the others, or back.
fn cut_off(host: usize, others: &[usize]) {
    apart::part(host, others);
    pause(AWAY);
    apart::join(host, others);
}

fn cut_off_from_all(host: usize) {
    let [one, other] = others(host);
    cut_off(host, &[one, other, apart::CLIENTS]);
}

/// Two ledgers over one database.
struct Ledgers {
    dirs: [TempDir; 2],
    nodes: Vec<Running>,
    wallet: Caller,
    url: String,
}

impl Ledgers {
    fn start(hosts: &Hosts) -> Self {
        let mut ledgers = Self {
            dirs: [private_dir(), private_dir()],
            nodes: Vec::new(),
            wallet: Caller::new("ron", "svc-wallet"),
            url: hosts.url(),
        };
        let first = ledgers.start_in(ledgers.dirs[0].path(), 0);
        wait_for("the first node is active", || ledgers.is_active(&first));
        ledgers.copy_key(ledgers.dirs[1].path());
        let second = ledgers.start_in(ledgers.dirs[1].path(), 1);
        ledgers.nodes = vec![first, second];
        ledgers
    }

    /// All nodes sign with the key of the first.
    fn copy_key(&self, to: &Path) {
        let key = self.dirs[0].path().join("note.key");
        fs::copy(key, to.join("note.key")).expect("a copy");
    }

    fn start_in(&self, dir: &Path, node: usize) -> Running {
        start::<RonLedger>(&format!(
            "data_dir = \"{}\"\n[log]\nurl = \"{}\"\nnode = \"http://node-{node}\"\n\
             [ledger]\nprojection = false\n{}",
            dir.display(),
            self.url,
            self.wallet
                .principal(&["ledger:commit", "ledger:read", "ledger:audit"]),
        ))
    }

    fn head(&self, node: &Running) -> Value {
        let reply = self.wallet.get(node, "/v1/ledger/head");
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    fn is_active(&self, node: &Running) -> bool {
        self.head(node).get("closed").is_none()
    }

    fn issue(&self, node: &Running, account: &str, key: &str) -> Reply {
        let entry = json!({
            "kind": "issue", "tenant": "t", "principal": "p", "key": key,
            "to": account, "asset": "ron", "amount_minor": "1",
        });
        let body = json!({"entries": [entry], "linked": false});
        let path = "/v1/ledger/commit";
        self.wallet
            .call(node, Method::POST, path, None, Some(&body))
    }

    /// Sends a request to the nodes in turn until it is done: the key makes that safe. Returns its answer.
    fn issue_in_the_end(&self, account: &str, key: &str, at: &mut usize) -> Vec<u8> {
        let give_up = Deadline::within(PATIENCE);
        loop {
            let node = &self.nodes[*at % self.nodes.len()];
            let reply = self.issue(node, account, key);
            if reply.status == 200 {
                return reply.body;
            }
            let said = String::from_utf8_lossy(&reply.body);
            let is_known = [429, 503, 504].contains(&reply.status);
            assert!(
                is_known && !give_up.expired(),
                "{key} was not done within {PATIENCE:?}: {} {said}",
                reply.status
            );
            *at += 1;
            pause(Duration::from_millis(50));
        }
    }

    fn balance(&self, node: &Running, account: &str) -> Option<u64> {
        let path = format!("/v1/ledger/accounts/{account}");
        let reply = self.wallet.get(node, &path);
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let amount = told["balances"][0]["available_minor"].as_str()?;
        Some(amount.parse().expect("a number"))
    }
}

/// What clients were answered.
#[derive(Default)]
struct Acknowledged {
    /// Answers by account and key.
    answers: BTreeMap<(String, String), Vec<u8>>,
    at: Vec<Instant>,
}

impl Acknowledged {
    /// The longest time without an answer that ended after `from`.
    fn longest_pause(&self, from: Instant) -> Duration {
        let mut at = self.at.clone();
        at.sort();
        let pairs = at.windows(2).filter(|pair| pair[1] > from);
        pairs
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or_default()
    }
}

/// Clients write while `fault` runs, and for some seconds before and after.
fn under_load(
    ledgers: &Ledgers,
    round: &str,
    fault: impl FnOnce() + Send,
) -> (Acknowledged, Instant) {
    let acknowledged = Mutex::new(Acknowledged::default());
    let is_over = AtomicBool::new(false);
    let begun = std::thread::scope(|scope| {
        let (acknowledged, is_over) = (&acknowledged, &is_over);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let (account, mut at) = (format!("{round}-{client}"), 0);
                    for n in 0.. {
                        if is_over.load(Ordering::SeqCst) {
                            return;
                        }
                        let key = format!("{account}-{n}");
                        let answer = ledgers.issue_in_the_end(&account, &key, &mut at);
                        let mut acknowledged = acknowledged.lock().unwrap();
                        acknowledged.at.push(SystemClock.now());
                        acknowledged.answers.insert((account.clone(), key), answer);
                    }
                })
            })
            .collect();
        pause(Duration::from_secs(3));
        let begun = SystemClock.now();
        fault();
        // A client ends with its request done.
        pause(Duration::from_secs(3));
        is_over.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().expect("a client");
        }
        begun
    });
    (acknowledged.into_inner().unwrap(), begun)
}

/// What stays the same of an answer: a receipt that is made later proves its entry in a longer log.
fn place(answer: &[u8]) -> Value {
    let told: Value = serde_json::from_slice(answer).expect("JSON");
    let result = &told["results"][0];
    let place = json!([result["outcome"], result["seq"], result["txid"]]);
    assert!(place[1].is_u64() && place[2].is_string(), "{told}");
    place
}

/// A request that is sent again has its first place, and every account has as much as was acknowledged: at both nodes, and at a
/// new one, which reads all from the database.
fn check(ledgers: &Ledgers, acknowledged: &Acknowledged) {
    let mut at = 0;
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for ((account, key), answer) in &acknowledged.answers {
        let again = ledgers.issue_in_the_end(account, key, &mut at);
        assert_eq!(place(&again), place(answer), "{key}");
        *sums.entry(account).or_default() += 1;
    }
    let dir = private_dir();
    ledgers.copy_key(dir.path());
    let fresh = ledgers.start_in(dir.path(), 9);
    for node in ledgers.nodes.iter().chain([&fresh]) {
        // A standby's head is ahead of its books while it catches up.
        wait_for("the node has what was acknowledged, once", || {
            let of = |account: &&str| ledgers.balance(node, account);
            sums.iter().all(|(account, sum)| of(account) == Some(*sum))
        });
    }
    let roots = ledgers.nodes.iter().chain([&fresh]);
    let roots: BTreeSet<String> = roots
        .map(|node| ledgers.head(node)["root"].to_string())
        .collect();
    assert_eq!(roots.len(), 1, "{roots:?}");
    stop(fresh);
}

fn number(name: &str, default: usize) -> usize {
    let set = std::env::var(name).ok().filter(|text| !text.is_empty());
    set.map_or(default, |text| text.parse().expect("a number"))
}

/// The rounds of all runs, in a file if there is one: a line for each, with the acknowledged writes, the time in which none was, and the case.
struct Record {
    file: Option<PathBuf>,
    lines: Vec<(u64, f64, String)>,
}

impl Record {
    fn open() -> Self {
        let set = std::env::var_os("RON_HA_RECORD").filter(|path| !path.is_empty());
        let file = set.map(PathBuf::from);
        let text = file
            .as_deref()
            .map(|file| fs::read_to_string(file).unwrap_or_default());
        let line = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let mut next = || words.next().expect("a word");
            let (acknowledged, stopped) = (next(), next());
            let numbers = (acknowledged.parse(), stopped.parse());
            let (Ok(acknowledged), Ok(stopped)) = numbers else {
                panic!("no line of a record: {line}");
            };
            (acknowledged, stopped, next().to_owned())
        };
        let lines = text
            .as_deref()
            .unwrap_or_default()
            .lines()
            .map(line)
            .collect();
        Self { file, lines }
    }

    fn rounds(&self, case: &str) -> usize {
        self.lines.iter().filter(|line| line.2 == case).count()
    }

    fn add(&mut self, case: &str, acknowledged: usize, stopped: Duration) {
        let line = (acknowledged as u64, stopped.as_secs_f64(), case.to_owned());
        if let Some(file) = &self.file {
            let file = fs::File::options().create(true).append(true).open(file);
            writeln!(file.expect("a file"), "{} {:.1} {}", line.0, line.1, line.2).expect("a disk");
        }
        self.lines.push(line);
    }

    fn print(&self) {
        let cases: BTreeSet<&str> = self.lines.iter().map(|line| line.2.as_str()).collect();
        for case in cases {
            let lines = self.lines.iter().filter(|line| line.2 == case);
            let acknowledged: u64 = lines.clone().map(|line| line.0).sum();
            let mut stopped: Vec<f64> = lines.map(|line| line.1).collect();
            stopped.sort_by(f64::total_cmp);
            println!(
                "{case}: {} rounds, {acknowledged} acknowledged, writes stopped for {:.1} s (median; worst {:.1} s)",
                stopped.len(),
                stopped[stopped.len() / 2],
                stopped[stopped.len() - 1]
            );
        }
        let all: u64 = self.lines.iter().map(|line| line.0).sum();
        println!("{all} acknowledged in all, 0 lost, 0 doubled");
    }
}

/// Carries the cases out, round by round, those left out that the record has.
fn all_rounds(start: fn() -> Hosts, cases: &[Case]) {
    let rounds = number("RON_HA_ROUNDS", 1);
    let only = std::env::var("RON_HA_CASES").unwrap_or_default();
    let mut record = Record::open();
    let is_due = |record: &Record, name: &str, round: usize| {
        name.contains(&only) && record.rounds(name) <= round
    };
    if !cases
        .iter()
        .any(|(name, _)| is_due(&record, name, rounds - 1))
    {
        println!("nothing is left to do here: no such case, or the record has its rounds");
        return;
    }
    let mut hosts = start();
    let ledgers = Ledgers::start(&hosts);
    for round in 0..rounds {
        for (at, (name, fault)) in cases.iter().enumerate() {
            if !is_due(&record, name, round) {
                continue;
            }
            hosts.wait_until_whole();
            let (acknowledged, from) = under_load(&ledgers, &format!("r{round}-{at}"), || {
                fault(&mut hosts);
                hosts.wait_until_whole();
            });
            let stopped = acknowledged.longest_pause(from);
            println!(
                "{name}, round {}: {} acknowledged, writes stopped for {:.1} s",
                round + 1,
                acknowledged.answers.len(),
                stopped.as_secs_f64()
            );
            assert!(!acknowledged.answers.is_empty(), "nothing was acknowledged");
            check(&ledgers, &acknowledged);
            record.add(name, acknowledged.answers.len(), stopped);
        }
    }
    record.print();
    for node in ledgers.nodes {
        stop(node);
    }
}

#[test]
#[ignore = "minutes; run it with `cargo xtask ha-failover`"]
fn nothing_acknowledged_is_lost_or_doubled_when_database_hosts_fail() {
    all_rounds(Hosts::start, &CASES);
}

#[test]
#[ignore = "minutes; run it with `cargo xtask ha-failover`"]
fn nothing_acknowledged_is_lost_or_doubled_when_the_network_parts_or_a_disk_is_full() {
    const NAME: &str =
        "nothing_acknowledged_is_lost_or_doubled_when_the_network_parts_or_a_disk_is_full";
    if apart::is_inside(NAME) {
        all_rounds(Hosts::start_apart, &CASES_APART);
    }
}
