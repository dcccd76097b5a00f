//! `GET /v1/passport/events`: the ordered revocation feed, by long poll. It opens the leaves of the public revocation log,
//! so it needs `passport:introspect`: as a listed service, or with a passport.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_kernel::{Deadline, SendError};
use ron_proto::passport::RevocationPage;
use ron_proto::{Problem, scope};

use super::Api;
use crate::revoke::RevokeEvent;

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::GET,
        "/v1/passport/events",
        Need::Scope(scope::PASSPORT_INTROSPECT),
        move |req, responder| {
            handle(&api, &req, responder);
        },
    )
    .summary("Revocation events after a number; waits up to `wait` seconds for the next one.")
    .query(
        "after",
        false,
        "number of the last event seen; 0 or absent reads from the start. Beyond the last event the answer comes at once with a smaller `next`: the issuer has another history, read from 0",
    )
    .query_as::<u64>(
        "wait",
        false,
        "seconds to wait for a new event, at most 30",
    )
    .returns::<RevocationPage>(200)
    .errors(&[400, 429, 503])
    .long_poll()
    .while_draining()
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    let asked = req
        .query_only(&["after", "wait"])
        .and_then(|()| Ok((req.query_as::<u64>("after")?, req.wait()?)));
    let (after, wait) = match asked {
        Ok((after, wait)) => (after.unwrap_or(0), wait.unwrap_or_default()),
        Err(problem) => return responder.send(problem),
    };
    let revoke = api.revoke.clone();
    responder.on_gone(move || {
        let _ = revoke.try_send(RevokeEvent::ReaderGone); // queue full: the next event removes the reader
    });
    let event = RevokeEvent::Read {
        after,
        until: Deadline::within(wait),
        responder,
    };
    if let Err(
        SendError::Full(RevokeEvent::Read { responder, .. })
        | SendError::Closed(RevokeEvent::Read { responder, .. }),
    ) = api.revoke.try_send(event)
    {
        responder.send(Problem::busy(api.revoke.retry_after_s()));
    }
}
