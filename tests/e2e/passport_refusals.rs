//! What refused clients and callers get: shares of wrong credentials, challenges that standard clients
//! read, and metadata that say only what works.

use ron_auth::client_secret;
use ron_http::Method;
use ron_proto::b64;
use ron_tests::issuer::{Rig, bare};
use ron_tests::{json, ok, until};
use serde_json::{Value, json};

#[test]
fn a_peer_that_guesses_secrets_uses_up_its_own_share_and_leaves_a_trace() {
    let rig = Rig::start_with(|dir| {
        let path = dir.join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        // As few as possible come back meanwhile: on a slow machine a guess takes long.
        std::fs::write(path, text + "\n[verify]\nchecks_per_second = 1\n").unwrap();
    });
    let wrong = client_secret::generate("operator", &[7; 32]);
    let wrong = format!("Basic {}", b64::std(format!("operator:{wrong}").as_bytes()));
    let form = "grant_type=client_credentials&audience=svc-wallet";
    let kind = ("Content-Type", "application/x-www-form-urlencoded");
    let ask = |base: &str, header: &str| {
        let url = format!("{base}/oauth2/token");
        let headers = [kind, ("Authorization", header)];
        rig.fleet
            .send(Method::POST, &url, None, Some(form), &headers)
    };
    // The same program, as two peers: an address, and a user of this host.
    let [guessing, other] = [
        rig.fleet.api("svc-passport"),
        rig.fleet.api_socket("svc-passport"),
    ];
    let counted = |reason: &str| {
        let line = format!("svc_passport_auth_failures_total{{reason=\"{reason}\"}} ");
        rig.fleet.metric("svc-passport", &line)
    };
    let before = counted("client_secret");
    let mut guesses = 0.0;
    let limited = loop {
        let reply = ask(&guessing, &wrong);
        if reply.status != 401 {
            break reply;
        }
        guesses += 1.0;
        assert!(guesses < 100_000.0, "its share is never used up");
    };
    assert!(guesses >= 512.0, "{guesses}");
    assert!(limited.header("retry-after").is_some());
    assert_eq!(json(&limited, 429)["error"], "temporarily_unavailable");
    assert_eq!(counted("client_secret") - before, guesses);
    assert!(counted("client_guesses") >= 1.0);
    let named = refused_clients(&rig);
    let guessed = named.iter().find(|one| one["reason"] == "client_secret");
    let guessed = guessed.expect("the client is named");
    assert_eq!(guessed["client_id"], "operator");
    assert_eq!(guessed["count"].as_f64(), Some(guesses));
    assert_eq!(guessed["peer"], "127.0.0.1");
    // Another peer's clients notice nothing, and the share of this one comes back.
    assert_eq!(ask(&other, &rig.basic()).status, 200);
    until("its share comes back", || {
        ask(&guessing, &rig.basic()).status == 200
    });
}

/// Refused clients as the issuer lists them.
fn refused_clients(rig: &Rig) -> Vec<Value> {
    let admin = rig.fleet.token("svc-passport", Some("passport:admin"));
    let url = rig.url("/v1/passport/clients/refused");
    let list = json(&rig.fleet.get(&url, Some(&admin)), 200);
    assert!(list["since"].is_string(), "{list}");
    list["refused"].as_array().unwrap().clone()
}

#[test]
fn refused_clients_are_listed_by_name_and_reason_and_without_what_they_sent() {
    let rig = Rig::start();
    assert_eq!(refused_clients(&rig), [] as [Value; 0]);
    let ask = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
    ];
    // An assertion whose signature is another's, without `client_id`; names that are no client's; a secret of another form.
    let good = rig.assertion(|_| {});
    let other = rig.assertion(|said| said["jti"] = "other".into());
    let signature = other.rsplit_once('.').unwrap().1;
    let forged = format!("{}.{signature}", good.rsplit_once('.').unwrap().0);
    for _ in 0..2 {
        assert_eq!(rig.robot_with(&forged, &ask).status, 401);
    }
    let nobody = rig.assertion(|said| said["iss"] = "nobody".into());
    assert_eq!(rig.robot_with(&nobody, &ask).status, 401);
    let secret = client_secret::generate("somebody", &[7; 32]);
    for (name, secret) in [("somebody", &*secret), ("operator", "hunter2-hunter2")] {
        let fields = [&ask[..], &[("client_id", name), ("client_secret", secret)]].concat();
        assert_eq!(rig.form("/oauth2/token", &fields, &[]).status, 401);
    }
    let list = refused_clients(&rig);
    let brief = |one: &Value| json!([one["client_id"], one["reason"], one["count"]]);
    let want = [
        json!(["operator", "client_secret_form", 1]),
        json!(["robot", "assertion_signature", 2]),
    ];
    assert_eq!(list.iter().map(brief).collect::<Vec<_>>(), want);
    let said = ok(&rig.fleet.ron(&["client", "refused"]));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines[2].starts_with("robot"), "{said}");
    assert!(
        !said.contains("hunter2") && !said.contains("somebody"),
        "{said}"
    );
    // It is for administrators.
    let other = rig.fleet.token("svc-passport", Some("passport:introspect"));
    let url = rig.url("/v1/passport/clients/refused");
    assert_eq!(rig.fleet.get(&url, Some(&other)).status, 403);
    assert_eq!(rig.fleet.get(&url, None).status, 401);
}

#[test]
fn behind_a_listed_proxy_a_refused_client_is_listed_with_its_own_address() {
    let rig = Rig::start_with(|dir| {
        let path = dir.join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let listed = "trusted_proxies = [\"127.0.0.1\"]\n".to_owned();
        std::fs::write(path, listed + &text).unwrap();
    });
    let fields = [
        ("grant_type", "client_credentials"),
        ("audience", "svc-wallet"),
        ("client_id", "operator"),
        ("client_secret", "guessed"),
    ];
    let from = [("X-Forwarded-For", "192.0.2.9, 198.51.100.7")];
    let reply = rig.form("/oauth2/token", &fields, &from);
    assert_eq!(reply.status, 401);
    let list = refused_clients(&rig);
    assert_eq!(list[0]["peer"], "198.51.100.7", "{list:?}");
}

#[test]
fn refusals_name_scheme_and_error_as_standard_clients_read_them() {
    let rig = Rig::start();
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key").display().to_string();
    bare(&["token", "key", &key]);
    let bound = ok(&rig
        .fleet
        .ron(&["token", "--audience", "svc-wallet", "--key", &key]));
    let bound = bound.trim();
    let url = rig.balance_url();
    let challenge = |headers: &[(&str, &str)], status: u16| {
        let reply = rig.fleet.send(Method::GET, &url, None, None, headers);
        assert_eq!(reply.status, status, "{headers:?}");
        reply
            .header("www-authenticate")
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(challenge(&[], 401), "Bearer");
    let invalid = "Bearer error=\"invalid_token\"";
    let bearer = |token: &str| format!("Bearer {token}");
    let elsewhere = rig.fleet.token("ron-kms", None);
    for token in ["x.y.z", &*elsewhere] {
        assert_eq!(
            challenge(&[("Authorization", &bearer(token))], 401),
            invalid
        );
    }
    let algs = "DPoP algs=\"EdDSA Ed25519 ES256 ES384 RS256 PS256\", error=";
    let invalid = format!("{algs}\"invalid_token\"");
    assert_eq!(
        challenge(&[("Authorization", &bearer(bound))], 401),
        invalid
    );
    let proof = bare(&["token", "proof", bound, "--key", &key, "--url", "http://a/"]);
    let scheme = format!("DPoP {bound}");
    let headers = [("Authorization", &*scheme), ("DPoP", proof.trim())];
    assert_eq!(
        challenge(&headers, 401),
        format!("{algs}\"invalid_dpop_proof\"")
    );
    let weak = rig.fleet.token("svc-wallet", Some("wallet:issue"));
    let scope = "Bearer error=\"insufficient_scope\", scope=\"wallet:read\"";
    assert_eq!(challenge(&[("Authorization", &bearer(&weak))], 403), scope);
    // Without TLS there are no certificates, so the metadata offer none.
    let meta = rig.url("/.well-known/openid-configuration");
    let meta = json(&rig.fleet.get(&meta, None), 200);
    let ways = meta["token_endpoint_auth_methods_supported"].to_string();
    assert!(
        ways.contains("private_key_jwt") && !ways.contains("tls"),
        "{ways}"
    );
    assert_eq!(meta["tls_client_certificate_bound_access_tokens"], false);
}
