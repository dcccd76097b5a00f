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
            Problem::forbidden("the issuer policy does not allow this audience for this client")
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
    let asked = scope::parse_list(text)
        .map_err(|e| Problem::bad_request(format!("scope: {e}")).with_oauth("invalid_scope"))?;
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
mod tests {
    use super::*;

    fn policy() -> IssuerPolicy {
        IssuerPolicy {
            version: 1,
            clients: vec![ClientRule {
                client_id: "operator".to_owned(),
                tenant: "default".parse().unwrap(),
                subjects: vec!["user:*".to_owned()],
                audiences: vec![
                    AudienceRule {
                        audience: "svc-wallet".to_owned(),
                        scopes: vec!["wallet:read".to_owned(), "wallet:transfer".to_owned()],
                        alg: None,
                        algs: vec!["ES256".to_owned()],
                        caveats: vec!["asset=rpl".to_owned()],
                    },
                    AudienceRule {
                        audience: "ron-kms".to_owned(),
                        scopes: vec!["kms:read".to_owned()],
                        alg: Some("ES256".to_owned()),
                        algs: Vec::new(),
                        caveats: Vec::new(),
                    },
                ],
                max_ttl_s: 600,
                exchange: false,
            }],
        }
    }

    fn ask() -> Ask<'static> {
        Ask {
            client_id: "operator",
            subject: None,
            audience: Some("svc-wallet"),
            scope: None,
            ttl_s: None,
            caveats: &[],
            accept_algs: &[],
            jkt: None,
            x5t: None,
            pq_ready: false,
        }
    }

    fn limits() -> Limits {
        Limits {
            ttl_s_default: 900,
            maxima: CaveatMaxima::default(),
            algs: vec!["EdDSA", "ES256"],
            pq: PqMode::Off,
            pq_algs: None,
        }
    }

    #[test]
    fn a_plain_ask_gets_what_the_rule_allows() {
        let grant = decide(&policy(), &ask(), &limits()).unwrap();
        assert_eq!(grant.scope, "wallet:read wallet:transfer");
        assert_eq!(
            (grant.subject.as_str(), grant.ttl_s, grant.alg),
            ("operator", 600, "EdDSA")
        );
        assert_eq!(grant.caveats, ["asset=rpl".parse().unwrap()]);
    }

    #[test]
    fn post_quantum_algorithms_are_negotiated_and_never_silently_left_out() {
        let pick = |rule: (&str, &[&str]), accept: &[&str], mode: PqMode, pq_ready: bool| {
            let owned = |all: &[&str]| all.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
            let rule = AudienceRule {
                alg: Some(rule.0.to_owned()),
                algs: owned(rule.1),
                ..policy().clients[0].audiences[0].clone()
            };
            let accept = owned(accept);
            let ask = Ask {
                accept_algs: &accept,
                pq_ready,
                ..ask()
            };
            let limits = Limits {
                pq: mode,
                pq_algs: pq_alg(ron_proto::Alg::MlDsa65),
                ..limits()
            };
            match algorithm(&rule, &ask, &limits) {
                Ok(chosen) => format!(
                    "{}{}",
                    chosen.name,
                    if chosen.fallback { " marked" } else { "" }
                ),
                Err(problem) => problem.code.to_owned(),
            }
        };
        let (off, mirror, require) = (PqMode::Off, PqMode::Mirror, PqMode::Require);
        let (pq, hybrid) = ("ML-DSA-65", "EdDSA+ML-DSA-65");
        let classical: (&str, &[&str]) = ("EdDSA", &[pq, hybrid]);
        let prefers: (&str, &[&str]) = (hybrid, &["EdDSA"]);
        let check = |got: String, wanted: &str| assert_eq!(got, wanted);
        check(pick(classical, &[], mirror, true), "EdDSA");
        check(pick(classical, &[hybrid, "EdDSA"], mirror, true), hybrid);
        check(pick(classical, &[pq], mirror, true), pq);
        check(
            pick(classical, &[pq, "EdDSA"], mirror, false),
            "EdDSA marked",
        );
        check(pick(classical, &[pq], mirror, false), "unavailable");
        check(pick(classical, &[pq], off, true), "no_acceptable_alg");
        check(
            pick(classical, &["ML-DSA-87"], mirror, true),
            "no_acceptable_alg",
        );
        check(pick(classical, &[pq, "EdDSA"], off, true), "EdDSA");
        check(pick(classical, &[], require, true), "no_acceptable_alg");
        check(
            pick(classical, &["EdDSA"], require, true),
            "no_acceptable_alg",
        );
        check(pick(prefers, &[], mirror, true), hybrid);
        check(pick(prefers, &[], mirror, false), "EdDSA marked");
        check(pick(prefers, &["EdDSA"], mirror, true), "EdDSA marked");
        check(pick(prefers, &[], require, true), hybrid);
        check(pick(prefers, &[], require, false), "unavailable");
        check(pick(prefers, &[], off, true), "unavailable");
        check(
            pick(("EdDSA", &[]), &[hybrid], mirror, true),
            "no_acceptable_alg",
        );
        let mut full = vec![Caveat::RateRps(1); CAVEATS_MAX];
        let marked = Chosen {
            name: "EdDSA",
            fallback: true,
        };
        assert!(marked.mark(&mut full).is_err());
        let mut some = Vec::new();
        marked
            .mark(&mut some)
            .and_then(|()| marked.mark(&mut some))
            .unwrap();
        assert_eq!(some, [Caveat::PqFallback(true)]);
    }

    #[test]
    fn everything_beyond_the_rule_is_refused() {
        let check = |ask: Ask<'_>, status: u16, code: &str| {
            let got = decide(&policy(), &ask, &limits()).unwrap_err();
            assert_eq!(
                (got.status, got.code),
                (status, code),
                "{ask:?}: {}",
                got.detail
            );
        };
        check(
            Ask {
                client_id: "stranger",
                ..ask()
            },
            403,
            "forbidden",
        );
        check(
            Ask {
                audience: Some("svc-other"),
                ..ask()
            },
            403,
            "forbidden",
        );
        check(
            Ask {
                audience: None,
                ..ask()
            },
            400,
            "bad_request",
        );
        check(
            Ask {
                subject: Some("admin"),
                ..ask()
            },
            403,
            "forbidden",
        );
        check(
            Ask {
                subject: Some("with space"),
                ..ask()
            },
            400,
            "bad_request",
        );
        check(
            Ask {
                scope: Some("wallet:issue"),
                ..ask()
            },
            403,
            "forbidden",
        );
        check(
            Ask {
                scope: Some("no:such"),
                ..ask()
            },
            400,
            "bad_request",
        );
        check(
            Ask {
                ttl_s: Some(601),
                ..ask()
            },
            400,
            "ttl_too_long",
        );
        check(
            Ask {
                ttl_s: Some(0),
                ..ask()
            },
            400,
            "bad_request",
        );
        check(
            Ask {
                caveats: &["colour=red".to_owned()],
                ..ask()
            },
            400,
            "unknown_caveat",
        );
        check(
            Ask {
                caveats: &["budget.reqs=101".to_owned()],
                ..ask()
            },
            400,
            "caveat_over_max",
        );
        check(
            Ask {
                accept_algs: &["PS256".to_owned(), "none".to_owned()],
                ..ask()
            },
            400,
            "no_acceptable_alg",
        );
        check(
            Ask {
                caveats: &["pq.fallback=true".to_owned()],
                ..ask()
            },
            400,
            "bad_caveat",
        );
        check(
            Ask {
                caveats: &[format!("proof.bind={}", "A".repeat(43))],
                jkt: Some("another"),
                ..ask()
            },
            400,
            "bad_request",
        );
    }

    #[test]
    fn algorithms_are_negotiated_among_what_is_allowed_and_there() {
        let check = |accept: &[&str], offered: &[&'static str], want: Option<&str>| {
            let accept: Vec<String> = accept.iter().map(|a| (*a).to_owned()).collect();
            let asked = Ask {
                accept_algs: &accept,
                ..ask()
            };
            let limits = Limits {
                algs: offered.to_vec(),
                ..limits()
            };
            let got = decide(&policy(), &asked, &limits).ok().map(|g| g.alg);
            assert_eq!(got, want, "{accept:?} of {offered:?}");
        };
        let both = ["EdDSA", "ES256"];
        check(&[], &both, Some("EdDSA"));
        check(&["ES256", "EdDSA"], &both, Some("ES256"));
        check(&["RS256", "EdDSA"], &both, Some("EdDSA"));
        check(&["ES256", "EdDSA"], &["EdDSA"], Some("EdDSA"));
        check(&["ES256"], &["EdDSA"], None);
        check(&["none"], &both, None);
    }

    #[test]
    fn proof_bind_becomes_the_binding() {
        let key = "A".repeat(43);
        let caveats = [format!("proof.bind={key}")];
        let grant = decide(
            &policy(),
            &Ask {
                caveats: &caveats,
                ..ask()
            },
            &limits(),
        )
        .unwrap();
        assert_eq!(grant.jkt.as_deref(), Some(key.as_str()));
        assert_eq!(grant.caveats, ["asset=rpl".parse().unwrap()]);
        let asked = Ask {
            jkt: Some(&key),
            ..ask()
        };
        assert_eq!(
            decide(&policy(), &asked, &limits()).unwrap().jkt,
            Some(key.clone())
        );
    }

    #[test]
    fn a_narrower_ask_is_granted_as_asked() {
        let caveats = ["asset=rpl".to_owned(), "ceiling.per_op=5".to_owned()];
        let asked = Ask {
            subject: Some("user:7"),
            scope: Some("wallet:read"),
            ttl_s: Some(60),
            caveats: &caveats,
            ..ask()
        };
        let grant = decide(&policy(), &asked, &limits()).unwrap();
        assert_eq!(
            (grant.subject.as_str(), grant.scope.as_str(), grant.ttl_s),
            ("user:7", "wallet:read", 60)
        );
        assert_eq!(grant.caveats.len(), 2, "the rule's caveat is there once");
    }
}
