//! A receipt checked by third parties: the proof of `GET /v1/tx/{txid}/proof` is accepted by
//! independent verifiers, Go's own implementation of notes and trees and a library from PyPI; with
//! a changed leaf, or for another entry, by neither.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ron_tests::verifiers::{file, from_pypi, go};
use ron_tests::{Fleet, json, ok};
use serde_json::json;

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

/// The leaf at `index` under a checkpoint of `size` leaves.
fn leaf(fleet: &Fleet, index: u64, size: u64) -> Vec<u8> {
    assert!(size < 256, "one tile is enough here");
    let url = format!(
        "{}/log/v1/tile/entries/000.p/{size}",
        fleet.api("ron-ledger")
    );
    let reply = fleet.get(&url, Some(&fleet.token("ron-ledger", None)));
    assert_eq!(
        reply.status,
        200,
        "{}",
        String::from_utf8_lossy(&reply.body)
    );
    let mut bundle = reply.body.as_slice();
    for _ in 0..index {
        let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
        bundle = &bundle[2 + len..];
    }
    let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
    bundle[2..2 + len].to_vec()
}

#[test]
fn third_parties_verify_the_proof_of_a_receipt() {
    let bank = Bank::of(Fleet::start());
    for n in 0..30 {
        bank.issue(&format!("k{n}"), &format!("acc:{}", n % 5), 7);
    }
    let body = json!({"to": "shop", "asset": "ron", "amount_minor": "12"});
    let receipt = json(&bank.post("mine", "issue", &body), 200);
    let (txid, seq) = (
        receipt["receipt"]["txid"].as_str().unwrap(),
        receipt["receipt"]["seq"].as_u64().unwrap(),
    );
    let url = format!("{}/v1/tx/{txid}/proof", bank.url);
    // Retries until a checkpoint covers it.
    let proof = (0..100).find_map(|_| {
        let reply = bank.fleet.get(&url, Some(&bank.token));
        if reply.status != 200 {
            std::thread::sleep(Duration::from_millis(100));
            return None;
        }
        String::from_utf8(reply.body).ok()
    });
    let proof = proof.expect("a proof within 10 s");
    let vkey = bank
        .fleet
        .get(
            &format!("{}/log/v1/vkey", bank.fleet.api("ron-ledger")),
            None,
        )
        .body;
    let vkey = String::from_utf8(vkey).unwrap();
    let (_, checkpoint) = proof.split_once("\n\n").unwrap();
    let size: u64 = checkpoint.lines().nth(1).unwrap().parse().unwrap();
    let good = leaf(&bank.fleet, seq, size);
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();

    let said = ok(&go(dir, &vkey, &proof, &good));
    assert!(said.contains("accepted"), "{said}");
    assert!(!go(dir, &vkey, &proof, &bad).status.success());
    let other = leaf(&bank.fleet, seq - 1, size);
    assert!(!go(dir, &vkey, &proof, &other).status.success());

    let Some(library) = from_pypi("aics-tlog") else {
        eprintln!(
            "the library was left out: no Python of 3.12 or later was found by scripts/setup.sh"
        );
        return;
    };
    let vkey = vkey.trim();
    ok(&python(&library, dir, vkey, seq, &proof, &good));
    assert!(
        !python(&library, dir, vkey, seq, &proof, &bad)
            .status
            .success()
    );
    assert!(
        !python(&library, dir, vkey, seq - 1, &proof, &good)
            .status
            .success()
    );
}
