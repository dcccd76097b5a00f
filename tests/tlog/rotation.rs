//! The log rotates its key in operation: verifiers that pinned the old key accept it during the
//! overlap, and find the new one from it afterwards.

use std::process::Command;

use ron_tests::{json, ok, ron_binary, ron_on};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;
use ron_tlog::policy::Policy;
use ron_tlog::proof::TlogProof;
use ron_tlog::rotation::{KeyChain, Rotation};
use serde_json::{Value, json};

use crate::node::{Home, Kms, WitnessHome, eventually, post_text};

fn rotate(kms: &Kms) -> Value {
    json(&kms.post("/v1/kms/log_key/rotate", &json!({}), None), 200)
}

/// Signs and waits for the checkpoint over it.
fn checkpoint(kms: &Kms, key: &str) -> String {
    let answer = json(&kms.sign(key, "x", Some("wait=5")), 200);
    let proof = TlogProof::parse(answer["proof"].as_str().expect("a proof")).expect("a proof");
    proof.checkpoint
}

fn opens(note: &str, key: &VerifierKey) -> bool {
    Checkpoint::open(note, std::slice::from_ref(key), Some(key.name())).is_ok()
}

#[test]
fn verifiers_that_pin_the_old_key_find_the_new_one() {
    let home = Home::new();
    let witness = WitnessHome::new("w.example/1", &[&home.vkey]);
    let running = witness.start();
    let policy = witness.policy(&[&home.vkey], home.path());
    let anchor = home.path().join("anchor").display().to_string();
    let sets = [
        ("witness.policy_file", policy.as_str()),
        ("audit.anchor_dir", &anchor),
        ("audit.log_key_overlap", "10s"),
        ("audit.ml_dsa", "true"),
    ];
    let kms = home.start(&sets);
    kms.wait_ready();
    let key = kms.key("app");
    let old = home.vkey.clone();
    assert!(opens(&checkpoint(&kms, &key), &old));
    let second = kms.text("/audit/v1/vkey/ml-dsa-44");

    let answer = rotate(&kms);
    assert_eq!(answer["number"], 2);
    let new = VerifierKey::parse(answer["vkey"].as_str().expect("a key")).expect("a key");
    let statement = Rotation::open(answer["statement"].as_str().expect("a note")).expect("holds");
    assert_eq!((&statement.old, &statement.new), (&old, &new));
    assert_eq!(kms.text("/audit/v1/vkey").trim(), new.to_string());
    assert_ne!(
        kms.text("/audit/v1/vkey/ml-dsa-44"),
        second,
        "it comes from the new key"
    );
    let chain = KeyChain::parse(&kms.text("/audit/v1/keys")).expect("a chain");
    assert_eq!(chain.since(&old).expect("led"), [old.clone(), new.clone()]);

    // The overlap: either pin accepts, and the witness, which knows only the old key, keeps
    // cosigning.
    let note = checkpoint(&kms, &key);
    assert!(opens(&note, &old) && opens(&note, &new), "{note}");
    let check = |note: &str, follow: bool| {
        let mut policy = Policy::parse(&std::fs::read(&policy).expect("there")).expect("a policy");
        if follow {
            policy.follow(chain.keys());
        }
        policy
            .check(note, &[], None)
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(check(&note, false), Ok(()));
    let kms = over(&home, kms, &sets);

    // The overlap ended: the old key no longer signs, the witness was notified, and every verifier
    // that follows moves on.
    let note = eventually("the old key ends", || {
        let note = checkpoint(&kms, &key);
        if opens(&note, &old) {
            Err(note)
        } else {
            Ok(note)
        }
    });
    assert!(opens(&note, &new));
    assert!(check(&note, false).is_err());
    assert_eq!(
        check(&note, true),
        Ok(()),
        "cosigned by the witness that learned: {note}"
    );
    verify(&home, &kms, &policy);
    // The witness remembers the new key over a restart, and accepts it from no other source.
    drop(running);
    let _running = witness.start();
    eventually("cosigned again", || check(&checkpoint(&kms, &key), true));
    let url = format!("{}/log-keys", witness.url());
    assert_eq!(post_text(&kms.http, &url, "nonsense\n").status, 400);
    let own = KeyChain::new(new.clone()).to_string();
    assert_eq!(
        post_text(&kms.http, &url, &own).status,
        403,
        "no key of it was given"
    );
    assert_eq!(post_text(&kms.http, &url, &chain.to_string()).status, 200);
    drop(kms);
    let kms = home.start(&sets);
    kms.wait_ready();
    by_command(&home, &kms, &new);
    assert!(!opens(&checkpoint(&kms, &key), &old));
    verify(&home, &kms, &policy);
    kms.stop();
}

/// `ron audit rotate-key`: the key on standard output, the statement in a file, and no rotation if
/// the current key is not the expected one, or for a repeated operation.
fn by_command(home: &Home, kms: &Kms, second: &VerifierKey) {
    let token = home.path().join("clients/operator.kms.token");
    let file = home.path().join("rotation.note");
    let run = |more: &[&str]| {
        Command::new(ron_binary())
            .args(["audit", "rotate-key", "--data-dir"])
            .arg(home.path())
            .args(["--url", &kms.socket, "--token-file"])
            .arg(&token)
            .args(["--op-id", "0190a1b2-0000-7000-8000-00000000000a"])
            .args(more)
            .output()
            .expect("ron runs")
    };
    let other = ["--op-id", "0190a1b2-0000-7000-8000-00000000000b"];
    let not_this = Command::new(ron_binary())
        .args(["audit", "rotate-key", "--data-dir"])
        .arg(home.path())
        .args(["--url", &kms.socket, "--token-file"])
        .arg(&token)
        .args(["--expected-number", "1", other[0], other[1]])
        .output()
        .expect("ron runs");
    assert!(!not_this.status.success());
    let why = String::from_utf8_lossy(&not_this.stderr).into_owned();
    assert!(why.contains("the log signs with key 2"), "{why}");

    let made = run(&[
        "--expected-number",
        "2",
        "--statement",
        &file.to_string_lossy(),
    ]);
    let third = VerifierKey::parse(ok(&made).trim()).expect("a key and nothing else");
    assert!(String::from_utf8_lossy(&made.stderr).contains("key 3 of the audit log"));
    let statement = std::fs::read_to_string(&file).expect("there");
    let statement = Rotation::open(&statement).expect("holds");
    assert_eq!((&statement.old, &statement.new), (second, &third));
    assert_eq!(kms.text("/audit/v1/vkey").trim(), third.to_string());
    let again = run(&["--expected-number", "2", "--json"]);
    let again: Value = serde_json::from_str(&ok(&again)).expect("JSON");
    assert_eq!(
        (&again["number"], &again["vkey"]),
        (&json!(3), &json!(third.to_string()))
    );
    assert_eq!(
        kms.text("/audit/v1/vkey").trim(),
        third.to_string(),
        "no fourth"
    );
}

/// Killed and started again: the keys, the copies of the checkpoint and the witness still agree.
fn over(home: &Home, kms: Kms, sets: &[(&str, &str)]) -> Kms {
    drop(kms);
    let kms = home.start(sets);
    kms.wait_ready();
    kms
}

/// The offline check with the key that `ron init` stored, from the directory and over HTTP.
fn verify(home: &Home, kms: &Kms, policy: &str) {
    // The newest checkpoint may still be on its way to the witness.
    let said = eventually("a cosigned checkpoint on disk", || {
        let out = ron_on(home.path(), &["audit", "verify", "--policy", policy]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        if said.contains("too few witnesses") {
            Err(said)
        } else {
            Ok(ok(&out))
        }
    });
    assert!(said.contains("of the log's own key"), "{said}");
    let token = home.path().join("clients/operator.kms.token");
    let out = Command::new(ron_binary())
        .args(["audit", "verify", "--data-dir"])
        .arg(home.path())
        .args(["--url", &format!("{}/audit/v1", kms.socket), "--token-file"])
        .arg(token)
        .output()
        .expect("ron runs");
    assert!(ok(&out).contains("of the log's own key"));
}
