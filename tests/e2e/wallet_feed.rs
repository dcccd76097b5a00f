//! The wallet's feed of the ledger's events during faults: an event that is lost on the way, a
//! ledger that was restored from a backup, and one that was restored and has continued.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_http::{Call, Reply};
use ron_kernel::Deadline;
use ron_tests::processes::{Rig, code};
use ron_tests::{Fleet, caught_up, json, metric, ok, ron_on, socket_of, until};
use serde_json::{Value, json};

use super::wallet::Wallet;

/// An issue that is done, and its response.
fn issued(rig: &Rig, key: &str, n: u64) -> Reply {
    let reply = rig.patiently(|| rig.issue(key, "a", n).unwrap());
    done(&reply);
    reply
}

fn done(reply: &Reply) {
    assert_eq!(
        reply.status,
        200,
        "{}",
        String::from_utf8_lossy(&reply.body)
    );
}

fn replayed(reply: &Reply) -> bool {
    reply.header("idempotency-replayed") == Some("true")
}

/// Makes the ledger unavailable and requests the result of a key: answered from the wallet's copy,
/// or with an honest refusal.
fn in_the_copy(rig: &Rig, key: &str, n: u64) -> bool {
    let reply = rig.issue(key, "a", n).unwrap();
    if reply.status == 200 {
        assert!(replayed(&reply), "{key} is not new");
        return true;
    }
    assert_eq!((reply.status, code(&reply)), (503, "retry_later".into()));
    assert_eq!(rig.get(&format!("/v1/ops/{key}")).status, 503, "never 404");
    false
}

/// Forwards requests unchanged; on demand it removes the first event of a page.
fn lossy(at: &Path, to: PathBuf, lose: &Arc<AtomicBool>) {
    let listener = UnixListener::bind(at).unwrap();
    let lose = Arc::clone(lose);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(near), Ok(far)) = (stream, UnixStream::connect(&to)) else {
                continue;
            };
            let lose = Arc::clone(&lose);
            std::thread::spawn(move || relay(near, far, &lose));
        }
    });
}

/// One message: its head with the empty line, and its body. `None` at the end of the connection.
fn message(from: &mut BufReader<UnixStream>) -> Option<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let at = head.len();
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
        let line = head[at..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn relay(near: UnixStream, far: UnixStream, lose: &AtomicBool) {
    let (Ok(mut to_near), Ok(mut to_far)) = (near.try_clone(), far.try_clone()) else {
        return;
    };
    let (mut near, mut far) = (BufReader::new(near), BufReader::new(far));
    while let Some((head, body)) = message(&mut near) {
        let sent = to_far
            .write_all(head.as_bytes())
            .and(to_far.write_all(&body));
        let (Ok(()), Some((mut answer, mut said))) = (sent, message(&mut far)) else {
            return;
        };
        if head.starts_with("GET /v1/ledger/events") && lose.load(Ordering::SeqCst) {
            let mut page: Value = serde_json::from_slice(&said).unwrap_or_default();
            let events = page["events"].as_array_mut();
            if let Some(events) = events.filter(|events| !events.is_empty()) {
                events.remove(0);
                lose.store(false, Ordering::SeqCst);
                let old = format!("{}\r\n", said.len());
                said = page.to_string().into_bytes();
                answer = answer.replace(&old, &format!("{}\r\n", said.len()));
            }
        }
        let back = to_near
            .write_all(answer.as_bytes())
            .and(to_near.write_all(&said));
        if back.is_err() {
            return;
        }
    }
}

#[test]
fn an_event_that_is_lost_on_the_way_is_noticed_and_nothing_is_made_up() {
    let mut rig = Rig::start();
    let lose = Arc::new(AtomicBool::new(false));
    let run = rig.dir.path().join("run");
    let proxy = run.join("lossy.sock");
    lossy(&proxy, run.join("ron-ledger/api.sock"), &lose);
    rig.kill("svc-wallet");
    let config = rig.dir.path().join("svc-wallet/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let ledger = socket_of(rig.dir.path(), "ron-ledger", "api");
    assert!(text.contains(&ledger), "{text}");
    let text = text.replace(&ledger, &format!("unix:{}", proxy.display()));
    std::fs::write(&config, text).unwrap();
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
    rig.wait_copied(&issued(&rig, "one", 5));
    assert_eq!(rig.wallet_metric("svc_wallet_feed_gaps_total"), 0);
    assert_eq!(
        rig.balance("a")["amount_minor"],
        "5",
        "remembered from here on"
    );
    // The wallet knows its own writes, and does not miss the event of one until it waits for events at the ledger.
    let (mut n, mut second) = (0, None);
    until("the loss is noticed", || {
        n += 1;
        lose.store(true, Ordering::SeqCst);
        second = Some(issued(&rig, &format!("two-{n}"), 7));
        until("a page lacks an event", || !lose.load(Ordering::SeqCst));
        std::thread::sleep(Duration::from_millis(200));
        rig.wallet_metric("svc_wallet_feed_gaps_total") > 0
    });
    let (lost, second) = (format!("two-{n}"), second.unwrap());
    let balance = (5 + 7 * n + 1).to_string();
    let third = issued(&rig, "three", 1);
    assert_eq!(rig.balance("a")["amount_minor"], balance);
    rig.wait_copied(&third);
    rig.kill("ron-ledger");
    rig.wait_status("svc-wallet", 503, Duration::from_secs(20));
    assert!(in_the_copy(&rig, "one", 5));
    assert!(in_the_copy(&rig, "three", 1));
    assert!(
        !in_the_copy(&rig, &lost, 7),
        "what was missed is not made up"
    );
    assert_eq!(rig.balance("a")["amount_minor"], balance, "as of before");
    rig.run("ron-ledger");
    rig.wait_ready("svc-wallet");
    let again = issued(&rig, &lost, 7);
    assert!(
        replayed(&again) && again.body == second.body,
        "the ledger knows"
    );
}

/// The lines of the wallet's copy, in order.
fn copy_of(fleet: &Fleet) -> Vec<Value> {
    let dir = fleet.dir().join("svc-wallet/data/answers");
    let files = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    files.sort();
    let texts = files.iter().map(|path| std::fs::read(path).unwrap());
    let lines = texts.flat_map(|text| {
        let lines = serde_json::Deserializer::from_slice(&text).into_iter();
        lines.map(Result::unwrap).collect::<Vec<_>>()
    });
    lines.collect()
}

/// All entries of the ledger.
fn entries_of(fleet: &Fleet) -> Vec<Value> {
    let token = fleet.token("ron-ledger", None);
    let mut entries = Vec::new();
    loop {
        let url = format!(
            "{}/v1/ledger/events?after={}",
            fleet.api("ron-ledger"),
            entries.len()
        );
        let page = json(&fleet.get(&url, Some(&token)), 200);
        entries.extend(page["events"].as_array().unwrap().iter().cloned());
        if page["next"] == page["head"] {
            return entries;
        }
    }
}

/// Four clients at once, whose answers come from two committers; with refusals and with entries that the ledger completes.
#[test]
fn the_wallets_own_entries_are_copied_as_the_ledger_has_them() {
    let w = Wallet::start();
    let client = |c: usize| {
        let account = format!("c{c}");
        let post = |what: &str, path: &str, body: Value| {
            let key = format!("{what}-{c}");
            json(&w.post(&key, path, &body), 200)
        };
        let some = |n: usize| json!({"to": account, "asset": "ron", "amount_minor": n.to_string()});
        let from = |n: usize| {
            json!({"from": account, "to": "shop", "asset": "ron", "amount_minor": n.to_string(),
                "memo": "for tea", "reference": "order 7", "metadata": {"table": "4"}})
        };
        post("fund", "issue", some(1_000));
        for n in 0..40 {
            let key = format!("t-{c}-{n}");
            assert_eq!(w.post(&key, "transfer", &from(1)).status, 200);
        }
        assert_eq!(
            w.post(&format!("over-{c}"), "transfer", &from(9_999))
                .status,
            409
        );
        let reserved = json!({"from": account, "asset": "ron", "amount_minor": "9", "expires_at": "2099-01-01T00:00:00Z"});
        let hold = post("hold", "hold", reserved)["receipt"]["txid"].clone();
        let hold = format!("hold/{}", hold.as_str().unwrap());
        let some_of_it = json!({"to": "shop", "amount_minor": "4"});
        post("pay", &format!("{hold}/capture"), some_of_it);
        post("end", &format!("{hold}/release"), json!({}));
        let items = [
            json!({"op": "hold", "from": account, "asset": "ron", "amount_minor": "5", "expires_at": "2099-01-01T00:00:00Z"}),
            json!({"op": "capture", "hold": "#0", "to": "shop", "amount_minor": "5"}),
        ];
        post("both", "batch", json!({"linked": true, "items": items}));
    };
    std::thread::scope(|scope| {
        for c in 0..4 {
            scope.spawn(move || client(c));
        }
    });
    let entries = entries_of(&w.fleet);
    until("the copy is complete", || {
        copy_of(&w.fleet).len() == entries.len()
    });
    for (copied, entry) in copy_of(&w.fleet).iter().zip(&entries) {
        assert_eq!(copied, entry);
    }
    let gaps = metric(
        &w.fleet.http,
        &w.fleet.health("svc-wallet"),
        "svc_wallet_feed_gaps_total",
    );
    assert_eq!(gaps.as_deref(), Some("0"));
}

/// Restores the ledger's state from a backup.
fn roll_back(rig: &mut Rig, backup: &str) {
    rig.kill("ron-ledger");
    let data = rig.dir.path().join("ron-ledger/data");
    let _ = std::fs::remove_dir_all(rig.dir.path().join("lost"));
    std::fs::rename(data.join("log"), rig.dir.path().join("lost")).unwrap();
    ok(&ron_on(rig.dir.path(), &["ledger", "restore", backup]));
    rig.run("ron-ledger");
    rig.wait_ready("ron-ledger");
    rig.wait_ready("svc-wallet");
}

#[test]
fn a_rolled_back_ledger_is_detected_and_its_lost_receipts_are_not_returned() {
    let mut rig = Rig::start();
    let kept = issued(&rig, "kept", 100);
    std::thread::sleep(Duration::from_millis(1_200)); // a signed checkpoint
    let backup = rig.dir.path().join("backup").display().to_string();
    ok(&ron_on(rig.dir.path(), &["ledger", "backup", &backup]));
    issued(&rig, "lost", 7);
    rig.wait_copied(&issued(&rig, "gone", 9));
    roll_back(&mut rig, &backup);
    until("the wallet notices", || {
        rig.wallet_metric("svc_wallet_feed_gaps_total") > 0
    });
    assert_eq!(rig.balance("a")["amount_minor"], "100");
    assert_eq!(rig.get("/v1/ops/lost").status, 404, "it never happened");
    rig.wait_copied(&kept);
    // Copied answers come from the ledger again; those that it lost are not returned.
    rig.kill("ron-ledger");
    rig.wait_status("svc-wallet", 503, Duration::from_secs(20));
    assert!(in_the_copy(&rig, "kept", 100));
    assert!(!in_the_copy(&rig, "lost", 7));
    rig.run("ron-ledger");
    rig.wait_ready("svc-wallet");
    let again = issued(&rig, "lost", 7);
    assert!(!replayed(&again), "done again");
    assert_eq!(rig.balance("a")["amount_minor"], "107");

    // The same while the wallet is down, and the ledger grows past the wallet's position.
    rig.wait_copied(&issued(&rig, "gone", 9));
    let data = rig.dir.path().join("svc-wallet/data");
    rig.kill("svc-wallet");
    std::fs::rename(data.join("answers"), data.join("before")).unwrap();
    rig.run("svc-wallet");
    roll_back(&mut rig, &backup);
    let others: Vec<_> = (0..5)
        .map(|n| issued(&rig, &format!("other-{n}"), 1))
        .collect();
    rig.kill("svc-wallet");
    std::fs::remove_dir_all(data.join("answers")).unwrap();
    std::fs::rename(data.join("before"), data.join("answers")).unwrap();
    rig.run("svc-wallet");
    rig.wait_ready("svc-wallet");
    until("the wallet notices", || {
        rig.wallet_metric("svc_wallet_feed_gaps_total") > 0
    });
    rig.wait_copied(others.last().unwrap());
    rig.kill("ron-ledger");
    rig.wait_status("svc-wallet", 503, Duration::from_secs(20));
    assert!(in_the_copy(&rig, "kept", 100));
    assert!(in_the_copy(&rig, "other-4", 1));
    assert!(
        !in_the_copy(&rig, "gone", 9),
        "another entry is in its place"
    );
}

/// Holds the write lock of a SQLite file until it is dropped.
struct Locked(std::process::Child);

impl Locked {
    fn new(file: &Path) -> Self {
        let script = "import sqlite3, sys\n\
            db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n\
            db.execute('BEGIN IMMEDIATE')\nprint('locked', flush=True)\nsys.stdin.read()\n";
        let mut child = Command::new(ron_tests::python())
            .args(["-c", script])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Self(child)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A read that needs more than the projection has is refused, and is no failure of the ledger.
fn not_yet_in_the_history(rig: &Rig) {
    let failures = || rig.wallet_metric("svc_wallet_upstream_fail_total{svc=\"ron-ledger\"}");
    let behind =
        "svc_wallet_upstream_calls_total{op=\"read\",outcome=\"behind\",svc=\"ron-ledger\"}";
    let (failed, known) = (failures(), rig.balance("a")["as_of_seq"].clone());
    let reply = rig.get(&format!("/v1/account/a/history?min_seq={known}"));
    assert_eq!((reply.status, code(&reply)), (503, "unavailable".into()));
    let detail = json(&reply, 503)["detail"].to_string();
    assert!(detail.contains("the history is at entry"), "{detail}");
    assert_eq!((failures(), rig.wallet_metric(behind)), (failed, 1));
}

#[test]
fn a_projection_that_stands_still_slows_writes_and_catches_up() {
    let rig = Rig::start();
    let health = format!("http://127.0.0.1:{}", rig.port("ron-ledger") + 5);
    let degraded = || {
        let call = Call::get(&health, Deadline::within(Duration::from_secs(10)));
        let url = format!("{health}/readyz");
        let reply = rig.http.call(Call { url: &url, ..call }).unwrap();
        json(&reply, 200)["degraded"].to_string()
    };
    let before = json(&issued(&rig, "before", 1), 200)["receipt"]["ts"].clone();
    let before = before.as_str().unwrap();
    let projection = rig.dir.path().join("ron-ledger/data/projection.sqlite");
    let lock = Locked::new(&projection);
    let began = Instant::now();
    let mut acknowledged = 1;
    // Written until the lag is noticed; a refused one is done later under its key.
    let refused = (0..10_000).find(|n| {
        let reply = rig.issue(&format!("w-{n}"), "a", 1).unwrap();
        if reply.status == 200 {
            acknowledged += 1;
            std::thread::sleep(Duration::from_millis(100));
            return false;
        }
        assert_eq!((reply.status, code(&reply)), (429, "busy".into()));
        let detail = json(&reply, 429)["detail"].to_string();
        assert!(detail.contains("behind"), "{detail}");
        true
    });
    let refused = refused.unwrap();
    assert!(degraded().contains("projection_lag"), "{}", degraded());
    let after = began.elapsed();
    assert!(
        after > Duration::from_secs(10),
        "only a lag of more than 10 s slows writes, not one of {after:?}"
    );
    // What was answered before is answered.
    let again = rig.patiently(|| rig.issue("before", "a", 1).unwrap());
    assert!(replayed(&again));
    // The past is read all the same, as far as the projection has it.
    let past = format!("/v1/balance?account=a&asset=ron&at={before}");
    let known = || json(&rig.get(&past), 200)["amount_minor"] == "1";
    assert!(known());
    let statement =
        format!("/v1/account/a/statement?asset=ron&from=2020-01-01T00:00:00Z&until={before}");
    assert_eq!(json(&rig.get(&statement), 200)["closing_minor"], "0");
    not_yet_in_the_history(&rig);
    drop(lock);
    until("the projection catches up", || {
        !degraded().contains("projection")
    });
    issued(&rig, &format!("w-{refused}"), 1);
    acknowledged += 1;
    let balance = rig.balance("a");
    assert_eq!(balance["amount_minor"], acknowledged.to_string());
    let known = &balance["as_of_seq"];
    let path = format!("/v1/account/a/history?limit=500&min_seq={known}");
    let history = json(&caught_up(|| rig.get(&path)), 200);
    assert_eq!(history["entries"].as_array().unwrap().len(), acknowledged);
}
