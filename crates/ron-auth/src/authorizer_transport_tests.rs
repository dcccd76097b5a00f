//! Callers identified by the connection itself.

use super::*;

#[test]
fn a_certificate_or_a_user_id_names_a_principal_where_no_token_speaks() {
    let rig = rig();
    let cert = "ab".repeat(32);
    rig.auth
        .reload_json(&json!({"principals": [
            {"name": "backup", "scopes": ["ledger:read"], "uids": ["0", "1001"]},
            {"name": "mirror", "scopes": ["ledger:read"], "certs": [cert.to_uppercase()]},
        ]}))
        .unwrap();
    let ask = |transport: Transport, sha256: Option<&str>, headers: &[(&str, &str)]| {
        let mut head = head(headers, "10.0.0.7:9");
        head.transport = transport;
        head.client_cert = sha256.map(|sha256| {
            Arc::new(ron_http::ClientCert {
                sha256: sha256.to_owned(),
                dns_names: Vec::new(),
            })
        });
        let principal = rig.auth.decide(&head, &Need::Scope(scope::LEDGER_READ));
        principal.map(|principal| principal.name)
    };
    let unix = |uid| Transport::Unix { uid };
    let other = "cd".repeat(32);
    assert_eq!(ask(unix(1001), None, &[]), Ok("backup".into()));
    assert_eq!(
        ask(Transport::Tls, Some(&cert), &[]),
        Ok("mirror".into()),
        "from anywhere"
    );
    let missing = Err(AuthReject::Missing);
    assert_eq!(ask(unix(1002), None, &[]), missing);
    assert_eq!(ask(Transport::Tls, Some(&other), &[]), missing);
    assert_eq!(ask(Transport::Tls, None, &[]), missing);
    assert_eq!(ask(Transport::Tcp, Some(&cert), &[]), missing);
    let token = [("authorization", &*format!("Bearer {}", rig.service))];
    assert_eq!(
        ask(unix(0), None, &token),
        Err(AuthReject::ServiceToken),
        "a wrong token is not made good by the user id"
    );
    let head = {
        let mut head = head(&[], "10.0.0.7:9");
        head.transport = unix(0);
        head
    };
    let need = Need::Scope(scope::LEDGER_COMMIT);
    assert_eq!(rig.auth.decide(&head, &need), Err(AuthReject::Scope));
}

#[test]
fn a_principal_without_a_token_has_no_token() {
    let rig = rig();
    rig.auth
        .reload_json(&json!({"principals": [{"name": "svc-wallet", "scopes": ["ledger:read"], "uids": ["7"]}]}))
        .unwrap();
    assert_eq!(rig.ask(&rig.service), Err(AuthReject::ServiceToken));
}

#[test]
fn service_tokens_count_on_unix_sockets_and_tls_and_on_plain_loopback_only_where_it_is_allowed() {
    let rig = rig();
    let allow = |insecure_loopback: bool| {
        let mut config = (*rig.auth.config()).clone();
        config.insecure_loopback = insecure_loopback;
        rig.auth.config.store(config);
    };
    let ask = |transport: Transport, peer: &str| {
        let bearer = format!("Bearer {}", rig.service);
        let mut head = head(&[("authorization", &bearer)], peer);
        head.transport = transport;
        let need = Need::Scope(scope::LEDGER_COMMIT);
        rig.auth
            .decide(&head, &need)
            .map(|principal| principal.name)
    };
    let (near, far) = ("127.0.0.1:9", "10.0.0.1:9");
    let known = || Ok("svc-wallet".to_owned());
    let plain = Err(AuthReject::PlainTcp);
    let program = Transport::ClientSocket { uid: 7 };
    for insecure in [false, true] {
        allow(insecure);
        let wanted = if insecure { known() } else { plain.clone() };
        assert_eq!(ask(Transport::Tcp, near), wanted);
        assert_eq!(ask(Transport::Tcp, "[::ffff:127.0.0.1]:9"), wanted);
        assert_eq!(ask(Transport::Tcp, far), plain, "never from afar");
        assert_eq!(ask(Transport::Unix { uid: 7 }, near), known());
        assert_eq!(ask(Transport::Tls, far), known());
        assert_eq!(ask(program, near), Err(AuthReject::ClientSocket));
    }
    // A reload of the principals does not change which transports they may use.
    allow(false);
    let section = json!({"principals": [{"name": "svc-wallet", "scopes": ["ledger:commit"],
        "sha256": service_token::hash(&rig.service)}]});
    rig.auth.reload_json(&section).unwrap();
    assert_eq!(ask(Transport::Tcp, near), plain);
    let problem = rig.auth.authorize(
        &head(
            &[("authorization", &format!("Bearer {}", rig.service))],
            near,
        ),
        &Need::Identity,
    );
    let problem = problem.unwrap_err();
    assert_eq!(problem.status, 401);
    assert!(problem.detail.contains("uds_path"), "{}", problem.detail);
    let metrics = rig.registry.render();
    let line = "t_auth_failures_total{reason=\"plain_tcp\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn on_the_socket_for_local_programs_passports_count_and_user_ids_that_are_listed_for_it() {
    let rig = Rig::fresh();
    let ask = |headers: &[(&str, &str)], need: Need| {
        let mut head = head(headers, "0.0.0.0:0");
        head.transport = Transport::ClientSocket { uid: 1001 };
        rig.auth.decide(&head, &need)
    };
    let bearer = format!("Bearer {}", rig.token(|_| {}));
    let read = Need::Scope(scope::LEDGER_READ);
    let passport = ask(&[("authorization", &bearer)], read).unwrap();
    assert_eq!(passport.name, "alice");
    assert!(ask(&[], Need::Public).is_ok());
    let mut config = (*rig.auth.config()).clone();
    config.principals[0].uids = vec![1001];
    rig.auth.config.store(config.clone());
    assert_eq!(ask(&[], Need::Identity), Err(AuthReject::Missing));
    config.principals[0].client_uids = vec![1001];
    config.principals[0].uids = Vec::new();
    let name = config.principals[0].name.clone();
    rig.auth.config.store(config);
    assert_eq!(ask(&[], Need::Identity).unwrap().name, name);
    let mut head = head(&[], "0.0.0.0:0");
    for other in [
        Transport::ClientSocket { uid: 0 },
        Transport::Unix { uid: 1001 },
    ] {
        head.transport = other;
        let refused = rig.auth.decide(&head, &Need::Identity);
        assert_eq!(refused, Err(AuthReject::Missing), "{other:?}");
    }
}
