//! `GET` and `HEAD /v1/passport/forward`: whether a request may pass a gateway, for nginx `auth_request`, Traefik and
//! Caddy, which pass the request's headers on and look at the status.
//!
//! **Invariant:** a token that this endpoint cannot judge in full does not pass. Method, path and address of the caller are known only
//! from a listed gateway, so without one a caveat about them forbids the request; and a bound token lacks its proof.

use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use ron_auth::{AuthReject, caveats};
use ron_http::{Need, Request, Response, Route};
use ron_proto::passport::TokenClaims;
use ron_proto::{Caveat, Problem};

use super::forwarded::Forwarded;
use super::{Api, judge};

const QUERY: [&str; 2] = ["audience", "scope"];

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get("/v1/passport/forward", Need::Public, move |req| {
        forward(&api, req)
    })
    .summary("Whether a request with this token may pass a gateway: for nginx auth_request, Traefik, Caddy.")
    .query("audience", true, "the service behind the gateway, which the token must be for")
    .query(
        "scope",
        false,
        "scopes separated by spaces, all of which the token must have",
    )
    .returns_nothing(200)
    .errors(&[400, 401, 403, 429])
    .while_draining()
}

fn forward(api: &Api, req: &Request) -> Result<Response, Problem> {
    req.query_only(&QUERY)?;
    let audience: String = req.query_required("audience")?;
    let scopes = req.query_one("scope")?.unwrap_or_default();
    let asked = ron_proto::scope::parse_list(scopes)
        .map_err(|e| Problem::bad_request(format!("scope: {e}")))?;
    // The gateway passes the challenge on to its caller.
    let refused = |reject: AuthReject| reject.challenging(false, Some(scopes));
    let token = bearer(req).map_err(refused)?;
    let judged = judge::judge_for(api, token, || api.charge(req))?;
    let good = judged.map_err(|no| refused(no.reject))?;
    let forwarded = api.gateways.forwarded(req);
    let by_caller = (&*good.claims.caveats, forwarded);
    check(&good.shown, by_caller, &audience, &asked).map_err(refused)?;
    let shown = &good.shown;
    Ok(Response::empty(200)
        .header("x-subject", printable(&shown.sub))
        .header("x-client", printable(&shown.client_id))
        .header("x-scope", printable(&shown.scope))
        .cache("no-store"))
}

/// The token of the `Authorization` header.
fn bearer(req: &Request) -> Result<&str, AuthReject> {
    let header = match req.headers.count("authorization") {
        0 => return Err(AuthReject::Missing),
        1 => req.header("authorization").ok_or(AuthReject::Scheme)?,
        _ => return Err(AuthReject::Scheme),
    };
    let (scheme, token) = header.split_once(' ').ok_or(AuthReject::Scheme)?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Ok(token.trim_matches(' ')),
        // Its proof is for the URL of the caller's request, which is not known here.
        "dpop" => Err(AuthReject::Binding),
        _ => Err(AuthReject::Scheme),
    }
}

/// Whether a valid token is good for this service and these scopes.
fn check(
    token: &TokenClaims,
    (caveats, request): (&[Caveat], Forwarded<'_>),
    audience: &str,
    scopes: &[&str],
) -> Result<(), AuthReject> {
    if token.aud != audience {
        return Err(AuthReject::Audience);
    }
    if token.cnf.is_some() {
        return Err(AuthReject::Binding);
    }
    let held = |scope: &&str| token.scope.split(' ').any(|held| held == *scope);
    if !scopes.iter().all(held) {
        return Err(AuthReject::Scope);
    }
    let unknown = AuthReject::CaveatUnsupported;
    for caveat in caveats {
        let holds = match caveat {
            Caveat::Method(only) => request.method.ok_or(unknown)? == only.as_str(),
            Caveat::Route(prefix) => caveats::under(prefix, request.path.ok_or(unknown)?),
            Caveat::IpCidr(block) => block.contains(request.caller.ok_or(unknown)?),
            Caveat::Svc(name) => name == audience,
            Caveat::Tenant(tenant) => *tenant == token.tenant,
            Caveat::PqFallback(_) => true,
            _ => return Err(unknown),
        };
        if !holds {
            return Err(AuthReject::Caveat);
        }
    }
    Ok(())
}

/// A claim as the value of a header: what is not printable ASCII is percent-encoded, and so is `%`.
fn printable(text: &str) -> String {
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_can_be_judged_in_full_passes() {
        let token = |change: serde_json::Value| -> TokenClaims {
            let mut claims = json!({"iss": "i", "sub": "user:7", "aud": "orders", "iat": 1, "nbf": 1, "exp": 2, "jti": "j",
                "client_id": "shop", "tenant": "t1", "scope": "read write", "ron_epoch": 1});
            let to = claims.as_object_mut().expect("an object");
            to.extend(change.as_object().expect("an object").clone());
            serde_json::from_value(claims).expect("claims")
        };
        let plain = token(json!({}));
        let ask = |token: &TokenClaims, caveats: &[&str], scopes: &str| {
            let caveats: Vec<Caveat> = caveats.iter().map(|c| c.parse().expect(c)).collect();
            let scopes = ron_proto::scope::parse_list(scopes).expect("scopes");
            check(token, (&caveats, Forwarded::default()), "orders", &scopes)
        };
        assert_eq!(ask(&plain, &[], ""), Ok(()));
        assert_eq!(ask(&plain, &[], "write read"), Ok(()));
        assert_eq!(ask(&plain, &[], "read drop"), Err(AuthReject::Scope));
        assert_eq!(ask(&plain, &["svc=orders", "tenant=t1"], "read"), Ok(()));
        for (caveat, why) in [
            ("svc=reports", AuthReject::Caveat),
            ("tenant=t2", AuthReject::Caveat),
            ("route=/x", AuthReject::CaveatUnsupported),
            ("method=GET", AuthReject::CaveatUnsupported),
            ("ip_cidr=10.0.0.0/8", AuthReject::CaveatUnsupported),
            ("budget.reqs=3", AuthReject::CaveatUnsupported),
            ("asset=ron", AuthReject::CaveatUnsupported),
        ] {
            assert_eq!(ask(&plain, &[caveat], ""), Err(why), "{caveat}");
        }
        let request = Forwarded {
            method: Some("GET"),
            path: Some("/orders/7"),
            caller: Some("10.1.2.3".parse().expect("an address")),
        };
        for (caveat, want) in [
            ("method=GET", Ok(())),
            ("method=POST", Err(AuthReject::Caveat)),
            ("route=/orders", Ok(())),
            ("route=/ord", Err(AuthReject::Caveat)),
            ("ip_cidr=10.0.0.0/8", Ok(())),
            ("ip_cidr=192.0.2.0/24", Err(AuthReject::Caveat)),
            ("budget.reqs=3", Err(AuthReject::CaveatUnsupported)),
        ] {
            let caveats = [caveat.parse().expect(caveat)];
            let got = check(&plain, (&caveats, request), "orders", &["read"]);
            assert_eq!(got, want, "{caveat}");
        }
        let bound = token(json!({"cnf": {"jkt": "k"}}));
        assert_eq!(ask(&bound, &[], ""), Err(AuthReject::Binding));
        let elsewhere = token(json!({"aud": "svc-wallet"}));
        assert_eq!(ask(&elsewhere, &[], ""), Err(AuthReject::Audience));
        assert_eq!(printable("a b%\r\n\u{fc}"), "a b%25%0D%0A%C3%BC");
    }
}
