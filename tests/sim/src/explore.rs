//! Runs a world under many seeds, twice for some of them, as the arguments of `cargo xtask sim` say.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ron_sim::{Body, Outcome, Sim};

/// A number of the environment, if it is set.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// A run of a world has more operations than one of a model, and may last an hour of virtual time.
fn world() -> Sim {
    Sim {
        steps_max: 100_000_000,
        time_max: Duration::from_secs(3_600),
        stack_bytes: 2 << 20,
        ..Sim::new(0)
    }
}

/// Runs a world under `seeds` seeds, or under `RON_SIM_SEED` alone, with the decisions of `RON_SIM_SCHEDULE` if it is there.
/// A failing seed is printed with its shortened schedule; `RON_SIM_TRACE` prints the time line of one that holds.
pub fn explore(seeds: u64, body: impl Fn() + Send + Sync + 'static) {
    explore_as(world(), seeds, body);
}

/// As [`explore`], for services with many threads: an operation takes 0.1 microseconds, because a seed that lets a thread
/// run late would otherwise make every answer late.
pub fn explore_services(seeds: u64, body: impl Fn() + Send + Sync + 'static) {
    let step = Some(Duration::from_nanos(100));
    explore_as(Sim { step, ..world() }, seeds, body);
}

fn explore_as(world: Sim, seeds: u64, body: impl Fn() + Send + Sync + 'static) {
    let seeds = match number("RON_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..seeds,
    };
    let schedule = std::env::var("RON_SIM_SCHEDULE").ok();
    let schedule = schedule.map(|text| text.parse().expect("RON_SIM_SCHEDULE is a schedule"));
    let sim = Sim { schedule, ..world };
    let body: Body = Arc::new(body);
    let test = std::thread::current();
    let test = test.name().unwrap_or("").to_owned();
    if let Some(finding) = sim.search(seeds.clone(), &body) {
        let seed = seeds.start + finding.seeds - 1;
        panic!(
            "{finding}\nagain: cargo xtask sim --models {test} --seed {seed}\nshort: cargo xtask sim --models {test} --seed {seed} --schedule \"{}\"",
            finding.short.schedule
        );
    }
    // Again: a run that differs from the first of its seed is a failure of its own.
    let mut hash = 0_u64;
    for seed in seeds.clone().step_by(10) {
        let (first, again) = (run(&sim, seed, &body), run(&sim, seed, &body));
        let difference = first.trace.first_difference(&again.trace);
        assert_eq!(difference, None, "seed {seed} does not repeat");
        hash = hash.rotate_left(7) ^ first.hash;
    }
    note_hash(&test, hash);
    if std::env::var("RON_SIM_TRACE").is_ok() {
        let outcome = run(&sim, seeds.start, &body);
        println!("{outcome}{}", outcome.trace.text());
    }
}

fn run(sim: &Sim, seed: u64, body: &Body) -> Outcome {
    let sim = Sim {
        seed,
        keep_trace: true,
        ..sim.clone()
    };
    let body = body.clone();
    sim.run(move || body())
}

/// Appends the hash of this test's traces to the file `RON_SIM_HASHES`, for a comparison with another process.
fn note_hash(test: &str, hash: u64) {
    let Ok(path) = std::env::var("RON_SIM_HASHES") else {
        return;
    };
    let file = std::fs::OpenOptions::new().append(true).open(path);
    let line = format!("{test} {hash:016x}\n");
    // One write, because other tests append too.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the file of hashes can be written");
}
