//! The path of every accepted write: replays when no new write can start, then the in-flight table,
//! then a commit queue.

use std::sync::Arc;

use ron_client::ClientError;
use ron_http::{Method, Need, Request, Responder, Route};
use ron_kernel::Deadline;
use ron_proto::ledger::{Entry, Event, LEDGER_CLOSED, RequestKey};
use ron_proto::{Account, Problem};

use super::{Api, request_key};
use crate::answers::{Replay, replay_of};
use crate::commit::CommitJob;
use crate::errors::retry_later;
use crate::inflight::{Admission, Waiter};
use crate::render::{self, AnswerOptions, Shape};

/// A write that passed the checks of body, caveats and policy.
pub struct Accepted {
    /// At least one; the first has the key of the request.
    pub entries: Vec<Entry>,
    /// The account whose writes keep their order.
    pub account: Account,
    pub shape: Shape,
}

impl Accepted {
    pub fn one(entry: Entry, account: Account) -> Self {
        Self {
            entries: vec![entry],
            account,
            shape: Shape::One,
        }
    }
}

/// Reads and checks the request of one route.
pub type Reader = fn(&Api, &Request) -> Result<Accepted, Problem>;

/// A route that writes.
pub fn write(
    api: &Arc<Api>,
    path: &'static str,
    need: Need,
    op: &'static str,
    read: Reader,
) -> Route {
    write_by(api, Method::POST, path, need, op, read)
}

/// A route that writes by any method.
pub fn write_by(
    api: &Arc<Api>,
    method: Method,
    path: &'static str,
    need: Need,
    op: &'static str,
    read: Reader,
) -> Route {
    let api = api.clone();
    Route::new(method, path, need, move |req, responder| {
        handle(&api, &req, responder, op, read);
    })
    .idempotency_key()
    .errors(&[400, 403, 409, 422, 429, 503, 504])
    // Replays are answered until the listener closes.
    .while_draining()
}

fn handle(api: &Api, req: &Request, responder: Responder, op: &'static str, read: Reader) {
    api.metrics.requests.with_label_values(&[op]).inc();
    match read(api, req) {
        Ok(accepted) => submit(api, req, responder, op, accepted),
        Err(problem) => {
            api.metrics.rejects.with_label_values(&[problem.code]).inc();
            audit_refusal(api, req, op, problem.code);
            responder.send(problem);
        }
    }
}

/// Records a refusal before the ledger in the audit stream. Requests without a usable name or key
/// were refused by the HTTP front.
fn audit_refusal(api: &Api, req: &Request, op: &'static str, code: &'static str) {
    let key = req.idempotency_key();
    if let Ok(key) = key.and_then(|key| request_key(&req.principal, &key)) {
        api.audit.record(&key, op, code, (None, Some(&req.trace)));
    }
}

fn submit(api: &Api, req: &Request, responder: Responder, op: &'static str, accepted: Accepted) {
    let Accepted {
        entries,
        account,
        shape,
    } = accepted;
    let Some(key) = entries.first().and_then(Entry::request_key) else {
        return responder.send(Problem::internal("an accepted write without a key"));
    };
    let entries: Arc<[Entry]> = entries.into();
    let asset = entries[0].asset();
    let waiter = Waiter {
        responder,
        since: api.clock.now(),
        reads_account: api.may_read(&req.principal, &account, asset),
        op,
    };
    // A repeated request joins an in-flight one even during a drain or an outage.
    let under_way = api.in_flight.holds(&key);
    if api.sup.draining() && !under_way {
        let found = from_copy(api, &entries).or_else(|| {
            let by = Api::read_deadline(req);
            from_ledger(api, &entries, by).ok().flatten()
        });
        return known_or(api, waiter, shape, found, Problem::draining(2));
    }
    if let Some(why) = api.upstream.trouble()
        && !under_way
    {
        // A closed ledger still answers reads, so it can be asked for a replay; an unreachable one
        // cannot.
        let ask = || {
            let by = Api::read_deadline(req);
            let readable = why.code == LEDGER_CLOSED;
            readable.then(|| from_ledger(api, &entries, by).ok()?)?
        };
        let found = from_copy(api, &entries).or_else(ask);
        return known_or(api, waiter, shape, found, why);
    }
    // An outcome that stays unknown could not be recorded on a full disk.
    let full = || {
        let full = api.room.check().err()?;
        Some(retry_later(full.to_string()))
    };
    if let Some(why) = api.lag.refusal().or_else(full)
        && !under_way
    {
        let by = Api::read_deadline(req);
        let found = from_copy(api, &entries).or_else(|| from_ledger(api, &entries, by).ok()?);
        return known_or(api, waiter, shape, found, why);
    }
    enter(api, key, entries, shape, &account, waiter);
}

fn enter(
    api: &Api,
    key: RequestKey,
    entries: Arc<[Entry]>,
    shape: Shape,
    account: &Account,
    waiter: Waiter,
) {
    let op = waiter.op;
    let trace = waiter.responder.trace().cloned();
    let inflight = api.metrics.inflight.with_label_values(&[op]);
    inflight.inc();
    match api.in_flight.enter(&key, &entries, waiter) {
        Admission::Follower => {}
        Admission::Mismatch(waiter) => {
            inflight.dec();
            reject(api, waiter, render::mismatch());
        }
        Admission::Leader => {
            let job = CommitJob {
                key: key.clone(),
                entries,
                shape,
                op,
                trace,
            };
            if let Err(retry_after_s) = api.queues.put(account, job) {
                for finished in api.in_flight.finish(&[&key]) {
                    for waiter in finished.leader.into_iter().chain(finished.followers) {
                        inflight.dec();
                        reject(api, waiter, Problem::busy(retry_after_s));
                    }
                }
            }
        }
    }
}

fn reject(api: &Api, waiter: Waiter, problem: Problem) {
    api.metrics.rejects.with_label_values(&[problem.code]).inc();
    waiter.responder.send(problem);
}

/// Answers from the known result, or with the problem.
fn known_or(api: &Api, waiter: Waiter, shape: Shape, known: Option<Replay>, otherwise: Problem) {
    match known {
        Some(Replay::First(answers)) => {
            api.metrics.replays.inc();
            let options = AnswerOptions {
                expected: waiter.reads_account,
                replayed: true,
            };
            waiter
                .responder
                .send(render::answer(shape, &answers, options));
        }
        Some(Replay::Mismatch) => reject(api, waiter, render::mismatch()),
        None => reject(api, waiter, otherwise),
    }
}

fn from_copy(api: &Api, entries: &[Entry]) -> Option<Replay> {
    api.answers.replay(entries)
}

fn from_ledger(api: &Api, entries: &[Entry], by: Deadline) -> Result<Option<Replay>, ClientError> {
    let Some(key) = entries.first().and_then(Entry::request_key) else {
        return Ok(None);
    };
    let first = match api.upstream.client.by_key(&key, by) {
        Ok(event) => event,
        Err(ClientError::Refused { status: 404, .. }) => return Ok(None),
        Err(e) => return Err(e),
    };
    let found = neighbours(api, first, entries.len(), by)?;
    Ok(replay_of(entries, &found))
}

/// An entry and the ones directly after it, at most `n` in total: the entries of one batch.
pub fn neighbours(
    api: &Api,
    first: Event,
    n: usize,
    by: Deadline,
) -> Result<Vec<Event>, ClientError> {
    let mut found = vec![first];
    while found.len() < n {
        let after = found.last().map_or(0, |e| e.seq);
        let page = api
            .upstream
            .client
            .events(after, std::time::Duration::ZERO, by)?;
        if page.events.is_empty() {
            break;
        }
        found.extend(page.events);
    }
    found.truncate(n.max(1));
    Ok(found)
}
