//! `ron backup` of a fleet at work, and `ron restore` at another path: what was acknowledged before the backup is there, and
//! nothing takes the restored state for the one that was lost.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ron_tests::{Fleet, SERVICES, json, ok, read_json, ron_on, until};
use serde_json::{Value, json};

/// Operations of each kind before the backup, and after it.
const OPERATIONS: usize = 40;

fn op_id(n: usize) -> String {
    format!("0190f0a0-0000-7000-8000-{n:012}")
}

/// Sends transfer `n`; its transaction.
fn transfer(fleet: &Fleet, token: &str, n: usize) -> Value {
    let body = json!({"from": "a", "to": "b", "asset": "ron", "amount_minor": "1", "nonce": n + 1});
    let url = format!("{}/v1/transfer", fleet.api("svc-wallet"));
    let key = format!("t-{n}");
    let reply = fleet.post(
        &url,
        Some(token),
        &body.to_string(),
        &[("Idempotency-Key", &key)],
    );
    json(&reply, 200)
}

fn sign(fleet: &Fleet, key: &Value, n: usize) -> Value {
    let body = json!({"key": key, "message": "eA", "op_id": op_id(n)});
    fleet.kms("sign", &body, 200)["signature"].clone()
}

fn made(fleet: &Fleet, alg: &str, n: usize) -> Value {
    let body =
        json!({"tenant": "ron", "purpose": "app", "alg": alg, "payload": "any", "op_id": op_id(n)});
    fleet.kms("keys", &body, 201)["key"].clone()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What callers were answered before the backup began.
struct Receipts {
    transfers: Vec<Value>,
    signatures: Vec<Value>,
}

/// Backs a fleet up while callers move money and sign.
fn backed_up_at_work(fleet: &Fleet, token: &str, key: &Value, to: &Path) -> Receipts {
    let (stop, count) = (
        AtomicBool::new(false),
        [(); 2].map(|()| AtomicUsize::new(0)),
    );
    let repeat = |which: usize, call: &dyn Fn(usize) -> Value| {
        let mut receipts = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            receipts.push(call(receipts.len()));
            count[which].store(receipts.len(), Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        receipts
    };
    let reached = |more: [usize; 2]| {
        until("callers go on", || {
            (0..2).all(|which| count[which].load(Ordering::SeqCst) >= more[which] + OPERATIONS)
        });
    };
    let now = || [0, 1].map(|which| count[which].load(Ordering::SeqCst));
    std::thread::scope(|scope| {
        let money = scope.spawn(|| repeat(0, &|n| transfer(fleet, token, n)));
        let keys = scope.spawn(|| repeat(1, &|n| sign(fleet, key, 1_000 + n)));
        reached([0, 0]);
        let before = now();
        let said = ok(&fleet.ron(&["backup", "--to", text(to)]));
        reached(now());
        stop.store(true, Ordering::SeqCst);
        for verified in [
            "audit log verified",
            "revocation log verified",
            "ledger verified",
        ] {
            assert!(said.contains(verified), "{said}");
        }
        let (mut transfers, mut signatures) = (money.join().unwrap(), keys.join().unwrap());
        transfers.truncate(before[0]);
        signatures.truncate(before[1]);
        Receipts {
            transfers,
            signatures,
        }
    })
}

/// Each acknowledged operation gets its answer again, and none is carried out twice.
fn nothing_acknowledged_is_lost(fleet: &Fleet, key: &Value, receipts: &Receipts) {
    let token = fleet.token("svc-wallet", None);
    for (n, was) in receipts.transfers.iter().enumerate() {
        assert_eq!(
            transfer(fleet, &token, n)["txid"],
            was["txid"],
            "transfer {n}"
        );
    }
    for (n, was) in receipts.signatures.iter().enumerate() {
        assert_eq!(&sign(fleet, key, 1_000 + n), was, "signature {n}");
    }
    let url = format!("{}/v1/balance?account=b&asset=ron", fleet.api("svc-wallet"));
    let balance = json(&fleet.get(&url, Some(&token)), 200);
    let balance: usize = balance["amount_minor"].as_str().unwrap().parse().unwrap();
    assert!(balance >= receipts.transfers.len(), "{balance}");
}

/// The audit log goes on under another name, and its first leaf names the log before, which is kept.
fn the_log_is_another(dir: &Path, fleet: &Fleet, old: &Value) {
    let keys = read_json(&dir.join("verifiers.json"));
    assert_ne!(keys["audit_vkey"], old["audit_vkey"]);
    assert_eq!(keys["ledger_vkey"], old["ledger_vkey"]);
    let leaves = ok(&fleet.ron(&["audit", "tail", "--lines", "100000"]));
    let first: Value = serde_json::from_str(leaves.lines().next().unwrap()).unwrap();
    let context = first["context"].as_str().unwrap();
    let vkey = old["audit_vkey"].as_str().unwrap();
    let origin = vkey.split('+').next().unwrap();
    assert_eq!(first["op"], "recover");
    assert!(
        context.contains(&format!("of {origin} size ")) && context.contains("witnessed 123456"),
        "{context}"
    );
    let before = dir.join("ron-kms/data/audit.1");
    let args = [
        "audit",
        "verify",
        "--log-dir",
        text(&before),
        "--vkey",
        vkey,
    ];
    ok(&fleet.ron(&args));
}

#[test]
fn a_fleet_at_work_is_restored_elsewhere_and_says_so() {
    let mut fleet = Fleet::start();
    let (signing, cipher) = (made(&fleet, "ed25519", 1), made(&fleet, "aes256-gcm", 2));
    let wrap = |fleet: &Fleet| {
        let url = format!("{}/v1/kms/wrap", fleet.api_socket("ron-kms"));
        let body = json!({"key": cipher, "plaintext": "eA"}).to_string();
        fleet.post(&url, Some(&fleet.operator_token()), &body, &[])
    };
    let wrapped = json(&wrap(&fleet), 200)["ciphertext"].clone();
    let token = fleet.token("svc-wallet", None);
    let issue = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let funds = r#"{"to":"a","asset":"ron","amount_minor":"1000000"}"#;
    let issued = fleet.post(&issue, Some(&token), funds, &[("Idempotency-Key", "i")]);
    assert_eq!(issued.status, 200);
    let place = tempfile::tempdir().unwrap();
    let backups = place.path().join("backups");
    ok(&fleet.ron(&["backup", "--to", text(&backups)]));
    let receipts = backed_up_at_work(&fleet, &token, &signing, &backups);
    let old = read_json(&fleet.dir().join("verifiers.json"));
    fleet.kill();

    let dir = Arc::new(tempfile::tempdir().unwrap());
    let args = ["restore", "--from", text(&backups), "--witnessed", "123456"];
    let said = ok(&ron_on(dir.path(), &args));
    for words in [
        "recovered: this is the state of",
        "tokens of epochs before",
        "unwrap, and wrap again",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert!(said.contains(cipher.as_str().unwrap()), "{said}");
    let again = ron_on(dir.path(), &args);
    let why = String::from_utf8_lossy(&again.stderr);
    assert!(
        !again.status.success() && why.contains("has files"),
        "{why}"
    );
    for service in SERVICES {
        let config = fs::read_to_string(dir.path().join(service).join("config.toml")).unwrap();
        assert!(
            !config.contains(text(fleet.dir())),
            "{service} has paths from before"
        );
    }

    let fleet = Fleet::start_in(dir.clone());
    nothing_acknowledged_is_lost(&fleet, &signing, &receipts);
    the_log_is_another(dir.path(), &fleet, &old);
    let before = fleet.get(
        &format!("{}/v1/balance?account=b&asset=ron", fleet.api("svc-wallet")),
        Some(&token),
    );
    assert_eq!(before.status, 401, "a token from before");
    assert_eq!(json(&wrap(&fleet), 409)["code"], "uses_exhausted");
    let unwrap = json!({"key": cipher, "ciphertext": wrapped});
    assert_eq!(fleet.kms("unwrap", &unwrap, 200)["plaintext"], "eA");
    ok(&fleet.ron(&["kms", "rotate", cipher.as_str().unwrap()]));
    assert_eq!(wrap(&fleet).status, 200);
    let report = String::from_utf8(fleet.ron(&["doctor"]).stdout).unwrap();
    assert!(report.contains("from the backup of"), "{report}");
    // The restored fleet is backed up as any other, and a restore of that is the second recovery.
    ok(&fleet.ron(&["backup", "--to", text(&backups), "--keep", "1"]));
    let third = place.path().join("third");
    ok(&ron_on(&third, &["restore", "--from", text(&backups)]));
    let all = read_json(&third.join("recoveries.json"));
    assert_eq!(all["recoveries"].as_array().unwrap().len(), 2);
    assert!(third.join("ron-kms/data/audit.2").exists());
    let out = ron_on(
        &third,
        &[
            "audit",
            "verify",
            "--log-dir",
            text(&third.join("ron-kms/data/audit.2")),
        ],
    );
    assert!(!out.status.success(), "it has another key");
    damage_is_found(&backups, place.path());
}

/// A backup of which a byte changed is not restored, and neither is what is no backup.
fn damage_is_found(backups: &Path, place: &Path) {
    let names = fs::read_dir(backups).unwrap().flatten();
    let mut all = names.map(|entry| entry.path()).filter(|path| path.is_dir());
    let backup = all.next().unwrap();
    assert!(all.next().is_none(), "one is kept");
    let file = backup.join("svc-wallet/config.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config + "\n").unwrap();
    let target = place.join("fourth");
    for (from, words) in [
        (backups, "config.toml is not the file"),
        (place, "is no backup"),
    ] {
        let out = ron_on(&target, &["restore", "--from", text(from)]);
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && why.contains(words), "{why}");
        assert!(!target.exists());
    }
}
