//! The supervisor owns every thread of a service: it names the thread, restarts it in place after a
//! panic, and stops it in its drain stage.
//!
//! `life.rs` is one thread's life (body, panic, pause, body again), `drain.rs` stops the stages one
//! after the other, `view.rs` is the state shown on status pages.

mod drain;
mod life;
#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use self::drain::DrainReport;
pub use self::view::{
    LiveLock, LiveQueue, LiveThread, PlaneState, TopologyLive, Verdict, os_thread_names,
};
use crate::deadline::Deadline;
use crate::disk_watch::{DiskWatch, DiskWatches, HungDisk};
use crate::metrics::KernelMetrics;
use crate::scope::ServiceScope;
use crate::shutdown::{Shutdown, ShutdownTrigger};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, thread};
use crate::time::SharedClock;
use crate::topology::{Count, Stage, ThreadSpec, Topology};

/// Maximum restarts of one row within [`BUDGET_WINDOW`]; the next crash ends its thread for good.
pub const BUDGET: usize = 10;
/// See [`BUDGET`].
pub const BUDGET_WINDOW: Duration = Duration::from_secs(60);

/// Passed to the body of a thread.
#[derive(Debug, Clone)]
pub struct ThreadCtx {
    /// Fired when the drain stops this thread's stage.
    pub shutdown: Shutdown,
    /// Index within its pool, 0 for a single thread.
    pub index: usize,
    pub name: String,
}

impl ThreadCtx {
    /// Waits until this thread's stage is drained: for a body that has nothing to do any more, because
    /// a return before the drain counts as a crash.
    pub fn wait_for_shutdown(&self) {
        while !self
            .shutdown
            .wait(Deadline::within(Duration::from_hours(1)))
        {}
    }
}

/// What an operator must know of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident<'a> {
    /// A thread of this row crashed and is started again.
    Restarted {
        row: &'static str,
        thread: &'a str,
        why: &'a str,
    },
    /// A thread of this row crashed once too often.
    Lost {
        row: &'static str,
        thread: &'a str,
        why: &'a str,
    },
    /// The process must end.
    Fatal { why: &'a str },
}

type Report = Box<dyn Fn(Incident<'_>) + Send + Sync>;

/// A handle on the supervisor; clones share it.
#[derive(Clone, Debug)]
pub struct Supervisor(Arc<Inner>);

struct Inner {
    topology: &'static Topology,
    metrics: KernelMetrics,
    clock: SharedClock,
    cores: usize,
    stages: Vec<(ShutdownTrigger, Shutdown)>,
    drain: (ShutdownTrigger, Shutdown),
    threads: Mutex<Threads>,
    groups: Mutex<BTreeMap<&'static str, Arc<Group>>>,
    disks: Mutex<Vec<DiskWatch>>,
    fatal: OnceLock<String>,
    fatal_token: (ShutdownTrigger, Shutdown),
    report: OnceLock<Report>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor")
            .field("service", &self.topology.service)
            .finish_non_exhaustive()
    }
}

/// All threads that were started and not yet joined.
#[derive(Debug, Default)]
struct Threads {
    entries: Vec<Entry>,
    /// Stages whose threads are being joined: no thread is started in them any more.
    closed: [bool; Stage::ALL.len()],
    last_id: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    name: String,
    spec: &'static ThreadSpec,
    /// Fired by the thread as its last act.
    ended: Shutdown,
    /// Empty until the operating system has started the thread.
    handle: Arc<Mutex<Option<thread::Handle>>>,
    running: Arc<AtomicBool>,
}

/// All threads of one row: they share a restart budget.
#[derive(Debug)]
struct Group {
    spec: &'static ThreadSpec,
    total: AtomicU32,
    live: AtomicU32,
    restarts: AtomicU32,
    /// Times of the restarts within the last [`BUDGET_WINDOW`].
    recent: Mutex<VecDeque<Instant>>,
    reason: Mutex<Option<String>>,
    /// Threads that ended for good because the row's budget was used up.
    lost: AtomicU32,
}

/// How a body returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// An ordinary return; before shutdown that counts as a crash.
    Returned,
    /// The thread was removed from its row before ([`Supervisor::set_aside`]) and ends for good.
    Released,
}

pub(crate) type Body = Arc<dyn Fn(&ThreadCtx) -> Exit + Send + Sync>;

/// A thread that is about to be started.
pub(crate) struct Start {
    pub spec: &'static ThreadSpec,
    pub name: String,
    pub index: usize,
    /// It replaces a thread that was set aside, so the total of the row stays the same.
    pub refill: bool,
}

impl Supervisor {
    /// A supervisor for the threads of `topology`. From now on only queues of that table can be
    /// built with `metrics`.
    ///
    /// # Panics
    /// When a queue that is not in the table was built before.
    pub fn new(topology: &'static Topology, metrics: KernelMetrics, clock: SharedClock) -> Self {
        Self::with_cores(topology, metrics, clock, crate::cores())
    }

    /// Like [`Supervisor::new`], for a process that may use this number of cores.
    ///
    /// # Panics
    /// As [`Supervisor::new`].
    pub fn with_cores(
        topology: &'static Topology,
        metrics: KernelMetrics,
        clock: SharedClock,
        cores: usize,
    ) -> Self {
        metrics.bind(topology);
        Self(Arc::new(Inner {
            topology,
            metrics,
            clock,
            cores,
            stages: Stage::ALL.iter().map(|_| Shutdown::pair()).collect(),
            drain: Shutdown::pair(),
            threads: Mutex::new(Threads::default()),
            groups: Mutex::new(BTreeMap::new()),
            disks: Mutex::new(Vec::new()),
            fatal: OnceLock::new(),
            fatal_token: Shutdown::pair(),
            report: OnceLock::new(),
        }))
    }

    /// The configured number of threads of a pool, or when that is 0 one per core, but at most
    /// `automatic_max`.
    pub fn pool_size(&self, configured: usize, automatic_max: usize) -> usize {
        match configured {
            0 => self.0.cores.min(automatic_max),
            number => number,
        }
    }

    /// Starts the one thread of a row. The body runs until its shutdown token fires; a panic or an
    /// early return is counted and the body runs again on the same thread. No thread is started
    /// once the row's stage is being drained.
    ///
    /// # Panics
    /// When the operating system refuses the thread, or the row is not in the table: start-up
    /// failures, after which the service cannot run.
    pub fn spawn(
        &self,
        spec: &'static ThreadSpec,
        body: impl Fn(&ThreadCtx) + Send + Sync + 'static,
    ) {
        assert!(matches!(spec.count, Count::One), "{} is a pool", spec.name);
        let start = Start {
            spec,
            name: spec.name.to_owned(),
            index: 0,
            refill: false,
        };
        self.start(start, returning(body));
    }

    /// Starts the one thread of a row that owns `state`, a single writer's: nothing else can reach
    /// it. `run` gets the state once. After a panic the state is gone, because it may be half
    /// changed; `on_lost` then supplies a new one (opened again from disk, say), or says why there
    /// is none ([`Supervisor::set_fatal`]), and the thread waits for its shutdown.
    ///
    /// # Panics
    /// As [`Supervisor::spawn`].
    pub fn spawn_owner<T: Send + 'static>(
        &self,
        spec: &'static ThreadSpec,
        state: T,
        run: impl Fn(T, &ThreadCtx) + Send + Sync + 'static,
        on_lost: impl Fn() -> Option<T> + Send + Sync + 'static,
    ) {
        let first = Mutex::new(Some(state));
        self.spawn(spec, move |ctx| {
            // A statement of its own: the lock is free again before the state is used.
            let owned = first.lock().take();
            match owned.or_else(&on_lost) {
                Some(state) => run(state, ctx),
                None => ctx.wait_for_shutdown(),
            }
        });
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
        self.grow_pool(spec, 0, n.max(1), body);
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
        assert!(
            matches!(spec.count, Count::Pool(_)),
            "{} is one thread",
            spec.name
        );
        let body = returning(body);
        for index in from..to {
            let start = Start {
                spec,
                name: format!("{}{index}", spec.name),
                index,
                refill: false,
            };
            self.start(start, body.clone());
        }
    }

    /// The token that fires when the drain stops a stage.
    pub fn stage_token(&self, stage: Stage) -> Shutdown {
        self.0.stages[stage as usize].1.clone()
    }

    /// True once the drain has begun.
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

    /// Asks for the end of the process, for a reason found outside a thread body.
    pub fn set_fatal(&self, why: &str) {
        // The first reason stays: it is the cause.
        if self.0.fatal.set(why.to_owned()).is_ok() {
            self.report(Incident::Fatal { why });
        }
        self.0.fatal_token.0.fire();
    }

    /// Has incidents reported to `report`, which then writes their log lines too; the first call counts. It runs on the
    /// thread that crashed and must not wait.
    pub fn report_to(&self, report: impl Fn(Incident<'_>) + Send + Sync + 'static) {
        let _ = self.0.report.set(Box::new(report));
    }

    fn report(&self, incident: Incident<'_>) {
        if let Some(report) = self.0.report.get() {
            return report(incident);
        }
        let service = self.0.topology.service;
        match incident {
            Incident::Restarted { thread, why, .. } => {
                tracing::error!(service, event = "thread_restarted", thread, why);
            }
            Incident::Lost { thread, why, .. } => {
                tracing::error!(service, event = "thread_lost", thread, why);
            }
            Incident::Fatal { why } => tracing::error!(service, event = "fatal", why),
        }
    }

    /// The clock of the service.
    pub fn clock(&self) -> &SharedClock {
        &self.0.clock
    }

    /// The metrics of the service's threads and queues.
    pub fn metrics(&self) -> &KernelMetrics {
        &self.0.metrics
    }

    /// A watch for the calls of one thread to its disk, which appear as `op` in
    /// `io_timeouts_total{op}`. While one hangs, the service is not ready.
    pub fn watch_disk(&self, op: &'static str) -> DiskWatch {
        let timeouts = &self.0.metrics.io_timeouts;
        timeouts.declare([op]);
        let watch = DiskWatch::new(op, self.0.clock.clone(), timeouts.with_label_values(&[op]));
        self.0.disks.lock().push(watch.clone());
        watch
    }

    /// The same for calls of so many threads, which may overlap.
    pub fn watch_disks(&self, op: &'static str, threads: usize) -> DiskWatches {
        DiskWatches::new((0..threads).map(|_| self.watch_disk(op)).collect())
    }

    /// Of the calls to a disk that hang at present, the longest.
    pub fn hung_disk(&self) -> Option<HungDisk> {
        // Cloned, because the first look at a call that hangs writes a log line.
        let disks = self.0.disks.lock().clone();
        // All of them, because that also counts each.
        let hung = disks.iter().filter_map(DiskWatch::hung);
        hung.max_by_key(|hung| hung.took)
    }

    /// Removes one thread from its row while it still runs: it no longer counts as live.
    pub(crate) fn set_aside(&self, spec: &'static ThreadSpec, why: &str) {
        let group = self.group(spec);
        group.live.fetch_sub(1, Ordering::SeqCst);
        *group.reason.lock() = Some(why.to_owned());
    }

    /// Starts a thread; false when its stage is closed by a drain.
    pub(crate) fn start(&self, start: Start, body: Body) -> bool {
        let Start { spec, name, .. } = &start;
        assert!(
            self.0.topology.threads.iter().any(|t| t.name == spec.name),
            "thread `{}` is not in the topology of {}: add its row",
            spec.name,
            self.0.topology.service
        );
        assert!(
            name.len() <= 15,
            "thread name `{name}` is longer than 15 bytes"
        );
        let group = self.group(spec);
        let running = Arc::new(AtomicBool::new(true));
        let handle = Arc::new(Mutex::new(None));
        let (end, ended) = Shutdown::pair();
        // Registered before it runs, under the lock with which a drain closes the stage: the drain
        // either joins the thread, or the thread is never started.
        let Some(id) = self.enter(&start, &group, ended, &running, &handle) else {
            return false;
        };
        let ctx = ThreadCtx {
            shutdown: self.stage_token(spec.stage),
            index: start.index,
            name: name.clone(),
        };
        let run = life::Run {
            supervisor: self.clone(),
            group,
            ctx,
            id,
            running,
        };
        self.0.metrics.declare_threads(spec);
        let spawned = self.0.metrics.tasks_spawned.with_label_values(&[spec.name]);
        spawned.inc();
        let service = self.0.topology.service;
        let thread = thread::spawn(name.clone(), move || {
            let _scope = ServiceScope::enter(service);
            run.run_to_end(&body);
            // What the body owns (senders, files) is dropped before the drain sees the thread end:
            // the next stage relies on it.
            drop(body);
            drop(run);
            end.fire();
        })
        .expect("the operating system gives a thread at start-up");
        *handle.lock() = Some(thread);
        true
    }

    fn enter(
        &self,
        start: &Start,
        group: &Group,
        ended: Shutdown,
        running: &Arc<AtomicBool>,
        handle: &Arc<Mutex<Option<thread::Handle>>>,
    ) -> Option<u64> {
        let mut threads = self.0.threads.lock();
        let closed = threads.closed[start.spec.stage as usize];
        #[cfg(mutant = "late")] // starts threads that no drain will join
        let closed = closed && !crate::sync::mutant("late");
        if closed {
            return None;
        }
        // Counted here, not on the new thread: a verdict right after the start sees all threads.
        if !start.refill {
            group.total.fetch_add(1, Ordering::SeqCst);
        }
        group.live.fetch_add(1, Ordering::SeqCst);
        threads.last_id += 1;
        let id = threads.last_id;
        threads.entries.push(Entry {
            id,
            name: start.name.clone(),
            spec: start.spec,
            ended,
            handle: handle.clone(),
            running: running.clone(),
        });
        Some(id)
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
                    lost: AtomicU32::new(0),
                })
            })
            .clone()
    }
}

/// A body that never ends as [`Exit::Released`].
fn returning(body: impl Fn(&ThreadCtx) + Send + Sync + 'static) -> Body {
    Arc::new(move |ctx| {
        body(ctx);
        Exit::Returned
    })
}
