//! What a run consists of: threads, those that are ready, waits, deadlines, groups, the clock, the record. Plain data
//! under one lock; nothing here blocks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::baton::Baton;
use crate::chooser::{Chooser, Ready};
use crate::failure::Failure;
use crate::objects::Objects;
use crate::rng::Rng;
use crate::schedule::{Kind, Place};
use crate::trace::{Event, NOTHING, Trace};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Live,
    Ended,
    /// Parked for ever with its group.
    Killed,
}

/// What a thread waits for.
#[derive(Debug)]
pub struct Wait {
    pub op: &'static str,
    /// Any of them ends the wait.
    pub objects: Vec<u32>,
    pub deadline: Option<u64>,
}

#[derive(Debug)]
pub struct Thread {
    pub group: u32,
    /// Number of operations so far.
    pub ops: u64,
    pub wait: Option<Wait>,
    /// How its last wait ended.
    pub timed_out: bool,
    pub life: Life,
    pub baton: Arc<Baton>,
    pub handle: Option<JoinHandle<()>>,
    /// Its directory in `/proc`, once it has run.
    pub system: String,
    /// The object that a thread waits for to join this one.
    pub end: u32,
}

/// Threads that are paused or killed together.
#[derive(Debug)]
pub struct Group {
    paused_until: u64,
    pub killed: bool,
}

/// Limits and speeds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub steps: u64,
    /// Virtual nanoseconds.
    pub time: u64,
    /// Virtual nanoseconds that an operation takes.
    pub step_ns: u64,
    pub pauses: bool,
    pub stalls: bool,
}

#[derive(Debug)]
pub struct State {
    pub now: u64,
    pub steps: u64,
    pub switches: u64,
    pub limits: Limits,
    pub threads: Vec<Thread>,
    pub current: u32,
    /// In the order in which they became ready. The current thread is not among them.
    ready: Vec<Ready>,
    deadlines: BTreeSet<(u64, u32)>,
    objects: Objects,
    pub groups: Vec<Group>,
    paused: u32,
    pub chooser: Chooser,
    pub program: Rng,
    pub trace: Trace,
    /// How often each fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// Set once: the run is over.
    pub result: Option<Result<(), Failure>>,
    /// A thread that has just ended, to be joined before the next one goes on.
    pub ended: Option<JoinHandle<()>>,
}

impl State {
    pub fn new(limits: Limits, chooser: Chooser, program: Rng, keep: bool) -> Self {
        Self {
            now: 0,
            steps: 0,
            switches: 0,
            limits,
            threads: Vec::new(),
            current: 0,
            ready: Vec::new(),
            deadlines: BTreeSet::new(),
            objects: Objects::default(),
            groups: Vec::new(),
            paused: 0,
            chooser,
            program,
            trace: Trace {
                keep,
                ..Trace::default()
            },
            faults: BTreeMap::new(),
            result: None,
            ended: None,
        }
    }

    pub fn add_object(&mut self, kind: &'static str, name: Cow<'static, str>) -> u32 {
        if self.trace.keep {
            self.trace.objects.push((kind, name.clone()));
        }
        self.objects.add(kind, name)
    }

    pub fn remove_object(&mut self, object: u32) {
        self.objects.remove(object);
    }

    pub fn add_group(&mut self, name: String) -> u32 {
        self.trace.groups.push(name);
        self.groups.push(Group {
            paused_until: 0,
            killed: false,
        });
        self.groups.len() as u32 - 1
    }

    /// Adds a thread that is ready to run.
    pub fn add_thread(&mut self, name: String, group: u32) -> u32 {
        let id = self.threads.len() as u32;
        let end = self.add_object("end of", name.clone().into());
        self.trace.threads.push(name);
        self.threads.push(Thread {
            group,
            ops: 0,
            wait: None,
            timed_out: false,
            life: Life::Live,
            baton: Arc::default(),
            handle: None,
            system: String::new(),
            end,
        });
        self.push_ready(id);
        id
    }

    /// Takes back a thread that the machine refused to start.
    pub fn withdraw(&mut self, id: u32) {
        self.thread(id).life = Life::Killed;
        self.ready.retain(|r| r.thread != id);
    }

    pub fn thread(&mut self, id: u32) -> &mut Thread {
        &mut self.threads[id as usize]
    }

    fn push_ready(&mut self, thread: u32) {
        let since = self.steps;
        self.ready.push(Ready { thread, since });
    }

    pub fn record(&mut self, thread: u32, op: &'static str, object: u32, other: u32) {
        let object = match object {
            NOTHING => NOTHING,
            place => self.objects.label(place),
        };
        self.trace.record(Event {
            at: self.now,
            thread,
            op,
            object,
            other,
        });
    }

    /// Counts one operation of a thread; fails at a limit.
    pub fn step(&mut self, me: u32, op: &'static str, object: u32) -> Result<(), Failure> {
        self.thread(me).ops += 1;
        self.record(me, op, object, NOTHING);
        self.tick()
    }

    /// Time and the number of steps go on.
    pub fn tick(&mut self) -> Result<(), Failure> {
        self.steps += 1;
        self.now += self.limits.step_ns;
        if self.steps > self.limits.steps {
            return Err(self.livelock(format!("{} steps", self.limits.steps)));
        }
        Ok(())
    }

    fn livelock(&self, limit: String) -> Failure {
        Failure::Livelock {
            limit,
            threads: self.describe(),
        }
    }

    fn place(&self, me: u32, kind: Kind) -> Place {
        Place {
            thread: me,
            operation: self.threads[me as usize].ops,
            kind,
        }
    }

    /// The thread that runs before the operation of `me`, if another one does.
    pub fn preempt(&mut self, me: u32) -> Option<u32> {
        self.expire();
        let place = self.place(me, Kind::Run);
        let steps = self.steps;
        if self.paused == 0 {
            return self.chooser.preempt(place, &self.ready, steps);
        }
        let eligible = self.eligible();
        self.chooser.preempt(place, &eligible, steps)
    }

    /// The thread that runs when `me` yields: another one, if any is ready.
    pub fn yield_to(&mut self, me: u32) -> Option<u32> {
        self.expire();
        self.choose_next(me)
    }

    /// The next thread after `me` has stopped running; the clock jumps when none is ready.
    pub fn next(&mut self, me: u32) -> Result<u32, Failure> {
        loop {
            self.expire();
            if let Some(next) = self.choose_next(me) {
                return Ok(next);
            }
            let Some(at) = self.next_moment() else {
                let threads = self.describe();
                return Err(Failure::Deadlock { threads });
            };
            if at > self.limits.time {
                let seconds = self.limits.time / 1_000_000_000;
                return Err(self.livelock(format!("{seconds} s of virtual time")));
            }
            self.now = at;
        }
    }

    /// One of the ready threads, if there is any.
    fn choose_next(&mut self, me: u32) -> Option<u32> {
        let place = self.place(me, Kind::Run);
        let (steps, decisions) = (self.steps, self.chooser.decisions);
        let next = if self.paused == 0 && !self.ready.is_empty() {
            self.chooser.next(place, &self.ready, steps)
        } else {
            let eligible = self.eligible();
            if eligible.is_empty() {
                return None;
            }
            self.chooser.next(place, &eligible, steps)
        };
        if self.chooser.decisions > decisions {
            self.record(me, "is followed by", NOTHING, next);
        }
        Some(next)
    }

    /// Makes `next` the running thread.
    pub fn run(&mut self, next: u32) {
        self.ready.retain(|r| r.thread != next);
        self.current = next;
    }

    /// The running thread stops without a wait.
    pub fn give_way(&mut self, me: u32) {
        self.push_ready(me);
    }

    fn eligible(&self) -> Vec<Ready> {
        let runs = |r: &&Ready| self.groups[self.group_of(r.thread)].paused_until <= self.now;
        self.ready.iter().filter(runs).copied().collect()
    }

    fn group_of(&self, thread: u32) -> usize {
        self.threads[thread as usize].group as usize
    }

    /// The earliest time at which a thread can run that cannot now.
    fn next_moment(&self) -> Option<u64> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let paused = self
            .ready
            .iter()
            .map(|r| self.groups[self.group_of(r.thread)].paused_until);
        let paused = paused.filter(|until| *until > self.now).min();
        deadline.into_iter().chain(paused).min()
    }

    /// Ends waits and pauses whose time has come: in the order of their deadlines, equal ones by thread.
    fn expire(&mut self) {
        while let Some((at, thread)) = self.deadlines.first().copied()
            && at <= self.now
        {
            self.end_wait(thread, true);
        }
        if self.paused > 0 {
            let now = self.now;
            let paused = self.groups.iter().filter(|g| g.paused_until > now);
            self.paused = paused.count() as u32;
        }
    }

    /// Begins a wait of the current thread.
    pub fn begin_wait(&mut self, me: u32, wait: Wait) {
        for object in &wait.objects {
            self.objects.begin_wait(*object, me);
        }
        if let Some(at) = wait.deadline {
            self.deadlines.insert((at, me));
        }
        self.thread(me).wait = Some(wait);
    }

    fn end_wait(&mut self, thread: u32, timed_out: bool) {
        if self.forget_wait(thread) {
            self.thread(thread).timed_out = timed_out;
            self.push_ready(thread);
        }
    }

    /// Removes a thread from every list of waits; false when it did not wait.
    fn forget_wait(&mut self, thread: u32) -> bool {
        let Some(wait) = self.thread(thread).wait.take() else {
            return false;
        };
        for object in wait.objects {
            self.objects.end_wait(object, thread);
        }
        if let Some(at) = wait.deadline {
            self.deadlines.remove(&(at, thread));
        }
        true
    }

    pub fn wake_all(&mut self, object: u32) {
        while let Some(thread) = self.objects.waiting(object).first().copied() {
            self.end_wait(thread, false);
        }
    }

    /// Wakes one waiting thread, if there is one.
    pub fn wake_one(&mut self, me: u32, object: u32) {
        let place = self.place(me, Kind::Wake);
        let waiting = self.objects.waiting(object);
        if !waiting.is_empty() {
            let thread = self.chooser.wake(place, waiting);
            self.end_wait(thread, false);
        }
    }

    pub fn set_holder(&mut self, object: u32, holder: Option<u32>) {
        self.objects.set_holder(object, holder);
    }

    /// A pause that the seed asks for at this operation of `me`; true when it concerns the group of `me`.
    pub fn drawn_pause(&mut self, me: u32) -> bool {
        if !self.limits.pauses {
            return false;
        }
        let place = self.place(me, Kind::Pause);
        let groups = self.groups.len() as u32;
        let Some((group, ms)) = self.chooser.pause(place, groups) else {
            return false;
        };
        self.pause(me, group, ms * 1_000_000)
    }

    /// For how many nanoseconds the seed holds `me` up at this operation.
    pub fn drawn_stall(&mut self, me: u32) -> Option<u64> {
        if !self.limits.stalls {
            return None;
        }
        let place = self.place(me, Kind::Stall);
        Some(self.chooser.stall(place)? * 1_000)
    }

    /// Counts a fault that happened.
    pub fn count_fault(&mut self, me: u32, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
        self.trace.report(self.now, me, name);
    }

    /// Pauses a group for `ns`; true when `me` is in it.
    pub fn pause(&mut self, me: u32, group: u32, ns: u64) -> bool {
        self.record(me, "pauses group", NOTHING, group);
        let until = self.now.saturating_add(ns);
        let paused = &mut self.groups[group as usize].paused_until;
        *paused = until.max(*paused);
        self.paused += 1;
        self.threads[me as usize].group == group
    }

    /// Kills the threads of a group; true when `me` is in it.
    pub fn kill(&mut self, me: u32, group: u32) -> bool {
        self.record(me, "kills group", NOTHING, group);
        self.groups[group as usize].killed = true;
        let mut ends = Vec::new();
        for id in 0..self.threads.len() as u32 {
            let thread = self.thread(id);
            if thread.group == group && thread.life == Life::Live {
                thread.life = Life::Killed;
                ends.push(thread.end);
                self.forget_wait(id);
            }
        }
        let threads = &self.threads;
        self.ready
            .retain(|r| threads[r.thread as usize].life == Life::Live);
        for end in ends {
            self.wake_all(end);
        }
        self.threads[me as usize].group == group
    }

    pub fn choice(&mut self, me: u32, n: u64, per_million: u32) -> u64 {
        let place = self.place(me, Kind::Choice);
        self.chooser.choice(place, n, per_million)
    }

    /// A line for each thread that has not ended: what it does or waits for.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, thread) in self.threads.iter().enumerate() {
            let name = &self.trace.threads[id];
            let text = match (thread.life, &thread.wait) {
                (Life::Ended, _) => continue,
                (Life::Killed, _) => "was killed with its group".to_owned(),
                (Life::Live, Some(wait)) => self.describe_wait(wait),
                (Life::Live, None) if id as u32 == self.current => "runs".to_owned(),
                (Life::Live, None) => "is ready".to_owned(),
            };
            lines.push(format!("`{name}` {text} ({} operations)", thread.ops));
        }
        lines
    }

    pub fn describe_wait(&self, wait: &Wait) -> String {
        let objects = wait.objects.iter().map(|object| {
            let name = self.objects.describe(*object);
            match self.objects.holder(*object) {
                Some(holder) => {
                    let holder = &self.trace.threads[holder as usize];
                    format!("{name}, which `{holder}` holds")
                }
                None => name,
            }
        });
        let objects: Vec<_> = objects.collect();
        let until = wait.deadline.map(|at| {
            let ms = at.saturating_sub(self.now) as f64 / 1e6;
            format!(", for {ms:.3} ms at most")
        });
        let until = until.unwrap_or_default();
        format!("{} {}{until}", wait.op, objects.join(" or "))
    }
}
