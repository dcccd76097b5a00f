//! The rules of the project, checked on the source tree: layering, forbidden words and
//! dependencies, no async runtime, file headers, sizes. Each failure says why the rule exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Files that may be longer than [`FILE_LINES_MAX`]; this list only shrinks.
const LONG_FILES: &[&str] = &[
    "crates/ron-proto/src/ledger.rs",
    "crates/ron-proto/src/rewarder.rs",
];
/// How many functions may be longer than [`FN_LINES_MAX`]; this number only shrinks.
const LONG_FUNCTIONS_MAX: usize = 2;
const FILE_LINES_MAX: usize = 600;
const FN_LINES_MAX: usize = 70;
const MAIN_LINES_MAX: usize = 80;

const STOREYS: &[(&str, u8)] = &[
    ("ron-proto", 0),
    ("ron-crypto", 0),
    ("ron-kernel", 1),
    ("ron-tlog", 2),
    ("ron-http", 2),
    ("ron-auth", 3),
    ("ron-client", 3),
    ("ron-service", 3),
    ("ron-kms", 4),
    ("svc-passport", 4),
    ("ron-ledger", 4),
    ("svc-wallet", 4),
    ("svc-rewarder", 4),
    ("svc-admin", 4),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests live in the workspace")
        .to_owned()
}

/// One Rust file: its path from the root, and its text without the unit tests at its end.
struct Source {
    path: String,
    whole: String,
    code: String,
}

impl Source {
    fn krate(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or("")
    }
}

fn sources(under: &[&str]) -> Vec<Source> {
    let mut files = Vec::new();
    for dir in under {
        walk(&root().join(dir), &mut files);
    }
    files.sort();
    let read = |path: &PathBuf| {
        let whole = fs::read_to_string(path).expect("a source file is readable");
        let cut = ["#[cfg(test)]", "#[cfg(all(test", "#![cfg(test)]"]
            .iter()
            .filter_map(|mark| whole.find(mark))
            .min()
            .unwrap_or(whole.len());
        let name = path
            .strip_prefix(root())
            .expect("under the root")
            .display()
            .to_string();
        let is_test = name.ends_with("tests.rs")
            || name.ends_with("/models.rs")
            || name.contains("/tests/")
            || name.contains("/examples/");
        let code = if is_test {
            String::new()
        } else {
            strip_comments(&whole[..cut])
        };
        Source {
            path: name,
            code,
            whole,
        }
    };
    files.iter().map(read).collect()
}

fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && name != "node_modules" && name != "dist" {
                walk(&path, into);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Removes line comments, so that prose may name what code may not.
fn strip_comments(text: &str) -> String {
    let keep = |line: &str| match line.find("//") {
        Some(at) if !line[..at].contains('"') => line[..at].to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(keep).collect::<Vec<_>>().join("\n")
}

fn report(rule: &str, why: &str, found: &[String]) {
    assert!(
        found.is_empty(),
        "{rule}\nwhy: {why}\n  {}\n",
        found.join("\n  ")
    );
}

/// Places where `word` occurs in the code of files that `watch` accepts.
fn places(all: &[Source], word: &str, watch: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for source in all.iter().filter(|s| watch(s)) {
        for (n, line) in source.code.lines().enumerate() {
            if line.contains(word) {
                found.push(format!("{}:{}: {}", source.path, n + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn dependencies_point_down_only() {
    let storey: BTreeMap<_, _> = STOREYS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, level) in STOREYS {
        let text =
            fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).expect("manifest");
        let normal = text.split("[dev-dependencies]").next().unwrap_or("");
        for (other, other_level) in &storey {
            if normal
                .lines()
                .any(|l| l.starts_with(&format!("{other}.workspace")))
                && other_level >= level
            {
                wrong.push(format!(
                    "{name} (storey {level}) depends on {other} (storey {other_level})"
                ));
            }
        }
    }
    report(
        "a crate depends only on lower storeys, never on one of its own",
        "services speak HTTP through ron-client, so that each can be run, tested and replaced alone",
        &wrong,
    );
}

#[test]
fn only_the_kernel_touches_threads_and_time() {
    let all = sources(&["crates", "bin"]);
    for word in [
        "crossbeam_channel",
        "parking_lot",
        "arc_swap",
        "std::thread",
        "thread::spawn",
        "Instant::now",
        "SystemTime::now",
        "std::sync::Mutex",
        "std::sync::RwLock",
        "std::sync::Condvar",
        "sync::mpsc",
    ] {
        report(
            &format!("`{word}` stands outside ron-kernel"),
            "threads are named and drained, time is a value, locks have ranks, queues have bounds: in one place",
            &places(&all, word, |s| s.krate() != "ron-kernel"),
        );
    }
    report(
        "an unbounded channel",
        "every queue is bounded and says what it does when it is full",
        &places(&all, "unbounded(", |_| true),
    );
}

#[test]
fn pure_rooms_stay_pure() {
    let all = sources(&["crates"]);
    let pure = |s: &Source| {
        let tlog = ["tree", "note", "checkpoint", "tile", "proof"];
        s.path.contains("/src/core/")
            || s.path.contains("/src/calculus/")
            || tlog
                .iter()
                .any(|m| s.path.contains(&format!("ron-tlog/src/{m}")))
            || s.krate() == "ron-proto"
    };
    assert!(
        all.iter().filter(|s| pure(s)).count() > 10,
        "the pure rooms were not found"
    );
    for word in [
        "ron_kernel",
        "ron_http",
        "ron_service",
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
        "HashMap",
        "HashSet",
    ] {
        report(
            &format!("`{word}` in a pure room"),
            "cores decide from their input alone, so that the same input gives the same bytes everywhere",
            &places(&all, word, pure),
        );
    }
    for word in ["f32", "f64"] {
        let money = |s: &Source| {
            s.path.contains("/src/core/")
                || s.path.contains("/src/calculus/")
                || s.path.contains("svc-rewarder/src/manifest")
                || s.path.contains("svc-wallet/src/policy")
                || s.path.contains("ron-proto/src/ledger")
                || s.path.contains("ron-proto/src/wallet")
        };
        report(
            "a float near money",
            "amounts are exact",
            &places(&all, word, money),
        );
    }
}

#[test]
fn nothing_is_left_for_later() {
    let all = sources(&["crates", "bin", "benches", "tests"]);
    for word in [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("dbg", "!("),
    ] {
        report(
            &format!("`{word}`"),
            "what is not built is not there",
            &places(&all, word, |_| true),
        );
    }
    report(
        "`.unwrap()` outside tests",
        "an impossible case is proven by its `expect`, a possible one is an error",
        &places(&all, ".unwrap()", |s| {
            !s.path.starts_with("tests/") && !s.path.starts_with("benches/")
        }),
    );
}

#[test]
fn every_file_says_what_it_is_for() {
    let missing: Vec<_> = sources(&["crates", "bin", "tests", "benches"])
        .into_iter()
        .filter(|s| !s.whole.starts_with("//!"))
        .map(|s| s.path)
        .collect();
    report(
        "a file without a `//!` line at its top",
        "a reader should guess the file from the symptom",
        &missing,
    );
}

#[test]
fn files_and_functions_stay_small() {
    let all = sources(&["crates", "bin"]);
    let mut long = Vec::new();
    for s in &all {
        let lines = s.whole.lines().count();
        if lines > FILE_LINES_MAX && !LONG_FILES.contains(&s.path.as_str()) {
            long.push(format!("{}: {lines} lines", s.path));
        }
        if s.path.starts_with("bin/") && s.path.ends_with("/main.rs") && lines > MAIN_LINES_MAX {
            long.push(format!(
                "{}: {lines} lines, main files have at most {MAIN_LINES_MAX}",
                s.path
            ));
        }
    }
    report(
        &format!("files over {FILE_LINES_MAX} lines"),
        "split them by what they are about",
        &long,
    );
    let functions: Vec<_> = all.iter().flat_map(long_functions).collect();
    assert!(
        functions.len() <= LONG_FUNCTIONS_MAX,
        "functions over {FN_LINES_MAX} lines: {} where {LONG_FUNCTIONS_MAX} are allowed\n  {}",
        functions.len(),
        functions.join("\n  ")
    );
}

/// Functions of a file that span too many lines, by indentation (the tree is formatted).
fn long_functions(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.code.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let is_fn = [
            "fn ",
            "pub fn ",
            "pub(crate) fn ",
            "pub(super) fn ",
            "const fn ",
            "pub const fn ",
        ]
        .iter()
        .any(|p| body.starts_with(p));
        let declared_only = line.ends_with(';'); // in a trait
        if !is_fn || declared_only {
            continue;
        }
        let close = format!("{}}}", " ".repeat(indent));
        let Some(len) = lines[start..].iter().position(|l| *l == close) else {
            continue;
        };
        if len > FN_LINES_MAX {
            found.push(format!("{}:{}: {len} lines", source.path, start + 1));
        }
    }
    found
}

#[test]
fn no_async_runtime_is_in_the_tree() {
    let out = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--all-features",
            "--locked",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let meta: Value = serde_json::from_slice(&out.stdout).expect("cargo metadata is JSON");
    let names: BTreeSet<&str> = meta["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    assert!(names.contains("ron-kernel"), "the metadata is not ours");
    let forbidden = [
        "tokio",
        "async-std",
        "smol",
        "async-executor",
        "async-io",
        "futures-executor",
        "postgres",
        "hyper",
        "monoio",
        "glommio",
        "may",
        "tiny_http",
        "actix-rt",
    ];
    let found: Vec<_> = forbidden
        .iter()
        .filter(|f| names.contains(**f))
        .map(ToString::to_string)
        .collect();
    report(
        "an async runtime in the tree",
        "every thread here is a named thread that drains",
        &found,
    );
}

#[test]
fn every_dependency_has_its_line() {
    let table = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let reasons = fs::read_to_string(root().join("docs/adr/dependencies.md"))
        .expect("docs/adr/dependencies.md");
    let section = table.split("[workspace.dependencies]").nth(1).unwrap_or("");
    let section = section.split("\n[").next().unwrap_or("");
    let missing: Vec<_> = section
        .lines()
        .filter_map(|l| l.split_once(" = ").map(|(name, _)| name.trim()))
        .filter(|name| !STOREYS.iter().any(|(ours, _)| ours == name))
        .filter(|name| !reasons.contains(&format!("`{name}`")))
        .map(ToOwned::to_owned)
        .collect();
    report(
        "a dependency without its line in docs/adr/dependencies.md",
        "each has a reason and a keeper",
        &missing,
    );
}

#[test]
fn the_project_speaks_of_itself_alone() {
    let out = Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output();
    let Ok(out) = out else { return };
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("../sha", "red"),
        concat!("sub", "agent"),
        concat!("issue ", "#"),
    ];
    let mut found = Vec::new();
    for name in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(text) = fs::read_to_string(root().join(name)) else {
            continue;
        };
        for (n, line) in text.lines().enumerate() {
            if words.iter().any(|w| line.contains(w)) {
                found.push(format!("{name}:{}", n + 1));
            }
        }
    }
    report(
        "words about places and people outside the project",
        "the text must make sense to a stranger",
        &found,
    );
}
