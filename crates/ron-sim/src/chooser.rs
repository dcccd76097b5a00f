//! Makes every decision of a run: by its seed, or as a schedule says. Records what differs from the default.

use crate::rng::{Rng, Stream};
use crate::schedule::{Kind, Place, Schedule};

/// A ready thread is passed over for at most so many steps, then it runs: loops that wait for another thread end, also
/// under an unfair seed.
pub const FAIR_STEPS: u64 = 10_000;

/// Longest pause of a group: 5 seconds.
const PAUSE_MS_MAX: u64 = 5_000;

/// Longest time that one thread is held up: 5 milliseconds.
const STALL_US_MAX: u64 = 5_000;

/// A thread that could run, in the order in which threads became ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub thread: u32,
    /// The step at which it became ready.
    pub since: u64,
}

/// Which of the ready threads a seed prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Any,
    Longest,
    Newest,
    /// By a rank drawn for each thread: the unfair schedules in which a few well placed switches matter.
    Ranked,
}

/// What kind of run a seed makes.
#[derive(Clone, Debug)]
struct Plan {
    preempt_per_million: u32,
    order: Order,
    starve_per_million: u32,
    pause_per_million: u32,
    stall_per_million: u32,
}

impl Plan {
    fn draw(seed: u64, pauses: bool) -> Self {
        let mut rng = Rng::new(seed, Stream::Plan);
        let mut one_of = |list: [u32; 4]| list[rng.below(4) as usize];
        let preempt_per_million = one_of([0, 1_000, 20_000, 500_000]);
        let starve_per_million = one_of([0, 0, 0, 2_000]);
        let pause_per_million = one_of([0, 0, 500, 2_000]) * u32::from(pauses);
        let orders = [Order::Any, Order::Longest, Order::Newest, Order::Ranked];
        let order = orders[rng.below(4) as usize];
        Self {
            preempt_per_million,
            starve_per_million,
            pause_per_million,
            stall_per_million: [0, 20, 100, 500][rng.below(4) as usize],
            order,
        }
    }
}

#[derive(Clone, Debug)]
struct Seeded {
    plan: Plan,
    schedule: Rng,
    faults: Rng,
    ranks: Rng,
    stalls: Rng,
    rank_of: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Source {
    Seeded(Box<Seeded>),
    Given(Schedule),
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Chooser {
    source: Source,
    /// A thread that is passed over, and until which step.
    starved: Option<(u32, u64)>,
    /// The decisions of this run so far; empty unless they are recorded.
    pub made: Schedule,
    /// How many there were.
    pub decisions: u64,
    record: bool,
}

impl Chooser {
    pub fn new(seed: u64, pauses: bool, given: Option<Schedule>, record: bool) -> Self {
        let seeded = || Seeded {
            plan: Plan::draw(seed, pauses),
            schedule: Rng::new(seed, Stream::Schedule),
            faults: Rng::new(seed, Stream::Faults),
            ranks: Rng::new(seed, Stream::Ranks),
            stalls: Rng::new(seed, Stream::Stalls),
            rank_of: Vec::new(),
        };
        Self {
            source: given.map_or_else(|| Source::Seeded(Box::new(seeded())), Source::Given),
            starved: None,
            made: Schedule::default(),
            decisions: 0,
            record,
        }
    }

    /// A decision that differs from the default.
    fn decided(&mut self, place: Place, value: u64) {
        self.decisions += 1;
        if self.record {
            self.made.0.insert(place, value);
        }
    }

    /// Whether another thread runs before the operation at `place`; by default none does.
    pub fn preempt(&mut self, place: Place, ready: &[Ready], step: u64) -> Option<u32> {
        let starved = self.starve(place, ready, step);
        let longest = ready.first()?;
        if overdue(longest, step) {
            return Some(longest.thread); // part of the default, so no decision
        }
        let chosen = match &mut self.source {
            Source::Given(schedule) => given_thread(schedule, place, ready),
            Source::Seeded(seeded) => {
                let yes = seeded.schedule.chance(seeded.plan.preempt_per_million);
                yes.then(|| seeded.pick(ready, starved))
            }
        };
        if let Some(thread) = chosen {
            self.decided(place, u64::from(thread));
        }
        chosen
    }

    /// The thread that runs after one that waits, yields or ends; by default the one that has been ready longest and is
    /// not passed over. `ready` is not empty.
    pub fn next(&mut self, place: Place, ready: &[Ready], step: u64) -> u32 {
        let starved = self.starve(place, ready, step);
        if overdue(&ready[0], step) {
            return ready[0].thread;
        }
        let mut fed = ready.iter().filter(|r| Some(r.thread) != starved);
        let default = fed.next().map_or(ready[0].thread, |r| r.thread);
        let chosen = match &mut self.source {
            Source::Given(schedule) => given_thread(schedule, place, ready),
            Source::Seeded(seeded) => Some(seeded.pick(ready, starved)),
        };
        let chosen = chosen.unwrap_or(default);
        if chosen != default {
            self.decided(place, u64::from(chosen));
        }
        chosen
    }

    /// The thread that is passed over now, after the decision at this place to pass one over.
    fn starve(&mut self, place: Place, ready: &[Ready], step: u64) -> Option<u32> {
        if self.starved.is_some_and(|(_, until)| step >= until) {
            self.starved = None;
        }
        let kind = Kind::Starve;
        let place = Place { kind, ..place };
        let value = match &mut self.source {
            Source::Given(schedule) => schedule.0.get(&place).copied(),
            Source::Seeded(seeded) => {
                let per_million = seeded.plan.starve_per_million;
                let yes = !ready.is_empty() && seeded.schedule.chance(per_million);
                yes.then(|| seeded.victim(ready))
            }
        };
        if let Some(value) = value {
            self.starved = Some(((value >> 32) as u32, step + (value & 0xffff_ffff)));
            self.decided(place, value);
        }
        self.starved.map(|(thread, _)| thread)
    }

    /// Which of the waiting threads a notification wakes; by default the first. `waiting` is not empty.
    pub fn wake(&mut self, place: Place, waiting: &[u32]) -> u32 {
        let at = match &mut self.source {
            Source::Given(schedule) => {
                let wanted = schedule.0.get(&place).copied();
                waiting.iter().position(|t| Some(u64::from(*t)) == wanted)
            }
            Source::Seeded(seeded) if seeded.plan.order == Order::Longest => None,
            Source::Seeded(seeded) => Some(seeded.schedule.below(waiting.len() as u64) as usize),
        };
        let chosen = waiting[at.unwrap_or(0)];
        if chosen != waiting[0] {
            self.decided(place, u64::from(chosen));
        }
        chosen
    }

    /// A number below `n` for the program: a fault or another choice. By default 0.
    pub fn choice(&mut self, place: Place, n: u64, per_million: u32) -> u64 {
        let value = match &mut self.source {
            Source::Given(schedule) => schedule.0.get(&place).copied().unwrap_or(0),
            Source::Seeded(seeded) => {
                let drawn = seeded.faults.chance(per_million);
                if drawn { seeded.faults.below(n) } else { 0 }
            }
        };
        let value = value.min(n.saturating_sub(1));
        if value != 0 {
            self.decided(place, value);
        }
        value
    }

    /// A pause of one of `groups` groups: the group and milliseconds. By default none.
    pub fn pause(&mut self, place: Place, groups: u32) -> Option<(u32, u64)> {
        let value = match &mut self.source {
            Source::Given(schedule) => schedule.0.get(&place).copied()?,
            Source::Seeded(seeded) => {
                if !seeded.faults.chance(seeded.plan.pause_per_million) {
                    return None;
                }
                let group = seeded.faults.below(u64::from(groups));
                // Short and long ones alike: the length of the number is drawn first.
                let most = 1 << (1 + seeded.faults.below(12));
                group << 32 | (1 + seeded.faults.below(most)).min(PAUSE_MS_MAX)
            }
        };
        let (group, ms) = ((value >> 32) as u32, value & 0xffff_ffff);
        if group >= groups {
            return None;
        }
        self.decided(place, value);
        Some((group, ms))
    }

    /// For how many microseconds the thread is held up at this operation; by default it is not.
    pub fn stall(&mut self, place: Place) -> Option<u64> {
        let us = match &mut self.source {
            Source::Given(schedule) => schedule.0.get(&place).copied()?,
            Source::Seeded(seeded) => {
                if !seeded.stalls.chance(seeded.plan.stall_per_million) {
                    return None;
                }
                let most = STALL_US_MAX >> seeded.stalls.below(8);
                1 + seeded.stalls.below(most)
            }
        };
        self.decided(place, us);
        Some(us)
    }
}

fn overdue(ready: &Ready, step: u64) -> bool {
    step.saturating_sub(ready.since) > FAIR_STEPS
}

fn given_thread(schedule: &Schedule, place: Place, ready: &[Ready]) -> Option<u32> {
    debug_assert!(place.kind == Kind::Run, "threads are chosen to run");
    let wanted = *schedule.0.get(&place)?;
    let found = ready.iter().find(|r| u64::from(r.thread) == wanted);
    found.map(|r| r.thread)
}

impl Seeded {
    fn pick(&mut self, ready: &[Ready], starved: Option<u32>) -> u32 {
        let fed = |r: &&Ready| Some(r.thread) != starved;
        let number = ready.iter().filter(fed).count();
        if number == 0 {
            return ready[0].thread;
        }
        let at = match self.plan.order {
            Order::Any => self.schedule.below(number as u64) as usize,
            Order::Longest => 0,
            Order::Newest => number - 1,
            Order::Ranked => return self.highest(ready, starved),
        };
        ready.iter().filter(fed).nth(at).map_or(0, |r| r.thread)
    }

    /// A thread to pass over, and for how many steps, as a value of [`Kind::Starve`].
    fn victim(&mut self, ready: &[Ready]) -> u64 {
        let victim = self.schedule.below(ready.len() as u64) as usize;
        let steps = 50 + self.schedule.below(FAIR_STEPS);
        u64::from(ready[victim].thread) << 32 | steps
    }

    fn highest(&mut self, ready: &[Ready], starved: Option<u32>) -> u32 {
        for r in ready {
            while self.rank_of.len() <= r.thread as usize {
                let rank = self.ranks.next();
                self.rank_of.push(rank);
            }
        }
        let fed = ready.iter().filter(|r| Some(r.thread) != starved);
        let best = fed.max_by_key(|r| self.rank_of[r.thread as usize]);
        let best = best.map_or(ready[0].thread, |r| r.thread);
        // A rank that changes now and then: the change points of PCT (Burckhardt et al., 2010).
        if self.schedule.chance(20_000) {
            self.rank_of[best as usize] = self.ranks.next();
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(operation: u64, kind: Kind) -> Place {
        Place {
            thread: 1,
            operation,
            kind,
        }
    }

    fn ready(threads: &[u32]) -> Vec<Ready> {
        let ready = threads.iter().map(|thread| Ready {
            thread: *thread,
            since: 0,
        });
        ready.collect()
    }

    #[test]
    fn a_schedule_gives_back_the_decisions_of_the_seed() {
        for seed in 0..200 {
            let run = |given| {
                let mut chooser = Chooser::new(seed, true, given, true);
                let mut all = Vec::new();
                for operation in 1..200 {
                    let run = place(operation, Kind::Run);
                    if operation % 3 == 0 {
                        let next = chooser.next(run, &ready(&[4, 2, 7]), operation);
                        all.push(u64::from(next));
                    } else {
                        let next = chooser.preempt(run, &ready(&[2, 5]), operation);
                        all.push(next.map_or(99, u64::from));
                    }
                    let wake = place(operation, Kind::Wake);
                    all.push(u64::from(chooser.wake(wake, &[3, 1])));
                    let choice = place(operation, Kind::Choice);
                    all.push(chooser.choice(choice, 3, 100_000));
                    let pause = chooser.pause(place(operation, Kind::Pause), 2);
                    all.push(pause.map_or(0, |(group, ms)| u64::from(group) << 32 | ms));
                    let stall = chooser.stall(place(operation, Kind::Stall));
                    all.push(stall.unwrap_or(0));
                }
                (all, chooser.made)
            };
            let (all, made) = run(None);
            assert_eq!(run(Some(made.clone())), (all, made), "seed {seed}");
        }
    }

    #[test]
    fn without_decisions_the_longest_waiting_comes_first() {
        let mut chooser = Chooser::new(1, true, Some(Schedule::default()), true);
        let threads = ready(&[4, 2]);
        assert_eq!(chooser.next(place(1, Kind::Run), &threads, 1), 4);
        assert_eq!(chooser.preempt(place(2, Kind::Run), &threads, 1), None);
        assert_eq!(chooser.wake(place(3, Kind::Wake), &[3, 1]), 3);
        assert_eq!(chooser.choice(place(4, Kind::Choice), 9, 1_000_000), 0);
        assert_eq!(chooser.pause(place(5, Kind::Pause), 3), None);
        assert_eq!(chooser.stall(place(6, Kind::Stall)), None);
        assert!(chooser.made.is_empty());
    }

    #[test]
    fn no_ready_thread_is_passed_over_for_ever() {
        for seed in 0..100 {
            let mut chooser = Chooser::new(seed, false, None, true);
            let at = place(1, Kind::Run);
            let late = FAIR_STEPS + 1;
            assert_eq!(chooser.preempt(at, &ready(&[6, 2]), late), Some(6));
            assert_eq!(chooser.next(at, &ready(&[6, 2]), late), 6);
        }
    }
}
