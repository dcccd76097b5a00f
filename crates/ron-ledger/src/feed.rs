//! The event feed: parks long polls until there is an entry after their position, or until their
//! deadline.

use std::time::Duration;

use ron_http::{Responder, Response};
use ron_kernel::{Deadline, Receiver, Recv, RecvEither, SendError, Sender, ThreadCtx};
use ron_proto::Problem;
use ron_proto::ledger::EventPage;

use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::reader::Reader;

/// Default and maximum events of one page: usually below 1 MiB, with the longest texts and budgets 5.5 MB, which clients
/// must accept.
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
    /// Determines which entries the answer has.
    pub reader: Reader,
    pub after: u64,
    pub limit: u64,
    /// When to answer with an empty page.
    pub until: Deadline,
}

impl Poll {
    /// Answers, or returns the poll when there is nothing to answer yet: no entry that the reader
    /// sees up to the head, and time left. Reads one page at most.
    pub fn answer_or_wait(mut self, ledger: &Ledger) -> Option<Self> {
        match self.page(ledger) {
            Ok(page)
                if page.events.is_empty()
                    && page.next == page.head
                    && page.next >= self.after
                    && !self.until.expired() =>
            {
                self.after = page.next;
                return Some(self);
            }
            Ok(page) => self.responder.send(Response::json(200, &page)),
            Err(problem) => self.responder.send(problem),
        }
        None
    }

    fn answer(self, ledger: &Ledger) {
        match self.page(ledger) {
            Ok(page) => self.responder.send(Response::json(200, &page)),
            Err(problem) => self.responder.send(problem),
        }
    }

    /// The entries of one page of the log that the reader sees.
    fn page(&self, ledger: &Ledger) -> Result<EventPage, Problem> {
        let mut page = ledger.events(self.after, self.limit).map_err(|e| {
            tracing::error!(event = "log_read_failed", error = %e);
            Problem::internal("the log cannot be read")
        })?;
        page.events.retain(|event| self.reader.sees(&event.entry));
        Ok(page)
    }
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
        poll.answer(ledger);
    }
    metrics.polls.set(0);
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
    let still_waits = |poll: Poll| {
        if head > poll.after || poll.until.expired() {
            poll.answer_or_wait(ledger)
        } else {
            Some(poll)
        }
    };
    waiting.into_iter().filter_map(still_waits).collect()
}

/// Waits for new entries, at most `at_most`; true at shutdown. Used by the projection.
pub fn wait_new_entries(ctx: &ThreadCtx, notifications: &Receiver<()>, at_most: Duration) -> bool {
    matches!(
        notifications.recv(&ctx.shutdown, Deadline::within(at_most)),
        Recv::Shutdown | Recv::Closed
    )
}
