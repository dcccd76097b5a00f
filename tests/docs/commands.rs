//! Every block of commands is run by a test, or says why it is not. The line above it is one of
//!
//! - `<!-- run -->`: `tests/e2e/documented.rs` runs it unchanged;
//! - `<!-- run by: TARGET -->`: that test target runs it (in both cases the source of the test must name the page);
//! - `<!-- not run: REASON -->`: then the scripts, test targets, packages and binaries that it names must exist.
//!
//! Pages under `docs/runbooks/` have a test target of their own. `bin/ron/src/documented.rs` checks that every command
//! line of `ron` and the services parses.

use std::fs;

use ron_tests::workspace;

use crate::links::pages;

/// One block of shell and the mark above it.
struct Block {
    page: String,
    line: usize,
    mark: String,
    text: String,
}

/// The blocks of commands of all pages; panics at commands outside of a marked block.
fn blocks() -> Vec<Block> {
    let mut all = Vec::new();
    let root = workspace();
    for path in pages() {
        let page = path
            .strip_prefix(&root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let (mut above, mut open) = (String::new(), None::<Block>);
        let mut tag = String::new();
        for (n, line) in text.lines().enumerate() {
            let fence = line.trim_start().strip_prefix("```");
            if let Some(block) = &mut open {
                if fence.is_none() {
                    block.text.push_str(line);
                    block.text.push('\n');
                    continue;
                }
                let block = open.take().unwrap();
                match tag.as_str() {
                    "sh" | "python" => all.push(block),
                    // The output of a command.
                    "text" => {}
                    _ if page.starts_with("docs/runbooks/") => {}
                    _ => assert!(
                        !block.text.lines().any(is_command),
                        "{page}:{}: commands stand in blocks marked ```sh",
                        block.line
                    ),
                }
                above = String::new();
            } else if let Some(found) = fence {
                found.clone_into(&mut tag);
                open = Some(Block {
                    page: page.clone(),
                    line: n + 1,
                    mark: std::mem::take(&mut above),
                    text: String::new(),
                });
            } else {
                assert!(
                    !line.strip_prefix("    ").is_some_and(is_command),
                    "{page}:{}: commands stand in blocks marked ```sh, not indented",
                    n + 1
                );
                if !line.trim().is_empty() {
                    line.trim().clone_into(&mut above);
                }
            }
        }
        assert!(open.is_none(), "{page}: a block does not end");
    }
    all
}

/// True if a line of text looks like a command of this project.
fn is_command(line: &str) -> bool {
    let first = line.split(' ').next().unwrap();
    let ours = [
        "ron",
        "cargo",
        "curl",
        "ron-kms",
        "ron-ledger",
        "./scripts/test.sh",
    ];
    ours.contains(&first) && line.len() > first.len()
}

/// Test targets: name and source.
fn targets() -> Vec<(String, String)> {
    let manifest = fs::read_to_string(workspace().join("tests/Cargo.toml")).unwrap();
    let value = |part: &str, key: &str| {
        let (_, rest) = part.split_once(&format!("{key} = \"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let parts = manifest.split("[[test]]").skip(1);
    parts
        .map(|part| (value(part, "name"), value(part, "path")))
        .collect()
}

/// The text of a target: its file, or all files beside a `main.rs`.
fn source(path: &str) -> String {
    let file = workspace().join("tests").join(path);
    if file.file_name().unwrap() != "main.rs" {
        return fs::read_to_string(file).unwrap();
    }
    let beside = fs::read_dir(file.parent().unwrap()).unwrap();
    let files = beside.map(|entry| entry.unwrap().path());
    let rust = files.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    rust.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The fault of a block's mark.
fn fault(block: &Block, targets: &[(String, String)]) -> Option<String> {
    let name = block.page.as_str();
    let runs = |target: &str, word: &str| {
        let found = targets.iter().find(|(name, _)| name == target);
        found.is_some_and(|(_, path)| source(path).contains(word))
    };
    if block.page.starts_with("docs/runbooks/") {
        let known = targets
            .iter()
            .any(|(_, path)| source(path).contains("docs/runbooks"));
        return (!known).then(|| "no test target runs docs/runbooks".to_owned());
    }
    let mark = block
        .mark
        .strip_prefix("<!-- ")
        .and_then(|m| m.strip_suffix(" -->"));
    match mark.map(|mark| mark.split_once(": ").unwrap_or((mark, ""))) {
        Some(("run", "")) => (!runs("documented", name))
            .then(|| format!("tests/e2e/documented.rs does not name {name}")),
        Some(("run by", target)) => {
            (!runs(target, name)).then(|| format!("no test target {target} names {name}"))
        }
        Some(("not run", reason)) if reason.len() > 15 => missing(&block.text),
        _ => Some("say above it whether a test runs it; see tests/docs/commands.rs".to_owned()),
    }
}

/// A script, target, package or binary that a text names but that does not exist, or binaries that
/// a command omits.
fn missing(text: &str) -> Option<String> {
    for command in text.lines().filter(|line| line.contains("cargo ")) {
        let names = ["--workspace", "-p ", "--package "];
        if command.contains("--bins") && !names.iter().any(|name| command.contains(name)) {
            return Some(
                "--bins alone means those of the default member, which is ron: say --workspace"
                    .to_owned(),
            );
        }
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let manifests = manifests();
    for (at, word) in words.iter().enumerate() {
        let word = word.trim_matches(['"', '\'', '`', '(', ')', ',', ';']);
        let next = words.get(at + 1).copied().unwrap_or("");
        let named = |what: &str| {
            manifests
                .iter()
                .any(|m| m.contains(&format!("{what} = \"{next}\"")))
        };
        if let Some(script) = word.trim_start_matches("./").strip_prefix("scripts/")
            && !workspace().join("scripts").join(script).exists()
        {
            return Some(format!("{word} does not exist"));
        }
        let known = match word {
            "--test" => targets().iter().any(|(name, _)| name == next),
            "-p" | "--package" | "--bin" => named("name"),
            _ => true,
        };
        // Other programs have a `-p` option too.
        if !known && text.contains("cargo ") {
            return Some(format!("{word} {next} does not exist"));
        }
    }
    None
}

/// All manifests of the workspace.
fn manifests() -> Vec<String> {
    let mut all = Vec::new();
    for dir in ["crates", "bin", "models", "examples"] {
        for entry in fs::read_dir(workspace().join(dir)).unwrap() {
            let path = entry.unwrap().path().join("Cargo.toml");
            all.extend(fs::read_to_string(path).ok());
        }
    }
    for dir in ["tests", "benches"] {
        all.push(fs::read_to_string(workspace().join(dir).join("Cargo.toml")).unwrap());
    }
    all
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let (blocks, targets) = (blocks(), targets());
    assert!(blocks.len() > 8, "only {} blocks", blocks.len());
    let wrong: Vec<_> = blocks
        .iter()
        .filter_map(|block| {
            let why = fault(block, &targets)?;
            Some(format!(
                "{}:{}: {why}\n{}",
                block.page, block.line, block.text
            ))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_block_names_must_exist() {
    assert_eq!(missing("./scripts/test.sh quick\n"), None);
    assert!(missing("scripts/tset.sh\n").is_some());
    assert!(missing("./scripts/tset.sh\n").is_some());
    assert_eq!(missing("cargo test -p ron-tests --test docs\n"), None);
    assert!(missing("cargo test -p ron-tests --test dcos\n").is_some());
    assert!(missing("cargo test -p ron-test --test docs\n").is_some());
    assert_eq!(missing("mkdir -p /tmp/x\n"), None);
    assert!(missing("cargo build --release --bins\n").is_some());
    assert_eq!(missing("cargo build --workspace --bins\n"), None);
}

/// Lanes and scripts that pages name in a sentence or a table exist, too.
#[test]
fn commands_named_in_prose_exist() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in pages() {
        // A changelog describes the state of its time.
        if path.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let spans = text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for span in spans {
            let script = span.find("scripts/").map(|at| format!("./{}", &span[at..]));
            let command = script.filter(|_| span.contains(".sh"));
            let command = command.or_else(|| span.contains("cargo ").then(|| span.to_owned()));
            let Some(command) = command else { continue };
            seen += 1;
            if let Some(why) = missing(&command) {
                wrong.push(format!("{}: {span}: {why}", path.display()));
            }
        }
    }
    assert!(seen > 30, "only {seen} were seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
