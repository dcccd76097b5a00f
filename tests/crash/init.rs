//! `kill -9` at any moment of `ron init`: a second run makes what is missing, and the fleet runs.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ron_tests::{Fleet, json, ok, ron_binary, ron_on};

/// Kills per run, each in a directory of its own and again in the previous one.
const KILLS: u32 = 24;
/// Distance between two kill moments; together they span more than a whole run.
const STEP: Duration = Duration::from_millis(20);

#[test]
fn an_interrupted_init_is_finished_by_the_next() {
    let mut dir = Arc::new(tempfile::tempdir().unwrap());
    for n in 0..KILLS {
        let mut init = Command::new(ron_binary())
            .args(["init", "--data-dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(STEP * n);
        let _ = init.kill();
        let _ = init.wait();
        if n % 3 == 2 {
            ok(&ron_on(dir.path(), &["init"]));
            complete(dir);
            dir = Arc::new(tempfile::tempdir().unwrap());
        }
    }
}

/// One key per purpose, and services that work with these keys.
fn complete(dir: Arc<tempfile::TempDir>) {
    let fleet = Fleet::start_in(dir);
    let url = format!("{}/v1/kms/keys", fleet.api_socket("ron-kms"));
    let keys = json(&fleet.get(&url, Some(&fleet.operator_token())), 200);
    let names: Vec<&str> = keys["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| k["key"].as_str().unwrap())
        .collect();
    for purpose in ["issuer", "policy", "manifest", "note"] {
        let of = names.iter().filter(|k| k.contains(&format!("/{purpose}/")));
        assert_eq!(of.count(), 1, "{purpose}: {names:?}");
    }
    fleet.token("svc-wallet", None);
}
