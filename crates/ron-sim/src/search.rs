//! Many seeds, and the shortest schedule of the first that fails.

use std::fmt;
use std::sync::Arc;

use crate::chooser::FAIR_STEPS;
use crate::failure::Failure;
use crate::run::{Outcome, Sim};
use crate::schedule::{Kind, Place, Schedule};

/// A program that can be run again.
pub type Body = Arc<dyn Fn() + Send + Sync>;

/// A failing seed with its shortened schedule.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seeds that were run, the failing one included.
    pub seeds: u64,
    /// As the seed decided.
    pub first: Outcome,
    /// With the shortened schedule and its trace.
    pub short: Outcome,
    /// Runs that the shortening took.
    pub runs: u64,
}

impl Sim {
    fn again(&self, schedule: Option<Schedule>, keep_trace: bool, body: &Body) -> Outcome {
        let sim = Self {
            keep_trace,
            record: true,
            schedule,
            ..self.clone()
        };
        let body = body.clone();
        sim.run(move || body())
    }

    /// Runs `seeds` one after the other; the first that fails, shortened. Decisions are recorded when the failing seed is
    /// run again, so that a long search keeps none.
    pub fn search(&self, seeds: impl IntoIterator<Item = u64>, body: &Body) -> Option<Finding> {
        for (at, seed) in seeds.into_iter().enumerate() {
            let sim = Self {
                seed,
                ..self.clone()
            };
            let quiet = Self {
                keep_trace: false,
                record: false,
                ..sim.clone()
            };
            let body_of_run = body.clone();
            let found = quiet.run(move || body_of_run());
            if found.failure.is_none() {
                continue;
            }
            let seeds = at as u64 + 1;
            let first = sim.again(self.schedule.clone(), false, body);
            let end = |run: &Outcome| (run.hash, run.time, run.failure.clone());
            if end(&first) == end(&found) {
                return Some(sim.shorten(seeds, first, body));
            }
            return Some(Finding::of_chance(seeds, found, first));
        }
        None
    }

    /// Leaves out decisions for as long as the run fails for the same reason (delta debugging, Zeller 1999), in at most
    /// [`Sim::shorten_runs`] runs.
    pub fn shorten(&self, seeds: u64, first: Outcome, body: &Body) -> Finding {
        let mut shortening = Shortening {
            sim: self,
            body,
            best: first.clone(),
            runs: 0,
        };
        shortening.by_one_starved_thread();
        shortening.by_halves();
        let schedule = shortening.best.schedule.clone();
        Finding {
            seeds,
            short: self.again(Some(schedule), true, body),
            runs: shortening.runs,
            first,
        }
    }

    /// Runs `seeds` and panics with the story of the first that fails: the reason, the shortened schedule and its time
    /// line.
    ///
    /// # Panics
    /// When a seed fails.
    pub fn check(
        &self,
        seeds: impl IntoIterator<Item = u64>,
        body: impl Fn() + Send + Sync + 'static,
    ) {
        let body: Body = Arc::new(body);
        if let Some(finding) = self.search(seeds, &body) {
            panic!("{finding}");
        }
    }
}

impl Finding {
    /// A seed of which two runs differ: something in it is left to chance, so nothing can be shortened.
    fn of_chance(seeds: u64, found: Outcome, mut again: Outcome) -> Self {
        let text = |outcome: &Outcome| outcome.to_string();
        let runs = [text(&found), text(&again)];
        again.failure = Some(Failure::Chance { runs });
        Self {
            seeds,
            first: found,
            short: again,
            runs: 0,
        }
    }
}

struct Shortening<'a> {
    sim: &'a Sim,
    body: &'a Body,
    best: Outcome,
    runs: u64,
}

/// Threads of which the shortening tries whether the run fails when that one alone does not run.
const STARVED_MAX: u64 = 16;

impl Shortening<'_> {
    /// Many decisions often have one effect: a thread does not run for long.
    fn by_one_starved_thread(&mut self) {
        let threads = self.best.trace.threads.len() as u64;
        for thread in 1..threads.min(STARVED_MAX) {
            if self.best.schedule.len() < 2 {
                return;
            }
            let place = Place {
                thread: 0,
                operation: 1,
                kind: Kind::Starve,
            };
            let starved = [(place, thread << 32 | FAIR_STEPS)];
            self.attempt(Schedule(starved.into()));
        }
    }

    fn by_halves(&mut self) {
        let mut parts = 1;
        while !self.best.schedule.is_empty() && self.runs < self.sim.shorten_runs {
            let number = self.best.schedule.len();
            let size = number.div_ceil(parts);
            let shorter = (0..parts).any(|part| self.without(part * size, size));
            if shorter {
                parts = parts.saturating_sub(1).max(1);
            } else if size <= 1 {
                break;
            } else {
                parts = (parts * 2).min(number);
            }
        }
    }

    /// Tries the best schedule without `size` decisions from the one at `from`; true when it still fails so.
    fn without(&mut self, from: usize, size: usize) -> bool {
        let number = self.best.schedule.len();
        if from >= number || self.runs >= self.sim.shorten_runs {
            return false;
        }
        let all = self.best.schedule.0.iter().enumerate();
        let rest = all.filter(|(at, _)| !(from..from + size).contains(at));
        let rest = rest.map(|(_, (place, value))| (*place, *value));
        self.attempt(Schedule(rest.collect()))
    }

    /// Runs a schedule; true when it fails for the same reason, with fewer decisions than the best one.
    fn attempt(&mut self, schedule: Schedule) -> bool {
        self.runs += 1;
        let outcome = self.sim.again(Some(schedule), false, self.body);
        let wanted = self.best.failure.as_ref();
        let same = outcome.failure.as_ref().zip(wanted);
        // The decisions that took effect: others are not needed either.
        let shorter = outcome.schedule.len() < self.best.schedule.len();
        if same.is_some_and(|(a, b)| a.same(b)) && shorter {
            self.best = outcome;
            return true;
        }
        false
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seeds, runs, short) = (self.seeds, self.runs, &self.short);
        writeln!(out, "the seed number {seeds} fails: {}", self.first)?;
        writeln!(
            out,
            "shortened from {} decisions to {} in {runs} runs: {short}",
            self.first.schedule.len(),
            short.schedule.len()
        )?;
        writeln!(out, "schedule: {}", short.schedule)?;
        writeln!(out, "time line:")?;
        out.write_str(&short.trace.text())
    }
}
