//! `GET /v1/tx/{txid}` and `POST /v1/tx/{txid}/reverse`.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{Entry, EntryAnswer, EntryKind, Event, PrivateFacts, Reference, TxId};
use ron_proto::wallet::{Reverse, Transaction, TransactionNow, WalletAction};
use ron_proto::{Problem, scope};

use super::history::MIN_SEQ;
use super::submit::{Accepted, write};
use super::writes::{Tag, WriteEntry, daily, positive, tag};
use super::{Api, asks, body_or_default, is_own, param};
use crate::policy::PolicyRequest;
use crate::render::Texts;

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let receipt_api = api.clone();
    [
        Route::get(
            "/v1/tx/{txid}",
            Need::Scope(scope::WALLET_READ),
            move |req| transaction(&receipt_api, req),
        )
        .summary("Receipt of a transaction, with what the caller may see of its private side, and its reversals.")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<Transaction>(200)
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
        write(api, "/v1/tx/{txid}/reverse", Need::Identity, "reverse", |api, req| {
            let tag = tag(req)?;
            let body: Reverse = body_or_default(req)?;
            let (entry, account) = reverse(api, req, tag, body, || param(req, "txid"))?;
            Ok(Accepted::one(entry, account))
        })
            .summary("Move back what a transfer, capture or payout moved, in part or whole. Needs wallet:transfer and the policy action reverse on the account that is debited now, or wallet:admin and the action admin.")
            .body::<Reverse>()
            .returns::<Transaction>(200)
            .errors(&[404]),
    ]
}

fn transaction(api: &Api, req: &Request) -> Result<Response, Problem> {
    req.query_only(&["min_seq"])?;
    let event = event(api, req, "tx")?;
    let own = is_own(&req.principal, &event.entry);
    let texts = api.texts(&req.principal, &event);
    let shared = event.entry.operands().details.share_reference;
    let EntryAnswer::Done {
        receipt, private, ..
    } = event.answer
    else {
        return Err(no_such());
    };
    let private = match texts {
        _ if own => Some(private),
        Texts::All => Some(PrivateFacts {
            idem: None,
            ..private
        }),
        Texts::Shared => private.reference.filter(|_| shared).map(of_reference),
    };
    let now = receipt_now(api, req, receipt.txid);
    Ok(Response::json(
        200,
        &Transaction {
            receipt,
            private,
            now,
        },
    ))
}

fn of_reference(reference: Reference) -> PrivateFacts {
    PrivateFacts {
        reference: Some(reference),
        ..PrivateFacts::default()
    }
}

/// Absent while the ledger cannot say it: the receipt itself never changes and is shown all the same.
fn receipt_now(api: &Api, req: &Request, txid: TxId) -> Option<TransactionNow> {
    let doc = api.upstream.client.reversals(txid, Api::read_deadline(req));
    let doc = doc.ok()?;
    Some(TransactionNow {
        reversed_minor: doc.reversed_minor,
        reversals: doc.reversals,
    })
}

/// `txid` reads the id of the transaction to reverse.
pub fn reverse(
    api: &Api,
    req: &Request,
    tag: Tag,
    body: Reverse,
    txid: impl FnOnce() -> Result<TxId, Problem>,
) -> Result<WriteEntry, Problem> {
    body.amount_minor.map_or(Ok(()), positive)?;
    let caller = &req.principal;
    let admin = caller.has_scope(scope::WALLET_ADMIN);
    let transfer = caller.has_scope(scope::WALLET_TRANSFER);
    if !admin && !transfer {
        return Err(Problem::forbidden(
            "a reversal needs the scope wallet:transfer or wallet:admin",
        ));
    }
    let txid = txid()?;
    let event = named(api, req, txid, "transaction")?;
    let receipt = event.answer.receipt().filter(|r| r.txid == txid);
    let moved = receipt.ok_or_else(no_such)?;
    let movable = matches!(
        event.entry.kind(),
        EntryKind::Transfer | EntryKind::Capture | EntryKind::Payout
    );
    let (Some(payer), Some(asset), true) = (&moved.to, &moved.asset, movable) else {
        return Err(no_such());
    };
    // All that is left is at most what it moved.
    let amount = body.amount_minor.or(moved.amount_minor);
    // An administrator may have the right to reverse too, which is the narrower of the two.
    let asked = |action| PolicyRequest {
        account: Some(payer),
        asset: Some(asset),
        amount,
        ..asks(caller, action)
    };
    let reverses = || api.judge(caller, &asked(WalletAction::Reverse)).is_ok();
    let action = if transfer && (!admin || reverses()) {
        WalletAction::Reverse
    } else {
        WalletAction::Admin
    };
    let allowed = api.check(req, &asked(action))?;
    let entry = Entry::Reverse {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        tx: moved.txid,
        amount_minor: body.amount_minor,
        original: None,
        details: body.details,
        batch: tag.batch,
        daily_ceiling: Some(daily(api, allowed.daily)),
        budgets: req.principal.budgets.to_vec(),
    };
    Ok((entry, payer.clone()))
}

pub fn no_such() -> Problem {
    Problem::not_found("there is no such transaction, or you may not see it")
}

/// The entry, if the caller may see it. A missing entry and a hidden one look the same.
pub fn event(api: &Api, req: &Request, op: &'static str) -> Result<Event, Problem> {
    api.metrics.requests.with_label_values(&[op]).inc();
    api.check_min_seq(req)?;
    let event = found(api, req, param(req, "txid")?)?;
    if api.may_see(&req.principal, &event) {
        Ok(event)
    } else {
        Err(no_such())
    }
}

/// The entry that a write names, which is the one at its sequence unless the id is another: from the ledger, or from
/// the copy while the ledger is unavailable, so that the write sent again is answered then too.
pub fn named(api: &Api, req: &Request, id: TxId, what: &str) -> Result<Event, Problem> {
    let copied = || api.answers.at(id.seq());
    match api.upstream.unreachable() {
        Some(why) => copied().ok_or_else(|| Problem::unavailable(why, 1)),
        None => api
            .upstream
            .client
            .tx(id, Api::read_deadline(req))
            .map_err(|e| api.read_failed(&e, what)),
    }
}

fn found(api: &Api, req: &Request, txid: TxId) -> Result<Event, Problem> {
    api.upstream
        .client
        .tx(txid, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "transaction"))
}
