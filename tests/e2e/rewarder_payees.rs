//! A payee with one token: what it reads, and what it proves offline.

use ron_http::Method;
use ron_tests::consumers::{Source, reason};
use ron_tests::{Fleet, json, ok};
use serde_json::{Value, json};

const USAGE: &str =
    "account,metric,amount\nacct:alice,smoothing_pool,3\nacct:bob,smoothing_pool,1\n";

/// Uploads usage, and pays an epoch by the policy that `ron init` made.
fn pay(fleet: &Fleet, epoch: &str) {
    let policy = std::fs::read(fleet.dir().join("policy/reward.json")).unwrap();
    let hash = ron_proto::ContentId::of(&policy);
    let policy: Value = serde_json::from_slice(&policy).unwrap();
    let funds = json!({"to": policy["pool"]["account"], "asset": policy["asset"],
        "amount_minor": policy["pool"]["amount_minor"]});
    let url = format!("{}/v1/issue", fleet.api("svc-wallet"));
    let token = fleet.token("svc-wallet", None);
    let headers = [("Idempotency-Key", "fund")];
    json(
        &fleet.post(&url, Some(&token), &funds.to_string(), &headers),
        200,
    );
    let token = fleet.token("svc-rewarder", None);
    let post = |path: &str, kind: &str, body: &str| {
        let url = format!("{}/rewarder/{path}", fleet.api("svc-rewarder"));
        let headers = [("Content-Type", kind), ("Prefer", "wait=20")];
        fleet.send(Method::POST, &url, Some(&token), Some(body), &headers)
    };
    let stored = json(&post("snapshots", "text/csv", USAGE), 201);
    let body = json!({"snapshot": stored["cid"], "policy_id": policy["id"], "policy_hash": hash});
    let run = post(
        &format!("epochs/{epoch}/compute"),
        "application/json",
        &body.to_string(),
    );
    assert_eq!(json(&run, 200)["state"], "settled");
}

/// The routes of the rewarder, as its OpenAPI document has them.
fn routes(fleet: &Fleet) -> Vec<(Method, String)> {
    let url = format!("{}/openapi.json", fleet.api("svc-rewarder"));
    let api = json(&fleet.get(&url, None), 200);
    let mut found = Vec::new();
    for (path, operations) in api["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method = Method::parse(&method.to_ascii_uppercase()).unwrap();
            found.push((method, path.clone()));
        }
    }
    found.retain(|(_, path)| path.starts_with("/rewarder/"));
    assert!(found.len() >= 17, "{found:?}");
    found
}

#[test]
fn a_payee_reads_its_own_part_and_proves_it_offline() {
    let fleet = Fleet::start();
    pay(&fleet, "payees:1");
    let source = Source::of(&fleet);
    let alice = source.token(&fleet, "svc-rewarder", &["account=acct:alice"]);
    let base = fleet.api("svc-rewarder");
    let own = |path: &str| path.contains("{account}");
    let call = |method: &Method, path: &str, account: &str| {
        let cid = format!("b3%3A{}", "07".repeat(32));
        let path = path.replace("/policy/{id}", "/policy/p");
        let path = path.replace("{id}", "payees%3A1").replace("{cid}", &cid);
        let url = format!("{base}{}", path.replace("{account}", account));
        let kind = if path.contains("snapshots") {
            "text/csv"
        } else {
            "application/json"
        };
        let body = (*method != Method::GET).then_some("{}");
        fleet.send(*method, &url, Some(&alice), body, &[("Content-Type", kind)])
    };
    for (method, path) in routes(&fleet) {
        let got = call(&method, &path, "acct%3Abob");
        let refused = (403, "caveat".to_owned());
        assert_eq!(reason(&got), refused, "{method} {path} for another account");
        if own(&path) {
            let got = call(&method, &path, "acct%3Aalice");
            assert_eq!(got.status, 200, "{method} {path} for its own");
        }
    }

    let url = format!("{base}/rewarder/epochs/payees%3A1/proof/acct%3Aalice");
    let proof = fleet.get(&url, Some(&alice));
    let doc = json(&proof, 200);
    let url = format!("{base}/rewarder/epochs/payees%3A1/explain/acct%3Aalice");
    let why = json(&fleet.get(&url, Some(&alice)), 200);
    assert_eq!(why["paid_minor"], doc["payout"]["amount_minor"]);
    assert_eq!(why["commitment"], doc["manifest"]["commitment"]);
    assert_eq!(why["metrics"][0]["amount"], "3");
    let run = fleet
        .dir()
        .join("svc-rewarder/data/runs/tenant-default/epoch-payees:1");
    let offline = fleet.ron(&[
        "rewarder",
        "explain",
        run.to_str().unwrap(),
        "acct:alice",
        "--json",
    ]);
    let offline: Value = serde_json::from_str(&ok(&offline)).unwrap();
    assert_eq!(offline, why, "here and there the same");
    let remote = ok(&fleet.ron(&["rewarder", "explain", "payees:1", "acct:alice", "--json"]));
    assert_eq!(serde_json::from_str::<Value>(&remote).unwrap(), why);
    let diff = ok(&fleet.ron(&[
        "rewarder",
        "diff",
        "payees:1",
        run.to_str().unwrap(),
        "--json",
    ]));
    let diff: Value = serde_json::from_str(&diff).unwrap();
    assert_eq!(diff["changes"]["same"]["accounts"], 2);
    // Everybody who may read the run finds the signatures beside the manifest.
    let operator = fleet.token("svc-rewarder", None);
    let url = format!("{base}/rewarder/epochs/payees%3A1/signatures");
    let beside = json(&fleet.get(&url, Some(&operator)), 200);
    assert_eq!(beside["signatures"], doc["signatures"]);
    assert_eq!(beside["commitment"], doc["manifest"]["commitment"]);
    assert_eq!(beside["signatures"].as_array().unwrap().len(), 1);

    // With the file and one public key, in an empty directory.
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("proof.json");
    let keys = std::fs::read(fleet.dir().join("verifiers.json")).unwrap();
    let keys: Value = serde_json::from_slice(&keys).unwrap();
    let key = keys["manifest_public_key"].as_str().unwrap();
    let verify = |bytes: &[u8], key: &str, more: &[&str]| {
        std::fs::write(&file, bytes).unwrap();
        let file = file.to_str().unwrap();
        let mut command = std::process::Command::new(ron_tests::ron_binary());
        command.args(["rewarder", "verify-proof", file, "--manifest-key", key]);
        command.args(["--data-dir", work.path().to_str().unwrap()]);
        command.args(more).output().unwrap()
    };
    let said = ok(&verify(&proof.body, key, &["--json"]));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["account"], "acct:alice");
    assert_eq!(said["amount_minor"], doc["payout"]["amount_minor"]);
    assert_eq!(said["signed_by"], doc["signatures"][0]["key"]);
    let refused = |bytes: &[u8], key: &str, more: &[&str], why: &str| {
        let out = verify(bytes, key, more);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(why), "{text}");
    };
    let policy_key = keys["policy_public_key"].as_str().unwrap();
    refused(&proof.body, policy_key, &[], "no signature");
    refused(
        &proof.body,
        key,
        &["--account", "acct:bob"],
        "a proof of acct:alice",
    );
    let mut more = doc.clone();
    more["payout"]["amount_minor"] = "1".into();
    refused(more.to_string().as_bytes(), key, &[], "root");
    let mut unsigned = doc;
    unsigned["signatures"] = json!([]);
    let unsigned = unsigned.to_string();
    refused(unsigned.as_bytes(), key, &[], "--unsigned");
    let text = ok(&verify(unsigned.as_bytes(), key, &["--unsigned"]));
    assert!(text.contains("signed by  nobody"), "{text}");
}
