//! The decision who may have which token: pure, from the signed issuer policy alone.

use ron_auth::Claims;
use ron_proto::caveat::{Caveat, CaveatMaxima};
use ron_proto::passport::{
    Actor, AudienceRule, CAVEATS_MAX, ClientRule, IssuerPolicy, SUBJECT_BYTES_MAX, TTL_S_MAX,
};
use ron_proto::{Problem, Tenant, scope};

/// What is asked for, whichever endpoint it came through.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// The authenticated client.
    pub client_id: &'a str,
    /// Who the token is for; the client itself when absent.
    pub subject: Option<&'a str>,
    /// The service it is for; may be absent when the policy names just one.
    pub audience: Option<&'a str>,
    /// Scopes separated by spaces; all allowed ones when absent.
    pub scope: Option<&'a str>,
    /// Lifetime in seconds.
    pub ttl_s: Option<u64>,
    /// Caveats as typed.
    pub caveats: &'a [String],
    /// JWS algorithms the caller accepts, best first; empty accepts the audience's.
    pub accept_algs: &'a [String],
    /// Thumbprint of the key that the caller has proved with DPoP: the token is bound to it.
    pub jkt: Option<&'a str>,
    /// Base64url of the SHA-256 of the certificate that the client proved itself with: likewise.
    pub x5t: Option<&'a str>,
    /// Whether the ML-DSA key could sign now.
    pub pq_ready: bool,
}

/// Whether tokens get ML-DSA signatures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PqMode {
    /// None does.
    #[default]
    Off,
    /// For audiences whose policy names such an algorithm; while the key is away, classical ones with a mark.
    Mirror,
    /// No token leaves without one.
    Require,
}

impl PqMode {
    /// The word in a configuration.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "mirror" => Some(Self::Mirror),
            "require" => Some(Self::Require),
            _ => None,
        }
    }
}

/// The two names that a KMS key of this algorithm signs tokens under: alone, and as a hybrid with EdDSA.
pub const fn pq_alg(alg: ron_proto::Alg) -> Option<[&'static str; 2]> {
    match alg {
        ron_proto::Alg::MlDsa44 => Some(["ML-DSA-44", "EdDSA+ML-DSA-44"]),
        ron_proto::Alg::MlDsa65 => Some(["ML-DSA-65", "EdDSA+ML-DSA-65"]),
        ron_proto::Alg::MlDsa87 => Some(["ML-DSA-87", "EdDSA+ML-DSA-87"]),
        _ => None,
    }
}

/// Whether the name of an algorithm has an ML-DSA signature in it.
pub fn is_pq(name: &str) -> bool {
    name.contains("ML-DSA-")
}

/// What the configuration adds to the policy.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Lifetime where none is asked for, in seconds.
    pub ttl_s_default: u64,
    /// Largest counted caveats.
    pub maxima: CaveatMaxima,
    /// Classical algorithms for which a signing key is configured.
    pub algs: Vec<&'static str>,
    /// Whether tokens get ML-DSA signatures.
    pub pq: PqMode,
    /// Names of the ML-DSA key's algorithms, see [`pq_alg`].
    pub pq_algs: Option<[&'static str; 2]>,
}

/// What was granted: everything of a token but its id, times, epoch and key.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Holder.
    pub subject: String,
    /// Client.
    pub client_id: String,
    /// Tenant.
    pub tenant: Tenant,
    /// Audience.
    pub audience: String,
    /// Scopes separated by spaces.
    pub scope: String,
    /// Lifetime in seconds.
    pub ttl_s: u64,
    /// All caveats, the rule's first.
    pub caveats: Vec<Caveat>,
    /// JWS algorithm.
    pub alg: &'static str,
    /// Thumbprint of the key that it is bound to.
    pub jkt: Option<String>,
    /// Hash of the certificate that it is bound to.
    pub x5t: Option<String>,
    /// Who acts for the holder.
    pub act: Option<Actor>,
    /// The token that it was exchanged for: judged once more when the new one is signed.
    pub origin: Option<Box<Claims>>,
}

/// Decides. The default lifetime applies where none is asked for, lowered to the rule's maximum; an
/// explicit one above the maximum is refused, never clamped.
pub fn decide(policy: &IssuerPolicy, ask: &Ask<'_>, limits: &Limits) -> Result<Grant, Problem> {
    let rule = rule_of(policy, ask.client_id)?;
    let subject = subject(rule, ask)?;
    let audience = audience(rule, ask)?;
    let ttl_s = ttl(rule, ask.ttl_s, limits.ttl_s_default, TTL_S_MAX)?;
    let mut caveats = caveats(&audience.caveats, ask.caveats, &limits.maxima)?;
    let jkt = binding(&mut caveats, ask.jkt)?;
    let alg = algorithm(audience, ask, limits)?;
    alg.mark(&mut caveats)?;
    Ok(Grant {
        subject,
        client_id: rule.client_id.clone(),
        tenant: rule.tenant.clone(),
        scope: scopes(audience, ask)?,
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

/// The rule of a client.
pub(crate) fn rule_of<'a>(
    policy: &'a IssuerPolicy,
    client: &str,
) -> Result<&'a ClientRule, Problem> {
    policy
        .clients
        .iter()
        .find(|c| c.client_id == client)
        .ok_or_else(|| {
            Problem::forbidden("the issuer policy has no rule for this client")
                .with_oauth("unauthorized_client")
        })
}

fn subject(rule: &ClientRule, ask: &Ask<'_>) -> Result<String, Problem> {
    let subject = ask.subject.unwrap_or(ask.client_id);
    let printable = subject.bytes().all(|b| b.is_ascii_graphic());
    if subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX || !printable {
        return Err(Problem::bad_request(
            "subject_ref must be 1..256 printable ASCII characters without spaces",
        ));
    }
    if subject == rule.client_id || rule.subjects.iter().any(|p| matches(p, subject)) {
        Ok(subject.to_owned())
    } else {
        Err(Problem::forbidden(
            "the issuer policy does not let this client name that subject",
        ))
    }
}

/// Exact, or a prefix ending in `*`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}

fn audience<'a>(rule: &'a ClientRule, ask: &Ask<'_>) -> Result<&'a AudienceRule, Problem> {
    match (ask.audience, rule.audiences.as_slice()) {
        (Some(name), all) => all.iter().find(|a| a.audience == name).ok_or_else(|| {
            let allowed: Vec<&str> = all.iter().map(|a| a.audience.as_str()).collect();
            Problem::forbidden(format!(
                "the issuer policy does not allow this audience for this client, but: {}",
                allowed.join(", ")
            ))
        }),
        (None, [only]) => Ok(only),
        (None, _) => Err(Problem::bad_request(
            "audience is missing: name the service the token is for",
        )),
    }
}

fn scopes(rule: &AudienceRule, ask: &Ask<'_>) -> Result<String, Problem> {
    let Some(text) = ask.scope else {
        return Ok(rule.scopes.join(" "));
    };
    let asked = scope::parse_list(text).map_err(|e| {
        let known =
            "scopes_supported of /.well-known/oauth-authorization-server names those there are";
        Problem::bad_request(format!("scope: {e}; {known}")).with_oauth("invalid_scope")
    })?;
    if let Some(extra) = asked.iter().find(|s| !rule.scopes.iter().any(|r| r == *s)) {
        return Err(Problem::forbidden(format!(
            "the issuer policy does not allow {extra} for this audience"
        ))
        .with_oauth("invalid_scope"));
    }
    Ok(asked.join(" "))
}

/// The lifetime: what is asked for if it is allowed, else the default lowered to what is allowed.
pub(crate) fn ttl(
    rule: &ClientRule,
    asked: Option<u64>,
    default: u64,
    at_most: u64,
) -> Result<u64, Problem> {
    let max = rule.max_ttl_s.min(TTL_S_MAX).min(at_most);
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

/// The given caveats and those asked for, each once; only what is asked for is held to the maxima.
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

/// Takes `proof.bind` out of the caveats: it becomes the claim `cnf`. All bindings must name one key.
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

/// How a token will be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Name of the algorithm.
    pub name: &'static str,
    /// Something with ML-DSA was preferred and could not be had.
    pub fallback: bool,
}

impl Chosen {
    /// Writes the fallback into the token, so that verifiers can tell it from a downgrade.
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

/// The first algorithm that the caller accepts, the audience allows and a key is there for. Never silently one that
/// is weaker than asked for: without its ML-DSA key the issuer falls back in mode `mirror` only, and marks it.
pub(crate) fn algorithm(
    rule: &AudienceRule,
    ask: &Ask<'_>,
    limits: &Limits,
) -> Result<Chosen, Problem> {
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
    let mut away = false;
    for (n, name) in wanted.iter().enumerate() {
        if is_pq(name) {
            let known = limits.pq_algs.iter().flatten().find(|alg| *alg == name);
            match known.filter(|_| limits.pq != PqMode::Off) {
                Some(name) if ask.pq_ready => {
                    let fallback = false;
                    return Ok(Chosen { name, fallback });
                }
                Some(_) => away = true,
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
            return Ok(Chosen { name, fallback });
        }
    }
    if away || (ask.accept_algs.is_empty() && limits.pq != PqMode::Require) {
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
