//! Carries out the commands of docs/ha/README.md and docs/ha/runbooks.md, block by block and as they stand, with programs that are built with the feature
//! `postgres`. The text that the page shows below a block must be in the block's output (`...` stands for anything).
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods
)] // a test may panic and wait

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ron_ha::patroni::free_network;
use rustix::process::{Pid, Signal};

/// A block of commands, and lines that its output must have.
struct Step {
    commands: String,
    says: Vec<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut lines, mut above) = (text.lines(), "");
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            above = line;
            continue;
        };
        let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if kind == "sh" && above == "<!-- run by: pages -->" {
            steps.push(Step {
                commands: inside.join("\n"),
                says: Vec::new(),
            });
        } else if kind == "text" {
            let step = steps
                .last_mut()
                .expect("a result stands below its commands");
            step.says = inside.into_iter().map(str::to_owned).collect();
        }
        above = "";
    }
    steps
}

/// True if the parts of `shown` between `...` stand in the line, in order.
fn fits(shown: &str, line: &str) -> bool {
    let mut rest = line;
    shown.split("...").all(|part| {
        let at = rest.find(part);
        rest = at.map_or("", |at| &rest[at + part.len()..]);
        at.is_some()
    })
}

/// What the commands leave running when one fails, by the process ids that they wrote down.
struct Ended(PathBuf);

impl Drop for Ended {
    fn drop(&mut self) {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let pids = files.map(|file| file.path());
        let pids = pids.filter(|path| path.extension().is_some_and(|ext| ext == "pid"));
        let servers = ["a", "b", "c"].map(|host| self.0.join(host).join("postgres/postmaster.pid"));
        for file in pids.chain(servers) {
            let text = fs::read_to_string(file).unwrap_or_default();
            let pid = text.lines().next().and_then(|line| line.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            // Only a process of this page: process ids are reused.
            let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            let line = line.unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&*self.0.to_string_lossy()) {
                let _ = rustix::process::kill_process(pid, Signal::KILL); // it may have ended
            }
        }
    }
}

/// A port such that the ports of the services behind it are free.
fn free_ports() -> u16 {
    let mut bases = (20_000..32_000).step_by(200);
    let is_free = |base: &u16| {
        let mut ports = (*base..base + 130).step_by(5);
        ports.all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    };
    bases.find(is_free).expect("free ports")
}

/// The directory of the programs: that of this test, without `deps`.
fn programs() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let deps = own.parent().expect("a directory");
    deps.parent().expect("a directory").to_owned()
}

#[test]
#[ignore = "minutes; run it with `cargo xtask ha-pages`"]
fn the_pages_are_carried_out_as_they_stand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let readme = page("docs/ha/README.md");
    // The runbooks are for what the first page has made, and its last section ends.
    let (before, stop) = readme.split_once("\n## Stop it").expect("a section");
    let pages = [before, &page("docs/ha/runbooks.md"), stop].join("\n");
    let dir = tempfile::Builder::new()
        .prefix("ron-ha-")
        .tempdir_in("/tmp")
        .unwrap();
    let run = Command::new("chmod").arg("755").arg(dir.path()).status();
    assert!(run.unwrap().success());
    let data = dir.path().join("data");
    let _ended = Ended(data.clone());
    let steps = steps(&pages);
    assert!(steps.len() > 10, "blocks are missing");
    let mut script = String::from("set -euo pipefail\n");
    for (at, step) in steps.iter().enumerate() {
        let said = dir.path().join(format!("said.{at}"));
        let block = format!(
            "{{\n{}\n}} > {} 2>&1 < /dev/null\n",
            step.commands,
            said.display()
        );
        script += &block;
    }
    let path = std::env::var("PATH").unwrap();
    let status = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&root)
        .env("D", &data)
        .env("NET", free_network())
        .env("PORT", free_ports().to_string())
        .env("PATH", format!("{}:{path}", programs().display()))
        .stdin(Stdio::null())
        .status()
        .unwrap();
    for (at, step) in steps.iter().enumerate() {
        let said = fs::read_to_string(dir.path().join(format!("said.{at}")));
        let said = said.unwrap_or_default();
        println!("$ {}\n{said}", step.commands);
        if status.success() {
            let mut lines = said.lines();
            for shown in &step.says {
                let found = lines.by_ref().any(|line| fits(shown, line));
                assert!(found, "`{shown}` is missing in:\n{said}");
            }
        }
    }
    assert!(status.success(), "a block failed: the last one with output");
}
