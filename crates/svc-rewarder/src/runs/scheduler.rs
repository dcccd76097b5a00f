//! The scheduler: owner of the run table.
//!
//! One loop over three sources: requests (`work_req`), reports of the stages (`updates`) and its
//! own ticks. Only this thread writes the database and the registry, so "one run per epoch" needs
//! no lock: the second request simply finds the first one's row. The scheduler keeps the responders
//! of callers that wait for a run, and answers them when the run is at rest, or with 202 when the
//! wait is over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ron_files::{DiskRoom, NoRoom};
use ron_http::{Responder, Response};
use ron_kernel::{
    Backoff, Deadline, Gauge, Receiver, RecvEither, SendError, Sender, SharedClock, Shutdown,
    ThreadCtx,
};
use ron_proto::problem::Problem;
use ron_proto::rewarder::RunState;
use ron_proto::values::Timestamp;
use ron_service::events::Events;

use super::registry::{Entry, Registry, answer};
use super::replace::ends_withdrawal;
use super::{Intent, Job, Run, RunAction, RunEvent, RunId, RunRequest, Update, reason, timeline};
use crate::metrics::Metrics;

/// Longest single wait while a tick has nothing to do; requests and updates end it.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum sleep between two ticks.
const TICK: Duration = Duration::from_millis(500);
/// Minimum sleep while something is due, so that the loop does not spin on a full queue.
const TICK_MIN: Duration = Duration::from_millis(20);
/// When a job that found no place in `work` is sent once more. Longer than the pause between two
/// jobs of a small epoch; short enough for a caller that waits for its answer.
const SECOND_TRY: Duration = Duration::from_millis(100);
/// Maximum number of jobs that wait for their second try; further new runs get 429 unsaved.
pub(super) const SECOND_TRIES_MAX: usize = 64;

/// Stores runs durably. A failed write poisons the store: every later write fails too.
pub trait RunStore: Send {
    /// The run is durable on return.
    fn put(&mut self, run: &Run) -> Result<(), String>;
    /// The run is removed durably on return.
    fn remove(&mut self, id: &RunId) -> Result<(), String>;
}

/// The channels and settings of the scheduler.
pub struct Scheduler {
    pub work_req: Receiver<RunRequest>,
    pub updates: Receiver<Update>,
    pub work: Sender<Job>,
    pub intents: Sender<Intent>,
    /// The table, shared with readers.
    pub registry: Registry,
    /// Whether runs settle without a request; never without a ledger.
    pub auto_settle: bool,
    /// Whether a ledger is configured.
    pub can_settle: bool,
    /// Budget of a computation: half of an epoch's length.
    pub compute_budget: Duration,
    pub clock: SharedClock,
    /// Nothing new begins while the disk has too little room.
    pub room: DiskRoom,
    pub metrics: Metrics,
    pub events: Events,
    /// Called with the error of a failed write.
    pub store_fault: Box<dyn Fn(String) + Send + Sync>,
}

struct Waiter {
    until: Deadline,
    responder: Responder,
}

/// A new run whose job found no place in `work`, with the request that made it.
pub(super) struct SecondTry {
    at: Deadline,
    compute_by: Option<Deadline>,
    wait: Option<Duration>,
    responder: Responder,
}

/// What became of an admitted request.
pub(super) enum Admission {
    Admitted,
    /// Its job found no place in `work`.
    QueueFull,
}

/// State of the loop besides the table. Only the scheduler's thread has it.
pub struct Memory {
    store: Box<dyn RunStore>,
    waiters: BTreeMap<RunId, Vec<Waiter>>,
    /// Queued runs that still need a place in `work`; found at start.
    to_compute: BTreeSet<RunId>,
    pub(super) second_tries: BTreeMap<RunId, SecondTry>,
    /// Runs to send to the emitter, and when.
    pub(super) to_settle: BTreeMap<RunId, Deadline>,
    pub(super) backoffs: BTreeMap<RunId, Backoff>,
}

impl Scheduler {
    /// State over an opened store. Every unfinished run is scheduled again.
    pub fn resume(&self, store: Box<dyn RunStore>) -> Memory {
        let mut memory = Memory {
            store,
            waiters: BTreeMap::new(),
            to_compute: BTreeSet::new(),
            second_tries: BTreeMap::new(),
            to_settle: BTreeMap::new(),
            backoffs: BTreeMap::new(),
        };
        // The gauges may hold the counts of an earlier start of this thread.
        for state in RunState::ALL {
            self.count(state).set(0);
        }
        for entry in self.registry.all() {
            let run = &entry.run;
            self.count(run.state).inc();
            match run.state {
                RunState::Queued | RunState::Computing => {
                    memory.to_compute.insert(run.id());
                }
                RunState::Sealed
                | RunState::Review
                | RunState::Settling
                | RunState::Held
                | RunState::Withdrawing => {
                    self.emit(&mut memory, run);
                }
                _ => {}
            }
        }
        memory
    }

    /// Sends a live run to the emitter with the next tick.
    pub(super) fn emit(&self, memory: &mut Memory, run: &Run) {
        if !run.dry_run && self.can_settle {
            let now = Deadline::within(Duration::ZERO);
            memory.to_settle.insert(run.id(), now);
        }
    }

    /// The loop. At shutdown it continues until `others_done` says that no stage reports any more.
    pub fn run(&self, memory: &mut Memory, ctx: &ThreadCtx, others_done: &dyn Fn() -> bool) {
        self.tick(memory, &ctx.shutdown);
        while !ctx.shutdown.is_set() {
            let next_tick = Deadline::within(self.nap(memory));
            match self
                .work_req
                .recv_either(&self.updates, &ctx.shutdown, next_tick)
            {
                RecvEither::First(request) => self.handle_request(memory, request),
                RecvEither::Second(update) => self.handle_update(memory, &update),
                RecvEither::Timeout => {}
                RecvEither::Shutdown => break,
                // The API and the stages keep their senders while the service runs.
                RecvEither::Closed => {
                    ctx.shutdown.wait(next_tick);
                }
            }
            self.tick(memory, &ctx.shutdown);
        }
        self.drain(memory, others_done);
    }

    pub(super) fn drain(&self, memory: &mut Memory, others_done: &dyn Fn() -> bool) {
        let (_keep, never) = Shutdown::pair();
        loop {
            // Read before the queue is emptied: a stage sends its last report before it counts as
            // done, so no report can follow `done`.
            let done = others_done();
            while let Some(update) = self.updates.try_recv() {
                self.handle_update(memory, &update);
            }
            if done {
                break;
            }
            // The stages report through the queue that this loop drains, so it cannot wait for
            // their end alone.
            never.wait(Deadline::within(Duration::from_millis(5)));
        }
        // Callers are answered last: until here a report could still have brought their result.
        while let Some(request) = self.work_req.try_recv() {
            request.responder.send(Problem::draining(1));
        }
        // Their runs are durable: the next start continues them.
        for (id, waiters) in std::mem::take(&mut memory.waiters) {
            for waiter in waiters {
                waiter.responder.send(self.present(&id));
            }
        }
        for (id, late) in std::mem::take(&mut memory.second_tries) {
            late.responder.send(self.present(&id));
        }
    }

    fn nap(&self, memory: &Memory) -> Duration {
        let waits = memory.waiters.values().flatten().map(|waiter| waiter.until);
        let second_tries = memory.second_tries.values().map(|late| late.at);
        let settlements = memory.to_settle.values().copied();
        let next = waits.chain(second_tries).chain(settlements).min();
        if next.is_none() && memory.to_compute.is_empty() {
            return IDLE;
        }
        let due = next.map_or(TICK, Deadline::remaining);
        let due = if memory.to_compute.is_empty() {
            due
        } else {
            TICK_MIN
        };
        due.clamp(TICK_MIN, TICK)
    }

    /// Handles everything that is due: expired waits, queued runs without a place in `work`,
    /// settlements.
    pub fn tick(&self, memory: &mut Memory, shutdown: &Shutdown) {
        self.expire_waits(memory);
        self.try_again(memory);
        while let Some(id) = memory.to_compute.first().cloned() {
            match self.registry.get(&id) {
                // The queue is full: the remaining runs wait for the next tick.
                Some(entry) if self.enqueue(&entry, None).is_err() => break,
                _ => memory.to_compute.remove(&id),
            };
        }
        let due: Vec<RunId> = memory
            .to_settle
            .iter()
            .filter(|(_, at)| at.expired())
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            if shutdown.is_set() {
                return;
            }
            let open = |entry: &Entry| !entry.run.is_final();
            let Some(entry) = self.registry.get(&id).filter(open) else {
                memory.to_settle.remove(&id);
                continue;
            };
            let intent = Intent {
                run: entry.run,
                progress: entry.progress,
                request: entry.request,
            };
            // The emitter drains this queue; if it is full, the next tick tries again.
            if self.intents.try_send(intent).is_err() {
                return;
            }
            memory.to_settle.remove(&id);
        }
    }

    fn expire_waits(&self, memory: &mut Memory) {
        for (id, waiters) in &mut memory.waiters {
            let (over, on): (Vec<_>, Vec<_>) = std::mem::take(waiters)
                .into_iter()
                // A responder whose client has disconnected is answered as well: that drops it and
                // frees its place.
                .partition(|waiter| waiter.until.expired() || waiter.responder.is_gone());
            *waiters = on;
            for waiter in over {
                waiter.responder.send(self.present(id));
            }
        }
        memory.waiters.retain(|_, waiters| !waiters.is_empty());
    }

    /// Sends the jobs whose second try is due. A run whose job finds no place again fails, and all
    /// its callers get 429.
    fn try_again(&self, memory: &mut Memory) {
        let due = |_: &RunId, late: &mut SecondTry| late.at.expired();
        let due: Vec<_> = memory.second_tries.extract_if(.., due).collect();
        for (id, late) in due {
            let Some(entry) = self.registry.get(&id) else {
                continue; // dropping the responder answers 500
            };
            let queued = entry.run.state == RunState::Queued;
            if !queued || self.enqueue(&entry, late.compute_by).is_ok() {
                self.reply(memory, id, late.wait, late.responder);
                continue;
            }
            let problem = match self.fail_busy(memory, &entry) {
                Ok(()) => Problem::busy(self.work.retry_after_s()),
                Err(problem) => *problem,
            };
            for waiter in memory.waiters.remove(&id).unwrap_or_default() {
                waiter.responder.send(problem.clone());
            }
            late.responder.send(problem);
        }
    }

    fn fail_busy(&self, memory: &mut Memory, entry: &Entry) -> Result<(), Box<Problem>> {
        let mut run = (*entry.run).clone();
        run.state = RunState::Failed;
        run.reason = Some(reason(
            "busy",
            "every compute queue was full; send the request again",
        ));
        self.save(memory, &entry.with(run))
    }

    /// Answers the callers that wait for a run, which is at rest now.
    fn answer_waiters(&self, memory: &mut Memory, entry: &Entry) {
        for waiter in memory.waiters.remove(&entry.run.id()).unwrap_or_default() {
            waiter.responder.send(answer(entry, self.clock.unix_ms()));
        }
    }

    /// The response for a run in its current state.
    fn present(&self, id: &RunId) -> Response {
        let Some(entry) = self.registry.get(id) else {
            return Problem::not_found("there is no run of this epoch").into();
        };
        answer(&entry, self.clock.unix_ms())
    }

    /// Handles one request. Answers it, or keeps the responder until the run is at rest.
    pub fn handle_request(&self, memory: &mut Memory, request: RunRequest) {
        let RunRequest {
            tenant,
            epoch,
            action,
            wait,
            compute_by,
            responder,
        } = request;
        let _scope = responder.enter();
        let id = action.run_of(tenant, epoch);
        let admitted = match &action {
            RunAction::Compute { .. } => self.admit(memory, &id, &action, compute_by),
            RunAction::Settle => self
                .want_settlement(memory, &id)
                .map(|()| Admission::Admitted),
            RunAction::Approve { commitment, by } => self
                .want_approval(memory, &id, commitment, by)
                .map(|()| Admission::Admitted),
            RunAction::Withdraw {
                commitment,
                reason,
                by,
            } => self
                .want_withdrawal(memory, &id, commitment, (reason, by))
                .map(|()| Admission::Admitted),
        };
        match admitted {
            Err(problem) => responder.send(*problem),
            Ok(Admission::Admitted) => self.reply(memory, id, wait, responder),
            Ok(Admission::QueueFull) => {
                let late = SecondTry {
                    at: Deadline::within(SECOND_TRY),
                    compute_by,
                    wait,
                    responder,
                };
                memory.second_tries.insert(id, late);
            }
        }
    }

    /// Answers with the run's state, or keeps the responder until the run is at rest.
    fn reply(&self, memory: &mut Memory, id: RunId, wait: Option<Duration>, responder: Responder) {
        let resting = self
            .registry
            .get(&id)
            .is_none_or(|entry| entry.run.at_rest());
        match wait {
            Some(wait) if !resting => {
                let until = Deadline::within(wait);
                memory
                    .waiters
                    .entry(id)
                    .or_default()
                    .push(Waiter { until, responder });
            }
            _ => responder.send(self.present(&id)),
        }
    }

    /// Refuses what would begin while the disk has too little room.
    pub(super) fn has_room(&self) -> Result<(), Box<Problem>> {
        let full = |full: NoRoom| Box::new(Problem::unavailable(full.to_string(), 5));
        self.room.check().map_err(full)
    }

    pub(super) fn enqueue(&self, entry: &Entry, compute_by: Option<Deadline>) -> Result<(), ()> {
        let budget = Deadline::within(self.compute_budget);
        let job = Job {
            run: entry.run.clone(),
            progress: entry.progress.clone(),
            request: entry.request.clone(),
            deadline: compute_by.map_or(budget, |by| by.earlier(budget)),
        };
        match self.work.try_send(job) {
            Ok(()) => Ok(()),
            Err(SendError::Full(_) | SendError::Closed(_)) => Err(()),
        }
    }

    /// Writes the run to the store first and shows it to readers afterwards, so that no response
    /// mentions a state that a crash could lose.
    pub(super) fn save(&self, memory: &mut Memory, entry: &Entry) -> Result<(), Box<Problem>> {
        let written = memory.store.put(&entry.run);
        self.stored(written)?;
        self.show(entry.clone());
        Ok(())
    }

    fn stored(&self, written: Result<(), String>) -> Result<(), Box<Problem>> {
        written.map_err(|why| {
            (self.store_fault)(why);
            Box::new(Problem::unavailable("the run store cannot be written", 5))
        })
    }

    /// Removes a dry run.
    pub(super) fn forget(&self, memory: &mut Memory, id: &RunId) -> Result<(), Box<Problem>> {
        let removed = memory.store.remove(id);
        self.stored(removed)?;
        if let Some(old) = self.registry.remove(id) {
            self.count(old.run.state).dec();
        }
        Ok(())
    }

    /// Shows a run to readers and counts its state.
    fn show(&self, entry: Entry) {
        self.count(entry.run.state).inc();
        if let Some(old) = self.registry.put(entry) {
            self.count(old.run.state).dec();
        }
    }

    fn count(&self, state: RunState) -> Gauge {
        self.metrics.by_state.with_label_values(&[state.as_str()])
    }

    /// Applies one report of a stage.
    pub fn handle_update(&self, memory: &mut Memory, update: &Update) {
        let Some(entry) = self.registry.get(&update.id) else {
            return;
        };
        if entry.run.run_key != update.run_key {
            return; // about a run that has been replaced
        }
        if entry.run.is_final() {
            return; // a late report of an earlier attempt
        }
        if update.event == RunEvent::Expired {
            if entry.run.dry_run && entry.run.at_rest() {
                // If the store fails, the next sweep reports it again.
                let _ = self.forget(memory, &update.id);
            }
            return;
        }
        if entry.run.state == RunState::Withdrawing && !ends_withdrawal(&update.event) {
            self.keep_withdrawing(memory, &entry, &update.event);
            return;
        }
        let before = entry.run.state;
        let mut run = (*entry.run).clone();
        run.updated_at = Timestamp(self.clock.unix_ms());
        run.reason = None;
        self.apply(memory, &mut run, &update.event);
        let entry = entry.with(run);
        if entry.run.state == RunState::Computing {
            // Not written: after a crash the run is queued again anyway.
            self.show(entry);
            return;
        }
        // If the store fails, readiness reports it and the next start repeats the stage.
        let saved = self.save(memory, &entry).is_ok();
        if saved && matches!(update.event, RunEvent::Sealed { .. }) {
            // Not before it is recorded: a run that a crash makes `queued` gets new artifacts, and nothing may be paid by then.
            self.emit(memory, &entry.run);
        }
        if saved && entry.run.state != before {
            timeline::report(&self.events, &entry.run);
        }
        if saved && entry.run.at_rest() {
            let status = entry.run.state.as_str();
            self.metrics.runs.with_label_values(&[status]).inc();
            self.answer_waiters(memory, &entry);
        }
    }

    fn apply(&self, memory: &mut Memory, run: &mut Run, event: &RunEvent) {
        match event {
            RunEvent::Computing => run.state = RunState::Computing,
            RunEvent::Sealed {
                commitment,
                totals,
                assets,
                accounts,
                intents,
                approvals,
                breaches,
            } => {
                (run.commitment, run.totals) = (Some(*commitment), Some(*totals));
                run.assets.clone_from(assets);
                (run.accounts, run.intents) = (*accounts, *intents);
                run.seal(*approvals, breaches);
            }
            RunEvent::Quarantined {
                commitment,
                totals,
                reason,
            } => {
                run.state = RunState::Quarantined;
                (run.commitment, run.totals) = (Some(*commitment), Some(*totals));
                run.reason = Some(reason.clone());
            }
            RunEvent::Failed(reason) => {
                run.state = RunState::Failed;
                run.reason = Some(reason.clone());
            }
            RunEvent::Settling { open_seq } => {
                run.state = RunState::Settling;
                run.seqs.open_seq = Some(*open_seq);
            }
            RunEvent::Held(reason) => {
                run.state = RunState::Held;
                run.reason = Some(reason.clone());
                self.retry_later(memory, run.id());
            }
            RunEvent::Signed => {
                run.rest();
                if run.settle {
                    // Settlement was requested while the emitter was signing.
                    self.emit(memory, run);
                }
            }
            RunEvent::Withdrawn { void_seq } => {
                run.state = RunState::Withdrawn;
                run.seqs.void_seq = Some(*void_seq);
                memory.backoffs.remove(&run.id());
            }
            RunEvent::Opened => {
                // The money is in the epoch's escrow, so the payouts are made.
                run.state = RunState::Settling;
                run.settle = true;
                self.emit(memory, run);
            }
            RunEvent::Expired => {} // removes the run instead
            RunEvent::Settled { seqs } => {
                run.state = RunState::Settled;
                run.seqs = *seqs;
                memory.backoffs.remove(&run.id());
            }
        }
    }
}
