//! The ledger as a dependency: bounded retries, a circuit breaker, and a clock on every in-flight
//! call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ron_client::{ClientError, LedgerClient};
use ron_kernel::{
    Backoff, Breaker, BreakerLimits, Deadline, SharedClock, SharedRandom, Shutdown,
    ShutdownTrigger, Snapshot,
};
use ron_proto::Problem;
use ron_proto::ledger::{Closed, ClosedCause, CommitAnswer, CommitRequest, Entry, LEDGER_CLOSED};

use crate::errors::retry_later;
use crate::metrics::Metrics;

/// Maximum time of one attempt.
const TRY_MAX: Duration = Duration::from_secs(1);
/// Up to so much is added to each pause between attempts, so that committers do not retry in step.
const JITTER: Duration = Duration::from_millis(20);
/// The detail while the breaker is open.
const BREAKER_OPEN: &str = "the ledger failed too often; no call is sent to it for a while";

/// The outcome of a commit.
#[derive(Debug)]
pub enum Committed {
    /// The ledger answered every entry.
    Answered(CommitAnswer),
    /// Nothing was committed; the problem for the callers.
    NotDone(Problem),
    /// It may have been committed.
    Unknown(String),
}

/// In-flight calls: when the call of each slot began, in microseconds since `zero`, 0 for none; and
/// when the ledger last answered. The slots are independent words, written with release and read
/// with acquire, so that the watch thread needs no lock.
#[derive(Debug)]
struct Clocks {
    slots: Vec<AtomicU64>,
    heard: AtomicU64,
    zero: Instant,
}

impl Clocks {
    fn new(slots: usize, zero: Instant) -> Self {
        Self {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            heard: AtomicU64::new(0),
            zero,
        }
    }

    fn us(&self, t: Instant) -> u64 {
        let us = t.saturating_duration_since(self.zero).as_micros();
        u64::try_from(us).unwrap_or(u64::MAX).max(1)
    }

    fn begin(&self, slot: usize, now: Instant) {
        self.slots[slot].store(self.us(now), Ordering::Release);
    }

    /// Ends the call; `answered` when the ledger sent a response.
    fn end(&self, slot: usize, now: Instant, answered: bool) {
        if answered {
            self.heard.fetch_max(self.us(now), Ordering::AcqRel);
        }
        self.slots[slot].store(0, Ordering::Release);
    }

    /// When the oldest in-flight call began.
    fn oldest(&self) -> Option<Instant> {
        let begun = |slot: &AtomicU64| match slot.load(Ordering::Acquire) {
            0 => None,
            us => Some(self.zero + Duration::from_micros(us)),
        };
        self.slots.iter().filter_map(begun).min()
    }

    fn age(&self, now: Instant) -> Duration {
        let age = |t| now.saturating_duration_since(t);
        self.oldest().map_or(Duration::ZERO, age)
    }

    /// Time without an answer while a call is in flight: since the last answer, or since the oldest
    /// call began.
    fn time_without_answer(&self, now: Instant) -> Duration {
        let heard = self.zero + Duration::from_micros(self.heard.load(Ordering::Acquire));
        let since = |t: Instant| now.saturating_duration_since(t.max(heard));
        self.oldest().map_or(Duration::ZERO, since)
    }

    /// Time until the ledger counts as stalled, if it answers nothing until then. A call that begins later does not
    /// shorten it.
    fn stalls_within(&self, now: Instant, after: StalledAfter) -> Duration {
        let silent = after.silent.saturating_sub(self.time_without_answer(now));
        silent.min(after.hangs.saturating_sub(self.age(now)))
    }
}

/// When a ledger with an in-flight call counts as stalled.
#[derive(Debug, Clone, Copy)]
pub struct StalledAfter {
    /// It has answered nothing for this long.
    pub silent: Duration,
    /// One call has been in flight for this long, even if others are answered.
    pub hangs: Duration,
}

/// How often a commit is tried.
#[derive(Debug, Clone, Copy)]
pub struct Attempts {
    /// Maximum attempts, at least 1.
    pub tries: u32,
    /// The pause after the first attempt; each is twice the one before.
    pub base: Duration,
    /// No pause is longer than this.
    pub cap: Duration,
}

/// What an operator has set for calls to the ledger.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    pub stalled_after: StalledAfter,
    pub attempts: Attempts,
    pub breaker: BreakerLimits,
}

/// The ledger and its health.
#[derive(Debug)]
pub struct Upstream {
    /// Client for reads; commits go through [`Upstream::commit`].
    pub client: LedgerClient,
    breaker: Breaker,
    clocks: Clocks,
    clock: SharedClock,
    random: SharedRandom,
    metrics: Metrics,
    stalled_after: StalledAfter,
    attempts: Attempts,
    /// The last probe failed.
    unavailable: AtomicBool,
    /// The node of the ledger that a probe last found active; only the probe uses it.
    node: AtomicUsize,
    /// The ledger reports that it writes nothing: until an operator has intervened, or until one of its
    /// nodes is active.
    closed: Snapshot<Option<Closed>>,
    // Never fires; only its timed wait is used, for the pauses between attempts.
    idle: (ShutdownTrigger, Shutdown),
}

impl Upstream {
    /// A ledger with `slots` callers whose calls are timed.
    pub fn new(
        client: LedgerClient,
        slots: usize,
        limits: CallLimits,
        clock: SharedClock,
        random: SharedRandom,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            breaker: Breaker::new(limits.breaker),
            clocks: Clocks::new(slots, clock.now()),
            clock,
            random,
            metrics,
            stalled_after: limits.stalled_after,
            attempts: limits.attempts,
            unavailable: AtomicBool::new(true),
            node: AtomicUsize::new(0),
            closed: Snapshot::new(None),
            idle: Shutdown::pair(),
        }
    }

    /// Commits: a bounded number of attempts of at most one second each, all idempotent. `slot`
    /// belongs to the calling thread.
    pub fn commit(&self, slot: usize, request: &CommitRequest<&Entry>) -> Committed {
        let Attempts {
            tries: most,
            base,
            cap,
        } = self.attempts;
        let mut backoff = Backoff::new(base, cap, JITTER, self.random.u64());
        let mut open: Option<String> = None;
        let mut tries = 0;
        loop {
            if self.breaker.allow(self.clock.now()).is_err() {
                self.count("commit", "breaker_open");
                let not_done = || {
                    Committed::NotDone(
                        self.closed_problem()
                            .unwrap_or_else(|| retry_later(BREAKER_OPEN)),
                    )
                };
                return open.map_or_else(not_done, Committed::Unknown);
            }
            tries += 1;
            let by = Deadline::within(TRY_MAX);
            let done = self.watched(slot, by, || self.client.commit_once(request, by));
            match done {
                Ok(answer) if answer.results.len() == request.entries.len() => {
                    return Committed::Answered(answer);
                }
                Ok(_) => {
                    open = Some("the ledger answered a different number of entries".to_owned());
                }
                Err(ClientError::Unknown { detail, .. }) => open = Some(detail),
                // A retry is useless until an operator has intervened.
                Err(e) if open.is_none() && e.code() == Some(LEDGER_CLOSED) => {
                    let known = self.closed_problem();
                    return Committed::NotDone(known.unwrap_or_else(|| closed_of(&e)));
                }
                Err(e) if open.is_none() && (tries >= most || !e.retryable()) => {
                    return Committed::NotDone(not_taken(&e));
                }
                Err(_) => {}
            }
            match open {
                Some(why) if tries >= most => return Committed::Unknown(why),
                _ => {}
            }
            self.metrics.retried("commit");
            self.idle.1.wait(Deadline::within(backoff.next_pause()));
        }
    }

    /// One timed call; its outcome counts for the breaker.
    pub fn watched<T>(
        &self,
        slot: usize,
        by: Deadline,
        call: impl FnOnce() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.clocks.begin(slot, self.clock.now());
        let done = call();
        self.clocks.end(slot, self.clock.now(), answered(&done));
        let outcome = match &done {
            Ok(_) => "done",
            Err(ClientError::Unknown { .. }) => "unknown",
            Err(ClientError::NotSent { .. }) => "not_sent",
            Err(ClientError::Refused { .. }) => "refused",
        };
        self.count("commit", outcome);
        let alive = alive(&done);
        if !alive {
            self.metrics.ledger_failed("commit", by.expired());
        }
        self.breaker.record(self.clock.now(), alive);
        self.show_breaker();
        done
    }

    fn show_breaker(&self) {
        self.metrics
            .breaker
            .with_label_values(&["ron-ledger"])
            .set(self.breaker.level());
    }

    /// Probes whether the ledger answers at all; a timed call.
    pub fn probe(&self, slot: usize) -> Result<(), ClientError> {
        self.clocks.begin(slot, self.clock.now());
        let by = Deadline::within(TRY_MAX);
        let done = self.client.active_head(by);
        self.clocks.end(slot, self.clock.now(), answered(&done));
        self.unavailable.store(done.is_err(), Ordering::Release);
        if !alive(&done) {
            self.metrics.ledger_failed("probe", by.expired());
        }
        if let Ok(found) = &done {
            let closed = found.head.closed.as_ref();
            self.note_closed(closed);
            // The failures were those of the node that was active before.
            if closed.is_none() && self.node.swap(found.node, Ordering::Relaxed) != found.node {
                self.breaker.reset();
                self.show_breaker();
            }
        }
        // While writes are refused, only the probe can close the breaker again.
        if self.breaker.level() != 0 && self.breaker.allow(self.clock.now()).is_ok() {
            self.breaker.record(self.clock.now(), done.is_ok());
            self.show_breaker();
        }
        done.map(drop)
    }

    /// Stores what the ledger reports about itself: it opens again only by a restart.
    fn note_closed(&self, now: Option<&Closed>) {
        if self.closed.with(|known| known.as_ref() != now) {
            self.closed.store(now.cloned());
        }
    }

    fn closed_problem(&self) -> Option<Problem> {
        self.closed.with(|known| known.as_ref().map(closed_ledger))
    }

    /// Time until the ledger is silent or a call hangs, if it answers nothing until then; zero when it does. Computed
    /// from the clocks on every call, so that one answer ends the stall at once.
    pub fn stalls_within(&self) -> Duration {
        self.clocks
            .stalls_within(self.clock.now(), self.stalled_after)
    }

    /// Why the ledger cannot be read now; `None` when it can.
    pub fn unreachable(&self) -> Option<&'static str> {
        if self.stalls_within().is_zero() {
            Some("the ledger does not answer in time")
        } else if self.unavailable.load(Ordering::Acquire) {
            Some("the ledger cannot be reached")
        } else {
            None
        }
    }

    /// Why the ledger takes no writes now, as the problem for the caller; `None` when it does. It
    /// cannot be reached, it reports that it is closed (its disk is full; it still answers reads),
    /// or its failures have opened the breaker.
    pub fn trouble(&self) -> Option<Problem> {
        let open = || (self.breaker.level() == 2).then(|| retry_later(BREAKER_OPEN));
        let unavailable = self.unreachable().map(retry_later);
        unavailable.or_else(|| self.closed_problem()).or_else(open)
    }

    fn count(&self, op: &'static str, outcome: &'static str) {
        self.metrics
            .upstream
            .with_label_values(&["ron-ledger", op, outcome])
            .inc();
    }
}

/// The refusal of a ledger that takes no writes for the moment. One that is busy, or whose projection
/// is far behind, slows the wallet's callers as it slows its own.
fn not_taken(e: &ClientError) -> Problem {
    if let ClientError::Refused {
        status: 429,
        problem,
        retry_after_s,
    } = e
    {
        let mut busy = Problem::busy(retry_after_s.unwrap_or(1));
        busy.detail = format!("the ledger: {}", problem.detail);
        return busy;
    }
    retry_later(format!(
        "the ledger does not take writes now; nothing changed: {e}"
    ))
}

/// The refusal while the ledger is closed. Callers of a wallet are not told which node of the ledger
/// is active.
fn closed_ledger(closed: &Closed) -> Problem {
    if closed.cause == ClosedCause::NotActive {
        return retry_later("no node of the ledger writes at the moment; nothing was done");
    }
    closed.problem()
}

/// The refusal of a closed ledger, with the ledger's own detail.
fn closed_of(e: &ClientError) -> Problem {
    let ClientError::Refused { problem, .. } = e else {
        return retry_later(e.to_string());
    };
    let closed = Problem::new(
        503,
        LEDGER_CLOSED,
        "The ledger cannot write",
        problem.detail.clone(),
    );
    let closed = match &problem.details {
        Some(details) => closed.with_details(details.clone()),
        None => closed,
    };
    closed.with_retry_after(10)
}

/// Whether the ledger sent any response.
const fn answered<T>(done: &Result<T, ClientError>) -> bool {
    matches!(done, Ok(_) | Err(ClientError::Refused { .. }))
}

/// Whether the call counts as a success for the breaker: a refusal does, a timeout or a server
/// error does not.
const fn alive<T>(done: &Result<T, ClientError>) -> bool {
    match done {
        Ok(_) => true,
        Err(ClientError::Refused { status, .. }) => *status < 500,
        Err(_) => false,
    }
}

pub type SharedUpstream = Arc<Upstream>;

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
