//! Token exchange (RFC 8693): a narrower token in exchange for a valid one. Pure.
//!
//! **Invariant:** subject and tenant stay the same; audience, scopes, caveats, lifetime and binding can only get
//! narrower, and stay within the rule that the client has now; the client that acts for the holder is recorded in the
//! token. A client that exchanges another client's token needs the policy's permission.

use ron_auth::Claims;
use ron_proto::Problem;
use ron_proto::passport::{ANCESTORS_MAX, Actor, AudienceRule, IssuerPolicy};

use crate::policy::{Grant, Limits, TokenRequest, algorithm, binding, caveats, rule_of, ttl};

/// The presented token, which is valid now.
#[derive(Debug, Clone)]
pub struct PresentedToken<'a> {
    /// Its claims, narrowed by its holders' statements.
    pub claims: &'a Claims,
    pub audience: &'a str,
    /// The client that acts for its holder already.
    pub act: Option<&'a Actor>,
}

/// Decides an exchange, like [`crate::policy::decide`] for a new token.
pub fn exchange(
    policy: &IssuerPolicy,
    ask: &TokenRequest<'_>,
    held: &PresentedToken<'_>,
    limits: &Limits,
    now_s: u64,
) -> Result<Grant, Problem> {
    let rule = rule_of(policy, ask.client_id)?;
    let claims = held.claims;
    let own = claims.client_id.as_deref() == Some(ask.client_id);
    if !own && !rule.exchange {
        return Err(Problem::forbidden(
            "the issuer policy does not let this client exchange the tokens of others",
        )
        .with_oauth("unauthorized_client"));
    }
    if ask.audience.is_some_and(|asked| asked != held.audience) {
        return Err(refused(
            "an exchange cannot change the audience of a token",
            "invalid_target",
        ));
    }
    let terms = policy.terms(rule, held.audience).ok_or_else(|| {
        refused(
            "the issuer policy does not allow this client the token's audience",
            "invalid_target",
        )
    })?;
    if claims.ancestors.len() >= ANCESTORS_MAX {
        return Err(refused(
            "the token was exchanged too often: exchange an earlier one",
            "invalid_grant",
        ));
    }
    let left = claims.exp.saturating_sub(now_s);
    if left == 0 {
        return Err(refused("the token has expired", "invalid_grant"));
    }
    let audience = &*terms.rule;
    let ttl_s = ttl(terms.ttl_s_max.min(left), ask.ttl_s, limits.ttl_s_default)?;
    let given = claims.caveats.iter().map(ToString::to_string);
    let given: Vec<String> = given.chain(audience.caveats.iter().cloned()).collect();
    let mut all = caveats(&given, ask.caveats, &limits.maxima)?;
    // A bound token stays bound to its key; an unbound one may become bound.
    let jkt = match (&claims.jkt, ask.jkt) {
        (Some(bound), Some(proved)) if bound == proved => Some(proved),
        (None, proved) => proved,
        _ => {
            return Err(refused(
                "the token is bound: send a DPoP proof of its key",
                "invalid_dpop_proof",
            ));
        }
    };
    if claims.x5t.is_some() && claims.x5t.as_deref() != ask.x5t {
        return Err(refused(
            "the token is bound: prove yourself with its client certificate",
            "invalid_client",
        ));
    }
    let jkt = binding(&mut all, jkt)?;
    let alg = algorithm(audience, ask, limits)?;
    alg.mark(&mut all)?;
    Ok(Grant {
        subject: claims.sub.clone(),
        client_id: rule.client_id.clone(),
        tenant: claims.tenant.clone(),
        audience: held.audience.to_owned(),
        scope: scope(claims, audience, ask.scope)?,
        ttl_s,
        jkt,
        x5t: ask.x5t.map(str::to_owned),
        caveats: all,
        alg: alg.name,
        act: if own {
            held.act.cloned()
        } else {
            Some(Actor {
                sub: ask.client_id.to_owned(),
                act: held.act.cloned().map(Box::new),
            })
        },
        origin: Some(Box::new(claims.clone())),
    })
}

/// The requested scopes, all of which the token must have and the client's rule allow; without a request, all such scopes
/// of the token.
fn scope(claims: &Claims, rule: &AudienceRule, asked: Option<&str>) -> Result<String, Problem> {
    let may = |s: &str| claims.scopes.iter().any(|held| held == s) && rule.allows(s);
    let Some(asked) = asked else {
        let kept: Vec<&str> = claims
            .scopes
            .iter()
            .map(String::as_str)
            .filter(|s| may(s))
            .collect();
        return Ok(kept.join(" "));
    };
    let asked = ron_proto::scope::parse_list(asked)
        .map_err(|e| refused(&format!("scope: {e}"), "invalid_scope"))?;
    if asked.iter().all(|s| may(s)) {
        Ok(asked.join(" "))
    } else {
        Err(refused(
            "an exchange cannot add scopes to a token",
            "invalid_scope",
        ))
    }
}

fn refused(detail: &str, oauth: &'static str) -> Problem {
    Problem::bad_request(detail).with_oauth(oauth)
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
