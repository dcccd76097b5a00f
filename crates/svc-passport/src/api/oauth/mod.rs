//! The OAuth endpoints: token (RFC 6749, 8693), introspect (RFC 7662), revoke (RFC 7009). They share the form parser, the
//! client authentication, and the error format of RFC 6749 section 5.2.

mod external;
mod forms;
mod introspect;
mod revoke;
mod token;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::AuthReject;
use ron_http::{Authorizer as _, Need, Principal, Request, RequestHead, Route};
use ron_kernel::{Deadline, reply};
use ron_proto::passport::{ClientRule, JWT_BEARER, OauthError};
use ron_proto::{Problem, Tenant, b64};

use super::Api;
use crate::clients::{self, ClientReject, UsedAssertion};
use crate::once;
use crate::revoke::RevokeEvent;

/// The fields of client authentication, allowed in every form.
const CLIENT_FIELDS: [&str; 4] = [
    "client_id",
    "client_secret",
    "client_assertion_type",
    "client_assertion",
];
/// The further fields of introspection and revocation.
const TOKEN_FIELDS: [&str; 2] = ["token", "token_type_hint"];
/// Maximum wait for the use of an assertion to be stored.
const ASSERTION_WAIT: Duration = Duration::from_secs(1);
/// Maximum bytes of a form.
const FORM_BYTES_MAX: usize = 32 * 1024;

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    [
        token::route(api),
        introspect::route(api),
        revoke::route(api),
    ]
    .map(says_oauth_errors)
}

/// Documents the errors of these endpoints: the codes of RFC 6749, under their statuses.
fn says_oauth_errors(route: Route) -> Route {
    let statuses = [400, 401, 429, 500, 502, 503];
    statuses.into_iter().fold(route, |route, status| {
        route.returns::<OauthError>(status).errors(&[status])
    })
}

/// Converts a problem to the few error codes and two statuses of RFC 6749; a problem without a code gets the nearest one.
fn as_oauth(mut problem: Problem) -> Problem {
    let word = problem.oauth.unwrap_or(match problem.status {
        401 => "invalid_client",
        403 => "unauthorized_client",
        429 | 502..=504 => "temporarily_unavailable",
        500 | 501 => "server_error",
        _ => "invalid_request",
    });
    if problem.status == 403 {
        problem.status = 400;
        problem.header = None;
    }
    problem.with_oauth(word)
}

/// The caller of an OAuth endpoint.
#[derive(Debug)]
enum Caller {
    /// A client of the configuration.
    Client(String),
    /// The bearer of a passport or service token with the scope that the endpoint requires.
    Scoped(Principal),
}

#[derive(Debug, PartialEq, Eq)]
struct AuthenticatedClient {
    /// `client_id`.
    id: String,
    /// Hash of the certificate it authenticated with; its tokens are bound to that (RFC 8705 section 3).
    x5t: Option<String>,
}

/// Authenticates the client by exactly one of: HTTP Basic, secret in the form, signed assertion (RFC 6749 section 2.3); or,
/// if none of these is sent, by the certificate of its connection (RFC 8705 section 2).
fn client(api: &Api, req: &Request, form: &Fields) -> Result<AuthenticatedClient, Problem> {
    // Secrets and assertions end by the date.
    if api.clock.date_unknown().is_some() {
        return Err(AuthReject::NoDate.problem());
    }
    api.may_guess(req)
        .map_err(|busy| api.refused(req, "client_guesses", None, busy))?;
    authenticate(api, req, form).map_err(|refused| match refused {
        Refused::Form(problem) => problem,
        Refused::Client(reject, claimed) => {
            api.guessed(req);
            // An unknown name is the caller's own text and must not get into the log.
            let clients = api.clients.load();
            let known = claimed.as_deref().and_then(|id| clients.known(id));
            api.refused(req, reject.reason(), known, reject.problem())
        }
    })
}

/// Why client authentication failed.
enum Refused {
    /// The form is malformed or mixes methods.
    Form(Problem),
    /// The named client is not authenticated; its claimed name, if any.
    Client(ClientReject, Option<String>),
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Form(problem)
    }
}

fn authenticate(api: &Api, req: &Request, form: &Fields) -> Result<AuthenticatedClient, Refused> {
    let id = form.one("client_id")?;
    let spoken = ["client_secret", "client_assertion", "client_assertion_type"]
        .iter()
        .any(|name| form.0.iter().any(|(field, _)| field == name));
    // A certificate counts only if the request carries no other authentication: TLS sends it with every request.
    let silent = !spoken && !req.headers.contains("authorization");
    if let (true, Some(id), Some(cert)) = (silent, id, &req.client_cert) {
        let checked = api.clients.load().check_cert(id, cert);
        checked.map_err(|reject| Refused::Client(reject, Some(id.to_owned())))?;
        return Ok(AuthenticatedClient {
            id: id.to_owned(),
            x5t: ron_auth::x5t_s256(cert),
        });
    }
    let id = by_secret_or_assertion(api, req, form)?;
    Ok(AuthenticatedClient { id, x5t: None })
}

fn by_secret_or_assertion(api: &Api, req: &Request, form: &Fields) -> Result<String, Refused> {
    let id = form.one("client_id")?;
    let secret = form.one("client_secret")?;
    let assertion = form.one("client_assertion")?;
    let kind = form.one("client_assertion_type")?;
    let basic = req.header("authorization");
    let ways = [
        basic.is_some(),
        secret.is_some(),
        assertion.is_some() || kind.is_some(),
    ];
    if ways.iter().filter(|used| **used).count() > 1 || req.headers.count("authorization") > 1 {
        return Err(Problem::bad_request("use one way of client authentication, not two").into());
    }
    let clients = api.clients.load();
    if let (Some(assertion), Some(kind)) = (assertion, kind) {
        if kind != JWT_BEARER {
            return Err(Problem::bad_request(
                "client_assertion_type must be the jwt-bearer one of RFC 7523",
            )
            .into());
        }
        let checked = clients.check_assertion(assertion, id, &api.audiences(), api.now_s());
        let claimed = || clients::named_in(assertion).or_else(|| id.map(str::to_owned));
        let used = checked.map_err(|reject| Refused::Client(reject, claimed()))?;
        let client = used.client.clone();
        if !api.keep_assertion(used, req.deadline)? {
            return Err(Refused::Client(ClientReject::AssertionReplay, Some(client)));
        }
        return Ok(client);
    }
    if ways[2] {
        return Err(Problem::bad_request(
            "client_assertion and client_assertion_type belong together",
        )
        .into());
    }
    let (id, secret) = match (basic, id, secret) {
        (Some(header), named, None) => {
            let pair = basic_pair(header);
            let (id, secret) = pair.ok_or(Refused::Client(ClientReject::Basic, None))?;
            if named.is_some_and(|named| named != id) {
                let why = "client_id is not the one of HTTP Basic";
                return Err(Problem::bad_request(why).into());
            }
            (id, secret)
        }
        (None, Some(id), Some(secret)) => (id.to_owned(), secret.to_owned()),
        (_, id, _) => {
            let claimed = id.map(str::to_owned);
            return Err(Refused::Client(ClientReject::Missing, claimed));
        }
    };
    match clients.check(&id, &secret, api.now_s()) {
        Ok(()) => Ok(id),
        Err(reject) => Err(Refused::Client(reject, Some(id))),
    }
}

/// Name and secret of HTTP Basic, each encoded like a form's (RFC 6749 section 2.3.1).
fn basic_pair(header: &str) -> Option<(String, String)> {
    let (scheme, value) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let raw = b64::from_std(value.trim()).ok()?;
    let text = String::from_utf8(raw).ok()?;
    let (id, secret) = text.split_once(':')?;
    Some((ron_http::form_decode(id)?, ron_http::form_decode(secret)?))
}

/// A client, or the bearer of a token with the scope (RFC 7662 section 2.1 allows both).
fn caller(api: &Api, req: &Request, form: &Fields, scope: &'static str) -> Result<Caller, Problem> {
    let scheme = req.header("authorization").and_then(|h| h.split_once(' '));
    let token = ["bearer", "dpop"];
    if !scheme.is_some_and(|(s, _)| token.contains(&s.to_ascii_lowercase().as_str())) {
        return client(api, req, form).map(|proved| Caller::Client(proved.id));
    }
    let head = RequestHead {
        method: req.method,
        path: req.path.clone(),
        route: req.route,
        headers: req.headers.clone(),
        peer: req.peer,
        transport: req.transport,
        client_cert: req.client_cert.clone(),
        trace: req.trace.clone(),
    };
    api.auth
        .authorize(&head, &Need::Scope(scope))
        .map(Caller::Scoped)
        .map_err(|problem| match problem.status {
            401 => problem.with_oauth("invalid_token"),
            403 => problem.with_oauth("insufficient_scope"),
            _ => problem,
        })
}

impl Api {
    /// Waits until the use of an assertion is durable: it must not count again after a restart. False when it was used at another node.
    fn keep_assertion(
        &self,
        assertion: UsedAssertion,
        deadline: Deadline,
    ) -> Result<bool, Problem> {
        if let Some(once) = &self.once {
            let id = (assertion.client.as_str(), assertion.jti.as_str());
            return once.take(once::ASSERTION, id, assertion.until_s, deadline);
        }
        let (answer, durable) = reply();
        let sent = self
            .revoke
            .try_send(RevokeEvent::Used { assertion, answer });
        sent.map_err(|_| Problem::busy(self.revoke.retry_after_s()))?;
        // Short, because it occupies a worker: when the disk hangs, the other requests need it.
        let until = deadline.capped(ASSERTION_WAIT);
        let stored = durable.wait(until).unwrap_or_else(|_| {
            let why = "the use of the assertion could not be stored in time; send a new one";
            Err(Problem::unavailable(why, 1))
        });
        stored.map(|()| true)
    }

    /// Counts and logs a refusal at an OAuth endpoint and returns the answer. `client` must be a name from the
    /// configuration.
    fn refused(
        &self,
        req: &Request,
        reason: &'static str,
        client: Option<&str>,
        answer: Problem,
    ) -> Problem {
        self.metrics.rejects.with_label_values(&[answer.code]).inc();
        if let Some(client) = client {
            self.refusals.note(client, reason, self.sender(req));
        }
        self.trace(req, reason, client);
        answer
    }

    /// Logs a refused caller only; the caller of this function counts the answer.
    fn trace(&self, req: &Request, reason: &'static str, client: Option<&str>) {
        let peer = self.sender(req);
        self.auth.refused(reason, peer, req.trace.id(), client);
    }
}

/// The tenant of a client to which the policy gives this scope at this service. A client may do directly what its own
/// tokens could do.
fn may(api: &Api, client: &str, scope: &str) -> Option<Tenant> {
    api.policy.with(|in_force| {
        let gives = |rule: &&ClientRule| {
            let here = rule
                .audiences
                .iter()
                .filter(|a| a.audience == super::SERVICE);
            rule.client_id == client && here.flat_map(|a| &a.scopes).any(|s| s == scope)
        };
        let rules = in_force.iter().flat_map(|one| &one.policy.clients);
        rules.filter(gives).map(|rule| rule.tenant.clone()).next()
    })
}

/// The fields of a form.
struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses the body. A field without a value counts as absent, and a field that is neither in `known`
    /// nor of client authentication is ignored (RFC 6749 section 3.2).
    fn parse(req: &Request, known: &[&str]) -> Result<Self, Problem> {
        let mut fields = std::str::from_utf8(&req.body)
            .ok()
            .and_then(ron_http::form_fields)
            .ok_or_else(|| Problem::bad_request("the body is not a well-formed form"))?;
        let read = |name: &str| known.contains(&name) || CLIENT_FIELDS.contains(&name);
        fields.retain(|(name, value)| !value.is_empty() && read(name));
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

    fn required(&self, name: &str) -> Result<&str, Problem> {
        self.one(name)?
            .filter(|value| !value.is_empty())
            .ok_or_else(|| Problem::bad_request(format!("{name} is missing")))
    }

    fn all(&self, name: &str) -> Vec<String> {
        self.0
            .iter()
            .filter(|(n, _)| n == name)
            .map(|(_, v)| v.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_get_the_words_and_statuses_of_rfc_6749() {
        let check = |problem: Problem, status: u16, word: &str| {
            let got = as_oauth(problem);
            assert_eq!((got.status, got.oauth), (status, Some(word)), "{got}");
        };
        check(Problem::bad_request("x"), 400, "invalid_request");
        check(Problem::unauthorized("x"), 401, "invalid_client");
        check(Problem::forbidden("x"), 400, "unauthorized_client");
        check(
            Problem::forbidden("x").with_oauth("invalid_scope"),
            400,
            "invalid_scope",
        );
        check(Problem::busy(1), 429, "temporarily_unavailable");
        check(Problem::unavailable("x", 1), 503, "temporarily_unavailable");
        check(Problem::internal("x"), 500, "server_error");
    }

    #[test]
    fn basic_credentials_are_form_decoded() {
        let header = |text: &str| format!("Basic {}", b64::std(text.as_bytes()));
        let pair = basic_pair(&header("a%3Ab:p%2B+q")).unwrap();
        assert_eq!(pair, ("a:b".to_owned(), "p+ q".to_owned()));
        let percent = header("a:100% sure");
        for bad in [
            "Basic",
            "Basic !!",
            "Digest abc",
            &header("no colon"),
            &percent,
        ] {
            assert_eq!(basic_pair(bad), None, "{bad}");
        }
        let why = ClientReject::Basic.problem().detail;
        assert!(why.contains("a % is %25"), "{why}");
    }
}
