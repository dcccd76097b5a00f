//! Runs the tour of the README unchanged.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use ron_tests::{Fleet, ron_binary, workspace};
use serde_json::Value;

/// The blocks of shell commands under a heading.
fn blocks(text: &str, heading: &str) -> String {
    let section = text.split(heading).nth(1).expect("the heading is there");
    let section = section.split("\n## ").next().unwrap();
    let parts = section.split("```sh\n").skip(1);
    parts
        .map(|part| part.split("```").next().unwrap())
        .collect()
}

#[test]
fn the_tour_with_curl_does_what_it_says() {
    let fleet = Fleet::start();
    let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
    let mut tour = blocks(&readme, "## A tour with curl\n");
    // The tour's ports and binary are those of a machine with the defaults.
    for (service, port) in [("ron-kms", 7440), ("ron-ledger", 7460)] {
        let usual = format!("http://127.0.0.1:{port}");
        assert!(tour.contains(&usual), "{usual}");
        tour = tour.replace(&usual, &fleet.api(service));
    }
    assert!(tour.contains("./target/release/ron"));
    tour = tour.replace("./target/release/ron", ron_binary().to_str().unwrap());
    // Its data directory is the default one.
    let state = tempfile::tempdir().unwrap();
    symlink(fleet.dir(), state.path().join("ron")).unwrap();
    let out = Command::new("bash")
        .args([
            "-c",
            &format!("set -euo pipefail\nshopt -s expand_aliases\n{tour}"),
        ])
        .env("XDG_STATE_HOME", state.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let lines: Vec<&str> = said.lines().collect();
    let json =
        |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert!(json(lines[0])["receipt"]["txid"].is_string(), "{said}");
    assert_eq!(lines[1], lines[2], "the same answer, no second transfer");
    assert_eq!(json(lines[3])["amount_minor"], "250", "{said}");
    assert!(said.contains("\n\u{2014} "), "signed checkpoints: {said}");
}
