//! `POST /oauth2/token`: client_credentials (RFC 6749 section 4.4), jwt-bearer (RFC 7523 section 2.1) and token exchange
//! (RFC 8693), all with DPoP
//! (RFC 9449) where a proof is sent. A request may carry `audience`, `ttl_s`, repeated `caveat` parameters and
//! `authorization_details` of type `ron` (RFC 9396).

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_proto::passport::{ACCESS_TOKEN_TYPE, JWT_BEARER_GRANT, TOKEN_EXCHANGE, TokenAnswer};
use ron_proto::{Problem, caveat, strict};

use super::forms::TokenForm;
use super::{AuthenticatedClient, FORM_BYTES_MAX, Fields, as_oauth, client, external};
use crate::api::{Api, judge};
use crate::dpop::ProofRefused;
use crate::exchange::{PresentedToken, exchange};
use crate::issue::{Form, IssueJob};
use crate::policy::{Grant, TokenRequest};

/// The fields of the form besides those of client authentication.
pub(super) const KNOWN: [&str; 13] = [
    "grant_type",
    "scope",
    "audience",
    "resource",
    "ttl_s",
    "caveat",
    "authorization_details",
    "assertion",
    "subject_token",
    "subject_token_type",
    "actor_token",
    "actor_token_type",
    "requested_token_type",
];

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(
        Method::POST,
        "/oauth2/token",
        Need::Public,
        move |req, responder| handle(&api, &req, responder),
    )
    .summary("OAuth 2.0 token endpoint: client_credentials, jwt-bearer and token exchange.")
    .body_form::<TokenForm>()
    .returns::<TokenAnswer>(200)
    .body_cap(FORM_BYTES_MAX)
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    match grant(api, req) {
        Ok((grant, form)) => api.enqueue(IssueJob {
            grant,
            form,
            since: api.clock.now(),
            responder,
        }),
        Err(problem) => {
            let problem = as_oauth(problem);
            let mut response = Response::from(problem);
            if let Some(nonce) = api.proofs.nonce(api.now_s()) {
                response = response.header("dpop-nonce", nonce);
            }
            responder.send(response);
        }
    }
}

/// The client, and the thumbprint of the key that it has proved to hold.
fn bound(
    api: &Api,
    req: &Request,
    form: &Fields,
    foreign: Option<&str>,
    exchanging: bool,
) -> Result<(AuthenticatedClient, Option<String>), Problem> {
    let verified = |client: Option<&str>| {
        let proof = api.proofs.verify(req, &api.auth.bases(), api.now_s());
        proof.map_err(|refused| proof_refused(api, req, client, refused))
    };
    let (client, proof) = if let Some(token) = foreign {
        // Before the token is used up: its holder may be unable to get another.
        target(form)?;
        if exchanging {
            exchange_only(form)?;
        }
        let proof = verified(None)?;
        (external::mapped(api, req, form, token)?, proof)
    } else {
        let client = client(api, req, form)?;
        let proof = verified(Some(&client.id))?;
        (client, proof)
    };
    let take = |proof| {
        let taken = api
            .proofs
            .take(proof, &client.id, api.now_s(), req.deadline);
        taken.map_err(|refused| proof_refused(api, req, Some(&client.id), refused))
    };
    let jkt = proof.map(take).transpose()?;
    Ok((client, jkt))
}

/// The answer to a refused proof. That a nonce is missing is no fault of the client.
fn proof_refused(api: &Api, req: &Request, client: Option<&str>, refused: ProofRefused) -> Problem {
    let reason = refused.reason();
    let is_normal = refused == ProofRefused::Nonce;
    let problem = refused.problem();
    if is_normal {
        return problem;
    }
    api.refused(req, reason, client, problem)
}

fn grant(api: &Api, req: &Request) -> Result<(Grant, Form), Problem> {
    let form = Fields::parse(req, &KNOWN)?;
    let kind = match form.one("grant_type")? {
        Some(kind @ ("client_credentials" | JWT_BEARER_GRANT | TOKEN_EXCHANGE)) => kind,
        Some(_) => {
            return Err(Problem::bad_request(
                "grant_type must be client_credentials, the jwt-bearer one of RFC 7523 or the token-exchange one of RFC 8693",
            )
            .with_oauth("unsupported_grant_type"));
        }
        None => return Err(Problem::bad_request("grant_type is missing")),
    };
    let exchanging = kind == TOKEN_EXCHANGE;
    let foreign = external::token_of(&form, kind)?;
    let (AuthenticatedClient { id, x5t }, jkt) = bound(api, req, &form, foreign, exchanging)?;
    let mut caveats = form.all("caveat");
    if let Some(text) = form.one("authorization_details")? {
        caveats.extend(details(text)?);
    }
    let ask = TokenRequest {
        client_id: &id,
        subject: None,
        audience: target(&form)?,
        scope: form.one("scope")?,
        ttl_s: form.one("ttl_s")?.map(seconds).transpose()?,
        caveats: &caveats,
        accept_algs: &[],
        jkt: jkt.as_deref(),
        x5t: x5t.as_deref(),
        pq_ready: api.keys.pq_ready(),
    };
    let denied = |problem: &Problem| {
        if problem.status == 403 {
            api.trace(req, "issuer_policy", Some(&id));
        }
    };
    if exchanging && foreign.is_none() {
        exchange_only(&form)?;
        let grant = exchanged(api, &form, &ask).inspect_err(denied)?;
        return Ok((grant, Form::Exchange));
    }
    for name in &KNOWN[8..] {
        if !exchanging && form.one(name)?.is_some() {
            return Err(Problem::bad_request(format!(
                "{name} belongs to token exchange"
            )));
        }
    }
    let answer = if exchanging {
        Form::Exchange
    } else {
        Form::Oauth
    };
    Ok((api.decide(&ask).inspect_err(denied)?, answer))
}

/// The service that the token is for, from `audience` or from `resource` (RFC 8707): one, because a token is for one.
fn target(form: &Fields) -> Result<Option<&str>, Problem> {
    let refused = |why| Problem::bad_request(why).with_oauth("invalid_target");
    let named = |name| {
        let several = |_| refused("a token is for one service: name it once");
        form.one(name).map_err(several)
    };
    let (audience, resource) = (named("audience")?, named("resource")?);
    let Some(url) = resource else {
        return Ok(audience);
    };
    let absolute = url.split_once(':').is_some_and(|(scheme, rest)| {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        !scheme.is_empty() && scheme.bytes().all(word) && !rest.is_empty() && !url.contains('#')
    });
    if !absolute {
        return Err(refused(
            "resource is an absolute URL without fragment (RFC 8707); name other services with audience",
        ));
    }
    if audience.is_some_and(|audience| audience != url) {
        return Err(refused("audience and resource name different services"));
    }
    Ok(Some(url))
}

fn access(name: &str, value: Option<&str>) -> Result<(), Problem> {
    match value {
        None | Some(ACCESS_TOKEN_TYPE) => Ok(()),
        Some(_) => Err(Problem::bad_request(format!(
            "{name} must be {ACCESS_TOKEN_TYPE}"
        ))),
    }
}

/// What every exchange asks for: an access token, for the client itself.
fn exchange_only(form: &Fields) -> Result<(), Problem> {
    access("requested_token_type", form.one("requested_token_type")?)?;
    if form.one("actor_token")?.is_some() || form.one("actor_token_type")?.is_some() {
        return Err(Problem::bad_request(
            "actor_token is not supported: the authenticated client is the actor",
        ));
    }
    Ok(())
}

fn exchanged(api: &Api, form: &Fields, ask: &TokenRequest<'_>) -> Result<Grant, Problem> {
    access(
        "subject_token_type",
        Some(form.required("subject_token_type")?),
    )?;
    let token = form.required("subject_token")?;
    let good = judge::judge(api, token).map_err(|refused| match refused.reject.status() {
        503 => refused.reject.problem(),
        _ => Problem::bad_request(format!("subject_token: {}", refused.reject))
            .with_oauth("invalid_grant"),
    })?;
    let held = PresentedToken {
        claims: &good.claims,
        audience: &good.shown.aud,
        act: good.shown.act.as_ref(),
    };
    let limits = api.limits.load();
    let decided = api.with_policy(|policy| exchange(policy, ask, &held, &limits, api.now_s()));
    api.counted(decided)
}

/// `authorization_details`: a JSON array of objects of type `ron`, as caveats.
fn details(text: &str) -> Result<Vec<String>, Problem> {
    let refuse =
        |why: String| Problem::bad_request(why).with_oauth("invalid_authorization_details");
    let list: Vec<serde_json::Value> = strict::from_slice(text.as_bytes())
        .map_err(|e| refuse(format!("authorization_details: {e}")))?;
    let mut caveats = Vec::new();
    for detail in &list {
        let read = caveat::from_detail(detail).map_err(|e| {
            Problem::new(400, e.code, "Caveat refused", e.detail)
                .with_oauth("invalid_authorization_details")
        })?;
        caveats.extend(read.iter().map(ToString::to_string));
    }
    Ok(caveats)
}

fn seconds(text: &str) -> Result<u64, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| Problem::bad_request("ttl_s must be a whole number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_caveats_are_read_or_refused_whole() {
        let good = details(r#"[{"type":"ron","asset":"ron","method":["GET","POST"]}]"#).unwrap();
        assert_eq!(good, ["asset=ron", "method=GET", "method=POST"]);
        for (bad, code) in [
            (r#"[{"type":"ron","colour":"red"}]"#, "unknown_caveat"),
            (r#"[{"type":"other","asset":"ron"}]"#, "bad_caveat"),
            (r#"{"type":"ron"}"#, "bad_request"),
            ("[", "bad_request"),
        ] {
            let got = details(bad).unwrap_err();
            assert_eq!(
                (got.code, got.oauth),
                (code, Some("invalid_authorization_details")),
                "{bad}"
            );
        }
        assert_eq!(seconds("60").unwrap(), 60);
        for bad in ["", "-1", "1.5", "99999999999999999999"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
