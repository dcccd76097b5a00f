//! `POST /oauth2/revoke` (RFC 7009): a client revokes a token that was issued to it; a caller with `passport:revoke`
//! revokes any token of its tenant, one with `passport:admin` any token. Answered when the revocation is durable. An invalid or expired token is answered with 200.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_proto::passport::Revoked;
use ron_proto::{Problem, scope};

use super::forms::AboutToken;
use super::{Caller, FORM_BYTES_MAX, Fields, TOKEN_FIELDS, as_oauth, caller, may};
use crate::api::{Api, judge};
use crate::revoke::{Answer, Revocation};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::POST,
        "/oauth2/revoke",
        Need::Public,
        move |req, responder| handle(&api, &req, responder),
    )
    .summary("Revoke a token; the revocation is durable when answered.")
    .body_form::<AboutToken>()
    .returns_nothing(200)
    .body_cap(FORM_BYTES_MAX)
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    match target(api, req) {
        Ok(Some((revoked, actor))) => api.send_revocation(Revocation {
            revoked,
            reason: "returned at the revocation endpoint".to_owned(),
            actor,
            form: Answer::Oauth,
            responder,
        }),
        Ok(None) => responder.send(Response::empty(200).cache("no-store")),
        Err(problem) => responder.send(as_oauth(problem)),
    }
}

/// What to revoke, and the caller's name for the record; `None` for a token that is invalid anyway.
fn target(api: &Api, req: &Request) -> Result<Option<(Revoked, String)>, Problem> {
    let form = Fields::parse(req, &TOKEN_FIELDS)?;
    let token = form.required("token")?;
    let caller = caller(api, req, &form, scope::PASSPORT_REVOKE)?;
    let good = match judge::judge(api, token) {
        Ok(good) => good,
        // It may be valid, so it must not count as revoked.
        Err(refused) if refused.reject.status() == 503 => return Err(refused.reject.problem()),
        Err(_) => return Ok(None),
    };
    let tenant = &good.claims.tenant;
    let actor = match caller {
        Caller::Scoped(bearer) => {
            if bearer.tenant != *tenant && !bearer.has_scope(scope::PASSPORT_ADMIN) {
                return Err(Problem::forbidden("the token belongs to another tenant"));
            }
            "bearer of passport:revoke".to_owned()
        }
        Caller::Client(id) => {
            let own = good.claims.client_id.as_deref() == Some(id.as_str());
            let of_tenant = may(api, &id, scope::PASSPORT_REVOKE).as_ref() == Some(tenant);
            if !own && !of_tenant && may(api, &id, scope::PASSPORT_ADMIN).is_none() {
                return Err(Problem::forbidden("the token was issued to another client"));
            }
            id
        }
    };
    let revoked = Revoked::Jti {
        until: good.claims.iat + ron_proto::passport::TTL_S_MAX + ron_proto::passport::SKEW_S,
        jti: good.claims.jti.clone(),
    };
    Ok(Some((revoked, actor)))
}
