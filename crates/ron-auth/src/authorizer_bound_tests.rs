//! Bound and narrowed tokens; keys that the feed announces, and keys during outages.

use super::*;
use crate::narrow;

#[test]
fn a_bound_token_works_with_a_fresh_proof_of_its_key_only() {
    let rig = Rig::fresh();
    let holder = Holder::new(Ed25519Key::from_seed(&[21; 32]));
    let other = Holder::new(Ed25519Key::from_seed(&[22; 32]));
    let bound = rig.token(|claims| claims["cnf"] = json!({"jkt": holder.thumbprint()}));
    let url = "http://ledger.example/v1/ledger/head";
    let proof = |who: &Holder, token: &str, jti: &str| {
        crate::dpop::make_proof(who, "GET", url, Some(token), None, NOW, jti)
    };
    let ask = |scheme: &str, token: &str, proof: Option<&str>| {
        let credential = format!("{scheme} {token}");
        let mut headers = vec![
            ("authorization", credential.as_str()),
            ("host", "ledger.example"),
        ];
        headers.extend(proof.map(|p| ("dpop", p)));
        rig.auth
            .decide(
                &head(&headers, "127.0.0.1:9"),
                &Need::Scope(scope::LEDGER_READ),
            )
            .map(|principal| principal.name)
    };
    let first = proof(&holder, &bound, "p1");
    assert_eq!(ask("DPoP", &bound, Some(&first)), Ok("alice".to_owned()));
    assert_eq!(
        ask("DPoP", &bound, Some(&first)),
        Err(AuthReject::ProofReplay)
    );
    assert!(ask("dpop", &bound, Some(&proof(&holder, &bound, "p2"))).is_ok());
    assert_eq!(ask("Bearer", &bound, None), Err(AuthReject::Binding));
    let third = proof(&holder, &bound, "p3");
    assert_eq!(
        ask("Bearer", &bound, Some(&third)),
        Err(AuthReject::Binding)
    );
    assert_eq!(ask("DPoP", &bound, None), Err(AuthReject::Binding));
    let stolen = proof(&other, &bound, "p4");
    assert_eq!(ask("DPoP", &bound, Some(&stolen)), Err(AuthReject::Proof));
    let free = rig.token(|_| {});
    let needless = proof(&holder, &free, "p5");
    assert_eq!(ask("DPoP", &free, Some(&needless)), Err(AuthReject::Proof));
    // Handed on, narrowed: the next holder's key counts, and the added caveat holds.
    let narrow = |caveat: &str| narrow::Narrow {
        caveats: vec![caveat.parse().unwrap()],
        jkt: Some(other.thumbprint()),
        ..narrow::Narrow::default()
    };
    let given = narrow::attenuate(&bound, &holder, &narrow("method=GET"), NOW);
    let used = proof(&other, &given, "p6");
    assert!(ask("DPoP", &given, Some(&used)).is_ok());
    let back = proof(&holder, &given, "p7");
    assert_eq!(ask("DPoP", &given, Some(&back)), Err(AuthReject::Proof));
    let narrowed = narrow::attenuate(&bound, &holder, &narrow("method=POST"), NOW);
    let used = proof(&other, &narrowed, "p8");
    assert_eq!(ask("DPoP", &narrowed, Some(&used)), Err(AuthReject::Caveat));
    // The caveat form of the binding requires the same proof.
    let kept = format!("proof.bind={}", holder.thumbprint());
    let details = json!([{"type": "ron", "caveats": [kept]}]);
    let both = rig.token(|claims| {
        claims["cnf"] = json!({"jkt": holder.thumbprint()});
        claims["authorization_details"] = details.clone();
    });
    assert!(ask("DPoP", &both, Some(&proof(&holder, &both, "p9"))).is_ok());
}

#[test]
fn new_keys_are_read_when_the_feed_announces_them() {
    let rig = Rig::fresh();
    let next = Ed25519Key::from_seed(&[4; 32]);
    let token = rig.token_by("k2", &next, |_| {});
    rig.fake.0.lock().jwks = Some(json!({"keys": [jwk("k1", &rig.key), jwk("k2", &next)]}));
    assert_eq!(rig.ask(&token), Err(AuthReject::UnknownKid));
    rig.fake.0.lock().events.push(Revoked::Keys { count: 2 });
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert!(
        rig.ask(&token).is_ok(),
        "read without waiting for the interval"
    );
}

#[test]
fn announced_keys_that_cannot_be_read_are_read_again_at_once() {
    let rig = Rig::fresh();
    let jwks = rig.fake.0.lock().jwks.take();
    rig.fake.0.lock().events.push(Revoked::Keys { count: 2 });
    let kicks = &rig.auth.refresher.kicks;
    while kicks.try_recv().is_some() {} // of the start
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert!(kicks.try_recv().is_some(), "the key thread is woken");
    rig.fake.0.lock().jwks = jwks;
    rig.fake.0.lock().events.push(Revoked::Keys { count: 3 });
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert!(kicks.try_recv().is_none(), "they were read");
}

#[test]
fn the_last_good_keys_stay_through_outages_and_bad_documents() {
    let rig = Rig::fresh();
    let token = rig.token(|_| {});
    for bad in [
        None,
        Some(json!({"keys": []})),
        Some(json!("<html>")),
        Some(json!({"keys": [{"kty": "oct", "k": "AA"}]})),
    ] {
        rig.fake.0.lock().jwks = bad;
        assert!(rig.auth.refresh_keys_once().unwrap().is_err());
        assert!(rig.ask(&token).is_ok());
    }
    assert!(rig.auth.degraded().unwrap().contains("last good"));
    assert!(
        rig.registry
            .render()
            .contains("t_io_timeouts_total{op=\"auth_refresh\"} 1")
    );
}

#[test]
fn a_token_bound_to_a_certificate_works_on_its_connections_only() {
    let rig = Rig::fresh();
    let hash = ron_proto::b64::url(&[0xab; 32]);
    let bound = rig.token(|claims| claims["cnf"] = json!({"x5t#S256": hash}));
    let holder = Holder::new(Ed25519Key::from_seed(&[21; 32]));
    let both = rig.token(|claims| {
        claims["cnf"] = json!({"x5t#S256": hash, "jkt": holder.thumbprint()});
    });
    let ask = |credential: &str, sha256: Option<&str>, proof: Option<&str>| {
        let mut headers = vec![("authorization", credential), ("host", "ledger.example")];
        headers.extend(proof.map(|p| ("dpop", p)));
        let mut head = head(&headers, "10.0.0.7:9");
        head.transport = Transport::Tls;
        head.client_cert = sha256.map(|byte| {
            Arc::new(ron_http::ClientCert {
                sha256: byte.repeat(32),
                dns_names: Vec::new(),
            })
        });
        let need = Need::Scope(scope::LEDGER_READ);
        rig.auth
            .decide(&head, &need)
            .map(|principal| principal.name)
    };
    let bearer = format!("Bearer {bound}");
    let refused = Err(AuthReject::Binding);
    assert_eq!(ask(&bearer, Some("ab"), None), Ok("alice".to_owned()));
    assert_eq!(ask(&bearer, Some("cd"), None), refused);
    assert_eq!(
        ask(&bearer, None, None),
        refused,
        "verified before, and cached"
    );
    // Bound twice: both are required.
    let url = "https://ledger.example/v1/ledger/head";
    let proof =
        |jti: &str| crate::dpop::make_proof(&holder, "GET", url, Some(&both), None, NOW, jti);
    let dpop = format!("DPoP {both}");
    assert!(ask(&dpop, Some("ab"), Some(&proof("c1"))).is_ok());
    assert_eq!(ask(&dpop, Some("cd"), Some(&proof("c2"))), refused);
    assert_eq!(ask(&format!("Bearer {both}"), Some("ab"), None), refused);
}

#[test]
fn a_proof_is_for_our_own_urls_whatever_the_host_header_says() {
    let rig = Rig::fresh();
    let holder = Holder::new(Ed25519Key::from_seed(&[21; 32]));
    let bound = rig.token(|claims| claims["cnf"] = json!({"jkt": holder.thumbprint()}));
    let ask = |url: &str, host: &str, jti: &str| {
        let proof = crate::dpop::make_proof(&holder, "GET", url, Some(&bound), None, NOW, jti);
        let credential = format!("DPoP {bound}");
        let headers = [
            ("authorization", credential.as_str()),
            ("host", host),
            ("dpop", &proof),
        ];
        let need = Need::Scope(scope::LEDGER_READ);
        rig.auth
            .decide(&head(&headers, "127.0.0.1:9"), &need)
            .map(|principal| principal.name)
    };
    let staging = "https://staging.example/v1/ledger/head";
    let replayed = ask(staging, "staging.example", "1");
    assert_eq!(replayed, Err(AuthReject::ProofPlace));
    let ours = "https://ledger.example/v1/ledger/head";
    assert!(ask(ours, "whatever.example", "2").is_ok());
}

#[test]
fn only_a_request_that_is_let_in_uses_its_proof_up() {
    let rig = Rig::fresh();
    let holder = Holder::new(Ed25519Key::from_seed(&[21; 32]));
    let bound = rig.token(|claims| {
        claims["cnf"] = json!({"jkt": holder.thumbprint()});
        claims["authorization_details"] =
            json!([{"type": "ron", "caveats": ["method=GET", "budget.reqs=2"]}]);
    });
    let url = "http://ledger.example/v1/ledger/head";
    let ask = |method: Method, scope: &'static str, jti: &str| {
        let word = method.as_str();
        let proof = crate::dpop::make_proof(&holder, word, url, Some(&bound), None, NOW, jti);
        let credential = format!("DPoP {bound}");
        let headers = [("authorization", credential.as_str()), ("dpop", &proof)];
        let mut head = head(&headers, "127.0.0.1:9");
        head.method = method;
        let asked = rig.auth.decide(&head, &Need::Scope(scope));
        asked.map(|principal| principal.name)
    };
    for _ in 0..3 {
        let refused = ask(Method::GET, scope::LEDGER_COMMIT, "1");
        assert_eq!(refused, Err(AuthReject::Scope));
        let refused = ask(Method::POST, scope::LEDGER_READ, "1");
        assert_eq!(refused, Err(AuthReject::Caveat));
    }
    assert!(ask(Method::GET, scope::LEDGER_READ, "1").is_ok());
    for _ in 0..3 {
        let replayed = ask(Method::GET, scope::LEDGER_READ, "1");
        assert_eq!(replayed, Err(AuthReject::ProofReplay));
    }
    let second = ask(Method::GET, scope::LEDGER_READ, "2");
    assert!(second.is_ok(), "replays took nothing from the budget");
    assert_eq!(
        ask(Method::GET, scope::LEDGER_READ, "3"),
        Err(AuthReject::Budget)
    );
}
