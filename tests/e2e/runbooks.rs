//! Carries out the runbooks unchanged, each against six running services of its own. The output
//! that a page shows below its commands is compared with the real one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ron_tests::{base_port, ron_binary, unhurried, workspace};

/// Maximum time for one page, in seconds.
const PAGE_S: u32 = 300;

/// A block of commands, and what the page says about it.
#[derive(Debug)]
pub struct Step {
    pub commands: String,
    /// The commands must fail.
    fails: bool,
    /// Lines that the output must contain, in this order.
    pub says: Vec<String>,
}

/// The blocks of a page, in order; and the number of those that a program cannot carry out.
pub fn steps(text: &str) -> (Vec<Step>, usize) {
    let (mut steps, mut by_hand): (Vec<Step>, usize) = (Vec::new(), 0);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            continue;
        };
        let inside: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
        match kind {
            "sh" | "sh fails" => steps.push(Step {
                commands: inside.join("\n"),
                fails: kind == "sh fails",
                says: Vec::new(),
            }),
            "text" => {
                let step = steps
                    .last_mut()
                    .expect("a result stands below its commands");
                assert!(step.says.is_empty(), "two results of one box");
                step.says = inside.into_iter().map(str::to_owned).collect();
            }
            "sh by hand" => by_hand += 1,
            "toml" => {} // a part of a configuration, to be written there
            other => panic!("a box of the unknown kind `{other}`"),
        }
    }
    (steps, by_hand)
}

/// True if a line matches what the page shows; `...` stands for anything.
fn fits(shown: &str, line: &str) -> bool {
    let mut rest = line.trim_end();
    let parts: Vec<&str> = shown.split("...").collect();
    for (at, part) in parts.iter().enumerate() {
        let found = match (at, at + 1 == parts.len()) {
            (0, true) => rest == *part,
            (0, false) => rest.starts_with(part),
            (_, true) => rest.ends_with(part),
            _ => rest.contains(part),
        };
        if !found {
            return false;
        }
        let end = rest.find(part).map_or(0, |at| at + part.len());
        rest = &rest[end..];
    }
    true
}

/// The first shown line that is missing from the output, in order.
pub fn missing<'a>(shown: &'a [String], said: &str) -> Option<&'a str> {
    let mut said = said.lines();
    shown
        .iter()
        .find(|shown| !said.by_ref().any(|line| fits(shown, line)))
        .map(String::as_str)
}

fn page(name: &str) -> String {
    fs::read_to_string(workspace().join("docs/runbooks").join(name)).unwrap()
}

/// The page with the places of this run: data directory, ports.
fn placed(text: &str, work: &Path, ports: [u16; 2]) -> String {
    text.replace("/srv/ron", &work.join("ron").display().to_string())
        .replace(
            "ron init --data-dir $D\n",
            &format!("ron init --data-dir $D --base-port {}\n", ports[0]),
        )
        .replace("--base-port 7700", &format!("--base-port {}", ports[1]))
}

/// One shell runs all blocks, so that the variables of one are set in the next.
pub fn script(steps: &[Step]) -> String {
    let mut text = String::from("set -euo pipefail\n");
    for (at, step) in steps.iter().enumerate() {
        let run = format!("{{\n{}\n}} > said.{at} 2>&1 < /dev/null", step.commands);
        if step.fails {
            let _ = writeln!(text, "set +e\n{run}\necho $? > code.{at}\nset -e");
        } else {
            let _ = writeln!(text, "{run}\necho 0 > code.{at}");
        }
    }
    text
}

/// Ends the processes of a page, by the process ids it wrote down.
struct Ended(PathBuf);

impl Drop for Ended {
    fn drop(&mut self) {
        let places = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let files = places.flat_map(|p| fs::read_dir(p.path().join("run")).into_iter().flatten());
        for file in files.flatten() {
            let Ok(pid) = fs::read_to_string(file.path()) else {
                continue;
            };
            // Only a process that belongs to this page: process ids are reused.
            let line = fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&*self.0.to_string_lossy()) {
                let _ = Command::new("kill").args(["-9", pid.trim()]).status();
            }
        }
    }
}

/// Compares what the blocks of [`script`] have left in `dir` with what the page shows.
pub fn compared(steps: &[Step], dir: &Path, about: &str) {
    for (at, step) in steps.iter().enumerate() {
        let read = |what| fs::read_to_string(dir.join(format!("{what}.{at}")));
        let said = read("said").unwrap_or_default();
        let code = read("code").ok().and_then(|c| c.trim().parse::<i32>().ok());
        let place = format!(
            "at\n{}\nwith {code:?}, said\n{said}\n{about}",
            step.commands
        );
        assert_eq!(code.map(|c| c != 0), Some(step.fails), "{place}");
        if let Some(line) = missing(&step.says, &said) {
            panic!("nobody said `{line}`: {place}");
        }
    }
}

/// Carries out a page on a system of its own.
fn carried_out(name: &str, by_hand: usize) {
    let work = tempfile::tempdir().unwrap();
    let _ended = Ended(work.path().to_owned());
    let ports = [base_port(), base_port()];
    let (mut all, none) = steps(&placed(&page("README.md"), work.path(), ports));
    assert_eq!(none, 0);
    let (own, left) = steps(&placed(&page(name), work.path(), ports));
    assert_eq!(left, by_hand, "{name}: boxes that nothing carries out");
    all.extend(own);
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = ron_binary().parent().unwrap().display().to_string();
    let status = unhurried(&mut Command::new("timeout"))
        .args(["-k", "5", &PAGE_S.to_string(), "bash", "-c", &script(&all)])
        .current_dir(work.path())
        .env("PATH", format!("{bin}:{path}"))
        .env("XDG_STATE_HOME", work.path().join("nothing"))
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let log = fs::read_to_string(work.path().join("ron/run/ron-kms.log")).unwrap_or_default();
    let tail: Vec<&str> = log.lines().rev().take(5).collect();
    compared(
        &all,
        work.path(),
        &format!("{name}, {status}; kms: {tail:#?}"),
    );
    assert!(status.success(), "{name}: {status}");
}

#[test]
fn backup_and_restore() {
    carried_out("backup.md", 1);
}

#[test]
fn key_rotation() {
    carried_out("key-rotation.md", 0);
}

#[test]
fn loss_of_a_device() {
    carried_out("hsm-loss.md", 1);
}

#[test]
fn an_audit_alarm() {
    carried_out("audit-alarm.md", 0);
}

#[test]
fn ledger_recovery() {
    carried_out("ledger-recovery.md", 0);
}

#[test]
fn a_quarantined_epoch() {
    carried_out("quarantined-epoch.md", 0);
}

#[test]
fn an_epoch_from_the_wrong_inputs() {
    carried_out("wrong-epoch.md", 0);
}

#[test]
fn a_doubted_date() {
    carried_out("clock.md", 0);
}

#[test]
fn revocations_that_were_changed() {
    carried_out("revocation-log.md", 2);
}

#[test]
fn a_disk_that_hangs_or_fills_up() {
    carried_out("disk.md", 0);
}

#[test]
fn an_upgrade() {
    carried_out("upgrade.md", 0);
}

#[test]
fn no_page_is_left_out() {
    let pages = fs::read_dir(workspace().join("docs/runbooks")).unwrap();
    let pages: BTreeSet<String> = pages
        .map(|p| p.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    let this = fs::read_to_string(workspace().join("tests/e2e/runbooks.rs")).unwrap();
    let index = page("README.md");
    for name in pages {
        let call = format!("carried_out(\"{name}\"");
        assert!(this.contains(&call), "{name} is not carried out");
        assert!(index.contains(&format!("({name})")), "{name} is not listed");
    }
}

#[test]
fn what_a_page_shows_is_compared() {
    assert!(fits("a ... c", "a b c") && fits("a", "a ") && fits("...c", "a c"));
    assert!(!fits("a", "a b") && !fits("a ... c", "a b") && !fits("b...", "a b"));
    let shown = ["one...".to_owned(), "two".to_owned()];
    assert_eq!(missing(&shown, "one\nmore\ntwo\n"), None);
    assert_eq!(missing(&shown, "two\none\n"), Some("two"), "in this order");
}
