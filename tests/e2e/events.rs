//! `ron events`: what happened in a fleet, from the services' health ports.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ron_tests::processes::Rig;
use ron_tests::tools::signal;
use ron_tests::{Fleet, SERVICES, ok, ron_binary, until};
use serde_json::{Value, json};

/// The lines of `ron events --json`.
fn events(fleet: &Fleet) -> Vec<Value> {
    let text = ok(&fleet.ron(&["events", "--json"]));
    let lines = text.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .expect("a document per line")
}

fn has(events: &[Value], service: &str, kind: &str, reason: Option<&str>) -> bool {
    let found = |event: &&Value| event["service"] == service && event["kind"] == kind;
    let mut found = events.iter().filter(found);
    found.any(|event| reason.is_none_or(|reason| event["reason"] == reason))
}

/// A `ron events --follow` and what it prints.
struct Follower(Child, Receiver<Value>);

impl Follower {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(ron_binary())
            .args(["events", "--follow", "--json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = tx.send(serde_json::from_str(&line).expect("a document"));
            }
        });
        Self(child, lines)
    }

    /// Waits for an event of each of the services.
    fn wait_for(&self, services: &[&str], kind: &str, reason: Option<&str>) {
        self.wait_until(&format!("{kind} of {services:?}"), |seen| {
            services.iter().all(|s| has(seen, s, kind, reason))
        });
    }

    /// Reads further events until those that came since this call are `enough`.
    fn wait_until(&self, what: &str, enough: impl Fn(&[Value]) -> bool) {
        let mut seen = Vec::new();
        while !enough(&seen) {
            let next = self.1.recv_timeout(Duration::from_secs(60));
            seen.push(next.unwrap_or_else(|e| panic!("{what}: {e}: {seen:?}")));
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_fleet_reports_what_happened_in_it() {
    let mut fleet = Fleet::start();
    let dir = fleet.dir().to_str().unwrap().to_owned();
    until("all services are ready", || {
        let events = events(&fleet);
        SERVICES.iter().all(|s| has(&events, s, "ready", None))
    });
    let follower = Follower::start(&["--data-dir", &dir]);
    follower.wait_for(&SERVICES, "started", None);
    ok(&fleet.ron(&["demo"]));
    follower.wait_for(&["svc-rewarder"], "epoch_state", Some("settled"));
    signal(fleet.pid(), "-HUP");
    follower.wait_for(&SERVICES, "reloaded", Some("unchanged"));
    let op = |n: u8| format!("018f3c4e-0000-7000-8000-{n:012}");
    let made = json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "op_id": op(1)});
    let made = fleet.kms("keys", &made, 201);
    let kid = made["key"].as_str().expect("its name");
    follower.wait_for(&["ron-kms"], "key_changed", Some("create"));
    fleet.kms(&format!("keys/{kid}/rotate"), &json!({"op_id": op(2)}), 200);
    follower.wait_for(&["ron-kms"], "key_changed", Some("rotate"));
    fleet.change_issuer_policy(|_| ());
    follower.wait_for(&["ron-kms"], "policy_adopted", Some("issuer"));
    signal(fleet.pid(), "-HUP");
    follower.wait_for(&["svc-passport"], "policy_adopted", Some("issuer"));
    // By time, and nothing that names a key.
    let all = events(&fleet);
    let times: Vec<&str> = all
        .iter()
        .filter_map(|event| event["at"].as_str())
        .collect();
    assert!(times.is_sorted() && times.len() == all.len(), "{all:?}");
    assert!(!all.iter().any(|event| event.to_string().contains(kid)));
    fleet.stop();
    follower.wait_for(&SERVICES, "draining", None);
    let out = fleet.ron(&["events"]);
    assert_eq!(out.status.code(), Some(1), "nothing answers");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(SERVICES.iter().all(|s| error.contains(s)), "{error}");
}

#[test]
fn a_ledger_that_stands_still_is_on_the_timeline_of_the_wallet() {
    let rig = Rig::start();
    let health = format!("http://127.0.0.1:{}", rig.port("svc-wallet") + 5);
    let follower = Follower::start(&["--health", &health]);
    follower.wait_for(&["svc-wallet"], "ready", None);
    rig.signal("ron-ledger", "-STOP");
    follower.wait_for(&["svc-wallet"], "not_ready", Some("ledger"));
    rig.signal("ron-ledger", "-CONT");
    // In any order: the feed may compare the readiness between the end of the cause and its event.
    follower.wait_until("the wallet is ready again", |seen| {
        has(seen, "svc-wallet", "not_ready_cleared", Some("ledger"))
            && has(seen, "svc-wallet", "ready", None)
    });
}
