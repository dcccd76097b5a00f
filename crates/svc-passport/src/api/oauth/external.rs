//! The callers that prove themselves with a token of another issuer: `assertion` of the jwt-bearer grant (RFC 7523 section
//! 2.1), or `subject_token` of a token exchange (RFC 8693) that is a JWT or an id token.

use ron_http::Request;
use ron_proto::Problem;
use ron_proto::passport::{ID_TOKEN_TYPE, JWT_BEARER_GRANT, JWT_TYPE, TOKEN_EXCHANGE};

use super::{AuthenticatedClient, Fields, client};
use crate::api::Api;
use crate::external::{ExternalReject, Judge};

/// The token of another issuer in a form; `None` for a request without one.
pub fn token_of<'f>(form: &'f Fields, grant: &str) -> Result<Option<&'f str>, Problem> {
    match grant {
        JWT_BEARER_GRANT => form.required("assertion").map(Some),
        TOKEN_EXCHANGE => match form.one("subject_token_type")? {
            Some(JWT_TYPE | ID_TOKEN_TYPE) => form.required("subject_token").map(Some),
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

/// The client that the token stands for. It needs no other authentication; if there is one, both must name the same
/// client.
pub fn mapped(
    api: &Api,
    req: &Request,
    form: &Fields,
    token: &str,
) -> Result<AuthenticatedClient, Problem> {
    let proofs = ["client_secret", "client_assertion", "client_assertion_type"];
    let mut proves = req.headers.contains("authorization");
    for name in proofs {
        proves |= form.one(name)?.is_some();
    }
    let (named, x5t) = if proves {
        let known = client(api, req, form)?;
        (Some(known.id), known.x5t)
    } else {
        (form.one("client_id")?.map(str::to_owned), None)
    };
    if api.clock.date_unknown().is_some() {
        return Err(ron_auth::AuthReject::NoDate.problem());
    }
    api.may_guess(req)
        .map_err(|busy| api.refused(req, "client_guesses", None, busy))?;
    let (id, used) = judged(api, req, named.as_deref(), token)?;
    if let Some(used) = used
        && !api.keep_assertion(used, req.deadline)?
    {
        let reject = ExternalReject::Replay;
        return Err(api.refused(req, reject.reason(), Some(&id), reject.problem()));
    }
    Ok(AuthenticatedClient { id, x5t })
}

fn judged(
    api: &Api,
    req: &Request,
    named: Option<&str>,
    token: &str,
) -> Result<(String, Option<crate::clients::UsedAssertion>), Problem> {
    let (keys, clients, ours) = (api.issuer_keys.load(), api.clients.load(), api.audiences());
    api.with_policy(|policy| {
        let judge = Judge {
            policy,
            keys: &keys,
            ours: &ours,
            seen: clients.assertions(),
            now_s: api.now_s(),
        };
        let refused = match judge.client(token, named) {
            Ok(good) => return Ok((good.rule.client_id.clone(), good.used)),
            Err(refused) => refused,
        };
        let (reject, issuer) = refused;
        let unknown_key = matches!(reject, ExternalReject::Keys | ExternalReject::Signature);
        if let Some(issuer) = issuer.filter(|one| unknown_key && one.jwks_url.is_some()) {
            // The issuer may have a new key. With a full queue, reads are pending anyway.
            let _ = api.wanted_keys.try_send(issuer.issuer.clone());
        }
        if reject != ExternalReject::Keys {
            api.guessed(req);
        }
        // A name counts only if it is one of the policy's: any other is the caller's own text.
        let known = named.filter(|named| policy.rule(named).is_some());
        Err(api.refused(req, reject.reason(), known, reject.problem()))
    })
}
