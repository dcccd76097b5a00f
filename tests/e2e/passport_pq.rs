//! Post-quantum passports of a real fleet: negotiated, verified by jwcrypto through discovery,
//! accepted by a wallet under each of its rules, revoked by either key; marked when the ML-DSA key
//! is unavailable, refused where it is required.

use std::process::Command;

use ron_http::Reply;
use ron_tests::tools::fed;
use ron_tests::{Fleet, json, ok, python, read_json, until, workspace};
use serde_json::{Value, json};

const HYBRID: &str = "EdDSA+ML-DSA-65";

/// A fleet whose issuer has an ML-DSA-65 key and offers it for the wallet; returns the key.
fn with_pq(mode: &str, rule: &str) -> (Fleet, String) {
    let mut fleet = Fleet::start();
    let [key] = fleet.offer_issuer_keys(["ml-dsa-65"], &["ML-DSA-65", HYBRID]);
    let change = |service: &str, from: &str, to: &str| {
        let config = fleet.dir().join(service).join("config.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&config, text.replacen(from, to, 1)).unwrap();
    };
    change(
        "svc-passport",
        "[policy]\n",
        "[policy]\npoll_interval = \"200ms\"\n",
    );
    change(
        "svc-passport",
        "[kms]\n",
        &format!("[pq]\nmode = \"{mode}\"\nkey = \"{key}\"\n\n[kms]\n"),
    );
    change(
        "svc-wallet",
        "[auth]\n",
        &format!("[auth]\npq = \"{rule}\"\n"),
    );
    (Fleet::start_in(fleet.keep_dir()), key)
}

fn ask(fleet: &Fleet, credential: &str, algs: &[&str]) -> Reply {
    let url = format!("{}/v1/passport/issue", fleet.api("svc-passport"));
    let body = json!({"subject_ref": "operator", "audience": "svc-wallet", "accept_algs": algs});
    fleet.post(&url, Some(credential), &body.to_string(), &[])
}

fn issued(fleet: &Fleet, credential: &str, algs: &[&str]) -> Value {
    json(&ask(fleet, credential, algs), 200)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The wallet's status for a token, once it has read the issuer's keys.
fn wallet(fleet: &Fleet, token: &str) -> u16 {
    let url = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    fleet.get(&url, Some(token)).status
}

/// Verified by unmodified jwcrypto with the keys that the metadata name.
fn jwcrypto(fleet: &Fleet, good: &[&str], bad: &[&str]) {
    let asked = json!({"base": fleet.api("svc-passport"), "audience": "svc-wallet", "good": good, "bad": bad});
    let mut check = Command::new(python());
    check.arg(workspace().join("tests/interop/pq.py"));
    let said = ok(&fed(&mut check, asked.to_string()));
    assert_eq!(
        said.trim(),
        format!("jwcrypto verified {} and refused {}", good.len(), bad.len())
    );
}

fn spoilt(token: &str) -> String {
    let at = token.len() - 40;
    let other = if token.as_bytes()[at] == b'A' {
        "B"
    } else {
        "A"
    };
    format!("{}{other}{}", &token[..at], &token[at + 1..])
}

#[test]
fn ml_dsa_and_hybrid_tokens_verify_elsewhere_and_in_the_wallet() {
    let (fleet, key) = with_pq("mirror", "and");
    let credential = fleet.token("svc-passport", Some("passport:issue passport:admin"));
    until("the ML-DSA key", || {
        ask(&fleet, &credential, &["ML-DSA-65"]).status == 200
    });
    let classical = issued(&fleet, &credential, &[]);
    let alone = issued(&fleet, &credential, &["ML-DSA-65"]);
    let hybrid = issued(&fleet, &credential, &[HYBRID, "EdDSA"]);
    let algs = [&classical, &alone, &hybrid].map(|made| text(&made["alg"]));
    assert_eq!(algs, ["EdDSA", "ML-DSA-65", HYBRID]);
    let refused = json(&ask(&fleet, &credential, &["ML-DSA-87"]), 400);
    assert_eq!(refused["code"], "no_acceptable_alg");
    let [classical, alone, hybrid] = [classical, alone, hybrid].map(|made| text(&made["token"]));
    jwcrypto(
        &fleet,
        &[&alone, &hybrid],
        &[&spoilt(&alone), &spoilt(&hybrid), &classical],
    );
    // The first key set has no key of a kind that other clients could not read.
    let get = |path: &str| {
        json(
            &fleet.get(&format!("{}{path}", fleet.api("svc-passport")), None),
            200,
        )
    };
    let kinds = |set: &Value| -> Vec<String> {
        set["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|jwk| text(&jwk["kty"]))
            .collect()
    };
    assert_eq!(kinds(&get("/.well-known/jwks.json")), ["OKP"]);
    let pq = get("/.well-known/jwks-pq.json");
    assert_eq!(kinds(&pq), ["AKP"]);
    for token in [&classical, &alone, &hybrid] {
        until("the wallet takes it", || wallet(&fleet, token) == 200);
        let body = json!({"token": token}).to_string();
        let url = format!("{}/v1/passport/verify", fleet.api("svc-passport"));
        assert_eq!(json(&fleet.post(&url, None, &body, &[]), 200)["ok"], true);
    }
    assert_eq!(wallet(&fleet, &spoilt(&hybrid)), 401);
    // The key retires: its signatures still verify, and the next token is marked as lacking one.
    fleet.kms(&format!("keys/{key}/retire"), &json!({}), 200);
    until("the fallback", || {
        let made = ask(&fleet, &credential, &[HYBRID, "EdDSA"]);
        made.status == 200 && json(&made, 200)["caveats"] == json!(["pq.fallback=true"])
    });
    assert_eq!(ask(&fleet, &credential, &[HYBRID]).status, 503);
    assert_eq!(wallet(&fleet, &hybrid), 200);
    assert!(fleet.metric("svc-passport", "svc_passport_pq_fallback_total") >= 1.0);
    // Revoked by its second key: both of its tokens end, the classical one stays valid.
    let revoke = json!({"kid": pq["keys"][0]["kid"], "reason": "test"}).to_string();
    let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
    json(&fleet.post(&url, Some(&credential), &revoke, &[]), 200);
    until("the hybrid ends", || wallet(&fleet, &hybrid) == 401);
    until("the other ends", || wallet(&fleet, &alone) == 401);
    assert_eq!(wallet(&fleet, &classical), 200);
}

#[test]
fn where_it_is_required_nothing_leaves_or_enters_without() {
    let (fleet, _) = with_pq("require", "require");
    let client = read_json(&fleet.dir().join("clients/operator.json"));
    let token = |audience: &str| {
        let form = format!(
            "grant_type=client_credentials&audience={audience}&client_id=operator&client_secret={}",
            text(&client["client_secret"])
        );
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        let url = format!("{}/oauth2/token", fleet.api("svc-passport"));
        fleet.post(&url, None, &form, &kind)
    };
    // No audience's default includes ML-DSA: required means that no token is issued, not a weaker
    // one.
    for audience in ["svc-wallet", "ron-kms"] {
        let refused = token(audience);
        assert_eq!(
            refused.status,
            400,
            "{}",
            String::from_utf8_lossy(&refused.body)
        );
    }
    let path = fleet.dir().join("policy/issuer.json");
    let mut policy = read_json(&path);
    policy["version"] = 3.into();
    for rule in policy["clients"][0]["audiences"].as_array_mut().unwrap() {
        if rule["audience"] == "svc-wallet" {
            rule["alg"] = HYBRID.into();
        }
    }
    std::fs::write(&path, policy.to_string()).unwrap();
    ok(&fleet.ron(&["policy", "sign", "--kind", "issuer", path.to_str().unwrap()]));
    until("the new policy", || token("svc-wallet").status == 200);
    let made = text(&json(&token("svc-wallet"), 200)["access_token"]);
    assert!(!made.contains('.'), "a hybrid, made to fit a header");
    until("the wallet takes it", || wallet(&fleet, &made) == 200);
}
