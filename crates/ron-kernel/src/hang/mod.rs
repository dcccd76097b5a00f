//! A pool for calls that may hang: each worker owns a handle (a session, a device). A worker whose
//! call does not return by its deadline is set aside (quarantined) instead of waited for.
//!
//! ```text
//!  submit ──> Queue ──> worker (handle) ──> answer slot ──> Pending::wait(deadline)
//!                          │ no answer in time: set aside, counted, named
//!                          ├─> a new thread takes the seat, while at most `aside_max` hang
//!                          └─> the call returns late: the thread ends, its answer is discarded
//! ```
//!
//! **Invariants**: a job is begun or canceled, never both, so `Expired` means that nothing was done;
//! at most `size + aside_max` calls run, hanging ones included (a thread whose call returned late
//! ends beside its replacement); a thread that hangs at the end of a drain is reported as a
//! straggler by name.

pub(crate) mod slots;
#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::slots::{After, Overdue, Seat, SetAside, Slots, Ticket};
use crate::deadline::Deadline;
use crate::metrics::{Counter, Gauge, KernelMetrics};
use crate::queue::{Expires, Receiver, Recv, SendError, Sender, queue};
use crate::reply::{ReplyWaiter, WaitError, reply};
use crate::shutdown::Shutdown;
use crate::supervisor::{Exit, Start, Supervisor, ThreadCtx};
use crate::sync::{caught, now};
use crate::topology::{QueueSpec, ThreadSpec};

/// Longest single wait of an idle worker.
const IDLE: Duration = Duration::from_secs(60);

/// The parameters of a pool.
#[derive(Debug, Clone, Copy)]
pub struct HangSpec {
    /// Its thread row (a pool).
    pub threads: &'static ThreadSpec,
    pub queue: &'static QueueSpec,
    /// Workers, at least one.
    pub size: usize,
    /// Jobs that may wait.
    pub capacity: usize,
    /// Maximum number of hanging threads that are replaced; with more of them the pool shrinks.
    pub aside_max: usize,
    /// The names that calls may have, for `io_timeouts_total{op}`.
    pub ops: &'static [&'static str],
}

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HangError {
    /// The queue is full; nothing was done.
    #[error("busy, try again in {retry_after_s} s")]
    Busy {
        /// Seconds after which to retry, from the measured drain rate.
        retry_after_s: u32,
    },
    /// The service drains, or every worker hangs; nothing was done.
    #[error("no worker takes this call: the pool drains or all of its workers hang")]
    Unavailable,
    /// The deadline passed before a worker began the call; nothing was done.
    #[error("the deadline passed before the call was begun")]
    Expired,
    /// The call was begun and has not returned in time; its outcome is unknown.
    #[error("the call has not returned by its deadline; its outcome is unknown")]
    Hung,
    /// The worker panicked in the call; its outcome is unknown.
    #[error("the worker panicked in the call; its outcome is unknown")]
    Crashed,
    /// The handle could not be made; nothing was done.
    #[error("no handle for the call: {0}")]
    NoHandle(String),
}

/// Sends the answer of a job. It runs after the worker is marked as idle, so that a caller that has
/// its answer finds a free worker.
type Answer = Box<dyn FnOnce() + Send>;
type Work<H> = Box<dyn FnOnce(Result<&mut H, String>) -> Answer + Send>;

struct Job<H> {
    ticket: Ticket,
    op: &'static str,
    deadline: Deadline,
    work: Work<H>,
}

impl<H> Expires for Job<H> {
    fn deadline(&self) -> Deadline {
        self.deadline
    }
}

type Make<H> = dyn Fn(&ThreadCtx) -> Result<H, String> + Send + Sync;

struct Inner<H> {
    spec: HangSpec,
    supervisor: Supervisor,
    make: Box<Make<H>>,
    slots: Slots,
    jobs: Receiver<Job<H>>,
    shutdown: Shutdown,
    aside_total: Counter,
    aside_now: Gauge,
}

/// The pool; clones share it.
pub struct HangPool<H> {
    inner: Arc<Inner<H>>,
    tx: Sender<Job<H>>,
}

impl<H> Clone for HangPool<H> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            tx: self.tx.clone(),
        }
    }
}

impl<H> fmt::Debug for HangPool<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HangPool({})", self.inner.spec.threads.name)
    }
}

#[must_use = "the answer arrives here"]
pub struct Pending<H, R> {
    answer: ReplyWaiter<Result<R, String>>,
    ticket: Ticket,
    deadline: Deadline,
    op: &'static str,
    pool: Arc<Inner<H>>,
}

impl<H: 'static> HangPool<H> {
    /// Starts the workers. `make` makes a worker's handle on the worker's thread, as part of its
    /// first call and within that call's deadline, and again after a panic or a failure.
    ///
    /// # Panics
    /// When a row is not in the service's table.
    pub fn start(
        supervisor: &Supervisor,
        spec: HangSpec,
        make: impl Fn(&ThreadCtx) -> Result<H, String> + Send + Sync + 'static,
    ) -> Self {
        let metrics = supervisor.metrics();
        let (tx, jobs) = queue(spec.queue, spec.capacity, metrics);
        let (aside_total, aside_now) = aside_metrics(metrics, spec.threads.name);
        metrics.io_timeouts.declare(spec.ops.iter().copied());
        metrics.worker_inflight.declare([spec.threads.name]);
        let inner = Arc::new(Inner {
            supervisor: supervisor.clone(),
            make: Box::new(make),
            slots: Slots::new(spec.size, spec.aside_max),
            jobs,
            shutdown: supervisor.stage_token(spec.threads.stage),
            aside_total,
            aside_now,
            spec,
        });
        for number in 0..spec.size.max(1) {
            let slot = number;
            inner.seat(Seat { slot, number }, false);
        }
        Self { inner, tx }
    }

    /// Calls `job` on a worker's handle and waits for its answer until the deadline. `op` names the
    /// call in `io_timeouts_total{op}`: one of [`HangSpec::ops`].
    pub fn call<R: Send + 'static>(
        &self,
        op: &'static str,
        deadline: Deadline,
        job: impl FnOnce(&mut H) -> R + Send + 'static,
    ) -> Result<R, HangError> {
        self.submit(op, deadline, job)?.wait()
    }

    /// As [`HangPool::call`], without waiting for the answer.
    pub fn submit<R: Send + 'static>(
        &self,
        op: &'static str,
        deadline: Deadline,
        job: impl FnOnce(&mut H) -> R + Send + 'static,
    ) -> Result<Pending<H, R>, HangError> {
        // First: a worker that hangs unnoticed is replaced before its seat is counted below.
        self.inner.sweep();
        if self.inner.shutdown.is_set() || self.inner.slots.seated() == 0 {
            return Err(HangError::Unavailable);
        }
        let (reply, answer) = reply();
        let ticket = Ticket::new();
        let work: Work<H> = Box::new(move |handle| {
            // The answer is sent later, by the returned closure: see `Answer`.
            let result = handle.map(job);
            Box::new(move || {
                let _ = reply.send(result); // a late answer has no waiter any more
            })
        });
        let sent = self.tx.try_send(Job {
            ticket: ticket.clone(),
            op,
            deadline,
            work,
        });
        match sent {
            Ok(()) => Ok(Pending {
                answer,
                ticket,
                deadline,
                op,
                pool: self.inner.clone(),
            }),
            Err(SendError::Full(_)) => Err(HangError::Busy {
                retry_after_s: self.tx.retry_after_s(),
            }),
            Err(SendError::Closed(_)) => Err(HangError::Unavailable),
        }
    }

    /// Threads that were set aside and still hang: name, and the call in which each hangs.
    pub fn hanging(&self) -> Vec<(String, &'static str)> {
        self.inner.sweep();
        let stem = self.inner.spec.threads.name;
        let aside = self.inner.slots.aside();
        let named = aside.into_iter().map(|(n, op)| (format!("{stem}{n}"), op));
        named.collect()
    }

    /// Number of workers in their seats; at most the size of the pool.
    pub fn seated(&self) -> usize {
        self.inner.slots.seated()
    }
}

fn aside_metrics(metrics: &KernelMetrics, kind: &str) -> (Counter, Gauge) {
    let registry = metrics.registry();
    let total = registry.counter_vec(
        "threads_quarantined_total",
        "Threads set aside because a call did not return by its deadline.",
        &["kind"],
    );
    let now = registry.gauge_vec(
        "threads_quarantined",
        "Threads set aside whose call still has not returned.",
        &["kind"],
    );
    (
        total.with_label_values(&[kind]),
        now.with_label_values(&[kind]),
    )
}

impl<H: 'static, R> Pending<H, R> {
    /// Limits the wait to `deadline`: a caller may have less time than its call.
    pub fn until(mut self, deadline: Deadline) -> Self {
        self.deadline = self.deadline.earlier(deadline);
        self
    }

    /// Waits for the answer until the deadline; a worker that still runs the call then is set
    /// aside.
    pub fn wait(self) -> Result<R, HangError> {
        match self.answer.wait(self.deadline) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(HangError::NoHandle(why)),
            // The queue dropped the job (its deadline had passed, or the pool is gone) before any
            // worker began it.
            Err(WaitError::Dropped) if self.ticket.never_started() => Err(HangError::Expired),
            Err(WaitError::Dropped) => Err(HangError::Crashed),
            Err(WaitError::Timeout) => {
                let metrics = self.pool.supervisor.metrics();
                metrics.io_timeouts.with_label_values(&[self.op]).inc();
                // Decided under the lock of the slots: a worker that is about to begin the job
                // either comes first, and hangs, or finds the ticket canceled.
                match self.pool.slots.overdue(&self.ticket) {
                    Overdue::NotStarted => Err(HangError::Expired),
                    Overdue::Hangs(aside) => {
                        self.pool.replace_hung(&aside);
                        Err(HangError::Hung)
                    }
                    // The answer is on its way, but this wait is over: the outcome is unknown here.
                    Overdue::Over => Err(HangError::Hung),
                }
            }
        }
    }
}

impl<H, R> fmt::Debug for Pending<H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", self.op)
    }
}

impl<H: 'static> Inner<H> {
    /// Starts a worker in a seat that the table already holds for it.
    fn seat(self: &Arc<Self>, seat: Seat, refill: bool) {
        let pool = self.clone();
        let start = Start {
            spec: self.spec.threads,
            name: format!("{}{}", self.spec.threads.name, seat.number),
            index: seat.slot,
            refill,
        };
        let body = Arc::new(move |ctx: &ThreadCtx| pool.work(ctx, seat));
        if !self.supervisor.start(start, body) {
            self.slots.vacate(seat); // the stage is drained: no worker is needed any more
        }
    }

    fn work(self: &Arc<Self>, ctx: &ThreadCtx, seat: Seat) -> Exit {
        let mut handle = None;
        loop {
            let job = match self.jobs.recv_fresh(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(job) => job,
                Recv::Timeout => continue,
                Recv::Shutdown | Recv::Closed => match self.jobs.try_recv_fresh() {
                    Some(job) => job, // accepted jobs are finished before the worker ends
                    None => return Exit::Returned,
                },
            };
            if !self.run(ctx, seat, job, &mut handle) {
                return Exit::Released;
            }
        }
    }

    /// Runs one job; false when this thread was set aside during it and must end.
    fn run(
        self: &Arc<Self>,
        ctx: &ThreadCtx,
        seat: Seat,
        job: Job<H>,
        handle: &mut Option<H>,
    ) -> bool {
        let begun = now();
        let until = job.deadline.at();
        if !self.slots.begin(seat, &job.ticket, job.op, until) {
            return true;
        }
        let kind = self.spec.threads.name;
        let metrics = self.supervisor.metrics();
        let inflight = metrics.worker_inflight.with_label_values(&[kind]);
        inflight.inc();
        let work = job.work;
        let done = caught(|| match self.handle(ctx, handle) {
            Ok(handle) => work(Ok(handle)),
            Err(why) => work(Err(why)),
        });
        inflight.dec();
        // The seat is freed before the answer is sent and before a panic is resumed: only `finish`
        // knows whether this thread still owns its seat.
        let stays = match self.slots.finish(seat) {
            After::Stay => true,
            After::Leave(refill) => {
                self.late_return(ctx, job.op, begun, refill);
                false
            }
        };
        match done {
            Ok(answer) => answer(),
            // A thread in its seat is restarted like any thread that panics; a thread that was set
            // aside just ends, because its replacement runs already.
            Err(panic) if stays => std::panic::resume_unwind(panic),
            Err(_) => {}
        }
        stays
    }

    fn handle<'a>(&self, ctx: &ThreadCtx, kept: &'a mut Option<H>) -> Result<&'a mut H, String> {
        if kept.is_none() {
            *kept = Some((self.make)(ctx)?);
        }
        Ok(kept.as_mut().expect("made above"))
    }

    /// Sets aside the workers whose call is overdue but has no waiter any more.
    fn sweep(self: &Arc<Self>) {
        while let Some(aside) = self.slots.sweep(now()) {
            self.replace_hung(&aside);
        }
    }

    /// Counts and reports a worker that was set aside, and starts its replacement if it gets one.
    fn replace_hung(self: &Arc<Self>, aside: &SetAside) {
        let name = format!("{}{}", self.spec.threads.name, aside.number);
        let why = format!("`{name}` hangs in `{}` and was set aside", aside.op);
        self.aside_total.inc();
        self.aside_now.inc();
        self.supervisor.set_aside(self.spec.threads, &why);
        tracing::error!(
            event = "thread_quarantined",
            thread = %name,
            op = aside.op,
            replaced = aside.refill.is_some()
        );
        if let Some(seat) = aside.refill {
            self.seat(seat, true);
        }
    }

    /// A thread that was set aside has returned from its call.
    fn late_return(
        self: &Arc<Self>,
        ctx: &ThreadCtx,
        op: &'static str,
        begun: Instant,
        refill: Option<Seat>,
    ) {
        self.aside_now.dec();
        tracing::warn!(
            event = "quarantined_call_returned",
            thread = %ctx.name,
            op,
            took_ms = u64::try_from(now().saturating_duration_since(begun).as_millis()).unwrap_or(u64::MAX)
        );
        if let Some(seat) = refill {
            self.seat(seat, true);
        }
    }
}
