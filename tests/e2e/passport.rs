//! The issuer from the view of clients and resource servers: OAuth endpoints, introspection,
//! revocation by the client, exchange, DPoP, narrowing. Against a real fleet.

use ron_http::{Method, Reply};
use ron_tests::issuer::*;
use ron_tests::{json, ok};
use serde_json::{Value, json};

#[test]
fn clients_prove_themselves_three_ways_and_errors_are_those_of_oauth() {
    let rig = Rig::start();
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    let got = json(&rig.operator("/oauth2/token", &ask), 200);
    assert_eq!(
        (got["token_type"].as_str(), got["expires_in"].as_u64()),
        (Some("Bearer"), Some(900))
    );
    let file: Value = serde_json::from_slice(
        &std::fs::read(rig.fleet.dir().join("clients/operator.json")).unwrap(),
    )
    .unwrap();
    let secret = file["client_secret"].as_str().unwrap();
    let posted = [
        ask[0],
        ask[1],
        ("client_id", "operator"),
        ("client_secret", secret),
    ];
    let granted = rig.form("/oauth2/token", &posted, &[]);
    assert_eq!(granted.status, 200);
    assert_eq!(granted.header("cache-control"), Some("no-store"));
    let robot = rig.robot_token();
    assert_eq!(claims(&text(&robot, "access_token"))["client_id"], "robot");

    let check = |reply: Reply, status: u16, error: &str| {
        assert_eq!(json(&reply, status)["error"], error);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("www-authenticate").is_some(), status == 401);
    };
    let bad_client = "invalid_client";
    check(rig.form("/oauth2/token", &ask, &[]), 401, bad_client);
    let wrong = [
        ask[0],
        ask[1],
        ("client_id", "operator"),
        ("client_secret", "wrong"),
    ];
    check(rig.form("/oauth2/token", &wrong, &[]), 401, bad_client);
    let both = [ask[0], ask[1], ("client_secret", secret)];
    check(rig.operator("/oauth2/token", &both), 400, "invalid_request");
    let used = rig.assertion(|_| {});
    assert_eq!(rig.robot_with(&used, &ask).status, 200);
    check(rig.robot_with(&used, &ask), 401, bad_client);
    let changes: [fn(&mut Value); 3] = [
        |c| c["aud"] = "http://elsewhere".into(),
        |c| c["exp"] = (now_s() - 1).into(),
        |c| c["sub"] = "operator".into(),
    ];
    for change in changes {
        check(
            rig.robot_with(&rig.assertion(change), &ask),
            401,
            bad_client,
        );
    }
    let with = |name: &'static str, value: &'static str| [ask[0], ask[1], (name, value)];
    let refused = |fields: &[(&str, &str)], error| {
        check(rig.operator("/oauth2/token", fields), 400, error);
    };
    for (name, value, error) in [
        ("scope", "wallet:sing", "invalid_scope"),
        ("scope", "kms:sign", "invalid_scope"),
        ("ttl_s", "3601", "invalid_request"),
        ("caveat", "colour=red", "invalid_request"),
        ("grant_type", "client_credentials", "invalid_request"),
    ] {
        refused(&with(name, value), error);
    }
    refused(&[("grant_type", "password")], "unsupported_grant_type");
    // Parameters that nobody reads are ignored, and those without a value count as absent.
    let code = [
        ("grant_type", "authorization_code"),
        ("code", "x"),
        ("redirect_uri", "http://a"),
    ];
    refused(&code, "unsupported_grant_type");
    for ignored in [
        ("colour", "red"),
        ("scope", ""),
        ("ttl_s", ""),
        ("resource", ""),
        ("client_assertion", ""),
        ("subject_token", ""),
        ("authorization_details", ""),
    ] {
        let got = rig.operator("/oauth2/token", &with(ignored.0, ignored.1));
        let scope = text(&got, "scope");
        assert!(
            scope.contains("wallet:read wallet:issue"),
            "{ignored:?}: {scope}"
        );
    }
    refused(&[ask[0], ("audience", "")], "invalid_request");
    for (resource, audience) in [
        ("svc-wallet", ""),
        ("https://nobody.example.org/", ""),
        ("https://nobody.example.org/#x", ""),
        ("https://nobody.example.org/", "svc-wallet"),
    ] {
        let fields = [ask[0], ("resource", resource), ("audience", audience)];
        refused(&fields, "invalid_target");
    }
    refused(&[ask[0], ask[1], ("audience", "ron-kms")], "invalid_target");
    refused(&[ask[0], ("audience", "svc-other")], "invalid_target");
    let typed = r#"[{"type":"ron","asset":"ron","method":"GET"}]"#;
    let got = rig.operator("/oauth2/token", &with("authorization_details", typed));
    assert_eq!(
        claims(&text(&got, "access_token"))["authorization_details"],
        json!([{"type": "ron", "asset": "ron", "method": "GET"}])
    );
    let odd = r#"[{"type":"ron","colour":"red"}]"#;
    refused(
        &with("authorization_details", odd),
        "invalid_authorization_details",
    );
}

#[test]
fn introspection_and_giving_back_follow_their_rfcs() {
    let rig = Rig::start();
    let token = rig.fleet.token("svc-wallet", Some("wallet:read"));
    let seen = json(
        &rig.operator("/oauth2/introspect", &[("token", &token)]),
        200,
    );
    assert_eq!(seen["active"], true, "{seen}");
    for name in [
        "iss",
        "sub",
        "aud",
        "exp",
        "iat",
        "jti",
        "scope",
        "client_id",
    ] {
        assert_eq!(seen[name], claims(&token)[name], "{name}");
    }
    let inactive = json!({"active": false});
    for bad in ["x", "a.b.c", &token[1..]] {
        assert_eq!(
            json(&rig.operator("/oauth2/introspect", &[("token", bad)]), 200),
            inactive
        );
    }
    let strict = [
        ("Authorization", &*rig.basic()),
        ("Prefer", "handling=strict"),
    ];
    assert_eq!(
        rig.form("/oauth2/introspect", &[("token", "x")], &strict)
            .status,
        401
    );
    assert_eq!(
        rig.form("/oauth2/introspect", &[("token", &token)], &strict)
            .status,
        200
    );
    // A gateway passes on what it received, which may be nothing.
    for none in [&[("token", "")][..], &[]] {
        let said = rig.form("/oauth2/introspect", none, &strict);
        assert_eq!(json(&said, 401)["error"], "invalid_token", "{none:?}");
        let said = rig.operator("/oauth2/introspect", none);
        assert_eq!(json(&said, 400)["error"], "invalid_request", "{none:?}");
    }
    assert_eq!(
        rig.form("/oauth2/introspect", &[("token", &token)], &[])
            .status,
        401
    );
    let assertion = rig.assertion(|_| {});
    let robot = [
        ("client_assertion_type", ASSERTION),
        ("client_assertion", &*assertion),
        ("token", &*token),
    ];
    assert_eq!(
        rig.form("/oauth2/introspect", &robot, &[]).status,
        400,
        "its policy does not say so"
    );
    let bearer = format!(
        "Bearer {}",
        rig.fleet.token("svc-passport", Some("passport:introspect"))
    );
    let seen = rig.form(
        "/oauth2/introspect",
        &[("token", &token)],
        &[("Authorization", &bearer)],
    );
    assert_eq!(json(&seen, 200)["active"], true);
    let weak = format!(
        "Bearer {}",
        rig.fleet.token("svc-passport", Some("passport:issue"))
    );
    let seen = rig.form(
        "/oauth2/introspect",
        &[("token", &token)],
        &[("Authorization", &weak)],
    );
    assert_eq!(json(&seen, 400)["error"], "insufficient_scope");

    // The robot may not revoke the operator's token; its owner may, and twice has the same result
    // as once.
    let assertion = rig.assertion(|_| {});
    let robot = [
        ("client_assertion_type", ASSERTION),
        ("client_assertion", &*assertion),
        ("token", &*token),
    ];
    assert_eq!(
        json(&rig.form("/oauth2/revoke", &robot, &[]), 400)["error"],
        "unauthorized_client"
    );
    assert_eq!(rig.balance(&token).status, 200);
    for _ in 0..2 {
        assert_eq!(
            rig.operator("/oauth2/revoke", &[("token", &token)]).status,
            200
        );
    }
    assert_eq!(
        json(
            &rig.operator("/oauth2/introspect", &[("token", &token)]),
            200
        ),
        inactive
    );
    Rig::refused_soon(|| rig.balance(&token), "given back");
    assert_eq!(
        rig.operator("/oauth2/revoke", &[("token", "never was one")])
            .status,
        200
    );
}

#[test]
fn exchange_and_binding_only_narrow() {
    let rig = Rig::start();
    let token = rig.fleet.token("svc-wallet", None);
    let exchange = |token: &str, more: &[(&str, &str)]| {
        let mut fields = vec![
            ("grant_type", EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", ACCESS),
        ];
        fields.extend_from_slice(more);
        rig.operator("/oauth2/token", &fields)
    };
    let got = json(
        &exchange(
            &token,
            &[
                ("scope", "wallet:read"),
                ("ttl_s", "60"),
                ("caveat", "asset=ron"),
            ],
        ),
        200,
    );
    assert_eq!(
        (got["scope"].as_str(), got["issued_token_type"].as_str()),
        (Some("wallet:read"), Some(ACCESS))
    );
    let narrow = got["access_token"].as_str().unwrap();
    assert_eq!(
        claims(narrow)["exp"].as_u64().unwrap() - claims(narrow)["iat"].as_u64().unwrap(),
        60
    );
    assert_eq!(rig.balance(narrow).status, 200);
    let check = |reply: Reply, error: &str| assert_eq!(json(&reply, 400)["error"], error);
    check(
        exchange(narrow, &[("scope", "wallet:transfer")]),
        "invalid_scope",
    );
    check(
        exchange(narrow, &[("audience", "ron-kms")]),
        "invalid_target",
    );
    check(exchange(narrow, &[("ttl_s", "900")]), "invalid_request");
    check(exchange("x.y.z", &[]), "invalid_grant");
    let asset =
        claims(&text(&exchange(narrow, &[]), "access_token"))["authorization_details"][0]["asset"]
            .clone();
    assert_eq!(asset, "ron", "caveats stay");
    let assertion = rig.assertion(|_| {});
    let acted = rig.robot_with(
        &assertion,
        &[
            ("grant_type", EXCHANGE),
            ("subject_token", &token),
            ("subject_token_type", ACCESS),
        ],
    );
    let acted = claims(&text(&acted, "access_token"));
    assert_eq!(
        (&acted["act"], &acted["sub"], &acted["scope"]),
        (
            &json!({"sub": "robot"}),
            &json!("operator"),
            &json!("wallet:read")
        )
    );

    // Bound to a key from the start, used with proofs, narrowed offline and passed on.
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| keys.path().join(name).to_str().unwrap().to_owned();
    let (mine, theirs) = (key("mine"), key("theirs"));
    bare(&["token", "key", &mine]);
    let their_print = bare(&["token", "key", &theirs]);
    let bound = ok(&rig
        .fleet
        .ron(&["token", "--audience", "svc-wallet", "--key", &mine]));
    let bound = bound.trim();
    let url = rig.balance_url();
    let ask = |token: &str, key: Option<&str>| {
        let dpop = key.map(|key| bare(&["token", "proof", token, "--key", key, "--url", &url]));
        (token.to_owned(), dpop)
    };
    let send = |(token, proof): &(String, Option<String>), scheme: &str| {
        let credential = format!("{scheme} {token}");
        let mut headers = vec![("Authorization", credential.as_str())];
        headers.extend(proof.as_deref().map(|p| ("DPoP", p.trim())));
        rig.fleet
            .send(Method::GET, &url, None, None, &headers)
            .status
    };
    let first = ask(bound, Some(&mine));
    assert_eq!(send(&first, "DPoP"), 200);
    assert_eq!(send(&first, "DPoP"), 401, "a proof counts once");
    assert_eq!(send(&ask(bound, None), "Bearer"), 401);
    assert_eq!(send(&ask(bound, Some(&theirs)), "DPoP"), 401);
    let given = ok(&rig.fleet.ron(&[
        "token",
        "attenuate",
        bound,
        "--key",
        &mine,
        "--to",
        their_print.trim(),
        "--scope",
        "wallet:read",
        "--caveat",
        "asset=rpl",
        "--ttl",
        "1m",
    ]));
    let given = given.trim();
    assert_eq!(rig.verdict(given)["ok"], true);
    assert_eq!(
        send(&ask(given, Some(&theirs)), "DPoP"),
        403,
        "the caveat that was added holds"
    );
    assert_eq!(
        send(&ask(given, Some(&mine)), "DPoP"),
        401,
        "it was handed on"
    );
    check(exchange(bound, &[]), "invalid_dpop_proof");
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", bound, "--reason", "test"]));
    assert_eq!(
        rig.verdict(given)["reason"],
        "revoked",
        "the chain falls with its root"
    );
}

#[test]
fn the_command_line_gets_inspects_verifies_narrows_and_revokes() {
    let rig = Rig::start();
    let ron = |args: &[&str]| rig.fleet.ron(args);
    let refused = |args: &[&str], word: &str| {
        let out = ron(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let told = out.status.code() == Some(1) && said.contains(word);
        assert!(told, "{args:?}: {said}");
    };
    // The bare command is the same as get; standard output is the token and nothing else.
    let ask = [
        "--audience",
        "svc-wallet",
        "--scope",
        "wallet:read wallet:transfer",
        "--ttl",
        "5m",
    ];
    let [bare_one, got] = [&["token"][..], &["token", "get"]].map(|command| {
        let out = ok(&ron(&[command, &ask, &["--caveat", "asset=ron"]].concat()));
        out.strip_suffix('\n').expect("one line").to_owned()
    });
    for token in [&bare_one, &got] {
        let said = claims(token);
        let (iat, exp) = (said["iat"].as_u64().unwrap(), said["exp"].as_u64().unwrap());
        assert_eq!(
            (exp - iat, &said["scope"]),
            (300, &json!("wallet:read wallet:transfer"))
        );
        assert_eq!(rig.balance(token).status, 200);
    }

    // Inspecting calls no service and verifies nothing.
    let shown: Value = serde_json::from_str(&bare(&["token", "inspect", &got])).unwrap();
    assert_eq!(shown["claims"], claims(&got));
    assert_eq!(
        (&shown["header"]["typ"], &shown["header"]["alg"]),
        (&json!("at+jwt"), &json!("EdDSA"))
    );
    let verdict: Value = serde_json::from_str(&ok(&ron(&["token", "verify", &got]))).unwrap();
    assert_eq!(
        (&verdict["ok"], &verdict["parsed"]["sub"]),
        (&json!(true), &json!("operator"))
    );

    // By exchange, for a token that is not bound to a key.
    let narrow = [
        "token",
        "attenuate",
        &got,
        "--scope",
        "wallet:read",
        "--ttl",
        "1m",
        "--caveat",
        "method=GET",
    ];
    let narrower = ok(&ron(&narrow)).trim().to_owned();
    let said = claims(&narrower);
    assert_eq!(said["scope"], "wallet:read");
    let details = json!([{"type": "ron", "asset": "ron", "method": "GET"}]);
    assert_eq!(
        said["authorization_details"], details,
        "what was there stays"
    );
    refused(
        &[
            "token",
            "attenuate",
            &narrower,
            "--scope",
            "wallet:transfer",
        ],
        "scope",
    );
    refused(&["token", "attenuate", &narrower, "--ttl", "5m"], "ttl");

    ok(&ron(&[
        "token", "revoke", "--token", &got, "--reason", "test",
    ]));
    refused(&["token", "verify", &got], "revoked");
    assert_eq!(rig.verdict(&bare_one)["ok"], true, "another token");
    refused(
        &["token", "attenuate", &got, "--scope", "wallet:read"],
        "revoked",
    );
    refused(&["token", "get", "--audience", "svc-other"], "audience");
    refused(&["token", "verify", "no.token.here"], "not valid");
    let both = ron(&[
        "token", "revoke", "--jti", "x", "--epoch", "9", "--reason", "test",
    ]);
    assert_eq!(both.status.code(), Some(2), "one target at a time");
}
