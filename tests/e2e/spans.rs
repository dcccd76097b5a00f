//! Spans of requests reach a collector that reads them by OpenTelemetry's schema: one tree over all services, few under load,
//! and nothing waits for a collector that is away.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use ron_tests::tools::Process;
use ron_tests::{Fleet, SERVICES, json, until, workspace};
use serde_json::Value;
use tempfile::TempDir;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

struct Collector {
    dir: TempDir,
    port: u16,
    _process: Process,
}

impl Collector {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(ron_tests::python());
        command
            .arg(workspace().join("tests/interop/otlp_collector.py"))
            .arg(dir.path());
        let process = Process(command.spawn().unwrap());
        let port = dir.path().join("port");
        until("the collector listens", || port.exists());
        Self {
            port: std::fs::read_to_string(port).unwrap().parse().unwrap(),
            dir,
            _process: process,
        }
    }

    /// A fleet whose services send to it, at most so many spans a second.
    fn fleet(&self, spans_per_second: u32) -> Fleet {
        let url = format!("http://127.0.0.1:{}/v1/traces", self.port);
        let mut env = Vec::new();
        for service in SERVICES {
            let prefix = service.replace('-', "_").to_uppercase();
            env.push((format!("{prefix}_OTLP_URL"), PathBuf::from(&url)));
            let most = spans_per_second.to_string();
            env.push((format!("{prefix}_OTLP_SPANS_PER_SECOND"), most.into()));
        }
        let env: Vec<_> = env.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
        Fleet::start_with(Arc::new(tempfile::tempdir().unwrap()), &env)
    }

    fn is_away(&self, away: bool) {
        let file = self.dir.path().join("away");
        if away {
            std::fs::write(file, "").unwrap();
        } else {
            std::fs::remove_file(file).unwrap();
        }
    }

    /// All spans so far. None was refused.
    fn seen(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("seen")).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let seen: Vec<Value> = whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for span in &seen {
            assert!(span.get("refused").is_none(), "{span}");
        }
        seen
    }

    fn of_trace(&self, trace: &str) -> Vec<Value> {
        let mut seen = self.seen();
        seen.retain(|span| span["trace"] == trace);
        seen
    }
}

fn issue(fleet: &Fleet, key: &str, parent: Option<&str>) {
    let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let token = fleet.token("svc-wallet", None);
    let mut headers = vec![("Idempotency-Key", key), ("X-Request-Id", key)];
    headers.extend(parent.map(|parent| ("traceparent", parent)));
    let body = r#"{"to":"a","asset":"ron","amount_minor":"9"}"#;
    json(&fleet.post(&url, Some(&token), body, &headers), 200);
}

#[test]
fn the_spans_of_a_request_are_one_tree_over_all_services() {
    let collector = Collector::start();
    let fleet = collector.fleet(100_000);
    issue(&fleet, "first", Some(&format!("00-{TRACE}-{CLIENT}-01")));
    issue(
        &fleet,
        "unrecorded",
        Some(&format!("00-{}-{CLIENT}-00", "9".repeat(32))),
    );
    until("both spans are there", || {
        collector.of_trace(TRACE).len() == 2
    });
    let spans = collector.of_trace(TRACE);
    let of = |service: &str| {
        spans
            .iter()
            .find(|span| span["service"] == service)
            .unwrap()
    };
    let (wallet, ledger) = (of("svc-wallet"), of("ron-ledger"));
    assert_eq!(wallet["parent"], CLIENT);
    assert_eq!(ledger["parent"], wallet["span"]);
    assert_eq!(wallet["name"], "POST /v1/issue");
    assert_eq!(ledger["name"], "POST /v1/ledger/commit");
    for span in [wallet, ledger] {
        let attributes = &span["attributes"];
        assert_eq!(attributes["http.response.status_code"], 200);
        assert_eq!(attributes["ron.request_id"], "first");
        assert_eq!((&span["kind"], &span["failed"]), (&2.into(), &false.into()));
    }
    let time = |span: &Value, at: &str| span[at].as_u64().unwrap();
    // Each service knows its end to the millisecond.
    let slack = 1_000_000;
    assert!(time(wallet, "start") <= time(ledger, "start") + slack);
    assert!(time(ledger, "end") <= time(wallet, "end") + slack);
    // A request without a trace begins one.
    issue(&fleet, "rootless", None);
    let rooted = |span: &Value| span["attributes"]["ron.request_id"] == "rootless";
    until("its spans are there", || {
        collector.seen().iter().filter(|span| rooted(span)).count() == 2
    });
    let seen = collector.seen();
    let spans: Vec<&Value> = seen.iter().filter(|span| rooted(span)).collect();
    assert_eq!(spans[0]["trace"], spans[1]["trace"]);
    let root = spans.iter().find(|span| span["parent"] == "").unwrap();
    assert_eq!(root["service"], "svc-wallet");
    let unrecorded = seen
        .iter()
        .any(|span| span["attributes"]["ron.request_id"] == "unrecorded");
    assert!(!unrecorded, "its client does not record it");
}

#[test]
fn spans_are_few_under_load_and_lost_without_harm_when_nobody_takes_them() {
    let collector = Collector::start();
    let fleet = collector.fleet(1);
    let lost = || fleet.metric("svc-wallet", "svc_wallet_spans_total{result=\"lost\"}");
    let sent = || fleet.metric("svc-wallet", "svc_wallet_spans_total{result=\"sent\"}");
    let began = std::time::Instant::now();
    for number in 0..100 {
        issue(&fleet, &format!("load-{number}"), None);
    }
    let seconds = began.elapsed().as_secs() + 1;
    until("a span is sent", || sent() >= 1.0);
    let of_wallet = collector.seen();
    let of_wallet = of_wallet
        .iter()
        .filter(|s| s["name"] == "POST /v1/issue")
        .count();
    assert!(
        of_wallet as u64 <= seconds + 1,
        "{of_wallet} in {seconds} s"
    );
    collector.is_away(true);
    until("a span is lost", || {
        issue(&fleet, &format!("lost-{}", lost()), None);
        lost() >= 1.0
    });
    let ready = fleet.get(&format!("{}/readyz", fleet.health("svc-wallet")), None);
    assert_eq!(
        json(&ready, 200)["degraded"],
        serde_json::json!([]),
        "it is not the service's fault"
    );
    collector.is_away(false);
    let before = sent();
    until("spans are sent again", || {
        issue(&fleet, &format!("again-{before}"), None);
        sent() > before
    });
}
