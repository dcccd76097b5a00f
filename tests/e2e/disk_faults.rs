//! The ledger's disk is full, or its flush fails, while the real programs run: nothing is
//! acknowledged that is not durable, writes are refused with the reason, reads and replays
//! continue, and with free space again nothing is missing.
//!
//! A preloaded library in the ledger's process makes the C library's calls fail
//! (`disk_fault.c`), so the test needs no privileges and no disk of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ron_http::{Call, Reply};
use ron_kernel::Deadline;
use ron_tests::processes::Rig;
use ron_tests::{ok, ron_on, workspace};
use serde_json::Value;

pub fn library(to: &Path) -> PathBuf {
    let out = to.join("disk_fault.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .arg(&out)
        .arg(workspace().join("tests/e2e/disk_fault.c"))
        .arg("-ldl")
        .output()
        .unwrap();
    ok(&made);
    out
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

/// `/readyz` of the ledger.
fn ledger_says(rig: &Rig) -> (u16, String) {
    let url = format!("http://127.0.0.1:{}/readyz", rig.port("ron-ledger") + 5);
    let by = Deadline::within(Duration::from_secs(5));
    let reply = rig.http.call(Call::get(&url, by)).unwrap();
    (reply.status, text(&reply))
}

/// The response tells the wallet's caller that nothing was done, why, and who must act.
fn says_why(reply: &Reply, reason: &str, cause: &str, hint: &str) {
    let doc: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(doc["code"], "ledger_closed", "{doc}");
    assert_eq!(doc["details"]["cause"], cause, "{doc}");
    assert_eq!(doc["retryable"], true, "{doc}");
    assert!(reply.header("retry-after").is_some(), "{doc}");
    let detail = doc["detail"].as_str().unwrap();
    for part in [reason, "nothing was done", hint] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
}

/// One run with a fault in the middle; `what` is the fault's letter, `reason` what the operator
/// must be shown, `cause` and `hint` what callers are told in addition.
fn fault(what: &str, reason: &str, cause: &str, hint: &str) {
    let tools = tempfile::tempdir().unwrap();
    let (control, so) = (tools.path().join("control"), library(tools.path()));
    std::fs::write(&control, "-").unwrap();
    let (file, preload) = (control.clone(), so);
    let mut rig = Rig::start_with(|dir| {
        vec![
            ("LD_PRELOAD", preload),
            ("DISK_FAULT_FILE", file),
            ("DISK_FAULT_DIR", dir.join("ron-ledger/data")),
        ]
    });
    let mut told: Vec<(String, Reply)> = Vec::new();
    for n in 0..20 {
        let key = format!("well-{n}");
        let reply = rig.patiently(|| rig.issue(&key, "a", 5).unwrap());
        assert_eq!(reply.status, 200, "{}", text(&reply));
        told.push((key, reply));
    }
    rig.was_calm();
    let txid: Value = serde_json::from_slice(&told[3].1.body).unwrap();
    let tx = format!("/v1/tx/{}", txid["receipt"]["txid"].as_str().unwrap());

    std::fs::write(&control, what).unwrap();
    // Requests in flight when the fault occurs have no outcome yet; later ones are refused, and
    // nothing was done.
    let (mut open, mut told_why) = (Vec::new(), 0);
    for n in 0..10 {
        let key = format!("bad-{n}");
        let reply = rig.issue(&key, "a", 1).unwrap();
        match reply.status {
            504 => {
                let at = format!("/v1/ops/{key}");
                assert_eq!(reply.header("location"), Some(at.as_str()));
                open.push(key);
            }
            503 => {
                says_why(&reply, reason, cause, hint);
                told_why += 1;
            }
            other => panic!("{key}: {other} {}", text(&reply)),
        }
    }
    assert!(
        open.len() <= 2,
        "after the first failure all are refused: {open:?}"
    );
    assert!(told_why >= 8, "{told_why} were told why");
    let (status, why) = ledger_says(&rig);
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("store"), "{why}");
    let lines = std::fs::read_to_string(rig.ledger_log()).unwrap();
    let first = lines.lines().find(|l| l.contains("commit_failed"));
    assert!(first.is_some_and(|l| l.contains(reason)), "{first:?}");
    for (key, first) in &told {
        let again = rig.issue(key, "a", 5).unwrap();
        assert_eq!((again.status, &again.body), (200, &first.body), "a replay");
    }
    assert_eq!(rig.balance("a")["amount_minor"], "100");
    assert_eq!(rig.get(&tx).status, 200);
    assert_eq!(rig.get("/v1/ops/well-3").status, 200);
    // The wallet itself is not ready and keeps saying why: its probe calls the ledger, which
    // answers reads.
    rig.wait_status("svc-wallet", 503, Duration::from_secs(30));
    says_why(&rig.issue("bad-9", "a", 1).unwrap(), reason, cause, hint);

    // Free space again, or another disk; the ledger is restarted.
    std::fs::write(&control, "-").unwrap();
    rig.kill("ron-ledger");
    rig.run("ron-ledger");
    rig.wait_ready("ron-ledger");
    rig.wait_ready("svc-wallet");
    rig.calm();
    let mut sum = 100;
    for key in &open {
        let asked = rig.patiently(|| rig.get(&format!("/v1/ops/{key}")));
        assert_eq!(asked.status, 200, "{key}: {}", text(&asked));
        let again = rig.patiently(|| rig.issue(key, "a", 1).unwrap());
        assert_eq!(again.status, 200, "sending it again commits it");
        sum += 1;
    }
    for n in (0..10)
        .map(|n| format!("bad-{n}"))
        .filter(|k| !open.contains(k))
    {
        assert_eq!(rig.patiently(|| rig.issue(&n, "a", 1).unwrap()).status, 200);
        sum += 1;
    }
    for (key, first) in &told {
        let again = rig.patiently(|| rig.issue(key, "a", 5).unwrap());
        assert_eq!((again.status, &again.body), (200, &first.body), "{key}");
    }
    assert_eq!(rig.balance("a")["amount_minor"], sum.to_string());
    rig.was_calm();
    let log = rig.dir.path().join("ron-ledger/data/log");
    let verify = ["ledger", "verify", "--log-dir", &log.to_string_lossy()];
    ok(&ron_on(rig.dir.path(), &verify));
    println!("{what}: {} outcomes were open", open.len());
}

#[test]
fn a_full_disk_loses_nothing_and_says_so() {
    fault("f", "No space left", "disk_full", "free space");
}

#[test]
fn a_failed_flush_loses_nothing_and_says_so() {
    fault(
        "s",
        "Input/output error",
        "disk_failed",
        "repair or replace the ledger's disk",
    );
}
