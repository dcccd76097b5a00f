//! `GET /v1/tx/{txid}`.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{Entry, EntryAnswer, Event, PrivateFacts, TxId};
use ron_proto::wallet::Transaction;
use ron_proto::{Problem, scope};

use super::{Api, is_own};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get(
        "/v1/tx/{txid}",
        Need::Scope(scope::WALLET_READ),
        move |req| {
            let event = event(&api, req)?;
            let own = is_own(&req.principal, &event.entry);
            let EntryAnswer::Done {
                receipt, private, ..
            } = event.answer
            else {
                return Err(no_such());
            };
            let private = if own {
                Some(private)
            } else {
                shared(private, &event.entry)
            };
            Ok(Response::json(200, &Transaction { receipt, private }))
        },
    )
    .summary("Receipt of a transaction, with what the caller may see of its private side.")
    .returns::<Transaction>(200)
    .errors(&[400, 403, 404, 429, 503])
    .while_draining()
}

/// What others than the maker of an entry see of its private side: the reference, if it is shared.
fn shared(private: PrivateFacts, entry: &Entry) -> Option<PrivateFacts> {
    let shared = entry.operands().details.share_reference;
    let reference = private.reference.filter(|_| shared)?;
    Some(PrivateFacts {
        reference: Some(reference),
        ..PrivateFacts::default()
    })
}

pub fn no_such() -> Problem {
    Problem::not_found("there is no such transaction, or you may not see it")
}

/// The entry, if the caller may see it. A missing entry and a hidden one look the same.
pub fn event(api: &Api, req: &Request) -> Result<Event, Problem> {
    api.metrics.requests.with_label_values(&["tx"]).inc();
    let txid: TxId = req
        .param("txid")
        .parse()
        .map_err(|e| Problem::bad_request(format!("{e}")))?;
    let event = api
        .upstream
        .client
        .tx(txid, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "transaction"))?;
    if api.may_see(&req.principal, &event.entry) {
        Ok(event)
    } else {
        Err(no_such())
    }
}
