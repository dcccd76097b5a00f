//! Runs the test programs that cargo has built. Cargo runs one after the other; those of ron-ha wait for databases most of the time, so
//! they run beside all others.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::abreast::abreast;
use crate::cmd::Cmd;
use crate::files;
use crate::task::{Args, Failure, Outcome};

/// The package whose tests wait.
const WAITS: &str = "ron-ha";

/// One test program.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    name: String,
    /// Directory of its package, in which cargo runs it.
    package: PathBuf,
    program: PathBuf,
}

impl Suite {
    fn waits(&self) -> bool {
        self.name.starts_with(&format!("{WAITS}/"))
    }

    /// Runs it, and shows what it printed when it has ended; whether it passed.
    fn run(&self, threads: &str) -> Outcome<bool> {
        let log = files::target().join(format!("suite-{}.log", self.name.replace('/', "-")));
        files::write(&log, "")?;
        let start = Instant::now();
        let run = Cmd::new(&self.program)
            .args(["--test-threads", threads])
            .dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            .log(&log)?;
        let passed = run.status()?.success();
        let seconds = start.elapsed().as_secs();
        let verdict = if passed { "passed" } else { "FAILED" };
        print!("{}", files::read(&log)?);
        println!("== {}: {verdict}, {seconds} s", self.name);
        Ok(passed)
    }
}

/// Runs all programs that a file with cargo's messages names; fails when one of them fails, after all have run.
pub fn suites(args: &Args) -> Outcome {
    let threads = args.text("threads");
    let messages = files::read(&args.path("messages")?)?;
    let (waiting, others): (Vec<Suite>, Vec<Suite>) =
        built(&messages).into_iter().partition(Suite::waits);
    if others.is_empty() {
        return Err(Failure(
            "cargo's messages name no test program; build with `cargo test --no-run --message-format json-render-diagnostics`".to_owned(),
        ));
    }
    let groups = [waiting, others];
    abreast(&groups, |group| {
        let mut failed = Vec::new();
        for suite in group {
            if !suite.run(threads)? {
                failed.push(suite.name.as_str());
            }
        }
        match &failed[..] {
            [] => Ok(()),
            names => Err(Failure(format!("tests fail in {}", names.join(", ")))),
        }
    })
}

/// The test programs among cargo's messages, in their order.
fn built(messages: &str) -> Vec<Suite> {
    let messages = messages.lines();
    let parsed = messages.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let suite = |message: Value| {
        let program = message["executable"].as_str()?;
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        // `path+file:///DIR#NAME@VERSION`, or without the name where it is that of the directory.
        let id = message["package_id"].as_str()?;
        let (dir, version) = id.rsplit_once('#')?;
        let of = match version.split_once('@') {
            Some((name, _)) => name,
            None => dir.rsplit('/').next()?,
        };
        let name = format!("{of}/{}", message["target"]["name"].as_str()?);
        (message["profile"]["test"] == true).then(|| Suite {
            name,
            package: package.to_owned(),
            program: PathBuf::from(program),
        })
    };
    parsed.filter_map(suite).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_with_their_packages() {
        let text = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/tests/ha#ron-ha@0.1.0","manifest_path":"/w/tests/ha/Cargo.toml","target":{"name":"keys"},"profile":{"test":true},"executable":"/w/t/keys-1"}
noise
{"reason":"compiler-artifact","package_id":"path+file:///w/bin/ron#0.1.0","manifest_path":"/w/bin/ron/Cargo.toml","target":{"name":"ron"},"profile":{"test":false},"executable":"/w/t/ron"}
{"reason":"compiler-artifact","package_id":"path+file:///w/xtask#0.1.0","manifest_path":"/w/xtask/Cargo.toml","target":{"name":"xtask"},"profile":{"test":true},"executable":"/w/t/xtask-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/crates/a#0.1.0","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a"},"profile":{"test":true},"executable":null}"#;
        let found = built(text);
        let names: Vec<&str> = found.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names, ["ron-ha/keys", "xtask/xtask"]);
        assert!(found[0].waits() && !found[1].waits());
        assert_eq!(found[0].package, Path::new("/w/tests/ha"));
    }
}
