//! What rayon is given stays on threads of the table. A single test, because it counts the threads of its own process.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_kernel::os_thread_names;
use ron_proto::rewarder::{EpochRun, RunState};
use serde_json::json;
use support::{Caller, by, end, policy, start};

/// Threads of the service by name. A thread that rayon starts has the name of the thread that started it.
fn names() -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for name in os_thread_names().expect("Linux") {
        if name.starts_with("rew-") {
            *count.entry(name).or_default() += 1;
        }
    }
    count
}

fn each_is_in_the_table(after: &str) {
    let more: Vec<_> = names().into_iter().filter(|(_, n)| *n > 2).collect();
    assert_eq!(
        more,
        [],
        "more threads than the two services have, after {after}"
    );
}

fn compute(caller: &Caller, request: &ron_proto::rewarder::ComputeRequest) -> EpochRun {
    let epoch = "e1".parse().expect("an epoch");
    let run = caller
        .typed()
        .compute(&epoch, request, Duration::from_secs(25), by());
    run.expect("computed")
}

fn find(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            find(&path, name, found);
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
}

#[test]
fn no_thread_is_started_outside_of_the_table() {
    let (source, there) = start("amnesia = true");
    let token = tempfile::NamedTempFile::new().expect("a file");
    fs::write(token.path(), there.token()).expect("writable");
    let fetching = format!(
        "amnesia = true\nsnapshot.url = \"{}/rewarder/snapshots/{{cid}}\"\nsnapshot.token_file = \"{}\"",
        source.api_url(),
        token.path().display()
    );
    let (running, here) = start(&fetching);
    let mut rows = String::new();
    for row in 0..20_000 {
        let _ = writeln!(rows, "account:{row:07},m,{}", row + 1);
    }
    let sealed = there.upload(&rows);
    each_is_in_the_table("an upload");
    let mut request = here.inputs(&policy(&json!({})), "acct:a,m,1\n");
    request.snapshot = sealed.cid;
    assert_eq!(compute(&here, &request).state, RunState::Sealed);
    each_is_in_the_table("a snapshot that was fetched");

    let mut trees = Vec::new();
    find(Path::new("/dev/shm"), "payouts.tree", &mut trees);
    let mine = |path: &PathBuf| {
        let home = path.ancestors().find(|dir| dir.join("LOCK").exists());
        let pid = home.and_then(|dir| fs::read_to_string(dir.join("LOCK")).ok());
        pid.is_some_and(|pid| pid.trim() == std::process::id().to_string())
    };
    trees.retain(mine);
    assert_eq!(trees.len(), 1, "{trees:?}");
    fs::remove_file(&trees[0]).expect("removed");
    let page = here.get("/rewarder/epochs/e1/payouts?limit=2", 200);
    let paid = page["payouts"][0]["account"].as_str().expect("an account");
    here.get(&format!("/rewarder/epochs/e1/proof/{paid}"), 200);
    each_is_in_the_table("a tree that was lost");
    end(running);
    end(source);
}
