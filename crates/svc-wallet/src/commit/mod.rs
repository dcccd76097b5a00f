//! Committing: queued writes of the same accounts become one ledger call, and leave as receipts.
//!
//! Jobs are routed by the account whose order matters, so that nonces 1 and 2 queued together keep
//! their order. The ledger alone decides; a call whose outcome is unknown pins its keys.

mod pinned;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{ClientError, LedgerClient};
use ron_http::{Responder, Response};
use ron_kernel::{
    Deadline, KernelMetrics, Receiver, Recv, SendError, Sender, SharedClock, ThreadCtx,
};
use ron_proto::ledger::{CommitRequest, Entry, EntryAnswer, EntryKey, PrincipalName, RefusalCode};
use ron_proto::{Account, Problem};

pub use pinned::Pinned;

use crate::metrics::Metrics;

/// Entries of one ledger call, at most.
pub const BATCH_MAX: usize = 512;
/// Longest time for one ledger call with its retries.
const CALL_MAX: Duration = Duration::from_secs(3);

/// One write on its way to the ledger.
#[derive(Debug)]
pub struct CommitJob {
    /// The entry, complete.
    pub entry: Entry,
    /// Operation name for metrics.
    pub op: &'static str,
    /// May the caller learn the expected nonce?
    pub reads_account: bool,
    /// Where the answer goes; carries the deadline.
    pub responder: Responder,
    /// When it was accepted.
    pub since: Instant,
}

/// The queues of the committers.
#[derive(Debug, Clone)]
pub struct Lanes(Arc<[Sender<CommitJob>]>);

impl Lanes {
    /// One lane per committer.
    pub fn new(lanes: Vec<Sender<CommitJob>>) -> Self {
        Self(lanes.into())
    }

    /// Puts the job into the lane of `account`, or hands it back with the seconds to wait.
    pub fn put(&self, account: &Account, job: CommitJob) -> Result<(), (CommitJob, u32)> {
        let mut hasher = DefaultHasher::new();
        account.as_str().hash(&mut hasher);
        let lane = &self.0[(hasher.finish() % self.0.len() as u64) as usize];
        match lane.try_send(job) {
            Ok(()) => Ok(()),
            Err(SendError::Full(job) | SendError::Closed(job)) => Err((job, lane.retry_after_s())),
        }
    }
}

/// What the committer threads share.
#[derive(Debug)]
pub struct Committer {
    /// The ledger.
    pub ledger: Arc<LedgerClient>,
    /// Keys whose outcome is unknown.
    pub pinned: Arc<Pinned>,
    /// Monotonic clock.
    pub clock: SharedClock,
    /// Own metrics.
    pub metrics: Metrics,
    /// Common metrics.
    pub km: KernelMetrics,
}

impl Committer {
    /// The thread's loop: ends when shut down and its lane is empty.
    pub fn run(&self, ctx: &ThreadCtx, lane: &Receiver<CommitJob>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            match lane.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(60))) {
                Recv::Item(job) => batch.push(job),
                Recv::Timeout => continue,
                Recv::Shutdown | Recv::Closed => {
                    if lane.drain_into(&mut batch, BATCH_MAX) == 0 {
                        return;
                    }
                }
            }
            let room = BATCH_MAX - batch.len();
            lane.drain_into(&mut batch, room);
            self.tick(std::mem::take(&mut batch));
        }
    }

    /// One ledger call.
    fn tick(&self, jobs: Vec<CommitJob>) {
        let (jobs, late): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .partition(|j| !j.responder.deadline().expired());
        for job in late {
            // Never sent: nothing is pinned, nothing changed.
            self.km.io_timeouts.with_label_values(&["commit"]).inc();
            self.answer(
                job,
                Problem::deadline_exceeded(
                    "the write waited too long and was not made; send it again",
                ),
            );
        }
        if jobs.is_empty() {
            return;
        }
        self.metrics.batch_size.observe(jobs.len() as f64);
        let request = CommitRequest {
            entries: jobs.iter().map(|j| j.entry.clone()).collect(),
            linked: false,
        };
        let latest = jobs.iter().map(|j| j.responder.deadline()).max();
        let deadline = latest
            .unwrap_or_else(|| Deadline::within(CALL_MAX))
            .capped(CALL_MAX);
        let called = self.ledger.commit(&request, deadline);
        let outcome = match &called {
            Ok(_) => "done",
            Err(ClientError::Unknown { .. }) => "unknown",
            Err(_) => "refused",
        };
        self.metrics
            .upstream
            .with_label_values(&["ron-ledger", "commit", outcome])
            .inc();
        match called {
            Ok(answer) if answer.results.len() == jobs.len() => {
                for (job, result) in jobs.into_iter().zip(answer.results) {
                    self.settle(job, result);
                }
            }
            Ok(_) => self.unknown(jobs),
            Err(error) => {
                self.km
                    .upstream_fail
                    .with_label_values(&["ron-ledger"])
                    .inc();
                tracing::warn!(service = "svc-wallet", event = "ledger_call_failed", why = %error);
                match error {
                    ClientError::Unknown { .. } => self.unknown(jobs),
                    _ => {
                        for job in jobs {
                            self.answer(
                                job,
                                Problem::unavailable(
                                    "the ledger does not take writes now; nothing changed",
                                    2,
                                ),
                            );
                        }
                    }
                }
            }
        }
    }

    fn settle(&self, job: CommitJob, result: EntryAnswer) {
        if let Some((principal, key)) = job.entry.principal_key() {
            self.pinned.release(principal, key);
        }
        let replayed = match &result {
            EntryAnswer::Done { replayed, .. } | EntryAnswer::Refused { replayed, .. } => *replayed,
        };
        if replayed {
            self.metrics.replays.inc();
        }
        let mut response: Response = match result {
            EntryAnswer::Done { receipt, .. } => Response::json(200, &receipt),
            EntryAnswer::Refused { code, expected, .. } => {
                if code == RefusalCode::NonceConflict {
                    self.metrics.nonce_conflicts.inc();
                }
                self.metrics
                    .rejects
                    .with_label_values(&[code.as_str()])
                    .inc();
                refusal(code, expected.filter(|_| job.reads_account)).into()
            }
        };
        if replayed {
            response = response.header("Idempotency-Replayed", "true");
        }
        self.answer(job, response);
    }

    /// The outcome stays open until the ledger tells it: the keys are pinned, the callers are sent
    /// to where they can ask.
    fn unknown(&self, jobs: Vec<CommitJob>) {
        for job in jobs {
            let Some((principal, key)) = job.entry.principal_key() else {
                continue;
            };
            self.pinned.pin(principal, key);
            let location = format!("/v1/ops/{}", key.as_str());
            let problem = Problem::deadline_exceeded(
                "the outcome is not known yet: ask at the Location, or send the same request with the same key again",
            );
            self.answer(job, problem.with_location(location));
        }
    }

    fn answer(&self, job: CommitJob, response: impl Into<Response>) {
        let took = self.clock.now().saturating_duration_since(job.since);
        self.metrics
            .op_seconds
            .with_label_values(&[job.op])
            .observe(took.as_secs_f64());
        self.metrics.inflight.with_label_values(&[job.op]).dec();
        job.responder.send(response);
    }
}

/// The problem a refusal becomes.
pub fn refusal(code: RefusalCode, expected: Option<u64>) -> Problem {
    let (status, title) = match code {
        RefusalCode::LimitsExceeded => (403, "Limit exceeded"),
        RefusalCode::AccountFrozen => (403, "Account frozen"),
        RefusalCode::ReservedAccount => (403, "Reserved account"),
        RefusalCode::IdempotencyMismatch => {
            return Problem::idempotency_mismatch(
                "the key was used for another request; take a new key",
            );
        }
        RefusalCode::InsufficientFunds => (409, "Insufficient funds"),
        RefusalCode::NonceConflict => (409, "Nonce conflict"),
        _ => (409, "Refused by the ledger"),
    };
    let problem = Problem::new(status, code.as_str(), title, code.meaning());
    match expected {
        Some(nonce) => problem.with_details(serde_json::json!({ "expected": nonce })),
        None => problem,
    }
}

/// What the wallet uses of a caller's name; the ledger knows callers by it.
pub fn principal_name(name: &str) -> Result<PrincipalName, Problem> {
    name.parse().map_err(|_| {
        Problem::forbidden(
            "the token's subject is longer than the 160 characters a ledger principal may have",
        )
    })
}

/// The caller's key as the ledger stores it.
pub fn entry_key(key: &ron_proto::IdemKey) -> Result<EntryKey, Problem> {
    key.to_string()
        .parse()
        .map_err(|_| Problem::bad_request("the idempotency key is not usable"))
}
