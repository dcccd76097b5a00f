//! The id of a request is in the logs of all services that worked for it, and `ron trace` finds it there.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ron_tests::{Fleet, SERVICES, json, ok, ron_on, until};
use serde_json::{Value, json};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What `ron trace --json` prints: nothing as long as no service has written a line, when it ends with code 1.
fn trace(fleet: &Fleet, id: &str, log: &Path) -> Vec<Value> {
    let out = fleet.ron(&["trace", id, "--json", "--log", log.to_str().unwrap()]);
    if out.status.code() == Some(1) {
        return Vec::new();
    }
    let text = ok(&out);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Service, route and status of the requests among log lines, in their order.
fn requests(lines: &[Value]) -> Vec<(String, String, u64)> {
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    let found = lines.iter().filter(|line| line["event"] == "http_request");
    let told = |line: &Value| {
        let status = line["status"].as_u64().unwrap();
        (text(line, "service"), text(line, "route"), status)
    };
    found.map(told).collect()
}

fn done(service: &str, route: &str, status: u64) -> (String, String, u64) {
    (service.to_owned(), route.to_owned(), status)
}

/// Sends a transfer of an account to another with an id; its answer names the id.
fn transfer(fleet: &Fleet, id: &str, from: &str, status: u16) -> Value {
    let url = format!("{}/v1/transfer", fleet.api("svc-wallet"));
    let token = fleet.token("svc-wallet", None);
    let body =
        format!(r#"{{"from":"{from}","to":"b","asset":"ron","amount_minor":"5","nonce":1}}"#);
    let headers = [
        ("Idempotency-Key", id),
        ("X-Request-Id", id),
        ("traceparent", PARENT),
    ];
    let reply = fleet.post(&url, Some(&token), &body, &headers);
    assert_eq!(reply.header("x-request-id"), Some(id));
    json(&reply, status)
}

#[test]
fn an_id_finds_its_request_in_the_logs_of_every_service() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("ron.log");
    let fleet = Fleet::start_logging("json", File::create(&log).unwrap());
    let issue = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let token = fleet.token("svc-wallet", None);
    let funds = r#"{"to":"a","asset":"ron","amount_minor":"9"}"#;
    let issued = fleet.post(&issue, Some(&token), funds, &[("Idempotency-Key", "i")]);
    assert_eq!(issued.status, 200);

    transfer(&fleet, "find-me-42", "a", 200);
    let refused = transfer(&fleet, "find-me-43", "nobody", 409);
    assert_eq!(refused["request_id"], "find-me-43");
    for (id, status) in [("find-me-42", 200), ("find-me-43", 409)] {
        // The line of an answer may be written after the answer is read.
        let mut lines = Vec::new();
        until("the wallet has logged its answer", || {
            lines = trace(&fleet, id, &log);
            requests(&lines).len() == 2
        });
        let ledger = done("ron-ledger", "/v1/ledger/commit", 200);
        let wallet = done("svc-wallet", "/v1/transfer", status);
        // The ledger's line may be the later one, for the same reason.
        let mut found = requests(&lines);
        found.sort_unstable();
        assert_eq!(found, [ledger, wallet]);
    }
    // Without `--log` the lines that `ron up` keeps, and the wallet's own records of operations.
    for (id, outcome) in [
        ("find-me-42", "outcome=done"),
        ("find-me-43", "outcome=insufficient_funds"),
    ] {
        until("lines and records are written", || {
            let lines = String::from_utf8(fleet.ron(&["trace", id]).stdout).unwrap();
            let has = |words: &[&str]| {
                let mut lines = lines.lines();
                lines.any(|line| words.iter().all(|word| line.contains(word)))
            };
            has(&["svc-wallet", "operation", outcome])
                && has(&["ron-ledger", "http_request", "/v1/ledger/commit"])
                && has(&["svc-wallet", "http_request", "/v1/transfer"])
        });
    }

    let nothing = fleet.ron(&["trace", "find-me-44", "--log", log.to_str().unwrap()]);
    let why = String::from_utf8(nothing.stderr).unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(
        why.contains("find-me-44") && why.contains("operations.jsonl") && why.contains("ron.log"),
        "{why}"
    );
}

#[test]
fn the_token_of_a_request_is_found_at_the_kms() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("ron.log");
    let fleet = Fleet::start_logging("compact", File::create(&log).unwrap());
    let file = fleet.dir().join("clients/operator.json");
    let operator: Value = ron_tests::read_json(&file);
    let secret = |name: &str| operator[name].as_str().unwrap().to_owned();
    let url = format!("{}/oauth2/token", fleet.api("svc-passport"));
    let body = "grant_type=client_credentials&audience=svc-wallet";
    let basic = ron_client::basic(&secret("client_id"), &secret("client_secret"));
    let headers = [
        ("Authorization", basic.as_str()),
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("X-Request-Id", "token-7"),
        ("traceparent", PARENT),
    ];
    let reply = fleet.post(&url, None, body, &headers);
    assert_eq!(
        (reply.status, reply.header("x-request-id")),
        (200, Some("token-7"))
    );
    let mut lines = Vec::new();
    until("the issuer has logged its answer", || {
        lines = trace(&fleet, "token-7", &log);
        lines.len() == 4
    });
    let events = |service: &str| {
        let of = lines.iter().filter(|line| line["service"] == service);
        of.map(|line| line["event"].as_str().unwrap())
            .collect::<BTreeSet<_>>()
    };
    // Lines of one millisecond have no order, and those of two services may mix.
    assert_eq!(events("ron-kms"), BTreeSet::from(["leaf", "http_request"]));
    assert_eq!(
        events("svc-passport"),
        BTreeSet::from(["token_issued", "http_request"])
    );
    let signed = leaves(&fleet, "token-7");
    assert_eq!(signed.len(), 1, "{signed:?}");
    assert_eq!(
        (&signed[0]["op"], &signed[0]["actor"]),
        (&json!("sign"), &json!("svc-passport"))
    );
}

/// The leaves that `ron trace` finds with the data directory.
fn leaves(fleet: &Fleet, id: &str) -> Vec<Value> {
    let out = fleet.ron(&["trace", id, "--json"]);
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|line: &Value| line["event"] == "leaf")
        .collect()
}

#[test]
fn an_id_finds_the_audit_leaves_of_its_request() {
    let fleet = Fleet::start();
    let token = fleet.token("ron-kms", None);
    let post = |path: &str, id: &str, body: &Value, status: u16| {
        let url = format!("{}/v1/kms/{path}", fleet.api("ron-kms"));
        let headers = [("X-Request-Id", id), ("traceparent", PARENT)];
        let reply = fleet.post(&url, Some(&token), &body.to_string(), &headers);
        json(&reply, status)
    };
    let wanted = json!({"op_id": "01a20000-0000-7000-8000-000000000001", "tenant": "default", "purpose": "app",
        "alg": "ed25519", "payload": "any"});
    let made = post("keys", "make-1", &wanted, 201);
    let (key, message) = (&made["key"], "aGk");
    let signed = post(
        "sign",
        "find-me-42",
        &json!({"key": key, "message": message}),
        200,
    );
    let items = json!([{"message": message}, {"message": message}]);
    post(
        "sign_batch",
        "batch-2",
        &json!({"key": key, "items": items}),
        200,
    );
    let late = json!({"key": key, "message": message, "version": 7});
    post("sign", "refuse-3", &late, 404);

    for (id, op, results) in [
        ("make-1", "create", &["ok"][..]),
        ("find-me-42", "sign", &["ok"]),
        ("batch-2", "sign", &["ok", "ok"]),
        ("refuse-3", "sign", &["not_found"]),
    ] {
        let found = leaves(&fleet, id);
        let told: Vec<(&str, &str)> = found
            .iter()
            .map(|leaf| {
                (
                    leaf["op"].as_str().unwrap(),
                    leaf["result"].as_str().unwrap(),
                )
            })
            .collect();
        let expected: Vec<_> = results.iter().map(|result| (op, *result)).collect();
        assert_eq!(told, expected, "{id}");
    }
    let leaf = &leaves(&fleet, "find-me-42")[0];
    assert_eq!(
        (&leaf["index"], &leaf["log"]),
        (&signed["receipt"]["index"], &signed["receipt"]["log"])
    );
    // It is in the log that an auditor verifies; `ron trace` shows it as a line of the service.
    let tail = ok(&fleet.ron(&["audit", "tail", "-n", "4"]));
    assert_eq!(
        tail.matches(r#""request_id":"batch-2""#).count(),
        2,
        "{tail}"
    );
    assert!(tail.contains(r#""request_id":"find-me-42""#), "{tail}");
    let text = ok(&fleet.ron(&["trace", "find-me-42"]));
    let is_leaf = |line: &str| {
        line.contains(" ron-kms      leaf ") && line.ends_with(" request_id=find-me-42")
    };
    assert!(text.lines().any(is_leaf), "{text}");

    // Of another request there is none, and the message says that the audit log was read.
    let nothing = fleet.ron(&["trace", "find-me-44"]);
    let why = String::from_utf8(nothing.stderr).unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(why.contains("ron-kms/data/audit"), "{why}");
}

#[test]
fn a_log_directory_that_cannot_be_written_stops_no_service() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    ok(&ron_on(dir.path(), &["init"]));
    std::fs::write(dir.path().join("logs"), "a file in the way").unwrap();
    let log = dir.path().join("stderr.log");
    let fleet = Fleet::start_logging_in(dir, "json", File::create(&log).unwrap());
    fleet.token("svc-wallet", None);
    until("the failure is on standard error, once", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.matches("log_files_fail").count() == 1
    });
    let mut dropped = false;
    until("and so is the number of lines", || {
        let text = std::fs::read_to_string(&log).unwrap();
        dropped |= text.contains("\"event\":\"log_lines_dropped\"");
        dropped
    });
    for service in SERVICES {
        let url = format!("{}/readyz", fleet.health(service));
        assert_eq!(json(&fleet.get(&url, None), 200)["ready"], true);
    }
}
