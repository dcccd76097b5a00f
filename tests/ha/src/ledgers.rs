//! Two ledgers as services, whose log is in one database: which node writes, and what callers are answered.
#![allow(clippy::disallowed_methods)] // a test waits

use std::fs;
use std::path::PathBuf;

use ron_http::{Method, Reply};
use ron_ledger::RonLedger;
use ron_pg::{PgLogBeat, PgLogOptions, PgLogStore};
use ron_proto::status::{EngineStandbyDoc, LogNodeDoc};
use ron_service::Running;
use ron_tlog::store::{LogBeat as _, LogStore as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, waiter};
use crate::contract::{soon, wait_for};
use crate::services::{Caller, name_a_lost_standby, private_dir, stop, try_start};

/// The nodes' directories, a caller, and the database.
pub struct Rig {
    pub cluster: Cluster,
    pub dirs: [TempDir; 2],
    pub wallet: Caller,
    /// More lines of the nodes' configuration.
    pub more: String,
}

impl Rig {
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            dirs: [private_dir(), private_dir()],
            wallet: Caller::new("ron", "svc-wallet"),
            more: String::new(),
        }
    }

    pub fn key(&self, node: usize) -> PathBuf {
        self.dirs[node].path().join("note.key")
    }

    /// All nodes sign with the key of the first.
    pub fn copy_key(&self, to: usize) {
        fs::copy(self.key(0), self.key(to)).expect("a copy");
    }

    pub fn try_start(&self, node: usize) -> Result<Running, String> {
        // A busy machine gives a sign of life late.
        self.try_start_with(
            node,
            &format!(
                "[log]\nurl = \"{}\"\nnode = \"http://node-{node}\"\n\
                 commit_within = \"1s\"\ntakeover_after = \"10s\"\n",
                self.cluster.primary.url()
            ),
        )
    }

    /// Starts a node whose log is where `log` says; without it in files.
    pub fn try_start_with(&self, node: usize, log: &str) -> Result<Running, String> {
        try_start::<RonLedger>(&format!(
            "data_dir = \"{}\"\n{log}[ledger]\nprojection = false\n{}{}",
            self.dirs[node].path().display(),
            self.more,
            self.wallet
                .principal(&["ledger:commit", "ledger:read", "ledger:audit"]),
        ))
    }

    pub fn start(&self, node: usize) -> Running {
        self.try_start(node).expect("it starts")
    }

    pub fn issue(&self, node: &Running, key: &str) -> Reply {
        let entry = json!({
            "kind": "issue", "tenant": "t", "principal": "p", "key": key,
            "to": "alice", "asset": "ron", "amount_minor": "5",
        });
        let body = json!({"entries": [entry], "linked": false});
        let path = "/v1/ledger/commit";
        self.wallet
            .call(node, Method::POST, path, None, Some(&body))
    }

    /// Sends a request until it is done: the key makes that safe.
    pub fn issue_in_the_end(&self, node: &Running, key: &str) {
        wait_for("the issue is done", || self.issue(node, key).status == 200);
    }

    /// Status and code of an answer, and the node it names.
    fn refusal(&self, node: &Running, key: &str) -> (u16, String, Option<String>) {
        let reply = self.issue(node, key);
        let told: Value = serde_json::from_slice(&reply.body).expect("JSON");
        let code = told["code"].as_str().unwrap_or_default().to_owned();
        let active = told["details"]["active"].as_str().map(str::to_owned);
        (reply.status, code, active)
    }

    pub fn head(&self, node: &Running) -> Value {
        let reply = self.wallet.get(node, "/v1/ledger/head");
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    /// What the node tells operators: its part in the log, on the health port, and its metrics.
    pub fn shown(&self, node: &Running) -> (LogNodeDoc, String) {
        (self.wallet.log_of(node), self.wallet.metrics(node))
    }

    pub fn is_active(&self, node: &Running) -> bool {
        self.head(node).get("closed").is_none()
    }
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
    rig.issue_in_the_end(&one, "k1");
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
    rig.issue_in_the_end(&two, "k2");
    let one = rig.start(0);
    wait_for("the first node follows", || {
        rig.head(&one)["root"] == rig.head(&two)["root"]
    });
    wait_for("operators see both nodes and the database", || {
        let [(one, _), (two, metrics)] = [&one, &two].map(|node| rig.shown(node));
        let standbys = two.engine.map_or_else(Vec::new, |engine| engine.standbys);
        let waited_for =
            |s: &EngineStandbyDoc| s.name == "s1" && s.synchronous && s.behind_bytes.is_some();
        let counted = |line: &str| metrics.lines().any(|found| found == line);
        (one.active, one.epoch, one.entries, one.behind) == (false, 2, 3, 0)
            && one.holder == Some("http://node-1".to_owned())
            && (two.active, two.epoch, two.active_since_ms.is_some()) == (true, 2, true)
            && standbys.iter().all(waited_for)
            && standbys.len() == 1
            && counted("ron_ledger_log_active 1")
            && counted("ron_ledger_log_takeovers_total 1")
            && counted("ron_ledger_log_engine_standbys 1")
            && counted("ron_ledger_log_behind_entries 0")
            && metrics.contains("\nron_ledger_log_engine_oldest_transaction ")
    });
    let named = (503, "not_active".into(), Some("http://node-1".into()));
    wait_for("it knows the other", || rig.refusal(&one, "k3") == named);
    // A standby waits for an entry that it may get, and neither says that there is none: the other may write it.
    for node in [&one, &two] {
        for path in ["assets", "assets/ron", "accounts/alice"] {
            let reply = rig
                .wallet
                .get(node, &format!("/v1/ledger/{path}?min_seq=3"));
            let said = String::from_utf8_lossy(&reply.body);
            assert_eq!(reply.status, 503, "{path}: {said}");
            assert!(said.contains("history_behind"), "{path}: {said}");
        }
    }
    // What a standby does not have may be at the active node, which it names: only that one says 404.
    let id = "tx_00000000000000ff0000000000000001";
    for path in [
        "by-key/t/p/never".to_owned(),
        format!("tx/{id}"),
        format!("tx/{id}/receipt"),
        format!("tx/{id}/reversals"),
        format!("holds/{id}"),
        "epochs/t/e1".to_owned(),
    ] {
        let path = format!("/v1/ledger/{path}");
        let reply = rig.wallet.get(&one, &path);
        let body: Value = serde_json::from_slice(&reply.body).expect("a problem document");
        assert_eq!(
            (reply.status, &body["code"]),
            (503, &json!("not_active")),
            "{path}: {body}"
        );
        assert_eq!(body["details"]["active"], "http://node-1", "{path}");
        assert_eq!(rig.wallet.get(&two, &path).status, 404, "{path}");
    }
    let known = "/v1/ledger/accounts/alice?min_seq=3";
    let beyond = ron_kernel::scoped(2, |n| match n {
        0 => rig.wallet.get(&one, known).status,
        _ => rig.issue(&two, "k4").status,
    });
    assert!([200, 503].contains(&beyond[0]), "{beyond:?}");
    wait_for("the standby has it", || {
        rig.wallet.get(&one, known).status == 200
    });
    let read = |node| rig.wallet.get(node, known).body;
    assert_eq!(read(&one), read(&two));
    stop(one);
    stop(two);
}

/// Without the database's standby nothing is acknowledged and reads go on; afterwards nothing has to be restarted.
#[test]
fn writes_wait_for_the_databases_standby_and_reads_go_on() {
    let mut rig = Rig::new(Cluster::pair());
    let node = rig.start(0);
    wait_for("the node is active", || rig.is_active(&node));
    rig.issue_in_the_end(&node, "before");
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
    let read = rig.wallet.get(&node, "/v1/ledger/accounts/alice");
    assert_eq!(read.status, 200);
    rig.cluster.set_standby(true);
    for n in 0..2 {
        let key = format!("away-{n}");
        rig.issue_in_the_end(&node, &key);
    }
    assert_eq!(rig.head(&node)["seq"], 3, "each key once");
    wait_for("the node is ready without another commit", || {
        node.ready().ready
    });
    name_a_lost_standby(&[&node], &mut rig.cluster);
    stop(node);
}

/// A node without work stands by as soon as another has claimed the ledger, and takes it back when that one gives no sign of life.
#[test]
fn a_node_without_work_sees_that_another_has_the_ledger() {
    let rig = Rig::new(Cluster::pair());
    let node = rig.start(0);
    wait_for("the node is active", || rig.is_active(&node));
    let (conninfo, log) = (rig.cluster.primary.conninfo(), "ron.local/ledger");
    let options = |holder| PgLogOptions::new(&conninfo, "ron_ledger", log, holder);
    let mut other = PgLogStore::new(options("http://node-9#1"), waiter());
    let mut beat = PgLogBeat::new(options("beat"), waiter());
    let seen = other.head(soon()).expect("the head").epoch;
    other.claim(seen, soon()).expect("a claim");
    wait_for("the node stands by", || {
        beat.beat(soon()).expect("a beat");
        rig.head(&node)["closed"]["active"] == "http://node-9"
    });
    wait_for("the other is silent", || rig.is_active(&node));
    rig.issue_in_the_end(&node, "after");
    stop(node);
}

/// What a standby shows while it reads a long log: its balances have every entry up to the head that it names.
#[test]
fn a_standby_that_catches_up_names_no_entry_that_its_books_do_not_have() {
    let rig = Rig::new(Cluster::pair());
    let one = rig.start(0);
    wait_for("the first node is active", || rig.is_active(&one));
    for batch in 0..20 {
        let entry = |n| {
            json!({"kind": "issue", "tenant": "t", "principal": "p", "key": format!("{batch}-{n}"),
                "to": "alice", "asset": "ron", "amount_minor": "1"})
        };
        let entries: Vec<Value> = (0..500).map(entry).collect();
        let body = json!({"entries": entries, "linked": false});
        wait_for("the entries are committed", || {
            let path = "/v1/ledger/commit";
            let reply = rig.wallet.call(&one, Method::POST, path, None, Some(&body));
            reply.status == 200
        });
    }
    rig.copy_key(1);
    let two = rig.start(1);
    let mut seen = 0;
    wait_for("the second node has all", || {
        let seq = rig.head(&two)["seq"].as_u64().expect("a sequence");
        let account = rig.wallet.get(&two, "/v1/ledger/accounts/alice");
        let account: Value = serde_json::from_slice(&account.body).expect("JSON");
        let balance = &account["balances"][0]["amount_minor"];
        let balance: u64 = balance
            .as_str()
            .map_or(0, |amount| amount.parse().expect("a number"));
        assert!(balance >= seq, "{balance} of {seq} entries");
        seen += u64::from(seq > 0 && seq < 10_000);
        seq == 10_000
    });
    println!("{seen} heads were seen before the last");
    stop(two);
    stop(one);
}
