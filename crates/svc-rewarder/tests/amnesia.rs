//! `amnesia = true`: a whole epoch writes nothing to any disk, and nothing is left in memory after
//! the service has ended or was killed. A single test, because it counts the writes of its own
//! process.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_proto::rewarder::RunState;
use serde_json::json;
use support::{by, end, policy, start};

/// Bytes that this process has written to block devices so far.
fn written() -> u64 {
    let text = fs::read_to_string("/proc/self/io").expect("Linux");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    line.expect("its line").parse().expect("a number")
}

/// Directories of services with amnesia on in this process.
fn homes() -> Vec<PathBuf> {
    let me = format!("{}\n", std::process::id());
    fs::read_dir("/dev/shm")
        .expect("a RAM disk")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().contains("/svc-rewarder-"))
        .filter(|path| fs::read_to_string(path.join("LOCK")).is_ok_and(|pid| pid == me))
        .collect()
}

fn files_in(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let path = entry.path();
            if path.is_dir() { files_in(&path) } else { 1 }
        })
        .sum()
}

#[test]
fn an_epoch_in_amnesia_leaves_nothing_anywhere() {
    // What a killed service leaves: its directory, with a lock file that no process holds.
    let dead = PathBuf::from(format!("/dev/shm/svc-rewarder-dead{}", std::process::id()));
    fs::create_dir(&dead).expect("new");
    fs::write(dead.join("LOCK"), "1\n").expect("writable");
    fs::write(dead.join("usage"), "secret").expect("writable");
    let before = written();
    let (running, caller) = start("amnesia = true\nlimits.import_memory = \"1MiB\"");
    assert!(!dead.exists(), "what was left behind is gone");
    let homes_now = homes();
    let [home] = homes_now.as_slice() else {
        panic!("one directory: {homes_now:?}");
    };
    let mode = fs::metadata(home).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "for this user only");
    // Large enough to use every kind of file: body, sorting, spool, artifacts.
    let mut rows = String::new();
    for row in 0..90_000 {
        let _ = writeln!(rows, "account:{:07},m,{}", (row * 7_919) % 90_000, row + 1);
    }
    let pool = json!({"pool": {"account": "pool:default/test", "amount_minor": "100000000"}});
    let request = caller.inputs(&policy(&pool), &rows);
    let epoch = "e1".parse().expect("an epoch");
    let run = caller
        .typed()
        .compute(&epoch, &request, Duration::from_secs(25), by());
    let run = run.expect("computed");
    assert_eq!(run.state, RunState::Sealed);
    assert!(files_in(home) > 5, "they are in the RAM disk");
    let page = caller.get("/rewarder/epochs/e1/payouts?limit=2", 200);
    assert_eq!(page["count"], run.totals.expect("sealed").recipients);
    // The artifacts alone are more than ten megabytes; a page or two may be the test's own.
    let bytes = written() - before;
    assert!(bytes < 64 << 10, "{bytes} bytes were written to a disk");
    end(running);
    assert!(!home.exists(), "it ends with the service");

    // A new service knows nothing of the epoch, and computing it again gives the same result.
    let (running, caller) = start("amnesia = true");
    caller.get("/rewarder/epochs/e1", 404);
    let request = caller.inputs(&policy(&pool), &rows);
    let again = caller
        .typed()
        .compute(&epoch, &request, Duration::from_secs(25), by());
    assert_eq!(again.expect("computed").commitment, run.commitment);
    end(running);
    assert_eq!(homes(), Vec::<PathBuf>::new());
}
