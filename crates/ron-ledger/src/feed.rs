//! The event feed: parks long polls until there is an entry after their position, or until their
//! deadline.

use std::time::Duration;

use ron_http::{Responder, Response};
use ron_kernel::{Deadline, Receiver, Recv, RecvEither, SendError, Sender, ThreadCtx};
use ron_proto::Problem;

use crate::ledger::Ledger;
use crate::metrics::Metrics;

/// Default and maximum events of one page; with their receipts they stay well under 1 MiB.
pub const PAGE: u64 = 500;

/// A message to the feed thread.
pub enum FeedMessage {
    /// A new long poll.
    Poll(Poll),
    /// A polling client has disconnected.
    Gone,
}

pub struct Poll {
    pub responder: Responder,
    pub after: u64,
    pub limit: u64,
    /// When to answer with an empty page.
    pub until: Deadline,
}

/// Reads one page and renders the response, without waiting.
pub fn page(ledger: &Ledger, after: u64, limit: u64) -> Result<Response, Problem> {
    let page = ledger.events(after, limit).map_err(|e| {
        tracing::error!(event = "log_read_failed", error = %e);
        Problem::internal("the log cannot be read")
    })?;
    Ok(Response::json(200, &page))
}

/// The handlers' side of the feed: parks polls.
#[derive(Clone)]
pub struct Feed {
    polls: Sender<FeedMessage>,
}

impl Feed {
    pub const fn new(polls: Sender<FeedMessage>) -> Self {
        Self { polls }
    }

    /// Parks a poll; 429 when too many are parked.
    pub fn park(&self, poll: Poll) {
        let polls = self.polls.clone();
        poll.responder.on_gone(move || {
            let _ = polls.try_send(FeedMessage::Gone); // full: the next event finds it
        });
        match self.polls.try_send(FeedMessage::Poll(poll)) {
            Err(SendError::Full(FeedMessage::Poll(p))) => {
                p.responder.send(Problem::busy(self.polls.retry_after_s()));
            }
            Err(SendError::Closed(FeedMessage::Poll(p))) => p.responder.send(Problem::draining(1)),
            _ => {}
        }
    }
}

/// The thread's body. At a shutdown every parked poll is answered.
pub fn run(
    ctx: &ThreadCtx,
    polls: &Receiver<FeedMessage>,
    notifications: &Receiver<()>,
    ledger: &Ledger,
    metrics: &Metrics,
) {
    let mut waiting: Vec<Poll> = Vec::new();
    while !ctx.shutdown.is_set() {
        match polls.recv_either(notifications, &ctx.shutdown, earliest_deadline(&waiting)) {
            RecvEither::First(ask) => take(ask, &mut waiting),
            RecvEither::Second(()) | RecvEither::Timeout => {}
            RecvEither::Shutdown | RecvEither::Closed => break,
        }
        while let Some(ask) = polls.try_recv() {
            take(ask, &mut waiting);
        }
        waiting.retain(|poll| !poll.responder.is_gone());
        waiting = answer_due(waiting, ledger);
        metrics
            .polls
            .set(i64::try_from(waiting.len()).unwrap_or(i64::MAX));
    }
    while let Some(ask) = polls.try_recv() {
        take(ask, &mut waiting);
    }
    for poll in waiting {
        answer(poll, ledger);
    }
}

fn take(ask: FeedMessage, waiting: &mut Vec<Poll>) {
    if let FeedMessage::Poll(poll) = ask {
        waiting.push(poll);
    } // `run` drops disconnected polls after every event
}

fn earliest_deadline(waiting: &[Poll]) -> Deadline {
    let idle = Deadline::within(Duration::from_secs(60));
    waiting
        .iter()
        .fold(idle, |soonest, p| soonest.earlier(p.until))
}

/// Answers the polls that have new entries or whose deadline is reached; returns the others.
fn answer_due(waiting: Vec<Poll>, ledger: &Ledger) -> Vec<Poll> {
    let head = ledger.head_seq();
    let mut rest = Vec::with_capacity(waiting.len());
    for poll in waiting {
        if head > poll.after || poll.until.expired() {
            answer(poll, ledger);
        } else {
            rest.push(poll);
        }
    }
    rest
}

fn answer(poll: Poll, ledger: &Ledger) {
    match page(ledger, poll.after, poll.limit) {
        Ok(response) => poll.responder.send(response),
        Err(problem) => poll.responder.send(problem),
    }
}

/// Waits for new entries, at most `at_most`; true at shutdown. Used by the projection.
pub fn wait_new_entries(ctx: &ThreadCtx, notifications: &Receiver<()>, at_most: Duration) -> bool {
    matches!(
        notifications.recv(&ctx.shutdown, Deadline::within(at_most)),
        Recv::Shutdown | Recv::Closed
    )
}
