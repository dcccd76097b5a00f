//! Callers that the connection itself names.

use super::*;

#[test]
fn a_certificate_or_a_user_id_names_a_principal_where_no_token_speaks() {
    let rig = rig();
    let cert = "ab".repeat(32);
    rig.auth
        .reload(&json!({"principals": [
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
        .reload(&json!({"principals": [{"name": "svc-wallet", "scopes": ["ledger:read"], "uids": ["7"]}]}))
        .unwrap();
    assert_eq!(rig.ask(&rig.service), Err(AuthReject::ServiceToken));
}
