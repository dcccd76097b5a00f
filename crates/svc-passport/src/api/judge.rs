//! The verification of a token, shared by all endpoints: signature, claims, time, holders' statements, revocation. Each
//! endpoint decides what its caller may do with the result.
//!
//! Callers present the same tokens repeatedly, so the signature check of a valid token is cached by the hash of its text.
//! Its time, its keys and revocations are checked on every call.

use std::convert::Infallible;
use std::sync::Arc;

use ron_auth::{AuthReject, Claims, JwksSnapshot, SignedBy, hybrid, narrow};
use ron_auth::{Expect, verify_jwt};
use ron_proto::caveat;
use ron_proto::passport::{Confirmation, PQ_NARROWED_BYTES_MAX, PQ_TOKEN_BYTES_MAX, TokenClaims};

use super::Api;

#[derive(Debug)]
pub struct VerifiedToken {
    /// Its verified claims, narrowed.
    pub claims: Claims,
    /// The same claims in the format of answers.
    pub shown: TokenClaims,
    by: SignedBy,
}

/// A token that is refused.
#[derive(Debug, Clone)]
pub struct RejectedToken {
    pub reject: AuthReject,
    /// Its claims, once the signature was good.
    pub shown: Option<TokenClaims>,
}

/// What was found out about a token.
pub type Judged = Result<Arc<VerifiedToken>, RejectedToken>;

/// Verifies a token, with its narrowing statements if it has any.
pub fn judge(api: &Api, token: &str) -> Judged {
    let free = || Ok::<(), Infallible>(());
    judge_for(api, token, free).unwrap_or_else(|never| match never {})
}

/// The same for a caller that pays for a check of the signature. The error is that of `pay`: nothing was checked.
pub fn judge_for<E>(
    api: &Api,
    token: &str,
    pay: impl FnOnce() -> Result<(), E>,
) -> Result<Judged, E> {
    let refused = |reject, shown| RejectedToken { reject, shown };
    if token.len() > PQ_NARROWED_BYTES_MAX {
        return Ok(Err(refused(AuthReject::Oversize, None)));
    }
    if api.clock.date_unknown().is_some() {
        return Ok(Err(refused(AuthReject::NoDate, None)));
    }
    let (published, now_s) = (api.keys.published(), api.now_s());
    let keys = &published.verify;
    let hash = ron_crypto::hash::blake3(token.as_bytes());
    let known = api.judged.find_if(&hash, |good| good.counts(keys, now_s));
    let good = if let Some(good) = known {
        good
    } else {
        pay()?;
        let good = match signed(api, token, keys, now_s) {
            Ok(good) => Arc::new(good),
            Err(rejected) => return Ok(Err(rejected)),
        };
        api.judged.insert(hash, good.clone());
        good
    };
    // On every call, for cached tokens too: a revocation must take effect at once.
    let not_revoked = api.view.with(|view| view.check(&good.claims));
    Ok(match not_revoked {
        Ok(()) => Ok(good),
        Err(reject) => Err(refused(reject, Some(good.shown.clone()))),
    })
}

impl VerifiedToken {
    /// Whether the cached result is still valid: its keys are published and its time has not ended.
    fn counts(&self, keys: &JwksSnapshot, now_s: u64) -> bool {
        self.by.still(keys) && self.claims.check_time(now_s).is_ok()
    }
}

/// Verifies signatures, claims, statements and time with these keys.
fn signed(
    api: &Api,
    token: &str,
    keys: &JwksSnapshot,
    now_s: u64,
) -> Result<VerifiedToken, RejectedToken> {
    let refused = |reject, shown| RejectedToken { reject, shown };
    let root = narrow::root(token);
    // Parsed unverified to learn the audience; `verify_jwt` then checks every claim.
    let shown = shown(root).map_err(|reject| refused(reject, None))?;
    let expect = Expect {
        issuers: &api.names.accepted(now_s),
        audience: &shown.aud,
        now_s,
    };
    let checked = verify_jwt(root, keys, &expect).map_err(|r| refused(r, None))?;
    let by = SignedBy::of(&checked, keys);
    let narrowed = narrow::apply(token, checked, now_s)
        .and_then(|claims| claims.check_time(now_s).map(|()| claims));
    match narrowed {
        Ok(claims) => Ok(VerifiedToken {
            shown: as_narrowed(shown, &claims),
            claims,
            by,
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

#[cfg(test)]
mod tests {
    use ron_proto::passport::SKEW_S;

    use super::*;
    use crate::samples::{NOW, claims};

    #[test]
    fn what_was_found_out_counts_until_the_token_ends_or_its_key_leaves() {
        let set = |kid: &str| {
            let x = ron_proto::b64::url(&[1; 32]);
            let jwk = serde_json::json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x});
            let doc = serde_json::json!({"keys": [jwk]}).to_string();
            JwksSnapshot::parse(doc.as_bytes()).unwrap()
        };
        let (keys, claims) = (set("k"), claims());
        let shown = serde_json::json!({
            "iss": "i", "sub": claims.sub, "aud": "svc-wallet", "iat": NOW, "nbf": NOW, "exp": claims.exp, "jti": "j1",
            "client_id": "operator", "tenant": "t1", "scope": "wallet:read", "ron_epoch": 2,
        });
        let good = VerifiedToken {
            by: SignedBy::of(&claims, &keys),
            shown: serde_json::from_value(shown).unwrap(),
            claims,
        };
        let end = good.claims.exp + SKEW_S;
        assert!(good.counts(&keys, NOW) && good.counts(&keys, end - 1));
        assert!(!good.counts(&keys, end), "it has ended");
        assert!(!good.counts(&set("other"), NOW), "its key left");
    }
}
