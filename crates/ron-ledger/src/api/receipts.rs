//! `GET /tx/{txid}/receipt`: receipt files with every part shown, for the services that hand out
//! copies; `GET /records`: records of the log, for auditors.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{ReceiptFile, RecordPage, TxId};
use ron_proto::scope;
use ron_service::log_host;
use ron_tlog::{ProofError, TlogProof};

use super::reads::{Answer, absent, log_read_failed, param, range};
use super::{Api, READ};
use crate::reader::Reader;
use crate::receipt;

pub(super) fn routes(api: &Arc<Api>) -> [Route; 2] {
    let [a, b] = [api, api].map(Arc::clone);
    [
        Route::get("/v1/ledger/tx/{txid}/receipt", READ, move |req| {
            file(&a, req)
        })
        .summary("Receipt file of a transaction with its whole private record; 409 `not_yet_covered` until a checkpoint covers it")
        .returns::<ReceiptFile>(200)
        .errors(&[400, 404, 409, 503])
        .while_draining(),
        Route::get(
            "/v1/ledger/records",
            Need::Scope(scope::LEDGER_AUDIT),
            move |req| records(&b, req),
        )
        .summary("Records of the log after a sequence, leaves with private records, in order and without gaps")
        .query_as::<u64>("after", false, "Return only records after this sequence")
        .query_as::<u64>(
            "limit",
            false,
            "Maximum number of records to return, 1 to 500; 500 by default",
        )
        .returns::<RecordPage>(200)
        .errors(&[400])
        .while_draining(),
    ]
}

fn file(api: &Api, req: &Request) -> Answer {
    let txid: TxId = param(req, "txid")?;
    let made = api.ledger.tx(txid).map_err(|e| log_read_failed(&e))?;
    let reader = Reader::new(&req.principal);
    let made = made.filter(|made| made.answer.receipt().is_some() && reader.sees(&made.entry));
    let made = made.ok_or_else(|| absent(api, "there is no entry with this id"));
    let seq = made?.seq;
    let (leaf, private) = api.ledger.record(seq).map_err(|e| log_read_failed(&e))?;
    let proof = api.log.proof(seq).map_err(|e| match e {
        ProofError::NotYetCovered { .. } => log_host::not_yet_covered(&e),
        e => log_read_failed(&e),
    })?;
    let proof = TlogProof::parse(&proof).map_err(|e| log_read_failed(&e))?;
    let file = receipt::file(leaf, &private, proof, api.log.keys.vkey());
    let file = file.map_err(|e| log_read_failed(&e))?;
    Ok(Response::json(200, &file).cache("no-store"))
}

fn records(api: &Api, req: &Request) -> Answer {
    req.query_only(&["after", "limit"])?;
    let (after, limit) = range(req)?;
    let page = api.ledger.records(after, limit);
    let page = page.map_err(|e| log_read_failed(&e))?;
    Ok(Response::json(200, &page).cache("no-store"))
}
