//! `GET /v1/tx/{txid}/receipt`: the receipt as a file that verifies alone.

use std::sync::Arc;
use std::time::Duration;

use ron_client::ClientError;
use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_kernel::{Deadline, SendError};
use ron_proto::ledger::{ReceiptFile, TxId};
use ron_proto::{Problem, scope};

use super::history::MIN_SEQ;
use super::tx::{event, no_such};
use super::{Api, is_own};
use crate::receipts::{ReceiptCopy, WaitingReceipt, not_yet_covered, shown};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::GET,
        "/v1/tx/{txid}/receipt",
        Need::Scope(scope::WALLET_READ),
        move |req, res| answer(&api, &req, res),
    )
    .summary(
        "Receipt of a transaction as one file that verifies alone, without the ledger. Until a checkpoint covers the transaction: 409 `not_yet_covered`, or with `Prefer: wait=S` an answer as soon as it does",
    )
    .query_as::<u64>(
        "wait",
        false,
        "Maximum seconds to wait for a checkpoint that covers the transaction, up to 30",
    )
    .query_as::<u64>("min_seq", false, MIN_SEQ)
    .returns::<ReceiptFile>(200)
    .errors(&[400, 403, 404, 409, 429, 503])
    .long_poll()
}

fn answer(api: &Api, req: &Request, res: Responder) {
    match wanted(api, req) {
        Err(problem) => res.send(problem),
        Ok((txid, copy, wait)) => match fetch(api, txid, copy, Api::read_deadline(req)) {
            Ok(file) => res.send(Response::json(200, &file)),
            Err(e) if not_covered(&e) && !wait.is_zero() => park(api, txid, copy, wait, res),
            Err(e) => res.send(failed(api, &e)),
        },
    }
}

fn wanted(api: &Api, req: &Request) -> Result<(TxId, ReceiptCopy, Duration), Problem> {
    req.query_only(&["wait", "min_seq"])?;
    let wait = req.wait()?.unwrap_or_default();
    let event = event(api, req, "receipt")?;
    let receipt = event.answer.receipt().ok_or_else(no_such)?;
    let copy = if is_own(&req.principal, &event.entry) {
        ReceiptCopy::Maker
    } else {
        let reference = event.entry.operands().details.share_reference;
        ReceiptCopy::Payee { reference }
    };
    Ok((receipt.txid, copy, wait))
}

fn fetch(
    api: &Api,
    txid: TxId,
    copy: ReceiptCopy,
    by: Deadline,
) -> Result<ReceiptFile, ClientError> {
    let file = api.upstream.client.receipt(txid, by)?;
    Ok(shown(file, copy))
}

/// True when the entry is durable and the next checkpoint will cover it.
fn not_covered(e: &ClientError) -> bool {
    e.code() == Some("not_yet_covered")
}

fn failed(api: &Api, e: &ClientError) -> Problem {
    if not_covered(e) {
        not_yet_covered()
    } else {
        api.read_failed(e, "transaction")
    }
}

fn park(api: &Api, txid: TxId, copy: ReceiptCopy, wait: Duration, responder: Responder) {
    let waiting = WaitingReceipt {
        txid,
        copy,
        until: Deadline::within(wait),
        responder,
    };
    if let Err(SendError::Full(back) | SendError::Closed(back)) = api.receipts.try_send(waiting) {
        let retry_after_s = api.receipts.retry_after_s();
        back.responder.send(Problem::busy(retry_after_s));
    }
}
