//! A receipt in the hands of a payee without any right at the ledger: the file of
//! `GET /v1/tx/{txid}/receipt` is proved by `ron receipt verify`, by Go's own implementation of notes
//! and trees, and by a library from PyPI; with a changed leaf, or for another entry, by none of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ron_proto::b64;
use ron_tests::issuer::minted;
use ron_tests::verifiers::{file, from_pypi, go};
use ron_tests::{Fleet, json, ok, ron_on};
use serde_json::{Value, json};

use crate::Bank;

fn python(program: &Path, dir: &Path, vkey: &str, index: u64, proof: &str, leaf: &[u8]) -> Output {
    let (head, checkpoint) = proof.split_once("\n\n").expect("a checkpoint");
    let hashes: Vec<&str> = head.lines().skip(2).collect();
    let args = [
        ("--index", PathBuf::from(index.to_string())),
        ("--leaf", file(dir, "leaf", leaf)),
        (
            "--proof",
            file(dir, "hashes", format!("{}\n", hashes.join("\n")).as_bytes()),
        ),
        ("--checkpoint", file(dir, "note", checkpoint.as_bytes())),
        ("--log-key", PathBuf::from(vkey)),
    ];
    let mut command = Command::new(program);
    command.arg("verify-inclusion");
    for (name, value) in args {
        command.arg(name).arg(value);
    }
    command.output().expect("it runs")
}

/// A passport whose subject is `name`, with the scope `wallet:read` alone.
fn reader(bank: &Bank, name: &str) -> String {
    let claims = json!({"sub": name, "scope": "wallet:read"});
    minted(&bank.fleet, "svc-wallet", &claims)
}

/// A fleet that lets `name` read one account, beside the rules that are there.
fn fleet_with_reader(name: &str, account: &str) -> Fleet {
    let fleet = Fleet::start();
    fleet.change_wallet_policy(|policy| {
        let mut rule = policy["rules"][0].clone();
        rule["principal"] = name.into();
        rule["actions"] = json!(["read"]);
        rule["accounts"] = json!([account]);
        policy["rules"].as_array_mut().unwrap().push(rule);
    });
    fleet
}

/// All bytes of a receipt file: its texts, and what its base64 stands for.
fn bytes_of(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
            out.extend(b64::from_std(text).unwrap_or_default());
            out.push(0);
        }
        Value::Array(all) => all.iter().for_each(|v| bytes_of(v, out)),
        Value::Object(all) => all.values().for_each(|v| bytes_of(v, out)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The receipt file of a transaction as bytes and as JSON.
fn receipt(bank: &Bank, token: &str, txid: &str) -> (Vec<u8>, Value) {
    let url = format!("{}/v1/tx/{txid}/receipt?wait=10", bank.url);
    let reply = bank.fleet.get(&url, Some(token));
    let doc = json(&reply, 200);
    (reply.body, doc)
}

const SECRETS: [&str; 6] = [
    "operator",
    "key-marker",
    "memo-marker",
    "name-marker",
    "value-marker",
    "default",
];

#[test]
fn a_payee_proves_a_payment_with_programs_of_others_and_learns_nothing_private() {
    let bank = Bank::of(fleet_with_reader("payee", "shop"));
    for n in 0..30 {
        bank.issue(&format!("k{n}"), "acc:payer", 70);
    }
    let body = json!({"from": "acc:payer", "to": "shop", "asset": "ron", "amount_minor": "12", "nonce": 1,
        "memo": "memo-marker", "metadata": {"name-marker": "value-marker"}, "reference": "order 17"});
    let paid = json(&bank.post("key-marker", "transfer", &body), 200);
    let txid = paid["receipt"]["txid"].as_str().unwrap();
    assert_eq!(paid["private"]["idem"], "key-marker");
    let payee = reader(&bank, "payee");
    let vkey = bank.fleet.get(
        &format!("{}/log/v1/vkey", bank.fleet.api("ron-ledger")),
        None,
    );
    let vkey = String::from_utf8(vkey.body).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();

    // The payer's copy has everything, the payee's the reference alone.
    let (own, _) = receipt(&bank, &bank.token, txid);
    let (copy, doc) = receipt(&bank, &payee, txid);
    let seen = json(
        &bank
            .fleet
            .get(&format!("{}/v1/tx/{txid}", bank.url), Some(&payee)),
        200,
    );
    assert_eq!(seen["receipt"], paid["receipt"]);
    assert_eq!(seen["private"], json!({"reference": "order 17"}));
    let mut bytes = Vec::new();
    bytes_of(&doc, &mut bytes);
    let has = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(has("acc:payer") && has("order 17"));
    for secret in SECRETS {
        assert!(!has(secret), "{secret}");
    }

    let verify = |name: &str, bytes: &[u8]| {
        let path = file(dir, name, bytes);
        let args = [
            "receipt",
            "verify",
            path.to_str().unwrap(),
            "--vkey",
            vkey.trim(),
        ];
        // Nothing of the data directory is used.
        ron_on(dir, &args)
    };
    let said = ok(&verify("own", &own));
    for line in [
        "key        key-marker",
        "memo       memo-marker",
        "made by    operator of default",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let said = ok(&verify("copy", &copy));
    for line in [
        "receipt verified",
        "amount     12",
        "to         shop",
        "reference  order 17",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let leaf = b64::from_std(doc["leaf"].as_str().unwrap()).unwrap();
    let mut forged = doc.clone();
    let mut more = leaf.clone();
    let amount = more
        .windows(6)
        .position(|w| w == b"\x03ron\x01\x0c")
        .unwrap();
    more[amount + 5] = 13;
    forged["leaf"] = b64::std(&more).into();
    let refused = verify("forged", forged.to_string().as_bytes());
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("not in the log"), "{why}");

    // The path, by programs that know nothing of the project.
    let index = paid["receipt"]["seq"].as_u64().unwrap();
    let path = doc["path"].as_array().unwrap();
    let path: Vec<&str> = path.iter().map(|p| p.as_str().unwrap()).collect();
    let (path, note) = (path.join("\n"), doc["checkpoint"].as_str().unwrap());
    let proof = format!("c2sp.org/tlog-proof@v1\nindex {index}\n{path}\n\n{note}");
    let said = ok(&go(dir, &vkey, &proof, &leaf));
    assert!(said.contains("accepted"), "{said}");
    assert!(!go(dir, &vkey, &proof, &more).status.success());
    let elsewhere = proof.replacen(
        &format!("index {index}"),
        &format!("index {}", index - 1),
        1,
    );
    assert!(!go(dir, &vkey, &elsewhere, &leaf).status.success());
    let Some(library) = from_pypi("aics-tlog") else {
        eprintln!(
            "the library was left out: no Python of 3.12 or later was found by scripts/setup.sh"
        );
        return;
    };
    let vkey = vkey.trim();
    ok(&python(&library, dir, vkey, index, &proof, &leaf));
    for (index, leaf) in [(index, &more), (index - 1, &leaf)] {
        assert!(
            !python(&library, dir, vkey, index, &proof, leaf)
                .status
                .success()
        );
    }
}
