//! `GET /v1/events`: what happened to an account, as a long poll.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_kernel::{Deadline, SendError};
use ron_proto::ledger::Viewer;
use ron_proto::wallet::{AccountEvents, WalletAction};
use ron_proto::{Account, Problem, scope};

use super::history::MIN_SEQ;
use super::{Api, page_limit, sequence, viewer};
use crate::events::{EventPoll, read};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::GET,
        "/v1/events",
        Need::Scope(scope::WALLET_READ),
        move |req, res| answer(&api, &req, res),
    )
    .summary(
        "Entries that took effect on an account, oldest first and without gaps: ask again with `after` set to `next`. With `wait`, an answer as soon as there is one",
    )
    .query_as::<Account>("account", true, "Account whose entries to return")
    .query_as::<u64>("after", false, "Return only entries after this ledger sequence; 0 by default")
    .query_as::<u64>("limit", false, "Maximum number of entries to return, 1 to 500; 100 by default")
    .query_as::<u64>("wait", false, "Maximum seconds to wait for an entry, up to 30; 0 by default")
    .query_as::<u64>("min_seq", false, MIN_SEQ)
    .returns::<AccountEvents>(200)
    .errors(&[400, 403, 429, 503])
    .long_poll()
}

struct Wanted {
    account: Account,
    viewer: Viewer,
    after: u64,
    limit: u64,
    wait: Duration,
}

fn answer(api: &Api, req: &Request, res: Responder) {
    let wanted = match wanted(api, req) {
        Ok(wanted) => wanted,
        Err(problem) => return res.send(problem),
    };
    if wanted.wait.is_zero() {
        let Wanted {
            account,
            viewer,
            after,
            limit,
            ..
        } = wanted;
        let by = Api::read_deadline(req);
        match read(&api.upstream, &account, &viewer, (after, limit), by) {
            Ok((found, _)) => res.send(Response::json(200, &found).cache("no-store")),
            Err(e) => res.send(api.read_failed(&e, "account")),
        }
    } else {
        park(api, wanted, res);
    }
}

fn wanted(api: &Api, req: &Request) -> Result<Wanted, Problem> {
    api.metrics.requests.with_label_values(&["events"]).inc();
    req.query_only(&["account", "after", "limit", "wait", "min_seq"])?;
    let account: Account = req.query_required("account")?;
    let after = sequence(req, "after")?.unwrap_or(0);
    let limit = page_limit(req)?;
    let wait = req.wait()?.unwrap_or_default();
    api.allow(req, WalletAction::Read, &account, None, None)?;
    api.check_min_seq(req)?;
    Ok(Wanted {
        account,
        viewer: viewer(&req.principal)?,
        after,
        limit,
        wait,
    })
}

fn park(api: &Api, wanted: Wanted, responder: Responder) {
    let watched = api.watched.clone();
    responder.on_gone(move || watched.wake());
    let poll = EventPoll {
        account: wanted.account,
        viewer: wanted.viewer,
        after: wanted.after,
        limit: wanted.limit,
        until: Deadline::within(wanted.wait),
        newest: u64::MAX,
        responder,
    };
    match api.event_polls.try_send(poll) {
        Err(SendError::Full(back)) => {
            let retry_after_s = api.event_polls.retry_after_s();
            back.responder.send(Problem::busy(retry_after_s));
        }
        Err(SendError::Closed(back)) => back.responder.send(Problem::draining(1)),
        Ok(()) => {}
    }
}
