//! The demo: five real epochs, paid once, equal to an independent recomputation, verified offline
//! on a copy with the pinned keys alone; tampering is detected and named.

use std::path::Path;
use std::process::Command;

use ron_tests::{Fleet, copy_tree, ok, python, ron_on, workspace};

#[test]
fn five_epochs_are_paid_once_and_everything_verifies() {
    let mut fleet = Fleet::start();
    ok(&fleet.ron(&[
        "wallet",
        "issue",
        "acct:alice",
        "1",
        "--asset",
        "ron",
        "--key",
        "before",
    ]));
    // Without a terminal to ask on.
    let refused = fleet.ron(&["demo", "--json"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && why.contains("or --yes"),
        "{why}"
    );
    let first = ok(&fleet.ron(&["demo", "--json", "--yes"]));
    assert_eq!(first.lines().count(), 5, "{first}");
    let again = ok(&fleet.ron(&["demo", "--json"]));
    assert_eq!(again, first, "a second run pays nothing more");
    recomputed(&fleet);
    ok(&fleet.ron(&["ledger", "verify"])); // live, without a lock
    assert_eq!(fleet.stop(), Some(0));

    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("copy");
    copy_tree(fleet.dir(), &copy);
    for check in [
        ["audit", "verify"],
        ["ledger", "verify"],
        ["rewarder", "verify"],
    ] {
        ok(&ron_on(&copy, &check));
    }
    tampered(&copy);
}

/// Totals and payouts compared with plain Python over the CSV and the policy.
fn recomputed(fleet: &Fleet) {
    let runs = fleet.dir().join("svc-rewarder/data/runs/tenant-default");
    for name in ["03", "12", "21", "30", "45"] {
        let out = Command::new(python())
            .arg(workspace().join("tests/recompute/rewarder_check.py"))
            .arg("--csv")
            .arg(workspace().join(format!("examples/rocketpool/interval-{name}.csv")))
            .arg("--policy")
            .arg(fleet.dir().join("policy/reward.json"))
            .args([
                "--tenant",
                "default",
                "--epoch",
                &format!("rocketpool:{name}"),
                "--run-dir",
            ])
            .arg(runs.join(format!("epoch-rocketpool:{name}")))
            .output()
            .unwrap();
        ok(&out);
    }
}

/// One flipped byte anywhere in a log's entries makes its check fail.
fn tampered(copy: &Path) {
    for (log, check) in [
        ("ron-kms/data/audit", "audit"),
        ("ron-ledger/data/log", "ledger"),
    ] {
        let file = largest(&copy.join(log));
        let good = std::fs::read(&file).unwrap();
        let mut bad = good.clone();
        let at = good.len() / 2;
        bad[at] ^= 1;
        std::fs::write(&file, &bad).unwrap();
        let out = ron_on(copy, &[check, "verify"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{check}: a changed byte went unseen");
        assert!(
            said.chars().any(|c| c.is_ascii_digit()),
            "{check} names the place: {said}"
        );
        std::fs::write(&file, &good).unwrap();
        ok(&ron_on(copy, &[check, "verify"]));
    }
}

fn largest(dir: &Path) -> std::path::PathBuf {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.push((entry.metadata().unwrap().len(), path));
            }
        }
    }
    files.into_iter().max().expect("a log has files").1
}
