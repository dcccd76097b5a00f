//! `GET /v1/passport/issued`: which tokens were issued, to which client and for what.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::passport::IssuedTokens;
use ron_proto::{Problem, Timestamp, scope};

use super::{Api, published};
use crate::publish::PublishEvent;
use crate::trail::{IssuedAsk, parse_cursor};

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;
const QUERY: [&str; 7] = [
    "client", "audience", "subject", "since", "until", "before", "limit",
];

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::GET,
        "/v1/passport/issued",
        Need::Scope(scope::PASSPORT_ADMIN),
        move |req, responder| handle(&api, &req, responder),
    )
    .summary("The tokens that this issuer has issued, newest first: ids, clients, audiences, scopes, times, and never a token.")
    .query("client", false, "only tokens of this client")
    .query("audience", false, "only tokens for this service")
    .query("subject", false, "only tokens of this holder")
    .query_as::<Timestamp>("since", false, "only tokens issued from this time on")
    .query_as::<Timestamp>("until", false, "only tokens issued before this time")
    .query("before", false, "`next` of the page before")
    .query("limit", false, "1 to 1000 tokens, 100 by default")
    .returns::<IssuedTokens>(200)
    .errors(&[400, 429, 503])
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    match asked(req) {
        Ok(ask) => published::send(api, PublishEvent::Issued { ask, responder }),
        Err(problem) => responder.send(problem),
    }
}

fn asked(req: &Request) -> Result<IssuedAsk, Problem> {
    req.query_only(&QUERY)?;
    let limit = req.query_as("limit")?.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!(
            "limit must be 1 to {LIMIT_MAX}"
        )));
    }
    let text = |name: &str| Ok::<_, Problem>(req.query_one(name)?.map(str::to_owned));
    let before = req.query_one("before")?.map(|before| {
        let place = parse_cursor(before);
        place.ok_or_else(|| Problem::bad_request("before is not `next` of a page"))
    });
    Ok(IssuedAsk {
        client: text("client")?,
        audience: text("audience")?,
        subject: text("subject")?,
        since: req.query_as("since")?,
        until: req.query_as("until")?,
        before: before.transpose()?,
        limit,
    })
}
