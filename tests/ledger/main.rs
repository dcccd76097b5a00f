//! The ledger's stores in a running fleet: derived files are deleted and rebuilt identically, a
//! backup taken under load is complete, a changed byte is named. And random sequences of operations in
//! process, beside the reference model.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[allow(dead_code)] // parts of the model that only the ledger's own tests use
#[path = "../../fuzz/src/ledger.rs"]
mod sequences;
mod third_parties;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_tests::{CALL, Fleet, caught_up, copy_tree, json, ok, ron_on};
use serde_json::{Value, json};

/// What the fuzzer does with its inputs, with random ones.
#[test]
fn random_sequences_agree_with_the_model() {
    let mut draws = ron_tests::Draws::seeded();
    for _ in 0..ron_tests::number("RON_SEQUENCES", 3_000) {
        let length = draws.below(400);
        let bytes: Vec<u8> = (0..length).map(|_| draws.below(256) as u8).collect();
        sequences::run(&bytes);
    }
}

struct Bank {
    fleet: Fleet,
    token: String,
    url: String,
}

impl Bank {
    fn of(fleet: Fleet) -> Self {
        let (url, token) = (fleet.api("svc-wallet"), fleet.token("svc-wallet", None));
        Self { fleet, token, url }
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> ron_http::Reply {
        let url = format!("{}/v1/{path}", self.url);
        let headers = [("Idempotency-Key", key)];
        let end = Instant::now() + CALL;
        loop {
            let token = Some(self.token.as_str());
            let reply = self.fleet.post(&url, token, &body.to_string(), &headers);
            // A temporary refusal may be repeated under its key.
            if ![429, 503].contains(&reply.status) || Instant::now() > end {
                return reply;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn get(&self, path: &str) -> Value {
        let url = format!("{}/v1/{path}", self.url);
        json(&self.fleet.get(&url, Some(&self.token)), 200)
    }

    fn issue(&self, key: &str, to: &str, n: u64) {
        let body = json!({"to": to, "asset": "ron", "amount_minor": n.to_string()});
        json(&self.post(key, "issue", &body), 200);
    }

    /// History once the projection, which may be rebuilt just now, has what the ledger has.
    fn history(&self, account: &str) -> Value {
        let known = self.get(&format!("balance?account={account}&asset=ron"))["as_of_seq"].clone();
        let url = format!(
            "{}/v1/account/{account}/history?limit=500&min_seq={known}",
            self.url
        );
        let reply = caught_up(|| self.fleet.get(&url, Some(&self.token)));
        json(&reply, 200)["entries"].take()
    }

    /// Every answer a caller can get, for comparing before and after; parts that depend on the
    /// moment are left out.
    fn answers(&self) -> Value {
        let balance = |account: &str| {
            let mut doc = self.get(&format!("balance?account={account}&asset=ron"));
            for moment in ["stale_ms", "as_of", "as_of_seq"] {
                doc.as_object_mut().unwrap().remove(moment);
            }
            doc
        };
        let accounts = ["a", "b", "held"];
        let (balances, histories) = (accounts.map(balance), accounts.map(|a| self.history(a)));
        let replay = json(&self.post("t-3", "transfer", &transfer(3)), 200);
        json!({ "balances": balances, "history": histories, "op": self.get("ops/t-3"), "replay": replay })
    }
}

fn transfer(nonce: u64) -> Value {
    json!({"from": "a", "to": "b", "asset": "ron", "amount_minor": "1", "nonce": nonce})
}

fn data(fleet: &Fleet) -> PathBuf {
    fleet.dir().join("ron-ledger/data")
}

#[test]
fn derived_files_are_rebuilt_identically() {
    let mut bank = Bank::of(Fleet::start());
    bank.issue("i", "a", 1_000);
    bank.issue("j", "held", 50);
    let hold = json!({"from": "held", "asset": "ron", "amount_minor": "20", "nonce": 1, "expires_at": "2200-01-01T00:00:00.000Z"});
    json(&bank.post("h", "hold", &hold), 200);
    for nonce in 1..=40 {
        json(
            &bank.post(&format!("t-{nonce}"), "transfer", &transfer(nonce)),
            200,
        );
    }
    assert_eq!(bank.post("t-x", "transfer", &transfer(7)).status, 409);
    let before = bank.answers();
    let wallet = bank.fleet.dir().join("svc-wallet/data");
    let ledger = data(&bank.fleet);
    let gone: [(&str, Vec<PathBuf>); 3] = [
        ("snapshots and key files", vec![ledger.join("derived")]),
        (
            "the projection",
            ["", "-wal", "-shm"]
                .map(|end| ledger.join(format!("projection.sqlite{end}")))
                .to_vec(),
        ),
        ("the wallet's copy of answers", vec![wallet.join("answers")]),
    ];
    for (what, paths) in gone {
        let dir = bank.fleet.keep_dir();
        assert_eq!(bank.fleet.stop(), Some(0));
        assert!(
            paths[0].exists(),
            "{what}: {} was never made",
            paths[0].display()
        );
        for path in paths {
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_dir_all(&path);
        }
        bank = Bank::of(Fleet::start_in(dir));
        assert_eq!(bank.answers(), before, "without {what}");
    }
}

#[test]
fn a_backup_taken_under_load_is_complete_and_restores() {
    let bank = Bank::of(Fleet::start());
    bank.issue("i", "a", 1_000_000);
    let backups = tempfile::tempdir().unwrap();
    let to = backups.path().join("b1");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|s| {
        let load = s.spawn(|| {
            let mut nonce = 0;
            while !stop.load(Ordering::Acquire) {
                nonce += 1;
                json(
                    &bank.post(&format!("t-{nonce}"), "transfer", &transfer(nonce)),
                    200,
                );
            }
            nonce
        });
        std::thread::sleep(Duration::from_millis(1_500)); // a signed checkpoint, and entries after it
        let out = bank.fleet.ron(&["ledger", "backup", &to.to_string_lossy()]);
        stop.store(true, Ordering::Release);
        let sent = load.join().unwrap();
        assert!(ok(&out).contains("backup verified"));
        sent
    });
    let stat = |dir: &Path| -> Value {
        let log = dir.join("log").to_string_lossy().into_owned();
        let args = ["ledger", "stat", "--json", "--log-dir", &log];
        serde_json::from_str(&ok(&ron_on(bank.fleet.dir(), &args))).unwrap()
    };
    let saved = stat(&to);
    let entries = saved["entries"].as_u64().unwrap();
    assert!(
        entries > 1 && entries <= sent + 1,
        "{entries} of {}",
        sent + 1
    );
    assert_eq!(saved["assets"][0]["circulating_minor"], "1000000");

    let exported = backups.path().join("all.jsonl");
    let log = to.join("log").to_string_lossy().into_owned();
    ok(&bank.fleet.ron(&[
        "ledger",
        "export",
        "--log-dir",
        &log,
        "--out",
        &exported.to_string_lossy(),
    ]));
    let text = std::fs::read_to_string(&exported).unwrap();
    assert_eq!(text.lines().count() as u64, entries);
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["seq"], &first["entry"]["kind"]),
        (&json!(1), &json!("issue"))
    );

    // The ledger is lost; the backup takes its place.
    let Bank { mut fleet, .. } = bank;
    let dir = fleet.keep_dir();
    let in_use = fleet.ron(&["ledger", "restore", &to.to_string_lossy()]);
    assert!(!in_use.status.success(), "not beside a running ledger");
    assert_eq!(fleet.stop(), Some(0));
    let not_over = fleet.ron(&["ledger", "restore", &to.to_string_lossy()]);
    assert!(
        !not_over.status.success(),
        "not over a ledger that is there"
    );
    std::fs::rename(data(&fleet).join("log"), backups.path().join("lost")).unwrap();
    ok(&fleet.ron(&["ledger", "restore", &to.to_string_lossy()]));
    let bank = Bank::of(Fleet::start_in(dir));
    let moved = entries - 1;
    let balance = bank.get("balance?account=b&asset=ron");
    assert_eq!(balance["amount_minor"], moved.to_string());
    json(&bank.post("after", "transfer", &transfer(moved + 1)), 200);
    std::thread::sleep(Duration::from_millis(1_200));
    ok(&bank.fleet.ron(&["ledger", "verify"]));
}

#[test]
fn a_changed_byte_anywhere_is_named() {
    let mut bank = Bank::of(Fleet::start());
    for n in 0..20 {
        bank.issue(&format!("i-{n}"), "a", 1_000 + n);
    }
    assert_eq!(bank.fleet.stop(), Some(0));
    let copies = tempfile::tempdir().unwrap();
    let log = data(&bank.fleet).join("log");
    let segment = std::fs::read(log.join("00000000.seg")).unwrap();
    let mut named = 0;
    for at in (64..segment.len()).step_by(segment.len() / 25) {
        let copy = copies.path().join(format!("c{at}"));
        copy_tree(&log, &copy);
        let mut bytes = segment.clone();
        bytes[at] ^= 0x20;
        std::fs::write(copy.join("00000000.seg"), bytes).unwrap();
        let dir = copy.to_string_lossy().into_owned();
        let out = bank.fleet.ron(&["ledger", "verify", "--log-dir", &dir]);
        assert!(!out.status.success(), "byte {at} was not missed");
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        named += u32::from(why.contains("entry ") || why.contains("index "));
    }
    assert!(named >= 20, "{named} of 25 name the entry");
}
