//! Services as processes that are to stop while their database is silent, or while they wait for it to start: each ends at once, and
//! leaves no thread behind.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test waits

mod kms;

use std::fs;
use std::time::{Duration, Instant};

use kms::{HeldLock, Kms, PROGRAM, new_key};
use ron_ha::cluster::Cluster;
use ron_ha::contract::{soon, wait_for};
use ron_ha::processes::Node;
use ron_ha::services::Caller;
use ron_http::{Call, Method};
use ron_proto::kms::SignRequest;
use rustix::process::Signal;
use serde_json::json;

/// The default of `drain_deadline`, and a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Stops a node, which has to end with success.
fn stop_at_once(node: &mut Node) {
    let asked = Instant::now();
    node.stop();
    let took = asked.elapsed();
    assert!(took < AT_ONCE, "{} took {took:?}", node.name);
    println!("{} ended within {took:?}", node.name);
}

/// Requests are under way: two signatures whose leaves are not appended, a key that is not made.
#[test]
fn a_key_service_ends_while_its_database_is_silent() {
    let cluster = Cluster::pair();
    let mut kms = Kms::start(&cluster, "a");
    kms.wait_ready();
    let key = kms.create(1).unwrap();
    let request = SignRequest::message(key, *b"before");
    kms.client().sign(&request, soon()).unwrap();
    cluster.primary.signal(Signal::STOP);
    let clients = [(); 3].map(|()| kms.client());
    std::thread::scope(|scope| {
        let [first, second, third] = clients;
        for client in [first, second] {
            let request = &request;
            scope.spawn(move || client.sign(request, soon()).unwrap_err());
        }
        scope.spawn(move || third.create_key(&new_key(2), soon()).unwrap_err());
        wait_for("three requests are under way", || {
            let shown = kms.get("/metrics").map(|reply| reply.body);
            let shown = String::from_utf8(shown.unwrap_or_default()).unwrap();
            shown.lines().any(|line| line == "ron_kms_http_in_flight 3")
        });
        stop_at_once(&mut kms.node);
    });
    cluster.primary.signal(Signal::CONT);
}

/// What the database has to be told is told.
#[test]
fn a_key_service_with_its_database_writes_that_it_stops() {
    let cluster = Cluster::pair();
    let mut kms = Kms::start(&cluster, "a");
    kms.wait_ready();
    kms.create(1).unwrap();
    let leaves = || {
        let sql = "SELECT size FROM ron_kms.log_head";
        cluster.primary.admin(sql, &[]).int8(0, 0).unwrap()
    };
    let stop = |kms: &mut Kms| {
        let before = leaves();
        stop_at_once(&mut kms.node);
        assert_eq!(leaves(), before + 1, "the stop leaf");
        let said = fs::read_to_string(kms.node.log()).unwrap();
        assert!(!said.contains("stop_leaf_not_written"), "{said}");
    };
    stop(&mut kms);
    kms.node.start();
    kms.wait_ready();
    // As a database that was started again: the next call of each session fails at once.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    cluster.primary.admin(end, &[]);
    stop(&mut kms);
}

#[test]
fn a_key_service_without_requests_ends_while_its_standby_is_away() {
    let cluster = Cluster::pair();
    let mut kms = Kms::start(&cluster, "a");
    kms.wait_ready();
    let key = kms.create(1).unwrap();
    cluster.set_standby(false);
    let request = SignRequest::message(key, *b"away");
    assert!(kms.client().sign(&request, soon()).is_err());
    stop_at_once(&mut kms.node);
    cluster.set_standby(true);
    kms.node.start();
    kms.wait_ready();
    stop_at_once(&mut kms.node);
}

#[test]
fn a_key_service_that_waits_for_its_database_to_start_ends() {
    let cluster = Cluster::pair();
    let mut kms = Kms::start(&cluster, "a");
    kms.wait_ready();
    kms.node.stop();
    // The claim of its log waits for this lock, and the keys are read before.
    let lock = HeldLock::take(&cluster, "LOCK TABLE ron_kms.log_head");
    kms.node.start();
    lock.wait_for_waiter();
    stop_at_once(&mut kms.node);
    let said = fs::read_to_string(kms.node.log()).unwrap();
    assert!(said.contains("stopped before it had started"), "{said}");
}

/// Its note.key is not made before it is known that the log is new.
#[test]
fn a_new_ledger_that_waits_for_its_database_ends() {
    let cluster = Cluster::pair();
    let mut ledger = Node::new(PROGRAM, "ron-ledger");
    ledger.configure(&format!(
        "[log]\nurl = \"{}\"\nnode = \"{}\"\n",
        cluster.primary.url(),
        ledger.url,
    ));
    // The tables are made under it.
    let lock = HeldLock::take(
        &cluster,
        "SELECT pg_advisory_xact_lock(x'726f6e5f6c6f6773'::bigint)",
    );
    ledger.start();
    lock.wait_for_waiter();
    stop_at_once(&mut ledger);
    let said = fs::read_to_string(ledger.log()).unwrap();
    assert!(said.contains("stopped before it had started"), "{said}");
}

/// An entry is not yet under a checkpoint when the database falls silent, so that one is being made as the ledger stops.
#[test]
fn a_ledger_ends_while_its_database_is_silent() {
    let cluster = Cluster::pair();
    let caller = Caller::new("ron", "svc-wallet");
    let mut ledger = Node::new(PROGRAM, "ron-ledger");
    ledger.configure(&format!(
        "[log]\nurl = \"{}\"\nnode = \"{}\"\n[ledger]\nprojection = false\n{}",
        cluster.primary.url(),
        ledger.url,
        caller.principal(&["ledger:commit", "ledger:read"]),
    ));
    ledger.start();
    let entry = |key: u32| {
        let entry = json!({
            "kind": "issue", "tenant": "t", "principal": "p", "key": key.to_string(),
            "to": "alice", "asset": "ron", "amount_minor": "5",
        });
        let body = json!({"entries": [entry], "linked": false});
        caller.http.call(Call {
            method: Method::POST,
            url: &format!("{}/v1/ledger/commit", ledger.url),
            headers: &[("Authorization", &format!("Bearer {}", caller.token))],
            body: Some(body.to_string().into_bytes()),
            content_type: Some("application/json"),
            deadline: soon(),
            idempotent: true,
        })
    };
    wait_for("the ledger is active", || {
        entry(1).is_ok_and(|reply| reply.status == 200)
    });
    assert_eq!(entry(2).unwrap().status, 200);
    cluster.primary.signal(Signal::STOP);
    assert_ne!(entry(3).map_or(0, |reply| reply.status), 200);
    stop_at_once(&mut ledger);
    cluster.primary.signal(Signal::CONT);
}
