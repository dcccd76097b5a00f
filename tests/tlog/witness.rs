//! Two hosts witness each other's logs; the rules of add-checkpoint over HTTP; a log that was
//! rolled back is refused.

use std::sync::Arc;

use ron_files::SimDisk;
use ron_tests::{copy_tree, http_client, json};
use ron_tlog::append::{Log, LogOptions, LogReader, origin_hash};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Ed25519NoteSigner, Note, VerifierKey, parse_signature};
use ron_tlog::policy::Policy;
use ron_tlog::proof::TlogProof;
use ron_tlog::witness::AddCheckpoint;
use ron_tlog::{CosignerKey, tree};

use crate::node::{Home, Kms, WitnessHome, eventually, post_text};

fn policy(path: &str) -> Policy {
    Policy::parse(&std::fs::read(path).expect("there")).expect("a policy")
}

/// Signs and waits for the proof, which must satisfy the policy.
fn sign_with_proof(kms: &Kms, key: &str, vkey: &VerifierKey, policy: &Policy) {
    let answer = json(&kms.sign(key, "with proof", Some("wait=5")), 200);
    let proof = TlogProof::parse(answer["proof"].as_str().expect("a proof")).expect("a proof");
    let index = answer["receipt"]["index"].as_u64().expect("an index");
    assert_eq!(proof.index, index);
    let covered = policy
        .check(&proof.checkpoint, &[], Some(vkey.name()))
        .expect("cosigned");
    // The proved leaf is the one that names this signature.
    let bundle = index / 256;
    let width = (covered.size - bundle * 256).min(256);
    let path = match width {
        256 => format!("/audit/v1/tile/entries/{bundle:03}"),
        _ => format!("/audit/v1/tile/entries/{bundle:03}.p/{width}"),
    };
    let leaf = nth_entry(&kms.get(&path).body, index % 256);
    let said = proof.verify(&leaf, std::slice::from_ref(vkey), Some(vkey.name()));
    assert_eq!(said.expect("proved"), covered);
    let leaf: serde_json::Value = serde_json::from_slice(&leaf).expect("JSON");
    assert_eq!((&leaf["op"], &leaf["key"]), (&"sign".into(), &key.into()));
    assert!(leaf["key_op_counter"].as_u64().expect("counted") >= 2);
}

fn nth_entry(mut bundle: &[u8], n: u64) -> Vec<u8> {
    for _ in 0..n {
        let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
        bundle = &bundle[2 + len..];
    }
    let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
    bundle[2..2 + len].to_vec()
}

#[test]
fn two_hosts_witness_each_other() {
    let (a, b) = (Home::new(), Home::new());
    let (by_a, by_b) = (
        WitnessHome::new("a.example/witness", &[&b.vkey]),
        WitnessHome::new("b.example/witness", &[&a.vkey]),
    );
    let (policy_a, policy_b) = (
        by_b.policy(&[&a.vkey], a.path()),
        by_a.policy(&[&b.vkey], b.path()),
    );
    let (_at_a, at_b) = (by_a.start(), by_b.start());
    let sets_a = [
        ("witness.policy_file", policy_a.as_str()),
        ("witness.late", "500ms"),
    ];
    let kms_a = a.start(&sets_a);
    let kms_b = b.start(&[("witness.policy_file", &policy_b), ("audit.ml_dsa", "true")]);
    for (kms, home, file) in [(&kms_a, &a, &policy_a), (&kms_b, &b, &policy_b)] {
        kms.wait_ready();
        let key = kms.key("app");
        for _ in 0..3 {
            sign_with_proof(kms, &key, &home.vkey, &policy(file));
        }
        // The served checkpoint carries the cosignature too.
        eventually("a cosigned checkpoint", || {
            let text = kms.text("/audit/v1/checkpoint");
            let checked = policy(file).check(&text, &[], None);
            checked.map_err(|e| e.to_string())
        });
        assert!(kms.metric("ron_kms_cosigned_size ") >= 4.0);
    }
    // B signs twice; the second line binds the same tree.
    let second = CosignerKey::parse(&kms_b.text("/audit/v1/vkey/ml-dsa-44")).expect("a key");
    let note = Note::parse(&kms_b.text("/audit/v1/checkpoint")).expect("a note");
    assert!(second.find(&note).is_some(), "{note}");
    assert_eq!(kms_a.get("/audit/v1/vkey/ml-dsa-44").status, 404);
    // Monitors see at the witness what it cosigned.
    let http = http_client();
    let url = format!("{}/{}/checkpoint", by_b.url(), origin_hash(a.vkey.name()));
    let seen = http
        .call(ron_http::Call::get(
            &url,
            ron_kernel::Deadline::within(ron_tests::CALL),
        ))
        .expect("answers");
    let seen = String::from_utf8(seen.body).expect("text");
    assert!(
        policy(&policy_a)
            .check(&seen, &[], Some(a.vkey.name()))
            .is_ok(),
        "{seen}"
    );
    // An unavailable witness weakens, and stops nothing.
    drop(at_b);
    let key = kms_a.key("app");
    let state = eventually("degraded", || {
        assert_eq!(kms_a.sign(&key, "alone", None).status, 200);
        let (status, text) = kms_a.ready();
        if status == 200 && text.contains("witness") {
            Ok(text)
        } else {
            Err(text)
        }
    });
    assert!(state.contains("degraded"), "{state}");
    let late = json(&kms_a.sign(&key, "late", Some("wait=5")), 200);
    let proof = late["proof"]
        .as_str()
        .expect("under the log's own checkpoint");
    let proof = TlogProof::parse(proof).expect("a proof");
    assert!(Checkpoint::open(&proof.checkpoint, std::slice::from_ref(&a.vkey), None).is_ok());
    assert!(
        policy(&policy_a)
            .check(&proof.checkpoint, &[], None)
            .is_err()
    );
    let _at_b = by_b.start();
    eventually("clear again", || {
        let (_, text) = kms_a.ready();
        if text.contains("\"witness\"") {
            Err(text)
        } else {
            Ok(())
        }
    });
    sign_with_proof(&kms_a, &key, &a.vkey, &policy(&policy_a));
}

#[test]
fn a_rolled_back_data_directory_is_detected_by_anchor_and_witness() {
    for by_witness in [false, true] {
        let home = Home::new();
        let place = tempfile::tempdir().expect("dir");
        let witness = WitnessHome::new("w.example/1", &[&home.vkey]);
        let _running = witness.start();
        let policy = witness.policy(&[&home.vkey], home.path());
        let anchor = place.path().join("anchor").display().to_string();
        let sets: [(&str, &str); 1] = if by_witness {
            [("witness.policy_file", &policy)]
        } else {
            [("audit.anchor_dir", &anchor)]
        };
        let kms = home.start(&sets);
        let key = kms.key("app");
        let signed = json(&kms.sign(&key, "old", Some("wait=3")), 200);
        kms.stop();
        let old = place.path().join("old");
        copy_tree(&home.data(), &old);
        let kms = home.start(&sets);
        for n in 0..5 {
            assert_eq!(kms.sign(&key, &format!("new {n}"), None).status, 200);
        }
        kms.stop();
        // The whole directory, store and log, is rolled back: nothing inside contradicts itself.
        let kms = home.start_on(&old, &sets);
        let (status, text) = kms.ready();
        assert_eq!(status, 503, "by_witness {by_witness}: {text}");
        assert!(text.contains("audit"), "{text}");
        let refused = kms.sign(&key, "x", None);
        assert_eq!(refused.status, 503);
        assert!(
            kms.verifies(&key, "old", &signed["signatures"]),
            "verify stays up"
        );
        assert!(kms.metric("ron_kms_audit_integrity_failed_total ") >= 1.0);
        drop(kms);
        // The right directory continues.
        let kms = home.start(&sets);
        kms.wait_ready();
        assert_eq!(kms.sign(&key, "y", None).status, 200);
    }
}

/// The ledger's log has its witnesses as the KMS's has: its checkpoints are cosigned, and a ledger
/// that was rolled back is detected.
#[test]
fn the_ledgers_log_is_witnessed_too() {
    let home = Home::new();
    let place = tempfile::tempdir().expect("dir");
    let witness = WitnessHome::new("w.example/1", &[&home.ledger_vkey]);
    let running = witness.start();
    let file = witness.policy(&[&home.ledger_vkey], home.path());
    let sets = [
        ("witness.policy_file", file.as_str()),
        ("witness.late", "1s"),
    ];
    let data = home.path().join("ron-ledger/data");
    let ledger = home.start_ledger(&data, &sets);
    ledger.wait_ready();
    let issue = |ledger: &Kms, n: u32| {
        let key = format!("{n:064x}");
        let entry = serde_json::json!({"kind": "issue", "tenant": "t", "principal": "tester", "to": "acct:a", "asset": "ron", "amount_minor": "5", "key": key});
        ledger.post(
            "/v1/ledger/commit",
            &serde_json::json!({"entries": [entry]}),
            None,
        )
    };
    let cosigned = |ledger: &Kms, over: u64| {
        eventually("a cosigned checkpoint", || {
            let text = ledger.text("/log/v1/checkpoint");
            let checked = policy(&file).check(&text, &[], Some(home.ledger_vkey.name()));
            match checked.map_err(|e| e.to_string())? {
                checkpoint if checkpoint.size > over => Ok(checkpoint.size),
                checkpoint => Err(format!("{checkpoint:?}")),
            }
        })
    };
    let first = issue(&ledger, 1);
    assert_eq!(
        first.status,
        200,
        "{}",
        String::from_utf8_lossy(&first.body)
    );
    let size = cosigned(&ledger, 1);
    assert!(ledger.metric("ron_ledger_cosigned_size ") >= size as f64);
    let proof = TlogProof::parse(&ledger.text("/log/v1/proof/1")).expect("a proof");
    assert!(
        policy(&file).check(&proof.checkpoint, &[], None).is_ok(),
        "proofs lead to it"
    );
    ledger.stop();
    let old = place.path().join("old");
    copy_tree(&data, &old);
    let ledger = home.start_ledger(&data, &sets);
    ledger.wait_ready();
    assert_eq!(issue(&ledger, 2).status, 200);
    cosigned(&ledger, size);
    // An unavailable witness weakens, and stops nothing.
    drop(running);
    eventually("degraded", || {
        assert_eq!(issue(&ledger, 3).status, 200);
        match ledger.ready() {
            (200, text) if text.contains("\"witness\"") => Ok(()),
            (_, text) => Err(text),
        }
    });
    ledger.stop();
    let _running = witness.start();
    // Rolled back as a whole: nothing inside contradicts itself, but the witness has seen more.
    let ledger = home.start_ledger(&old, &sets);
    let (status, text) = ledger.ready();
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("\"log\""), "{text}");
    assert_eq!(issue(&ledger, 4).status, 503);
    assert_eq!(ledger.get("/log/v1/checkpoint").status, 200, "reads go on");
    drop(ledger);
    let ledger = home.start_ledger(&data, &sets);
    ledger.wait_ready();
    assert_eq!(issue(&ledger, 5).status, 200);
}

/// The log of revocations has witnesses, too. An issuer that was rolled back with all it has would take revoked tokens again: it does not
/// start.
#[test]
fn the_log_of_revocations_is_witnessed_too() {
    let home = Home::new();
    home.let_revoke();
    let place = tempfile::tempdir().expect("dir");
    let witness = WitnessHome::new("w.example/1", &[&home.revocations_vkey]);
    let running = witness.start();
    let file = witness.policy(&[&home.revocations_vkey], home.path());
    let sets = [
        ("witness.policy_file", file.as_str()),
        ("witness.late", "1s"),
    ];
    let revoke = |issuer: &Kms, n: u32| {
        let body = serde_json::json!({"jti": format!("token-{n}"), "reason": "leaked"});
        let reply = issuer.post("/v1/passport/revoke", &body, None);
        json(&reply, 200)["event"].as_u64().expect("a number")
    };
    let cosigned = |issuer: &Kms, size: u64| {
        eventually("a cosigned checkpoint", || {
            let text = issuer.text("/revocations/v1/checkpoint");
            let checked = policy(&file).check(&text, &[], Some(home.revocations_vkey.name()));
            match checked.map_err(|e| e.to_string())? {
                checkpoint if checkpoint.size == size => Ok(()),
                checkpoint => Err(format!("{checkpoint:?}")),
            }
        });
    };
    let data = home.path().join("svc-passport/data");
    let issuer = home.start_issuer(&data, &sets);
    let first = revoke(&issuer, 1);
    cosigned(&issuer, first);
    assert!(issuer.metric("svc_passport_cosigned_size ") >= first as f64);
    let proof = TlogProof::parse(&issuer.text("/revocations/v1/proof/0")).expect("a proof");
    let led = policy(&file).check(&proof.checkpoint, &[], None);
    assert!(led.is_ok(), "proofs lead to it");
    issuer.stop();
    let old = place.path().join("old");
    copy_tree(&data, &old);

    // What a witness has cosigned is there again after a restart, and goes on.
    let issuer = home.start_issuer(&data, &sets);
    cosigned(&issuer, first);
    let second = revoke(&issuer, 2);
    cosigned(&issuer, second);
    drop(running);
    let third = revoke(&issuer, 3);
    assert_eq!(third, second + 1, "a witness that is away stops nothing");
    eventually("degraded", || match issuer.ready() {
        (_, text) if text.contains("\"witness\"") => Ok(()),
        (_, text) => Err(text),
    });
    issuer.stop();

    // Nothing inside an old copy contradicts itself, but the witness has seen more.
    let running = witness.start();
    let why = home.refused_issuer(&old, &sets);
    let wanted = format!("it has cosigned {second} entries of this log, which has {first}");
    assert!(why.contains(&wanted), "{why}");
    drop(running);
    // While it is away the issuer starts, and takes no revocations once it is back.
    let issuer = home.start_issuer(&old, &sets);
    let _running = witness.start();
    eventually("contradicted", || match issuer.ready() {
        (503, text) if text.contains("\"log\"") => Ok(()),
        (_, text) => Err(text),
    });
    let body = serde_json::json!({"jti": "token-4", "reason": "leaked"});
    let refused = issuer.post("/v1/passport/revoke", &body, None);
    assert_eq!(refused.status, 503);
    assert_eq!(issuer.get("/revocations/v1/checkpoint").status, 200);
    drop(issuer);
    let issuer = home.start_issuer(&data, &sets);
    let fourth = revoke(&issuer, 4);
    assert_eq!(fourth, third + 1);
    cosigned(&issuer, fourth);
}

/// A log made by the test, to send requests to a witness.
struct Asker {
    signer: Ed25519NoteSigner,
    reader: LogReader,
    fork: LogReader,
}

impl Asker {
    fn new() -> Self {
        let key = ron_crypto::sign::Ed25519Key::from_seed(&[7; 32]);
        let log = |changed: u64| {
            let options = LogOptions::new("asker.example/log");
            let path = std::path::Path::new("/l");
            let mut log = Log::open(Arc::new(SimDisk::new()), path, options).expect("opens");
            let entry = |i: u64| {
                if i == changed {
                    "x".to_owned()
                } else {
                    i.to_string()
                }
            };
            log.append(&(0..50).map(entry).collect::<Vec<_>>())
                .expect("appends");
            log.reader()
        };
        Self {
            signer: Ed25519NoteSigner::new("asker.example/log", key).expect("a name"),
            reader: log(99),
            fork: log(3),
        }
    }

    fn checkpoint(&self, size: u64, fork: bool) -> Checkpoint {
        let reader = if fork { &self.fork } else { &self.reader };
        Checkpoint {
            origin: "asker.example/log".into(),
            size,
            root: if size == 0 {
                tree::empty_root()
            } else {
                reader.root_at(size).expect("there")
            },
        }
    }

    fn request(&self, old: u64, new: u64, fork: bool) -> AddCheckpoint {
        let reader = if fork { &self.fork } else { &self.reader };
        let proof = if old == 0 || old > new {
            Vec::new()
        } else {
            reader.consistency(old, new).expect("there")
        };
        let checkpoint = self
            .checkpoint(new, fork)
            .sign(&[&self.signer])
            .expect("signs");
        AddCheckpoint {
            old,
            proof,
            checkpoint,
        }
    }
}

#[test]
fn add_checkpoint_answers_each_case_with_its_status() {
    let asker = Asker::new();
    let home = WitnessHome::new("w.example/1", &[asker.signer.verifier()]);
    let mut running = home.start();
    let http = http_client();
    let url = format!("{}/add-checkpoint", home.url());
    let key = CosignerKey::parse(&home.vkey).expect("a key");
    let ask = |body: &str| post_text(&http, &url, body);
    let check = |what: &str, request: &AddCheckpoint, status: u16| {
        let reply = ask(&request.to_string());
        assert_eq!(
            reply.status,
            status,
            "{what}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        if status == 200 {
            let body = String::from_utf8(reply.body).expect("text");
            let line = parse_signature(body.strip_suffix('\n').expect("one line")).expect("a line");
            let note = Note::parse(&request.checkpoint).expect("a note");
            let time = key.verify(&note.text, &line).expect("a cosignature");
            let now = std::time::SystemTime::UNIX_EPOCH
                .elapsed()
                .expect("after 1970")
                .as_secs();
            assert!(time.abs_diff(now) < 30, "{time}");
        } else if status == 409 {
            assert_eq!(reply.header("content-type"), Some("text/x.tlog.size"));
        }
    };
    let size_of =
        |request: &AddCheckpoint| String::from_utf8(ask(&request.to_string()).body).expect("text");
    check("first", &asker.request(0, 5, false), 200);
    check("again", &asker.request(5, 5, false), 200);
    check("from nothing", &asker.request(0, 9, false), 409);
    assert_eq!(size_of(&asker.request(0, 9, false)), "5\n");
    check("larger", &asker.request(5, 9, false), 200);
    // The witness remembers over a kill.
    drop(running);
    running = home.start();
    assert_eq!(size_of(&asker.request(5, 20, false)), "9\n");
    check("same size, other root", &asker.request(9, 9, true), 409);
    check("rewritten", &asker.request(9, 20, true), 422);
    check("backwards", &asker.request(9, 5, false), 400);
    let mut short = asker.request(9, 20, false);
    short.proof.pop();
    check("short proof", &short, 422);
    let other = Ed25519NoteSigner::new(
        "asker.example/log",
        ron_crypto::sign::Ed25519Key::from_seed(&[8; 32]),
    );
    let mut forged = asker.request(9, 20, false);
    forged.checkpoint = asker
        .checkpoint(20, false)
        .sign(&[&other.expect("a name")])
        .expect("signs");
    check("another key", &forged, 403);
    let mut foreign = asker.request(9, 20, false);
    foreign.checkpoint = foreign
        .checkpoint
        .replace("asker.example/log", "else.example/log");
    check("another log", &foreign, 404);
    for odd in [
        "",
        "old 9\n",
        "old 09\n\n",
        "old 9\n\nnot a note\n",
        "new 9\n\n",
    ] {
        assert_eq!(ask(odd).status, 400, "{odd:?}");
    }
    check("and still goes on", &asker.request(9, 20, false), 200);
    drop(running);
}

/// Many requests at once from the same state: exactly one checkpoint of each step is accepted, and
/// the accepted ones form one history.
#[test]
fn requests_at_once_are_decided_one_after_the_other() {
    let asker = Asker::new();
    let home = WitnessHome::new("w.example/1", &[asker.signer.verifier()]);
    let _running = home.start();
    let url = format!("{}/add-checkpoint", home.url());
    let taken = ron_kernel::scoped(8, |n| {
        let http = http_client();
        let (mut taken, mut old, mut size) = (Vec::new(), 0, 0);
        while size < 50 {
            size = (old + 1 + n as u64 % 3).min(50);
            let reply = post_text(&http, &url, &asker.request(old, size, false).to_string());
            match reply.status {
                200 => {
                    taken.push((old, size));
                    old = size;
                }
                409 => {
                    let body = String::from_utf8(reply.body).expect("text");
                    old = body.trim().parse().expect("a size");
                    size = old;
                }
                other => panic!("{other}"),
            }
        }
        taken
    });
    let mut steps: Vec<(u64, u64)> = taken
        .into_iter()
        .flatten()
        .filter(|(o, n)| o != n)
        .collect();
    steps.sort_unstable();
    let mut at = 0;
    for (old, new) in &steps {
        assert_eq!(
            *old, at,
            "two checkpoints were taken from one state: {steps:?}"
        );
        at = *new;
    }
    assert_eq!(at, 50);
}
