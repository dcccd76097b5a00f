//! Runs whose arithmetic fails: the artifacts they leave, and the auditor's verdict.

use std::fs;

use ron_files::Dir;
use ron_proto::rewarder::ImportKind;
use serde_json::json;

use super::tests::{document, pins, run, signed, write_run};
use super::verify::{read_manifest, verify_run_dir};
use super::*;
use crate::inputs::import;

/// Usage and a policy that need a number of more than 1,024 bits.
fn absurd() -> (Sealed, VerifiedPolicy) {
    let caps: serde_json::Map<_, _> = (0..8).map(|c| (format!("c{c}"), json!("1"))).collect();
    let rule = |c| json!({"weight": "18446744073709551615", "class": "metering", "category": format!("c{c}")});
    let metrics: serde_json::Map<_, _> = (0..8).map(|c| (format!("m{c}"), rule(c))).collect();
    let edit = json!({"metrics": metrics, "caps": {"category_minor": caps}});
    let mut rows = String::from("account,metric,amount\n");
    for c in 0..8 {
        rows.push_str(&format!("a,m{c},{}\n", u128::MAX));
    }
    let sealed = import::csv(rows.as_bytes(), ImportKind::Totals).expect("good rows");
    (sealed, signed(&document(&edit)))
}

#[test]
fn a_quarantined_run_is_verified_without_a_signature() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = temp.path().join("run");
    let run_dir = Dir::os(&target);
    let (sealed, policy) = absurd();
    let computed = run(&sealed, &policy);
    dir::write(&run_dir, &computed, &sealed, &policy).expect("a writable directory");
    let verified = verify_run_dir(&run_dir, &pins()).expect("as it was left");
    assert_eq!(verified.manifest, computed.manifest);
    assert!(verified.signature.is_none() && verified.table.is_none());
    // A run that pays cannot be passed off as a quarantined one.
    write_run(&target, 5, &json!({}));
    let mut hidden = read_manifest(&run_dir).expect("written");
    (hidden.status, hidden.payouts) = (RunStatus::Quarantined, None);
    hidden.commitment = commitment(&hidden);
    let json = dir::to_json(&hidden).expect("json");
    dir::add(&run_dir, dir::RUN, &json).expect("writable");
    for file in [dir::RUN_SIG, dir::PAYOUTS, dir::TREE] {
        fs::remove_file(target.join(file)).expect("there");
    }
    let error = verify_run_dir(&run_dir, &pins()).expect_err("it pays");
    assert_eq!(error.file, dir::RUN);
}

#[test]
fn a_quarantined_run_has_a_manifest_without_payouts() {
    let (sealed, policy) = absurd();
    let computed = run(&sealed, &policy);
    assert!(matches!(computed.quarantine, Some(Stop::Overflow(_))));
    assert_eq!(computed.manifest.status, RunStatus::Quarantined);
    assert_eq!(computed.manifest.payouts, None);
    assert!(computed.table.is_none());
    let mut turned = computed.manifest.clone();
    turned.status = RunStatus::Ok;
    assert_eq!(
        commitment(&turned),
        turned.commitment,
        "status is implied by the payouts"
    );
}
