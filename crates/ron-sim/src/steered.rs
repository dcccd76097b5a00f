//! Runs that a program around the tests steers by the environment: one seed, a schedule, a time line, and hashes for a
//! comparison with another process.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::Range;

use crate::run::{Outcome, Sim};
use crate::search::Body;

/// A number of the environment, if it is set.
///
/// # Panics
/// When it is no number.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seed of `RON_SIM_SEED` alone, or else these.
pub fn seeds(otherwise: Range<u64>) -> Range<u64> {
    match number("RON_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => otherwise,
    }
}

/// The same with the decisions of `RON_SIM_SCHEDULE`, if it is there.
///
/// # Panics
/// When it is no schedule.
#[must_use]
pub fn scheduled(sim: Sim) -> Sim {
    let text = std::env::var("RON_SIM_SCHEDULE").ok();
    let schedule = text.map(|text| text.parse().expect("RON_SIM_SCHEDULE is a schedule"));
    Sim { schedule, ..sim }
}

/// A run of the seed with its trace.
pub fn traced(sim: &Sim, seed: u64, body: &Body) -> Outcome {
    let sim = Sim {
        seed,
        keep_trace: true,
        ..sim.clone()
    };
    let body = body.clone();
    sim.run(move || body())
}

/// Runs each seed twice; a hash of all traces.
///
/// # Panics
/// When the two runs of a seed differ.
pub fn repeats(sim: &Sim, seeds: impl Iterator<Item = u64>, body: &Body) -> u64 {
    let mut hash = 0_u64;
    for seed in seeds {
        let (first, again) = (traced(sim, seed, body), traced(sim, seed, body));
        let difference = first.trace.first_difference(&again.trace);
        assert_eq!(difference, None, "seed {seed} does not repeat");
        hash = hash.rotate_left(7) ^ first.hash;
    }
    hash
}

/// Appends a line about this test to the file `RON_SIM_HASHES`, if there is one.
///
/// # Panics
/// When the file cannot be written.
pub fn note(line: &str) {
    let Ok(path) = std::env::var("RON_SIM_HASHES") else {
        return;
    };
    let file = OpenOptions::new().append(true).open(path);
    let line = format!("{} {line}\n", test_name());
    // One write, because other tests append too.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the file of hashes can be written");
}

/// Prints the time line of the seed, if `RON_SIM_TRACE` is there.
pub fn show(sim: &Sim, seed: u64, body: &Body) {
    if std::env::var("RON_SIM_TRACE").is_ok() {
        let outcome = traced(sim, seed, body);
        println!("{outcome}{}", outcome.trace.text());
    }
}

/// The name of the test that this thread runs.
pub fn test_name() -> String {
    let test = std::thread::current();
    test.name().unwrap_or("").to_owned()
}
