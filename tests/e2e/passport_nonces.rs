//! Nonces in DPoP proofs (RFC 9449 section 8), with the client library oauth4webapi, which puts the nonce of an answer into its next proof.

use std::process::Command;

use ron_tests::issuer::Rig;
use ron_tests::{ok, read_json, workspace};
use serde_json::{Value, json};

#[test]
fn a_standard_client_answers_with_the_nonce_that_is_demanded() {
    let rig = Rig::start_with(|dir| {
        let path = dir.join("svc-passport/config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text + "\n[dpop]\nrequire_nonce = true\n").unwrap();
    });
    let file = read_json(&rig.fleet.dir().join("clients/operator.json"));
    let secret = file["client_secret"].as_str().unwrap();
    let out = Command::new("node")
        .arg(workspace().join("tests/interop/nonces.mjs"))
        .args([&rig.fleet.api("svc-passport"), "operator", secret])
        .args(["svc-wallet", &rig.balance_url()])
        .output()
        .unwrap();
    let said: Value = serde_json::from_str(&ok(&out)).unwrap();
    // The first proof has no nonce; the nonce of the answer is good for it and for the next token.
    let want = json!({
        "first": {"error": "use_dpop_nonce", "status": 400},
        "requests": 3, "tokens": 2, "statuses": [200, 200]
    });
    assert_eq!(said, want);
}
