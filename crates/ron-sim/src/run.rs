//! Running a program under a seed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use crate::chooser::Chooser;
use crate::failure::Failure;
use crate::machine;
use crate::rng::{Rng, Stream};
use crate::schedule::Schedule;
use crate::state::{Limits, State};
use crate::trace::Trace;
use crate::world::{World, is_simulated};

/// Virtual nanoseconds of an operation, of which a seed draws one.
const STEP_NS: [u64; 3] = [100, 1_000, 10_000];

/// How a program is run.
#[derive(Clone, Debug)]
pub struct Sim {
    pub seed: u64,
    /// Virtual time of an operation. By default a seed draws 0.1, 1 or 10 microseconds, so that programs also meet a
    /// slow machine.
    pub step: Option<Duration>,
    /// Operations of all threads, after which the run counts as one without end.
    pub steps_max: u64,
    /// Virtual time after which the run counts as one without end.
    pub time_max: Duration,
    /// Time on the machine after which a thread that does no operation counts as stuck.
    pub stuck_after: Duration,
    /// Whether the seed may pause groups.
    pub pauses: bool,
    /// Whether the seed may hold a single thread up for up to 5 ms, at any operation.
    pub stalls: bool,
    /// Whether the events are kept. The hash covers them in any case.
    pub keep_trace: bool,
    /// Whether the decisions are kept, to run a schedule again: about 50 bytes for each.
    pub record: bool,
    /// Decisions to take instead of those of the seed.
    pub schedule: Option<Schedule>,
    pub stack_bytes: usize,
    /// Runs in which a failing schedule is shortened, at most. Each that fails leaves its threads parked.
    pub shorten_runs: u64,
}

impl Sim {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            step: None,
            steps_max: 1_000_000,
            time_max: Duration::from_secs(7 * 86_400),
            stuck_after: Duration::from_secs(10),
            pauses: false,
            stalls: false,
            keep_trace: false,
            record: true,
            schedule: None,
            stack_bytes: 1 << 20,
            shorten_runs: 400,
        }
    }

    /// Runs `body` as the first thread, named `main`, of a group of that name. The run ends with it; threads that still
    /// run then are parked for ever, as at the end of a process. The same seed, program and build give the same trace.
    ///
    /// # Panics
    /// Inside of a run.
    pub fn run(&self, body: impl FnOnce() + Send + 'static) -> Outcome {
        assert!(
            !is_simulated(),
            "a run inside of a run would block its threads"
        );
        machine::install();
        let chooser = Chooser::new(self.seed, self.pauses, self.schedule.clone(), self.record);
        let program = Rng::new(self.seed, Stream::Program);
        let mut state = State::new(self.limits(), chooser, program, self.keep_trace);
        let group = state.add_group("main".to_owned());
        let world = World::new(self.seed, state, self.stack_bytes);
        let started = Instant::now();
        let body = Box::new(|| {
            machine::share_one_core(); // the other threads are started by this one, and inherit it
            body();
        });
        if let Err(error) = world.start(Some("main".to_owned()), group, body) {
            let why = error.to_string();
            world.finish(world.state(), Err(Failure::NoThread { why }));
            return self.outcome(&world, started.elapsed());
        }
        let main = world.begin();
        self.watch(&world);
        if let Some(main) = main.filter(|_| world.state().result == Some(Ok(()))) {
            // So that the destructors of its thread-locals are over. Its panics were reported.
            let _ = main.join();
        }
        self.outcome(&world, started.elapsed())
    }

    fn limits(&self) -> Limits {
        let mut plan = Rng::new(self.seed ^ 1, Stream::Plan);
        let drawn = STEP_NS[plan.below(3) as usize];
        Limits {
            steps: self.steps_max,
            time: u64::try_from(self.time_max.as_nanos()).unwrap_or(u64::MAX),
            step_ns: self.step.map_or(drawn, |step| step.as_nanos() as u64),
            pauses: self.pauses,
            stalls: self.stalls,
        }
    }

    /// Waits for the end of the run, or for a thread that has left the simulator.
    fn watch(&self, world: &World) {
        let (mut steps, mut since) = (0, Instant::now());
        while !world.wait_for_end(self.stuck_after.min(Duration::from_millis(500))) {
            let mut state = world.state();
            if state.steps != steps {
                (steps, since) = (state.steps, Instant::now());
                continue;
            }
            if since.elapsed() < self.stuck_after || state.result.is_some() {
                continue;
            }
            let current = state.current;
            let system = state.thread(current).system.clone();
            let thread = state.trace.threads[current as usize].clone();
            let system = where_it_is(&system);
            world.finish(state, Err(Failure::Stuck { thread, system }));
        }
    }

    fn outcome(&self, world: &World, took: Duration) -> Outcome {
        let mut state = world.state();
        let result = state.result.clone().unwrap_or(Ok(()));
        Outcome {
            seed: self.seed,
            failure: result.err(),
            schedule: std::mem::take(&mut state.chooser.made),
            hash: state.trace.hash,
            steps: state.steps,
            switches: state.switches,
            time: Duration::from_nanos(state.now),
            took,
            left: state.describe(),
            faults: std::mem::take(&mut state.faults),
            trace: std::mem::take(&mut state.trace),
        }
    }
}

/// What the operating system says of a thread: the call it is in, and its stack in the kernel, where that may be read.
fn where_it_is(dir: &str) -> String {
    let read = |file: &str| fs::read_to_string(format!("{dir}/{file}")).ok();
    let known = ["wchan", "syscall", "stack"].into_iter();
    let known = known.filter_map(|file| Some(format!("  {file}: {}", read(file)?.trim())));
    known.collect::<Vec<_>>().join("\n")
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub failure: Option<Failure>,
    /// The decisions that differed from the default, where they are recorded. A run with them has the same trace.
    pub schedule: Schedule,
    /// Covers every operation with thread, object and virtual time.
    pub hash: u64,
    pub steps: u64,
    pub switches: u64,
    /// Virtual time from the start to the end.
    pub time: Duration,
    /// The same on the machine.
    pub took: Duration,
    /// The threads that had not ended, with what they did.
    pub left: Vec<String>,
    /// How often each fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    pub trace: Trace,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, steps, switches) = (self.seed, self.steps, self.switches);
        let (ms, hash) = (self.time.as_secs_f64() * 1e3, self.hash);
        writeln!(
            out,
            "seed {seed}: {steps} operations, {switches} switches, {ms:.3} ms of virtual time, trace {hash:016x}"
        )?;
        match &self.failure {
            Some(failure) => write!(out, "{failure}"),
            None => writeln!(out, "no failure"),
        }
    }
}
