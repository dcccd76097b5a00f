//! One judgement of a token for all endpoints that are shown one: signature, claims, time, statements of holders,
//! revocation. Whether the shower may do something with it is for the endpoint.

use ron_auth::jwt::{Expect, verify_jwt};
use ron_auth::{AuthReject, Claims, hybrid, narrow};
use ron_proto::caveat;
use ron_proto::passport::{Confirmation, PQ_NARROWED_BYTES_MAX, PQ_TOKEN_BYTES_MAX, TokenClaims};

use super::Api;

/// A good token.
#[derive(Debug, Clone)]
pub struct Good {
    /// What is believed of it, narrowed.
    pub claims: Claims,
    /// The same as it is shown to people and programs.
    pub shown: TokenClaims,
}

/// A token that is refused.
#[derive(Debug, Clone)]
pub struct Refused {
    /// Why.
    pub reject: AuthReject,
    /// Its claims, once the signature was good.
    pub shown: Option<TokenClaims>,
}

/// Judges a token, with its narrowing statements if it has any.
pub fn judge(api: &Api, token: &str) -> Result<Good, Refused> {
    let refused = |reject, shown| Refused { reject, shown };
    if token.len() > PQ_NARROWED_BYTES_MAX {
        return Err(refused(AuthReject::Oversize, None));
    }
    let root = narrow::root(token);
    // Read without trust to learn the audience; everything in it is checked right after.
    let shown = shown(root).map_err(|reject| refused(reject, None))?;
    let keys = api.keys.published();
    let now_s = api.now_s();
    let expect = Expect {
        issuer: &api.issuer_url,
        audience: &shown.aud,
        now_s,
    };
    let checked = verify_jwt(root, &keys.verify, &expect).map_err(|r| refused(r, None))?;
    let narrowed = narrow::apply(token, checked, now_s)
        .and_then(|claims| claims.check_time(now_s).map(|()| claims))
        .and_then(|claims| api.view.with(|view| view.check(&claims)).map(|()| claims));
    match narrowed {
        Ok(claims) => Ok(Good {
            shown: as_narrowed(shown, &claims),
            claims,
        }),
        Err(reject) => Err(refused(reject, Some(shown))),
    }
}

fn shown(root: &str) -> Result<TokenClaims, AuthReject> {
    if root.len() > PQ_TOKEN_BYTES_MAX {
        return Err(AuthReject::Oversize);
    }
    serde_json::from_slice(&hybrid::payload(root)?).map_err(|_| AuthReject::Malformed)
}

fn as_narrowed(shown: TokenClaims, claims: &Claims) -> TokenClaims {
    TokenClaims {
        exp: claims.exp,
        scope: claims.scopes.join(" "),
        authorization_details: if claims.caveats.is_empty() {
            Vec::new()
        } else {
            vec![caveat::to_detail(&claims.caveats)]
        },
        cnf: Confirmation::of(claims.jkt.clone(), claims.x5t.clone()),
        ..shown
    }
}
