//! The fleet as an operator sees it: readiness, metrics, topology, OpenAPI, and the refusal of a
//! second start.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use ron_tests::tools::{fed, signal};
use ron_tests::{Fleet, SERVICES, json, ok, ron_on};

/// Threads of features that are not configured here: witnesses of the KMS, a TPM, another KMS.
const UNCONFIGURED: [&str; 4] = ["kms-witness", "kms-keep-tpm", "kms-keep-rem", "kms-attest"];

#[test]
fn a_data_dir_elsewhere_is_refused_and_a_moved_directory_is_not() {
    let (first, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = first.path().join("old");
    ok(&ron_on(&old, &["init"]));
    std::fs::rename(&old, dir.path()).unwrap();
    let dir = Arc::new(dir);
    drop(Fleet::start_in(dir.clone()));
    let file = dir.path().join("ron-ledger/config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = text.lines().map(|line| match line.split_once(" = ") {
        Some(("data_dir", _)) => "data_dir = \"/srv/ledger\"",
        _ => line,
    });
    std::fs::write(&file, changed.collect::<Vec<_>>().join("\n")).unwrap();
    let out = ron_on(dir.path(), &["up", "--base-port", "0"]);
    let why = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{why}");
    assert!(
        why.contains("data_dir of ron-ledger is /srv/ledger"),
        "{why}"
    );
}

#[test]
fn keys_of_another_issuer_are_refused_and_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    ok(&ron_on(dir.path(), &["init"]));
    let file = dir.path().join("svc-wallet/config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = text.lines().map(|line| match line.split_once(" = ") {
        Some(("jwks_url", _)) => "jwks_url = \"https://issuer.example/keys\"",
        _ => line,
    });
    std::fs::write(&file, changed.collect::<Vec<_>>().join("\n")).unwrap();
    let out = ron_on(dir.path(), &["up", "--base-port", "0"]);
    let why = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{why}");
    let wanted = "auth.jwks_url of svc-wallet is https://issuer.example/keys";
    assert!(why.contains(wanted), "{why}");
}

#[test]
fn every_service_reports_its_state_and_its_threads_match_its_table() {
    let fleet = Fleet::start();
    fleet.token("svc-wallet", None);
    let mut told = BTreeSet::new();
    for service in SERVICES {
        let health = fleet.health(service);
        assert_eq!(fleet.get(&format!("{health}/healthz"), None).status, 200);
        assert_eq!(
            json(&fleet.get(&format!("{health}/readyz"), None), 200)["ready"],
            true,
            "{service}"
        );
        let status = json(&fleet.get(&format!("{health}/api/v1/status"), None), 200);
        assert_eq!(status["service"], service);
        let openapi = json(
            &fleet.get(&format!("{}/openapi.json", fleet.api(service)), None),
            200,
        );
        assert!(
            openapi["openapi"].as_str().unwrap().starts_with("3.1"),
            "{service}"
        );
        promtool(&fleet, service);
        let topology = json(&fleet.get(&format!("{health}/api/v1/topology"), None), 200);
        for thread in topology["threads"].as_array().unwrap() {
            let (name, count) = (
                thread["name"].as_str().unwrap(),
                thread["count"].as_u64().unwrap(),
            );
            if count == 0 && UNCONFIGURED.contains(&name) {
                continue;
            }
            if name.ends_with('-') {
                told.extend((0..count).map(|i| format!("{name}{i}")));
            } else {
                told.insert(name.to_owned());
            }
        }
    }
    let tasks = std::fs::read_dir(format!("/proc/{}/task", fleet.pid())).unwrap();
    let comm =
        |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
    let running: BTreeSet<String> = tasks
        .flatten()
        .map(comm)
        .map(|c| c.trim().to_owned())
        .collect();
    let prefixes = ["kms-", "pass-", "led-", "wal-", "rew-", "adm-"];
    let ours: BTreeSet<String> = running
        .into_iter()
        .filter(|n| prefixes.iter().any(|p| n.starts_with(p)))
        .collect();
    assert_eq!(ours, told, "threads in /proc against the topology tables");
}

fn promtool(fleet: &Fleet, service: &str) {
    let metrics = fleet.get(&format!("{}/metrics", fleet.health(service)), None);
    assert_eq!(metrics.status, 200);
    let mut promtool = Command::new("promtool");
    let out = fed(promtool.args(["check", "metrics"]), &metrics.body);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success(),
        "promtool on {service}: {said}{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn a_second_fleet_on_the_same_directory_is_refused_clearly() {
    let fleet = Fleet::start();
    let out = ron_on(fleet.dir(), &["up", "--base-port", "0"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("in use") || said.contains("another process"),
        "{said}"
    );
}

#[test]
fn a_reload_keeps_the_addresses_of_a_fleet_on_free_ports() {
    let fleet = Fleet::start();
    let path = fleet.dir().join("svc-admin/config.toml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("\n[[nodes]]\nid = \"outside\"\nhealth_url = \"http://127.0.0.1:9\"\n");
    std::fs::write(&path, text).unwrap();
    signal(fleet.pid(), "-HUP");
    let reloads = |service: &str, result: &str| {
        let prefix = service.replace('-', "_");
        let line = format!("{prefix}_config_reloads_total{{result=\"{result}\"}}");
        fleet.metric(service, &line)
    };
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while reloads("svc-admin", "ok") < 1.0 {
        assert!(std::time::Instant::now() < patience, "it reloads");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // Only the console's file was changed, and the addresses of this run apply as before.
    for service in &SERVICES[..5] {
        assert_eq!(reloads(service, "unchanged"), 1.0, "{service}");
    }
    let console = fleet.api("svc-admin");
    // The console shows the change after its next poll.
    let outside = format!("{console}/api/nodes/outside/status");
    while fleet.get(&outside, None).status != 200 {
        assert!(std::time::Instant::now() < patience, "it is watched");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let outside = json(&fleet.get(&outside, None), 200);
    assert_eq!(outside["healthUrl"], "http://127.0.0.1:9");
    // Nothing listens there, which is counted as the failed connection that it is.
    ron_tests::until("a refused connection is counted", || {
        let line = "svc_admin_io_errors_total{kind=\"connect\"} ";
        fleet.metric("svc-admin", line) >= 1.0
    });
    for service in SERVICES {
        let url = format!("{console}/api/nodes/{service}/status");
        let node = json(&fleet.get(&url, None), 200);
        assert_eq!(node["healthUrl"], fleet.health_socket(service), "{service}");
        assert_eq!(node["apiUrl"], fleet.api_socket(service), "{service}");
    }
}

/// Why a service is degraded by `policy`; `None` when it is not.
fn policy_refused(fleet: &Fleet, service: &str) -> Option<String> {
    let url = format!("{}/api/v1/status", fleet.health(service));
    let status = json(&fleet.get(&url, None), 200);
    let planes = status["planes"].as_array().unwrap();
    let plane = planes.iter().find(|plane| plane["name"] == "policy")?;
    Some(plane["reason"].as_str().unwrap().to_owned())
}

#[test]
fn one_changed_byte_in_a_policy_is_refused_by_name() {
    // In a policy, and in each member of a signature: algorithm, key, value, the newline.
    let changes = [
        ("issuer.json", 5),
        ("issuer.json.sig", 9),
        ("wallet.json.sig", 40),
        ("wallet.json.sig", usize::MAX),
    ];
    let changed = |dir: &std::path::Path, (file, at): (&str, usize)| {
        let path = dir.join("policy").join(file);
        let good = std::fs::read(&path).unwrap();
        let mut bad = good.clone();
        let at = at.min(bad.len() - 1);
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        move || std::fs::write(&path, &good).unwrap()
    };
    // A first start needs good policies.
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    ron_tests::ok(&ron_on(dir.path(), &["init"]));
    for change in changes {
        let restore = changed(dir.path(), change);
        let out = ron_on(dir.path(), &["up", "--base-port", "0"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(change.0.trim_end_matches(".sig")), "{said}");
        restore();
    }
    // Later ones start on the last accepted policies.
    let mut fleet = Fleet::start_in(dir);
    for change in changes {
        assert_eq!(fleet.stop(), Some(0));
        let restore = changed(fleet.dir(), change);
        fleet = Fleet::start_in(fleet.keep_dir());
        let kind = change.0.split('.').next().unwrap();
        let service = match kind {
            "issuer" => "svc-passport",
            _ => "svc-wallet",
        };
        let why = policy_refused(&fleet, service).expect("it is degraded");
        assert!(why.contains(&format!("{kind}.json")), "{why}");
        json(
            &fleet.post(
                &format!("{}/v1/issue", fleet.api("svc-wallet")),
                Some(&fleet.token("svc-wallet", None)),
                r#"{"to": "a", "asset": "ron", "amount_minor": "1"}"#,
                &[("Idempotency-Key", "one")],
            ),
            200,
        );
        restore();
    }
    assert_eq!(fleet.stop(), Some(0));
    // The rewarder has a library of policies: the unchanged ones still run, the changed one does
    // not.
    let path = fleet.dir().join("policy/reward.json.sig");
    let mut bad = std::fs::read(&path).unwrap();
    bad[40] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let fleet = Fleet::start_in(fleet.keep_dir());
    let out = fleet.ron(&["demo", "--yes"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(said.contains("reward.json"), "{said}");
}

#[test]
fn an_older_wallet_policy_does_not_come_back_with_a_restart() {
    let mut fleet = Fleet::start();
    let files =
        ["wallet.json", "wallet.json.sig"].map(|name| fleet.dir().join("policy").join(name));
    let old = files.each_ref().map(|file| std::fs::read(file).unwrap());
    let mut policy = ron_tests::read_json(&files[0]);
    policy["version"] = 2.into();
    policy["rules"] = serde_json::json!([]);
    std::fs::write(&files[0], policy.to_string()).unwrap();
    let file = files[0].to_str().unwrap();
    ron_tests::ok(&fleet.ron(&["policy", "sign", "--kind", "wallet", file]));
    let issue = |fleet: &Fleet| {
        let token = fleet.token("svc-wallet", None);
        let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
        let body = r#"{"to": "a", "asset": "ron", "amount_minor": "1"}"#;
        let headers = [("Idempotency-Key", "one")];
        fleet.post(&url, Some(&token), body, &headers).status
    };
    for _ in 0..2 {
        assert_eq!(fleet.stop(), Some(0));
        fleet = Fleet::start_in(fleet.keep_dir());
        assert_eq!(issue(&fleet), 403, "the new policy has no rule");
        let version = "svc_wallet_policy_version{kind=\"wallet\"}";
        assert_eq!(fleet.metric("svc-wallet", version), 2.0);
        // For the second round.
        for (file, old) in files.iter().zip(&old) {
            std::fs::write(file, old).unwrap();
        }
    }
    let why = policy_refused(&fleet, "svc-wallet").expect("it is degraded");
    assert!(why.contains("older than 2"), "{why}");
}

#[test]
fn the_console_shows_the_fleet_in_a_real_browser() {
    let fleet = Fleet::start();
    fleet.token("svc-wallet", None);
    let browser = ron_tests::workspace().join("tests/browser");
    assert!(
        browser.join("node_modules").exists(),
        "run scripts/setup.sh"
    );
    let artifacts = ron_tests::workspace().join("target/test-artifacts");
    std::fs::create_dir_all(&artifacts).unwrap();
    let shot = artifacts.join("admin.png");
    let out = Command::new("node")
        .arg(browser.join("admin.mjs"))
        .args(["--url", &format!("{}/", fleet.api("svc-admin")), "--shot"])
        .arg(&shot)
        .args(["--wait", "60"])
        .output()
        .expect("node is installed by scripts/setup.sh");
    ron_tests::ok(&out);
    assert!(
        std::fs::metadata(&shot).unwrap().len() > 10_000,
        "a screenshot is kept"
    );
}
