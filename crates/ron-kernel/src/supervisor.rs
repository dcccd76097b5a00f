//! Owns every thread of a service: names it, restarts it in place after a panic, drains by stage.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;
use serde::Serialize;

use crate::backoff::Backoff;
use crate::locks::assert_no_locks;
use crate::metrics::KernelMetrics;
use crate::shutdown::{Shutdown, ShutdownTrigger};
use crate::time::{Deadline, SharedClock};
use crate::topology::{Count, Stage, ThreadSpec, Topology};

const BUDGET: usize = 10;
const BUDGET_WINDOW: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What a thread's body knows about itself.
#[derive(Debug, Clone)]
pub struct ThreadCtx {
    /// Fired when this thread's stage is drained.
    pub shutdown: Shutdown,
    /// Index within its pool, 0 for a single thread.
    pub index: usize,
    /// Its full name.
    pub name: String,
}

/// A handle on the supervisor; clones share it.
#[derive(Clone, Debug)]
pub struct Supervisor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    topology: &'static Topology,
    metrics: KernelMetrics,
    clock: SharedClock,
    stages: Vec<(ShutdownTrigger, Shutdown)>,
    drain: (ShutdownTrigger, Shutdown),
    threads: Mutex<Vec<Entry>>,
    groups: Mutex<BTreeMap<&'static str, Arc<Group>>>,
    fatal: OnceLock<String>,
    fatal_token: (ShutdownTrigger, Shutdown),
}

#[derive(Debug)]
struct Entry {
    name: String,
    spec: &'static ThreadSpec,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    handle: Option<std::thread::JoinHandle<()>>,
    running: Arc<AtomicBool>,
}

/// All threads of one row: they share a restart budget.
#[derive(Debug)]
struct Group {
    spec: &'static ThreadSpec,
    total: AtomicU32,
    live: AtomicU32,
    restarts: AtomicU32,
    recent: Mutex<VecDeque<Instant>>,
    reason: Mutex<Option<String>>,
}

/// The state of one row, for status pages and readiness.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct PlaneState {
    /// Row name.
    pub name: &'static str,
    /// Threads running now.
    pub live: u32,
    /// Threads there should be.
    pub total: u32,
    /// Restarts since the start.
    pub restarts: u32,
    /// Why it is not whole, if it is not.
    pub reason: Option<String>,
    /// Its loss ends the process.
    pub critical: bool,
}

/// How a drain went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainReport {
    /// Names of threads that were still running at the deadline.
    pub stragglers: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// The threads that run now beside the table they came from; served as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct TopologyLive {
    /// Service name.
    pub service: &'static str,
    /// Running threads.
    pub threads: Vec<LiveThread>,
    /// Queues of the table.
    pub queues: Vec<LiveQueue>,
    /// Locks of the table.
    pub locks: Vec<LiveLock>,
}

/// A running thread.
#[derive(Debug, Clone, Serialize)]
pub struct LiveThread {
    /// Name as in `/proc/<pid>/task/<tid>/comm`.
    pub name: String,
    /// The row it belongs to.
    pub row: &'static str,
    /// Drain stage.
    pub stage: &'static str,
    /// Its loss ends the process.
    pub critical: bool,
    /// What it does.
    pub job: &'static str,
    /// False once it has ended or used up its restarts.
    pub running: bool,
}

/// A queue row.
#[derive(Debug, Clone, Serialize)]
pub struct LiveQueue {
    /// Name.
    pub name: &'static str,
    /// Default capacity.
    pub capacity: usize,
    /// Policy.
    pub overflow: &'static str,
    /// Who sends.
    pub from: &'static str,
    /// Who receives.
    pub to: &'static str,
    /// What a refused caller sees.
    pub when_full: &'static str,
}

/// A lock row.
#[derive(Debug, Clone, Serialize)]
pub struct LiveLock {
    /// Name.
    pub name: &'static str,
    /// Rank.
    pub rank: u16,
    /// What it guards.
    pub guards: &'static str,
}

impl Supervisor {
    /// A supervisor for the threads of `topology`.
    pub fn new(topology: &'static Topology, metrics: KernelMetrics, clock: SharedClock) -> Self {
        Self(Arc::new(Inner {
            topology,
            metrics,
            clock,
            stages: Stage::ALL.iter().map(|_| Shutdown::pair()).collect(),
            drain: Shutdown::pair(),
            threads: Mutex::new(Vec::new()),
            groups: Mutex::new(BTreeMap::new()),
            fatal: OnceLock::new(),
            fatal_token: Shutdown::pair(),
        }))
    }

    /// Starts the one thread of a row. The body runs until its shutdown token fires; a panic or an
    /// early return is counted and the body is run again on the same thread.
    ///
    /// # Panics
    /// When the operating system refuses the thread, or the row is not in the table: both are
    /// start-up failures that nothing can run without.
    pub fn spawn(
        &self,
        spec: &'static ThreadSpec,
        body: impl Fn(&ThreadCtx) + Send + Sync + 'static,
    ) {
        debug_assert!(matches!(spec.count, Count::One), "{} is a pool", spec.name);
        self.start(spec, spec.name.to_owned(), 0, Arc::new(body));
    }

    /// Starts the `n` threads of a pool row (at least one).
    ///
    /// # Panics
    /// As [`Supervisor::spawn`].
    pub fn spawn_pool(
        &self,
        spec: &'static ThreadSpec,
        n: usize,
        body: impl Fn(&ThreadCtx) + Send + Sync + 'static,
    ) {
        let body = Arc::new(body);
        for index in 0..n.max(1) {
            self.start(spec, format!("{}{index}", spec.name), index, body.clone());
        }
    }

    /// Adds the members `from..to` to a pool that already runs: a reload may ask for more threads.
    ///
    /// # Panics
    /// As [`Supervisor::spawn`].
    pub fn grow_pool(
        &self,
        spec: &'static ThreadSpec,
        from: usize,
        to: usize,
        body: impl Fn(&ThreadCtx) + Send + Sync + 'static,
    ) {
        let body = Arc::new(body);
        for index in from..to {
            self.start(spec, format!("{}{index}", spec.name), index, body.clone());
        }
    }

    /// The token that fires when a stage is told to stop.
    pub fn stage_token(&self, stage: Stage) -> Shutdown {
        self.0.stages[stage as usize].1.clone()
    }

    /// The token that fires when the drain begins (before any stage stops): readiness goes off and
    /// new requests are refused from here on.
    pub fn drain_token(&self) -> Shutdown {
        self.0.drain.1.clone()
    }

    /// True from the beginning of the drain.
    pub fn draining(&self) -> bool {
        self.0.drain.1.is_set()
    }

    /// Begins the drain without waiting; the second time does nothing.
    pub fn begin_drain(&self) {
        self.0.drain.0.fire();
    }

    /// Why the process must end, once a critical row has used up its restarts.
    pub fn fatal(&self) -> Option<String> {
        self.0.fatal.get().cloned()
    }

    /// The token that fires when [`Supervisor::fatal`] is set.
    pub fn fatal_token(&self) -> Shutdown {
        self.0.fatal_token.1.clone()
    }

    /// Ends the process's claim to be healthy for a reason found outside a thread body.
    pub fn set_fatal(&self, why: &str) {
        let _ = self.0.fatal.set(why.to_owned());
        self.0.fatal_token.0.fire();
    }

    /// The clock of the service.
    pub fn clock(&self) -> &SharedClock {
        &self.0.clock
    }

    /// The metrics of the service's threads and queues.
    pub fn metrics(&self) -> &KernelMetrics {
        &self.0.metrics
    }

    /// One state per row that has threads.
    pub fn planes(&self) -> Vec<PlaneState> {
        let groups = self.0.groups.lock();
        let plane = |g: &Arc<Group>| PlaneState {
            name: g.spec.name.trim_end_matches('-'),
            live: g.live.load(Ordering::SeqCst),
            total: g.total.load(Ordering::SeqCst),
            restarts: g.restarts.load(Ordering::SeqCst),
            reason: g.reason.lock().clone(),
            critical: g.spec.critical,
        };
        groups.values().map(plane).collect()
    }

    /// The running threads and the tables they were built from.
    pub fn topology(&self) -> TopologyLive {
        let threads = self.0.threads.lock();
        let live = |e: &Entry| LiveThread {
            name: e.name.clone(),
            row: e.spec.name,
            stage: e.spec.stage.as_str(),
            critical: e.spec.critical,
            job: e.spec.job,
            running: e.running.load(Ordering::SeqCst),
        };
        let t = self.0.topology;
        TopologyLive {
            service: t.service,
            threads: threads.iter().map(live).collect(),
            queues: t
                .queues
                .iter()
                .map(|q| LiveQueue {
                    name: q.name,
                    capacity: q.capacity,
                    overflow: q.overflow.as_str(),
                    from: q.from,
                    to: q.to,
                    when_full: q.when_full,
                })
                .collect(),
            locks: t
                .locks
                .iter()
                .map(|l| LiveLock {
                    name: l.name,
                    rank: l.rank,
                    guards: l.guards,
                })
                .collect(),
        }
    }

    /// Drains: begins, then stops stage after stage, joining each before the next, all within
    /// `within`. Threads that do not end in time are counted, named and left behind.
    pub fn drain(&self, within: Duration) -> DrainReport {
        assert_no_locks("a drain");
        let start = Instant::now();
        let deadline = Deadline::within(within);
        self.begin_drain();
        let mut stragglers = Vec::new();
        for stage in Stage::ALL {
            self.0.stages[stage as usize].0.fire();
            stragglers.extend(self.join_stage(stage, deadline));
        }
        let result = if stragglers.is_empty() {
            "clean"
        } else {
            "stragglers"
        };
        self.0.metrics.drains.with_label_values(&[result]).inc();
        DrainReport {
            stragglers,
            took: start.elapsed(),
        }
    }

    fn join_stage(&self, stage: Stage, deadline: Deadline) -> Vec<String> {
        let entries: Vec<Entry> = {
            let mut all = self.0.threads.lock();
            let (ours, rest) = std::mem::take(&mut *all)
                .into_iter()
                .partition(|e| e.spec.stage == stage);
            *all = rest;
            ours
        };
        let mut late = Vec::new();
        for mut entry in entries {
            if entry.ended.recv_deadline(deadline.at()) == Err(RecvTimeoutError::Timeout) {
                self.0
                    .metrics
                    .tasks_aborted
                    .with_label_values(&[entry.spec.name])
                    .inc();
                late.push(entry.name);
            } else if let Some(handle) = entry.handle.take() {
                let _ = handle.join(); // its panics were caught and counted inside
            }
        }
        late
    }

    fn start(
        &self,
        spec: &'static ThreadSpec,
        name: String,
        index: usize,
        body: Arc<dyn Fn(&ThreadCtx) + Send + Sync>,
    ) {
        assert!(
            self.0.topology.threads.iter().any(|t| t.name == spec.name),
            "thread `{}` is not in the topology of {}",
            spec.name,
            self.0.topology.service
        );
        assert!(
            name.len() <= 15,
            "thread name `{name}` is longer than 15 bytes"
        );
        let group = self.group(spec);
        group.total.fetch_add(1, Ordering::SeqCst);
        // Counted from here on: who looks right after the start sees all threads.
        group.live.fetch_add(1, Ordering::SeqCst);
        let ctx = ThreadCtx {
            shutdown: self.stage_token(spec.stage),
            index,
            name: name.clone(),
        };
        let running = Arc::new(AtomicBool::new(true));
        let (ended_tx, ended) = bounded(0);
        let run = Run {
            inner: self.0.clone(),
            group,
            ctx,
            running: running.clone(),
        };
        self.0
            .metrics
            .tasks_spawned
            .with_label_values(&[spec.name])
            .inc();
        let handle = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                run.to_the_end(body.as_ref());
                drop(ended_tx);
            })
            .expect("the operating system gives a thread at start-up");
        self.0.threads.lock().push(Entry {
            name,
            spec,
            ended,
            handle: Some(handle),
            running,
        });
    }

    fn group(&self, spec: &'static ThreadSpec) -> Arc<Group> {
        let mut groups = self.0.groups.lock();
        groups
            .entry(spec.name)
            .or_insert_with(|| {
                Arc::new(Group {
                    spec,
                    total: AtomicU32::new(0),
                    live: AtomicU32::new(0),
                    restarts: AtomicU32::new(0),
                    recent: Mutex::new(VecDeque::new()),
                    reason: Mutex::new(None),
                })
            })
            .clone()
    }
}

/// One thread's life: body, panic, pause, body again.
struct Run {
    inner: Arc<Inner>,
    group: Arc<Group>,
    ctx: ThreadCtx,
    running: Arc<AtomicBool>,
}

impl Run {
    fn to_the_end(&self, body: &(dyn Fn(&ThreadCtx) + Send + Sync)) {
        let mut backoff = Backoff::new(
            FIRST_PAUSE,
            LAST_PAUSE,
            FIRST_PAUSE,
            self.ctx
                .name
                .bytes()
                .fold(7, |a: u64, b| a.rotate_left(7) ^ u64::from(b)),
        );
        loop {
            let started = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| body(&self.ctx)));
            self.group.live.fetch_sub(1, Ordering::SeqCst);
            // While draining, a body that returns has finished: its senders went away before it.
            let finished = outcome.is_ok() && self.inner.drain.1.is_set();
            if finished || self.ctx.shutdown.is_set() {
                break;
            }
            let why = match outcome {
                Ok(()) => "returned before shutdown".to_owned(),
                Err(panic) => format!("panicked: {}", panic_text(panic.as_ref())),
            };
            if started.elapsed() > BUDGET_WINDOW {
                backoff.reset();
            }
            if !self.may_restart(&why)
                || self
                    .ctx
                    .shutdown
                    .wait(Deadline::within(backoff.next_pause()))
            {
                break;
            }
            self.group.live.fetch_add(1, Ordering::SeqCst);
        }
        self.running.store(false, Ordering::SeqCst);
    }

    fn may_restart(&self, why: &str) -> bool {
        let kind = self.group.spec.name;
        let within_budget = {
            let now = Instant::now();
            let mut recent = self.group.recent.lock();
            while recent
                .front()
                .is_some_and(|t| now.duration_since(*t) > BUDGET_WINDOW)
            {
                recent.pop_front();
            }
            recent.push_back(now);
            recent.len() <= BUDGET
        };
        let said = if within_budget {
            why.to_owned()
        } else {
            format!("{why}; restart budget of {BUDGET} a minute used up")
        };
        *self.group.reason.lock() = Some(said.clone());
        tracing::error!(
            service = self.inner.topology.service,
            event = "thread_crashed",
            thread = %self.ctx.name,
            restart = within_budget,
            why = %said
        );
        if within_budget {
            self.group.restarts.fetch_add(1, Ordering::SeqCst);
            self.inner.metrics.restarts.with_label_values(&[kind]).inc();
        } else if self.group.spec.critical {
            let _ = self
                .inner
                .fatal
                .set(format!("thread `{}` {said}", self.ctx.name));
            self.inner.fatal_token.0.fire();
        }
        within_budget
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is not text")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::metrics::Registry;
    use crate::time::SystemClock;

    static LOOP: ThreadSpec = row("t-loop", Count::One, Stage::Work, false);
    static POOL: ThreadSpec = row("t-pool-", Count::Pool("n"), Stage::Work, false);
    static WRITER: ThreadSpec = row("t-writer", Count::One, Stage::Write, true);
    static TOPOLOGY: Topology = Topology {
        service: "test",
        threads: &[LOOP, POOL, WRITER],
        queues: &[],
        locks: &[],
    };

    const fn row(name: &'static str, count: Count, stage: Stage, critical: bool) -> ThreadSpec {
        ThreadSpec {
            name,
            count,
            stage,
            critical,
            job: "test",
        }
    }

    fn supervisor() -> (Registry, Supervisor) {
        let registry = Registry::new("t");
        let sup = Supervisor::new(
            &TOPOLOGY,
            KernelMetrics::new(&registry),
            SystemClock::shared(),
        );
        (registry, sup)
    }

    fn until(what: &str, mut ok: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !ok() {
            assert!(Instant::now() < deadline, "not within 5 s: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait(ctx: &ThreadCtx) {
        while !ctx.shutdown.wait(Deadline::within(Duration::from_secs(60))) {}
    }

    #[test]
    fn a_panicking_worker_is_back_within_100_ms_and_the_pool_says_so() {
        let (registry, sup) = supervisor();
        let runs = Arc::new(AtomicUsize::new(0));
        let back = Arc::new(Mutex::new(None));
        let (r, b) = (runs.clone(), back.clone());
        let started = Instant::now();
        sup.spawn_pool(&POOL, 2, move |ctx| {
            assert!(r.fetch_add(1, Ordering::SeqCst) > 0, "first run");
            b.lock().get_or_insert_with(|| started.elapsed());
            wait(ctx);
        });
        until("restart", || runs.load(Ordering::SeqCst) == 3);
        until("both live", || sup.planes()[0].live == 2);
        assert!(back.lock().unwrap() < Duration::from_millis(100));
        let plane = &sup.planes()[0];
        assert_eq!((plane.total, plane.restarts), (2, 1));
        assert!(plane.reason.as_ref().unwrap().contains("first run"));
        assert!(
            registry
                .render()
                .contains("t_service_restarts_total{kind=\"t-pool-\"} 1")
        );
        assert_eq!(
            sup.drain(Duration::from_secs(1)).stragglers,
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_flapping_critical_thread_is_fatal_after_its_budget() {
        let (_registry, sup) = supervisor();
        // Use up the budget without living through the pauses: ten crashes are already on the book.
        sup.group(&WRITER)
            .recent
            .lock()
            .extend(vec![Instant::now(); BUDGET]);
        sup.spawn(&WRITER, |_| panic!("disk gone"));
        until("fatal", || sup.fatal().is_some());
        assert!(sup.fatal_token().is_set());
        let why = sup.fatal().unwrap();
        assert!(
            why.contains("t-writer") && why.contains("disk gone"),
            "{why}"
        );
        sup.drain(Duration::from_secs(1));
    }

    #[test]
    fn stages_stop_in_order_and_stragglers_are_named() {
        let (_registry, sup) = supervisor();
        let order = Arc::new(Mutex::new(Vec::new()));
        for spec in [&WRITER, &LOOP] {
            let order = order.clone();
            sup.spawn(spec, move |ctx| {
                wait(ctx);
                order.lock().push(spec.name);
            });
        }
        let report = sup.drain(Duration::from_secs(5));
        assert_eq!(report.stragglers, Vec::<String>::new());
        assert_eq!(*order.lock(), ["t-loop", "t-writer"]);

        let (_registry, sup) = supervisor();
        let (free, held) = bounded::<()>(0);
        sup.spawn(&LOOP, move |_| {
            let _ = held.recv();
        });
        let report = sup.drain(Duration::from_millis(30));
        assert_eq!(report.stragglers, ["t-loop"]);
        drop(free);
    }

    #[test]
    fn every_loop_sees_shutdown_within_100_ms() {
        let (_registry, sup) = supervisor();
        sup.spawn_pool(&POOL, 4, wait);
        let report = sup.drain(Duration::from_secs(5));
        assert!(
            report.took < Duration::from_millis(100),
            "{:?}",
            report.took
        );
        assert!(sup.draining());
    }

    #[test]
    fn live_names_are_what_the_kernel_shows() {
        let (_registry, sup) = supervisor();
        sup.spawn(&LOOP, wait);
        sup.spawn_pool(&POOL, 2, wait);
        let mut names: Vec<_> = sup.topology().threads.into_iter().map(|t| t.name).collect();
        names.sort();
        assert_eq!(names, ["t-loop", "t-pool-0", "t-pool-1"]);
        sup.drain(Duration::from_secs(1));
    }
}
