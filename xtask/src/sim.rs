//! The kernel's models under the simulator: real threads, virtual time, many seeds. Each run is repeated in a second
//! process, whose traces must be the same, and each mutant must be caught.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use crate::files;
use crate::loom::{KERNEL, MODELS_SECONDS, MUTANT_SECONDS, catches, checked};
use crate::task::{Args, Failure, Outcome};

/// Directory of what is built for the simulator, which normal builds do not use.
const TARGET: &str = "target/sim";
/// Seeds within which a mutant must be found.
const MUTANT_SEEDS: &str = "1000";
/// Mutants that models in virtual time catch, beside the rows of the checkers.
const TIMED: [(&str, &str); 2] = [
    ("hang", "models::timed::calls_that"),
    ("wait", "models::timed::a_sender"),
];

pub fn sim(args: &Args) -> Outcome {
    if (args.is_set("trace") || args.is_set("schedule")) && !args.is_set("seed") {
        return Err(Failure(
            "a trace or a schedule is of one seed: add --seed".to_owned(),
        ));
    }
    let start = Instant::now();
    let names = KERNEL.names()?;
    let program = KERNEL.build(args, "sim", &names, TARGET)?;
    println!("== sim: built in {} s", start.elapsed().as_secs());
    if args.is_set("seed") {
        return one_seed(args, &program);
    }
    let first = models(args, &program, "first")?;
    let second = models(args, &program, "second")?;
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
        "== sim: {number} models hold under {seeds} seeds, twice with equal traces, {seconds} s"
    );
    let wanted = |model: &str| model.contains(args.text("models"));
    let mutants = KERNEL.mutants.iter().chain(&TIMED);
    for (name, model) in mutants.filter(|(_, model)| wanted(model)) {
        let program = checked(args, &program, MUTANT_SECONDS).env("RON_SIM_SEEDS", MUTANT_SEEDS);
        catches("sim", program, name, model)?;
    }
    Ok(())
}

/// Runs the models under one seed, with their output.
fn one_seed(args: &Args, program: &Path) -> Outcome {
    let filter = format!("models::{}", args.text("models"));
    checked(args, program, MODELS_SECONDS)
        .args(["--test-threads", "1", "--nocapture"])
        .arg(filter)
        .run()
}

/// Runs the models; a line for each, with the hash of its traces.
fn models(args: &Args, program: &Path, name: &str) -> Outcome<Vec<String>> {
    let file = files::root().join(TARGET).join(format!("hashes-{name}"));
    files::write(&file, "")?;
    checked(args, program, MODELS_SECONDS)
        .env("RON_SIM_HASHES", file.display().to_string())
        .args(["--test-threads", "2"])
        .arg(format!("models::{}", args.text("models")))
        .run()?;
    let mut lines: Vec<String> = files::read(&file)?.lines().map(str::to_owned).collect();
    lines.sort();
    // A wrong name must not look like models that hold.
    if lines.is_empty() {
        let filter = args.text("models");
        return Err(Failure(format!("no model has `{filter}` in its path")));
    }
    Ok(lines)
}
