//! Follows the ledger's events: marks changed balances, copies answers, releases unresolved keys. A
//! gap in the sequence means that events were missed, and then every balance is marked as changed.
//!
//! While the wallet itself writes, the feed does not wait for each event: it takes the wallet's own entries from the
//! committers and asks the ledger from time to time for those between and after them.

use std::sync::Arc;
use std::time::Duration;

use ron_client::{ClientError, LedgerClient};
use ron_kernel::{Deadline, ThreadCtx};
use ron_proto::ledger::{Event, EventPage, RequestKey};
use ron_service::lag::{FollowerLag, follower_pause};

use crate::answers::{Answers, AnswersError, AnswersReader};
use crate::balances::Balances;
use crate::events::Watched;
use crate::metrics::Metrics;
use crate::own::{OwnEntries, OwnEvents};
use crate::render::touched;
use crate::unresolved::UnresolvedKeys;

/// How long the ledger holds the long poll open, and the maximum time of the call.
const WAIT: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(7);
// Pause after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Maximum events of a page. A full page means that more are waiting; then the feed pauses, at most
/// for `FULL_PAGE_PAUSE`, to leave the CPU to the committers: the copy may lag a little.
const PAGE: usize = 500;
const FULL_PAGE_PAUSE: Duration = Duration::from_millis(40);
/// The same while the wallet writes: shorter than any restart of a ledger, so that one is always noticed.
const OWN_PAUSE: Duration = Duration::from_millis(20);
/// How often the ledger is asked about unresolved keys, and about how many. Most are released by their
/// event; the event of some came before the key was recorded.
const RECHECK: Duration = Duration::from_secs(1);
const RECHECK_KEYS: usize = 32;

/// The caches that follow the feed.
#[derive(Debug)]
pub struct Feed {
    /// Client with its own connections, which the watch thread closes when the service drains.
    pub ledger: LedgerClient,
    pub balances: Arc<Balances>,
    pub unresolved: Arc<UnresolvedKeys>,
    /// Accounts that long polls wait for.
    pub watched: Arc<Watched>,
    /// What the wallet's own commits were answered.
    pub own: OwnEntries,
    /// Readers of the copy of answers; they also know its directory.
    pub answers: AnswersReader,
    /// Maximum entries of the copy.
    pub keep: u64,
    /// How far this thread is behind the ledger.
    pub lag: Arc<FollowerLag>,
    pub metrics: Metrics,
}

/// Why the feed stopped.
#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error(transparent)]
    Call(#[from] ClientError),
    #[error(transparent)]
    Answers(#[from] AnswersError),
    #[error("the ledger is at entry {head}, which is before entry {applied}: it is another ledger")]
    WentBack { head: u64, applied: u64 },
    #[error("the ledger has another entry {0} than the copy: it was restored to an earlier state")]
    Diverged(u64),
    #[error("a standby of the ledger is at entry {head}, and the wallet at entry {applied}")]
    Behind { head: u64, applied: u64 },
}

/// Whether a page requested after entry `after` lacks entries, inside or at its end.
pub fn gap(page: &EventPage, after: u64) -> bool {
    let follows = |(i, e): (usize, &Event)| e.seq == after + 1 + i as u64;
    let whole = page.next == after + page.events.len() as u64;
    !(whole && page.events.iter().enumerate().all(follows))
}

impl Feed {
    /// The thread's body: follows the feed and restarts it after an error.
    pub fn run(&self, ctx: &ThreadCtx) {
        let mut copy = None;
        while !ctx.shutdown.is_set() {
            let Err(why) = self.follow(ctx, &mut copy) else {
                return;
            };
            if ctx.shutdown.is_set() {
                return;
            }
            tracing::debug!(event = "feed_interrupted", reason = %why);
            match why {
                FeedError::Call(_) | FeedError::Behind { .. } => {
                    self.metrics.feed_failed();
                    self.lag.begun();
                }
                FeedError::Answers(_) => copy = None,
                FeedError::WentBack { .. } | FeedError::Diverged(_) => {
                    tracing::warn!(event = "feed_restarted", reason = %why);
                    self.metrics.feed_gaps.inc();
                    self.balances.clear();
                    continue; // no pause: until the restart the copy still serves entries that the ledger has lost
                }
            }
            ctx.shutdown.wait(Deadline::within(RETRY_PAUSE));
        }
    }

    fn follow(&self, ctx: &ThreadCtx, copy: &mut Option<Answers>) -> Result<(), FeedError> {
        if copy.is_none() {
            *copy = Answers::open(&self.answers, self.keep)?;
        }
        let mut own = self.own.restart();
        let head = self.ledger.active_head(Deadline::within(CALL))?.head;
        if let Some(copy) = copy {
            let applied = copy.applied();
            // What a standby does not have yet says nothing of the ledger.
            if head.is_of_standby() && head.seq < applied {
                let head = head.seq;
                return Err(FeedError::Behind { head, applied });
            }
            let mut another = copy.of_ledger(&head.origin, head.seq)?;
            if !another && self.has_diverged(copy)? {
                copy.start_over(&head.origin, head.seq)?;
                another = true;
            }
            if another {
                self.metrics.feed_gaps.inc();
                tracing::warn!(
                    event = "answers_rebuilt",
                    reason = "the copy belongs to another ledger, or the ledger was restored to an earlier state"
                );
                self.balances.clear();
            }
        }
        // Changes before this moment may have gone unseen: no cached balance counts as fresh.
        self.balances.all_changed();
        self.watched.all_changed();
        let mut applied = copy.as_ref().map_or(head.seq, Answers::applied);
        self.metrics.feed_seq.set(gauged(applied));
        let mut rechecked = (None, Deadline::within(RECHECK));
        while !ctx.shutdown.is_set() {
            let writes = self.take_own(&mut own, &mut applied, copy.as_mut())?;
            let page = self.next_page(applied, writes, copy.as_ref())?;
            if gap(&page, applied) {
                self.metrics.feed_gaps.inc();
                tracing::warn!(event = "feed_gap", after = applied);
                self.balances.all_changed();
                self.watched.all_changed();
            }
            self.take(&page.events, copy.as_mut())?;
            applied = page.next;
            let lag = page.head.saturating_sub(applied);
            let newest = page.events.last().map(|event| event.ts);
            self.lag.applied(newest, lag);
            self.metrics.feed_seq.set(gauged(applied));
            if lag == 0 {
                self.recheck(&mut rechecked)?;
            }
            if page.events.len() >= PAGE {
                let pause = follower_pause(FULL_PAGE_PAUSE, lag);
                ctx.shutdown.wait(Deadline::within(pause));
            } else if writes {
                ctx.shutdown.wait(Deadline::within(OWN_PAUSE));
            }
        }
        Ok(())
    }

    /// Applies the wallet's own entries that follow the last one; true when the wallet has written since the last look.
    fn take_own(
        &self,
        own: &mut OwnEvents<'_>,
        applied: &mut u64,
        copy: Option<&mut Answers>,
    ) -> Result<bool, FeedError> {
        let gathered = own.gather(*applied);
        if let (Some(passed), Some(copy)) = (&gathered.passed, &copy)
            && !copy.agrees(passed)
        {
            return Err(FeedError::Diverged(passed.seq));
        }
        self.take(&gathered.following, copy)?;
        *applied += gathered.following.len() as u64;
        Ok(gathered.any)
    }

    /// The ledger's entries after `applied`: waits for the first, unless the wallet `writes`. Then entry `applied` is read
    /// again instead, because a ledger that was restored and written to since shows itself only by another one.
    fn next_page(
        &self,
        applied: u64,
        writes: bool,
        copy: Option<&Answers>,
    ) -> Result<EventPage, FeedError> {
        let wait = match self.unresolved.len() {
            _ if writes => Duration::ZERO,
            0 => WAIT,
            _ => RECHECK,
        };
        let again = writes && applied > 0;
        let after = applied - u64::from(again);
        let mut page = self.ledger.events(after, wait, Deadline::within(CALL))?;
        if page.head < applied {
            let head = page.head;
            return Err(FeedError::WentBack { head, applied });
        }
        if again && page.events.first().is_some_and(|e| e.seq == applied) {
            let theirs = page.events.remove(0);
            if copy.is_some_and(|copy| !copy.agrees(&theirs)) {
                return Err(FeedError::Diverged(applied));
            }
        }
        Ok(page)
    }

    /// Whether the ledger has a different entry at the last sequence of the copy.
    fn has_diverged(&self, copy: &Answers) -> Result<bool, FeedError> {
        let Some(before) = copy.applied().checked_sub(1) else {
            return Ok(false);
        };
        let page = self
            .ledger
            .events(before, Duration::ZERO, Deadline::within(CALL))?;
        let theirs = page.events.first();
        Ok(theirs.is_some_and(|theirs| !copy.agrees(theirs)))
    }

    /// Releases those of the next unresolved keys that the ledger has. A key that the ledger does not
    /// have stays: its request may still arrive, and only its caller gives it up.
    fn recheck(&self, (last, due): &mut (Option<RequestKey>, Deadline)) -> Result<(), FeedError> {
        if !due.expired() {
            return Ok(());
        }
        *due = Deadline::within(RECHECK);
        for _ in 0..RECHECK_KEYS.min(self.unresolved.len()) {
            *last = self.unresolved.next(last.as_ref());
            let Some(key) = last else { return Ok(()) };
            match self.ledger.by_key(key, Deadline::within(CALL)) {
                Ok(_) => self.unresolved.release(key),
                Err(ClientError::Refused { status: 404, .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn take(&self, events: &[Event], copy: Option<&mut Answers>) -> Result<(), FeedError> {
        if events.is_empty() {
            return Ok(());
        }
        self.watched.note(events);
        let any = self.unresolved.len() > 0;
        for event in events {
            self.balances.changed(touched(event), event.seq);
            if any && let Some(key) = event.entry.request_key() {
                self.unresolved.release(&key);
            }
        }
        if let Some(copy) = copy {
            copy.take(events)?;
        }
        Ok(())
    }
}

fn gauged(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::Timestamp;
    use ron_proto::ledger::{Entry, EntryAnswer};

    fn page(seqs: &[u64], next: u64) -> EventPage {
        let event = |seq: &u64| Event {
            seq: *seq,
            ts: Timestamp(0),
            entry: Entry::Abandon {
                tenant: "t".parse().unwrap(),
                principal: "p".parse().unwrap(),
                key: format!("k{seq}").parse().unwrap(),
            },
            answer: EntryAnswer::Refused {
                code: ron_proto::ledger::RefusalCode::Abandoned,
                seq: Some(*seq),
                expected: None,
                paid_by: None,
                replayed: false,
            },
        };
        EventPage {
            events: seqs.iter().map(event).collect(),
            next,
            head: 9,
        }
    }

    #[test]
    fn a_missing_or_doubled_entry_is_a_gap() {
        assert!(!gap(&page(&[], 4), 4));
        assert!(!gap(&page(&[5, 6, 7], 7), 4));
        for bad in [&[6, 7][..], &[5, 7], &[5, 5, 6], &[4, 5], &[5, 6, 8]] {
            let last = bad.last().copied().unwrap_or(4);
            assert!(gap(&page(bad, last), 4), "{bad:?}");
        }
        assert!(gap(&page(&[], 5), 4), "all of a page");
        assert!(gap(&page(&[5], 6), 4), "its end");
    }
}
