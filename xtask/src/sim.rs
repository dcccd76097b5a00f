//! The kernel's models and the worlds of `tests/sim` under the simulator: real threads, virtual time, many seeds. Each run
//! is repeated in a second process, whose traces must be the same, and each mutant must be caught.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use crate::files;
use crate::loom::{KERNEL, MODELS_SECONDS, MUTANT_SECONDS, PARTS, Part, catches, checked};
use crate::task::{Args, Failure, Outcome};

/// Directory of what is built for the simulator, which normal builds do not use.
const TARGET: &str = "target/sim";
/// Seeds within which a mutant must be found.
const MUTANT_SEEDS: &str = "1000";
/// Operations of a world within which a mutant must be found.
const MUTANT_OPERATIONS: &str = "10000";
/// Mutants that models in virtual time catch, beside the rows of the checkers.
const TIMED: [(&str, &str); 2] = [
    ("hang", "models::timed::calls_that"),
    ("wait", "models::timed::a_sender"),
];

/// Services in a simulated world. Rows of a mutant whose source is not named here are beside those of the checkers.
const WORLD: Part = Part {
    name: "world",
    sources: &["crates/ron-http/src"],
    package: "ron-sim-world",
    target: "--lib",
    prefix: "",
    mutants: &[
        ("limit", "http::a_quiet"),
        ("seq", "http::a_drain"),
        ("place", "http::a_drain"),
    ],
};

/// A part and the program that runs it.
type Built = (&'static Part, PathBuf);

pub fn sim(args: &Args) -> Outcome {
    if (args.is_set("trace") || args.is_set("schedule")) && !args.is_set("seed") {
        return Err(Failure(
            "a trace or a schedule is of one seed: add --seed".to_owned(),
        ));
    }
    let start = Instant::now();
    // All flags at once: both parts share what is built, and the world has the services of the checkers' models in it.
    let mut names = WORLD.names()?;
    for part in &PARTS {
        names.append(&mut part.names()?);
    }
    let mut parts: Vec<Built> = Vec::new();
    for part in [&KERNEL, &WORLD] {
        parts.push((part, part.build(args, "sim", &names, TARGET)?));
    }
    println!("== sim: built in {} s", start.elapsed().as_secs());
    if args.is_set("seed") {
        let mut parts = parts.iter();
        return parts.try_for_each(|part| one_seed(args, part));
    }
    let first = models(args, &parts, "first")?;
    let second = models(args, &parts, "second")?;
    if first != second {
        let lines = first.iter().zip(&second);
        let differ = lines.filter(|(a, b)| a != b).map(|(a, _)| a.as_str());
        let differ: Vec<_> = differ.collect();
        return Err(Failure(format!(
            "two processes disagree on the traces of {}",
            differ.join(", ")
        )));
    }
    let seeds = args.text("seeds");
    let models: BTreeSet<_> = first.iter().map(|line| line.split(' ').next()).collect();
    let (number, seconds) = (models.len(), start.elapsed().as_secs());
    println!(
        "== sim: {number} models and worlds hold (models under {seeds} seeds), twice with equal traces, {seconds} s"
    );
    let wanted = |(_, model): &&(&str, &str)| model.contains(args.text("models"));
    for (part, program) in &parts {
        let timed: &[_] = if part.package == KERNEL.package {
            &TIMED
        } else {
            &[]
        };
        for (name, model) in part.mutants.iter().chain(timed).filter(wanted) {
            let program = checked(args, program, MUTANT_SECONDS)
                .env("RON_SIM_SEEDS", MUTANT_SEEDS)
                .env("RON_SIM_OPERATIONS", MUTANT_OPERATIONS);
            catches("sim", program, name, model)?;
        }
    }
    Ok(())
}

/// Runs the models of a part under one seed, with their output.
fn one_seed(args: &Args, (part, program): &Built) -> Outcome {
    checked(args, program, MODELS_SECONDS)
        .args(["--test-threads", "1", "--nocapture"])
        .arg(format!("{}{}", part.prefix, args.text("models")))
        .run()
}

/// Runs the models; a line for each, with the hash of its traces.
fn models(args: &Args, parts: &[Built], name: &str) -> Outcome<Vec<String>> {
    let file = files::root().join(TARGET).join(format!("hashes-{name}"));
    files::write(&file, "")?;
    for (part, program) in parts {
        checked(args, program, MODELS_SECONDS)
            .env("RON_SIM_HASHES", file.display().to_string())
            .args(["--test-threads", "2"])
            .arg(format!("{}{}", part.prefix, args.text("models")))
            .run()?;
    }
    let mut lines: Vec<String> = files::read(&file)?.lines().map(str::to_owned).collect();
    lines.sort();
    // A wrong name must not look like models that hold.
    if lines.is_empty() {
        let filter = args.text("models");
        return Err(Failure(format!("no model has `{filter}` in its path")));
    }
    Ok(lines)
}
