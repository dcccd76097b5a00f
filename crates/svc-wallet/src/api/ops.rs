//! `GET /v1/ops/{key}` and `POST /v1/ops/{key}/abandon`: the outcome of an operation whose answer
//! was lost.

use std::sync::Arc;

use ron_client::ClientError;
use ron_http::{Method, Need, Request, Response, Route, sync};
use ron_kernel::Deadline;
use ron_proto::ledger::{EntryAnswer, Event, RequestKey};
use ron_proto::wallet::{Nothing, Operation};
use ron_proto::{IdemKey, Problem, scope};

use super::batch::items_of;
use super::history::MIN_SEQ;
use super::seen::is_narrowed;
use super::submit::neighbours;
use super::{Api, body_or_default, request_key};
use crate::errors::in_flight;
use crate::render::{code_of, item, leaves_key_unused, problem};

/// The scopes of writes: a caller with one of them may give up keys of its own.
const WRITES: [&str; 5] = [
    scope::WALLET_ISSUE,
    scope::WALLET_TRANSFER,
    scope::WALLET_BURN,
    scope::WALLET_HOLD,
    scope::WALLET_ADMIN,
];

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let (reader, writer) = (api.clone(), api.clone());
    [
        Route::get(
            "/v1/ops/{key}",
            Need::Scope(scope::WALLET_READ),
            move |req| {
                reader.metrics.requests.with_label_values(&["ops"]).inc();
                req.query_only(&["min_seq"])?;
                reader.check_min_seq(req)?;
                let operation = outcome(&reader, req)?;
                Ok(Response::json(200, &operation).cache("no-store"))
            },
        )
        .summary("Outcome of the caller's operation with this idempotency key. Asking changes nothing: an open operation stays open until it is sent again, arrives late, or is abandoned.")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<Operation>(200)
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
        Route::new(
            Method::POST,
            "/v1/ops/{key}/abandon",
            Need::Identity,
            sync(move |req| {
                writer.metrics.requests.with_label_values(&["abandon"]).inc();
                let operation = abandon(&writer, req)?;
                Ok(Response::json(200, &operation).cache("no-store"))
            }),
        )
        .summary("Give an idempotency key of the caller up. Returns the outcome if the operation was committed; otherwise the ledger refuses the key from now on, also for a request that arrives late.")
        .body::<Nothing>()
        .returns::<Operation>(200)
        .errors(&[400, 403, 409, 429, 503, 504])
        .while_draining(),
    ]
}

fn key_of(req: &Request) -> Result<RequestKey, Problem> {
    let key: IdemKey = req
        .param("key")
        .parse()
        .map_err(|e| Problem::bad_request(format!("{e}")))?;
    request_key(&req.principal, &key)
}

fn outcome(api: &Api, req: &Request) -> Result<Operation, Problem> {
    let key = key_of(req)?;
    let known_as_open = || api.in_flight.holds(&key) || api.unresolved.holds(&key);
    // Before the ledger is asked: a request that is answered in between was open at the time.
    let open = known_as_open();
    let asked = match api.upstream.unreachable() {
        Some(why) => Err(Problem::unavailable(why, 1)),
        None => from_ledger(api, &key, Api::read_deadline(req))
            .map_err(|e| api.read_failed(&e, "operation")),
    };
    match asked {
        Ok(Some(events)) => {
            api.unresolved.release(&key);
            shown(api, req, &events)
        }
        Ok(None) if open || known_as_open() => Ok(Operation::Open {}),
        Ok(None) => not_in_ledger(api, req, &key),
        Err(problem) => match from_copy(api, &key) {
            Some(events) => shown(api, req, &events),
            None if open || held_elsewhere(api, req, &key) == Ok(true) => Ok(Operation::Open {}),
            None => Err(problem),
        },
    }
}

/// The ledger has no entry with the key, and this wallet does not know it.
fn not_in_ledger(api: &Api, req: &Request, key: &RequestKey) -> Result<Operation, Problem> {
    if held_elsewhere(api, req, key)? {
        return Ok(Operation::Open {});
    }
    // Another wallet may have released it just now, because the ledger has it by now.
    if api.unresolved.is_shared() {
        let again = from_ledger(api, key, Api::read_deadline(req));
        if let Some(events) = again.map_err(|e| api.read_failed(&e, "operation"))? {
            return shown(api, req, &events);
        }
    }
    Err(Problem::not_found(
        "no operation with this key has reached the ledger; sending it (again) is safe",
    ))
}

fn held_elsewhere(api: &Api, req: &Request, key: &RequestKey) -> Result<bool, Problem> {
    let asked = api.unresolved.held_elsewhere(key, Api::read_deadline(req));
    asked.map_err(|why| {
        let why = format!("whether the operation is open cannot be said: {why}");
        Problem::unavailable(why, 1)
    })
}

/// The entries that were made with a key; several for a batch.
fn from_ledger(
    api: &Api,
    key: &RequestKey,
    by: Deadline,
) -> Result<Option<Vec<Event>>, ClientError> {
    let event = match api.upstream.client.by_key(key, by) {
        Ok(event) => event,
        Err(ClientError::Refused { status: 404, .. }) => return Ok(None),
        Err(e) => return Err(e),
    };
    match items_of(&event.entry) {
        None => Ok(Some(vec![event])),
        Some(n) => neighbours(api, event, n, by).map(Some),
    }
}

/// The outcome, if the caller's token may show it.
fn shown(api: &Api, req: &Request, events: &[Event]) -> Result<Operation, Problem> {
    api.check_within(req, events)?;
    match events {
        [event] if items_of(&event.entry).is_none() => Ok(single(event.answer.clone())),
        events => Ok(whole(events)),
    }
}

fn abandon(api: &Api, req: &Request) -> Result<Operation, Problem> {
    nothing(req)?;
    if !WRITES.iter().any(|scope| req.principal.has_scope(scope)) {
        return Err(Problem::forbidden(
            "giving a key up needs the scope of a write, such as wallet:transfer",
        ));
    }
    let key = key_of(req)?;
    if api.in_flight.holds(&key) {
        return Err(in_flight());
    }
    if let Some(why) = api.upstream.unreachable() {
        return Err(Problem::unavailable(why, 1));
    }
    let by = Api::read_deadline(req);
    // What the key was used for is not known: then no caveat about it is met.
    if is_narrowed(&req.principal) {
        let found = from_ledger(api, &key, by).map_err(|e| api.read_failed(&e, "operation"))?;
        return match found {
            Some(events) => shown(api, req, &events),
            None => Err(api.caveat_refused(req)),
        };
    }
    #[cfg(mutant = "given_up")] // the ledger would still take a request that arrives late
    if ron_kernel::mutant("given_up")
        && let Ok(None) = from_ledger(api, &key, by)
    {
        api.unresolved.forget(&key);
        let code = ron_proto::ledger::RefusalCode::Abandoned;
        return Ok(Operation::Refused { code });
    }
    // A call whose outcome is unknown here is simply made again: the key has one outcome.
    let answer = api
        .upstream
        .client
        .resolve(&key, by)
        .map_err(|e| api.read_failed(&e, "operation"))?;
    if leaves_key_unused(&answer)
        && let Some(code) = code_of(&answer)
    {
        return Err(problem(code));
    }
    api.unresolved.forget(&key);
    // It may have been committed in the meantime, and it may be a batch; then report all items.
    let found = from_ledger(api, &key, by).map_err(|e| api.read_failed(&e, "operation"))?;
    match found {
        Some(events) => shown(api, req, &events),
        None => Ok(single(answer)),
    }
}

/// Accepts an empty body or `{}`.
fn nothing(req: &Request) -> Result<(), Problem> {
    body_or_default::<Nothing>(req).map(drop)
}

fn from_copy(api: &Api, key: &RequestKey) -> Option<Vec<Event>> {
    let event = api.answers.by_key(key)?;
    match items_of(&event.entry) {
        None => Some(vec![event]),
        Some(n) => {
            let all = api.answers.range(event.seq, n as u64);
            (all.len() == n).then_some(all)
        }
    }
}

fn single(answer: EntryAnswer) -> Operation {
    match answer {
        EntryAnswer::Done {
            receipt, private, ..
        } => Operation::Done { receipt, private },
        EntryAnswer::Refused { code, .. } => Operation::Refused { code },
    }
}

fn whole(events: &[Event]) -> Operation {
    let results = events.iter().map(|e| item(&e.answer)).collect();
    Operation::Batch { results }
}
