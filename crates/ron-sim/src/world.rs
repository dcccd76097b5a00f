//! One run: its state, and how the threads hand the right to run to each other.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::baton::Baton;
use crate::failure::Failure;
use crate::panics;
use crate::state::{Life, State, Wait};
use crate::trace::{CHOSE, NOTHING};

/// Numbers the runs of a process, so that an object knows which run its number is of. Never part of a trace.
static RUNS: AtomicU32 = AtomicU32::new(1);

#[derive(Debug)]
pub struct World {
    pub seed: u64,
    run: u32,
    stack_bytes: usize,
    state: Mutex<State>,
    over: Condvar,
}

/// The simulated thread that the current thread of the machine is.
#[derive(Debug)]
pub struct Me {
    pub world: Arc<World>,
    pub id: u32,
    baton: Arc<Baton>,
    /// Undivided sections that it is in, see [`undivided`].
    undivided: Cell<u32>,
}

thread_local! {
    static ME: RefCell<Option<Me>> = const { RefCell::new(None) };
    /// Reads of hash seeds by this thread, see `machine.rs`.
    static SEEDS_READ: Cell<u64> = const { Cell::new(0) };
}

/// Runs `f` as the current simulated thread; `None` outside of a run, and in the destructors of thread-locals.
pub fn with_me<R>(f: impl FnOnce(&Me) -> R) -> Option<R> {
    let run = |me: &RefCell<Option<Me>>| me.borrow().as_ref().map(f);
    ME.try_with(run).ok().flatten()
}

/// Seed, thread and number of a read of hash seeds; `None` outside of a run.
pub fn next_seed_read() -> Option<(u64, u32, u64)> {
    with_me(|me| {
        let read = SEEDS_READ.get();
        SEEDS_READ.set(read + 1);
        (me.world.seed, me.id, read)
    })
}

/// Waits for ever: for a thread that will not run again.
fn park_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

impl World {
    pub fn new(seed: u64, state: State, stack_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            seed,
            run: RUNS.fetch_add(1, Ordering::Relaxed),
            stack_bytes,
            state: Mutex::new(state),
            over: Condvar::new(),
        })
    }

    /// The state, for the caller of a run and for reports.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for the thread that runs. Once the run is over it gets no further: the watchdog may have given the
    /// thread up.
    fn enter(&self) -> MutexGuard<'_, State> {
        let state = self.state();
        if state.result.is_some() {
            drop(state);
            park_for_ever();
        }
        state
    }

    /// Waits up to `limit` for the end of the run; true when it is over.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let state = self.state();
        let waited = self
            .over
            .wait_timeout_while(state, limit, |state| state.result.is_none());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.result.is_some()
    }

    /// Ends the run, unless it is over.
    pub fn finish(&self, mut state: MutexGuard<'_, State>, result: Result<(), Failure>) {
        state.result.get_or_insert(result);
        drop(state);
        self.over.notify_all();
    }

    fn fail(&self, state: MutexGuard<'_, State>, failure: Failure) -> ! {
        self.finish(state, Err(failure));
        park_for_ever()
    }

    /// The group that a thread is in.
    pub fn group_of(&self, thread: u32) -> u32 {
        self.state().thread(thread).group
    }

    /// Starts a thread of the machine for a new simulated one. It runs when it is first chosen.
    pub fn start(
        self: &Arc<Self>,
        name: Option<String>,
        group: u32,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<u32> {
        let mut state = self.state();
        let name = name.unwrap_or_else(|| format!("thread-{}", state.threads.len()));
        let id = state.add_thread(name.clone(), group);
        let me = Me {
            world: self.clone(),
            id,
            baton: state.thread(id).baton.clone(),
            undivided: Cell::new(0),
        };
        // Without the lock: a thread that the machine refuses drops its body here, whose destructors may use the simulator.
        drop(state);
        let builder = std::thread::Builder::new().name(name);
        let spawned = builder
            .stack_size(self.stack_bytes)
            .spawn(move || live(me, body));
        let mut state = self.state();
        match spawned {
            Ok(handle) => state.thread(id).handle = Some(handle),
            Err(error) => {
                state.withdraw(id);
                return Err(error);
            }
        }
        Ok(id)
    }

    /// The first thread gets its turn; the handle of its thread of the machine.
    pub fn begin(&self) -> Option<JoinHandle<()>> {
        let mut state = self.state();
        state.run(0);
        let thread = state.thread(0);
        thread.baton.pass();
        thread.handle.take()
    }
}

/// The life of a simulated thread.
fn live(me: Me, body: Box<dyn FnOnce() + Send>) {
    let (world, id) = (me.world.clone(), me.id);
    me.baton.wait();
    let system = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    ME.set(Some(me));
    panics::quiet_here();
    world.resumed(id);
    world.state().thread(id).system = format!("/proc/{}", system.display());
    let outcome = catch_unwind(AssertUnwindSafe(body));
    if outcome.is_err() {
        let state = world.enter();
        let thread = state.trace.threads[id as usize].clone();
        let message = panics::last();
        world.fail(state, Failure::Panic { thread, message });
    }
    // From here on the destructors of thread-locals run outside of the simulation. The next thread joins this one
    // before it goes on, so they do not run beside it.
    ME.set(None);
    world.end(id);
}

/// Passes the turn to another thread.
fn hand_over(mut state: MutexGuard<'_, State>, next: u32) {
    state.run(next);
    state.switches += 1;
    let baton = state.thread(next).baton.clone();
    drop(state);
    baton.pass();
}

impl World {
    fn end(&self, me: u32) {
        let mut state = self.enter();
        if let Err(failure) = state.step(me, "ends", NOTHING) {
            self.fail(state, failure);
        }
        let thread = state.thread(me);
        thread.life = Life::Ended;
        let (end, handle) = (thread.end, thread.handle.take());
        if me == 0 {
            // The first thread's end is the end of the run, like the end of `main`.
            self.finish(state, Ok(()));
            return;
        }
        state.ended = handle;
        state.wake_all(end);
        match state.next(me) {
            Err(failure) => self.fail(state, failure),
            Ok(next) => hand_over(state, next),
        }
    }

    /// The current thread has the turn again; whether its last wait timed out.
    fn resumed(&self, me: u32) -> bool {
        let mut state = self.enter();
        let ended = state.ended.take();
        let timed_out = state.thread(me).timed_out;
        drop(state);
        if let Some(handle) = ended {
            // Its body has been left; a panic of a thread-local's destructor is printed by the machine.
            let _ = handle.join();
        }
        timed_out
    }
}

impl Me {
    /// Lets `next` run and waits for the turn.
    fn switch(&self, mut state: MutexGuard<'_, State>, next: u32) -> bool {
        if next == self.id {
            state.run(next);
            drop(state);
        } else {
            hand_over(state, next);
            self.baton.wait();
        }
        self.world.resumed(self.id)
    }

    /// Lets the next thread run; the current one has begun a wait or is ready again.
    fn dispatch(&self, mut state: MutexGuard<'_, State>) -> bool {
        match state.next(self.id) {
            Ok(next) => self.switch(state, next),
            Err(failure) => self.world.fail(state, failure),
        }
    }

    fn step(&self, op: &'static str, object: u32) -> MutexGuard<'_, State> {
        let mut state = self.world.enter();
        match state.step(self.id, op, object) {
            Ok(()) => state,
            Err(failure) => self.world.fail(state, failure),
        }
    }

    /// A point at which the seed may let another thread run.
    pub fn point(&self, op: &'static str, object: u32) {
        let mut state = self.step(op, object);
        if self.undivided.get() > 0 {
            return;
        }
        if state.drawn_pause(self.id) {
            state.give_way(self.id);
            self.dispatch(state);
            return;
        }
        if let Some(ns) = state.drawn_stall(self.id) {
            state.record(self.id, "is held up", NOTHING, NOTHING);
            let wait = Wait {
                op: "is held up",
                objects: Vec::new(),
                deadline: Some(state.now + ns),
            };
            state.begin_wait(self.id, wait);
            self.dispatch(state);
            return;
        }
        if let Some(next) = state.preempt(self.id) {
            state.record(self.id, "pre-empted by", NOTHING, next);
            state.give_way(self.id);
            self.switch(state, next);
        }
    }

    /// Lets any other ready thread run first.
    pub fn yield_now(&self) {
        let mut state = self.step("yields", NOTHING);
        if self.undivided.get() > 0 {
            return;
        }
        let Some(next) = state.yield_to(self.id) else {
            return;
        };
        state.give_way(self.id);
        self.switch(state, next);
    }

    /// Waits until one of the objects is notified (true) or until `deadline` (false), in virtual nanoseconds.
    pub fn wait(&self, op: &'static str, objects: Vec<u32>, deadline: Option<u64>) -> bool {
        let first = objects.first().copied().unwrap_or(NOTHING);
        let mut state = self.step(op, first);
        if deadline.is_some_and(|at| at <= state.now) {
            return false;
        }
        let wait = Wait {
            op,
            objects,
            deadline,
        };
        if self.undivided.get() > 0 {
            let message = format!("an undivided section {}", state.describe_wait(&wait));
            let thread = state.trace.threads[self.id as usize].clone();
            self.world.fail(state, Failure::Check { thread, message });
        }
        state.begin_wait(self.id, wait);
        !self.dispatch(state)
    }

    pub fn wake_all(&self, object: u32) {
        self.world.enter().wake_all(object);
    }

    pub fn wake_one(&self, object: u32) {
        self.world.enter().wake_one(self.id, object);
    }

    pub fn set_holder(&self, object: u32, held: bool) {
        let holder = held.then_some(self.id);
        self.world.enter().set_holder(object, holder);
    }

    /// Virtual nanoseconds since the start. Reading the clock takes a little time, so that a loop which waits for a
    /// moment ends.
    pub fn now(&self) -> u64 {
        let mut state = self.world.enter();
        match state.tick() {
            Ok(()) => state.now,
            Err(failure) => self.world.fail(state, failure),
        }
    }

    pub fn choice(&self, op: &'static str, n: u64, per_million: u32) -> u64 {
        let mut state = self.step(op, NOTHING);
        let value = state.choice(self.id, n, per_million);
        if value != 0 {
            state.record(self.id, CHOSE, NOTHING, value as u32);
        }
        value
    }

    pub fn fill(&self, out: &mut [u8]) {
        self.world.enter().program.fill(out);
    }

    /// Pauses a group for virtual nanoseconds. A thread that pauses its own group goes on after the pause.
    pub fn pause(&self, group: u32, ns: u64) {
        let mut state = self.step("decides a pause", NOTHING);
        if state.pause(self.id, group, ns) {
            state.give_way(self.id);
            self.dispatch(state);
        }
    }

    /// Kills a group. A thread that kills its own group does not come back.
    pub fn kill(&self, group: u32) {
        let mut state = self.step("decides a kill", NOTHING);
        if state.kill(self.id, group) {
            self.dispatch(state);
        }
    }

    /// Starts a thread in `group`, which may run at once.
    pub fn spawn(
        &self,
        name: Option<String>,
        group: u32,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<u32> {
        let id = self.world.start(name, group, body)?;
        let mut state = self.world.enter();
        state.record(self.id, "spawns", NOTHING, id);
        drop(state);
        self.point("goes on", NOTHING);
        Ok(id)
    }

    /// Waits for the end of a thread; false when it was killed.
    pub fn join(&self, thread: u32) -> bool {
        self.point("joins", NOTHING);
        loop {
            let mut state = self.world.enter();
            let (life, end) = (state.thread(thread).life, state.thread(thread).end);
            drop(state);
            match life {
                Life::Ended => return true,
                Life::Killed => return false,
                Life::Live => self.wait("waits for", vec![end], None),
            };
        }
    }
}

/// Something that threads wait for: the base of every primitive, and of those that a program adds (a connection, a
/// disk). A primitive changes its own state without waiting, and uses its object to say when the scheduler may switch,
/// to wait, and to wake.
///
/// Outside of a run nothing is scheduled and waits are not possible.
#[derive(Debug)]
pub struct Object {
    kind: &'static str,
    name: &'static str,
    /// The number of the run, and below it its place among the objects of that run; 0 before its first use. Given then, so
    /// that `new` is `const` and that the place depends on the schedule alone.
    id: AtomicU64,
}

impl Object {
    /// `kind` and `name` appear in traces and reports; `name` may be empty.
    pub const fn new(kind: &'static str, name: &'static str) -> Self {
        Self {
            kind,
            name,
            id: AtomicU64::new(0),
        }
    }

    fn id(&self, me: &Me) -> u32 {
        // Relaxed: only the thread that runs reads or writes it.
        let known = self.id.load(Ordering::Relaxed);
        if known >> 32 == u64::from(me.world.run) {
            return known as u32;
        }
        let id = me.world.state().add_object(self.kind, self.name.into());
        let known = u64::from(me.world.run) << 32 | u64::from(id);
        self.id.store(known, Ordering::Relaxed);
        id
    }

    /// Says that the current thread is about to do `op` with this object: another thread may run first.
    pub fn point(&self, op: &'static str) {
        with_me(|me| me.point(op, self.id(me)));
    }

    /// Wakes every thread that waits for this object.
    pub fn wake_all(&self) {
        with_me(|me| me.wake_all(self.id(me)));
    }

    /// Wakes one thread that waits for this object, which one the seed decides. Once per [`Object::point`].
    pub fn wake_one(&self) {
        with_me(|me| me.wake_one(self.id(me)));
    }

    /// For reports of deadlocks: the current thread holds this object, or no thread does.
    pub fn held(&self, held: bool) {
        with_me(|me| me.set_holder(self.id(me), held));
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let known = *self.id.get_mut();
        if known > 0 {
            with_me(|me| {
                if known >> 32 == u64::from(me.world.run) {
                    me.world.state().remove_object(known as u32);
                }
            });
        }
    }
}

/// Waits until one of `objects` is notified (true), or until `deadline` in virtual nanoseconds (false).
///
/// # Panics
/// Outside of a run.
pub fn wait_for(op: &'static str, objects: &[&Object], deadline: Option<u64>) -> bool {
    let wait = |me: &Me| {
        let objects = objects.iter().map(|object| object.id(me)).collect();
        me.wait(op, objects, deadline)
    };
    with_me(wait)
        .expect("a thread of the simulation waits; outside of a run no thread could wake it")
}

/// Ends the run as failed unless `holds`, also where a panic would be caught: in a thread that a supervisor restarts.
///
/// # Panics
/// Outside of a run, unless `holds`.
#[track_caller]
pub fn ensure(holds: bool, what: &str) {
    if holds {
        return;
    }
    let message = format!("{what} at {}", Location::caller());
    with_me(|me| {
        let state = me.world.enter();
        let thread = state.trace.threads[me.id as usize].clone();
        let message = message.clone();
        me.world.fail(state, Failure::Check { thread, message });
    });
    panic!("{message}");
}

/// Runs `f` without another thread in between: for code that holds a lock of a library over operations, on which
/// another thread would wait in the machine. A wait inside ends the run as failed. Outside of a run `f` is just called.
pub fn undivided<R>(f: impl FnOnce() -> R) -> R {
    /// Ends the section, also by a panic.
    struct Section;
    impl Drop for Section {
        fn drop(&mut self) {
            with_me(|me| me.undivided.set(me.undivided.get() - 1));
        }
    }
    let section = with_me(|me| {
        me.undivided.set(me.undivided.get() + 1);
        Section
    });
    let result = f();
    drop(section);
    result
}

/// Adds a text to the record of the run: a line of its time line, and part of its hash. No point. Without effect outside
/// of a run.
pub fn note(text: &str) {
    with_me(|me| {
        let mut state = me.world.enter();
        let now = state.now;
        state.trace.note(now, me.id, text);
    });
}

/// As [`note`], for a line of the story: what a person reads of a run.
pub fn report(text: &str) {
    with_me(|me| {
        let mut state = me.world.enter();
        let now = state.now;
        state.trace.report(now, me.id, text);
    });
}

/// Whether the current thread is a simulated one.
pub fn is_simulated() -> bool {
    with_me(|_| ()).is_some()
}
