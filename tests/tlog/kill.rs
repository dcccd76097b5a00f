//! `kill -9` of the KMS under load, again and again: after each start every acknowledged leaf is
//! where its receipt said.

use ron_tests::{Draws, number};
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ron_files::OsDisk;
use ron_kms::{Leaf, LeafCheck, kept_keys};
use ron_tlog::append::verify_on;
use serde_json::{Value, json};

use crate::node::{Home, Kms, pause};

/// Clients that sign at the same time.
const CLIENTS: usize = 4;

/// The responses to the clients: by leaf index the SHA-256 of the signature, or of the new public
/// key of the log.
type Journal = BTreeMap<u64, String>;

fn noted(answer: &Value) -> (u64, String) {
    let index = answer["receipt"]["index"].as_u64().expect("an index");
    let signature = answer["signatures"][0]["signature"].as_str().expect("one");
    let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
    (index, hex::encode(ron_crypto::hash::sha256(&signature)))
}

/// Signs, alone and in batches, and now and then rotates the log's key, until the service is gone.
fn load(kms: &Kms, key: &str, client: usize) -> Vec<(u64, String)> {
    let mut told = Vec::new();
    for n in 0.. {
        let message = URL_SAFE_NO_PAD.encode(format!("{client} {n}"));
        let (path, body) = match n % 7 {
            3 => {
                let items: Vec<Value> = (0..40).map(|_| json!({"message": &message})).collect();
                ("/v1/kms/sign_batch", json!({"key": key, "items": items}))
            }
            5 if client == 1 && n < 7 => ("/v1/kms/log_key/rotate", json!({})),
            _ => ("/v1/kms/sign", json!({"key": key, "message": message})),
        };
        let Ok(reply) = kms.try_post(path, &body) else {
            return told;
        };
        if reply.status != 200 {
            continue;
        }
        let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
        match path {
            "/v1/kms/sign" => told.push(noted(&answer)),
            "/v1/kms/sign_batch" => {
                let results = answer["results"].as_array().expect("results");
                let done = results.iter().filter(|r| r["answer"].is_object());
                told.extend(done.map(|r| noted(&r["answer"])));
            }
            _ => {
                let key = answer["vkey"].as_str().expect("a key");
                let key: ron_tlog::VerifierKey = key.parse().expect("a key");
                let hash = hex::encode(ron_crypto::hash::sha256(key.public()));
                told.push((answer["receipt"]["index"].as_u64().expect("an index"), hash));
            }
        }
    }
    told
}

/// The whole log verifies, and every receipt of the journal names its leaf.
fn check(home: &Home, journal: &Journal, round: u64) {
    let dir = home.data().join("audit");
    let keys = kept_keys(&dir, &home.vkey).expect("the chain of keys");
    let (mut leaves, mut found) = (LeafCheck::default(), 0);
    let mut on_entry = |index: u64, bytes: &[u8], _: &[u8]| {
        leaves.take(bytes)?;
        if let Some(told) = journal.get(&index) {
            found += 1;
            if Leaf::parse(bytes)?.output_sha256.as_ref() != Some(told) {
                return Err("it is not the leaf that was acknowledged".into());
            }
        }
        Ok(())
    };
    let verified = verify_on(&OsDisk, &dir, &keys, &mut on_entry, &mut |_, _| {});
    let verified = verified.unwrap_or_else(|e| panic!("after kill {round}: {e}"));
    assert_eq!(
        found,
        journal.len(),
        "after kill {round}: acknowledged leaves are missing"
    );
    leaves
        .signed_in_time(&verified.checkpoint, &keys)
        .unwrap_or_else(|e| panic!("after kill {round}: {e}"));
}

#[test]
fn every_acknowledged_leaf_outlives_a_kill() {
    let mut draws = Draws::seeded();
    let kills = number("RON_AUDIT_KILLS", 10);
    let home = Home::new();
    // No overlap: each rotation leaves a single key to sign, the hardest case for the next start.
    let sets = [
        ("audit.log_key_overlap", "0s"),
        ("audit.checkpoint_interval", "50ms"),
    ];
    let mut kms = home.start(&sets);
    kms.wait_ready();
    let key = kms.key("journal");
    let mut journal = Journal::new();
    for round in 1..=kills {
        let wait = 5 + draws.below(400);
        let told = ron_kernel::scoped(CLIENTS + 1, |n| {
            if n == 0 {
                pause(wait);
                kms.kill_now();
                return Vec::new();
            }
            load(&kms, &key, n)
        });
        journal.extend(told.into_iter().flatten());
        drop(kms);
        kms = home.start(&sets);
        kms.wait_ready();
        check(&home, &journal, round);
    }
    println!("{} acknowledged leaves over {kills} kills", journal.len());
    assert!(journal.len() as u64 > kills, "hardly anything was signed");
    kms.stop();
    ron_tests::ok(&ron_tests::ron_on(home.path(), &["audit", "verify"]));
}
