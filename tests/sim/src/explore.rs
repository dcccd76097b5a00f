//! Runs a world under seeds until enough operations were done, some seeds twice, as the arguments of `cargo xtask sim` say.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_sim::steered::{self, test_name, traced};
use ron_sim::{Body, Finding, Outcome, Sim};

use crate::{coverage, logs};

/// Operations of a world in the test command.
const OPERATIONS: u64 = 2_000;

/// Counts the operations of a world, and says its seed.
#[derive(Clone, Debug, Default)]
pub struct Operations(Arc<AtomicU64>, Arc<AtomicU64>);

impl Operations {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// The seed of this run, for worlds that go through cases one after the other.
    pub fn seed(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A run of a world has more operations than one of a model, and may last an hour of virtual time.
fn world() -> Sim {
    Sim {
        steps_max: 2_000_000,
        time_max: Duration::from_secs(3_600),
        stack_bytes: 2 << 20,
        ..Sim::new(0)
    }
}

/// Runs a world under seeds until `RON_SIM_OPERATIONS` operations were done, or under `RON_SIM_SEED` alone, with the
/// decisions of `RON_SIM_SCHEDULE` if it is there. A failing seed is printed with its shortened schedule; `RON_SIM_TRACE`
/// prints the time line of one that holds.
pub fn explore(body: impl Fn(&Operations) + Send + Sync + 'static) {
    explore_at_most(u64::MAX, body);
}

/// The same under at most so many seeds: the threads of a killed process stay until this one ends.
pub fn explore_at_most(seeds_max: u64, body: impl Fn(&Operations) + Send + Sync + 'static) {
    explore_as(world(), seeds_max, body);
}

/// The same for services, which have many threads. An operation of a thread takes 0.1 microseconds: a seed that lets a
/// thread run late would otherwise make every answer late.
pub fn explore_services(seeds_max: u64, body: impl Fn(&Operations) + Send + Sync + 'static) {
    let sim = Sim {
        step: Some(Duration::from_nanos(100)),
        steps_max: 100_000_000,
        stalls: true,
        shorten_runs: 60,
        ..world()
    };
    explore_as(sim, seeds_max, body);
}

fn explore_as(world: Sim, seeds_max: u64, body: impl Fn(&Operations) + Send + Sync + 'static) {
    logs::install();
    let operations = Operations::default();
    let counted = operations.clone();
    let body: Body = Arc::new(move || body(&counted));
    let at = |seed| {
        operations.1.store(seed, Ordering::SeqCst);
        seed
    };
    let sim = steered::scheduled(world);
    let wanted = steered::number("RON_SIM_OPERATIONS").unwrap_or(OPERATIONS);
    // Long runs add up when each begins behind the one before.
    let seeds = steered::seeds(steered::number("RON_SIM_FIRST").unwrap_or(0)..u64::MAX);
    let first = seeds.start;
    let mut speed = Speed::default();
    let seeds = seeds.take(usize::try_from(seeds_max).unwrap_or(usize::MAX));
    for seed in seeds.take_while(|seed| *seed == first || operations.get() < wanted) {
        let outcome = run(&sim, at(seed), &body);
        speed.add(&outcome);
        if outcome.failure.is_some() {
            report(&sim, outcome, speed.seeds, &body);
        }
    }
    speed.operations = operations.get();
    // Again: a run that differs from the first of its seed is a failure of its own.
    let again = (first..first + speed.seeds).step_by(10).map(at);
    let hash = steered::repeats(&sim, again, &body);
    speed.print();
    // A later round of a long run may miss a fault that is rare: the record says what all rounds have met.
    let whole = first == 0 && wanted >= OPERATIONS && speed.operations >= wanted;
    if whole && steered::number("RON_SIM_SEED").is_none() && std::env::var("MUTANT").is_err() {
        coverage::check(&test_name(), &speed.faults);
    }
    let (points, switches, operations) = (speed.points, speed.switches, speed.operations);
    let faults = coverage::line(&speed.faults);
    steered::note(&format!(
        "{hash:016x} {points} {switches} {operations} {faults}"
    ));
    show(&sim, at(first), &body);
}

/// Prints the story of the seed, if `RON_SIM_TRACE` is there; with `all` in it every operation.
fn show(sim: &Sim, seed: u64, body: &Body) {
    let Ok(wanted) = std::env::var("RON_SIM_TRACE") else {
        return;
    };
    let outcome = traced(sim, seed, body);
    let text = match wanted.as_str() {
        "all" => outcome.trace.text(),
        _ => outcome.trace.story(),
    };
    println!("{outcome}{text}");
}

fn run(sim: &Sim, seed: u64, body: &Body) -> Outcome {
    let sim = Sim {
        seed,
        // Kept when the seed is run again: a long run makes millions of decisions.
        record: false,
        ..sim.clone()
    };
    let body = body.clone();
    sim.run(move || body())
}

/// Shortens a failing run, and fails with its story.
fn report(sim: &Sim, outcome: Outcome, seeds: u64, body: &Body) {
    let seed = outcome.seed;
    let again = format!("cargo xtask sim --models {} --seed {seed}", test_name());
    // A mutant has to be found, not explained.
    if std::env::var("MUTANT").is_ok() {
        panic!("{outcome}again: {again}");
    }
    let sim = Sim {
        seed,
        ..sim.clone()
    };
    // Again, with its decisions, of which some are left out.
    let finding = sim.shorten(seeds, traced(&sim, seed, body), body);
    panic!(
        "{}again: {again}\nshort: {again} --schedule \"{}\"",
        told(&finding),
        finding.short.schedule
    );
}

/// The last operations of a run that are shown beside its story.
const LAST: usize = 60;

/// A finding as a story: a run of services has too many operations to be read.
fn told(finding: &Finding) -> String {
    let (first, short) = (&finding.first, &finding.short);
    let all = short.trace.text();
    let lines: Vec<&str> = all.lines().collect();
    let last = lines[lines.len().saturating_sub(LAST)..].join("\n");
    format!(
        "the seed number {} fails: {first}\nshortened from {} decisions to {} in {} runs: {short}\nschedule: {}\nstory:\n{}\nthe last operations:\n{last}\n",
        finding.seeds,
        first.schedule.len(),
        short.schedule.len(),
        finding.runs,
        short.schedule,
        short.trace.story()
    )
}

/// What a number of runs took.
#[derive(Debug, Default)]
struct Speed {
    seeds: u64,
    operations: u64,
    points: u64,
    switches: u64,
    took: Duration,
    faults: BTreeMap<&'static str, u64>,
}

impl Speed {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.points += outcome.steps;
        self.switches += outcome.switches;
        self.took += outcome.took;
        for (name, number) in &outcome.faults {
            *self.faults.entry(name).or_default() += number;
        }
    }

    /// On the stream that the test harness does not capture.
    fn print(&self) {
        let seconds = self.took.as_secs_f64().max(1e-9);
        let line = format!(
            "{}: {} seeds, {} operations ({:.0}/s), {} switches ({:.0}/s), {:.1} s\n",
            test_name(),
            self.seeds,
            self.operations,
            self.operations as f64 / seconds,
            self.switches,
            self.switches as f64 / seconds,
            seconds
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
