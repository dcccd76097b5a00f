//! Compute workers: take a queued run, read its inputs, compute it with the threads of
//! [`Calc`], and pass the result to the artifact writer.

use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_http::TraceScope;
use ron_kernel::{Deadline, Receiver, Recv, SendError, Sender, SharedClock, Shutdown, ThreadCtx};
use ron_proto::rewarder::RunReason;
use ron_proto::values::Asset;

use super::progress::Counting;
use super::{Job, Run, RunEvent, Update, reason};
use crate::calculus::Usage;
use crate::inline::{self, Calc};
use crate::inputs::import::Cancel;
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::Target;
use crate::intake::Scratch;
use crate::intake::fetch::{FetchError, Origin};
use crate::library::{Library, LibraryError};
use crate::manifest::assets;
use crate::manifest::correction::Earlier;
use crate::manifest::{Computed, RunError, dir};
use crate::metrics::Metrics;

/// Maximum sleep of an idle loop.
const IDLE: Duration = Duration::from_secs(60);
/// Payout tables of epochs with up to this many accounts (some 12 MB) are kept in memory.
const IN_MEMORY_MAX: usize = if cfg!(test) { 100 } else { 65_536 };

/// A computed run, or the reason why there is none.
pub struct ResultItem {
    pub job: Job,
    pub outcome: Result<Box<Product>, RunReason>,
}

pub struct Product {
    pub computed: Computed,
    pub snapshot: Sealed,
    pub policy: VerifiedPolicy,
}

#[derive(Clone)]
pub struct Worker {
    pub library: Library,
    /// Root of the run directories, where the epochs are that others correct.
    pub artifacts: Dir,
    /// Where missing snapshots are fetched from.
    pub origin: Option<Origin>,
    /// Where fetched snapshots are until they are complete.
    pub scratch: Scratch,
    /// Directory of payout tables that are too large for memory. Emptied at start.
    pub spool: Dir,
    pub pool: Calc,
    pub work: Receiver<Job>,
    pub results: Sender<ResultItem>,
    pub updates: Sender<Update>,
    pub clock: SharedClock,
    pub metrics: Metrics,
}

impl Worker {
    /// The thread's body.
    pub fn run(&self, ctx: &ThreadCtx) {
        inline::here();
        loop {
            match self.work.recv(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(job) => self.tick(job, &ctx.shutdown),
                Recv::Timeout => {}
                // Queued runs are durable as `queued`; the next start computes them.
                Recv::Shutdown | Recv::Closed => return,
            }
        }
    }

    /// Computes one job and passes the result on.
    pub fn tick(&self, job: Job, shutdown: &Shutdown) {
        let _scope = TraceScope::enter(job.request.clone());
        report(&self.updates, &job, RunEvent::Computing, shutdown);
        let fuse = Fuse::new(&self.updates, &job.run, RunEvent::Failed(crashed()));
        let outcome = self.compute(&job, shutdown);
        fuse.disarm();
        // The failure is most likely the cancellation by this shutdown. Unreported, the run stays
        // `queued` in the database and is computed at the next start.
        if shutdown.is_set() && outcome.is_err() {
            self.metrics.dropped_results.inc();
            return;
        }
        hand_on(&self.results, ResultItem { job, outcome }, shutdown, || {
            self.metrics.dropped_results.inc();
        });
    }

    fn compute(&self, job: &Job, shutdown: &Shutdown) -> Result<Box<Product>, RunReason> {
        let late = || {
            reason(
                "deadline_exceeded",
                "computing took longer than allowed; send the request again",
            )
        };
        if job.deadline.expired() {
            return Err(late());
        }
        let run = &*job.run;
        let snapshot = self.snapshot(job, shutdown)?;
        let policy = self
            .library
            .policy(&run.tenant, &run.policy_id, &run.policy_hash)
            .map_err(|e| refused(&e))?;
        job.progress.begin_compute(snapshot.accounts() as u64);
        let watch = Counting {
            progress: &job.progress,
            cancelled: || job.deadline.expired() || shutdown.is_set(),
        };
        let earlier = self.earlier(run, &policy)?;
        let timer = self.metrics.compute_seconds.start_timer();
        let target = |name: &str, asset: &Asset, rows| {
            let target = self.target(run, &format!("{name}.{asset}"), rows);
            target.map_err(|error| {
                reason("io", format!("the payout table cannot be written: {error}"))
            })
        };
        let jobs = assets::jobs(&policy, &earlier, snapshot.accounts(), target)?;
        // `install` makes the rayon iterators inside run on this pool and not on the global one.
        let computed = self.pool.install(|| {
            let (tenant, epoch) = (&run.tenant, &run.epoch);
            assets::compute_each(tenant, epoch, jobs, &snapshot, &watch)
        });
        match computed {
            Ok(computed) => {
                timer.observe_duration();
                self.metrics.rows.inc_by(snapshot.accounts() as u64);
                self.metrics.totals(&computed);
                Ok(Box::new(Product {
                    computed,
                    snapshot,
                    policy,
                }))
            }
            Err(RunError::Rules(error)) => Err(reason("policy_mismatch", error.to_string())),
            Err(RunError::Correction(why)) => Err(reason("policy_mismatch", why)),
            Err(RunError::Cancelled) => Err(late()),
            Err(RunError::Io(why)) => Err(reason("io", why)),
        }
    }

    /// The usage: from the library, or fetched into it first.
    fn snapshot(&self, job: &Job, shutdown: &Shutdown) -> Result<Sealed, RunReason> {
        let run = &*job.run;
        let stored = || self.library.snapshot(&run.tenant, &run.snapshot);
        let found = self.pool.install(stored);
        let (Err(LibraryError::Missing(_)), Some(origin)) = (&found, &self.origin) else {
            return found.map_err(|error| refused(&error));
        };
        let (by, stop) = (job.deadline, shutdown.clone());
        let cancel = Cancel(Arc::new(move || by.expired() || stop.is_set()));
        // The temporary file must live until the library has its own link.
        let (_temporary, sealed) = origin
            .fetch(&run.snapshot, &self.scratch, &cancel)
            .map_err(|error| not_fetched(&error))?;
        self.library
            .put_snapshot(&run.tenant, &sealed, self.clock.unix_ms())
            .map_err(|error| refused(&error))?;
        self.pool.install(stored).map_err(|error| refused(&error))
    }

    /// What the epoch that the run corrects has paid of each asset; empty for a run that corrects none.
    fn earlier(&self, run: &Run, policy: &VerifiedPolicy) -> Result<Vec<Earlier>, RunReason> {
        let Some(epoch) = &run.adjusts else {
            return Ok(Vec::new());
        };
        let dir = dir::of(&self.artifacts, &run.tenant, epoch, None);
        let open = || assets::earlier_of_each(&dir, policy);
        self.pool.install(open).map_err(|error| {
            reason(
                "input_missing",
                format!("what epoch {epoch} has paid is not known: {error}. If its artifacts are past their retention, put its run directory back from a bundle"),
            )
        })
    }

    /// Files of few rows stay in memory until they are written with the other artifacts; larger ones go
    /// to the spool.
    fn target(&self, run: &Run, name: &str, rows: usize) -> std::io::Result<Target> {
        if rows <= IN_MEMORY_MAX {
            return Ok(Target::Memory(Vec::new()));
        }
        self.spool.create()?;
        // A dry run and a live run of the same inputs may be computed at the same time.
        let kind = if run.dry_run { "dry" } else { "live" };
        let path = self
            .spool
            .file(&format!("{}.{kind}.{name}", run.run_key.hex()));
        Target::file(&**self.spool.disk(), &path)
    }
}

/// The run's reason for an input that the library refused.
fn refused(error: &LibraryError) -> RunReason {
    let code = match error {
        LibraryError::Missing(_) => "input_missing",
        LibraryError::Refused(_) | LibraryError::Conflict(_) => "input_refused",
        LibraryError::Io(_) => "io",
    };
    reason(code, error.to_string())
}

/// The run's reason for a snapshot that could not be fetched.
fn not_fetched(error: &FetchError) -> RunReason {
    let code = match error {
        FetchError::Missing(_) => "input_missing",
        FetchError::Wrong(_) => "input_refused",
        FetchError::Unavailable(_) => "source_unavailable",
        FetchError::Disk(_) => "io",
        FetchError::Stopped => "deadline_exceeded",
    };
    reason(code, error.to_string())
}

/// Reports to the scheduler, which outlives every stage; waits while its queue is full.
pub fn report(updates: &Sender<Update>, job: &Job, event: RunEvent, shutdown: &Shutdown) {
    let update = Update {
        id: job.run.id(),
        run_key: job.run.run_key,
        event,
    };
    hand_on(updates, update, shutdown, || {});
}

/// Sends repeatedly with a deadline until the queue has room. After shutdown it tries only once
/// more, so that a drain ends; `lost` is called if that fails as well.
pub fn hand_on<T>(to: &Sender<T>, item: T, shutdown: &Shutdown, lost: impl Fn()) {
    const PATIENCE: Duration = Duration::from_millis(500);
    let mut item = item;
    loop {
        let last = shutdown.is_set();
        match to.send(item, Deadline::within(PATIENCE)) {
            Ok(()) => return,
            Err(SendError::Full(back)) if !last => item = back,
            Err(_) => return lost(),
        }
    }
}

/// Sends `event` if the stage unwinds in the middle of a run, so that a panic does not leave the
/// run unfinished for ever.
pub struct Fuse<'a> {
    updates: &'a Sender<Update>,
    update: Option<Update>,
}

impl<'a> Fuse<'a> {
    /// Armed until [`Fuse::disarm`].
    pub fn new(updates: &'a Sender<Update>, run: &Run, event: RunEvent) -> Self {
        Self {
            updates,
            update: Some(Update {
                id: run.id(),
                run_key: run.run_key,
                event,
            }),
        }
    }

    pub fn disarm(mut self) {
        self.update = None;
    }
}

impl Drop for Fuse<'_> {
    fn drop(&mut self) {
        if let Some(update) = self.update.take() {
            // A full queue holds hundreds of unread reports; the next start finds the run where it
            // was.
            let _ = self.updates.try_send(update);
        }
    }
}

/// The reason of a run whose stage panicked.
pub fn crashed() -> RunReason {
    reason(
        "internal",
        "a fault of the service stopped this run; the log has it",
    )
}
