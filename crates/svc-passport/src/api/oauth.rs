//! `POST /oauth2/token`: client_credentials (RFC 6749 section 4.4) with a client secret.
//!
//! Errors have the form of RFC 6749 section 5.2. Besides `grant_type` and `scope`, a request may
//! carry `audience`, `ttl_s` and repeated `caveat` parameters.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::passport::{OauthError, TokenAnswer};
use ron_proto::{Problem, b64};

use super::Api;
use crate::issue::{Form, IssueJob};
use crate::policy::{Ask, Grant};

const FORM: &str = "application/x-www-form-urlencoded";
const KNOWN: [&str; 7] = [
    "grant_type",
    "scope",
    "audience",
    "ttl_s",
    "client_id",
    "client_secret",
    "caveat",
];

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::new(Method::POST, "/oauth2/token", Need::Public, move |req, responder| {
        handle(&api, &req, responder);
    })
    .summary("OAuth 2.0 token endpoint: client_credentials with client_secret_basic or client_secret_post.")
    .body_bytes(&[FORM])
    .returns::<TokenAnswer>(200)
    .returns::<OauthError>(400)
    .errors(&[401, 403, 415, 429, 502, 503])
    .body_cap(16 * 1024)
}

fn handle(api: &Api, req: &Request, responder: Responder) {
    match grant(api, req) {
        Ok(grant) => api.enqueue(IssueJob {
            grant,
            form: Form::Oauth,
            since: api.clock.now(),
            responder,
        }),
        Err(problem) => responder.send(as_oauth(problem)),
    }
}

/// RFC 6749 knows few error words; what has none yet gets the nearest.
fn as_oauth(problem: Problem) -> Problem {
    if problem.oauth.is_some() {
        return problem;
    }
    let word = match problem.status {
        401 => "invalid_client",
        403 => "unauthorized_client",
        429 | 502..=504 => "temporarily_unavailable",
        _ => "invalid_request",
    };
    problem.with_oauth(word)
}

fn grant(api: &Api, req: &Request) -> Result<Grant, Problem> {
    let form = Fields::parse(req)?;
    match form.one("grant_type")? {
        Some("client_credentials") => {}
        Some(_) => {
            return Err(
                Problem::bad_request("grant_type must be client_credentials")
                    .with_oauth("unsupported_grant_type"),
            );
        }
        None => return Err(Problem::bad_request("grant_type is missing")),
    }
    let (id, secret) = credentials(req, &form)?;
    api.clients.load().check(&id, &secret)?;
    let ttl_s = match form.one("ttl_s")? {
        None => None,
        Some(text) => {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let ttl = digits.then(|| text.parse::<u64>().ok()).flatten();
            Some(
                ttl.ok_or_else(|| Problem::bad_request("ttl_s must be a whole number of seconds"))?,
            )
        }
    };
    api.decide(&Ask {
        client_id: &id,
        subject: None,
        audience: form.one("audience")?,
        scope: form.one("scope")?,
        ttl_s,
        caveats: &form.all("caveat"),
        accept_algs: &[],
    })
}

/// Basic, or in the body; never both (RFC 6749 section 2.3).
fn credentials(req: &Request, form: &Fields) -> Result<(String, String), Problem> {
    let in_body = (form.one("client_id")?, form.one("client_secret")?);
    let Some(header) = req.header("authorization") else {
        return match in_body {
            (Some(id), Some(secret)) => Ok((id.to_owned(), secret.to_owned())),
            _ => Err(Problem::unauthorized(
                "client authentication is missing: use HTTP Basic, or client_id and client_secret in the body",
            )),
        };
    };
    if in_body.1.is_some() {
        return Err(Problem::bad_request(
            "use one way of client authentication, not two",
        ));
    }
    let refuse = || Problem::unauthorized("the Authorization header is not HTTP Basic");
    let (scheme, value) = header.split_once(' ').ok_or_else(refuse)?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(refuse());
    }
    let raw = b64::from_std(value.trim()).map_err(|_| refuse())?;
    let text = String::from_utf8(raw).map_err(|_| refuse())?;
    let (id, secret) = text.split_once(':').ok_or_else(refuse)?;
    let decode = |part: &str| ron_http::form_decode(part).ok_or_else(refuse);
    Ok((decode(id)?, decode(secret)?))
}

/// The fields of a form.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn parse(req: &Request) -> Result<Self, Problem> {
        let content_type = req.header("content-type").unwrap_or("");
        let media = content_type.split(';').next().unwrap_or("").trim();
        if !media.eq_ignore_ascii_case(FORM) {
            return Err(Problem::unsupported_media_type(format!(
                "send the request as {FORM}"
            )));
        }
        let fields = std::str::from_utf8(&req.body)
            .ok()
            .and_then(ron_http::form_fields)
            .ok_or_else(|| Problem::bad_request("the body is not a well-formed form"))?;
        if fields
            .iter()
            .any(|(name, _)| !KNOWN.contains(&name.as_str()))
        {
            return Err(Problem::bad_request(format!(
                "unknown parameter; known are {}",
                KNOWN.join(", ")
            )));
        }
        Ok(Self(fields))
    }

    fn one(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut found = self.0.iter().filter(|(n, _)| n == name);
        let first = found.next().map(|(_, v)| v.as_str());
        if found.next().is_some() {
            return Err(Problem::bad_request(format!("{name} is given twice")));
        }
        Ok(first)
    }

    fn all(&self, name: &str) -> Vec<String> {
        self.0
            .iter()
            .filter(|(n, _)| n == name)
            .map(|(_, v)| v.clone())
            .collect()
    }
}
