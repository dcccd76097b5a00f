//! Third-party code against the log: a derivation in Python from the public definitions, and Go's
//! own implementation of notes and trees.

use std::path::Path;
use std::process::Command;

use ron_tests::tools::Process;
use ron_tests::verifiers::{file, from_pypi, go};
use ron_tests::{copy_tree, free_port, json, ok, ron_binary, workspace};
use ron_tlog::proof::TlogProof;

use crate::node::{Home, Kms, eventually};

/// Waits until a checkpoint covers `index`.
fn covered(kms: &Kms, index: u64) {
    eventually("a checkpoint", || {
        let text = kms.text("/audit/v1/checkpoint");
        let size: u64 = text
            .lines()
            .nth(1)
            .and_then(|l| l.parse().ok())
            .expect("a size");
        if size > index { Ok(()) } else { Err(text) }
    });
}

fn batch(kms: &Kms, key: &str, n: usize) -> u64 {
    let items: Vec<_> = (0..n)
        .map(|i| serde_json::json!({"message": format!("bQ{}", ["", "ab"][i % 2])}))
        .collect();
    let body = serde_json::json!({"key": key, "items": items});
    let answer = json(&kms.post("/v1/kms/sign_batch", &body, None), 200);
    let last = answer["results"]
        .as_array()
        .expect("results")
        .last()
        .expect("one")
        .clone();
    last["answer"]["receipt"]["index"]
        .as_u64()
        .expect("an index")
}

#[test]
fn tiles_and_proofs_equal_those_that_another_implementation_derives() {
    let home = Home::new();
    let kms = home.start(&[]);
    let key = kms.key("app");
    let token = home.path().join("clients/operator.kms.token");
    // Sizes on both sides of full tiles, and a second level.
    for more in [3, 253, 256, 700] {
        let last = batch(&kms, &key, more);
        covered(&kms, last);
        let out = Command::new("python3")
            .arg(workspace().join("tests/tlog/derive.py"))
            .arg(format!("{}/audit/v1", kms.socket))
            .arg(&token)
            .arg((last + 1).to_string())
            .output()
            .expect("python3 runs");
        let said = ok(&out);
        assert!(said.contains("tiles"), "{said}");
    }
}

#[test]
fn go_accepts_checkpoint_and_proof_and_refuses_changed_ones() {
    let home = Home::new();
    let kms = home.start(&[]);
    let key = kms.key("app");
    batch(&kms, &key, 40);
    let answer = json(&kms.sign(&key, "for third parties", Some("wait=5")), 200);
    let proof = answer["proof"].as_str().expect("a proof").to_owned();
    let index = answer["receipt"]["index"].as_u64().expect("an index");
    let vkey = kms.text("/audit/v1/vkey");
    let size: u64 = kms
        .text("/audit/v1/checkpoint")
        .lines()
        .nth(1)
        .and_then(|l| l.parse().ok())
        .expect("a size");
    let mut bundle = kms
        .get(&format!("/audit/v1/tile/entries/000.p/{size}"))
        .body;
    for _ in 0..index {
        let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
        bundle.drain(..2 + len);
    }
    let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
    let leaf = bundle[2..2 + len].to_vec();
    let dir = tempfile::tempdir().expect("dir");
    let said = ok(&go(dir.path(), &vkey, &proof, &leaf));
    assert!(said.contains("accepted"), "{said}");
    let mut other = leaf.clone();
    other[10] ^= 1;
    assert!(!go(dir.path(), &vkey, &proof, &other).status.success());
    let forged = proof.replacen(&format!("\n{size}\n"), &format!("\n{}\n", size + 1), 1);
    assert!(!go(dir.path(), &vkey, &forged, &leaf).status.success());
}

/// A copy that is taken while the service writes verifies offline.
#[test]
fn a_backup_taken_while_it_runs_is_complete() {
    let home = Home::new();
    let kms = home.start(&[]);
    let key = kms.key("app");
    let place = tempfile::tempdir().expect("dir");
    let audit = home.data().join("audit");
    let vkey = home.vkey.to_string();
    for round in 0..5 {
        let last = batch(&kms, &key, 500);
        let to = place.path().join(round.to_string());
        std::fs::create_dir_all(&to).expect("made");
        // The checkpoint first, as the format's document says; the service keeps writing meanwhile.
        std::fs::copy(audit.join("checkpoint"), to.join("checkpoint")).expect("copied");
        batch(&kms, &key, 200);
        for entry in std::fs::read_dir(&audit)
            .expect("lists")
            .map(|e| e.expect("an entry"))
        {
            let name = entry.file_name().into_string().expect("UTF-8");
            // A file that ends in tmp is about to replace another one.
            if name != "checkpoint" && name != "lock" && !name.contains(".tmp") {
                copy_tree(&entry.path(), &to.join(entry.file_name()));
            }
        }
        let out = Command::new(ron_binary())
            .args(["audit", "verify", "--log-dir"])
            .arg(&to)
            .args(["--vkey", &vkey])
            .output()
            .expect("ron runs");
        let said = ok(&out);
        assert!(said.contains("verified"), "{last}: {said}");
    }
}

#[test]
fn a_foreign_witness_cosigns_our_log_and_a_foreign_library_accepts_it() {
    let (Some(witness), Some(verifier)) = (from_pypi("aics-witness"), from_pypi("aics-tlog"))
    else {
        eprintln!("skipped: no Python of 3.12 or later was found by scripts/setup.sh");
        return;
    };
    let home = Home::new();
    let place = tempfile::tempdir().expect("dir");
    let file = |name: &str, text: &[u8]| file(place.path(), name, text).display().to_string();
    let config = place.path().join("witness.json").display().to_string();
    let listen = format!("127.0.0.1:{}", free_port());
    let run =
        |program: &Path, args: &[&str]| Command::new(program).args(args).output().expect("runs");
    let init = [
        "init",
        "--config",
        &config,
        "--name",
        "w.example/py",
        "--listen",
        &listen,
    ];
    let made = ok(&run(&witness, &init));
    let key = made
        .lines()
        .find(|l| l.starts_with("w.example/py+"))
        .expect("a key")
        .to_owned();
    let (origin, vkey) = (home.vkey.name().to_owned(), home.vkey.to_string());
    ok(&run(
        &witness,
        &[
            "add-log", "--config", &config, "--origin", &origin, "--vkey", &vkey,
        ],
    ));
    let _running = Process(
        Command::new(&witness)
            .args(["serve", "--config", &config])
            .spawn()
            .expect("starts"),
    );
    eventually("the witness listens", || {
        std::net::TcpStream::connect(&listen).map_err(|e| e.to_string())
    });
    let policy = format!("log {vkey}\nwitness py {key} http://{listen}\nquorum py\n");
    let policy = file("policy", policy.as_bytes());
    let kms = home.start(&[("witness.policy_file", &policy)]);
    kms.wait_ready();
    let signer = kms.key("app");
    for _ in 0..3 {
        batch(&kms, &signer, 30);
        let answer = json(&kms.sign(&signer, "for third parties", Some("wait=5")), 200);
        let proof = answer["proof"].as_str().expect("a proof");
        let index = answer["receipt"]["index"].as_u64().expect("an index");
        let (head, checkpoint) = proof.split_once("\n\n").expect("a checkpoint");
        let hashes: Vec<&str> = head.lines().skip(2).collect();
        let note = file("note", checkpoint.as_bytes());
        let checked = run(
            &verifier,
            &[
                "verify-checkpoint",
                "--note",
                &note,
                "--log-key",
                &vkey,
                "--witness-key",
                &key,
                "--quorum",
                "1",
                "--origin",
                &origin,
            ],
        );
        ok(&checked);
        let leaf = file("leaf", &leaf(&kms, index, checkpoint));
        let hashes = file("hashes", format!("{}\n", hashes.join("\n")).as_bytes());
        let index = index.to_string();
        let inclusion = [
            "verify-inclusion",
            "--index",
            &index,
            "--leaf",
            &leaf,
            "--proof",
            &hashes,
            "--checkpoint",
            &note,
            "--log-key",
            &vkey,
        ];
        ok(&run(&verifier, &inclusion));
        let forged = file(
            "forged",
            checkpoint.replacen(&origin, "else.example", 1).as_bytes(),
        );
        assert!(
            !run(
                &verifier,
                &["verify-checkpoint", "--note", &forged, "--log-key", &vkey]
            )
            .status
            .success()
        );
    }
}

/// A leaf under a checkpoint, from its entry bundle.
fn leaf(kms: &Kms, index: u64, checkpoint: &str) -> Vec<u8> {
    let size: u64 = checkpoint
        .lines()
        .nth(1)
        .and_then(|l| l.parse().ok())
        .expect("a size");
    let tile = index / 256;
    let width = (size - tile * 256).min(256);
    let part = if width == 256 {
        String::new()
    } else {
        format!(".p/{width}")
    };
    let mut bundle = kms
        .get(&format!("/audit/v1/tile/entries/{tile:03}{part}"))
        .body;
    for _ in 0..index % 256 {
        let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
        bundle.drain(..2 + len);
    }
    let len = usize::from(u16::from_be_bytes([bundle[0], bundle[1]]));
    bundle[2..2 + len].to_vec()
}

#[test]
fn the_audit_command_reads_a_directory_and_a_url() {
    let home = Home::new();
    let kms = home.start(&[]);
    let key = kms.key("app");
    let last = batch(&kms, &key, 300);
    covered(&kms, last);
    let url = format!("{}/audit/v1", kms.socket);
    let token = home
        .path()
        .join("clients/operator.kms.token")
        .display()
        .to_string();
    let data = home.path().display().to_string();
    let audit = |args: &[&str]| {
        let mut command = Command::new(ron_binary());
        command.arg("audit").args(args).args(["--data-dir", &data]);
        command.output().expect("ron runs")
    };
    let over_http = ["--url", url.as_str(), "--token-file", token.as_str()];
    for place in [&[][..], &over_http[..]] {
        let with = |args: &[&'static str]| -> String {
            let args: Vec<&str> = args.iter().copied().chain(place.iter().copied()).collect();
            ok(&audit(&args))
        };
        let verdict = with(&["verify"]);
        let words: Vec<&str> = verdict.split_whitespace().collect();
        let at = words
            .iter()
            .position(|w| *w == "signatures")
            .expect("a count");
        let signatures: u64 = words[at - 1].parse().expect("a number");
        // `ron init` signed a few of its own.
        assert!((300..320).contains(&signatures), "{verdict}");
        let stat = with(&["stat"]);
        assert!(stat.contains("  sign\n") && stat.contains(&key), "{stat}");
        let tail = with(&["tail", "-n", "2"]);
        let leaves: Vec<serde_json::Value> = tail
            .lines()
            .map(|l| serde_json::from_str(l).expect("JSON"))
            .collect();
        assert!(leaves.len() == 2 && leaves[1]["op"] == "sign", "{tail}");
        let proof = TlogProof::parse(&with(&["prove", "260"])).expect("a proof");
        let leaf = leaf(&kms, 260, &proof.checkpoint);
        let keys = std::slice::from_ref(&home.vkey);
        assert!(proof.verify(&leaf, keys, Some(home.vkey.name())).is_ok());
    }
    let refused = audit(&["verify", "--url", &url]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--token-file"));
    assert!(!audit(&["prove", "100000"]).status.success());
    // This log has no cosignature, and a policy that requires one reports it.
    let witness = crate::node::WitnessHome::new("w.example/1", &[&home.vkey]);
    let policy = witness.policy(&[&home.vkey], home.path());
    let refused = audit(&["verify", "--policy", &policy]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cosigned"));
}
