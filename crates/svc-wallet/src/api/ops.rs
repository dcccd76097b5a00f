//! `GET /v1/ops/{key}`: what became of an operation whose answer was lost.

use std::sync::Arc;

use ron_client::ClientError;
use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{EntryAnswer, ResolveRequest};
use ron_proto::wallet::Operation;
use ron_proto::{IdemKey, Problem, scope};

use super::Api;
use crate::commit::{entry_key, principal_name};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get(
        "/v1/ops/{key}",
        Need::Scope(scope::WALLET_READ),
        move |req| {
            api.metrics.requests.with_label_values(&["ops"]).inc();
            let answer = outcome(&api, req)?;
            let operation = match answer {
                EntryAnswer::Done { receipt, .. } => Operation::Done { receipt },
                EntryAnswer::Refused { code, .. } => Operation::Refused { code },
            };
            Ok(Response::json(200, &operation).cache("no-store"))
        },
    )
    .summary("Outcome of the caller's operation with this idempotency key.")
    .returns::<Operation>(200)
    .errors(&[400, 403, 404, 429, 503])
    .while_draining()
}

/// Looks the key up. One whose outcome is open is resolved: the ledger tells it, or refuses it for
/// ever. A key that was never seen is not touched.
fn outcome(api: &Api, req: &Request) -> Result<EntryAnswer, Problem> {
    let key: IdemKey = req
        .param("key")
        .parse()
        .map_err(|e| Problem::bad_request(format!("{e}")))?;
    let principal = principal_name(&req.principal.name)?;
    let key = entry_key(&key)?;
    let deadline = Api::read_deadline(req);
    match api.ledger.by_key(&principal, &key, deadline) {
        Ok(event) => {
            api.pinned.release(&principal, &key);
            Ok(event.answer)
        }
        Err(ClientError::Refused { status: 404, .. }) if api.pinned.holds(&principal, &key) => {
            let ask = ResolveRequest {
                principal: principal.clone(),
                key: key.clone(),
            };
            let answer = api
                .ledger
                .resolve(&ask, deadline)
                .map_err(|e| api.read_failed(&e, "operation"))?;
            api.pinned.release(&principal, &key);
            Ok(answer)
        }
        Err(ClientError::Refused { status: 404, .. }) => Err(Problem::not_found(
            "no operation with this key has reached the ledger; sending it (again) is safe",
        )),
        Err(e) => Err(api.read_failed(&e, "operation")),
    }
}
