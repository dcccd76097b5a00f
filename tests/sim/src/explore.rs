//! Runs a world under seeds until enough operations were done, some seeds twice, as the arguments of `cargo xtask sim` say.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_sim::steered::{self, test_name, traced};
use ron_sim::{Body, Outcome, Sim};

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
        ..world()
    };
    explore_as(sim, seeds_max, body);
}

fn explore_as(world: Sim, seeds_max: u64, body: impl Fn(&Operations) + Send + Sync + 'static) {
    let operations = Operations::default();
    let counted = operations.clone();
    let body: Body = Arc::new(move || body(&counted));
    let at = |seed| {
        operations.1.store(seed, Ordering::SeqCst);
        seed
    };
    let sim = steered::scheduled(world);
    let wanted = steered::number("RON_SIM_OPERATIONS").unwrap_or(OPERATIONS);
    let seeds = steered::seeds(0..u64::MAX);
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
    steered::note(&format!("{hash:016x} {} {}", speed.points, speed.switches));
    steered::show(&sim, at(first), &body);
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
        "{finding}again: {again}\nshort: {again} --schedule \"{}\"",
        finding.short.schedule
    );
}

/// What a number of runs took.
#[derive(Debug, Default)]
struct Speed {
    seeds: u64,
    operations: u64,
    points: u64,
    switches: u64,
    took: Duration,
}

impl Speed {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.points += outcome.steps;
        self.switches += outcome.switches;
        self.took += outcome.took;
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
