//! `GET /v1/tx/{txid}` and `/v1/tx/{txid}/proof`.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{Event, Receipt, TxId};
use ron_proto::{Problem, scope};

use super::Api;

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let receipt = api.clone();
    let proof = api.clone();
    [
        Route::get(
            "/v1/tx/{txid}",
            Need::Scope(scope::WALLET_READ),
            move |req| {
                let event = event(&receipt, req)?;
                let found = event.answer.receipt().ok_or_else(no_such)?;
                Ok(Response::json(200, found))
            },
        )
        .summary("Receipt of a transaction.")
        .returns::<Receipt>(200)
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
        Route::get(
            "/v1/tx/{txid}/proof",
            Need::Scope(scope::WALLET_READ),
            move |req| {
                let event = event(&proof, req)?;
                let text = proof
                    .upstream
                    .client
                    .proof(event.seq, Api::read_deadline(req))
                    .map_err(|e| proof.read_failed(&e, "proof"))?;
                Ok(Response::text(200, text))
            },
        )
        .summary("Proof that the transaction is in the ledger's log (c2sp.org/tlog-proof@v1).")
        .returns_bytes(200, "text/plain; charset=utf-8")
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
    ]
}

fn no_such() -> Problem {
    Problem::not_found("there is no such transaction, or you may not see it")
}

/// The entry, if the caller may see it. A missing entry and a hidden one look the same.
fn event(api: &Api, req: &Request) -> Result<Event, Problem> {
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
