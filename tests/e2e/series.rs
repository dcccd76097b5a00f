//! The metrics of a fleet as Prometheus sees them: series that alerts wait for exist before the
//! first event, idle services have few, and every metric is written by some code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ron_tests::processes::Rig;
use ron_tests::tools::signal;
use ron_tests::{Fleet, SERVICES, ok, until, workspace};

/// Maximum series of one service without any request.
const QUIET_MAX: usize = 500;
/// Alerts on features that this fleet does not have: it serves without TLS, has no webhook endpoints, and its log is in files (`ron-ha`
/// sees the series of a log that nodes share).
const NOT_HERE: [&str; 7] = [
    "_certificate_not_after_seconds",
    "_log_active",
    "_log_behind_entries",
    "_log_engine_oldest_transaction",
    "_log_engine_standbys",
    "svc_wallet_webhook_attempts_total",
    "svc_wallet_webhook_behind_entries",
];

fn page(fleet: &Fleet, service: &str) -> String {
    let reply = fleet.get(&format!("{}/metrics", fleet.health(service)), None);
    String::from_utf8(reply.body).unwrap()
}

fn samples(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter(|line| !line.starts_with('#'))
}

/// Prefix and name, such as `svc_wallet` and `_ready`.
fn prefix(service: &str) -> String {
    service.replace('-', "_")
}

#[test]
fn a_quiet_fleet_has_the_series_that_alerts_wait_for() {
    let fleet = Fleet::start();
    let pages: BTreeMap<&str, String> = SERVICES.map(|s| (s, page(&fleet, s))).into();
    for (service, page) in &pages {
        let count = samples(page).count();
        assert!(count <= QUIET_MAX, "{service} has {count} series");
        let p = prefix(service);
        for line in [
            "_ready ",
            "_http_server_errors_total ",
            "_metrics_undeclared_total ",
            "_config_reloads_total{result=\"refused\"}",
            "_shutdown_drains_total{result=\"stragglers\"}",
            "_auth_failures_total{reason=\"signature\"}",
            "_upstream_fail_total{svc=\"svc-passport\"}",
            "_backoff_retries_total{op=\"auth_refresh\"}",
            "_busy_rejections_total{queue=\"http\"}",
            "_queue_dropped_total{queue=\"auth_refresh\"}",
            "_readyz_degraded{cause=\"draining\"}",
            "_readyz_degraded{cause=\"passports\"}",
            "_bus_lagged_total{bus=\"events\"}",
            "_io_errors_total{kind=",
            "_tasks_spawned_total{kind=",
        ] {
            let line = format!("{p}{line}");
            let found = samples(page).any(|sample| sample.starts_with(&line));
            assert!(found, "{line} is missing in\n{page}");
        }
        for figure in [
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_virtual_memory_bytes ",
            "process_open_fds ",
            "process_max_fds ",
            "process_start_time_seconds ",
            &format!("{p}_build_info{{version="),
            &format!("{p}_disk_free_bytes{{dir=\"data_dir\"}} "),
        ] {
            let found = samples(page).any(|sample| sample.starts_with(figure));
            assert!(found, "{figure} is missing in\n{page}");
        }
        each_thread_may_restart(&fleet, service, page);
    }
    for (service, line) in [
        ("ron-kms", "_policy_version{kind=\"issuer\"} 1"),
        ("svc-passport", "_policy_version{kind=\"issuer\"} 1"),
        ("svc-wallet", "_policy_version{kind=\"wallet\"} 1"),
        (
            "svc-passport",
            "_sign_failures_total{reason=\"no_answer\"} 0",
        ),
    ] {
        let line = format!("{}{line}", prefix(service));
        let found = samples(&pages[service]).any(|sample| sample == line);
        assert!(found, "{line} is missing in\n{}", pages[service]);
    }
    every_alert_has_series(&pages);
}

#[test]
fn the_fleets_own_probes_are_no_traffic_on_the_console() {
    let quick = [("SVC_ADMIN_SAMPLER_METRICS_INTERVAL", "500ms".into())];
    let fleet = Fleet::start_with(Arc::new(tempfile::tempdir().unwrap()), &quick);
    let probes =
        "ron_ledger_http_requests_total{method=\"GET\",route=\"/v1/ledger/head\",status=\"200\"} ";
    let (before, since) = (fleet.metric("ron-ledger", probes), Instant::now());
    let overview = || {
        let url = format!("{}/api/overview", fleet.api("svc-admin"));
        ron_tests::json(&fleet.get(&url, None), 200)
    };
    let rate = |overview: &serde_json::Value| {
        let mut nodes = overview["nodes"].as_array().unwrap().iter();
        let ledger = nodes.find(|node| node["summary"]["service"] == "ron-ledger");
        ledger.unwrap()["rates"]["requestRate"].as_f64()
    };
    until(
        "the wallet has probed for a while, and the console has seen it",
        || {
            let probed = fleet.metric("ron-ledger", probes) - before;
            // Probes alone would be twice as many.
            let most = (probed / since.elapsed().as_secs_f64() / 2.0).min(5.0);
            probed >= 60.0 && rate(&overview()).is_some_and(|rate| rate < most)
        },
    );
}

fn each_thread_may_restart(fleet: &Fleet, service: &str, page: &str) {
    let url = format!("{}/api/v1/topology", fleet.health(service));
    let topology = ron_tests::json(&fleet.get(&url, None), 200);
    let rows = topology["threads"].as_array().unwrap();
    for row in rows.iter().filter(|row| row["live"] != 0) {
        let kind = row["name"].as_str().unwrap();
        for counter in ["service_restarts", "tasks_aborted", "tasks_canceled"] {
            let line = format!("{}_{counter}_total{{kind=\"{kind}\"}} 0", prefix(service));
            assert!(samples(page).any(|s| s == line), "{line} is missing");
        }
    }
}

/// Every selector of every rule finds a series somewhere in the fleet.
fn every_alert_has_series(pages: &BTreeMap<&str, String>) {
    let rules = std::fs::read_to_string(workspace().join("docs/ops/alerts.yml")).unwrap();
    let all: Vec<&str> = pages.values().flat_map(|page| samples(page)).collect();
    let mut seen = 0;
    for (name, labels) in selectors(&rules) {
        if name == "up" || NOT_HERE.iter().any(|absent| name == *absent) {
            continue;
        }
        seen += 1;
        let matching = |sample: &&&str| {
            let (series, _) = sample.rsplit_once(' ').unwrap();
            let (own, block) = series.split_once('{').unwrap_or((series, ""));
            own.ends_with(&name) && labels.iter().all(|label| block.contains(label.as_str()))
        };
        assert!(
            all.iter().any(|s| matching(&s)),
            "no {name} with {labels:?}"
        );
    }
    assert!(seen >= 20, "only {seen} selectors were read");
}

/// Metric names (without `.+`) and equality matchers of the expressions; `job` is Prometheus's own.
fn selectors(rules: &str) -> Vec<(String, Vec<String>)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in rules.match_indices('{') {
        let Some((block, _)) = rules[at + 1..].split_once('}') else {
            continue;
        };
        if !block.contains("job=\"ron\"") {
            continue; // an annotation
        }
        let before = &rules[..at];
        let plain = &before[before.trim_end_matches(word).len()..];
        let name = match block.split_once("__name__=~\".+") {
            Some((_, rest)) => rest.split('"').next().unwrap(),
            None => plain,
        };
        let equal =
            |pair: &&str| pair.contains("=\"") && !pair.contains("!=") && !pair.starts_with("job");
        let labels = block.split(", ").filter(equal).map(str::to_owned);
        found.push((name.to_owned(), labels.collect()));
    }
    found
}

#[test]
fn whatever_happens_is_counted_under_a_declared_label() {
    let fleet = Fleet::start();
    ok(&fleet.ron(&["demo"]));
    let api = |service: &str, path: &str| format!("{}{path}", fleet.api(service));
    let token = fleet.token("svc-wallet", None);
    for (url, token, status) in [
        (
            api("svc-wallet", "/v1/balance?account=a&asset=x"),
            None,
            401,
        ),
        (api("svc-wallet", "/v1/balance"), Some(token.as_str()), 400),
        (api("ron-kms", "/v1/kms/keys"), Some(token.as_str()), 401),
        (api("svc-wallet", "/no/such/route"), None, 404),
        (api("svc-admin", "/api/nodes/none/status"), None, 404),
    ] {
        assert_eq!(fleet.get(&url, token).status, status, "{url}");
    }
    let bad = fleet.post(&api("svc-wallet", "/v1/transfer"), Some(&token), "{}", &[]);
    assert!((400..500).contains(&bad.status), "{}", bad.status);
    for args in [
        &["--audience", "svc-wallet", "--scope", "kms:sign"][..],
        &["--audience", "svc-wallet", "--ttl", "9d"],
        &["--audience", "svc-wallet", "--caveat", "nonsense=1"],
    ] {
        assert!(!fleet.ron(&[&["token"][..], args].concat()).status.success());
    }
    signal(fleet.pid(), "-HUP");
    for service in SERVICES {
        let p = prefix(service);
        until("it reloads", || {
            let line = format!("{p}_config_reloads_total{{result=\"unchanged\"}} ");
            fleet.metric(service, &line) >= 1.0
        });
        let page = page(&fleet, service);
        let undeclared = format!("{p}_metrics_undeclared_total 0");
        assert!(samples(&page).any(|s| s == undeclared), "{service}\n{page}");
    }
    let failed = "svc_wallet_auth_failures_total{reason=\"missing\"} ";
    assert!(fleet.metric("svc-wallet", failed) >= 1.0);
}

#[test]
fn a_ledger_that_does_not_answer_moves_the_wallets_counters() {
    let rig = Rig::start();
    let wallet = |line: &str| rig.wallet_metric(&format!("svc_wallet_{line} "));
    let fails = "upstream_fail_total{svc=\"ron-ledger\"}";
    until("the wallet is ready", || wallet("ready") == 1);
    let before = (wallet(fails), wallet("io_timeouts_total{op=\"probe\"}"));
    rig.signal("ron-ledger", "-STOP");
    until("it is not ready, and says so", || wallet("ready") == 0);
    until("its failed calls are counted", || {
        wallet(fails) >= before.0 + 2
    });
    until("as timeouts", || {
        wallet("io_timeouts_total{op=\"probe\"}") >= before.1 + 2
    });
    rig.signal("ron-ledger", "-CONT");
    until("it is ready again", || wallet("ready") == 1);
}

/// Every field of the metric tables is used by other code.
#[test]
fn every_metric_is_written_by_something() {
    let mut sources = Vec::new();
    gather(&workspace().join("crates"), &mut sources);
    let tables = sources.iter().filter(|(path, _)| {
        let own = path.strip_prefix(workspace()).unwrap();
        own.components().count() == 4 && path.ends_with("src/metrics.rs")
    });
    let mut looked = 0;
    let mut idle = BTreeSet::new();
    for (path, text) in tables {
        let home = path.parent().unwrap();
        for field in text.lines().filter_map(metric_field) {
            looked += 1;
            let use_of = format!(".{field}");
            let kernel = path.starts_with(workspace().join("crates/ron-kernel"));
            let used = |(at, text): &&(PathBuf, String)| {
                let where_it_may_be = kernel || at.starts_with(home);
                where_it_may_be && uses(text, &use_of)
            };
            if !sources.iter().any(|source| used(&source)) {
                idle.insert(format!("{}: {field}", path.display()));
            }
        }
    }
    assert!(looked > 80, "only {looked} fields were found");
    assert!(idle.is_empty(), "nothing writes these: {idle:#?}");
}

fn gather(dir: &Path, into: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("ui") && !path.ends_with("tests") {
            gather(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The name in `pub name: Counter,` and similar lines.
fn metric_field(line: &str) -> Option<&str> {
    let (name, kind) = line.trim().strip_prefix("pub ")?.split_once(": ")?;
    let kinds = ["Counter", "Gauge", "Histogram", "Closed"];
    kinds.iter().any(|k| kind.starts_with(k)).then_some(name)
}

/// True if the text uses `use_of` as a whole word, and not only to pass it on.
fn uses(text: &str, use_of: &str) -> bool {
    text.match_indices(use_of).any(|(at, _)| {
        let after = text[at + use_of.len()..].trim_start();
        after.starts_with('.') && !after.starts_with(".declare")
            || after.starts_with([',', ';', ')'])
    })
}
