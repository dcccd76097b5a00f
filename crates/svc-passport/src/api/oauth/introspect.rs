//! `POST /oauth2/introspect` (RFC 7662). For gateways that see only the status (nginx `auth_request`): with
//! `Prefer: handling=strict` (RFC 7240) an inactive token is answered with 401 instead of 200, and so is a missing token,
//! because then the gateway's caller has sent none.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::passport::IntrospectAnswer;
use ron_proto::{Problem, scope};

use super::forms::AboutToken;
use super::{Caller, FORM_BYTES_MAX, Fields, TOKEN_FIELDS, as_oauth, caller, may};
use crate::api::{Api, judge};

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::post("/oauth2/introspect", Need::Public, move |req| {
        introspect(&api, req).map_err(as_oauth)
    })
    .summary("Whether a token is active, and its claims; for resource servers.")
    .body_form::<AboutToken>()
    .returns::<IntrospectAnswer>(200)
    .body_cap(FORM_BYTES_MAX)
    .while_draining()
}

fn introspect(api: &Api, req: &Request) -> Result<Response, Problem> {
    let form = Fields::parse(req, &TOKEN_FIELDS)?;
    let strict = prefers_strict(req.header("prefer"));
    let token = if strict {
        form.one("token")?.unwrap_or_default()
    } else {
        form.required("token")?
    };
    if let Caller::Client(id) = caller(api, req, &form, scope::PASSPORT_INTROSPECT)?
        && may(api, &id, scope::PASSPORT_INTROSPECT).is_none()
    {
        return Err(Problem::forbidden(
            "the issuer policy does not give this client passport:introspect at svc-passport",
        ));
    }
    let answer = match judge::judge(api, token) {
        Ok(good) => IntrospectAnswer {
            active: true,
            token_type: Some(kind(good.claims.jkt.is_some()).to_owned()),
            claims: Some(good.shown.clone()),
        },
        Err(_) if strict => {
            let why = match token {
                "" => "no token was sent",
                _ => "the token is not active",
            };
            // A gateway passes this on to its caller, whose token is refused, not the gateway's own credential.
            let challenge = match token {
                "" => "Bearer",
                _ => "Bearer error=\"invalid_token\"",
            };
            return Err(Problem::unauthorized(why)
                .with_oauth("invalid_token")
                .with_challenge(challenge));
        }
        Err(_) => IntrospectAnswer::default(),
    };
    Ok(Response::json(200, &answer).cache("no-store"))
}

const fn kind(bound: bool) -> &'static str {
    if bound { "DPoP" } else { "Bearer" }
}

fn prefers_strict(prefer: Option<&str>) -> bool {
    prefer.is_some_and(|list| {
        list.split([',', ';'])
            .any(|p| p.trim().eq_ignore_ascii_case("handling=strict"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preference_is_found_in_a_list() {
        assert!(prefers_strict(Some("wait=3, Handling=Strict")));
        assert!(!prefers_strict(Some("handling=lenient")));
        assert!(!prefers_strict(None));
    }
}
