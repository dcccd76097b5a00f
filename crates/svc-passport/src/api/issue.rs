//! `POST /v1/passport/issue`.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::passport::{IssueAnswer, IssueRequest};
use ron_proto::{Problem, scope};

use super::Api;
use crate::issue::{Form, IssueJob};
use crate::policy::{Grant, TokenRequest};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::POST,
        "/v1/passport/issue",
        Need::Scope(scope::PASSPORT_ISSUE),
        move |req, responder| handle(&api, &req, responder),
    )
    .summary("Issue a token as the issuer policy allows the caller.")
    .body::<IssueRequest>()
    .returns::<IssueAnswer>(200)
    .errors(&[400, 403, 429, 500, 502, 503])
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    match grant(api, req) {
        Ok(grant) => api.enqueue(IssueJob {
            grant,
            form: Form::Passport,
            since: api.clock.now(),
            responder,
        }),
        // Decisions shared with the token endpoint carry an OAuth error code; answers of this endpoint have none.
        Err(problem) => responder.send(Problem {
            oauth: None,
            ..problem
        }),
    }
}

fn grant(api: &Api, req: &Request) -> Result<Grant, Problem> {
    let body: IssueRequest = req.json()?;
    if body.proof.is_some() {
        return Err(Problem::bad_request("proof is reserved: leave it out"));
    }
    let caveats: Vec<String> = body.caveats.into_iter().map(|caveat| caveat.0).collect();
    let grant = api.decide(&TokenRequest {
        client_id: &req.principal.name,
        subject: Some(&body.subject_ref),
        audience: Some(&body.audience),
        scope: body.scope.as_deref(),
        ttl_s: body.ttl_s,
        caveats: &caveats,
        accept_algs: &body.accept_algs,
        jkt: None,
        x5t: None,
        pq_ready: api.keys.pq_ready(),
    })?;
    // A token's subject may have the name of another tenant's client.
    if grant.tenant != req.principal.tenant {
        return Err(Problem::forbidden(
            "the issuer policy has no client of this name in the caller's tenant",
        ));
    }
    Ok(grant)
}
