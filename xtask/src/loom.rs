//! The models of protocols, run under two checkers: loom (all interleavings of up to 5 threads) and shuttle (sampled
//! interleavings of more). Then each mutant, a version that is wrong on purpose: both checkers must fail on it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::abreast::abreast;
use crate::cmd::Cmd;
use crate::embedding;
use crate::files;
use crate::sim::WORLD;
use crate::task::{Args, Failure, Outcome};

/// Models of one crate's protocols, and the mutants that its sources contain.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) sources: &'static [&'static str],
    pub(crate) package: &'static str,
    /// The cargo target that contains the models.
    pub(crate) target: &'static str,
    /// What the names of all models begin with.
    pub(crate) prefix: &'static str,
    /// Mutant, and the models that must catch it. A mutant may have several rows.
    pub(crate) mutants: &'static [(&'static str, &'static str)],
}

/// The kernel's models, which also run under the simulator.
pub(crate) const KERNEL: Part = Part {
    name: "kernel",
    sources: &["crates/ron-kernel/src"],
    package: "ron-kernel",
    target: "--lib",
    prefix: "models::",
    mutants: &[
        ("queue", "models::queue::after_intake"),
        ("hook", "models::queue::hooks"),
        ("wait", "models::queue::waiting"),
        ("ring", "models::ring::what_is"),
        ("snapshot", "models::swap"),
        ("snapshot", "models::ring::no_subscription"),
        ("reply", "models::slot::a_reply"),
        ("credits", "models::slot::credits"),
        ("restart", "models::threads::restart"),
        ("drain", "models::threads::a_drain"),
        ("late", "models::threads::no_thread"),
        ("hang", "models::hanging::every_seat"),
        ("hang", "models::hanging::callers"),
        ("publish", "models::console::requests"),
        ("report", "models::console::no_report"),
        ("asked", "models::console::requests"),
        ("idle", "models::idling::every_token"),
        ("asleep", "models::idling::the_poll"),
    ],
};

const PARTS: [Part; 4] = [
    KERNEL,
    Part {
        name: "wallet",
        sources: &["crates/svc-wallet/src"],
        package: "svc-wallet-models",
        target: "--test models",
        prefix: "",
        mutants: &[
            ("in_flight", "one_key"),
            ("complete", "one_key"),
            ("shard", "debits_of"),
            ("sent", "late_waiters"),
            ("unresolved", "an_unknown"),
            ("balance", "a_balance"),
            ("leave", "a_drain"),
        ],
    },
    Part {
        name: "tlog",
        sources: &["crates/ron-tlog/src", "crates/ron-service/src/log_host"],
        package: "ron-tlog-models",
        target: "--test models",
        prefix: "",
        mutants: &[
            ("ack", "the_index"),
            ("head", "the_index"),
            ("batch", "a_witness"),
        ],
    },
    Part {
        name: "auth",
        sources: &["crates/ron-auth/src"],
        package: "ron-auth-models",
        target: "--test models",
        prefix: "",
        mutants: &[("older", "requests_are_judged"), ("source", "a_reload")],
    },
];

const CHECKERS: [&str; 2] = ["loom", "shuttle"];
/// Longest run of all models of a part, and of one model with a mutant; `timeout` ends with 124 after it.
pub(crate) const MODELS_SECONDS: &str = "3600";
pub(crate) const MUTANT_SECONDS: &str = "120";
const TIMED_OUT: i32 = 124;

pub fn loom(args: &Args) -> Outcome {
    let names = all_names()?;
    for checker in CHECKERS {
        let start = Instant::now();
        let mut built = Vec::new();
        for part in &PARTS {
            built.push((part, part.build(args, checker, &names)?));
        }
        println!("== {checker}: built in {} s", start.elapsed().as_secs());
        let mut ran = 0;
        for (part, program) in &built {
            ran += part.models(args, checker, program)?;
            part.mutants(args, checker, program)?;
        }
        // A wrong name must not look like models that hold.
        if ran == 0 {
            let filter = args.text("models");
            return Err(Failure(format!("no model has `{filter}` in its path")));
        }
    }
    embedding::check()
}

/// The mutants of all parts. All builds have them all, so that they share what is built.
pub(crate) fn all_names() -> Outcome<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for part in PARTS.iter().chain([&WORLD]) {
        names.append(&mut part.names()?);
    }
    Ok(names)
}

/// A compiler for the crates of this workspace that builds them for a checker. The checker stands in ron-kernel, below
/// everything that is modelled, so all of them have the same flags; other crates need none and are built once for the
/// product and all checkers. Another set of flags is another path, because cargo builds again for another path.
fn compiler(checker: &str, mutants: &BTreeSet<String>) -> Outcome<PathBuf> {
    // Assertions of the kernel are a part of what the simulator checks.
    let assertions = if checker == "sim" {
        " -C debug-assertions=on"
    } else {
        ""
    };
    let mut script = format!("#!/bin/sh\nexec \"$@\" --cfg {checker}{assertions}");
    for name in mutants {
        let _ = write!(script, " --cfg 'mutant=\"{name}\"'");
    }
    script.push('\n');
    let mut hasher = DefaultHasher::new();
    script.hash(&mut hasher);
    let dir = files::target().join("compilers");
    files::create_dir(&dir)?;
    let path = dir.join(format!("{checker}-{:016x}", hasher.finish()));
    if !path.exists() {
        files::write_program(&path, &script)?;
    }
    Ok(path)
}

impl Part {
    /// The mutants in the sources, of which each must have a row.
    pub(crate) fn names(&self) -> Outcome<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for dir in self.sources {
            for file in files::below(&files::root().join(dir), ".rs")? {
                names.append(&mut mutants_of(&files::read(&file)?));
            }
        }
        // A source may be in a part and in the world.
        let rows = PARTS.iter().chain([&WORLD]);
        let rows: BTreeSet<&str> = rows
            .flat_map(|part| part.mutants)
            .map(|row| row.0)
            .collect();
        let known = |name: &&String| rows.contains(name.as_str());
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Failure(format!(
                "the mutant `{name}` is in {} but in no row of xtask/src/loom.rs or sim.rs; name the model that catches it",
                self.sources.join(" or ")
            )));
        }
        Ok(names)
    }

    /// Builds the models for a checker, with all mutants in them; the path of the program.
    pub(crate) fn build(
        &self,
        args: &Args,
        checker: &str,
        names: &BTreeSet<String>,
    ) -> Outcome<PathBuf> {
        let build = Cmd::cargo(&format!(
            "test --quiet --locked --profile {} --message-format json -p {} {} --no-run",
            args.text("profile"),
            self.package,
            self.target
        ))
        .env("RUSTC_WORKSPACE_WRAPPER", compiler(checker, names)?);
        let program = executable(&build.measured()?)?;
        // The build for the other checker may write to the same path.
        let own = PathBuf::from(format!("{}-{checker}", program.display()));
        files::copy(&program, &own)?;
        Ok(own)
    }

    /// Runs the models; how many there were.
    fn models(&self, args: &Args, checker: &str, program: &Path) -> Outcome<usize> {
        let start = Instant::now();
        let filter = format!("{}{}", self.prefix, args.text("models"));
        let ran = checked(args, program, MODELS_SECONDS)
            .args(["--test-threads", "2"])
            .arg(filter)
            .lines(|line| line.starts_with("test ") && !line.starts_with("test result"))?;
        println!(
            "== {checker}: {ran} models of {} hold, {} s (preemptions {}, schedules {})",
            self.name,
            start.elapsed().as_secs(),
            args.text("preemptions"),
            args.text("schedules")
        );
        Ok(ran)
    }

    fn mutants(&self, args: &Args, checker: &str, program: &Path) -> Outcome {
        let wanted = |model: &str| model.contains(args.text("models"));
        let rows: Vec<_> = self.mutants.iter().filter(|row| wanted(row.1)).collect();
        abreast(&rows, |(name, model)| {
            catches(checker, checked(args, program, MUTANT_SECONDS), name, model)
        })
    }
}

/// Fails unless the model, run by `program`, catches the mutant.
pub(crate) fn catches(checker: &str, program: Cmd, mutant: &str, model: &str) -> Outcome {
    let run = program
        .args(["--test-threads", "1", model])
        .env("MUTANT", mutant);
    // A checker may also abort when it finds a deadlock.
    match run.silent().status()?.code() {
        Some(0) => Err(Failure(format!(
            "{checker}: {model} did not catch the mutant `{mutant}`"
        ))),
        Some(TIMED_OUT) => Err(Failure(format!(
            "{checker}: the mutant `{mutant}` did not end in {model}"
        ))),
        _ => {
            println!("mutant caught by {checker}: {mutant} in {model}");
            Ok(())
        }
    }
}

/// A program of models, with a bound on its time.
pub(crate) fn checked(args: &Args, program: &Path, seconds: &str) -> Cmd {
    Cmd::new("timeout")
        .arg(seconds)
        .arg(program)
        .envs(args.variables())
        .env("SHUTTLE_SILENCE_WARNINGS", "1")
        .env("RUST_BACKTRACE", "0")
        .env_remove("MUTANT")
}

/// The names in `#[cfg(mutant = "name")]` of a source.
fn mutants_of(text: &str) -> BTreeSet<String> {
    let after = text.split("#[cfg(mutant = \"").skip(1);
    let names = after.filter_map(|rest| rest.split_once("\")]"));
    let plain =
        |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let names = names.map(|(name, _)| name).filter(plain);
    names.map(str::to_owned).collect()
}

/// The last program that cargo's messages name.
fn executable(messages: &str) -> Outcome<PathBuf> {
    let parsed = messages
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs =
        parsed.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    let last = programs.next();
    last.ok_or_else(|| Failure("cargo named no program that it built".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_of_the_sources_has_a_row_and_every_row_a_mutant() {
        for part in PARTS.iter().chain([&WORLD]) {
            let names = part.names().unwrap();
            assert!(!names.is_empty(), "{}", part.name);
            for (name, model) in part.mutants {
                assert!(names.contains(*name), "no source has `{name}` of {model}");
            }
        }
    }

    #[test]
    fn a_mutant_is_found_by_its_attribute() {
        let text = "#[cfg(mutant = \"a\")] // one\nx\n#[cfg(mutant = \"b_c\")]\n`#[cfg(mutant = \"...\")]`, `#[cfg(mutant = \"name\")` is";
        let found: Vec<String> = mutants_of(text).into_iter().collect();
        assert_eq!(found, ["a", "b_c"]);
    }

    #[test]
    fn the_last_executable_is_taken() {
        let text = "{\"executable\":\"/a\"}\nnoise\n{\"executable\":null}\n{\"executable\":\"/b\"}\n{\"reason\":\"build-finished\"}";
        assert_eq!(executable(text).unwrap(), Path::new("/b"));
        assert!(executable("").is_err());
    }
}
