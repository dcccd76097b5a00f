//! Revocations: one writer thread makes them durable, publishes the view and answers feed readers.

mod draft;
mod recorded;
mod register;
mod shared;
mod store;
mod turns;
pub mod verify;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::RevocationView;
use ron_http::{Responder, Response};
use ron_kernel::{
    Deadline, RankedMutex, Receiver, Recv, ReplySender, Sender, SharedClock, Snapshot, ThreadCtx,
};
use ron_proto::Problem;
use ron_proto::passport::{Jwks, RevokeAnswer, Revoked};
use ron_service::ReadyBoard;
use ron_service::log_host::asker::Published;
use ron_tlog::note::NoteSignature;

pub use recorded::RecordedAsk;
pub use register::{LOG_DIR, LogPlace, Register, compare, signed};
pub use shared::{HeadAge, SharedPlace, SharedTimes, private_of, row_of};
pub use store::{FILE_NAME, RevocationStore, Row, StoreFailed, rows_of};

pub use draft::Draft;
use register::BATCH_MAX;

use crate::clients::UsedAssertion;
use crate::lists::{KnownLists, ListRow, still_kept};
use crate::metrics::Metrics;
use crate::topology::STORE;
use crate::trail::{Grants, IssuedFor};

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

/// Readiness cause: the end of a log that other nodes write too was not read for too long.
pub const READ_CAUSE: &str = "revocations";

/// The actor recorded for events that the service causes itself.
const OURSELVES: &str = "svc-passport";

/// A request to revoke.
#[derive(Debug)]
pub struct Revocation {
    pub revoked: Revoked,
    /// The reason, stored with the event.
    pub reason: String,
    /// The caller's name, stored with the event.
    pub actor: String,
    /// Format of the answer.
    pub form: Answer,
    /// Where the answer goes.
    pub responder: Responder,
}

impl Revocation {
    pub fn answer(self, answer: Result<RevokeAnswer, Problem>) {
        self.responder.send(match (answer, self.form) {
            (Ok(answer), Answer::Passport) => Response::json(200, &answer),
            (Ok(_), Answer::Oauth) => Response::empty(200).cache("no-store"),
            (Err(problem), Answer::Passport) => problem.into(),
            (Err(problem), Answer::Oauth) => problem.with_oauth("temporarily_unavailable").into(),
        });
    }
}

/// A message to the writer thread.
#[derive(Debug)]
pub enum RevokeEvent {
    /// Make a revocation durable.
    Revoke(Revocation),
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
    /// Tokens are issued for something that has no number yet.
    Number {
        grant: IssuedFor,
        /// Gets the number once it is durable.
        answer: ReplySender<Result<u32, Problem>>,
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
    /// An administrator's request for recorded revocations.
    List {
        ask: RecordedAsk,
        /// Where the page goes.
        responder: Responder,
    },
    /// A waiting feed reader has closed its connection.
    ReaderGone,
    /// Witnesses have cosigned the checkpoint `text`.
    Cosigned {
        text: Arc<str>,
        lines: Vec<NoteSignature>,
    },
}

struct WaitingReader {
    after: u64,
    until: Deadline,
    responder: Responder,
}

/// The single writer of revocations.
pub struct Revoker {
    /// `Some` while no operation uses it.
    register: RankedMutex<Option<Register>>,
    view: Arc<Snapshot<RevocationView>>,
    lists: Arc<Snapshot<KnownLists>>,
    kept: Arc<Snapshot<Jwks>>,
    grants: Arc<Snapshot<Grants>>,
    clock: SharedClock,
    metrics: Metrics,
    ready: ReadyBoard,
    /// Of a log in an engine.
    shared: Option<SharedTimes>,
    /// Told of new checkpoints.
    witness: Option<Sender<Published>>,
}

/// Has the published key set stored, unless it is durable already. Called after every read of the keys: when the queue is
/// full or the store fails, the next read requests it again.
pub fn store_keys(revoke: &Sender<RevokeEvent>, kept: &Snapshot<Jwks>, published: Jwks) {
    if kept.with(|kept| *kept != published) {
        let _ = revoke.try_send(RevokeEvent::KeepKeys(published));
    }
}

impl Revoker {
    /// Takes ownership of the register: no other thread writes from now on.
    pub fn new(
        register: Register,
        view: Arc<Snapshot<RevocationView>>,
        lists: Arc<Snapshot<KnownLists>>,
        (kept, grants): (Arc<Snapshot<Jwks>>, Arc<Snapshot<Grants>>),
        (clock, metrics): (SharedClock, Metrics),
        ready: ReadyBoard,
    ) -> Self {
        Self {
            register: RankedMutex::new(&STORE, Some(register)),
            view,
            lists,
            kept,
            grants,
            clock,
            metrics,
            ready,
            shared: None,
            witness: None,
        }
    }

    /// Of a register whose log is in an engine.
    #[must_use]
    pub fn sharing(self, times: SharedTimes) -> Self {
        // Another node may have revoked while this one was down.
        self.ready
            .missing(READ_CAUSE, "the log of revocations was not read yet");
        Self {
            shared: Some(times),
            ..self
        }
    }

    /// Has new checkpoints submitted to the witnesses.
    #[must_use]
    pub fn witnessed(self, witness: Option<Sender<Published>>) -> Self {
        Self { witness, ..self }
    }

    pub fn run(&self, ctx: &ThreadCtx, events: &Receiver<RevokeEvent>) {
        let mut waiting: Vec<WaitingReader> = Vec::new();
        let mut follow_at = self
            .shared
            .as_ref()
            .map(|_| Deadline::within(Duration::ZERO));
        let mut failed = 0_u32;
        loop {
            if let (Some(at), Some(times)) = (follow_at, &self.shared)
                && at.expired()
            {
                let read = self.follow();
                failed = if read.is_ok() { 0 } else { failed + 1 };
                if read.is_ok_and(|came| came) {
                    self.wake(&mut waiting);
                }
                follow_at = Some(Deadline::within(times.head.pause(failed)));
            }
            let wake = waiting.iter().map(|w| w.until).chain(follow_at).min();
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

    /// Handles an event and those queued behind it; uses of assertions share a commit, and so do revocations.
    fn take(
        &self,
        event: RevokeEvent,
        events: &Receiver<RevokeEvent>,
        waiting: &mut Vec<WaitingReader>,
    ) {
        let (mut used, mut revocations, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(event);
        while let Some(event) = next {
            match event {
                RevokeEvent::Used { assertion, answer } => used.push((assertion, answer)),
                RevokeEvent::Revoke(revocation) => revocations.push(revocation),
                other => others.push(other),
            }
            let room = used.len() + revocations.len() + others.len() < BATCH_MAX;
            next = if room { events.try_recv() } else { None };
        }
        if !used.is_empty() {
            self.keep_assertions(used);
        }
        if !revocations.is_empty() && self.revoke(revocations) {
            #[cfg(mutant = "woken")] // readers of the feed wait to the end of their time
            let waiting = &mut if ron_kernel::mutant("woken") {
                Vec::new()
            } else {
                std::mem::take(waiting)
            };
            self.wake(waiting);
        }
        // Once for all of them: a read waits for an engine that is away.
        let last = self.view.load().after();
        let ahead =
            |event: &RevokeEvent| matches!(event, RevokeEvent::Read { after, .. } if *after > last);
        if self.shared.is_some() && others.iter().any(ahead) && self.follow().is_ok_and(|came| came)
        {
            self.wake(waiting);
        }
        for event in others {
            self.tick(event, waiting);
        }
    }

    fn keep_assertions(&self, used: Vec<(UsedAssertion, ReplySender<Result<(), Problem>>)>) {
        let now_s = self.clock.unix_ms() / 1000;
        let (rows, answers): (Vec<_>, Vec<_>) = used.into_iter().unzip();
        let stored = self.stored(|register| register.store().keep_assertions(&rows, now_s));
        for answer in answers {
            let _ = answer.send(stored.clone()); // a client that no longer waits has to send another one
        }
    }

    fn tick(&self, event: RevokeEvent, waiting: &mut Vec<WaitingReader>) {
        match event {
            RevokeEvent::Used { assertion, answer } => {
                self.keep_assertions(vec![(assertion, answer)]);
            }
            RevokeEvent::Revoke(revocation) => {
                if self.revoke(vec![revocation]) {
                    self.wake(waiting);
                }
            }
            RevokeEvent::KeepKeys(jwks) => self.keep_keys(jwks, waiting),
            RevokeEvent::Policy { version, answer } => {
                let recorded = if version > self.view.load().policy_version() {
                    let what = Revoked::Policy { version };
                    self.record_ours(&ours(&what, "policy adopted"))
                        .map(|()| self.wake(waiting))
                        .map_err(|p| p.detail)
                } else {
                    Ok(())
                };
                let _ = answer.send(recorded); // the policy thread retries by itself
            }
            RevokeEvent::OpenList { kid, epoch, answer } => {
                let _ = answer.send(self.open_list(&kid, epoch)); // an unused list costs one row
            }
            RevokeEvent::Number { grant, answer } => {
                let _ = answer.send(self.number(grant)); // the next token for it asks again
            }
            RevokeEvent::Read {
                after,
                until,
                responder,
            } => {
                // A reader beyond the last event is answered at once: it has seen another history and must start over.
                let nothing_new = after == self.view.load().after();
                #[cfg(mutant = "behind")] // off by one
                let nothing_new = nothing_new
                    || (ron_kernel::mutant("behind") && after + 1 == self.view.load().after());
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
            RevokeEvent::List { ask, responder } => self.answer_recorded(&ask, responder),
            RevokeEvent::Cosigned { text, lines } => {
                // Reported, and asked for again at the next start.
                let _ = self.stored(|register| register.cosigned(&text, &lines));
            }
            RevokeEvent::ReaderGone => {} // `run` removes readers that are gone after every event
        }
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
        let recorded = self.record_ours(&ours(&what, "key set changed"));
        if recorded.is_err() {
            return; // the next read of the keys requests it again
        }
        let stored = self.stored(|register| register.store().keep_jwks(&jwks));
        // A failure is counted, and the next read requests it again; where other nodes follow, once in this process, because
        // each event makes all of them read the keys.
        if stored.is_ok() || self.shared.is_some() {
            self.kept.store(jwks);
        }
        self.wake(waiting);
    }

    fn open_list(&self, kid: &str, epoch: u64) -> Result<ListRow, Problem> {
        let now_s = self.clock.unix_ms() / 1000;
        let row = self.stored(|register| register.open_list(kid, epoch, now_s))?;
        let mut lists = KnownLists::clone(&self.lists.load());
        lists.retain(|_, row| still_kept(row, now_s));
        lists.insert(row.id, row.clone());
        self.lists.store(lists);
        Ok(row)
    }

    /// The number of what tokens are issued for; several issuing threads may ask for the same.
    fn number(&self, grant: IssuedFor) -> Result<u32, Problem> {
        if let Some(number) = self.grants.with(|grants| grants.number(&grant)) {
            return Ok(number);
        }
        let number = self.stored(|register| register.store().number(&grant))?;
        let mut grants = Grants::clone(&self.grants.load());
        grants.add(number, grant);
        self.grants.store(grants);
        Ok(number)
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

    /// Runs one operation of the register; reports a poisoned one in readiness.
    fn stored<T>(
        &self,
        work: impl FnOnce(&mut Register) -> Result<T, StoreFailed>,
    ) -> Result<T, Problem> {
        // Taken out: no lock is held over the disk, and it ends before readiness and metrics are updated, which may log.
        let (result, poisoned) = {
            let mut loan = Loan::of(&self.register);
            let register = loan.register()?;
            (work(register), register.poisoned())
        };
        if poisoned {
            self.ready.missing(
                "store",
                "database or log are closed for writing, because a commit has failed or a witness contradicts the log: revocations are refused until a restart",
            );
        }
        if result.is_err() {
            self.metrics.io_errors.with_label_values(&["store"]).inc();
        }
        result.map_err(|e| e.problem())
    }

    fn answer_page(&self, after: u64, responder: Responder) {
        let view = self.view.load();
        let (epoch, last) = (view.epoch(), view.after());
        let page = self.stored(|register| register.page(after.min(last), last, epoch));
        responder.send(page.map(|p| Response::json(200, &p)));
    }
}

/// The register on loan to an operation. `Drop` returns it also after a panic, so that the restarted thread finds it.
struct Loan<'a> {
    room: &'a RankedMutex<Option<Register>>,
    register: Option<Register>,
}

impl<'a> Loan<'a> {
    fn of(room: &'a RankedMutex<Option<Register>>) -> Self {
        let register = room.lock().take();
        Self { room, register }
    }

    /// Only one thread borrows, so there always is one.
    fn register(&mut self) -> Result<&mut Register, Problem> {
        let register = self.register.as_mut();
        register.ok_or_else(|| Problem::internal("the revocations are in use; restart the service"))
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let back = self.register.take();
        *self.room.lock() = back;
    }
}

/// An event that the service causes itself.
fn ours<'a>(revoked: &'a Revoked, reason: &'a str) -> Draft<'a> {
    Draft {
        revoked,
        reason,
        actor: OURSELVES,
    }
}

#[cfg(test)]
mod register_tests;

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
        let (register, view) = register_tests::memory();
        let view = Arc::new(Snapshot::new(view));
        let revoker = Revoker::new(
            register,
            view.clone(),
            Arc::new(Snapshot::new(KnownLists::new())),
            (kept.clone(), Arc::default()),
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
        assert_eq!(
            revoker
                .stored(|register| register.store().kept_jwks())
                .unwrap(),
            keys("k1")
        );
        assert_eq!(view.load().after(), 1, "one event");

        store_keys(&revoke, &kept, keys("k1"));
        assert_eq!(take(), None, "it is durable");
    }
}
