//! Long polls for the events of an account. The feed notes which accounts changed; a thread asks the
//! ledger for the entries of those that a poll waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use ron_client::ClientError;
use ron_http::{Responder, Response};
use ron_kernel::{Deadline, RankedMutex, Receiver, RecvEither, Sender, ThreadCtx};
use ron_proto::ledger::{EntrySearch, Event, Viewer};
use ron_proto::wallet::AccountEvents;
use ron_proto::{Account, Problem};

use crate::render::{code_of, shown, touched};
use crate::topology::{EVENTS_QUEUE, WATCHED};
use crate::upstream::SharedUpstream;

/// Maximum time of one call to the ledger.
const CALL: Duration = Duration::from_secs(1);
/// Pause before the ledger is asked again for an account whose newest entry its history lacks.
const AGAIN: Duration = Duration::from_millis(20);

/// A request for the events of an account.
pub struct EventPoll {
    pub account: Account,
    /// The caller, which sees the texts of its own entries.
    pub viewer: Viewer,
    pub after: u64,
    /// Maximum entries of the answer.
    pub limit: u64,
    /// When to answer without events.
    pub until: Deadline,
    /// The newest entry that may have changed the account; a new poll does not know one and has the
    /// maximum.
    pub newest: u64,
    pub responder: Responder,
}

/// The accounts that polls wait for, each with its newest entry since the thread of the polls last
/// looked. The feed writes the entries, the thread decides which accounts there are.
#[derive(Debug)]
pub struct Watched {
    newest: RankedMutex<BTreeMap<Account, u64>>,
    changed: Sender<()>,
}

impl Watched {
    pub fn new(changed: Sender<()>) -> Self {
        Self {
            newest: RankedMutex::new(&WATCHED, BTreeMap::new()),
            changed,
        }
    }

    /// Notes the accounts of new entries.
    pub fn note(&self, events: &[Event]) {
        let mut any = false;
        {
            let mut newest = self.newest.lock();
            if newest.is_empty() {
                return;
            }
            for event in events {
                for account in touched(event) {
                    if let Some(seq) = newest.get_mut(account) {
                        *seq = event.seq;
                        any = true;
                    }
                }
            }
        }
        if any {
            self.wake();
        }
    }

    /// Every account may have changed: entries were missed.
    pub fn all_changed(&self) {
        let all = |seq: &mut u64| *seq = u64::MAX;
        self.newest.lock().values_mut().for_each(all);
        self.wake();
    }

    /// Makes the thread look at its polls.
    pub fn wake(&self) {
        let _ = self.changed.try_send(()); // one pending notification is enough
    }

    /// Gives the polls what was noted, and watches their accounts and no others.
    fn take(&self, polls: &mut [EventPoll]) {
        let mut newest = self.newest.lock();
        let before = std::mem::take(&mut *newest);
        for poll in polls {
            let noted = before.get(&poll.account).copied().unwrap_or(0);
            poll.newest = poll.newest.max(noted);
            newest.insert(poll.account.clone(), 0);
        }
    }
}

/// The entries of an account that took effect after a sequence, and the ledger's last sequence,
/// which its history may lag behind.
pub fn read(
    upstream: &SharedUpstream,
    account: &Account,
    viewer: &Viewer,
    (after, limit): (u64, u64),
    by: Deadline,
) -> Result<(AccountEvents, u64), ClientError> {
    let search = EntrySearch {
        account: Some(account.clone()),
        after: Some(after),
        limit,
        ..EntrySearch::default()
    };
    let page = upstream.client.entries(&search, by)?;
    let found = page.entries.into_iter().rev().map(|found| found.event);
    let done = found.filter(|event| code_of(&event.answer).is_none());
    let found = AccountEvents {
        account: account.clone(),
        events: done.map(|event| shown(event, viewer, account)).collect(),
        next: page.newer.max(after),
    };
    Ok((found, page.head))
}

/// The thread's body. At a shutdown every poll is answered.
pub fn run(
    ctx: &ThreadCtx,
    queue: &Receiver<EventPoll>,
    changed: &Receiver<()>,
    watched: &Watched,
    upstream: &SharedUpstream,
) {
    let mut waiting: Vec<EventPoll> = Vec::new();
    let mut again = false;
    while !ctx.shutdown.is_set() {
        let idle = Deadline::within(if again {
            AGAIN
        } else {
            Duration::from_secs(60)
        });
        let soonest = waiting
            .iter()
            .fold(idle, |soonest, poll| soonest.earlier(poll.until));
        match queue.recv_either(changed, &ctx.shutdown, soonest) {
            RecvEither::First(poll) => waiting.push(poll),
            RecvEither::Second(()) | RecvEither::Timeout => {}
            RecvEither::Shutdown | RecvEither::Closed => break,
        }
        // What does not fit stays in the queue, which refuses more.
        while waiting.len() < EVENTS_QUEUE.capacity {
            match queue.try_recv() {
                Some(poll) => waiting.push(poll),
                None => break,
            }
        }
        waiting.retain(|poll| !poll.responder.is_gone());
        // Watched before the history is read: an entry that the read misses is noted.
        watched.take(&mut waiting);
        (waiting, again) = answer(ctx, waiting, upstream);
        // Changes of busy accounts must not turn into a call each.
        if again {
            ctx.shutdown.wait(Deadline::within(AGAIN));
        }
    }
    let rest = std::iter::from_fn(|| queue.try_recv());
    for poll in waiting.into_iter().chain(rest) {
        poll.responder.send(Problem::draining(2));
    }
}

/// Answers the polls with new entries and those whose time is over. Returns the others, and whether
/// one of them has to be looked at again soon.
fn answer(
    ctx: &ThreadCtx,
    waiting: Vec<EventPoll>,
    upstream: &SharedUpstream,
) -> (Vec<EventPoll>, bool) {
    let (mut rest, mut again, mut unavailable) = (Vec::with_capacity(waiting.len()), false, false);
    for mut poll in waiting {
        let over = poll.until.expired();
        if ctx.shutdown.is_set() || (poll.newest <= poll.after && !over) {
            rest.push(poll);
            continue;
        }
        // After a failure the others are not tried: each could take as long.
        let page = if unavailable {
            None
        } else {
            let by = Deadline::within(CALL);
            read(
                upstream,
                &poll.account,
                &poll.viewer,
                (poll.after, poll.limit),
                by,
            )
            .ok()
        };
        match page {
            Some((page, _)) if !page.events.is_empty() || over => {
                poll.responder
                    .send(Response::json(200, &page).cache("no-store"));
            }
            Some((page, head)) => {
                poll.after = page.next;
                poll.newest = poll.newest.min(head);
                // The history does not have the entry yet.
                again |= poll.newest > poll.after;
                rest.push(poll);
            }
            None if over => poll
                .responder
                .send(Problem::unavailable("the ledger cannot be read now", 2)),
            None => {
                (unavailable, again) = (true, true);
                rest.push(poll);
            }
        }
    }
    (rest, again)
}
