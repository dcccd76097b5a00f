//! Closed segments of the logs in their archives: read, verified, backed up and restored from there, and missed when a file is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ron_auth::revocation_log;
use ron_files::OsDisk;
use ron_tests::{Fleet, json, ok, read_json, ron_on, until};
use ron_tlog::append::archived_files;
use ron_tlog::{Log, LogOptions, TlogProof, VerifierKey};
use serde_json::json;

/// Entries of a segment of the logs that the test makes, and of that of the KMS.
const SHORT: usize = 256;
const LONG: usize = 65_536;
/// Maximum time until each log has an archived segment.
const ARCHIVED_WITHIN: Duration = Duration::from_secs(180);
/// The services with a log: its directory, and where its parts are served.
const LOGS: [(&str, &str, &str); 3] = [
    ("ron-kms", "data/audit", "/audit/v1"),
    ("ron-ledger", "data/log", "/log/v1"),
    ("svc-passport", "data/revocations", "/revocations/v1"),
];

fn log_dir(dir: &Path, service: &str) -> PathBuf {
    let log = LOGS.iter().find(|(name, ..)| *name == service);
    dir.join(service).join(log.expect("it has a log").1)
}

/// Begins the ledger's log and that of revocations with short segments; both have no entry yet.
fn shorten(dir: &Path) {
    let issuer = read_json(&dir.join("bootstrap.json"))["issuer"].clone();
    let revocations = revocation_log::origin(issuer.as_str().unwrap());
    for (service, origin) in [
        ("ron-ledger", "ron.local/ledger".to_owned()),
        ("svc-passport", revocations),
    ] {
        let log = log_dir(dir, service);
        let _ = fs::remove_dir_all(&log); // that of revocations is made at the first start
        let options = LogOptions {
            segment_entries: SHORT as u64,
            ..LogOptions::new(origin)
        };
        drop(Log::open(Arc::new(OsDisk), &log, options).unwrap());
    }
}

/// Fills two segments of each log, and a part of the next one.
fn fill(fleet: &Fleet) {
    let id = |n: usize| format!("0190f0a0-0000-7000-8000-{n:012}");
    let make = json!({"tenant": "ron", "purpose": "app", "alg": "ed25519", "payload": "any", "op_id": id(0)});
    let key = fleet.kms("keys", &make, 201)["key"].clone();
    let items = vec![json!({"message": "eA"}); 1_000];
    for _ in 0..=(2 * LONG).div_ceil(items.len()) {
        // A busy disk may take longer than the deadline; a leaf too many does no harm.
        until("they are signed", || {
            let url = format!("{}/v1/kms/sign_batch", fleet.api_socket("ron-kms"));
            let body = json!({"key": key, "items": items}).to_string();
            let reply = fleet.post(&url, Some(&fleet.operator_token()), &body, &[]);
            reply.status == 200
        });
    }
    let token = fleet.token("svc-wallet", None);
    let issues =
        vec![json!({"op": "issue", "to": "acct:a", "asset": "ron", "amount_minor": "1"}); 100];
    for n in 0..=(2 * SHORT).div_ceil(issues.len()) {
        let url = format!("{}/v1/batch", fleet.api("svc-wallet"));
        let body = json!({ "items": issues }).to_string();
        let key = [("Idempotency-Key", &*format!("b-{n}"))];
        json(&fleet.post(&url, Some(&token), &body, &key), 200);
    }
    let token = fleet.token("svc-passport", None);
    for n in 0..2 * SHORT + 20 {
        let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
        let body = json!({"jti": format!("t-{n}"), "reason": "leaked"}).to_string();
        json(&fleet.post(&url, Some(&token), &body, &[]), 200);
    }
}

/// Has the services archive at once: the ledger beside its data, the others in one directory elsewhere.
fn configure(dir: &Path, elsewhere: &Path) {
    for (service, archive) in [
        ("ron-kms", elsewhere.to_str().unwrap()),
        ("ron-ledger", "archive"),
        ("svc-passport", elsewhere.to_str().unwrap()),
    ] {
        let path = dir.join(service).join("config.toml");
        let text = fs::read_to_string(&path).unwrap();
        let keys = format!("archive_dir = \"{archive}\"\narchive_after = \"0s\"\n");
        fs::write(&path, keys + &text).unwrap();
    }
}

fn archived(dir: &Path, service: &str) -> Vec<PathBuf> {
    archived_files(&OsDisk, &log_dir(dir, service)).unwrap()
}

/// The first entry of a log and its proof; the proof is verified.
fn first_entry(fleet: &Fleet, service: &str) -> Vec<u8> {
    let base = LOGS.iter().find(|(name, ..)| *name == service).unwrap().2;
    let get = |path: &str, token: Option<&str>| {
        let reply = fleet.get(
            &format!("{}{base}/{path}", fleet.api_socket(service)),
            token,
        );
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 200, "{service} {path}: {text}");
        reply.body
    };
    let scope = match service {
        "ron-kms" => Some("kms:audit"),
        "ron-ledger" => Some("ledger:audit"),
        _ => None,
    };
    let token = match scope {
        Some(scope) => fleet.token(service, Some(scope)),
        None => fleet.service_token("svc-wallet", service),
    };
    let bundle = get("tile/entries/000", Some(&token));
    let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
    let entry = bundle[2..2 + len].to_vec();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let vkey: VerifierKey = text(get("vkey", None)).trim().parse().unwrap();
    let proof = TlogProof::parse(&text(get("proof/0", None))).unwrap();
    proof.verify(&entry, &[vkey], None).unwrap();
    entry
}

fn verify(dir: &Path) {
    for log in ["audit", "ledger", "revocations"] {
        ok(&ron_on(dir, &[log, "verify"]));
    }
}

fn failed(dir: &Path, args: &[&str]) -> String {
    let out = ron_on(dir, args);
    assert!(!out.status.success(), "{args:?}");
    String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
}

/// All feeds and proofs begin in the archive.
fn archives_are_read(fleet: &Fleet) {
    for (service, ..) in LOGS {
        first_entry(fleet, service);
    }
    let feed = json(&fleet.revocations("?after=0"), 200);
    let mut events = feed["events"].as_array().unwrap().iter();
    assert!(
        events.any(|event| event["revoked"]["jti"] == "t-0"),
        "{feed}"
    );
    let url = format!(
        "{}/v1/ledger/events?after=0&limit=10",
        fleet.api_socket("ron-ledger")
    );
    let token = fleet.service_token("svc-wallet", "ron-ledger");
    let feed = json(&fleet.get(&url, Some(&token)), 200);
    assert_eq!(feed["events"].as_array().unwrap().len(), 10, "{feed}");
    verify(fleet.dir());
    let found = String::from_utf8(fleet.ron(&["doctor"]).stdout).unwrap();
    for (service, ..) in LOGS {
        let archive = format!("{service} archive");
        let line = found.lines().find(|line| line.contains(&archive));
        assert!(line.is_some_and(|line| line.starts_with("ok")), "{found}");
    }
}

/// The restored fleet has all of its logs in its own directory, and says when a part of them is gone.
fn restored(backups: &Path, place: &Path, elsewhere: &Path, audit_vkey: &str) {
    let dir = tempfile::tempdir_in(place).unwrap();
    let said = ok(&ron_on(
        dir.path(),
        &["restore", "--from", backups.to_str().unwrap()],
    ));
    for service in ["ron-kms", "svc-passport"] {
        let line = format!("- what {service} had archived in {}", elsewhere.display());
        assert!(said.contains(&line), "{said}");
    }
    assert!(!said.contains("what ron-ledger had"), "{said}");
    for (service, set) in [
        ("ron-kms", false),
        ("ron-ledger", true),
        ("svc-passport", false),
    ] {
        let config = fs::read_to_string(dir.path().join(service).join("config.toml")).unwrap();
        assert_eq!(config.contains("archive_dir"), set, "{service}: {config}");
    }
    // The audit log of the backup is kept beside the one that begins now, which has no checkpoint before the start.
    let before = dir.path().join("ron-kms/data/audit.1");
    let before = ["--log-dir", before.to_str().unwrap(), "--vkey", audit_vkey];
    ok(&ron_on(
        dir.path(),
        &[&["audit", "verify"], &before[..]].concat(),
    ));
    for log in ["ledger", "revocations"] {
        ok(&ron_on(dir.path(), &[log, "verify"]));
    }
    let [part, ..] = &archived(dir.path(), "ron-ledger")[..] else {
        panic!("nothing is archived");
    };
    assert!(part.starts_with(dir.path()), "{}", part.display());
    let away = place.join("away");
    fs::rename(part, &away).unwrap();
    for args in [&["doctor"][..], &["ledger", "verify"]] {
        let why = failed(dir.path(), args);
        assert!(why.contains("00000000.seg is archived, and"), "{why}");
    }
    fs::rename(&away, part).unwrap();
    let fleet = Fleet::start_in(Arc::new(dir));
    first_entry(&fleet, "ron-ledger");
    verify(fleet.dir());
}

#[test]
fn archived_segments_are_read_backed_up_and_restored() {
    let place = tempfile::tempdir().unwrap();
    let (elsewhere, backups) = (place.path().join("elsewhere"), place.path().join("backups"));
    let dir = Arc::new(tempfile::tempdir_in(place.path()).unwrap());
    ok(&ron_on(dir.path(), &["init"]));
    shorten(dir.path());
    let mut fleet = Fleet::start_in(dir.clone());
    fill(&fleet);
    let entries = LOGS.map(|(service, ..)| first_entry(&fleet, service));
    fleet.stop();
    configure(dir.path(), &elsewhere);
    let fleet = Fleet::start_in(dir.clone());
    let began = Instant::now();
    while LOGS
        .iter()
        .any(|(service, ..)| archived(dir.path(), service).is_empty())
    {
        // The key service verifies its log first.
        assert!(began.elapsed() < ARCHIVED_WITHIN, "segments are left");
        sleep(Duration::from_millis(50));
    }
    for (service, at) in [
        ("ron-kms", elsewhere.clone()),
        ("ron-ledger", dir.path().join("ron-ledger/archive")),
        ("svc-passport", elsewhere.clone()),
    ] {
        let files = archived(dir.path(), service);
        assert!(files.iter().all(|file| file.starts_with(&at)), "{files:?}");
        let counted = format!("{}_log_archived_segments_total", service.replace('-', "_"));
        until("it is counted", || fleet.metric(service, &counted) >= 1.0);
    }
    assert_eq!(
        LOGS.map(|(service, ..)| first_entry(&fleet, service)),
        entries
    );
    archives_are_read(&fleet);

    let part = &archived(dir.path(), "svc-passport")[0];
    let away = place.path().join("away");
    fs::rename(part, &away).unwrap();
    let why = failed(dir.path(), &["backup", "--to", backups.to_str().unwrap()]);
    assert!(why.contains("00000000.seg is archived, and"), "{why}");
    fs::rename(&away, part).unwrap();
    ok(&fleet.ron(&["backup", "--to", backups.to_str().unwrap()]));
    let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let kept: Vec<u64> = archived(dir.path(), "svc-passport")
        .iter()
        .map(size)
        .collect();
    let keys = read_json(&dir.path().join("verifiers.json"));
    let vkey = keys["audit_vkey"].as_str().unwrap();
    restored(&backups, place.path(), &elsewhere, vkey);
    let now: Vec<u64> = archived(dir.path(), "svc-passport")
        .iter()
        .map(size)
        .collect();
    assert_eq!(kept, now, "the restored fleet leaves the archive alone");
}
