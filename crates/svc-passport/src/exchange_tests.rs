//! Exchange: what is refused, and that no exchange widens a right (a model of rights decides).

use proptest::prelude::*;
use ron_proto::Caveat;
use ron_proto::passport::{ClientRule, PolicyPlaces};

use super::*;
use crate::samples::{NOW, ask, audience, claims, client, limits};

fn rule(id: &str, scopes: &[&str], exchange: bool) -> ClientRule {
    ClientRule {
        exchange,
        ..client(id, vec![audience("svc-wallet", scopes)])
    }
}

fn policy() -> IssuerPolicy {
    IssuerPolicy {
        places: PolicyPlaces::default(),
        version: 1,
        audiences: Vec::new(),
        issuers: Vec::new(),
        clients: vec![
            rule("operator", &["wallet:read", "wallet:issue"], false),
            rule("gateway", &["wallet:read", "wallet:issue"], true),
            rule("unlisted", &["wallet:read"], false),
        ],
    }
}

fn run(ask: &TokenRequest<'_>, claims: &Claims) -> Result<Grant, Problem> {
    let held = PresentedToken {
        claims,
        audience: "svc-wallet",
        act: None,
    };
    exchange(&policy(), ask, &held, &limits(), NOW)
}

#[test]
fn the_same_client_narrows_and_another_one_acts() {
    let own = run(&ask("operator"), &claims()).unwrap();
    assert_eq!(own.scope, "wallet:read", "the rule in force counts as well");
    assert_eq!(
        (own.ttl_s, own.act, own.subject.as_str()),
        (600, None, "user:7")
    );
    assert_eq!(own.tenant.to_string(), "t1");
    let acted = run(&ask("gateway"), &claims()).unwrap();
    assert_eq!(
        acted.scope, "wallet:read",
        "the actor's rule counts as well"
    );
    assert_eq!(acted.act.as_ref().map(|a| a.sub.as_str()), Some("gateway"));
    let before = Actor {
        sub: "first".to_owned(),
        act: None,
    };
    let held = PresentedToken {
        claims: &claims(),
        audience: "svc-wallet",
        act: Some(&before),
    };
    let chain = exchange(&policy(), &ask("gateway"), &held, &limits(), NOW).unwrap();
    assert_eq!(chain.act.unwrap().act, Some(Box::new(before.clone())));
    let kept = exchange(&policy(), &ask("operator"), &held, &limits(), NOW).unwrap();
    assert_eq!(kept.act, Some(before));
}

#[test]
fn whatever_widens_is_refused() {
    let check = |ask: TokenRequest<'_>, claims: Claims, oauth: Option<&str>, code: &str| {
        let got = run(&ask, &claims).unwrap_err();
        assert_eq!(
            (got.oauth, got.code),
            (oauth, code),
            "{ask:?}: {}",
            got.detail
        );
    };
    let bad = "bad_request";
    check(
        ask("unlisted"),
        claims(),
        Some("unauthorized_client"),
        "forbidden",
    );
    check(
        ask("nobody"),
        claims(),
        Some("unauthorized_client"),
        "forbidden",
    );
    let kms = TokenRequest {
        audience: Some("ron-kms"),
        ..ask("operator")
    };
    check(kms, claims(), Some("invalid_target"), bad);
    let issue = TokenRequest {
        scope: Some("wallet:issue"),
        ..ask("operator")
    };
    check(issue, claims(), Some("invalid_scope"), bad);
    let long = TokenRequest {
        ttl_s: Some(601),
        ..ask("operator")
    };
    check(long, claims(), None, "ttl_too_long");
    let over = Claims {
        exp: NOW,
        ..claims()
    };
    check(ask("operator"), over, Some("invalid_grant"), bad);
    let bound = Claims {
        jkt: Some("K".into()),
        ..claims()
    };
    check(
        ask("operator"),
        bound.clone(),
        Some("invalid_dpop_proof"),
        bad,
    );
    let wrong = TokenRequest {
        jkt: Some("L"),
        ..ask("operator")
    };
    check(wrong, bound.clone(), Some("invalid_dpop_proof"), bad);
    let right = TokenRequest {
        jkt: Some("K"),
        ..ask("operator")
    };
    assert_eq!(run(&right, &bound).unwrap().jkt.as_deref(), Some("K"));
    assert_eq!(
        run(&right, &claims()).unwrap().jkt.as_deref(),
        Some("K"),
        "binding narrows"
    );
}

#[test]
fn another_audience_needs_the_pair_in_the_policy_and_gets_the_scopes_of_the_client_there() {
    let mut policy = policy();
    policy.clients[1].audiences.push(AudienceRule {
        from: vec!["svc-wallet".to_owned()],
        ..audience("svc-rewarder", &["rewarder:read", "rewarder:run"])
    });
    policy.clients[0].audiences.push(AudienceRule {
        from: vec!["svc-wallet".to_owned()],
        ..audience("ron-kms", &["kms:read"])
    });
    let go = |client: &str, to: &str, scope: Option<&str>, claims: &Claims, held: &str| {
        let ask = TokenRequest {
            audience: Some(to),
            scope,
            ..ask(client)
        };
        let held = PresentedToken {
            claims,
            audience: held,
            act: None,
        };
        exchange(&policy, &ask, &held, &limits(), NOW)
    };
    let got = go("gateway", "svc-rewarder", None, &claims(), "svc-wallet").unwrap();
    assert_eq!(
        (
            got.audience.as_str(),
            got.scope.as_str(),
            got.subject.as_str()
        ),
        ("svc-rewarder", "rewarder:read rewarder:run", "user:7")
    );
    assert_eq!(got.act.as_ref().map(|a| a.sub.as_str()), Some("gateway"));
    assert_eq!(got.caveats, claims().caveats, "they stay");
    assert_eq!(got.ttl_s, 600, "not longer than the token");
    let read = Some("rewarder:read");
    let got = go("gateway", "svc-rewarder", read, &claims(), "svc-wallet").unwrap();
    assert_eq!(got.scope, "rewarder:read");
    // Its own token, for which nobody acts.
    let own = go("operator", "ron-kms", None, &claims(), "svc-wallet").unwrap();
    assert_eq!((own.scope.as_str(), own.act), ("kms:read", None));
    let refused = |client: &str, to: &str, scope: Option<&str>, claims: Claims, held: &str| {
        let why = go(client, to, scope, &claims, held).unwrap_err();
        why.oauth.unwrap_or(why.code)
    };
    let target = "invalid_target";
    let at = |to: &str, held: &str| refused("gateway", to, None, claims(), held);
    assert_eq!(at("svc-rewarder", "ron-kms"), target, "not this pair");
    assert_eq!(at("ron-kms", "svc-wallet"), target, "the operator's alone");
    assert_eq!(
        at("svc-wallet", "svc-rewarder"),
        target,
        "not the other way"
    );
    let more = Some("kms:sign");
    assert_eq!(
        refused("operator", "ron-kms", more, claims(), "svc-wallet"),
        "invalid_scope"
    );
    let with = |caveat: &str| Claims {
        caveats: vec![caveat.parse().unwrap()],
        ..claims()
    };
    let to_rewarder = |claims| refused("gateway", "svc-rewarder", None, claims, "svc-wallet");
    for budget in ["budget.reqs=5", "budget.bytes=5"] {
        assert_eq!(to_rewarder(with(budget)), "invalid_grant", "{budget}");
    }
    let inherited = Claims {
        ancestors: vec![ron_auth::Ancestor {
            jti: "j0".into(),
            exp: NOW + 600,
            kids: Vec::new(),
            counted: with("budget.reqs=5").caveats,
        }],
        ..claims()
    };
    assert_eq!(to_rewarder(inherited), "invalid_grant");
    assert_eq!(to_rewarder(with("svc=svc-wallet")), target);
    let there = with("svc=svc-rewarder");
    assert!(go("gateway", "svc-rewarder", None, &there, "svc-wallet").is_ok());
}

#[test]
fn four_clients_act_for_a_holder_and_no_fifth() {
    let act = |many: usize| {
        let line = |act: Option<Actor>, n| {
            let sub = format!("client-{n}");
            let act = act.map(Box::new);
            Some(Actor { sub, act })
        };
        (0..many).fold(None, line)
    };
    let acting = |client: &str, many: usize| {
        let act = act(many);
        let held = PresentedToken {
            claims: &claims(),
            audience: "svc-wallet",
            act: act.as_ref(),
        };
        exchange(&policy(), &ask(client), &held, &limits(), NOW)
    };
    assert!(acting("gateway", ACTORS_MAX - 1).is_ok());
    let fifth = acting("gateway", ACTORS_MAX).unwrap_err();
    assert_eq!(fifth.oauth, Some("invalid_grant"));
    assert!(acting("operator", ACTORS_MAX).is_ok(), "no other one acts");
}

#[test]
fn a_certificate_stays_bound_through_an_exchange() {
    let bound = Claims {
        x5t: Some("C".into()),
        ..claims()
    };
    let with = |x5t: Option<&'static str>| TokenRequest {
        x5t,
        ..ask("operator")
    };
    assert_eq!(
        run(&with(Some("C")), &bound).unwrap().x5t.as_deref(),
        Some("C")
    );
    assert_eq!(
        run(&with(Some("C")), &claims()).unwrap().x5t.as_deref(),
        Some("C")
    );
    for other in [None, Some("D")] {
        let got = run(&with(other), &bound).unwrap_err();
        assert_eq!(got.oauth, Some("invalid_client"), "{other:?}");
    }
}

/// The model: may a token with these scopes, caveats and end do this?
fn may(scopes: &str, caveats: &[Caveat], end: u64, deed: &(&str, &str, u128, u64)) -> bool {
    let (scope, asset, amount, at) = *deed;
    let holds = |caveat: &Caveat| match caveat {
        Caveat::Asset(only) => only.as_str() == asset,
        Caveat::CeilingPerOp(most) => amount <= most.0,
        _ => false,
    };
    scopes.split(' ').any(|s| s == scope) && at < end && caveats.iter().all(holds)
}

proptest! {
    #[test]
    fn no_exchange_widens_a_right(
        client in prop::sample::select(vec!["operator", "gateway", "unlisted"]),
        scope in prop::option::of(prop::sample::select(vec!["wallet:read", "wallet:transfer", "wallet:issue", "wallet:read wallet:transfer"])),
        ttl in prop::option::of(1u64..1_200),
        added in prop::collection::vec(prop::sample::select(vec!["asset=ron", "asset=rpl", "ceiling.per_op=5", "ceiling.per_op=50"]), 0..3),
        deeds in prop::collection::vec((
            prop::sample::select(vec!["wallet:read", "wallet:transfer", "wallet:issue"]),
            prop::sample::select(vec!["ron", "rpl"]), 0u128..60, NOW..NOW + 1_500), 30),
    ) {
        let added: Vec<String> = added.into_iter().map(str::to_owned).collect();
        let asked = TokenRequest { scope, ttl_s: ttl, caveats: &added, ..ask(client) };
        let before = claims();
        if let Ok(after) = run(&asked, &before) {
            prop_assert_eq!((after.subject.as_str(), after.audience.as_str()), ("user:7", "svc-wallet"));
            for deed in &deeds {
                let now = may(&after.scope, &after.caveats, NOW + after.ttl_s, deed);
                prop_assert!(!now || may(&before.scopes.join(" "), &before.caveats, before.exp, deed), "{:?}", deed);
            }
            for caveat in &added {
                prop_assert!(after.caveats.contains(&caveat.parse().unwrap()));
            }
            prop_assert_eq!(after.act.is_some(), client != "operator");
        }
    }
}
