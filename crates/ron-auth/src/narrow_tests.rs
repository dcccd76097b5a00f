//! Narrowing: what holders may state, and that no chain ever widens a right (checked against a
//! model of rights).

use proptest::prelude::*;
use ron_crypto::sign::Ed25519Key;

use super::*;

const NOW: u64 = 1_800_000_000;
const ROOT: &str = "aGVhZGVy.cGF5bG9hZA.c2lnbmF0dXJl";

fn holder(n: u8) -> Holder {
    Holder::new(Ed25519Key::from_seed(&[n; 32]))
}

fn claims() -> Claims {
    Claims {
        iss: "i".into(),
        sub: "alice".into(),
        iat: NOW,
        nbf: NOW,
        exp: NOW + 900,
        jti: "j1".into(),
        client_id: None,
        tenant: "default".parse().unwrap(),
        scopes: vec!["wallet:read".into(), "wallet:transfer".into()],
        epoch: 0,
        caveats: vec!["asset=ron".parse().unwrap()],
        kid: "k1".into(),
        jkt: Some(holder(1).thumbprint()),
        pq_kid: None,
        x5t: None,
        ancestors: Vec::new(),
        budgets: Vec::new(),
    }
}

#[test]
fn a_holder_narrows_and_hands_on() {
    let first = Narrow {
        scope: Some("wallet:read".into()),
        caveats: vec!["account=acct:alice".parse().unwrap()],
        exp: Some(NOW + 60),
        jkt: Some(holder(2).thumbprint()),
    };
    let one = attenuate(ROOT, &holder(1), &first, NOW);
    let got = apply(&one, claims(), NOW).unwrap();
    assert_eq!(got.scopes, ["wallet:read"]);
    assert_eq!((got.exp, got.caveats.len()), (NOW + 60, 2));
    assert_eq!(got.jkt, Some(holder(2).thumbprint()));
    assert_eq!(root(&one), ROOT);
    let second = Narrow {
        caveats: vec!["method=GET".parse().unwrap()],
        ..Narrow::default()
    };
    let two = attenuate(&one, &holder(2), &second, NOW);
    assert_eq!(apply(&two, claims(), NOW).unwrap().caveats.len(), 3);
    // The first holder has handed the token on: it can neither narrow nor use the second holder's
    // token.
    let again = attenuate(&one, &holder(1), &second, NOW);
    assert_eq!(apply(&again, claims(), NOW), Err(AuthReject::Narrowing));
    assert_eq!(apply(ROOT, claims(), NOW), Ok(claims()));
}

#[test]
fn what_does_not_only_narrow_is_refused() {
    let check = |said: Value, wanted: AuthReject| {
        let statement = holder(1).sign(STATEMENT_TYP, &said);
        let presented = format!("{ROOT}~{statement}");
        assert_eq!(apply(&presented, claims(), NOW), Err(wanted), "{said}");
    };
    let parent = token_hash(ROOT);
    let narrowing = AuthReject::Narrowing;
    check(json!({"parent": parent}), narrowing);
    check(json!({"iat": NOW}), narrowing);
    check(
        json!({"parent": token_hash("other"), "iat": NOW}),
        narrowing,
    );
    check(
        json!({"parent": parent, "iat": NOW + 61}),
        AuthReject::NotYet,
    );
    check(
        json!({"parent": parent, "iat": NOW, "exp": NOW + 901}),
        narrowing,
    );
    check(
        json!({"parent": parent, "iat": NOW, "scope": "wallet:issue"}),
        narrowing,
    );
    check(
        json!({"parent": parent, "iat": NOW, "aud": "ron-kms"}),
        narrowing,
    );
    check(
        json!({"parent": parent, "iat": NOW, "jkt": "short"}),
        narrowing,
    );
    check(
        json!({"parent": parent, "iat": NOW, "caveats": ["pq.fallback=true"]}),
        narrowing,
    );
    check(
        json!({"parent": parent, "iat": NOW, "caveats": ["colour=red"]}),
        AuthReject::CaveatUnsupported,
    );
    let free = Claims {
        jkt: None,
        ..claims()
    };
    let one = attenuate(ROOT, &holder(1), &Narrow::default(), NOW);
    assert_eq!(
        apply(&one, free, NOW),
        Err(narrowing),
        "only bound tokens have a holder"
    );
    for cut in ["~", "~~", "~x"] {
        assert!(
            apply(&format!("{ROOT}{cut}"), claims(), NOW).is_err(),
            "{cut}"
        );
    }
    // The order of statements is signed.
    let caveat = |text: &str| Narrow {
        caveats: vec![text.parse().unwrap()],
        ..Narrow::default()
    };
    let two = attenuate(&one, &holder(1), &caveat("method=GET"), NOW);
    let parts: Vec<&str> = two.split('~').collect();
    let swapped = format!("{}~{}~{}", parts[0], parts[2], parts[1]);
    assert!(apply(&swapped, claims(), NOW).is_err());
    let dropped = format!("{}~{}", parts[0], parts[2]);
    assert!(apply(&dropped, claims(), NOW).is_err());
    let mut many = ROOT.to_owned();
    for _ in 0..=STATEMENTS_MAX {
        many = attenuate(&many, &holder(1), &Narrow::default(), NOW);
    }
    assert_eq!(apply(&many, claims(), NOW), Err(narrowing));
}

/// One request that a caller could make.
#[derive(Debug, Clone)]
struct Deed {
    scope: &'static str,
    at: u64,
    method: &'static str,
    asset: &'static str,
    amount: u128,
    key: u8,
}

/// The model: what a token's claims allow, computed by hand, without the code that enforces it.
fn may(claims: &Claims, deed: &Deed) -> bool {
    let held = |caveat: &Caveat| match caveat {
        Caveat::Method(only) => only == deed.method,
        Caveat::Asset(only) => only.as_str() == deed.asset,
        Caveat::CeilingPerOp(most) => deed.amount <= most.0,
        _ => false,
    };
    claims.scopes.iter().any(|s| s == deed.scope)
        && deed.at < claims.exp
        && claims.caveats.iter().all(held)
}

fn deeds() -> impl Strategy<Value = Deed> {
    (
        prop::sample::select(vec!["wallet:read", "wallet:transfer", "wallet:issue"]),
        NOW..NOW + 1_000,
        prop::sample::select(vec!["GET", "POST"]),
        prop::sample::select(vec!["ron", "rpl"]),
        0u128..30,
        1u8..4,
    )
        .prop_map(|(scope, at, method, asset, amount, key)| Deed {
            scope,
            at,
            method,
            asset,
            amount,
            key,
        })
}

fn narrows() -> impl Strategy<Value = (Narrow, u8, u8)> {
    let scope = prop::option::of(prop::sample::select(vec![
        "wallet:read",
        "wallet:transfer",
        "wallet:read wallet:transfer",
        "wallet:issue",
        "",
    ]));
    let caveat = prop::sample::select(vec![
        "method=GET",
        "method=POST",
        "asset=ron",
        "asset=rpl",
        "ceiling.per_op=5",
        "ceiling.per_op=20",
    ]);
    let caveats = prop::collection::vec(caveat, 0..3);
    (
        scope,
        caveats,
        prop::option::of(NOW..NOW + 1_000),
        1u8..4,
        1u8..4,
    )
        .prop_map(|(scope, caveats, exp, signer, next)| {
            let narrow = Narrow {
                scope: scope.map(str::to_owned),
                caveats: caveats.iter().map(|c| c.parse().unwrap()).collect(),
                exp,
                jkt: Some(holder(next).thumbprint()),
            };
            (narrow, signer, next)
        })
}

proptest! {
    /// Whatever any holder signs: the result allows nothing that its prefix does not, and only a
    /// key that a holder named can use it.
    #[test]
    fn no_chain_widens_a_right(chain in prop::collection::vec(narrows(), 1..4), wanted in prop::collection::vec(deeds(), 20)) {
        let mut presented = ROOT.to_owned();
        let mut before = claims();
        let mut keeper = 1;
        for (narrow, signer, next) in chain {
            presented = attenuate(&presented, &holder(signer), &narrow, NOW);
            let Ok(after) = apply(&presented, claims(), NOW) else {
                return Ok(()); // refused: it allows nothing at all
            };
            prop_assert_eq!(signer, keeper, "only the holder narrows");
            keeper = next;
            prop_assert_eq!(after.jkt.clone(), Some(holder(next).thumbprint()));
            for deed in &wanted {
                prop_assert!(!may(&after, deed) || may(&before, deed), "{:?}", deed);
                prop_assert!(deed.key == keeper || after.jkt != Some(holder(deed.key).thumbprint()));
            }
            prop_assert!(after.exp <= before.exp);
            prop_assert_eq!((&after.sub, &after.jti, after.epoch), (&before.sub, &before.jti, before.epoch));
            before = after;
        }
    }
}
