//! Decisions: what a rule allows, what is refused, how algorithms are negotiated.

use ron_proto::passport::{Audience, PolicyPlaces};

use super::*;
use crate::samples::{audience, client, limits};

fn policy() -> IssuerPolicy {
    let wallet = AudienceRule {
        algs: vec!["ES256".to_owned()],
        caveats: vec!["asset=rpl".to_owned()],
        ..audience("svc-wallet", &["wallet:read", "wallet:transfer"])
    };
    let kms = AudienceRule {
        alg: Some("ES256".to_owned()),
        ..audience("ron-kms", &["kms:read"])
    };
    let operator = ClientRule {
        subjects: vec!["user:*".to_owned()],
        max_ttl_s: 600,
        ..client("operator", vec![wallet, kms])
    };
    IssuerPolicy {
        places: PolicyPlaces::default(),
        version: 1,
        audiences: Vec::new(),
        issuers: Vec::new(),
        clients: vec![operator],
    }
}

fn ask() -> TokenRequest<'static> {
    TokenRequest {
        audience: Some("svc-wallet"),
        ..crate::samples::ask("operator")
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
fn an_audience_of_others_adds_its_terms_to_the_rule() {
    let mut policy = policy();
    policy.audiences.push(Audience {
        audience: "https://orders.example.org/".to_owned(),
        scopes: vec!["read".to_owned(), "write".to_owned()],
        alg: Some("ES256".to_owned()),
        max_ttl_s: Some(120),
        caveats: vec!["region=eu".to_owned(), "asset=rpl".to_owned()],
    });
    let rule = AudienceRule {
        caveats: vec!["asset=rpl".to_owned(), "method=GET".to_owned()],
        ..audience("https://orders.example.org/", &["read"])
    };
    policy.clients[0].audiences.push(rule);
    assert_eq!(policy.check(), Ok(()));
    let ask = TokenRequest {
        audience: Some("https://orders.example.org/"),
        ..ask()
    };
    let grant = decide(&policy, &ask, &limits()).unwrap();
    assert_eq!(
        (&*grant.scope, grant.ttl_s, grant.alg),
        ("read", 120, "ES256")
    );
    let caveats: Vec<String> = grant.caveats.iter().map(ToString::to_string).collect();
    assert_eq!(caveats, ["region=eu", "asset=rpl", "method=GET"]);
    let refused = |ask: TokenRequest<'_>, status: u16, oauth: Option<&str>| {
        let got = decide(&policy, &ask, &limits()).unwrap_err();
        assert_eq!((got.status, got.oauth), (status, oauth), "{ask:?}: {got}");
    };
    let scope = |scope| TokenRequest {
        scope: Some(scope),
        ..ask.clone()
    };
    refused(scope("read write"), 403, Some("invalid_scope"));
    refused(scope("read wallet:read"), 400, Some("invalid_scope"));
    refused(scope("read,write"), 400, Some("invalid_scope"));
    let long = TokenRequest {
        ttl_s: Some(121),
        ..ask.clone()
    };
    refused(long, 400, None);
    let nobody = TokenRequest {
        audience: Some("nobody"),
        ..ask.clone()
    };
    refused(nobody, 403, Some("invalid_target"));
    // The rule's algorithm comes before that of the audience.
    policy.clients[0].audiences[2].alg = Some("EdDSA".to_owned());
    assert_eq!(decide(&policy, &ask, &limits()).unwrap().alg, "EdDSA");
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
        let ask = TokenRequest {
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
    let marked = ChosenAlg {
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
    let check = |ask: TokenRequest<'_>, status: u16, code: &str| {
        let got = decide(&policy(), &ask, &limits()).unwrap_err();
        assert_eq!(
            (got.status, got.code),
            (status, code),
            "{ask:?}: {}",
            got.detail
        );
    };
    check(
        TokenRequest {
            client_id: "unlisted",
            ..ask()
        },
        403,
        "forbidden",
    );
    check(
        TokenRequest {
            audience: Some("svc-other"),
            ..ask()
        },
        403,
        "forbidden",
    );
    check(
        TokenRequest {
            audience: None,
            ..ask()
        },
        400,
        "bad_request",
    );
    check(
        TokenRequest {
            subject: Some("admin"),
            ..ask()
        },
        403,
        "forbidden",
    );
    check(
        TokenRequest {
            subject: Some("with space"),
            ..ask()
        },
        400,
        "bad_request",
    );
    check(
        TokenRequest {
            scope: Some("wallet:issue"),
            ..ask()
        },
        403,
        "forbidden",
    );
    check(
        TokenRequest {
            scope: Some("no:such"),
            ..ask()
        },
        400,
        "bad_request",
    );
    check(
        TokenRequest {
            ttl_s: Some(601),
            ..ask()
        },
        400,
        "ttl_too_long",
    );
    check(
        TokenRequest {
            ttl_s: Some(0),
            ..ask()
        },
        400,
        "bad_request",
    );
    check(
        TokenRequest {
            caveats: &["colour=red".to_owned()],
            ..ask()
        },
        400,
        "unknown_caveat",
    );
    check(
        TokenRequest {
            caveats: &["budget.reqs=101".to_owned()],
            ..ask()
        },
        400,
        "caveat_over_max",
    );
    check(
        TokenRequest {
            accept_algs: &["PS256".to_owned(), "none".to_owned()],
            ..ask()
        },
        400,
        "no_acceptable_alg",
    );
    check(
        TokenRequest {
            caveats: &["pq.fallback=true".to_owned()],
            ..ask()
        },
        400,
        "bad_caveat",
    );
    check(
        TokenRequest {
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
        let asked = TokenRequest {
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
        &TokenRequest {
            caveats: &caveats,
            ..ask()
        },
        &limits(),
    )
    .unwrap();
    assert_eq!(grant.jkt.as_deref(), Some(key.as_str()));
    assert_eq!(grant.caveats, ["asset=rpl".parse().unwrap()]);
    let asked = TokenRequest {
        jkt: Some(&key),
        ..ask()
    };
    assert_eq!(
        decide(&policy(), &asked, &limits()).unwrap().jkt,
        Some(key.clone())
    );
}

#[test]
fn a_narrower_request_is_granted_unchanged() {
    let caveats = ["asset=rpl".to_owned(), "ceiling.per_op=5".to_owned()];
    let asked = TokenRequest {
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
