//! Data of an earlier program: verified, read, continued, and read once more.

use std::path::Path;
use std::sync::Arc;

use ron_http::Reply;
use ron_tests::{Fleet, json, ok, read_json, ron_on};
use serde_json::{Value, json};

use super::{fixtures, unpack};

#[test]
fn directories_of_earlier_programs_are_read_and_continued() {
    for fixture in fixtures() {
        println!("{}", fixture.display());
        let (data, answers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        unpack(&fixture, data.path(), answers.path());
        let before = verified(data.path());
        let mut fleet = Fleet::start_in(Arc::new(data));
        reads(&fleet, answers.path());
        continues(&fleet, 1);
        assert_eq!(fleet.stop(), Some(0));
        let after = verified(fleet.dir());
        assert_ne!(before, after, "the logs went on");
        // Once more, now that the data is this program's.
        let mut fleet = Fleet::start_in(fleet.keep_dir());
        let bob = balance(&fleet, "acct:bob");
        assert_eq!(bob["amount_minor"], "201");
        continues(&fleet, 2);
        assert_eq!(fleet.stop(), Some(0));
    }
}

/// Runs all three offline checks; returns their output.
fn verified(dir: &Path) -> Vec<String> {
    let checks = [
        ["audit", "verify"],
        ["ledger", "verify"],
        ["rewarder", "verify"],
    ];
    checks.iter().map(|check| ok(&ron_on(dir, check))).collect()
}

fn get(fleet: &Fleet, service: &str, path: &str) -> Reply {
    let token = match service {
        "ron-kms" => fleet.operator_token(),
        _ => fleet.token(service, None),
    };
    fleet.get(
        &format!("{}{path}", fleet.api_socket(service)),
        Some(&token),
    )
}

fn balance(fleet: &Fleet, account: &str) -> Value {
    let asset = if account.starts_with("acct:n") {
        "rpl"
    } else {
        "ron"
    };
    let path = format!("/v1/balance?account={account}&asset={asset}");
    json(&get(fleet, "svc-wallet", &path), 200)
}

/// Everything that was answered then is answered now.
fn reads(fleet: &Fleet, answers: &Path) {
    let told = |name: &str| read_json(&answers.join(format!("{name}.json")));
    for name in ["issue", "transfer", "burn", "fund"] {
        let receipt = told(name);
        let path = format!("/v1/tx/{}", receipt["txid"].as_str().unwrap());
        assert_eq!(
            json(&get(fleet, "svc-wallet", &path), 200),
            receipt,
            "{name}"
        );
    }
    for account in ["acct:alice", "acct:bob", "acct:n1", "acct:n2"] {
        let (then, now) = (told(&format!("balance-{account}")), balance(fleet, account));
        for field in ["amount_minor", "nonce"] {
            assert_eq!(now[field], then[field], "{account}");
        }
    }
    keys(fleet, answers);
    let events = json(
        &get(fleet, "svc-passport", "/v1/passport/events?after=0&wait=0"),
        200,
    );
    let revoked = std::fs::read_to_string(answers.join("revoked")).unwrap();
    assert!(
        events.to_string().contains(revoked.trim()),
        "{revoked}: {events}"
    );
    let (then, now) = (
        told("epoch"),
        json(
            &get(fleet, "svc-rewarder", "/rewarder/epochs/fixture:1"),
            200,
        ),
    );
    for field in ["state", "commitment", "totals", "snapshot", "policy_hash"] {
        assert_eq!(now[field], then[field], "{field}");
    }
    assert_eq!(now["state"], "settled");
}

fn keys(fleet: &Fleet, answers: &Path) {
    let told = |name: &str| read_json(&answers.join(format!("{name}.json")));
    let then = told("key");
    let key = then["key"].as_str().unwrap();
    let now = json(&get(fleet, "ron-kms", &format!("/v1/kms/keys/{key}")), 200);
    assert_eq!(now["head"], 2);
    let public = |doc: &Value, at: usize| doc["versions"][at]["public_key"].clone();
    for at in [0, 1] {
        assert!(public(&now, at).is_string());
        assert_eq!(public(&now, at), public(&then, at));
    }
    for name in ["sign-1", "sign-2"] {
        let body = json!({
            "key": key, "message": ron_proto::b64::url(b"fixture"), "signatures": told(name)["signatures"], "mode": "and"
        });
        assert_eq!(fleet.kms("verify", &body, 200)["ok"], true, "{name}");
    }
    if answers.join("wrap.json").exists() {
        let wrapped = told("wrap");
        let body = json!({"key": wrapped["key"], "ciphertext": wrapped["ciphertext"]});
        let opened = fleet.kms("unwrap", &body, 200);
        assert_eq!(opened["plaintext"], ron_proto::b64::url(b"fixture"));
    }
}

/// All six continue where they were.
fn continues(fleet: &Fleet, round: u64) {
    let token = fleet.token("svc-wallet", None);
    let url = format!("{}/v1/transfer", fleet.api("svc-wallet"));
    let body = json!({
        "from": "acct:alice", "to": "acct:bob", "asset": "ron", "amount_minor": "1", "nonce": round + 1
    });
    let key = format!("on-{round}");
    let headers = [("Idempotency-Key", key.as_str())];
    json(
        &fleet.post(&url, Some(&token), &body.to_string(), &headers),
        200,
    );
    // The earlier key was used before.
    let body = json!({"to": "acct:alice", "asset": "ron", "amount_minor": "7"});
    let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let headers = [("Idempotency-Key", "issue")];
    let refused = fleet.post(&url, Some(&token), &body.to_string(), &headers);
    assert_eq!(json(&refused, 422)["code"], "idempotency_mismatch");
    let made = json!({
        "tenant": "ron", "purpose": "later", "alg": "ed25519", "payload": "any",
        "op_id": format!("0190f0a0-0000-7000-8000-0000000001{round:02}")
    });
    let made = fleet.kms("keys", &made, 201);
    fleet.kms("sign", &json!({"key": made["key"], "message": "eA"}), 200);
    ok(&fleet.ron(&[
        "token",
        "revoke",
        "--subject",
        &format!("nobody-{round}"),
        "--reason",
        "going on",
    ]));
    let out = fleet.ron(&["rewarder", "settle", "fixture:1"]);
    assert!(ok(&out).contains("is settled"), "paid once");
}
