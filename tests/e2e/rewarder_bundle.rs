//! Bundles of a run: what `compute` makes, `bundle` keeps, and `verify`, `prove`, `explain` and `diff` read, from a
//! directory and from a plain web server, when no service is left.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ron_tests::{Fleet, ok, python, ron_binary};
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

/// Python's own web server, which knows nothing of ranges.
struct Web {
    server: Child,
    base: String,
}

impl Web {
    fn serve(dir: &Path) -> Self {
        let mut server = Command::new(python())
            .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"])
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        let port = said
            .split_whitespace()
            .find_map(|word| word.parse::<u16>().ok())
            .unwrap_or_else(|| panic!("no port in {said:?}"));
        let base = format!("http://127.0.0.1:{port}");
        Self { server, base }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

const USAGE: &str = "account,metric,amount\nacct:alice,smoothing_pool,3\nacct:bob,smoothing_pool,1\nacct:carol,smoothing_pool,2\n";

/// Computes this usage with the fleet's policy into `dir/name`.
fn compute(fleet: &Fleet, dir: &Path, name: &str, usage: &str) {
    let (csv, sealed) = (format!("{name}.csv"), format!("{name}.sealed"));
    fs::write(dir.join(&csv), usage).unwrap();
    ok(&ron(dir, &["import", &csv, "--out", &sealed]));
    let policy = fleet.dir().join("policy/reward.json");
    let (policy, data) = (policy.to_str().unwrap(), fleet.dir().to_str().unwrap());
    let with = ["--policy", policy, "--data-dir", data, "--out", name];
    ok(&ron(
        dir,
        &[&["compute", name, "--snapshot", &sealed][..], &with].concat(),
    ));
}

#[test]
fn every_command_reads_what_the_others_make_from_a_directory_a_bundle_and_a_web_server() {
    let fleet = Fleet::start();
    let work = tempfile::tempdir().unwrap();
    let dir = work.path();
    compute(&fleet, dir, "before", USAGE);
    compute(
        &fleet,
        dir,
        "after",
        &USAGE.replace("bob,smoothing_pool,1", "bob,smoothing_pool,4"),
    );
    let said = refused(dir, &["bundle", "after", "--out", "kept"]);
    assert!(said.contains("nobody has signed it"), "{said}");
    for name in ["before", "after"] {
        let kept = format!("kept-{name}");
        let said = ok(&ron(dir, &["bundle", name, "--out", &kept, "--unsigned"]));
        assert!(said.contains("3 proofs"), "{said}");
    }
    let again = refused(
        dir,
        &["bundle", "after", "--out", "kept-after", "--unsigned"],
    );
    assert!(again.contains("exists"), "{again}");
    let web = Web::serve(dir);
    let url = |name: &str| format!("{}/kept-{name}/", web.base);
    let places = |name: &str| [name.to_owned(), format!("kept-{name}"), url(name)];
    let data = fleet.dir().to_str().unwrap();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (before, after) in places("before").iter().zip(&places("after")) {
        let verified = ok(&ron(
            dir,
            &["verify", after, "--unsigned", "--data-dir", data],
        ));
        assert!(
            verified.contains("computed again and equal"),
            "{after}: {verified}"
        );
        // Proofs are many files: those on a web server are checked one by one, by their payees.
        let local = after.starts_with("kept");
        assert_eq!(
            verified.contains("3 proofs hold"),
            local,
            "{after}: {verified}"
        );
        let proof: Value =
            serde_json::from_str(&ok(&ron(dir, &["prove", after, "acct:bob"]))).unwrap();
        let explained = ok(&ron(dir, &["explain", after, "acct:bob", "--json"]));
        let changed = ok(&ron(dir, &["diff", before, after, "--json"]));
        found.push(vec![proof.to_string(), explained, changed]);
    }
    assert_eq!(found[0], found[1], "a bundle is its run");
    assert_eq!(found[0], found[2], "a web server has what the disk has");
    fs::write(dir.join("proof.json"), &found[2][0]).unwrap();
    ok(&ron(
        dir,
        &[
            "verify-proof",
            "proof.json",
            "--unsigned",
            "--account",
            "acct:bob",
        ],
    ));
    let page = fs::read_to_string(dir.join("kept-after/index.html")).unwrap();
    assert!(page.starts_with("<!doctype html>"), "the page is whole");
    let nobody = refused(dir, &["prove", &url("after"), "acct:nobody"]);
    assert!(nobody.contains("no payout"), "{nobody}");
    altered(dir, &url("after"), data);
    left_out(dir, &web.base);
}

/// What the web server changes, the reader refuses, and nothing of it stays on the disk.
fn altered(dir: &Path, url: &str, data: &str) {
    let table = dir.join("kept-after/payouts.bin");
    let good = fs::read(&table).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    let verify = ["verify", url, "--unsigned", "--data-dir", data];
    fs::write(&table, &bad).unwrap();
    assert!(refused(dir, &verify).contains("not what bundle.json says"));
    bad.push(0);
    fs::write(&table, &bad).unwrap();
    assert!(refused(dir, &verify).contains("bundle.json says"));
    File::create(&table).unwrap().set_len(65 << 20).unwrap();
    assert!(
        refused(dir, &verify).contains("ranges"),
        "a larger file than a reader takes whole"
    );
    fs::remove_file(&table).unwrap();
    assert!(refused(dir, &verify).contains("payouts.bin"));
    fs::write(&table, &good).unwrap();
    let list = dir.join("kept-after/bundle.json");
    let text = fs::read_to_string(&list).unwrap();
    fs::write(&list, text.replace("payouts.bin", "../escape.bin")).unwrap();
    assert!(refused(dir, &verify).contains("no bundle has"));
    fs::write(&list, &text).unwrap();
    ok(&ron(dir, &verify));
}

/// Without proofs and usage a bundle still proves, and says what it cannot do.
fn left_out(dir: &Path, base: &str) {
    let less = ["--unsigned", "--no-proofs", "--without-usage"];
    ok(&ron(
        dir,
        &[&["bundle", "after", "--out", "small"][..], &less].concat(),
    ));
    let url = format!("{base}/small");
    for place in ["small", &url] {
        let whole = ok(&ron(dir, &["prove", "kept-after", "acct:alice"]));
        assert_eq!(ok(&ron(dir, &["prove", place, "acct:alice"])), whole);
        let said = refused(dir, &["explain", place, "acct:alice"]);
        assert!(said.contains("snapshot.bin"), "{said}");
    }
}
