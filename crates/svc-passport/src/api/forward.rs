//! `GET` and `HEAD /v1/passport/forward`: whether a request may pass a gateway, for nginx `auth_request`, Traefik and
//! Caddy, which pass the request's headers on and look at the status.
//!
//! **Invariant:** a token that this endpoint cannot judge in full does not pass. Method, path and address of the caller are known only
//! from a listed gateway, so without one a caveat about them forbids the request, and a proof of possession (DPoP) does not count. A
//! token that is bound to a certificate never passes: the caller's connection ends at the gateway.

use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use ron_auth::dpop::{Proof, ProofAsk, verify_proof};
use ron_auth::{AuthReject, Claims, Scheme, authorization, caveats};
use ron_http::{Need, Request, Response, Route};
use ron_proto::passport::TokenClaims;
use ron_proto::{Caveat, Problem};

use super::forwarded::Forwarded;
use super::{Api, judge};
use crate::dpop::ProofRefused;

const QUERY: [&str; 3] = ["audience", "scope", "base"];
/// URLs under which one gateway's callers reach it.
const BASES_MAX: usize = 8;

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
    .query(
        "base",
        false,
        "scheme, host and port under which callers reach the gateway, for tokens that are bound to a key (DPoP); may be repeated",
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
    let bases = bases(req)?;
    let sent = authorization(&req.headers);
    let (scheme, token) = sent.map_err(|r| r.challenging(false, Some(scopes)))?;
    let is_dpop = scheme == Scheme::Dpop;
    // The gateway passes the challenge on to its caller.
    let refused = |reject: AuthReject| reject.challenging(is_dpop, Some(scopes));
    let judged = judge::judge_for(api, token, || api.charge(req))?;
    let good = judged.map_err(|no| refused(no.reject))?;
    let forwarded = api.gateways.forwarded(req);
    let by_caller = (&*good.claims.caveats, forwarded);
    let now_s = api.now_s();
    let proof = if is_dpop {
        let proof = proof(req, token, forwarded, (&bases, now_s));
        Some(proof.map_err(refused)?)
    } else {
        None
    };
    binding(&good.claims, proof.as_ref()).map_err(refused)?;
    check(&good.shown, by_caller, &audience, &asked).map_err(refused)?;
    // Last, so that a proof is used up only by a request that passes.
    if let Some(proof) = proof {
        let taken = api
            .proofs
            .take(proof, &good.shown.client_id, now_s, req.deadline);
        taken.map_err(|why| match why {
            ProofRefused::Proof(reject) => refused(reject),
            why => why.problem(),
        })?;
    }
    let shown = &good.shown;
    Ok(Response::empty(200)
        .header("x-subject", printable(&shown.sub))
        .header("x-client", printable(&shown.client_id))
        .header("x-scope", printable(&shown.scope))
        .cache("no-store"))
}

/// The URLs in the query, which the gateway's configuration has beside the audience: what the caller sends names none.
fn bases(req: &Request) -> Result<Vec<String>, Problem> {
    let bases: Vec<String> = req.query_many("base")?;
    let refuse = |why: &str| Err(Problem::bad_request(format!("base: {why}")));
    if bases.len() > BASES_MAX {
        return refuse("there are more than 8");
    }
    if !bases.iter().all(|base| is_origin(base)) {
        return refuse("write scheme, host and port only, as in https://orders.example.org");
    }
    Ok(bases)
}

/// Whether a URL is a scheme with a host. The path of a request begins behind it, so it has none itself.
fn is_origin(url: &str) -> bool {
    let mut schemes = ["https://", "http://"].into_iter();
    let host = schemes.find_map(|scheme| url.strip_prefix(scheme));
    let letter = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(letter))
}

/// The proof for the caller's request, as the gateway describes it. Without a listed gateway it is not known for which
/// request the proof would have to be.
fn proof(
    req: &Request,
    token: &str,
    request: Forwarded<'_>,
    (bases, now_s): (&[String], u64),
) -> Result<Proof, AuthReject> {
    let (Some(method), Some(path)) = (request.method, request.path) else {
        return Err(AuthReject::Binding);
    };
    if bases.is_empty() || req.headers.count("dpop") != 1 {
        return Err(AuthReject::Binding);
    }
    let ask = ProofAsk {
        method,
        bases,
        path,
        token: Some(token),
        now_s,
    };
    verify_proof(req.header("dpop").unwrap_or_default(), &ask)
}

/// Whether the holder of the token has proved to be the one that it was made for.
fn binding(token: &Claims, proof: Option<&Proof>) -> Result<(), AuthReject> {
    if token.x5t.is_some() {
        return Err(AuthReject::Binding);
    }
    match (&token.jkt, proof) {
        (None, None) => Ok(()),
        (Some(jkt), Some(proof)) if proof.jkt == *jkt => Ok(()),
        (Some(_), None) => Err(AuthReject::Binding),
        (_, Some(_)) => Err(AuthReject::Proof),
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
        let elsewhere = token(json!({"aud": "svc-wallet"}));
        assert_eq!(ask(&elsewhere, &[], ""), Err(AuthReject::Audience));
        assert_eq!(printable("a b%\r\n\u{fc}"), "a b%25%0D%0A%C3%BC");
    }

    #[test]
    fn a_bound_token_needs_the_proof_of_its_key() {
        let bound = |jkt: Option<&str>, x5t: Option<&str>| Claims {
            jkt: jkt.map(str::to_owned),
            x5t: x5t.map(str::to_owned),
            ..crate::samples::claims()
        };
        let proof = |jkt: &str| Proof {
            jkt: jkt.into(),
            jti: "p".into(),
            iat: 1,
            nonce: None,
        };
        let (own, other) = (proof("k"), proof("l"));
        let held = bound(Some("k"), None);
        assert_eq!(binding(&held, Some(&own)), Ok(()));
        assert_eq!(binding(&held, Some(&other)), Err(AuthReject::Proof));
        assert_eq!(binding(&held, None), Err(AuthReject::Binding));
        let plain = bound(None, None);
        assert_eq!(binding(&plain, None), Ok(()));
        assert_eq!(binding(&plain, Some(&own)), Err(AuthReject::Proof));
        let by_certificate = bound(Some("k"), Some("c"));
        assert_eq!(
            binding(&by_certificate, Some(&own)),
            Err(AuthReject::Binding)
        );
    }

    #[test]
    fn a_base_is_a_scheme_and_a_host() {
        for good in [
            "https://orders.example.org",
            "http://127.0.0.1:8081",
            "http://[::1]:80",
        ] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "orders.example.org",
            "https://",
            "https://orders.example.org/",
            "https://orders.example.org/api",
            "https://a@orders.example.org",
            "https://orders.example.org?x",
            "ftp://orders.example.org",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
