//! A token check without a service and without the network: a passport, the issuer's key set, and its revocations.
//!
//! `embed-passport ISSUER AUDIENCE SCOPE JWKS [REVOKED]` reads the token from standard input. JWKS is a copy of
//! `/.well-known/jwks.json`, which is public; REVOKED one of `/v1/passport/events`, for which the issuer wants a listed caller
//! or a passport with `passport:introspect`. Exit code 0 admits the caller, 1 refuses.

use std::error::Error;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use ron_auth::{CaveatCtx, Claims, Expect, JwksSnapshot, RevocationView, caveats, verify_jwt};
use ron_kernel::{Clock, SystemClock};
use ron_proto::passport::RevocationPage;
use ron_proto::strict;

type Failure = Box<dyn Error>;

// part: main
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let judged = match words.as_slice() {
        [issuer, audience, scope, jwks] => judge(issuer, audience, scope, jwks, None),
        [issuer, audience, scope, jwks, revoked] => {
            judge(issuer, audience, scope, jwks, Some(revoked))
        }
        _ => Err("usage: embed-passport ISSUER AUDIENCE SCOPE JWKS [REVOKED] < TOKEN".into()),
    };
    match judged {
        Ok(claims) => {
            println!("let in: {} of {}", claims.sub, claims.tenant);
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("refused: {why}");
            ExitCode::FAILURE
        }
    }
}
// end

// part: judge
fn judge(
    issuer: &str,
    audience: &str,
    scope: &str,
    jwks: &str,
    revoked: Option<&str>,
) -> Result<Claims, Failure> {
    let mut token = String::new();
    std::io::stdin().read_to_string(&mut token)?;
    let keys = JwksSnapshot::parse(&std::fs::read(jwks)?)?;
    let now_s = SystemClock.unix_ms() / 1_000;
    let expect = Expect {
        issuers: &[issuer],
        audience,
        now_s,
    };
    // Signature, header, issuer, audience, times and shape.
    let claims = verify_jwt(token.trim(), &keys, &expect)?;
    if let Some(path) = revoked {
        taken_back(path, &claims, now_s)?;
    }
    // A token that is bound to a key or a certificate needs a proof, which this program does not request.
    if claims.jkt.is_some() || claims.x5t.is_some() {
        return Err("this token is bound to a key; its holder must prove it".into());
    }
    if !claims.scopes.iter().any(|held| held == scope) {
        return Err(format!("the token does not carry {scope}").into());
    }
    // If a fact is not available, every caveat about it refuses the token.
    let facts = CaveatCtx {
        service: audience,
        method: "GET",
        path: "/",
        peer_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
        region: None,
        account: None,
        asset: None,
        amount: None,
        tenant: Some(&claims.tenant),
        proof: None,
    };
    caveats::check(&claims.caveats, &facts)?;
    Ok(claims)
}
// end

// part: revoked
/// Refuses a token that the issuer has revoked, by its id, subject, key or epoch.
fn taken_back(path: &str, claims: &Claims, now_s: u64) -> Result<(), Failure> {
    let page: RevocationPage = strict::from_slice(&std::fs::read(path)?)?;
    let mut view = RevocationView::unchecked();
    view.apply(&page, true, now_s)?;
    view.check(claims)?;
    Ok(())
}
// end
