//! Token exchange (RFC 8693): a narrower token in exchange for a valid one. Pure.
//!
//! **Invariant:** subject and tenant stay the same; caveats, lifetime and binding can only get narrower, and stay within
//! the rule that the client has now; the client that acts for the holder is recorded in the token. A client that
//! exchanges another client's token needs the policy's permission, and so does another audience. Scopes get narrower
//! too, or for another audience are those that the client has there.

use std::iter::successors;

use ron_auth::Claims;
use ron_proto::passport::{ACTORS_MAX, ANCESTORS_MAX, Actor, AudienceRule, IssuerPolicy};
use ron_proto::{Caveat, Problem};

use crate::policy::{
    Grant, Limits, TokenRequest, algorithm, binding, caveats, rule_of, scopes, ttl,
};

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
    let target = ask.audience.unwrap_or(held.audience);
    let terms = policy.terms(rule, target).ok_or_else(|| {
        refused(
            "the issuer policy does not allow this client the token's audience",
            "invalid_target",
        )
    })?;
    let audience = &*terms.rule;
    let moves = target != held.audience;
    if moves {
        may_move(claims, audience, held.audience)?;
    }
    let act = if own {
        held.act.cloned()
    } else {
        Some(Actor {
            sub: ask.client_id.to_owned(),
            act: held.act.cloned().map(Box::new),
        })
    };
    if successors(act.as_ref(), |one| one.act.as_deref()).count() > ACTORS_MAX {
        return Err(refused(
            "too many clients act for the holder of the token already: exchange an earlier one",
            "invalid_grant",
        ));
    }
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
        audience: target.to_owned(),
        scope: if moves {
            scopes(policy, audience, ask)?
        } else {
            scope(claims, audience, ask.scope)?
        },
        ttl_s,
        jkt,
        x5t: ask.x5t.map(str::to_owned),
        caveats: all,
        alg: alg.name,
        act,
        origin: Some(Box::new(claims.clone())),
    })
}

/// Whether a token of another audience may be exchanged for one of this rule's.
fn may_move(claims: &Claims, rule: &AudienceRule, before: &str) -> Result<(), Problem> {
    if !rule.takes(before) {
        return Err(refused(
            &format!(
                "the issuer policy does not let this client exchange tokens for {before} for tokens for {}",
                rule.audience
            ),
            "invalid_target",
        ));
    }
    let line = claims.ancestors.iter().flat_map(|one| &one.counted);
    for caveat in claims.caveats.iter().chain(line) {
        match caveat {
            // Each service would count it on its own, so that the token could be used twice as often.
            Caveat::BudgetBytes(_) | Caveat::BudgetReqs(_) => {
                return Err(refused(
                    "the token has a budget, which one service alone can count: exchange a token without",
                    "invalid_grant",
                ));
            }
            Caveat::Svc(only) if *only != rule.audience => {
                return Err(refused(
                    &format!("the token is for {only} alone, by its caveat svc"),
                    "invalid_target",
                ));
            }
            _ => {}
        }
    }
    Ok(())
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
