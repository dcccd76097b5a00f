//! The programs of `examples/embed`, as docs/embedding.md shows them: run, and their output checked
//! as far as possible.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_http::Reply;
use ron_tests::tools::fed;
use ron_tests::{Fleet, json, ok, ron_binary};
use serde_json::Value;

fn program(name: &str) -> PathBuf {
    let path = ron_binary().with_file_name(name);
    assert!(
        path.exists(),
        "{} is missing: cargo build --workspace --bins",
        path.display()
    );
    path
}

fn run(name: &str, dir: &Path) -> String {
    ok(&Command::new(program(name)).arg(dir).output().unwrap())
}

#[test]
fn custody_signs_and_its_log_is_verified_also_the_second_time() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("kms");
    let first = run("embed-custody", &dir);
    let lines: Vec<&str> = first.lines().collect();
    let holds = |line: &str| line.starts_with("leaf ") && line.ends_with(": signature holds: true");
    assert!(holds(lines[0]) && holds(lines[1]), "{first}");
    assert!(lines[2].starts_with("default/invoices/ed25519/"), "{first}");
    assert!(lines[2].ends_with(": 2 signatures"), "{first}");
    assert!(lines[3].contains("leaves verified"), "{first}");
    let again = run("embed-custody", &dir);
    let key = |text: &str| {
        text.lines()
            .nth(2)
            .unwrap()
            .split(':')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(key(&first), key(&again), "the same key");
    assert!(again.contains(": 4 signatures"), "{again}");

    // A single changed byte of the log is detected.
    let segment = dir.join("audit/00000000.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let out = Command::new(program("embed-custody")).arg(&dir).output();
    assert!(
        !out.unwrap().status.success(),
        "a damaged log signs nothing"
    );
}

#[test]
fn the_ledger_moves_money_and_verifies() {
    let home = tempfile::tempdir().unwrap();
    let said = run("embed-ledger", &home.path().join("ledger"));
    let wanted = "issue: done, entry 1\n\
        transfer: done, entry 2\n\
        the same again: known, entry 2 answered it\n\
        too much: refused, insufficient_funds, entry 3\n\
        acct:bob has 250\n\
        ron: issued 1000, burned 0, in accounts 1000\n\
        3 entries verified\n";
    assert_eq!(said, wanted);
}

#[test]
fn rewards_are_exact_and_proved() {
    let home = tempfile::tempdir().unwrap();
    let said = run("embed-rewards", home.path());
    let wanted = "pool 1000, paid 1000, left 0, recipients 3\n\
        acct:alice 166\n\
        acct:bob 331\n\
        acct:carol 503\n\
        proved: acct:bob gets 331 of this epoch\n\
        a forged proof fails: ";
    assert!(said.starts_with(wanted), "{said}");
    // The directory need not exist, whether its path is relative or not.
    for dir in ["new", "newer/deeper", "./here"] {
        let out = Command::new(program("embed-rewards"))
            .arg(dir)
            .current_dir(home.path())
            .output()
            .unwrap();
        assert!(out.status.success(), "{dir}: {out:?}");
        assert!(home.path().join(dir).join("run/run.json").exists());
    }
}

/// Runs the token check; returns whether it accepts, and its output.
fn judge(token: &str, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(program("embed-passport"));
    let Output { status, stdout, .. } = fed(command.args(words), token);
    (status.success(), String::from_utf8(stdout).unwrap())
}

#[test]
fn a_passport_is_judged_offline() {
    let fleet = Fleet::start();
    let home = tempfile::tempdir().unwrap();
    let save = |name: &str, reply: Reply| {
        assert_eq!(reply.status, 200);
        let path = home.path().join(name);
        fs::write(&path, &reply.body).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let issuer = fleet.bootstrap()["issuer"].as_str().unwrap().to_owned();
    let keys = format!("{}/.well-known/jwks.json", fleet.api("svc-passport"));
    let jwks = save("jwks.json", fleet.get(&keys, None));
    let before = save("before.json", fleet.revocations("?after=0"));
    let token = fleet.token("svc-wallet", Some("wallet:read"));
    let good = [&issuer, "svc-wallet", "wallet:read", &jwks, &before];
    let (let_in, said) = judge(&token, &good);
    assert!(let_in && said.starts_with("let in: "), "{said}");

    let refused = |token: &str, words: &[&str], because: &str| {
        let (let_in, said) = judge(token, words);
        assert!(
            !let_in && said.starts_with("refused: "),
            "{because}: {said}"
        );
    };
    refused(
        &token,
        &[&issuer, "svc-admin", "wallet:read", &jwks],
        "audience",
    );
    refused(
        &token,
        &[&issuer, "svc-wallet", "wallet:issue", &jwks],
        "scope",
    );
    refused(
        &token,
        &["http://other", "svc-wallet", "wallet:read", &jwks],
        "issuer",
    );
    // The last character may contain unused bits; one in the middle of the signature does not.
    let at = token.rfind('.').unwrap() + 10;
    let mut altered = token.clone().into_bytes();
    altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
    refused(&String::from_utf8(altered).unwrap(), &good, "signature");

    let admin = fleet.token("svc-passport", Some("passport:admin"));
    let payload = URL_SAFE_NO_PAD
        .decode(token.split('.').nth(1).unwrap())
        .unwrap();
    let claims: Value = serde_json::from_slice(&payload).unwrap();
    let body = serde_json::json!({ "jti": claims["jti"], "reason": "lost" }).to_string();
    let url = format!("{}/v1/passport/revoke", fleet.api("svc-passport"));
    let answer: Value = json(&fleet.post(&url, Some(&admin), &body, &[]), 200);
    let after = save("after.json", fleet.revocations("?after=0"));
    let (let_in, said) = judge(
        &token,
        &[&issuer, "svc-wallet", "wallet:read", &jwks, &after],
    );
    assert!(!let_in, "revoked ({answer}), and yet {said}");
}
