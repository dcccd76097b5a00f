//! Bundles: they are run directories, every proof is in them, and every change is noticed.

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::manifest::reader::prove;
use crate::manifest::tests::{pins, write_run};
use crate::manifest::verify::{check_signed_proof, verify_run_dir};

fn bundled(temp: &Path, edit: &Value, contents: Contents<'_>) -> (Dir, Bundle) {
    let run = temp.join("run");
    write_run(&run, 11, edit);
    let target = temp.join("bundle");
    fs::create_dir(&target).expect("new");
    let bundle = write(&Dir::os(&run), &Dir::os(&target), contents, &|_| {}).expect("a good run");
    (Dir::os(&target), bundle)
}

const WHOLE: Contents<'_> = Contents {
    usage: true,
    proofs: true,
    page: b"<!doctype html>",
};

#[test]
fn a_bundle_verifies_as_a_run_and_has_every_proof() {
    let temp = tempfile::tempdir().expect("a directory");
    // The residual's owner has a share of its own, so it stands twice in the table.
    let apart = json!({"residual": {"owner": "acc:4"}, "min_payout_minor": "100"});
    let (dir, bundle) = bundled(temp.path(), &apart, WHOLE);
    verify_run_dir(&dir, &pins()).expect("a run");
    let payees = fs::read_to_string(dir.file(PAYEES)).expect("there");
    let (mut proofs, mut rows) = (0, 0);
    for line in payees.lines().skip(1) {
        let fields: Vec<_> = line.split(',').collect();
        rows += 1;
        if fields[3].is_empty() {
            continue;
        }
        let proof: PayoutProof =
            serde_json::from_slice(&fs::read(dir.file(fields[3])).expect("there"))
                .expect("a proof");
        assert_eq!(proof.payout.account.as_str(), fields[1]);
        assert_eq!(proof, prove(&dir, &proof.payout.account).expect("paid"));
        check_signed_proof(&proof, &pins().manifest).expect("signed");
        proofs += 1;
    }
    assert_eq!(
        (rows, proofs),
        (Reader::open(&dir).expect("open").len(), bundle.proofs)
    );
    assert_eq!(check(&dir), Ok(Checked::Bundle { proofs }));
}

#[test]
fn every_changed_or_missing_file_of_a_bundle_is_noticed() {
    let temp = tempfile::tempdir().expect("a directory");
    let (dir, bundle) = bundled(temp.path(), &json!({}), WHOLE);
    let account = "acc:7".parse().expect("an account");
    let mut names: Vec<String> = bundle.files.iter().map(|file| file.name.clone()).collect();
    names.extend([proof_path(&account), BUNDLE.to_owned()]);
    for name in names {
        let path = dir.file(&name);
        let good = fs::read(&path).expect("there");
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        fs::write(&path, &bad).expect("writable");
        check(&dir).expect_err(&name);
        fs::remove_file(&path).expect("there");
        let without = check(&dir);
        // Without its list of files a bundle is a run's directory.
        assert_eq!(without.is_ok(), name == BUNDLE, "{name}");
        fs::write(&path, &good).expect("writable");
    }
    assert_eq!(check(&dir), Ok(Checked::Bundle { proofs: 11 }));
}

#[test]
fn usage_and_proofs_can_be_left_out() {
    let temp = tempfile::tempdir().expect("a directory");
    let less = Contents {
        usage: false,
        proofs: false,
        ..WHOLE
    };
    let (dir, bundle) = bundled(temp.path(), &json!({}), less);
    assert_eq!(bundle.proofs, 0);
    assert!(!dir.file(PROOFS).exists() && !dir.file(dir::SNAPSHOT).exists());
    assert_eq!(check(&dir), Ok(Checked::Bundle { proofs: 0 }));
    prove(&dir, &"acc:7".parse().expect("an account")).expect("from the table");
    let error = verify_run_dir(&dir, &pins()).expect_err("without usage");
    assert_eq!(error.file, dir::SNAPSHOT);
}

#[test]
fn names_outside_of_a_bundle_are_refused() {
    let file =
        |name: &str| json!({"name": name, "bytes": 1, "id": format!("b3:{}", "0".repeat(64))});
    let bundle = |format: u32, names: &[&str]| {
        let files: Vec<Value> = names.iter().map(|name| file(name)).collect();
        json!({"format": format, "commitment": format!("b3:{}", "0".repeat(64)), "proofs": 0, "files": files})
            .to_string()
    };
    Bundle::read(bundle(1, &["run.json", "payouts.bin"]).as_bytes()).expect("known names");
    for (text, why) in [
        (bundle(2, &["run.json"]), "newer program"),
        (bundle(1, &["../run.json"]), "no bundle has"),
        (bundle(1, &["run.json", "run.json"]), "no bundle has"),
        (
            bundle(1, &["payouts.bin", "run.json"]),
            "not in their order",
        ),
        ("{}".to_owned(), "missing"),
    ] {
        let error = Bundle::read(text.as_bytes()).expect_err(why);
        assert!(error.contains(why), "{error}");
    }
}
