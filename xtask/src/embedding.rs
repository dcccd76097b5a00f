//! The crate of docs/embedding.md that checks a protocol over ron-kernel, made from that page alone: the checker must
//! find its bug, and must pass once the page's repair is in.

use std::path::Path;

use crate::cmd::Cmd;
use crate::files;
use crate::task::{Failure, Outcome};

const PAGE: &str = "docs/embedding.md";
/// What the page's test prints when the bug is there.
const BUG: &str = "an_accepted_request_is_answered ... FAILED";
const TEST: &str = "test --offline --release --test model";

pub fn check() -> Outcome {
    let page = files::read(&files::root().join(PAGE))?;
    let dir = files::target().join("embedding/crate");
    files::fresh_dir(&dir)?;
    for file in ["Cargo.toml", "src/lib.rs", "tests/model.rs"] {
        write(&dir, file, block(&page, "file", file)?)?;
    }
    // The versions of this tree are those that are there without a network.
    files::copy(&files::root().join("Cargo.lock"), &dir.join("Cargo.lock"))?;
    cargo(&dir, "build --offline --release --tests").run()?;
    let wrong = cargo(&dir, TEST).output_of_failure()?;
    if !wrong.contains(BUG) {
        return Err(Failure(format!(
            "the crate of {PAGE} does not fail by its bug (`{BUG}`):\n{wrong}"
        )));
    }
    let repaired = repaired(
        block(&page, "file", "src/lib.rs")?,
        block(&page, "repair", "src/lib.rs")?,
    )?;
    write(&dir, "src/lib.rs", &repaired)?;
    cargo(&dir, TEST).run()?;
    println!("== the crate of {PAGE}: loom finds its bug, and passes without it");
    Ok(())
}

fn cargo(dir: &Path, args: &str) -> Cmd {
    // The compiler of the checkers is for the members of this workspace, of which the crate is none.
    Cmd::cargo(args)
        .dir(dir)
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", dir.with_file_name("target"))
        .env_remove("MUTANT")
}

fn write(dir: &Path, file: &str, text: &str) -> Outcome {
    let path = dir.join(file);
    if let Some(parent) = path.parent() {
        files::create_dir(parent)?;
    }
    files::write(&path, text)
}

/// The code block that follows `<!-- kind: name -->`.
fn block<'a>(page: &'a str, kind: &str, name: &str) -> Outcome<&'a str> {
    let mark = format!("<!-- {kind}: {name} -->\n```");
    page.split_once(&mark)
        .and_then(|(_, rest)| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(text, _)| text)
        .ok_or_else(|| {
            Failure(format!(
                "{PAGE} has no code block after `<!-- {kind}: {name} -->`"
            ))
        })
}

/// A source with its last item replaced; both begin with the same line.
fn repaired(source: &str, item: &str) -> Outcome<String> {
    let first = item.lines().next().unwrap_or_default();
    match source.split_once(first) {
        Some((before, _)) if !first.is_empty() => Ok(format!("{before}{item}")),
        _ => Err(Failure(format!(
            "{PAGE}: the repair begins with `{first}`, which src/lib.rs does not contain"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_blocks_of_the_crate() {
        let page = files::read(&files::root().join(PAGE)).unwrap();
        let source = block(&page, "file", "src/lib.rs").unwrap();
        let repair = block(&page, "repair", "src/lib.rs").unwrap();
        assert!(!source.contains("try_recv"), "the bug");
        assert!(repaired(source, repair).unwrap().contains("try_recv"));
        assert!(block(&page, "file", "src/main.rs").is_err());
        assert!(repaired("fn a() {}", "fn b() {}").is_err());
    }
}
