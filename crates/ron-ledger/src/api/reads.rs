//! Handlers that read the durable state and the log.

use std::str::FromStr;
use std::time::Duration;

use ron_http::{Request, Responder, Response};
use ron_kernel::Deadline;
use ron_proto::ledger::{Event, EventPage, MAX_WIRE_INTEGER, RequestKey, ReversalsDoc, TxId};
use ron_proto::{Problem, ValueError};
use ron_tlog::ReadError;

use super::Api;
use crate::feed::{PAGE, Poll};
use crate::reader::Reader;

pub(super) type Answer = Result<Response, Problem>;

/// Parses a path parameter.
pub(super) fn param<T: FromStr<Err = ValueError>>(req: &Request, name: &str) -> Result<T, Problem> {
    req.param(name)
        .parse()
        .map_err(|e: ValueError| Problem::bad_request(e.to_string()))
}

fn found(req: &Request, event: Result<Option<Event>, ReadError>, what: &str) -> Answer {
    let reader = Reader::new(&req.principal);
    match event.map(|event| event.filter(|e| reader.sees(&e.entry))) {
        Ok(Some(event)) => Ok(Response::json(200, &event)),
        Ok(None) => Err(Problem::not_found(format!(
            "there is no entry with this {what}"
        ))),
        Err(e) => Err(log_read_failed(&e)),
    }
}

pub(super) fn log_read_failed(e: &dyn std::fmt::Display) -> Problem {
    tracing::error!(event = "log_read_failed", error = %e);
    Problem::internal("the log cannot be read; see the service's log")
}

pub(super) fn account(api: &Api, req: &Request) -> Answer {
    req.query_only(&[])?;
    let account = param(req, "account")?;
    if !Reader::new(&req.principal).sees_account(&account) {
        return Err(Problem::not_found(
            "the account is not a pool of the caller's tenant; svc-wallet shows balances of other accounts, and the scope ledger:audit shows all accounts here",
        ));
    }
    Ok(Response::json(200, &api.ledger.account(&account)))
}

pub(super) fn history(api: &Api, req: &Request) -> Answer {
    req.query_only(&["after", "limit"])?;
    let (after, limit) = range(req)?;
    let account = param(req, "account")?;
    let Some(history) = &api.history else {
        return Err(Problem::unavailable(
            "the projection that answers this is switched off",
            60,
        ));
    };
    let (seqs, applied) = history.history(&account, after, limit).map_err(|e| {
        tracing::warn!(event = "projection_read_failed", error = %e);
        Problem::unavailable("the projection cannot be read now", 1)
    })?;
    let mut events = Vec::with_capacity(seqs.len());
    for seq in seqs {
        events.extend(api.ledger.event(seq).map_err(|e| log_read_failed(&e))?);
    }
    let full = events.len() as u64 == limit;
    let next = events
        .last()
        .filter(|_| full)
        .map_or(applied.max(after), |e: &Event| e.seq);
    let reader = Reader::new(&req.principal);
    events.retain(|e| reader.sees(&e.entry));
    Ok(Response::json(
        200,
        &EventPage {
            events,
            next,
            head: api.ledger.head_seq(),
        },
    ))
}

pub(super) fn hold(api: &Api, req: &Request) -> Answer {
    let id: TxId = param(req, "hold")?;
    let made = api.ledger.tx(id).map_err(|e| log_read_failed(&e))?;
    let reader = Reader::new(&req.principal);
    match made
        .filter(|made| reader.sees(&made.entry))
        .and_then(|_| api.ledger.hold(id))
    {
        Some(doc) => Ok(Response::json(200, &doc)),
        None => Err(Problem::not_found("there is no open hold with this id")),
    }
}

pub(super) fn budget(api: &Api, req: &Request) -> Answer {
    req.query_only(&[])?;
    let id = param(req, "id")?;
    if !Reader::new(&req.principal).sees_budgets() {
        return Err(Problem::not_found(
            "budgets belong to tokens: svc-wallet shows a token its own at /v1/budget",
        ));
    }
    Ok(Response::json(200, &api.ledger.budget(id)))
}

pub(super) fn epoch(api: &Api, req: &Request) -> Answer {
    let tenant = param(req, "tenant")?;
    let found = api.ledger.epoch(&tenant, &param(req, "epoch")?);
    match found.filter(|_| Reader::new(&req.principal).is_of(&tenant)) {
        Some(doc) => Ok(Response::json(200, &doc)),
        None => Err(Problem::not_found("the epoch was never opened")),
    }
}

pub(super) fn head(api: &Api, _req: &Request) -> Answer {
    Ok(Response::json(200, &api.ledger.head()))
}

pub(super) fn by_key(api: &Api, req: &Request) -> Answer {
    let key = RequestKey {
        tenant: param(req, "tenant")?,
        principal: param(req, "principal")?,
        key: param(req, "key")?,
    };
    found(req, api.ledger.by_key(key), "key")
}

pub(super) fn tx(api: &Api, req: &Request) -> Answer {
    found(req, api.ledger.tx(param(req, "txid")?), "id")
}

pub(super) fn reversals(api: &Api, req: &Request) -> Answer {
    req.query_only(&[])?;
    let tx: TxId = param(req, "txid")?;
    let made = api.ledger.tx(tx).map_err(|e| log_read_failed(&e))?;
    let reader = Reader::new(&req.principal);
    if made.is_none_or(|made| !reader.sees(&made.entry)) {
        return Err(Problem::not_found("there is no entry with this id"));
    }
    let found = api.history.as_ref().map(|history| history.reversals(tx));
    let reversals = found.transpose().map_err(|e| {
        tracing::warn!(event = "projection_read_failed", error = %e);
        Problem::unavailable("the projection cannot be read now", 1)
    })?;
    let doc = ReversalsDoc {
        reversed_minor: api.ledger.reversed(tx),
        reversals: reversals.unwrap_or_default(),
    };
    Ok(Response::json(200, &doc))
}

pub(super) fn events(api: &Api, req: &Request, res: Responder) {
    match poll_query(req) {
        Err(problem) => res.send(problem),
        Ok((after, limit, wait)) => {
            let poll = Poll {
                responder: res,
                reader: Reader::new(&req.principal),
                after,
                limit,
                until: Deadline::within(wait),
            };
            if let Some(waiting) = poll.answer_or_wait(&api.ledger) {
                api.feed.park(waiting);
            }
        }
    }
}

fn poll_query(req: &Request) -> Result<(u64, u64, Duration), Problem> {
    req.query_only(&["after", "limit", "wait"])?;
    let (after, limit) = range(req)?;
    if req.query_as::<u64>("wait")?.is_some_and(|s| s > 30) {
        return Err(Problem::bad_request("wait is at most 30 seconds"));
    }
    Ok((after, limit, req.prefer_wait().unwrap_or_default()))
}

/// Reads the query parameters `after` and `limit`.
pub(super) fn range(req: &Request) -> Result<(u64, u64), Problem> {
    let after = req.query_as::<u64>("after")?.unwrap_or(0);
    let limit = req.query_as::<u64>("limit")?.unwrap_or(PAGE);
    if after > MAX_WIRE_INTEGER || limit == 0 || limit > PAGE {
        return Err(Problem::bad_request(format!(
            "limit is 1 to {PAGE}, after is below 2^53"
        )));
    }
    Ok((after, limit))
}
