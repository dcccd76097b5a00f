//! Every block of commands is run by a test or gives the reason why not, by one of these marks above it:
//!
//! - `<!-- run -->`: `tests/e2e/documented.rs` runs the block unchanged;
//! - `<!-- run by: TARGET -->`: that test target runs it (for both, the source of the test must name the page);
//! - `<!-- not run: REASON -->`: only the scripts, tasks, test targets, packages and binaries that it names are checked
//!   to exist.
//!
//! Pages under `docs/runbooks/` have their own test target. `bin/ron/src/documented.rs` checks that `ron` and the
//! services accept every command line.

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

/// The blocks of commands of all pages; panics at commands outside of a tagged block.
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
                    // What a command prints.
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

/// Whether a line of text looks like a command of this project.
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

/// Names of the test targets, as `--test` takes them.
pub fn targets() -> Vec<String> {
    let manifest = fs::read_to_string(workspace().join("tests/Cargo.toml")).unwrap();
    let parts = manifest.split("[[test]]\nname = \"").skip(1);
    parts
        .map(|part| part.split('"').next().unwrap().to_owned())
        .collect()
}

/// The modules of the test targets: name and text.
fn modules() -> Vec<(String, String)> {
    let mut all = Vec::new();
    // The pages about databases are run by the package that starts databases.
    for target in targets().into_iter().chain(["ha/src".to_owned()]) {
        let Ok(entries) = fs::read_dir(workspace().join("tests").join(target)) else {
            continue; // a target of one file
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|end| end == "rs") {
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                all.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    all
}

/// The fault in the mark of a block, if any.
fn fault(block: &Block, modules: &[(String, String)]) -> Option<String> {
    let name = block.page.as_str();
    let runs = |module: &str, word: &str| {
        let found = modules.iter().find(|(name, _)| name == module);
        found.is_some_and(|(_, text)| text.contains(word))
    };
    if block.page.starts_with("docs/runbooks/") {
        let known = modules
            .iter()
            .any(|(_, text)| text.contains("docs/runbooks"));
        return (!known).then(|| "no test module runs docs/runbooks".to_owned());
    }
    let mark = block
        .mark
        .strip_prefix("<!-- ")
        .and_then(|m| m.strip_suffix(" -->"));
    match mark.map(|mark| mark.split_once(": ").unwrap_or((mark, ""))) {
        Some(("run", "")) => (!runs("documented", name))
            .then(|| format!("tests/e2e/documented.rs does not name {name}")),
        Some(("run by", module)) => {
            (!runs(module, name)).then(|| format!("no test module {module} names {name}"))
        }
        Some(("not run", reason)) if reason.len() > 15 => missing(&block.text),
        _ => Some("say above it whether a test runs it; see tests/docs/commands.rs".to_owned()),
    }
}

/// What `cargo xtask` says against the first task of a text that it does not take, with its arguments.
fn refused(text: &str) -> Option<String> {
    let tasks = text
        .lines()
        .filter_map(|line| line.split_once("cargo xtask "));
    tasks.map(|(_, rest)| rest).find_map(|rest| {
        // Behind a bracket come optional arguments, described in words.
        let words = rest.split(['#', ';', '[']).next().unwrap();
        let words: Vec<&str> = words.split_whitespace().collect();
        if words.is_empty() || words[0] == "TASK" {
            return None;
        }
        let line = std::iter::once("xtask").chain(words);
        let taken = xtask::command().try_get_matches_from(line);
        taken.err().map(|e| e.to_string())
    })
}

/// The first script, task, target, package or binary that a text names and that does not exist, or a `--bins` that would
/// leave binaries out.
fn missing(text: &str) -> Option<String> {
    if let Some(why) = refused(text) {
        return Some(why);
    }
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
            "--test" => targets().iter().any(|name| name == next),
            "-p" | "--package" | "--bin" => named("name"),
            _ => true,
        };
        // `-p` belongs to other programs too.
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
    for dir in ["tests", "benches", "xtask"] {
        all.push(fs::read_to_string(workspace().join(dir).join("Cargo.toml")).unwrap());
    }
    all
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let (blocks, modules) = (blocks(), modules());
    assert!(blocks.len() > 8, "only {} blocks", blocks.len());
    let wrong: Vec<_> = blocks
        .iter()
        .filter_map(|block| {
            let why = fault(block, &modules)?;
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
    assert_eq!(
        missing("RON_SEED=1 cargo xtask soak 30  # half an hour\n"),
        None
    );
    assert!(missing("cargo xtask saok 30\n").is_some());
    assert!(missing("cargo xtask soak --minutes 30\n").is_some());
    assert_eq!(missing("mkdir -p /tmp/x\n"), None);
    assert!(missing("cargo build --release --bins\n").is_some());
    assert_eq!(missing("cargo build --workspace --bins\n"), None);
}

/// Test targets, tasks and scripts in sentences and tables exist too, not only those in blocks.
#[test]
fn commands_named_in_prose_exist() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in pages() {
        // A changelog names things that existed at its time.
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
