//! svc-admin's metrics parser compared with the `prometheus_client` parser, on real exporters and
//! on hostile text.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ron_http::Call;
use ron_kernel::Deadline;
use ron_tests::tools::{Process, fed};
use ron_tests::{Fleet, SERVICES, free_port, http_client, python, workspace};
use serde_json::Value;
use svc_admin::promtext::{Item, Labels, Reader};

/// Name, sorted labels, value as bits: NaN compares equal to itself.
type Row = (String, Vec<(String, String)>, u64);

fn ours(body: &[u8]) -> Vec<Row> {
    let mut rows: Vec<Row> = Reader::new(body)
        .filter_map(|item| match item {
            Item::Sample(sample) => {
                let pairs = Labels::new(sample.labels);
                let mut labels: Vec<_> =
                    pairs.map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
                labels.sort();
                Some((sample.name.to_owned(), labels, bits(sample.value)))
            }
            Item::Family(_) => None,
        })
        .collect();
    rows.sort();
    rows
}

fn bits(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        // The other parser reads whole numbers as integers, which have no negative zero.
        (value + 0.0).to_bits()
    }
}

/// The result of the other parser; `None` when it refuses the text.
fn theirs(body: &[u8]) -> Option<Vec<Row>> {
    let mut check = Command::new(python());
    let out = fed(
        check.arg(workspace().join("tests/interop/prom_check.py")),
        body,
    );
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(matches!(out.status.code(), Some(0 | 3)), "{said}");
    out.status.success().then(|| {
        let mut rows: Vec<Row> = String::from_utf8(out.stdout)
            .unwrap()
            .lines()
            .map(row)
            .collect();
        rows.sort();
        rows
    })
}

fn row(line: &str) -> Row {
    let line: Value = serde_json::from_str(line).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let labels = line[1]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (text(&pair[0]), text(&pair[1])));
    let value: f64 = text(&line[2]).parse().unwrap();
    (text(&line[0]), labels.collect(), bits(value))
}

fn agree(what: &str, body: &[u8], at_least: usize) {
    let (ours, theirs) = (
        ours(body),
        theirs(body).unwrap_or_else(|| panic!("{what} is refused")),
    );
    assert!(ours.len() >= at_least, "{what}: {} samples", ours.len());
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!(a, b, "{what}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}");
}

fn scrape(program: &str, args: &[String], port: u16) -> Vec<u8> {
    let child = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _running =
        Process(child.unwrap_or_else(|e| panic!("{program}: {e}; run scripts/setup.sh")));
    let http = http_client();
    let url = format!("http://127.0.0.1:{port}/metrics");
    let started = Instant::now();
    loop {
        let reply = http.call(Call::get(&url, Deadline::within(Duration::from_secs(5))));
        if let Ok(reply) = reply
            && reply.is_success()
        {
            return reply.body;
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{program} does not answer"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn real_exporters_are_read_as_others_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("p.yml");
    std::fs::write(&config, "global: {}\n").unwrap();
    let port = free_port();
    let args = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", dir.path().join("tsdb").display()),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    agree("prometheus", &scrape("prometheus", &args, port), 200);
    let port = free_port();
    let args = [format!("--web.listen-address=127.0.0.1:{port}")];
    agree(
        "node exporter",
        &scrape("prometheus-node-exporter", &args, port),
        200,
    );
    let fleet = Fleet::start();
    for service in SERVICES {
        let body = fleet
            .get(&format!("{}/metrics", fleet.health(service)), None)
            .body;
        agree(service, &body, 100);
    }
}

#[test]
fn odd_text_that_others_read_is_read_the_same() {
    for text in [
        "",
        "\n\n# only a comment\n",
        "a 1\nb 2 1395066363000\n",
        "a{} 1\n",
        "a{x=\"1\",} 1\n",
        "a{ x = \"1\" , y = \"2\" } 3\n",
        "a{x=\"\\\"q\\\" \\\\ \\n\"} 1\n",
        "a{x=\"a,b}c{d=e\"} 1\n",
        "a{x=\"\u{e9}\u{1F600}\"} 1\n",
        "a NaN\nb +Inf\nc -Inf\n",
        "a 1e3\nb -0\nc 0.1\nd 1.7976931348623157e308\n",
        "# TYPE a_total counter\n# HELP a_total some \\n help\na_total 1\n",
        "   a 1\n\ta 2\n",
        "a\t1\n",
        "# TYPE h histogram\nh_bucket{le=\"0.1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
        "a{x=\"# not a comment\"} 1\n",
        "a_very:odd:name_total 12345678901234567890\n",
    ] {
        let theirs = theirs(text.as_bytes()).unwrap_or_else(|| panic!("refused: {text:?}"));
        assert_eq!(ours(text.as_bytes()), theirs, "{text:?}");
    }
}

#[test]
fn hostile_text_is_skipped_line_by_line() {
    // Other parsers give up on the whole scrape; here the good line around each of these must still
    // be read.
    for bad in [
        "a{x=\"unclosed 1",
        "a{x=1} 1",
        "a{x=\"1\" 1",
        "{} 1",
        "a one",
        "a 1 2 3",
        "a{x=\"1\"}",
        "9a 1",
        "\u{0}\u{1}\u{2}",
        "a{x=\"\\\"} 1",
        "<html><body>502</body></html>",
        "{\"json\": true}",
    ] {
        let text = format!("good 1\n{bad}\nfine 2\n");
        let names: Vec<String> = ours(text.as_bytes()).into_iter().map(|row| row.0).collect();
        assert_eq!(names, ["fine", "good"], "{bad:?}");
    }
    let long = format!("good 1\n{}\nfine 2\n", "x".repeat(4 << 20));
    assert_eq!(ours(long.as_bytes()).len(), 2);
}

#[test]
fn the_rules_and_the_scrape_configuration_pass_promtool() {
    for (what, file) in [("rules", "alerts.yml"), ("config", "prometheus.yml")] {
        let path = workspace().join("docs/ops").join(file);
        let out = Command::new("promtool")
            .args(["check", what])
            .arg(&path)
            .output();
        let out = out.expect("promtool is installed by scripts/setup.sh");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
    let tests = workspace().join("docs/ops/alerts_test.yml");
    let out = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&tests)
        .output();
    let out = out.expect("promtool is installed by scripts/setup.sh");
    let said = [out.stdout, out.stderr].concat();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&said));
    each_alert_is_whole(&std::fs::read_to_string(&tests).unwrap());
    let text = std::fs::read(workspace().join("docs/ops/grafana-fleet.json")).unwrap();
    let board: Value = serde_json::from_slice(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    assert!(panels.len() >= 10);
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        let asks = |t: &Value| t["expr"].as_str().is_some_and(|e| !e.is_empty());
        assert!(targets.iter().all(asks), "{}", panel["title"]);
    }
}

/// Every alert has a test in which it fires, says what to do and where to read on, and names the
/// instance.
fn each_alert_is_whole(tests: &str) {
    let rules = std::fs::read_to_string(workspace().join("docs/ops/alerts.yml")).unwrap();
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 20);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        let fires = format!("'{{alertname=\"{name}\"}}', value: 1");
        assert!(
            tests.contains(&fires),
            "{name} never fires in alerts_test.yml"
        );
        assert!(
            alert.contains("action: \"") && alert.contains("severity: "),
            "{name}"
        );
        let sums = alert.matches("sum by (").count();
        let with_instance = alert.matches("instance").count();
        assert!(with_instance >= sums, "{name} sums the instance away");
        let page = alert.split("runbook_url: ").nth(1).unwrap_or_default();
        let page = workspace().join(page.lines().next().unwrap_or_default());
        assert!(page.is_file(), "{name}: {} is missing", page.display());
    }
}
