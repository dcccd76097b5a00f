//! Delegation: a service exchanges the token that it was called with for a token of the service that it calls, where the policy
//! has this pair, and a revocation of the first token ends the second one everywhere.

use std::io::Read as _;

use flate2::read::ZlibDecoder;
use ron_http::Reply;
use ron_proto::b64;
use ron_tests::issuer::{ACCESS, EXCHANGE, Rig, claims, text};
use ron_tests::{json, ok, until};
use serde_json::{Value, json};

const ORDERS: &str = "https://orders.example.org/api";

/// The first policy of the rig with the service of others; robot, which is that service, exchanges its callers' tokens for tokens
/// of the wallet and of the reports.
fn policy(first: &Value) -> Value {
    let mut policy = first.clone();
    policy["version"] = 3.into();
    policy["audiences"] = json!([
        {"audience": ORDERS, "scopes": ["orders:read"]}, {"audience": "reports", "scopes": ["read", "write"]}]);
    policy["clients"][1]["exchange"] = true.into();
    policy["clients"][1]["audiences"] = json!([
        {"audience": "svc-wallet", "scopes": ["wallet:read"], "from": [ORDERS]},
        {"audience": "reports", "scopes": ["read"], "from": [ORDERS, "svc-wallet"]}]);
    let operator = policy["clients"][0]["audiences"].as_array_mut().unwrap();
    operator.push(json!({"audience": ORDERS, "scopes": ["orders:read"]}));
    policy
}

fn rig() -> Rig {
    let rig = Rig::start();
    rig.publish(&policy(&rig.policy()), true);
    until("the policy is in force", || {
        let metadata = rig.url("/.well-known/oauth-authorization-server");
        let scopes = json(&rig.fleet.get(&metadata, None), 200)["scopes_supported"].clone();
        scopes.as_array().unwrap().contains(&json!("orders:read"))
    });
    rig
}

fn for_orders(rig: &Rig, more: &[(&str, &str)]) -> String {
    let ask = [
        &[("grant_type", "client_credentials"), ("audience", ORDERS)],
        more,
    ]
    .concat();
    text(&rig.operator("/oauth2/token", &ask), "access_token")
}

/// Robot exchanges a token for one of this audience.
fn exchanged(rig: &Rig, token: &str, audience: &str, more: &[(&str, &str)]) -> Reply {
    let ask = [
        &[
            ("grant_type", EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", ACCESS),
            ("audience", audience),
        ],
        more,
    ]
    .concat();
    rig.robot_with(&rig.assertion(|_| {}), &ask)
}

/// The bit of a token in its status list, as a service reads it that knows nothing else of the issuer.
fn bit(rig: &Rig, token: &str) -> bool {
    let status = claims(token)["status"]["status_list"].clone();
    let at = status["idx"].as_u64().unwrap() as usize;
    let list = rig.fleet.get(status["uri"].as_str().unwrap(), None);
    let said = claims(std::str::from_utf8(&list.body).unwrap());
    let packed = b64::from_url(said["status_list"]["lst"].as_str().unwrap()).unwrap();
    let mut bits = Vec::new();
    ZlibDecoder::new(packed.as_slice())
        .read_to_end(&mut bits)
        .unwrap();
    bits[at / 8] & (1 << (at % 8)) != 0
}

#[test]
fn a_service_calls_another_one_for_the_holder_of_the_token_that_it_was_called_with() {
    let rig = rig();
    let first = for_orders(&rig, &[("caveat", "asset=ron")]);
    let second = text(&exchanged(&rig, &first, "svc-wallet", &[]), "access_token");
    let said = claims(&second);
    assert_eq!(
        (&said["sub"], &said["aud"], &said["scope"], &said["act"]),
        (
            &json!("operator"),
            &json!("svc-wallet"),
            &json!("wallet:read"),
            &json!({"sub": "robot"})
        )
    );
    assert_eq!(said["authorization_details"][0]["asset"], "ron");
    assert!(said["exp"].as_u64() <= claims(&first)["exp"].as_u64());
    assert_eq!(rig.balance(&first).status, 401, "of another service");
    assert_eq!(rig.balance(&second).status, 200);
    let third = text(&exchanged(&rig, &second, "reports", &[]), "access_token");
    assert_eq!(claims(&third)["act"], json!({"sub": "robot"}));

    // What the policy does not name, or the token does not allow.
    let refused = |reply: Reply, error: &str| assert_eq!(json(&reply, 400)["error"], error);
    let back = exchanged(&rig, &third, "svc-wallet", &[]);
    refused(back, "invalid_target");
    refused(exchanged(&rig, &first, ORDERS, &[]), "invalid_target");
    refused(exchanged(&rig, &first, "ron-kms", &[]), "invalid_target");
    let more = [("scope", "write")];
    refused(exchanged(&rig, &first, "reports", &more), "invalid_scope");
    let longer = [("ttl_s", "3600")];
    refused(
        exchanged(&rig, &first, "reports", &longer),
        "invalid_request",
    );
    let counted = for_orders(&rig, &[("caveat", "budget.reqs=5")]);
    refused(exchanged(&rig, &counted, "reports", &[]), "invalid_grant");
    let bound = for_orders(&rig, &[("caveat", "svc=svc-wallet")]);
    refused(exchanged(&rig, &bound, "reports", &[]), "invalid_target");
    // The operator has no pair, and may not exchange what is not its own.
    let fields = [
        ("grant_type", EXCHANGE),
        ("subject_token", &*first),
        ("subject_token_type", ACCESS),
        ("audience", "svc-wallet"),
    ];
    refused(rig.operator("/oauth2/token", &fields), "invalid_target");

    // The KMS refuses what no exchange could have made, also to a thief of the issuer's credential.
    let forged = |aud: &str, sub: &str, actor: &str| {
        let (_, answer) = rig.ask_to_sign("at+jwt", |said| {
            said["aud"] = aud.into();
            said["sub"] = sub.into();
            said["scope"] = "read".into();
            said["client_id"] = actor.into();
            said["act"] = json!({"sub": actor});
        });
        answer.status
    };
    assert_eq!(forged("reports", "operator", "robot"), 200);
    assert_eq!(forged("reports", "user:nobody", "robot"), 403);
    assert_eq!(forged("reports", "operator", "operator"), 403);
    assert_eq!(forged(ORDERS, "operator", "robot"), 403);

    // A revoked token takes with it what came of it, at our services and in the list that all others read.
    let other = for_orders(&rig, &[]);
    let others_child = text(&exchanged(&rig, &other, "reports", &[]), "access_token");
    for token in [&first, &second, &third, &other, &others_child] {
        assert!(!bit(&rig, token));
    }
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", &second, "--reason", "test"]));
    let bits = |all: [&String; 5]| all.map(|token| bit(&rig, token));
    assert_eq!(
        bits([&first, &second, &third, &other, &others_child]),
        [false, true, true, false, false]
    );
    ok(&rig
        .fleet
        .ron(&["token", "revoke", "--token", &other, "--reason", "test"]));
    assert_eq!(
        bits([&first, &second, &third, &other, &others_child]),
        [false, true, true, true, true]
    );
    Rig::refused_soon(|| rig.balance(&second), "an exchanged token");
    assert_eq!(rig.verdict(&third)["reason"], "revoked");
    refused(exchanged(&rig, &second, "reports", &[]), "invalid_grant");
}

#[test]
fn a_pair_of_audiences_is_one_option_of_the_command() {
    let rig = Rig::start();
    let ron = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        ok(&rig.fleet.ron(&words))
    };
    ron("audience add orders --scope read");
    ron("audience add reports --scope read");
    ron("client add gateway --audience orders --scope read --secret --exchange");
    ron("client add gateway --audience reports --scope read --from orders --from svc-wallet");
    let said = ron("policy explain --client gateway --audience reports");
    for from in ["orders", "svc-wallet"] {
        let line = format!("exchange   anyone's tokens for {from} too");
        assert!(said.contains(&line), "{said}");
    }
    let out = rig.fleet.ron(&[
        "client",
        "add",
        "gateway",
        "--audience",
        "svc-wallet",
        "--scope",
        "wallet:read",
        "--from",
        "nowhere",
    ]);
    let why = String::from_utf8(out.stderr).unwrap();
    assert!(why.contains("`from` names nowhere"), "{why}");
}
