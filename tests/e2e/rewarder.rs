//! `ron rewarder` as a user runs it: import, compute, verify, prove, export and plot offline, the
//! same through a running fleet, DuckDB as an independent check, and memory that stays bounded.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ron_tests::{Fleet, ok, python, ron_binary, workspace};
use serde_json::Value;

fn ron(dir: &Path, args: &[&str]) -> Output {
    Command::new(ron_binary())
        .arg("rewarder")
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let out = ron(dir, args);
    assert_eq!(out.status.code(), Some(1), "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn duckdb_pays_the_same() {
    let out = Command::new(python())
        .arg(workspace().join("tests/recompute/duckdb_check.py"))
        .args(["--ron", ron_binary().to_str().unwrap()])
        .output()
        .unwrap();
    let text = ok(&out);
    assert!(text.contains("105 of 105 epochs equal"), "{text}");
}

#[test]
fn an_epoch_goes_through_the_fleet_and_comes_back_proven() {
    let fleet = Fleet::start();
    let work = tempfile::tempdir().unwrap();
    let (dir, data) = (work.path(), fleet.dir().to_str().unwrap());
    let csv = workspace().join("examples/rocketpool/interval-45.csv");
    let policy = fleet.dir().join("policy/reward.json");
    let policy = policy.to_str().unwrap();
    let info = ok(&ron(
        dir,
        &[
            "import",
            csv.to_str().unwrap(),
            "--out",
            "u.sealed",
            "--json",
        ],
    ));
    let cid = serde_json::from_str::<Value>(&info).unwrap()["cid"]
        .as_str()
        .unwrap()
        .to_owned();
    let here = [
        "compute",
        "cli:1",
        "--snapshot",
        "u.sealed",
        "--policy",
        policy,
    ];
    ok(&ron(
        dir,
        &[&here[..], &["--out", "run", "--data-dir", data]].concat(),
    ));
    let there = [&here[..], &["--data-dir", data, "--json"]].concat();
    let dry: Value =
        serde_json::from_str(&ok(&ron(dir, &[&there[..], &["--dry-run"]].concat()))).unwrap();
    assert_eq!(
        (&dry["state"], &dry["snapshot"]),
        (&"sealed".into(), &cid.as_str().into())
    );
    fund(&fleet);
    let paid: Value = serde_json::from_str(&ok(&ron(dir, &there))).unwrap();
    assert_eq!(paid["state"], "settled");
    let run = fleet
        .dir()
        .join("svc-rewarder/data/runs/tenant-default/epoch-cli:1");
    let local = std::fs::read(dir.join("run/run.json")).unwrap();
    assert_eq!(
        std::fs::read(run.join("run.json")).unwrap(),
        local,
        "here and there the same bytes"
    );
    let settled = ok(&ron(dir, &["settle", "cli:1", "--data-dir", data]));
    assert!(
        settled.contains("is settled"),
        "settling again changes nothing: {settled}"
    );
    ok(&ron(
        dir,
        &["verify", run.to_str().unwrap(), "--data-dir", data],
    ));
    offline(dir, &run);
    altered(dir, &run, data);
}

/// As `ron rewarder --help` shows it, without a service except for the keys.
#[test]
fn a_run_computed_here_is_verified_here() {
    let fleet = Fleet::start();
    let work = tempfile::tempdir().unwrap();
    let (dir, data) = (work.path(), fleet.dir().to_str().unwrap());
    let usage = "account,metric,amount\nacct:alice,smoothing_pool,3\nacct:bob,smoothing_pool,1\n";
    std::fs::write(dir.join("usage.csv"), usage).unwrap();
    let policy = fleet.dir().join("policy/reward.json");
    let policy = policy.to_str().unwrap();
    ok(&ron(
        dir,
        &[
            "import",
            "usage.csv",
            "--period",
            "2026-11",
            "--out",
            "usage.sealed",
        ],
    ));
    let compute = [
        "compute",
        "2026-11",
        "--snapshot",
        "usage.sealed",
        "--policy",
        policy,
        "--data-dir",
        data,
    ];
    ok(&ron(dir, &[&compute[..], &["--out", "run"]].concat()));
    let said = ok(&ron(
        dir,
        &["verify", "run", "--unsigned", "--data-dir", data],
    ));
    assert!(said.contains("signed by nobody"), "{said}");
    let proof = ok(&ron(dir, &["prove", "run", "acct:alice"]));
    std::fs::write(dir.join("proof.json"), proof).unwrap();
    let said = ok(&ron(dir, &["verify-proof", "proof.json", "--unsigned"]));
    assert!(said.contains("acct:alice"), "{said}");
    explained_and_compared(dir, &compute);
    // With the policy's key alone no data directory is needed.
    let key = read(&fleet.dir().join("verifiers.json"))["policy_public_key"].clone();
    let key = key.as_str().unwrap();
    let empty = dir.join("empty");
    let elsewhere = [
        "--unsigned",
        "--policy-key",
        key,
        "--data-dir",
        empty.to_str().unwrap(),
    ];
    ok(&ron(dir, &[&["verify", "run"][..], &elsewhere].concat()));
    // An unsigned run is accepted only with the flag.
    let why = refused(dir, &["verify", "run", "--data-dir", data]);
    assert!(
        why.contains("run.sig.json") && why.contains("--unsigned"),
        "{why}"
    );
    // An existing signature must verify all the same, and so must everything else.
    std::fs::write(dir.join("run/run.sig.json"), "{}").unwrap();
    let why = refused(dir, &["verify", "run", "--unsigned", "--data-dir", data]);
    assert!(why.contains("run.sig.json"), "{why}");
    std::fs::remove_file(dir.join("run/run.sig.json")).unwrap();
    let mut snapshot = std::fs::read(dir.join("run/snapshot.bin")).unwrap();
    snapshot[56] ^= 1;
    std::fs::write(dir.join("run/snapshot.bin"), snapshot).unwrap();
    let why = refused(dir, &["verify", "run", "--unsigned", "--data-dir", data]);
    assert!(why.contains("snapshot.bin"), "{why}");
    // A policy that the rewarder would refuse is not signed.
    let good = std::fs::read_to_string(policy).unwrap();
    for (from, to, says) in [
        ("pool:default/", "pool:other/", "pool:<tenant>/<name>"),
        ("\"tenant\":\"default\",", "", "tenant"),
        ("\"50000000000000000000\"", "\"0\"", "nothing to pay"),
    ] {
        let draft = dir.join("draft.json");
        assert!(good.contains(from), "{from}");
        std::fs::write(&draft, good.replace(from, to)).unwrap();
        let draft = draft.to_str().unwrap();
        let out = fleet.ron(&["policy", "sign", "--kind", "reward", draft]);
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && why.contains(says), "{why}");
        assert!(!dir.join("draft.json.sig").exists());
    }
    // This policy does not compute another tenant's epoch.
    let why = refused(
        dir,
        &[&compute[..], &["--out", "other", "--tenant", "other"]].concat(),
    );
    assert!(why.contains("belongs to tenant default"), "{why}");
}

/// The run is explained, and compared with another one.
fn explained_and_compared(dir: &Path, compute: &[&str]) {
    let said = ok(&ron(dir, &["explain", "run", "acct:alice"]));
    assert!(said.contains("smoothing_pool 3 x 40"), "{said}");
    assert!(said.contains("the account cap"), "{said}");
    let json = ok(&ron(dir, &["explain", "run", "acct:nobody", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["unpaid"], &json["paid_minor"]),
        (&"no_usage".into(), &"0".into())
    );
    let usage = "account,metric,amount\nacct:alice,smoothing_pool,1\nacct:carla,smoothing_pool,1\n";
    std::fs::write(dir.join("usage.csv"), usage).unwrap();
    ok(&ron(dir, &["import", "usage.csv", "--out", "other.sealed"]));
    let mut other = compute.to_vec();
    other[3] = "other.sealed";
    other.extend(["--out", "run-2"]);
    ok(&ron(dir, &other));
    let files = ["--csv", "diff.csv", "--svg", "diff.svg"];
    let diff = [&["diff", "run", "run-2", "--json"][..], &files].concat();
    let diff: Value = serde_json::from_str(&ok(&ron(dir, &diff))).unwrap();
    let of = |kind: &str| {
        (
            diff["changes"][kind]["accounts"].as_u64(),
            diff["changes"][kind]["minor"].as_str().map(str::to_owned),
        )
    };
    // The policy's account cap holds all of them.
    let cap = || Some("2500000000000000000".to_owned());
    for kind in ["appeared", "left", "same"] {
        assert_eq!(of(kind), (Some(1), cap()), "{kind}");
    }
    assert_eq!(of("lowered"), (Some(0), Some("0".to_owned())));
    assert_eq!(diff["largest"][1]["account"], "acct:carla");
    let rows = std::fs::read_to_string(dir.join("diff.csv")).unwrap();
    let due = "account,before_minor,after_minor,change_minor\n\
               acct:bob,2500000000000000000,0,-2500000000000000000\n\
               acct:carla,0,2500000000000000000,2500000000000000000\n";
    assert_eq!(rows, due);
    let svg = std::fs::read_to_string(dir.join("diff.svg")).unwrap();
    assert_eq!(svg.matches("<circle").count(), 3);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let same = ok(&ron(dir, &["diff", "run", "run"]));
    assert!(same.contains("same"), "{same}");
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The demo funds the pool and pays its own epochs; this test needs one pool more.
fn fund(fleet: &Fleet) {
    let policy = std::fs::read(fleet.dir().join("policy/reward.json")).unwrap();
    let policy: Value = serde_json::from_slice(&policy).unwrap();
    let body = serde_json::json!({
        "to": policy["pool"]["account"], "asset": policy["asset"],
        "amount_minor": policy["pool"]["amount_minor"]
    });
    let token = fleet.token("svc-wallet", None);
    let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let reply = fleet.post(
        &url,
        Some(&token),
        &body.to_string(),
        &[("Idempotency-Key", "fund-1")],
    );
    ron_tests::json(&reply, 200);
}

fn offline(dir: &Path, run: &Path) {
    let run = run.to_str().unwrap();
    let payouts = ok(&ron(dir, &["export", run]));
    let mut rows = payouts.lines();
    assert_eq!(rows.next(), Some("index,account,amount_minor"));
    let first: Vec<&str> = rows.next().unwrap().split(',').collect();
    let proof: Value = serde_json::from_str(&ok(&ron(dir, &["prove", run, first[1]]))).unwrap();
    assert_eq!(proof["payout"]["amount_minor"], first[2]);
    let manifest = std::fs::read(Path::new(run).join("run.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let sum: u128 = payouts
        .lines()
        .skip(1)
        .map(|row| row.rsplit(',').next().unwrap().parse::<u128>().unwrap())
        .sum();
    assert_eq!(manifest["totals"]["payout_minor"], sum.to_string());
    ok(&ron(
        dir,
        &["export", run, "--format", "ndjson", "--out", "p.ndjson"],
    ));
    let lines = std::fs::read_to_string(dir.join("p.ndjson")).unwrap();
    assert_eq!(lines.lines().count() + 1, payouts.lines().count());
    ok(&ron(dir, &["plot", run, "run", "--out", "p.svg"]));
    let svg = std::fs::read_to_string(dir.join("p.svg")).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 2, "one curve a run");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

/// With a changed byte of the manifest, or of a payout, the checks fail.
fn altered(dir: &Path, run: &Path, data: &str) {
    for (file, at) in [("run.json", 40), ("payouts.bin", 200)] {
        let copy = dir.join(format!("altered-{file}"));
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(run).unwrap() {
            let entry = entry.unwrap();
            let mut bytes = std::fs::read(entry.path()).unwrap();
            if entry.file_name() == file {
                bytes[at] ^= 1;
            }
            std::fs::write(copy.join(entry.file_name()), bytes).unwrap();
        }
        let why = refused(dir, &["verify", copy.to_str().unwrap(), "--data-dir", data]);
        assert!(why.contains(file), "{why}");
        assert!(
            !ron(dir, &["export", copy.to_str().unwrap()])
                .status
                .success()
        );
    }
}

#[test]
fn a_bad_row_is_named_by_file_and_line_and_leaves_nothing_behind() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path();
    std::fs::create_dir(dir.join("events")).unwrap();
    std::fs::write(dir.join("events/1.csv"), "account,metric,amount\na,m,1\n").unwrap();
    let bad = "{\"account\":\"a\",\"metric\":\"m\",\"amount\":\"2\"}\n{\"account\":\"a\"}\n";
    std::fs::write(dir.join("events/2.ndjson"), bad).unwrap();
    let why = refused(dir, &["import", "events", "--kind", "events", "--out", "u"]);
    assert!(why.contains("2.ndjson: line 2"), "{why}");
    std::fs::write(dir.join("events/2.ndjson"), bad.lines().next().unwrap()).unwrap();
    let why = refused(dir, &["import", "events", "--out", "u"]);
    assert!(
        why.contains("2.ndjson: line 1: this account already"),
        "{why}"
    );
    let left: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["events"]);
    ok(&ron(
        dir,
        &["import", "events", "--kind", "events", "--out", "u"],
    ));
    let why = refused(
        dir,
        &[
            "compute",
            "e",
            "--snapshot",
            "u",
            "--policy",
            "none",
            "--out",
            "r",
        ],
    );
    assert!(why.contains("cannot read"), "{why}");
}

/// Peak resident memory of an import, in KiB, read while it runs.
fn peak(dir: &Path, memory: &str, out: &str) -> u64 {
    let mut child = Command::new(ron_binary())
        .args([
            "rewarder", "import", "big.csv", "--out", out, "--memory", memory,
        ])
        .current_dir(dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let seen = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(seen.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(child.wait().unwrap().success());
    peak
}

#[test]
fn an_import_larger_than_its_memory_stays_within_it() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path();
    let mut text = String::from("account,metric,amount\n");
    let mut state = 1_u64;
    for row in 0..400_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        writeln!(text, "acct:{:016x}-{row:06},m,{}", state, state >> 40).unwrap();
    }
    std::fs::write(dir.join("big.csv"), text).unwrap();
    let (small, large) = (peak(dir, "4MiB", "small"), peak(dir, "1GiB", "large"));
    println!("peak memory: {small} KiB with 4 MiB for rows, {large} KiB with 1 GiB");
    assert!(small < 48 << 10, "{small} KiB");
    assert!(
        large > small + (12 << 10),
        "the large one needs its memory: {large} KiB"
    );
    assert_eq!(
        std::fs::read(dir.join("small")).unwrap(),
        std::fs::read(dir.join("large")).unwrap()
    );
}
