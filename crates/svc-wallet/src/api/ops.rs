//! `GET /v1/ops/{key}`: the outcome of an operation whose answer was lost.

use std::sync::Arc;

use ron_client::ClientError;
use ron_http::{Need, Request, Response, Route};
use ron_kernel::Deadline;
use ron_proto::ledger::{EntryAnswer, Event, RequestKey};
use ron_proto::wallet::Operation;
use ron_proto::{IdemKey, Problem, scope};

use super::batch::items_of;
use super::submit::neighbours;
use super::{Api, request_key};
use crate::errors::in_flight;
use crate::render::item;

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get(
        "/v1/ops/{key}",
        Need::Scope(scope::WALLET_READ),
        move |req| {
            api.metrics.requests.with_label_values(&["ops"]).inc();
            let operation = outcome(&api, req)?;
            Ok(Response::json(200, &operation).cache("no-store"))
        },
    )
    .summary("Outcome of the caller's operation with this idempotency key.")
    .returns::<Operation>(200)
    .errors(&[400, 403, 404, 409, 429, 503])
    .while_draining()
}

/// Looks the key up. For a key with an unknown outcome the ledger resolves it: it returns the
/// outcome, or refuses the key permanently. A key that was never sent is not touched.
fn outcome(api: &Api, req: &Request) -> Result<Operation, Problem> {
    let key: IdemKey = req
        .param("key")
        .parse()
        .map_err(|e| Problem::bad_request(format!("{e}")))?;
    let key = request_key(&req.principal, &key)?;
    if api.in_flight.holds(&key) {
        return Err(in_flight());
    }
    if let Some(why) = api.upstream.unreachable() {
        return from_copy(api, &key).ok_or_else(|| Problem::unavailable(why, 1));
    }
    match from_ledger(api, &key, Api::read_deadline(req)) {
        Ok(Some(operation)) => {
            api.unresolved.release(&key);
            Ok(operation)
        }
        Ok(None) => Err(Problem::not_found(
            "no operation with this key has reached the ledger; sending it (again) is safe",
        )),
        Err(e) => from_copy(api, &key).ok_or_else(|| api.read_failed(&e, "operation")),
    }
}

fn from_ledger(
    api: &Api,
    key: &RequestKey,
    by: Deadline,
) -> Result<Option<Operation>, ClientError> {
    match api.upstream.client.by_key(key, by) {
        Ok(event) => match items_of(&event.entry) {
            None => Ok(Some(single(event.answer))),
            Some(n) => neighbours(api, event, n, by).map(|all| Some(whole(&all))),
        },
        Err(ClientError::Refused { status: 404, .. }) if api.unresolved.holds(key) => {
            let answer = api.upstream.client.resolve(key, by)?;
            // The request may have been committed in the meantime, and it may be a batch; then
            // report all of its items.
            match &answer {
                EntryAnswer::Done { .. } => {
                    let event = api.upstream.client.by_key(key, by)?;
                    let n = items_of(&event.entry);
                    match n {
                        Some(n) => neighbours(api, event, n, by).map(|all| Some(whole(&all))),
                        None => Ok(Some(single(answer))),
                    }
                }
                EntryAnswer::Refused { .. } => Ok(Some(single(answer))),
            }
        }
        Err(ClientError::Refused { status: 404, .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn from_copy(api: &Api, key: &RequestKey) -> Option<Operation> {
    let event = api.answers.by_key(key)?;
    match items_of(&event.entry) {
        None => Some(single(event.answer)),
        Some(n) => {
            let all = api.answers.range(event.seq, n as u64);
            (all.len() == n).then(|| whole(&all))
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
    let results = events.iter().map(|e| item(&e.answer, false)).collect();
    Operation::Batch { results }
}
