//! Takes the pictures of the console that the documents show. No test: `cargo xtask pictures` runs it when the console has changed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_tests::{ok, ron_on, workspace};

use crate::admin_page::Separate;

/// Time of load before the first picture, so that the charts of the window have something to show.
const BUSY: Duration = Duration::from_secs(75);

/// Pays until it is told to stop, some payments a second.
fn pay(dir: &Path, stop: &AtomicBool) {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let amount = (1 + n % 7).to_string();
        let args = ["wallet", "transfer", "acct:alice", "acct:bob", &amount];
        // Refused while the ledger is down: that is what one of the pictures shows.
        let _ = ron_on(dir, &[&args[..], &["--asset", "ron"]].concat());
        n += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "writes docs/img; cargo xtask pictures"]
fn of_the_console() {
    let out = workspace().join("docs/img");
    std::fs::create_dir_all(&out).unwrap();
    let mut fleet = Separate::start(&["sampler.metrics_interval=2s", "sampler.metrics_window=60s"]);
    let dir = fleet.dir.path().to_owned();
    ok(&ron_on(&dir, &["demo", "--json"]));
    let issue = ["wallet", "issue", "acct:alice", "1000000", "--asset", "ron"];
    ok(&ron_on(&dir, &issue));
    let url = format!("http://127.0.0.1:{}/", fleet.port("svc-admin"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| pay(&dir, &stop));
        std::thread::sleep(BUSY);
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            take(&mut fleet, &url, &out);
        }));
        stop.store(true, Ordering::Relaxed);
        taken.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Runs the browser, and does what it asks for between its pictures.
fn take(fleet: &mut Separate, url: &str, out: &Path) {
    let mut page = Command::new("node")
        .arg(workspace().join("tests/browser/pictures.mjs"))
        .args(["--url", url, "--out"])
        .arg(out)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node is installed by scripts/setup.sh");
    let mut input = page.stdin.take().unwrap();
    for line in BufReader::new(page.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{line}");
        match line.strip_prefix("step ") {
            Some("kill-ledger") => fleet.kill("ron-ledger", "-KILL"),
            Some(other) => panic!("an unknown step {other}"),
            None => continue,
        }
        writeln!(input, "done").unwrap();
    }
    assert!(page.wait().unwrap().success(), "the browser failed");
}
