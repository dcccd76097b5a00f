//! Committing: queued writes of the same accounts are sent in one ledger call and answered with
//! receipts.
//!
//! Jobs are sharded by the account whose order matters, so that nonces 1 and 2 queued together keep
//! their order. The ledger alone decides; a call with an unknown outcome marks its keys as
//! unresolved.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use ron_client::ClientError;
use ron_http::{JointCalls, Trace, TraceScope};
use ron_kernel::{Deadline, Receiver, Recv, SendError, Sender, SharedClock, ThreadCtx};
use ron_proto::ledger::{
    CommitRequest, Entry, EntryAnswer, Event, MAX_COMMIT_BYTES, RefusalCode, RequestKey,
};
use ron_proto::{Account, Problem};

use crate::audit::Audit;
use crate::balances::Balances;
use crate::errors::{in_flight, retry_later};
use crate::inflight::{FinishedRequest, InFlightTable, Waiter};
use crate::metrics::Metrics;
use crate::own::OwnWrites;
use crate::render::{self, AnswerOptions, Shape};
use crate::unresolved::UnresolvedKeys;
use crate::upstream::{Committed, SharedUpstream};

/// Maximum entries of one ledger call that consists of single operations.
pub const CALL_ENTRIES: usize = 512;
/// Maximum bytes of the entries of such a call; the rest of the ledger's limit is for what surrounds them.
const CALL_BYTES: usize = MAX_COMMIT_BYTES - 1024;
/// No entry is longer: names, accounts and texts of full length, and a budget for each token before its own.
const ENTRY_BYTES_MAX: usize = 8 * 1024;

/// One queued write. Its waiters are in the in-flight table.
#[derive(Debug)]
pub struct CommitJob {
    pub key: RequestKey,
    /// The complete entries, shared with the in-flight table; more than one only for a batch.
    pub entries: Arc<[Entry]>,
    pub shape: Shape,
    /// Operation name, for metrics and audit.
    pub op: &'static str,
    /// The request that made it.
    pub trace: Option<Trace>,
}

/// One bounded queue per committer, selected by account.
#[derive(Debug, Clone)]
pub struct CommitQueues(Arc<[Sender<CommitJob>]>);

impl CommitQueues {
    /// One sender per committer.
    pub fn new(queues: Vec<Sender<CommitJob>>) -> Self {
        Self(queues.into())
    }

    /// Queues the job for the committer of `account`. `Err` has the number of seconds after which
    /// the caller should retry.
    pub fn put(&self, account: &Account, job: CommitJob) -> Result<(), u32> {
        let mut hasher = DefaultHasher::new();
        account.as_str().hash(&mut hasher);
        let at = (hasher.finish() % self.0.len() as u64) as usize;
        #[cfg(mutant = "shard")]
        // by key instead of by account: two debits of one account use different queues
        let at = match ron_kernel::mutant("shard") {
            true => job.key.key.as_str().len() % self.0.len(),
            false => at,
        };
        let queue = &self.0[at];
        match queue.try_send(job) {
            Ok(()) => Ok(()),
            Err(SendError::Full(_) | SendError::Closed(_)) => Err(queue.retry_after_s()),
        }
    }
}

/// State shared by the committer threads.
#[derive(Debug)]
pub struct Committer {
    pub upstream: SharedUpstream,
    pub in_flight: Arc<InFlightTable>,
    /// Keys whose outcome is unknown.
    pub unresolved: Arc<UnresolvedKeys>,
    /// Balances to mark as changed.
    pub balances: Arc<Balances>,
    /// Where the feed gets the answers.
    pub own: OwnWrites,
    pub audit: Audit,
    pub calls: JointCalls,
    pub clock: SharedClock,
    pub metrics: Metrics,
}

impl Committer {
    /// The thread's loop: ends when shut down and its queue is empty.
    pub fn run(&self, ctx: &ThreadCtx, queue: &Receiver<CommitJob>) {
        let mut drained = Vec::with_capacity(CALL_ENTRIES);
        let mut taken = TakenJobs {
            committer: self,
            sending: Vec::new(),
            waiting: VecDeque::new(),
        };
        loop {
            #[cfg(mutant = "leave")] // returns at once, whatever is queued
            if ron_kernel::mutant("leave") && ctx.shutdown.is_set() {
                return;
            }
            if taken.waiting.is_empty() {
                match queue.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(60))) {
                    Recv::Item(job) => taken.waiting.push_back(job),
                    Recv::Timeout => continue,
                    Recv::Shutdown | Recv::Closed => match queue.try_recv() {
                        Some(job) => taken.waiting.push_back(job),
                        None => return,
                    },
                }
            }
            let room = CALL_ENTRIES.saturating_sub(taken.waiting.len());
            queue.drain_into(&mut drained, room);
            taken.waiting.extend(drained.drain(..));
            taken.sending = next_call(&mut taken.waiting);
            self.tick(ctx.index, &mut taken.sending);
            taken.sending.clear();
        }
    }

    /// Sends one ledger call and answers its jobs.
    fn tick(&self, slot: usize, jobs: &mut Vec<CommitJob>) {
        let keys: Vec<&RequestKey> = jobs.iter().map(|j| &j.key).collect();
        let wanted = self.in_flight.send(&keys);
        let mut it = wanted.into_iter();
        // A request without waiters was never sent: skip it, nothing is recorded and nothing
        // changed.
        jobs.retain(|_| it.next().unwrap_or(false));
        let Some(first) = jobs.first() else {
            return;
        };
        let requests = jobs.iter().filter_map(|job| job.trace.as_ref());
        let _scope = TraceScope::enter(self.calls.trace(requests));
        // References: the in-flight table compares later requests with the same entries.
        let entries: Vec<&Entry> = jobs.iter().flat_map(|j| j.entries.iter()).collect();
        self.metrics.batch_size.observe(entries.len() as f64);
        let request = CommitRequest {
            entries,
            linked: first.shape == Shape::Batch { linked: true },
            batch: first.shape == Shape::Batch { linked: false },
        };
        let round = self.own.round();
        match self.upstream.commit(slot, &request) {
            Committed::Answered(answer) => {
                self.answer_jobs(slot, jobs, &answer.results);
                let entries = jobs.iter().map(|job| job.entries.clone()).collect();
                self.own.answered(round, entries, answer.results);
            }
            Committed::NotDone(why) => {
                log_failed_call(&why.detail);
                self.not_done(jobs, &why);
            }
            Committed::Unknown(why) => {
                log_failed_call(&why);
                self.unknown(jobs);
            }
        }
    }

    fn finish<'j>(
        &self,
        jobs: &'j [CommitJob],
    ) -> impl Iterator<Item = (&'j CommitJob, FinishedRequest)> {
        let keys: Vec<&RequestKey> = jobs.iter().map(|j| &j.key).collect();
        jobs.iter().zip(self.in_flight.finish(&keys))
    }

    fn answer_jobs(&self, slot: usize, jobs: &[CommitJob], results: &[EntryAnswer]) {
        // Mark balances before any answer leaves: a caller who sees its receipt must not read an
        // older balance as fresh.
        self.note_changes(results);
        let mut rest = results;
        for (job, finished) in self.finish(jobs) {
            let (mine, later) = rest.split_at(job.entries.len());
            rest = later;
            // A key that this answer left unused stays unresolved: an earlier attempt with it may
            // still arrive.
            if !mine.iter().any(render::leaves_key_unused) {
                self.unresolved.release(&job.key);
            }
            let abandoned_batch = match self.abandoned_batch(slot, job, mine) {
                Ok(answers) => answers,
                Err(why) => {
                    self.refuse(job, finished, &why);
                    continue;
                }
            };
            let answers = abandoned_batch.as_deref().unwrap_or(mine);
            self.note_outcome(job, answers);
            let render = |waiter: &Waiter, replayed| {
                let expected = waiter.reads_account;
                render::answer(job.shape, answers, AnswerOptions { expected, replayed })
            };
            if let Some(waiter) = finished.leader {
                let response = render(&waiter, false);
                self.answer(waiter, response);
            }
            for waiter in finished.followers {
                self.metrics.replays.inc();
                let response = render(&waiter, true);
                self.answer(waiter, response);
            }
        }
    }

    /// A batch whose key was abandoned meets one used key and many unused ones, which looks like a
    /// different request. This asks the ledger which of the two it is.
    fn abandoned_batch(
        &self,
        slot: usize,
        job: &CommitJob,
        mine: &[EntryAnswer],
    ) -> Result<Option<Vec<EntryAnswer>>, Problem> {
        let mismatch = |a| render::code_of(a) == Some(RefusalCode::IdempotencyMismatch);
        if job.shape == Shape::One || !mine.iter().any(mismatch) {
            return Ok(None);
        }
        let within = Deadline::within(Duration::from_millis(500));
        let client = &self.upstream.client;
        let found = self
            .upstream
            .watched(slot, within, || client.by_key(&job.key, within));
        Ok(abandoned(found)?.map(|answer| vec![answer.as_replayed(); mine.len()]))
    }

    fn note_changes(&self, results: &[EntryAnswer]) {
        let done: Vec<_> = results.iter().filter_map(EntryAnswer::receipt).collect();
        let accounts = done.iter().flat_map(|r| r.from.iter().chain(&r.to));
        if let Some(seq) = done.iter().map(|r| r.seq).max() {
            self.balances.changed(accounts, seq);
        }
    }

    fn note_outcome(&self, job: &CommitJob, answers: &[EntryAnswer]) {
        if answers.iter().all(EntryAnswer::is_replayed) {
            self.metrics.replays.inc();
        }
        for answer in answers {
            let code = render::code_of(answer);
            if code == Some(RefusalCode::NonceConflict) {
                self.metrics.nonce_conflicts.inc();
            }
            if let Some(code) = code {
                self.metrics
                    .rejects
                    .with_label_values(&[code.as_str()])
                    .inc();
            }
            let outcome = match code {
                Some(code) => code.as_str(),
                None if answer.is_replayed() => "replayed",
                None => "done",
            };
            self.record(job, outcome, render::seq_of(answer));
        }
    }

    /// Answers jobs of which nothing was committed.
    fn not_done(&self, jobs: &[CommitJob], why: &Problem) {
        for (job, finished) in self.finish(jobs) {
            self.refuse(job, finished, why);
        }
    }

    fn refuse(&self, job: &CommitJob, finished: FinishedRequest, why: &Problem) {
        self.record(job, why.code, None);
        for waiter in finished.leader.into_iter().chain(finished.followers) {
            let reasons = &self.metrics.rejects;
            reasons.with_label_values(&[why.code]).inc();
            self.answer(waiter, why.clone());
        }
    }

    /// The outcome is unknown until the ledger reports it: marks the keys as unresolved and refers
    /// the callers to `/v1/ops/{key}`.
    fn unknown(&self, jobs: &[CommitJob]) {
        for (job, finished) in self.finish(jobs) {
            self.record(job, "unknown", None);
            for waiter in finished.followers {
                self.answer(waiter, in_flight());
            }
            let leader = finished.leader.map(|waiter| {
                self.metrics
                    .observe_answer(waiter.op, waiter.since, &self.clock);
                waiter.responder
            });
            self.unresolved.add(&job.key, leader.into_iter().collect());
        }
    }

    fn record(&self, job: &CommitJob, outcome: &'static str, seq: Option<u64>) {
        let request = job.trace.as_ref();
        self.audit.record(&job.key, job.op, outcome, (seq, request));
    }

    fn answer(&self, waiter: Waiter, response: impl Into<ron_http::Response>) {
        self.metrics
            .observe_answer(waiter.op, waiter.since, &self.clock);
        waiter.responder.send(response);
    }
}

/// The jobs that a committer has taken from its queue. When the thread panics, they are still here: without an end, their keys
/// would stay in flight for ever, and every repetition would wait for an answer that never comes.
struct TakenJobs<'a> {
    committer: &'a Committer,
    /// In the ledger call that is being made.
    sending: Vec<CommitJob>,
    waiting: VecDeque<CommitJob>,
}

impl Drop for TakenJobs<'_> {
    fn drop(&mut self) {
        // The ledger may have them.
        self.committer.unknown(&self.sending);
        let waiting = self.waiting.make_contiguous();
        let why = "a fault stopped the thread that would have sent the write; nothing was done";
        self.committer.not_done(waiting, &retry_later(why));
    }
}

/// The answer of a key that was abandoned, by what the ledger says of the key. Without its word a
/// batch is not told that its key belongs to a different request: nothing of it was done, and it
/// can be sent again.
fn abandoned(found: Result<Event, ClientError>) -> Result<Option<EntryAnswer>, Problem> {
    match found {
        Ok(event) if matches!(event.entry, Entry::Abandon { .. }) => Ok(Some(event.answer)),
        // The key is unused, and another one of the batch is not.
        Ok(_) | Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(retry_later(format!(
            "the ledger did not say what it has under this key: {error}; nothing was done"
        ))),
    }
}

/// Takes the jobs of the next call: single operations up to the limits, or one batch.
fn next_call(waiting: &mut VecDeque<CommitJob>) -> Vec<CommitJob> {
    // A call above the ledger's limit would be refused as a whole, for every caller in it. Few entries always fit, so they
    // need not be measured.
    let measured = waiting.len() > CALL_BYTES / ENTRY_BYTES_MAX;
    let mut bytes = 0;
    let singles = waiting
        .iter()
        .take(CALL_ENTRIES)
        .take_while(|j| j.shape == Shape::One)
        .take_while(|j| {
            bytes += if measured { json_bytes(&j.entries) } else { 0 };
            bytes <= CALL_BYTES
        })
        .count();
    waiting.drain(..singles.max(1).min(waiting.len())).collect()
}

fn json_bytes(entries: &[Entry]) -> usize {
    let length = |entry: &Entry| serde_json::to_vec(entry).map_or(ENTRY_BYTES_MAX, |b| b.len() + 1);
    entries.iter().map(length).sum()
}

fn log_failed_call(why: &str) {
    tracing::warn!(service = "svc-wallet", event = "ledger_call_failed", why);
}

#[cfg(test)]
mod tests {
    use ron_proto::Timestamp;

    use super::*;

    fn job(n: u32, shape: Shape) -> CommitJob {
        CommitJob {
            key: RequestKey {
                tenant: "t".parse().unwrap(),
                principal: "p".parse().unwrap(),
                key: format!("k{n}").parse().unwrap(),
            },
            entries: Arc::new([]),
            shape,
            op: "issue",
            trace: None,
        }
    }

    #[test]
    fn a_batch_is_a_call_of_its_own_and_order_stays() {
        let batch = Shape::Batch { linked: false };
        let shapes = [Shape::One, Shape::One, batch, batch, Shape::One];
        let jobs = shapes.into_iter().enumerate();
        let mut waiting: VecDeque<_> = jobs.map(|(n, s)| job(n as u32, s)).collect();
        let mut calls = Vec::new();
        while !waiting.is_empty() {
            let call = next_call(&mut waiting);
            calls.push(
                call.iter()
                    .map(|j| j.key.key.as_str().to_owned())
                    .collect::<Vec<_>>(),
            );
        }
        assert_eq!(
            calls,
            [vec!["k0", "k1"], vec!["k2"], vec!["k3"], vec!["k4"]]
        );
    }

    /// A batch whose key may have been abandoned is told of a different request only by the ledger.
    #[test]
    fn a_ledger_that_does_not_answer_makes_no_request_a_different_one() {
        let answer = |code| EntryAnswer::Refused {
            code,
            seq: Some(7),
            expected: None,
            paid_by: None,
            replayed: false,
        };
        let given_up = Event {
            seq: 7,
            ts: Timestamp(0),
            entry: Entry::Abandon {
                tenant: "t".parse().unwrap(),
                principal: "p".parse().unwrap(),
                key: "k".parse().unwrap(),
            },
            answer: answer(RefusalCode::Abandoned),
        };
        let found = abandoned(Ok(given_up));
        assert_eq!(found, Ok(Some(answer(RefusalCode::Abandoned))));
        let unused = ClientError::Refused {
            status: 404,
            problem: serde_json::from_str("{}").unwrap(),
            retry_after_s: None,
        };
        assert_eq!(abandoned(Err(unused)), Ok(None));
        let silent = ClientError::NotSent {
            detail: "the peer refused the connection".to_owned(),
        };
        let problem = abandoned(Err(silent)).unwrap_err();
        assert_eq!((problem.status, problem.code), (503, "retry_later"));
        assert!(problem.retryable);
    }
}
