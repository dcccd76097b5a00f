//! The kernel's models and the worlds of tests/sim under the simulator: real threads, virtual time, many seeds. Each run is
//! repeated in a second process, whose traces must be the same, and each mutant must be caught.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::abreast::abreast;
use crate::cmd::Cmd;
use crate::files;
use crate::loom::{KERNEL, MODELS_SECONDS, MUTANT_SECONDS, Part, all_names, catches, checked};
use crate::task::{Args, Failure, Outcome};

/// Seeds within which a mutant must be found.
const MUTANT_SEEDS: &str = "1000";
/// Mutants that models in virtual time catch, beside the rows of the checkers.
const TIMED: [(&str, &str); 2] = [
    ("hang", "models::timed::calls_that"),
    ("wait", "models::timed::a_sender"),
];

/// Operations of a world within which a mutant must be found.
const MUTANT_OPERATIONS: &str = "20000";

/// The first seed of the search for a mutant in a world. Some mutants are found in most ranges of so many operations and not in all;
/// from this seed on each is.
const MUTANT_FIRST: &str = "3000";

/// The worlds. Mutants of the kernel and of ron-tlog that have models are found here once more.
pub(crate) const WORLD: Part = Part {
    name: "world",
    sources: &[
        "crates/ron-auth/src",
        "crates/ron-http/src",
        "crates/ron-kernel/src",
        "crates/ron-ledger/src",
        "crates/ron-service/src",
        "crates/ron-tlog/src",
        "crates/svc-admin/src",
        "crates/svc-passport/src",
        "crates/svc-rewarder/src",
        "crates/svc-wallet/src",
    ],
    package: "ron-sim-world",
    target: "--lib",
    prefix: "",
    mutants: &[
        ("undecided", "engine::over_kills"),
        ("guessed", "engine::over_kills"),
        ("fenced", "engine::over_kills"),
        ("reclaimed", "engine::over_kills"),
        ("provisional", "engine::over_kills"),
        ("unfenced", "engine::over_kills"),
        ("early", "ledger::a_fault_at_any"),
        ("flush", "ledger::a_fault_at_any"),
        ("keys", "ledger::what_is"),
        ("spill", "ledger::what_is"),
        ("undo", "ledger::faults_of"),
        ("voided", "ledger::what_is"),
        ("nonce", "ledger::what_is"),
        ("cursor", "ledger::what_is"),
        ("reply", "ledger::what_is"),
        ("drain", "ledger::what_is"),
        ("limit", "http::a_quiet"),
        ("seq", "http::a_drain"),
        ("place", "http::a_drain"),
        ("expiry", "ledger::what_is"),
        ("frozen", "ledger::what_is"),
        ("mismatch", "ledger::what_is"),
        ("frozen", "money::on_a_good"),
        ("given_up", "money::on_a_good"),
        ("known", "money::on_a_good"),
        ("mismatch", "money::on_a_good"),
        ("nonce", "money::on_a_good"),
        ("reversed", "money::on_a_good"),
        ("shard", "money::on_a_good"),
        ("date", "money::over_kills"),
        ("in_flight", "money::over_kills"),
        ("sent", "money::over_kills"),
        ("unsent", "money::over_kills"),
        ("unresolved", "money::durable::over_kills"),
        ("resume", "payouts::on_a_good"),
        ("usage", "payouts::on_a_good"),
        ("voided", "payouts::on_a_good"),
        ("evidence", "payouts::durable::over_kills"),
        ("unproven", "payouts::durable::over_kills"),
        ("unsigned", "payouts::durable::over_kills"),
        ("acknowledged", "issuers::durable::over_kills"),
        ("early", "issuers::durable::over_kills"),
        ("behind", "issuers::on_a_good"),
        ("cached", "issuers::on_a_good"),
        ("stillborn", "issuers::on_a_good"),
        ("superseded", "issuers::on_a_good"),
        ("woken", "issuers::on_a_good"),
        ("answered", "followers::over_kills"),
        ("newest", "followers::over_kills"),
        ("skipped", "followers::over_kills"),
        ("carried", "fleet::over_kills"),
        ("forgotten", "fleet::over_kills"),
        ("lost", "fleet::over_kills"),
        ("repeated", "fleet::over_kills"),
        ("shown", "fleet::over_kills"),
        ("unannounced", "fleet::over_kills"),
        ("room", "money::on_a_good"),
        ("replaced", "issuers::durable::over_kills"),
        ("reused", "issuers::on_a_good"),
        ("unlisted", "issuers::on_a_good"),
        ("epoch", "tokens::on_a_good"),
        ("cached", "tokens::on_a_good"),
        ("withdrawn", "tokens::on_a_good"),
        ("notice", "tokens::on_a_good"),
        ("unsynced", "tokens::over_kills"),
        ("altered", "tokens::over_kills"),
    ],
};

/// The programs of a run: the kernel's models and the worlds.
struct Programs {
    kernel: PathBuf,
    world: PathBuf,
}

pub fn sim(args: &Args) -> Outcome {
    if (args.is_set("trace") || args.is_set("schedule")) && !args.is_set("seed") {
        return Err(Failure(
            "a trace or a schedule is of one seed: add --seed".to_owned(),
        ));
    }
    let start = Instant::now();
    let names = all_names()?;
    let programs = Programs {
        kernel: KERNEL.build(args, "sim", &names)?,
        world: WORLD.build(args, "sim", &names)?,
    };
    println!("== sim: built in {} s", start.elapsed().as_secs());
    if args.is_set("seed") {
        return one_seed(args, &programs);
    }
    let first = models(args, &programs, "first")?;
    Totals::of(first.iter().map(String::as_str)).print();
    let second = models(args, &programs, "second")?;
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
        "== sim: {number} models and worlds hold, models under {seeds} seeds, twice with equal traces, {seconds} s"
    );
    let wanted = |model: &str| model.contains(args.text("models"));
    let of_models = KERNEL.mutants.iter().chain(&TIMED);
    let of_models: Vec<_> = of_models.filter(|row| wanted(row.1)).collect();
    abreast(&of_models, |(name, model)| {
        let program = checked(args, &programs.kernel, MUTANT_SECONDS);
        let program = program.env("RON_SIM_SEEDS", MUTANT_SEEDS);
        catches("sim", program, name, model)
    })?;
    let of_worlds: Vec<_> = WORLD.mutants.iter().filter(|row| wanted(row.1)).collect();
    abreast(&of_worlds, |(name, world)| {
        let program = checked(args, &programs.world, MUTANT_SECONDS);
        let program = program
            .env("RON_SIM_OPERATIONS", MUTANT_OPERATIONS)
            .env("RON_SIM_FIRST", MUTANT_FIRST);
        catches("sim", program, name, world)
    })
}

/// Each program with the filter of its tests.
fn parts<'p>(args: &Args, programs: &'p Programs) -> [(&'p Path, String); 2] {
    let filter = args.text("models");
    [
        (&programs.kernel, format!("{}{filter}", KERNEL.prefix)),
        (&programs.world, filter.to_owned()),
    ]
}

/// Runs the models and worlds under one seed, with their output.
fn one_seed(args: &Args, programs: &Programs) -> Outcome {
    for (program, filter) in parts(args, programs) {
        checked(args, program, MODELS_SECONDS)
            .args(["--test-threads", "1", "--nocapture"])
            .arg(filter)
            .run()?;
    }
    Ok(())
}

/// What the worlds of one process did together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub operations: u64,
    pub switches: u64,
    /// How often each fault happened.
    faults: BTreeMap<String, u64>,
}

impl Totals {
    /// Of lines `NAME HASH POINTS SWITCHES OPERATIONS FAULT=NUMBER,...`; models have shorter ones.
    pub fn of<'l>(lines: impl Iterator<Item = &'l str>) -> Self {
        let mut totals = Self::default();
        lines.for_each(|line| totals.add(line));
        totals
    }

    /// Adds what one line says.
    pub fn add(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, _, _, switches, operations, faults] = words[..] else {
            return;
        };
        let number = |text: &str| text.parse().unwrap_or(0);
        self.switches += number(switches);
        self.operations += number(operations);
        for (name, times) in faults.split(',').filter_map(|one| one.split_once('=')) {
            *self.faults.entry(name.replace('_', " ")).or_default() += number(times);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.switches += other.switches;
        self.operations += other.operations;
        for (name, times) in &other.faults {
            *self.faults.entry(name.clone()).or_default() += times;
        }
    }

    pub fn print(&self) {
        let (operations, switches) = (self.operations, self.switches);
        println!("== sim: {operations} operations in worlds, {switches} switches; faults:");
        for (name, times) in &self.faults {
            println!("  {times:>7}  {name}");
        }
    }
}

/// As the end of a line: `SWITCHES OPERATIONS FAULT=NUMBER,...`.
impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, times): (&String, &u64)| format!("{}={times}", name.replace(' ', "_"));
        let faults: Vec<_> = self.faults.iter().map(one).collect();
        let (switches, operations) = (self.switches, self.operations);
        write!(out, "{switches} {operations} {}", faults.join(","))
    }
}

/// Runs the models and worlds; a line for each, with the hash of its traces.
fn models(args: &Args, programs: &Programs, name: &str) -> Outcome<Vec<String>> {
    let runs = parts(args, programs)
        .map(|(program, filter)| checked(args, program, MODELS_SECONDS).arg(filter));
    let mut lines = noted(&format!("sim-hashes-{name}"), args.text("models"), runs)?;
    lines.sort();
    Ok(lines)
}

/// Runs programs, two tests at a time; the lines that their models and worlds write to this file below target/.
pub(crate) fn noted(
    name: &str,
    filter: &str,
    runs: impl IntoIterator<Item = Cmd>,
) -> Outcome<Vec<String>> {
    let file = files::target().join(name);
    files::write(&file, "")?;
    for run in runs {
        run.env("RON_SIM_HASHES", file.display().to_string())
            .args(["--test-threads", "2"])
            .run()?;
    }
    let lines: Vec<String> = files::read(&file)?.lines().map(str::to_owned).collect();
    // A wrong name must not look like models that hold.
    if lines.is_empty() {
        return Err(Failure(format!("no model has `{filter}` in its path")));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_those_of_the_worlds() {
        let lines = [
            "models::queue 00ff 10 3",
            "money::a 00ff 10 3 7 a_cut=2,a_kill=1",
            "money::b 00ff 10 4 5 a_cut=3",
            "money::c 00ff 10 1 2 ",
        ];
        let totals = Totals::of(lines.into_iter());
        assert_eq!((totals.operations, totals.switches), (14, 8));
        let faults: Vec<_> = totals.faults.into_iter().collect();
        assert_eq!(faults, [("a cut".to_owned(), 5), ("a kill".to_owned(), 1)]);
    }
}
