//! Revocations: one writer thread makes them durable, publishes the view, and answers the feed.

mod store;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::revocation::RevocationView;
use ron_http::{Responder, Response};
use ron_kernel::{Deadline, RankedMutex, Receiver, Recv, SharedClock, Snapshot, ThreadCtx};
use ron_proto::Problem;
use ron_proto::passport::{Jwks, RevocationPage, RevokeAnswer, Revoked};
use ron_service::ReadyBoard;

pub use store::{EPOCH_FIRST, RevocationStore, StoreFailed};

use crate::metrics::Metrics;
use crate::topology::STORE;

/// Feed readers waiting at once; more are answered at once with an empty page.
const WAITING_MAX: usize = 1024;
/// Events of one page.
pub const PAGE_MAX: usize = 1_000;

/// What the writer thread is asked.
#[derive(Debug)]
pub enum RevokeEvent {
    /// Make a revocation durable.
    Revoke {
        /// What.
        revoked: Revoked,
        /// Why, for the record.
        reason: String,
        /// Who asked.
        actor: String,
        /// Where the answer goes.
        responder: Responder,
    },
    /// Keep the published key set.
    KeepKeys(Jwks),
    /// A feed reader.
    Read {
        /// It has seen everything up to here.
        after: u64,
        /// It waits until then for something new.
        until: Deadline,
        /// Where the page goes.
        responder: Responder,
    },
}

struct Waiting {
    after: u64,
    until: Deadline,
    responder: Responder,
}

/// The single writer of revocations.
pub struct Revoker {
    store: RankedMutex<RevocationStore>,
    view: Arc<Snapshot<RevocationView>>,
    clock: SharedClock,
    metrics: Metrics,
    ready: ReadyBoard,
}

impl Revoker {
    /// Takes the store over; nobody else writes from now on.
    pub fn new(
        store: RevocationStore,
        view: Arc<Snapshot<RevocationView>>,
        clock: SharedClock,
        metrics: Metrics,
        ready: ReadyBoard,
    ) -> Self {
        Self {
            store: RankedMutex::new(&STORE, store),
            view,
            clock,
            metrics,
            ready,
        }
    }

    /// The thread's loop.
    pub fn run(&self, ctx: &ThreadCtx, events: &Receiver<RevokeEvent>) {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            let wake = waiting.iter().map(|w| w.until).min();
            let wake = wake.unwrap_or_else(|| Deadline::within(Duration::from_secs(60)));
            match events.recv(&ctx.shutdown, wake) {
                Recv::Item(event) => self.tick(event, &mut waiting),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => {
                    while let Some(event) = events.try_recv() {
                        self.tick(event, &mut waiting);
                    }
                    for w in waiting.drain(..) {
                        self.answer_page(w.after, w.responder);
                    }
                    return;
                }
            }
            let (due, rest): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|w| w.until.expired());
            waiting = rest;
            for w in due {
                self.answer_page(w.after, w.responder);
            }
        }
    }

    /// One event.
    fn tick(&self, event: RevokeEvent, waiting: &mut Vec<Waiting>) {
        match event {
            RevokeEvent::Revoke {
                revoked,
                reason,
                actor,
                responder,
            } => {
                let answer = self.revoke(&revoked, &reason, &actor);
                let changed = answer.is_ok();
                responder.send(answer.map(|a| Response::json(200, &a)));
                if changed {
                    for w in waiting.drain(..) {
                        self.answer_page(w.after, w.responder);
                    }
                }
            }
            RevokeEvent::KeepKeys(jwks) => {
                let _ = self.stored(|store| store.keep_jwks(&jwks)); // logged; kept again at the next change
            }
            RevokeEvent::Read {
                after,
                until,
                responder,
            } => {
                let nothing_new = after >= self.view.load().after();
                if nothing_new && !until.expired() && waiting.len() < WAITING_MAX {
                    waiting.push(Waiting {
                        after,
                        until,
                        responder,
                    });
                } else {
                    self.answer_page(after, responder);
                }
            }
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
        let now_ms = self.clock.unix_ms();
        let event = self.stored(|store| store.append(revoked, now_ms, reason, actor))?;
        let epoch = match revoked {
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
        self.metrics
            .revocations
            .with_label_values(&[kind(revoked)])
            .inc();
        Ok(RevokeAnswer {
            current_epoch: epoch,
            event: event.seq,
        })
    }

    /// Runs one statement of the store; a poisoned store shows in readiness.
    fn stored<T>(
        &self,
        work: impl FnOnce(&RevocationStore) -> Result<T, StoreFailed>,
    ) -> Result<T, Problem> {
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
        result.map_err(|e| e.problem())
    }

    fn answer_page(&self, after: u64, responder: Responder) {
        let epoch = self.view.load().epoch();
        let page = self.stored(|store| store.page(after, PAGE_MAX, epoch));
        responder.send(page.map(|p| Response::json(200, &p)));
    }
}

/// The label of a revocation.
pub fn kind(revoked: &Revoked) -> &'static str {
    match revoked {
        Revoked::Jti { .. } => "jti",
        Revoked::Subject { .. } => "subject",
        Revoked::Kid { .. } => "kid",
        Revoked::Epoch { .. } => "epoch",
    }
}
