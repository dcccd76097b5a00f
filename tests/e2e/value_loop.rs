//! The loop with plain HTTP: token, issue, transfer, replay, balance, receipt, proof, revocation.

use ron_tests::tools::fed;
use ron_tests::{Fleet, json, ok, python};
use serde_json::json;

#[test]
fn money_moves_once_and_leaves_a_proof() {
    let mut fleet = Fleet::start();
    let wallet = fleet.api("svc-wallet");
    let token = fleet.token("svc-wallet", None);
    let post = |key: &str, path: &str, body: &str| {
        fleet.post(
            &format!("{wallet}/v1/{path}"),
            Some(&token),
            body,
            &[("Idempotency-Key", key)],
        )
    };
    let issue = r#"{"to":"acct:alice","asset":"ron","amount_minor":"1000"}"#;
    json(&post("k-1", "issue", issue), 200);
    let transfer =
        r#"{"from":"acct:alice","to":"acct:bob","asset":"ron","amount_minor":"250","nonce":1}"#;
    let first = post("k-2", "transfer", transfer);
    let receipt = json(&first, 200);
    assert_eq!(receipt["receipt"]["amount_minor"], "250");

    let again = post("k-2", "transfer", transfer);
    assert_eq!(
        again.body, first.body,
        "a replay is the first answer byte for byte"
    );
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let quoted = post("\"k-2\"", "transfer", transfer);
    assert_eq!(quoted.body, first.body, "a quoted string is the same key");
    assert_eq!(quoted.header("idempotency-replayed"), Some("true"));
    let other = transfer.replace("250", "251");
    assert_eq!(
        json(&post("k-2", "transfer", &other), 422)["code"],
        "idempotency_mismatch"
    );

    let balance = |account: &str| {
        let url = format!("{wallet}/v1/balance?account={account}&asset=ron");
        json(&fleet.get(&url, Some(&token)), 200)["amount_minor"].clone()
    };
    assert_eq!(
        (balance("acct%3Aalice"), balance("acct%3Abob")),
        (json!("750"), json!("250"))
    );

    let txid = receipt["receipt"]["txid"].as_str().unwrap();
    let found = fleet.get(&format!("{wallet}/v1/tx/{txid}"), Some(&token));
    let mut found = json(&found, 200);
    let now = found.as_object_mut().unwrap().remove("now").unwrap();
    assert_eq!(
        (&now["reversed_minor"], found),
        (&json!("0"), receipt.clone())
    );
    let ops = fleet.get(&format!("{wallet}/v1/ops/k-2"), Some(&token));
    assert_eq!(json(&ops, 200)["outcome"], "done");
    let proved = fleet.get(
        &format!("{wallet}/v1/tx/{txid}/receipt?wait=6"),
        Some(&token),
    );
    assert_eq!(json(&proved, 200)["format"], "ron-receipt/v1");
    assert_eq!(fleet.stop(), Some(0), "SIGTERM drains and ends with 0");
    ok(&fleet.ron(&["audit", "verify"]));
    ok(&fleet.ron(&["ledger", "verify"]));
}

#[test]
fn every_token_is_a_call_to_the_kms_and_pyjwt_verifies_it() {
    let fleet = Fleet::start();
    let line =
        r#"ron_kms_http_requests_total{method="POST",route="/v1/kms/sign_batch",status="200"}"#;
    let before = fleet.metric("ron-kms", line);
    let tokens: Vec<String> = (0..5)
        .map(|_| fleet.token("svc-wallet", Some("wallet:read")))
        .collect();
    // At least: a call without an outcome in time is repeated.
    let calls = fleet.metric("ron-kms", line) - before;
    assert!(calls >= 5.0, "one signing call per token: {calls}");

    let passport = fleet.api("svc-passport");
    let metadata = json(
        &fleet.get(
            &format!("{passport}/.well-known/oauth-authorization-server"),
            None,
        ),
        200,
    );
    let check = |token: &str| {
        let mut command = std::process::Command::new(python());
        command
            .arg(ron_tests::workspace().join("tests/interop/pyjwt_check.py"))
            .args([
                metadata["jwks_uri"].as_str().unwrap(),
                metadata["issuer"].as_str().unwrap(),
                "svc-wallet",
            ]);
        fed(&mut command, token)
    };
    let claims: serde_json::Value = serde_json::from_str(&ok(&check(&tokens[0]))).unwrap();
    assert_eq!(
        (&claims["aud"], &claims["scope"]),
        (&json!("svc-wallet"), &json!("wallet:read"))
    );
    assert_eq!(
        claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(),
        900
    );
}

#[test]
fn a_revoked_token_is_refused_by_the_issuer_at_once_and_by_the_wallet_soon() {
    let fleet = Fleet::start();
    let token = fleet.token("svc-wallet", None);
    let balance = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    json(&fleet.get(&balance, Some(&token)), 200);
    let verify = format!("{}/v1/passport/verify", fleet.api("svc-passport"));
    let body = json!({ "token": token }).to_string();
    let verdict = json(&fleet.post(&verify, None, &body, &[]), 200);
    assert_eq!(verdict["ok"], true);
    let jti = verdict["parsed"]["jti"].as_str().unwrap();
    ok(&fleet.ron(&["token", "revoke", "--jti", jti, "--reason", "drill"]));
    let verdict = json(&fleet.post(&verify, None, &body, &[]), 200);
    assert_eq!(
        (&verdict["ok"], &verdict["reason"]),
        (&json!(false), &json!("revoked"))
    );
    let refused = (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        fleet.get(&balance, Some(&token)).status == 401
    });
    assert!(refused, "the wallet still takes the token after 5 s");
}
