//! Decides which client gets which token: pure, from the signed issuer policy and the configured limits.

use ron_auth::Claims;
use ron_proto::caveat::{Caveat, CaveatMaxima};
use ron_proto::passport::{
    Actor, AudienceRule, CAVEATS_MAX, ClientRule, IssuerPolicy, Terms, is_subject,
};
use ron_proto::{Problem, Tenant, scope};

/// A request for a token, from any endpoint.
#[derive(Debug, Clone)]
pub struct TokenRequest<'a> {
    pub client_id: &'a str,
    /// Subject of the token; the client itself when absent.
    pub subject: Option<&'a str>,
    /// The service it is for; may be absent when the policy allows the client only one.
    pub audience: Option<&'a str>,
    /// Scopes separated by spaces; all allowed scopes when absent.
    pub scope: Option<&'a str>,
    pub ttl_s: Option<u64>,
    pub caveats: &'a [String],
    /// JWS algorithms the caller accepts, best first; empty accepts the audience's.
    pub accept_algs: &'a [String],
    /// Thumbprint of the key of the DPoP proof; the token is bound to it.
    pub jkt: Option<&'a str>,
    /// Base64url SHA-256 of the certificate that the client authenticated with; the token is bound to it.
    pub x5t: Option<&'a str>,
    /// Whether the ML-DSA key can sign now.
    pub pq_ready: bool,
}

ron_service::choice! {
    /// Whether tokens get ML-DSA signatures.
    #[derive(Default)]
    pub enum PqMode {
        /// No token has one.
        #[default]
        Off = "off",
        /// Tokens for audiences whose policy names such an algorithm have one; without the key, a classical signature
        /// and the caveat `pq.fallback`.
        Mirror = "mirror",
        /// Every token has one; without the ML-DSA key nothing is issued.
        Require = "require",
    }
}

/// The two JWS algorithm names of a KMS key of this algorithm: alone, and as a hybrid with EdDSA.
pub const fn pq_alg(alg: ron_proto::Alg) -> Option<[&'static str; 2]> {
    match alg {
        ron_proto::Alg::MlDsa44 => Some(["ML-DSA-44", "EdDSA+ML-DSA-44"]),
        ron_proto::Alg::MlDsa65 => Some(["ML-DSA-65", "EdDSA+ML-DSA-65"]),
        ron_proto::Alg::MlDsa87 => Some(["ML-DSA-87", "EdDSA+ML-DSA-87"]),
        _ => None,
    }
}

/// Whether a JWS algorithm name includes an ML-DSA signature.
pub fn is_pq(name: &str) -> bool {
    name.contains("ML-DSA-")
}

/// Limits from the configuration, in addition to the policy.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Lifetime of a token whose request names none, in seconds.
    pub ttl_s_default: u64,
    /// Maximum values of counted caveats.
    pub maxima: CaveatMaxima,
    /// Classical algorithms for which a signing key is configured.
    pub algs: Vec<&'static str>,
    /// Whether tokens get ML-DSA signatures.
    pub pq: PqMode,
    /// Names of the ML-DSA key's algorithms, see [`pq_alg`].
    pub pq_algs: Option<[&'static str; 2]>,
}

/// A granted token: everything but its id, times, epoch and key.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    pub subject: String,
    pub client_id: String,
    pub tenant: Tenant,
    pub audience: String,
    /// Scopes separated by spaces.
    pub scope: String,
    pub ttl_s: u64,
    /// All caveats, the rule's first.
    pub caveats: Vec<Caveat>,
    pub alg: &'static str,
    /// Thumbprint of the key that the token is bound to.
    pub jkt: Option<String>,
    /// Base64url SHA-256 of the certificate that the token is bound to.
    pub x5t: Option<String>,
    /// The client that acts for the holder, after an exchange.
    pub act: Option<Actor>,
    /// The claims of the exchanged token: checked for revocation once more when the new token is signed.
    pub origin: Option<Box<Claims>>,
}

/// Decides a request. Without a requested lifetime the default applies, lowered to the rule's maximum; a requested
/// lifetime above the maximum is refused, never clamped.
pub fn decide(
    policy: &IssuerPolicy,
    ask: &TokenRequest<'_>,
    limits: &Limits,
) -> Result<Grant, Problem> {
    let rule = rule_of(policy, ask.client_id)?;
    let subject = subject(rule, ask)?;
    let terms = terms(policy, rule, ask)?;
    let audience = &*terms.rule;
    let ttl_s = ttl(terms.ttl_s_max, ask.ttl_s, limits.ttl_s_default)?;
    let mut caveats = caveats(&audience.caveats, ask.caveats, &limits.maxima)?;
    let jkt = binding(&mut caveats, ask.jkt)?;
    let alg = algorithm(audience, ask, limits)?;
    alg.mark(&mut caveats)?;
    Ok(Grant {
        subject,
        client_id: rule.client_id.clone(),
        tenant: rule.tenant.clone(),
        scope: scopes(policy, audience, ask)?,
        ttl_s,
        caveats,
        alg: alg.name,
        audience: audience.audience.clone(),
        jkt,
        x5t: ask.x5t.map(str::to_owned),
        act: None,
        origin: None,
    })
}

/// A token without rights that the policy allows; `None` when it allows none with this algorithm's key.
pub fn sample(policy: &IssuerPolicy, alg: &'static str) -> Option<Grant> {
    let mut all = policy
        .clients
        .iter()
        .flat_map(|rule| rule.audiences.iter().map(move |audience| (rule, audience)));
    all.find_map(|(rule, audience)| {
        let audience = policy.terms(rule, &audience.audience)?.rule;
        let mut caveats = caveats(&audience.caveats, &[], &CaveatMaxima::default()).ok()?;
        let jkt = binding(&mut caveats, None).ok()?;
        Some(Grant {
            subject: rule.client_id.clone(),
            client_id: rule.client_id.clone(),
            tenant: rule.tenant.clone(),
            audience: audience.audience.clone(),
            scope: String::new(),
            ttl_s: 1,
            caveats,
            alg,
            jkt,
            x5t: None,
            act: None,
            origin: None,
        })
    })
}

/// The rule of a client.
pub(crate) fn rule_of<'a>(
    policy: &'a IssuerPolicy,
    client: &str,
) -> Result<&'a ClientRule, Problem> {
    policy.rule(client).ok_or_else(|| {
        Problem::forbidden("the issuer policy has no rule for this client")
            .with_oauth("unauthorized_client")
    })
}

fn subject(rule: &ClientRule, ask: &TokenRequest<'_>) -> Result<String, Problem> {
    let subject = ask.subject.unwrap_or(ask.client_id);
    if !is_subject(subject) {
        return Err(Problem::bad_request(
            "subject_ref must be 1..256 printable ASCII characters without spaces",
        ));
    }
    if rule.may_name(subject) {
        Ok(subject.to_owned())
    } else {
        Err(Problem::forbidden(
            "the issuer policy does not let this client name that subject",
        ))
    }
}

fn terms<'a>(
    policy: &'a IssuerPolicy,
    rule: &'a ClientRule,
    ask: &TokenRequest<'_>,
) -> Result<Terms<'a>, Problem> {
    let name = rule.asked(ask.audience).ok_or_else(|| {
        Problem::bad_request("audience is missing: name the service the token is for")
    })?;
    policy.terms(rule, name).ok_or_else(|| {
        let all = rule.audiences.iter();
        let allowed: Vec<&str> = all.map(|a| a.audience.as_str()).collect();
        Problem::forbidden(format!(
            "the issuer policy does not allow this audience for this client; allowed are: {}",
            allowed.join(", ")
        ))
        .with_oauth("invalid_target")
    })
}

pub(crate) fn scopes(
    policy: &IssuerPolicy,
    rule: &AudienceRule,
    ask: &TokenRequest<'_>,
) -> Result<String, Problem> {
    let Some(text) = ask.scope else {
        return Ok(rule.scopes.join(" "));
    };
    let asked = scope::parse_list(text)
        .map_err(|e| Problem::bad_request(format!("scope: {e}")).with_oauth("invalid_scope"))?;
    let Some(extra) = asked.iter().find(|s| !rule.allows(s)) else {
        return Ok(asked.join(" "));
    };
    let refused = if policy.scopes_of(&rule.audience).contains(extra) {
        Problem::forbidden(format!(
            "the issuer policy does not allow {extra} for this client and audience"
        ))
    } else {
        let list = "scopes_supported of /.well-known/oauth-authorization-server";
        Problem::bad_request(format!(
            "scope: {extra} is an unknown scope at this audience; {list} has all that exist"
        ))
    };
    Err(refused.with_oauth("invalid_scope"))
}

/// The lifetime in seconds: the requested one if it is allowed, otherwise the default, lowered to the maximum.
pub(crate) fn ttl(max: u64, asked: Option<u64>, default: u64) -> Result<u64, Problem> {
    match asked {
        None => Ok(default.min(max)),
        Some(0) => Err(Problem::bad_request("ttl_s must be at least 1")),
        Some(ttl) if ttl <= max => Ok(ttl),
        Some(_) => Err(Problem::new(
            400,
            "ttl_too_long",
            "Lifetime too long",
            format!("ttl_s may be at most {max} here; ask for less"),
        )),
    }
}

/// The given and the requested caveats, each once; only the requested ones are checked against the maxima.
pub(crate) fn caveats(
    given: &[String],
    asked: &[String],
    maxima: &CaveatMaxima,
) -> Result<Vec<Caveat>, Problem> {
    let parse = |texts: &[String]| -> Result<Vec<Caveat>, Problem> {
        let parsed = texts.iter().map(|text| text.parse());
        parsed
            .collect::<Result<_, _>>()
            .map_err(|e| refused_caveat(&e))
    };
    let (mut all, asked) = (parse(given)?, parse(asked)?);
    maxima.check(&asked).map_err(|e| refused_caveat(&e))?;
    for caveat in asked {
        if !all.contains(&caveat) {
            all.push(caveat);
        }
    }
    if all.len() > CAVEATS_MAX {
        return Err(Problem::bad_request(format!(
            "more than {CAVEATS_MAX} caveats"
        )));
    }
    Ok(all)
}

/// Removes `proof.bind` from the caveats: it becomes the claim `cnf`. All bindings must name the same key.
pub(crate) fn binding(
    caveats: &mut Vec<Caveat>,
    proved: Option<&str>,
) -> Result<Option<String>, Problem> {
    let mut jkt = proved.map(str::to_owned);
    let mut clash = false;
    caveats.retain(|caveat| {
        let Caveat::ProofBind(key) = caveat else {
            return true;
        };
        clash |= jkt.as_ref().is_some_and(|known| known != key);
        jkt = Some(key.clone());
        false
    });
    if clash {
        return Err(Problem::bad_request(
            "a token is bound to one key: proof.bind and the DPoP proof name different ones",
        ));
    }
    Ok(jkt)
}

fn refused_caveat(e: &ron_proto::CaveatError) -> Problem {
    Problem::new(400, e.code, "Caveat refused", e.detail.clone())
}

/// The algorithm that a token will be signed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChosenAlg {
    /// Name of the algorithm.
    pub name: &'static str,
    /// Whether an algorithm with ML-DSA was preferred but is unavailable.
    pub fallback: bool,
}

impl ChosenAlg {
    /// Adds the caveat `pq.fallback`, so that verifiers can tell the fallback from a downgrade attack.
    pub(crate) fn mark(self, caveats: &mut Vec<Caveat>) -> Result<(), Problem> {
        let mark = Caveat::PqFallback(true);
        if !self.fallback || caveats.contains(&mark) {
            return Ok(());
        }
        if caveats.len() >= CAVEATS_MAX {
            return Err(Problem::bad_request(
                "the mark pq.fallback needs the room of one caveat: ask for one less",
            ));
        }
        caveats.push(mark);
        Ok(())
    }
}

/// The first algorithm that the caller accepts, that the audience allows and that has a key. Never silently a weaker one
/// than requested: without its ML-DSA key the issuer falls back only in mode `mirror`, and marks the token.
pub(crate) fn algorithm(
    rule: &AudienceRule,
    ask: &TokenRequest<'_>,
    limits: &Limits,
) -> Result<ChosenAlg, Problem> {
    let default = rule.alg.as_deref().unwrap_or("EdDSA");
    let allowed = |name: &&str| *name == default || rule.algs.iter().any(|a| a == name);
    let asked = ask.accept_algs.iter().map(String::as_str);
    let mut wanted: Vec<&str> = asked.filter(allowed).collect();
    if ask.accept_algs.is_empty() {
        wanted.push(default);
        if is_pq(default) {
            wanted.push("EdDSA");
        }
    }
    let mirrored = limits.pq == PqMode::Mirror;
    // Distinguishes an outage (503) from a request that the policy can never satisfy (400).
    let mut pq_unavailable = false;
    for (n, name) in wanted.iter().enumerate() {
        if is_pq(name) {
            let known = limits.pq_algs.iter().flatten().find(|alg| *alg == name);
            match known.filter(|_| limits.pq != PqMode::Off) {
                Some(name) if ask.pq_ready => {
                    let fallback = false;
                    return Ok(ChosenAlg { name, fallback });
                }
                Some(_) => pq_unavailable = true,
                None => {}
            }
            continue;
        }
        let passed = is_pq(default) || wanted[..n].iter().any(|w| is_pq(w));
        if limits.pq == PqMode::Require || (passed && !mirrored && ask.accept_algs.is_empty()) {
            continue;
        }
        if let Some(name) = limits.algs.iter().copied().find(|alg| alg == name) {
            let fallback = passed && mirrored;
            return Ok(ChosenAlg { name, fallback });
        }
    }
    if pq_unavailable || (ask.accept_algs.is_empty() && limits.pq != PqMode::Require) {
        return Err(Problem::unavailable(
            format!("no {default} signing key is configured and known for this audience"),
            30,
        ));
    }
    Err(Problem::new(
        400,
        "no_acceptable_alg",
        "No acceptable algorithm",
        match limits.pq {
            PqMode::Require => {
                "every token has an ML-DSA signature here: the policy of this audience must name \
                                such an algorithm, and the caller accept it"
                    .to_owned()
            }
            _ => format!("tokens for this audience are signed with {default}"),
        },
    ))
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
