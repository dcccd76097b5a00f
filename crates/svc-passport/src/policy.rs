//! The decision who may have which token: pure, from the signed issuer policy alone.

use ron_proto::caveat::{Caveat, CaveatMaxima};
use ron_proto::passport::{
    AudienceRule, CAVEATS_MAX, ClientRule, IssuerPolicy, SUBJECT_BYTES_MAX, TTL_S_MAX,
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
    /// JWS algorithms the caller accepts; empty accepts the audience's.
    pub accept_algs: &'a [String],
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
}

/// Decides. The default lifetime applies where none is asked for, lowered to the rule's maximum; an
/// explicit one above the maximum is refused, never clamped.
pub fn decide(policy: &IssuerPolicy, ask: &Ask<'_>, ttl_s_default: u64) -> Result<Grant, Problem> {
    let rule = policy
        .clients
        .iter()
        .find(|c| c.client_id == ask.client_id)
        .ok_or_else(|| Problem::forbidden("the issuer policy has no rule for this client"))?;
    let subject = subject(rule, ask)?;
    let audience = audience(rule, ask)?;
    let ttl_s = ttl(rule, ask, ttl_s_default)?;
    Ok(Grant {
        subject,
        client_id: rule.client_id.clone(),
        tenant: rule.tenant.clone(),
        audience: audience.audience.clone(),
        scope: scopes(audience, ask)?,
        ttl_s,
        caveats: caveats(audience, ask)?,
        alg: algorithm(audience, ask)?,
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

fn ttl(rule: &ClientRule, ask: &Ask<'_>, default: u64) -> Result<u64, Problem> {
    let max = rule.max_ttl_s.min(TTL_S_MAX);
    match ask.ttl_s {
        None => Ok(default.min(max)),
        Some(0) => Err(Problem::bad_request("ttl_s must be at least 1")),
        Some(ttl) if ttl <= max => Ok(ttl),
        Some(_) => Err(Problem::new(
            400,
            "ttl_too_long",
            "Lifetime too long",
            format!("ttl_s may be at most {max} for this client; ask for less"),
        )),
    }
}

fn caveats(rule: &AudienceRule, ask: &Ask<'_>) -> Result<Vec<Caveat>, Problem> {
    let mut all = Vec::new();
    for text in rule.caveats.iter().chain(ask.caveats) {
        let caveat: Caveat = text.parse().map_err(|e| refused_caveat(&e))?;
        if !all.contains(&caveat) {
            all.push(caveat);
        }
    }
    if ask
        .caveats
        .iter()
        .filter_map(|t| t.parse::<Caveat>().ok())
        .any(|c| c.issuer_only())
    {
        return Err(Problem::bad_request(
            "pq.fallback is set by the issuer only",
        ));
    }
    if all.len() > CAVEATS_MAX {
        return Err(Problem::bad_request(format!(
            "more than {CAVEATS_MAX} caveats"
        )));
    }
    CaveatMaxima::default()
        .check(&all)
        .map_err(|e| refused_caveat(&e))?;
    Ok(all)
}

fn refused_caveat(e: &ron_proto::CaveatError) -> Problem {
    Problem::new(400, e.code, "Caveat refused", e.detail.clone())
}

fn algorithm(rule: &AudienceRule, ask: &Ask<'_>) -> Result<&'static str, Problem> {
    let alg = match rule.alg.as_deref() {
        None | Some("EdDSA") => "EdDSA",
        Some("ES256") => "ES256",
        Some(_) => {
            return Err(Problem::internal(
                "the issuer policy names an algorithm that is not offered",
            ));
        }
    };
    if ask.accept_algs.is_empty() || ask.accept_algs.iter().any(|a| a == alg) {
        Ok(alg)
    } else {
        Err(Problem::new(
            400,
            "no_acceptable_alg",
            "No acceptable algorithm",
            format!("tokens for this audience are signed with {alg}"),
        ))
    }
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
                        caveats: vec!["asset=rpl".to_owned()],
                    },
                    AudienceRule {
                        audience: "ron-kms".to_owned(),
                        scopes: vec!["kms:read".to_owned()],
                        alg: Some("ES256".to_owned()),
                        caveats: Vec::new(),
                    },
                ],
                max_ttl_s: 600,
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
        }
    }

    #[test]
    fn a_plain_ask_gets_what_the_rule_allows() {
        let grant = decide(&policy(), &ask(), 900).unwrap();
        assert_eq!(grant.scope, "wallet:read wallet:transfer");
        assert_eq!(
            (grant.subject.as_str(), grant.ttl_s, grant.alg),
            ("operator", 600, "EdDSA")
        );
        assert_eq!(grant.caveats, ["asset=rpl".parse().unwrap()]);
    }

    #[test]
    fn everything_beyond_the_rule_is_refused() {
        let check = |ask: Ask<'_>, status: u16, code: &str| {
            let got = decide(&policy(), &ask, 900).unwrap_err();
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
                accept_algs: &["ES256".to_owned()],
                ..ask()
            },
            400,
            "no_acceptable_alg",
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
        let grant = decide(&policy(), &asked, 900).unwrap();
        assert_eq!(
            (grant.subject.as_str(), grant.scope.as_str(), grant.ttl_s),
            ("user:7", "wallet:read", 60)
        );
        assert_eq!(grant.caveats.len(), 2, "the rule's caveat is there once");
    }
}
