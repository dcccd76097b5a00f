//! Revocations: one writer thread makes them durable, publishes the view and answers feed readers.

mod store;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::RevocationView;
use ron_http::{Responder, Response};
use ron_kernel::{
    Deadline, RankedMutex, Receiver, Recv, ReplySender, Sender, SharedClock, Snapshot, ThreadCtx,
};
use ron_proto::Problem;
use ron_proto::passport::{Jwks, RevocationPage, RevokeAnswer, Revoked};
use ron_service::ReadyBoard;

pub use store::{EPOCH_FIRST, RevocationStore, StoreFailed, UsedAssertion};

use crate::lists::{KnownLists, ListRow, still_kept};
use crate::metrics::{Metrics, revocation_kind};
use crate::topology::STORE;

/// Maximum feed readers that wait at the same time; further ones get an empty page at once. By default the HTTP front
/// admits fewer (`limits.long_polls`).
const WAITING_MAX: usize = 1024;
/// Maximum events of one page.
pub const PAGE_MAX: usize = 1_000;

/// The endpoint's format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// `POST /v1/passport/revoke`.
    Passport,
    /// `POST /oauth2/revoke`.
    Oauth,
}

/// The actor recorded for events that the service causes itself.
const OURSELVES: &str = "svc-passport";

/// A message to the writer thread.
#[derive(Debug)]
pub enum RevokeEvent {
    /// Make a revocation durable.
    Revoke {
        revoked: Revoked,
        /// The reason, stored with the event.
        reason: String,
        /// The caller's name, stored with the event.
        actor: String,
        /// Format of the answer.
        form: Answer,
        /// Where the answer goes.
        responder: Responder,
    },
    /// Store the published key set; a change is an event of the feed.
    KeepKeys(Jwks),
    /// A new version of the issuer policy, which must be durable before it is in force.
    Policy {
        version: u64,
        /// Notified once the version is durable.
        answer: ReplySender<Result<(), String>>,
    },
    /// Open a status list.
    OpenList {
        /// The key that signs its tokens.
        kid: String,
        /// The epoch of its tokens.
        epoch: u64,
        /// Gets the list once it is durable.
        answer: ReplySender<Result<ListRow, Problem>>,
    },
    /// A client has authenticated with an assertion, whose use must be durable before it is answered.
    Used {
        assertion: UsedAssertion,
        /// Notified once it is durable.
        answer: ReplySender<Result<(), Problem>>,
    },
    /// A feed reader's request (long poll).
    Read {
        /// Number of the last event that the reader has seen.
        after: u64,
        /// How long the reader waits for a new event.
        until: Deadline,
        /// Where the page goes.
        responder: Responder,
    },
    /// A waiting feed reader has closed its connection.
    ReaderGone,
}

struct WaitingReader {
    after: u64,
    until: Deadline,
    responder: Responder,
}

/// The single writer of revocations.
pub struct Revoker {
    store: RankedMutex<RevocationStore>,
    view: Arc<Snapshot<RevocationView>>,
    lists: Arc<Snapshot<KnownLists>>,
    kept: Arc<Snapshot<Jwks>>,
    clock: SharedClock,
    metrics: Metrics,
    ready: ReadyBoard,
}

/// Has the published key set stored, unless it is durable already. Called after every read of the keys: when the queue is
/// full or the store fails, the next read requests it again.
pub fn store_keys(revoke: &Sender<RevokeEvent>, kept: &Snapshot<Jwks>, published: Jwks) {
    if kept.with(|kept| *kept != published) {
        let _ = revoke.try_send(RevokeEvent::KeepKeys(published));
    }
}

impl Revoker {
    /// Takes ownership of the store: no other thread writes from now on.
    pub fn new(
        store: RevocationStore,
        view: Arc<Snapshot<RevocationView>>,
        lists: Arc<Snapshot<KnownLists>>,
        kept: Arc<Snapshot<Jwks>>,
        (clock, metrics): (SharedClock, Metrics),
        ready: ReadyBoard,
    ) -> Self {
        Self {
            store: RankedMutex::new(&STORE, store),
            view,
            lists,
            kept,
            clock,
            metrics,
            ready,
        }
    }

    pub fn run(&self, ctx: &ThreadCtx, events: &Receiver<RevokeEvent>) {
        let mut waiting: Vec<WaitingReader> = Vec::new();
        loop {
            let wake = waiting.iter().map(|w| w.until).min();
            let wake = wake.unwrap_or_else(|| Deadline::within(Duration::from_secs(60)));
            match events.recv(&ctx.shutdown, wake) {
                Recv::Item(event) => self.take(event, events, &mut waiting),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => {
                    while let Some(event) = events.try_recv() {
                        self.take(event, events, &mut waiting);
                    }
                    // At shutdown waiting readers get a page, possibly empty, instead of a closed connection.
                    for w in waiting.drain(..) {
                        self.answer_page(w.after, w.responder);
                    }
                    return;
                }
            }
            // After every event, because a `ReaderGone` may not have fit into the queue: readers that are gone must not
            // occupy places.
            waiting.retain(|w| !w.responder.is_gone());
            let (due, rest): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|w| w.until.expired());
            waiting = rest;
            for w in due {
                self.answer_page(w.after, w.responder);
            }
        }
    }

    /// Handles an event; uses of assertions that are queued behind one another share a commit.
    fn take(
        &self,
        event: RevokeEvent,
        events: &Receiver<RevokeEvent>,
        waiting: &mut Vec<WaitingReader>,
    ) {
        let (mut used, mut next) = (Vec::new(), Some(event));
        while let Some(RevokeEvent::Used { assertion, answer }) = next {
            used.push((assertion, answer));
            next = events.try_recv();
        }
        if !used.is_empty() {
            self.keep_assertions(used);
        }
        if let Some(event) = next {
            self.tick(event, waiting);
        }
    }

    fn keep_assertions(&self, used: Vec<(UsedAssertion, ReplySender<Result<(), Problem>>)>) {
        let now_s = self.clock.unix_ms() / 1000;
        let (rows, answers): (Vec<_>, Vec<_>) = used.into_iter().unzip();
        let stored = self.stored(|store| store.keep_assertions(&rows, now_s));
        for answer in answers {
            let _ = answer.send(stored.clone()); // a client that no longer waits has to send another one
        }
    }

    fn tick(&self, event: RevokeEvent, waiting: &mut Vec<WaitingReader>) {
        match event {
            RevokeEvent::Used { assertion, answer } => {
                self.keep_assertions(vec![(assertion, answer)]);
            }
            RevokeEvent::Revoke {
                revoked,
                reason,
                actor,
                form,
                responder,
            } => {
                let answer = self.revoke(&revoked, &reason, &actor);
                let changed = answer.is_ok();
                responder.send(match (answer, form) {
                    (Ok(answer), Answer::Passport) => Response::json(200, &answer),
                    (Ok(_), Answer::Oauth) => Response::empty(200).cache("no-store"),
                    (Err(problem), Answer::Passport) => problem.into(),
                    (Err(problem), Answer::Oauth) => {
                        problem.with_oauth("temporarily_unavailable").into()
                    }
                });
                if changed {
                    self.wake(waiting);
                }
            }
            RevokeEvent::KeepKeys(jwks) => self.keep_keys(jwks, waiting),
            RevokeEvent::Policy { version, answer } => {
                let recorded = if version > self.view.load().policy_version() {
                    let what = Revoked::Policy { version };
                    self.record(&what, "policy adopted", OURSELVES)
                        .map(|_| self.wake(waiting))
                        .map_err(|p| p.detail)
                } else {
                    Ok(())
                };
                let _ = answer.send(recorded); // the policy thread retries by itself
            }
            RevokeEvent::OpenList { kid, epoch, answer } => {
                let _ = answer.send(self.open_list(&kid, epoch)); // an unused list costs one row
            }
            RevokeEvent::Read {
                after,
                until,
                responder,
            } => {
                // A reader beyond the last event is answered at once: it has seen another history and must start over.
                let nothing_new = after == self.view.load().after();
                if nothing_new && !until.expired() && waiting.len() < WAITING_MAX {
                    waiting.push(WaitingReader {
                        after,
                        until,
                        responder,
                    });
                } else {
                    self.answer_page(after, responder);
                }
            }
            RevokeEvent::ReaderGone => {} // `run` removes readers that are gone after every event
        }
    }

    fn revoke(
        &self,
        revoked: &Revoked,
        reason: &str,
        actor: &str,
    ) -> Result<RevokeAnswer, Problem> {
        let view = self.view.load();
        if let Revoked::Epoch { epoch } = revoked
            && *epoch <= view.epoch()
        {
            return Err(Problem::new(
                409,
                "stale_epoch",
                "Epoch must grow",
                "the epoch must be greater than the current one",
            )
            .with_details(serde_json::json!({ "current_epoch": view.epoch() })));
        }
        let (epoch, event) = self.record(revoked, reason, actor)?;
        self.metrics
            .revocations
            .with_label_values(&[revocation_kind(revoked)])
            .inc();
        Ok(RevokeAnswer {
            current_epoch: epoch,
            event,
        })
    }

    /// Makes an event durable, then visible. Returns the epoch after it and its number.
    fn record(&self, what: &Revoked, reason: &str, actor: &str) -> Result<(u64, u64), Problem> {
        let view = self.view.load();
        let now_ms = self.clock.unix_ms();
        // Durable before it is visible: no reader may see an event that a crash could take back.
        let event = self.stored(|store| store.append(what, now_ms, reason, actor))?;
        let epoch = match what {
            Revoked::Epoch { epoch } => *epoch,
            _ => view.epoch(),
        };
        let mut next = RevocationView::clone(&view);
        let page = RevocationPage {
            next: event.seq,
            current_epoch: epoch,
            events: vec![event.clone()],
        };
        next.apply(&page, true, now_ms / 1000).map_err(|_| {
            Problem::internal("the revocation feed is out of step; restart the service")
        })?;
        self.view.store(next);
        self.metrics.epoch.set(epoch as i64);
        Ok((epoch, event.seq))
    }

    fn keep_keys(&self, jwks: Jwks, waiting: &mut Vec<WaitingReader>) {
        // The set may have been queued several times before it was durable.
        if self.kept.with(|kept| *kept == jwks) {
            return;
        }
        let what = Revoked::Keys {
            count: jwks.keys.len() as u64,
        };
        // The event first: after a crash between the two it is recorded again, and not lost.
        let stored = self
            .record(&what, "key set changed", OURSELVES)
            .and_then(|_| self.stored(|store| store.keep_jwks(&jwks)));
        // Otherwise the failure is counted, and the next read of the keys requests it again.
        if stored.is_ok() {
            self.kept.store(jwks);
            self.wake(waiting);
        }
    }

    fn open_list(&self, kid: &str, epoch: u64) -> Result<ListRow, Problem> {
        let now_s = self.clock.unix_ms() / 1000;
        let row = self.stored(|store| store.open_list(kid, epoch, now_s))?;
        let mut lists = KnownLists::clone(&self.lists.load());
        lists.retain(|_, row| still_kept(row, now_s));
        lists.insert(row.id, row.clone());
        self.lists.store(lists);
        Ok(row)
    }

    /// Answers all waiting feed readers.
    fn wake(&self, waiting: &mut Vec<WaitingReader>) {
        let began = self.clock.now();
        for w in waiting.drain(..) {
            self.answer_page(w.after, w.responder);
            let took = self.clock.now().saturating_duration_since(began);
            self.metrics.propagation.observe(took.as_secs_f64());
        }
    }

    /// Runs one operation of the store; reports a poisoned store in readiness.
    fn stored<T>(
        &self,
        work: impl FnOnce(&RevocationStore) -> Result<T, StoreFailed>,
    ) -> Result<T, Problem> {
        // The lock ends before readiness and metrics are updated, which may log.
        let (result, poisoned) = {
            let store = self.store.lock();
            (work(&store), store.poisoned())
        };
        if poisoned {
            self.ready.missing(
                "store",
                "an earlier commit failed: revocations are refused until a restart",
            );
        }
        if result.is_err() {
            self.metrics.io_errors.with_label_values(&["store"]).inc();
        }
        result.map_err(|e| e.problem())
    }

    fn answer_page(&self, after: u64, responder: Responder) {
        let view = self.view.load();
        let (epoch, after) = (view.epoch(), after.min(view.after()));
        let page = self.stored(|store| store.page(after, PAGE_MAX, epoch));
        responder.send(page.map(|p| Response::json(200, &p)));
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::queue::bare_queue;
    use ron_kernel::{Registry, SystemClock};
    use serde_json::json;

    use super::*;
    use crate::topology::REVOKE_QUEUE;

    fn keys(kid: &str) -> Jwks {
        let key = json!({"kty": "OKP", "crv": "Ed25519", "x": "", "kid": kid, "alg": "EdDSA", "use": "sig"});
        serde_json::from_value(json!({ "keys": [key] })).unwrap()
    }

    #[test]
    fn a_key_set_that_met_a_full_queue_is_stored_after_the_next_read() {
        let registry = Registry::new("t");
        let kept = Arc::new(Snapshot::new(Jwks::default()));
        let view = Arc::new(Snapshot::new(RevocationView::unchecked()));
        let revoker = Revoker::new(
            RevocationStore::memory().unwrap(),
            view.clone(),
            Arc::new(Snapshot::new(KnownLists::new())),
            kept.clone(),
            (SystemClock::shared(), Metrics::new(&registry)),
            ReadyBoard::new(&registry),
        );
        let (revoke, events) = bare_queue(&REVOKE_QUEUE, 1);
        revoke.try_send(RevokeEvent::ReaderGone).unwrap();
        store_keys(&revoke, &kept, keys("k1"));
        let take = || {
            events
                .try_recv()
                .map(|event| revoker.tick(event, &mut Vec::new()))
        };
        assert_eq!(
            (take(), take()),
            (Some(()), None),
            "only what filled the queue"
        );
        assert_eq!(*kept.load(), Jwks::default());

        store_keys(&revoke, &kept, keys("k1"));
        take().expect("requested again");
        assert_eq!(*kept.load(), keys("k1"));
        assert_eq!(revoker.store.lock().kept_jwks().unwrap(), keys("k1"));
        assert_eq!(view.load().after(), 1, "one event");

        store_keys(&revoke, &kept, keys("k1"));
        assert_eq!(take(), None, "it is durable");
    }
}
