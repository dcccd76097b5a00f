//! The revocation log: a database or log that was changed or rolled back is refused at start, and services that have
//! seen more notice an issuer that was rolled back as a whole.

use std::path::Path;
use std::process::Command;

use ron_tests::consumers::passports_degraded;
use ron_tests::issuer::{ASSERTION, Rig};
use ron_tests::tools::{service, signal};
use ron_tests::{Fleet, copy_tree, json, ok, read_json, ron_on, sqlite, until};
use serde_json::{Value, json};

/// What the issuer says when it does not start.
fn refusal(fleet_dir: &Path) -> String {
    let config = fleet_dir.join("svc-passport/config.toml");
    let none: [&str; 0] = [];
    let start = service("svc-passport", &config, none);
    let env = start
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    // A service that starts all the same must not hold the test up for ever.
    let out = Command::new("timeout")
        .arg("60")
        .arg(start.get_program())
        .args(start.get_args())
        .envs(env)
        .env("SVC_PASSPORT_BIND_ADDR", "127.0.0.1:0")
        .env("SVC_PASSPORT_HEALTH_ADDR", "127.0.0.1:0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    said
}

/// The offline check of a data directory: whether it is passed, and what it says.
fn verify(dir: &Path) -> (bool, String) {
    let out = ron_on(dir, &["revocations", "verify"]);
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8(text).unwrap())
}

fn revoke(fleet: &Fleet, jti: &str) {
    ok(&fleet.ron(&["token", "revoke", "--jti", jti, "--reason", "test"]));
}

#[test]
fn a_changed_or_older_database_or_log_is_refused_at_start() {
    let mut fleet = Fleet::start();
    for jti in ["a", "b", "c"] {
        revoke(&fleet, jti);
    }
    assert_eq!(fleet.stop(), Some(0));
    let home = tempfile::tempdir().unwrap();
    let (data, good) = (
        fleet.dir().join("svc-passport/data"),
        home.path().join("good"),
    );
    copy_tree(&data, &good);
    let mut fleet = Fleet::start_in(fleet.keep_dir());
    revoke(&fleet, "d");
    // It reads its own feed like every service; without that it could not know of the last event below.
    until("its own record has the event", || {
        let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap_or_default();
        let size = read("revocations/checkpoint");
        let size = size.lines().nth(1).unwrap_or_default();
        read("issuer-notes.json").contains(&format!("/revocations\\n{size}\\n"))
    });
    assert_eq!(fleet.stop(), Some(0));
    let kept = fleet.keep_dir();
    let dir = kept.path();
    let newer = home.path().join("newer");
    copy_tree(&data, &newer);
    let (sound, said) = verify(dir);
    assert!(
        sound && said.contains("rows of passport.db agree with it"),
        "{said}"
    );

    let sql = |text: &str| sqlite(&data.join("passport.db"), text);
    let back = || {
        std::fs::remove_dir_all(&data).unwrap();
        copy_tree(&newer, &data);
    };
    let checkpoint = std::fs::read_to_string(data.join("revocations/checkpoint")).unwrap();
    let last: u64 = checkpoint.lines().nth(1).unwrap().parse().unwrap();
    let refused = |wanted: &str| {
        let said = refusal(dir);
        assert!(
            said.contains(wanted) && said.contains("revocation-log"),
            "{said}"
        );
        let (sound, said) = verify(dir);
        assert!(!sound, "{said}");
        back();
    };
    sql(&format!("DELETE FROM revocation WHERE seq = {last}"));
    refused(&format!("passport.db has no revocation event {last}"));
    sql("UPDATE revocation SET what = replace(what, '\"b\"', '\"x\"')");
    refused("is not what its leaf in the revocation log commits to");
    sql(
        "INSERT INTO revocation SELECT seq + 1, ts_ms, what, salt, actor, reason, by_salt, sig FROM revocation ORDER BY seq DESC LIMIT 1",
    );
    refused("this service did not sign it");
    let into = |from: &Path, name: &str| {
        let _ = std::fs::remove_file(data.join(name));
        if from.join(name).exists() {
            copy_tree(&from.join(name), &data.join(name));
        }
    };
    for name in ["passport.db", "passport.db-wal", "passport.db-shm"] {
        into(&good, name);
    }
    refused(&format!("passport.db has no revocation event {last}"));

    // The log and the database of before; only this service's record of its own feed is newer.
    for name in ["passport.db", "passport.db-wal", "passport.db-shm"] {
        into(&good, name);
    }
    std::fs::remove_dir_all(data.join("revocations")).unwrap();
    copy_tree(&good.join("revocations"), &data.join("revocations"));
    let said = refusal(dir);
    assert!(said.contains("the revocation log is refused"), "{said}");
    back();

    let segment = data.join("revocations/00000000.seg");
    let whole = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &whole[..whole.len() - 40]).unwrap();
    let said = refusal(dir);
    assert!(said.contains("the revocation log is refused"), "{said}");
    assert!(!verify(dir).0);
    back();
    let fleet = Fleet::start_in(kept.clone());
    let feed = json(&fleet.revocations(""), 200);
    let known = feed["events"].as_array().unwrap();
    for jti in ["a", "b", "c", "d"] {
        assert!(
            known.iter().any(|event| event["revoked"]["jti"] == jti),
            "{jti}"
        );
    }
}

/// Number of revocations that a service has durably seen: the size of the checkpoint in its record.
fn durably_seen(fleet: &Fleet, service: &str) -> u64 {
    let record = read_json(&fleet.dir().join(service).join("data/issuer-notes.json"));
    let issuers = record["issuers"].as_object().expect("by issuer");
    let checkpoint = issuers
        .values()
        .find_map(|seen| seen["checkpoint"].as_str());
    let size = checkpoint.and_then(|text| text.lines().nth(1));
    size.map_or(0, |size| size.parse().expect("a size"))
}

fn degraded(fleet: &Fleet, service: &str) -> String {
    passports_degraded(fleet, &fleet.health(service))
}

fn balance(fleet: &Fleet, token: &str) -> u16 {
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    fleet.get(&url, Some(token)).status
}

#[test]
fn services_notice_an_issuer_that_was_rolled_back() {
    let mut fleet = Fleet::start();
    revoke(&fleet, "a");
    assert_eq!(fleet.stop(), Some(0));
    let home = tempfile::tempdir().unwrap();
    let (data, old) = (
        fleet.dir().join("svc-passport/data"),
        home.path().join("old"),
    );
    copy_tree(&data, &old);
    let mut fleet = Fleet::start_in(fleet.keep_dir());
    let token = fleet.token("svc-wallet", Some("wallet:read"));
    assert_eq!(balance(&fleet, &token), 200);
    ok(&fleet.ron(&["token", "revoke", "--token", &token, "--reason", "test"]));
    Rig::refused_soon(
        || {
            let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
            fleet.get(&url, Some(&token))
        },
        "svc-wallet",
    );
    let url = format!("{}/revocations/v1/checkpoint", fleet.api("svc-passport"));
    let checkpoint = fleet.get(&url, None).body;
    let size = std::str::from_utf8(&checkpoint).unwrap().lines().nth(1);
    let size: u64 = size.and_then(|size| size.parse().ok()).expect("a size");
    for name in ["svc-wallet", "ron-kms", "ron-ledger"] {
        until("it has seen every revocation", || {
            durably_seen(&fleet, name) == size
        });
    }
    assert_eq!(fleet.stop(), Some(0));

    // The issuer's whole data directory as it was before the revocation. Nothing in it can show that.
    std::fs::remove_dir_all(&data).unwrap();
    copy_tree(&old, &data);
    let fleet = Fleet::start_distrusting(fleet.keep_dir());
    for name in ["svc-wallet", "ron-kms", "ron-ledger"] {
        until("it notices the rollback", || {
            degraded(&fleet, name).contains("it was rolled back")
        });
    }
    let alarms = "svc_wallet_auth_revocation_log_alarms_total{reason=\"rolled_back\"}";
    assert!(fleet.metric("svc-wallet", alarms) > 0.0);
    assert_eq!(balance(&fleet, &token), 503, "no token is accepted");
    let trust = |more: &[&str]| {
        let out = fleet.ron(&[&["issuer", "trust"], more].concat());
        let text = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8(text).unwrap())
    };
    let (sound, said) = trust(&[]);
    assert!(!sound && said.contains("it was rolled back"), "{said}");

    // The operator revokes again what was lost, and accepts the issuer.
    ok(&fleet.ron(&["token", "revoke", "--token", &token, "--reason", "again"]));
    let (sound, said) = trust(&["--yes"]);
    assert!(sound, "{said}");
    signal(fleet.pid(), "-HUP");
    until("all are sound", || {
        ron_tests::SERVICES
            .iter()
            .all(|name| degraded(&fleet, name).is_empty())
    });
    assert_eq!(balance(&fleet, &token), 401);
    let fresh = fleet.token("svc-wallet", Some("wallet:read"));
    assert_eq!(balance(&fleet, &fresh), 200);
}

#[test]
fn the_log_is_public_but_for_its_entries() {
    let fleet = Fleet::start();
    revoke(&fleet, "a");
    let at = |path: &str| format!("{}/revocations/v1/{path}", fleet.api("svc-passport"));
    let text = |path: &str| {
        let reply = fleet.get(&at(path), None);
        assert_eq!(reply.status, 200, "{path}");
        String::from_utf8_lossy(&reply.body).into_owned()
    };
    let issuer = fleet.bootstrap()["issuer"].as_str().unwrap().to_owned();
    let checkpoint = text("checkpoint");
    assert!(
        checkpoint.starts_with(&format!("{issuer}/revocations\n")),
        "{checkpoint}"
    );
    let vkey = fleet.bootstrap()["revocations_vkey"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(text("vkey").trim(), vkey);
    assert!(text("proof/0").contains("c2sp.org/tlog-proof@v1"));
    let size: u64 = checkpoint.lines().nth(1).unwrap().parse().unwrap();
    text(&format!("tile/0/000.p/{size}"));

    let bundle = at(&format!("tile/entries/000.p/{size}"));
    assert_eq!(fleet.get(&bundle, None).status, 401);
    let other = fleet.token("svc-passport", Some("passport:issue"));
    assert_eq!(fleet.get(&bundle, Some(&other)).status, 403);
    let auditor = fleet.token("svc-passport", Some("passport:introspect"));
    let entries = fleet.get(&bundle, Some(&auditor));
    assert_eq!(entries.status, 200);
    let entries = String::from_utf8_lossy(&entries.body).into_owned();
    assert!(
        entries.contains("\"kind\":\"jti\"") && !entries.contains("operator"),
        "{entries}"
    );

    let note = fleet.get(
        &format!("{}/v1/passport/policy", fleet.api("svc-passport")),
        None,
    );
    let note = String::from_utf8_lossy(&note.body).into_owned();
    assert!(note.contains(&format!("\nrevocations {vkey}\n")), "{note}");
}

#[test]
fn administrators_read_what_was_revoked_by_which_caller_and_why() {
    let rig = Rig::start();
    let url = rig.url("/v1/passport/revocations");
    let admin = rig.fleet.token("svc-passport", Some("passport:admin"));
    let other = rig.fleet.token("svc-passport", Some("passport:introspect"));
    for (token, status) in [(None, 401), (Some(&*other), 403)] {
        assert_eq!(rig.fleet.get(&url, token).status, status);
    }
    let list = |query: &str| json(&rig.fleet.get(&format!("{url}{query}"), Some(&admin)), 200);
    assert_eq!(
        list("")["revocations"],
        json!([]),
        "events that revoke nothing are none"
    );

    // One by an administrator, one by a client that gives its token back, one that is superseded.
    revoke(&rig.fleet, "first");
    let token = rig.robot_token();
    let token = json(&token, 200)["access_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let back = rig.assertion(|_| {});
    let back = [
        ("client_assertion_type", ASSERTION),
        ("client_assertion", &back),
        ("token", &token),
    ];
    assert_eq!(rig.form("/oauth2/revoke", &back, &[]).status, 200);
    for epoch in ["2", "3"] {
        ok(&rig.fleet.ron(&[
            "token",
            "revoke",
            "--epoch",
            epoch,
            "--reason",
            "start over, \u{fc}ber",
        ]));
    }
    let admin = rig.fleet.token("svc-passport", Some("passport:admin"));
    let list = |query: &str| json(&rig.fleet.get(&format!("{url}{query}"), Some(&admin)), 200);
    let all = list("");
    let shown: Vec<Value> = all["revocations"].as_array().unwrap().clone();
    let brief = |one: &Value| json!([one["revoked"]["kind"], one["actor"], one["in_force"]]);
    let want = [
        json!(["epoch", "operator", true]),
        json!(["epoch", "operator", false]),
        json!(["jti", "robot", true]),
        json!(["jti", "operator", true]),
    ];
    assert_eq!(shown.iter().map(brief).collect::<Vec<_>>(), want, "{all}");
    assert_eq!(shown[0]["reason"], "start over, \u{fc}ber");
    assert_eq!(shown[3]["revoked"]["jti"], "first");
    assert_eq!(
        (&all["next"], &all["current_epoch"]),
        (&json!(null), &json!(3))
    );

    // Pages, and limits.
    let mut pages = Vec::new();
    let mut query = "?limit=1".to_owned();
    loop {
        let page = list(&query);
        pages.extend(page["revocations"].as_array().unwrap().clone());
        match page["next"].as_u64() {
            Some(next) => query = format!("?limit=1&before={next}"),
            None => break,
        }
    }
    assert_eq!(pages, shown);
    let since = shown[1]["ts"].as_str().unwrap();
    let newer = list(&format!("?since={since}"));
    assert_eq!(newer["revocations"].as_array().unwrap().len(), 2);
    let live = list("?in_force=true");
    assert_eq!(live["revocations"].as_array().unwrap().len(), 3);
    for bad in [
        "?limit=0",
        "?limit=1001",
        "?since=soon",
        "?before=-1",
        "?x=1",
    ] {
        let reply = rig.fleet.get(&format!("{url}{bad}"), Some(&admin));
        assert_eq!(reply.status, 400, "{bad}");
    }
    let said = ok(&rig.fleet.ron(&["revocations", "list", "--in-force"]));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 4 && lines[2].contains("robot"), "{said}");
    assert!(said.contains("start over, \u{fc}ber"), "{said}");
    let csv = ok(&rig
        .fleet
        .ron(&["revocations", "list", "--limit", "2", "--csv"]));
    assert!(
        csv.lines().count() == 3 && csv.contains("\"start over, \u{fc}ber\""),
        "{csv}"
    );
}
