//! `GET /v1/passport/revocations`: what was revoked, by which caller and why, newest first.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_kernel::SendError;
use ron_proto::passport::RecordedRevocations;
use ron_proto::{Problem, Timestamp, scope};

use super::Api;
use crate::revoke::{PAGE_MAX, RecordedAsk, RevokeEvent};

const LIMIT_DEFAULT: usize = 100;

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::GET,
        "/v1/passport/revocations",
        Need::Scope(scope::PASSPORT_ADMIN),
        move |req, responder| handle(&api, &req, responder),
    )
    .summary("Revocations with actor and reason, newest first.")
    .query_as::<u64>(
        "before",
        false,
        "only events with a smaller number: `next` of the page before",
    )
    .query_as::<Timestamp>("since", false, "only revocations from this time on")
    .query_as::<bool>(
        "in_force",
        false,
        "true: only those because of which a token may be refused now",
    )
    .query("limit", false, "1 to 1000 revocations, 100 by default")
    .returns::<RecordedRevocations>(200)
    .errors(&[400, 429, 503])
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    let ask = match asked(req) {
        Ok(ask) => ask,
        Err(problem) => return responder.send(problem),
    };
    if let Err(
        SendError::Full(RevokeEvent::List { responder, .. })
        | SendError::Closed(RevokeEvent::List { responder, .. }),
    ) = api.revoke.try_send(RevokeEvent::List { ask, responder })
    {
        responder.send(Problem::busy(api.revoke.retry_after_s()));
    }
}

fn asked(req: &Request) -> Result<RecordedAsk, Problem> {
    req.query_only(&["before", "since", "in_force", "limit"])?;
    let limit = req.query_as("limit")?.unwrap_or(LIMIT_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!(
            "limit must be 1 to {PAGE_MAX}"
        )));
    }
    Ok(RecordedAsk {
        before: req.query_as("before")?,
        since: req.query_as("since")?,
        in_force: req.query_as("in_force")?.unwrap_or(false),
        limit,
    })
}
