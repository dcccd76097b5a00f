//! Manifests, tables, proofs and the run directory; the golden epochs.

use std::fs;
use std::path::{Path, PathBuf};

use ron_crypto::sign::Ed25519Key;
use ron_files::Dir;
use ron_proto::b64;
use ron_proto::policy::{PolicySig, digest_message, policy_message};
use ron_proto::rewarder::{ImportKind, ManifestSig, POLICY_KIND};
use serde_json::{Value, json};

use super::reader::{ProveError, prove};
use super::verify::{Pins, check_proof, verify_run_dir};
use super::*;
use crate::inputs::import;
use crate::inputs::policy;
use ron_service::pinned::{KeyRing, PinnedKey};
use ron_service::signed_policy::signature_bytes;

const POLICY_KEY: &str = "ron/policy/ed25519/6f3b1c1e-0000-4000-8000-000000000001#v1";
const MANIFEST_KEY: &str = "ron/manifest/ed25519/6f3b1c1e-0000-4000-8000-000000000002#v1";

fn key(seed: u8) -> Ed25519Key {
    Ed25519Key::from_seed(&[seed; 32])
}

pub(super) fn pins() -> Pins {
    let ring = |name: &str, seed| {
        KeyRing::new(vec![PinnedKey::new(Some(name.into()), key(seed).public())])
    };
    Pins {
        policy: ring(POLICY_KEY, 1),
        manifest: ring(MANIFEST_KEY, 2),
        unsigned: false,
    }
}

pub(super) fn signed(document: &Value) -> VerifiedPolicy {
    let message = policy_message(POLICY_KIND, &jcs::canonicalize(document));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: POLICY_KEY.into(),
        value: b64::url(&key(1).sign(&message)),
    };
    policy::verify(document, &signature, &pins().policy).expect("signed by a pinned key")
}

pub(super) fn document(edit: &Value) -> Value {
    let mut document = json!({
        "format": 1, "tenant": "default", "id": "test", "version": 3, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/test", "amount_minor": "1000"},
        "metrics": {"m": {"weight": "1", "class": "metering"}},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/test"}
    });
    for (key, value) in edit.as_object().expect("an object of replaced fields") {
        document[key] = value.clone();
    }
    document
}

pub(super) fn snapshot(rows: usize) -> Sealed {
    let mut text = String::from("account,metric,amount\n");
    for row in 0..rows {
        text.push_str(&format!("acc:{row},m,{}\n", row * 7 + 1));
    }
    import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows")
}

pub(super) fn run(snapshot: &Sealed, policy: &VerifiedPolicy) -> Computed {
    let tenant = "default".parse().expect("a tenant");
    compute(
        &tenant,
        &"e:1".parse().expect("an epoch"),
        None,
        snapshot,
        policy,
        &(),
    )
    .expect("a run")
}

/// Signs a written run.
pub(super) fn sign(dir: &Dir, manifest: &RunManifest) {
    dir::add(dir, dir::RUN_SIG, &sign_manifest(manifest)).expect("writable");
}

fn sign_manifest(manifest: &RunManifest) -> Vec<u8> {
    let signature = key(2).sign(&digest_message("blake3", &manifest.commitment.0));
    let document = ManifestSig {
        alg: "ed25519".into(),
        key: MANIFEST_KEY.into(),
        value: b64::url(&signature),
        receipt: None,
    };
    dir::to_json(&document).expect("strings")
}

pub(super) fn write_run(target: &Path, rows: usize, edit: &Value) -> Computed {
    let (snapshot, policy) = (snapshot(rows), signed(&document(edit)));
    let computed = run(&snapshot, &policy);
    let target = Dir::os(target);
    dir::write(&target, &computed, &snapshot, &policy).expect("a writable directory");
    let signature = sign_manifest(&computed.manifest);
    dir::add(&target, dir::RUN_SIG, &signature).expect("writable");
    computed
}

#[test]
fn a_written_run_verifies_and_a_changed_byte_is_named() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = temp.path().join("tenant-default/epoch-e:1");
    let computed = write_run(&target, 5, &json!({"min_payout_minor": "100"}));
    let verified = verify_run_dir(&Dir::os(&target), &pins()).expect("untouched");
    assert_eq!(verified.manifest, computed.manifest);
    assert!(
        verified.manifest.totals.residual_minor.0 > 0,
        "the minimum must bite here"
    );
    for file in [
        dir::RUN,
        dir::RUN_SIG,
        dir::PAYOUTS,
        dir::TREE,
        dir::SNAPSHOT,
        dir::POLICY,
        dir::POLICY_SIG,
    ] {
        let path = target.join(file);
        let good = fs::read(&path).expect("there");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).expect("writable");
            let error = verify_run_dir(&Dir::os(&target), &pins()).expect_err(file);
            let named = error.file == file
                || (file == dir::POLICY_SIG && error.file == dir::POLICY)
                || (file == dir::RUN && error.file == dir::RUN_SIG);
            assert!(named, "{file} byte {at}: {error}");
        }
        fs::remove_file(&path).expect("there");
        let optional = file == dir::TREE; // made again from the table
        let again = verify_run_dir(&Dir::os(&target), &pins());
        assert_eq!(again.is_ok(), optional, "{file} removed");
        fs::write(&path, good).expect("writable");
    }
    verify_run_dir(&Dir::os(&target), &pins()).expect("restored");
    let swapped = Pins {
        policy: pins().manifest,
        manifest: pins().policy,
        unsigned: false,
    };
    assert!(
        verify_run_dir(&Dir::os(&target), &swapped).is_err(),
        "other keys are no pins"
    );
}

#[test]
fn a_manifest_signed_over_other_numbers_fails() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = temp.path().join("run");
    let computed = write_run(&target, 5, &json!({}));
    let mut forged = computed.manifest;
    forged.totals.payout_minor = Amount(999);
    forged.totals.residual_minor = Amount(1);
    forged.commitment = commitment(&forged);
    let run = Dir::os(&target);
    let json = dir::to_json(&forged).expect("json");
    dir::add(&run, dir::RUN, &json).expect("writable");
    dir::add(&run, dir::RUN_SIG, &sign_manifest(&forged)).expect("writable");
    let error = verify_run_dir(&Dir::os(&target), &pins()).expect_err("even with the right key");
    assert_eq!(error.file, dir::RUN);
}

#[test]
fn replacing_a_run_leaves_only_the_new_one() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = temp.path().join("run");
    write_run(&target, 5, &json!({}));
    let second = write_run(&target, 6, &json!({}));
    assert_eq!(
        verify_run_dir(&Dir::os(&target), &pins())
            .expect("good")
            .manifest,
        second.manifest
    );
    assert_eq!(
        fs::read_dir(temp.path()).expect("there").count(),
        1,
        "no leftovers"
    );
}

#[test]
fn the_residuals_owner_gets_the_last_row() {
    let edit = json!({"min_payout_minor": "100", "residual": {"owner": "treasury:main"}});
    let computed = run(&snapshot(5), &signed(&document(&edit)));
    let table = computed.table.expect("paid");
    let totals = computed.manifest.totals;
    assert!(table.residual_row());
    assert_eq!(table.total(), 1_000, "the whole pool moves");
    assert_eq!(table.len() as u64, totals.recipients + 1);
    let payouts = table.payouts().expect("readable");
    let last = payouts.last().expect("not empty");
    assert_eq!(
        (last.account.as_str(), last.amount_minor),
        ("treasury:main", totals.residual_minor)
    );
    let found = table.find(&last.account).expect("readable");
    assert_eq!(found, Some(table.len() - 1));
}

#[test]
fn an_idle_epoch_pays_nobody() {
    let computed = run(&snapshot(0), &signed(&document(&json!({}))));
    let payouts = computed.manifest.payouts.expect("not quarantined");
    assert_eq!((payouts.count, payouts.total_minor), (0, Amount::ZERO));
    assert_eq!(computed.manifest.totals.residual_minor, Amount(1_000));
}

#[test]
fn run_keys_keep_their_parts_apart() {
    let key = |tenant: &str, epoch: &str, snapshot: u8, policy: u8, adjusts: Option<&str>| {
        let adjusts = adjusts.map(|epoch| epoch.parse().expect("an epoch"));
        let (tenant, epoch) = (
            tenant.parse().expect("a tenant"),
            epoch.parse().expect("an epoch"),
        );
        run_key(
            &tenant,
            &epoch,
            adjusts.as_ref(),
            &ContentId([snapshot; 32]),
            &ContentId([policy; 32]),
            RuleSet::Hamilton1,
        )
    };
    let keys = [
        key("ab", "c", 1, 2, None),
        key("a", "bc", 1, 2, None),
        key("ab", "c", 2, 1, None),
        key("ab", "d", 1, 2, None),
        key("ab", "c", 1, 2, Some("d")),
        key("ab", "d", 1, 2, Some("c")),
    ];
    for (at, one) in keys.iter().enumerate() {
        assert!(!keys[at + 1..].contains(one));
    }
}

#[test]
fn unsigned_and_altered_policies_are_refused() {
    let good = signed(&document(&json!({})));
    let sig = signature_bytes(&good.signature).expect("json");
    let ring = pins().policy;
    let check = |json: &[u8], sig: Option<&[u8]>, want: &str| {
        let error = policy::verify_stored(json, sig, &ring)
            .expect_err(want)
            .to_string();
        assert!(error.contains(want), "{error}");
    };
    policy::verify_stored(&good.canonical, Some(&sig), &ring).expect("untouched");
    check(&good.canonical, None, "unsigned");
    check(&good.canonical, Some(b"{}"), "not a policy signature");
    check(b"{}", Some(&sig), "altered");
    let mut spaced = good.canonical.clone();
    spaced.push(b'\n');
    check(&spaced, Some(&sig), "not canonical");
    let richer = String::from_utf8(good.canonical.clone())
        .expect("JSON")
        .replace("1000", "1001");
    check(
        richer.as_bytes(),
        Some(&sig),
        "the signature does not match",
    );
    let other_kind = policy_message("wallet", &good.canonical);
    let mut forged = good.signature.clone();
    forged.value = b64::url(&key(1).sign(&other_kind));
    check(
        &good.canonical,
        Some(&signature_bytes(&forged).expect("json")),
        "does not match",
    );
    forged.key = "ron/policy/ed25519/6f3b1c1e-0000-4000-8000-000000000009#v1".into();
    check(
        &good.canonical,
        Some(&signature_bytes(&forged).expect("json")),
        "pinned key",
    );
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The committed figures come from `tests/recompute/rewarder_check.py`, which shares no code
/// with this crate.
#[test]
fn golden_epochs_come_out_bit_for_bit() {
    let text = fs::read(repository("examples/rocketpool/policy.json")).expect("committed");
    let policy = signed(&serde_json::from_slice(&text).expect("a policy"));
    let golden = fs::read(repository(
        "crates/svc-rewarder/tests/golden/rocketpool.json",
    ));
    let golden: Vec<Value> = serde_json::from_slice(&golden.expect("committed")).expect("JSON");
    assert_eq!(golden.len(), 5);
    for want in golden {
        let name = want["epoch_id"].as_str().expect("a name").to_owned();
        let csv = fs::File::open(repository(&format!("examples/rocketpool/{name}.csv")));
        let sealed = import::csv(csv.expect("committed"), ImportKind::Totals).expect("good rows");
        let epoch = name.parse().expect("an epoch");
        let tenant = "default".parse().expect("a tenant");
        let got = compute(&tenant, &epoch, None, &sealed, &policy, &()).expect("a run");
        let manifest = serde_json::to_value(&got.manifest).expect("JSON");
        assert_eq!(manifest, want["manifest"], "{name}");
        let table = got.table.expect("paid");
        assert_eq!(
            ContentId::of(&table.bytes().expect("in memory")).to_string(),
            want["payouts_cid"],
            "{name}"
        );
    }
}

#[test]
fn pools_and_amounts_up_to_the_last_bit() {
    let max = u128::MAX.to_string();
    let text = format!("account,metric,amount\na,m,{}\nb,m,{}\n", u128::MAX - 1, 1);
    let sealed = import::csv(text.as_bytes(), ImportKind::Totals).expect("2^128-1 in all");
    for (rule_set, want) in [("hamilton/1", 0), ("floor/1", 0)] {
        let edit = json!({"rule_set": rule_set, "pool": {"account": "pool:default/test", "amount_minor": max}});
        let computed = run(&sealed, &signed(&document(&edit)));
        let payouts = computed.table.expect("paid").payouts().expect("readable");
        let paid: Vec<u128> = payouts.iter().map(|payout| payout.amount_minor.0).collect();
        assert_eq!(paid, [u128::MAX - 1, 1], "exact shares of exact amounts");
        assert_eq!(computed.manifest.totals.residual_minor.0, want);
    }
    let text = format!("account,metric,amount\na,m,{max}\nb,m,1\n");
    let error = import::csv(text.as_bytes(), ImportKind::Totals).expect_err("2^128");
    assert_eq!(
        error.to_string(),
        "line 3: the sum of this metric passes 2^128-1"
    );
}

#[test]
fn every_verifier_detects_a_payout_moved_between_accounts() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = temp.path().join("run");
    let computed = write_run(&target, 9, &json!({}));
    let victim = "acc:8".parse().expect("an account");
    let thief = "acc:7".parse().expect("an account");
    let honest = prove(&Dir::os(&target), &victim).expect("a payee");
    let good = fs::read(target.join(dir::PAYOUTS)).expect("there");
    let mut bad = good.clone();
    let record = 5 + 16;
    let amount_at = |row: usize| 72 + row * record + 5 + 15;
    bad[amount_at(8)] -= 1;
    bad[amount_at(7)] += 1;
    let hash = blake3::hash(&bad[72..]);
    bad[40..72].copy_from_slice(hash.as_bytes());
    fs::write(target.join(dir::PAYOUTS), &bad).expect("writable");
    Table::parse(bad).expect("the table in itself is well-formed");
    let error = verify_run_dir(&Dir::os(&target), &pins()).expect_err("moved");
    assert_eq!(error.file, dir::PAYOUTS);
    for account in [&victim, &thief] {
        assert!(matches!(
            prove(&Dir::os(&target), account),
            Err(ProveError::Dir(_))
        ));
    }
    fs::remove_file(target.join(dir::TREE)).expect("there");
    assert!(
        matches!(prove(&Dir::os(&target), &victim), Err(ProveError::Dir(_))),
        "without the tree too"
    );
    assert_eq!(honest.manifest, computed.manifest);
    check_proof(&honest).expect("the proof from before still stands");
    let mut moved = honest;
    moved.payout.amount_minor.0 -= 1;
    assert!(check_proof(&moved).is_err());
}

#[test]
fn hostile_policies_are_refused_with_their_place() {
    let good = signed(&document(&json!({})));
    let sig = signature_bytes(&good.signature).expect("json");
    let text = String::from_utf8(good.canonical).expect("JSON");
    let ring = pins().policy;
    for (edit, want) in [
        (
            text.replace("\"version\":3", "\"version\":3,\"version\":3"),
            "column",
        ),
        (text.replace("\"version\":3", "\"version\":03"), "column"),
        (text[..text.len() - 1].to_owned(), "column"),
        (format!("{}{}", "[".repeat(100), "]".repeat(100)), "column"),
        (format!("{text}{{}}"), "column"),
        (
            text.replace("\"version\":3", "\"version\":4"),
            "does not match",
        ),
        (
            text.replace("\"version\":3", "\"version\": 3"),
            "not canonical",
        ),
    ] {
        let error = policy::verify_stored(edit.as_bytes(), Some(&sig), &ring).expect_err(want);
        assert!(error.to_string().contains(want), "{edit}: {error}");
    }
    // Correctly signed, but not a policy: the error names the position and never repeats the input.
    for (edit, want) in [
        (json!({"surprise": 1}), "unknown field"),
        (json!({"rule_set": "hamilton/9"}), "column"),
        (
            json!({"pool": {"account": "pool:default/test", "amount_minor": "-1"}}),
            "column",
        ),
        (
            json!({"metrics": {"m": {"weight": "2/4", "class": "metering"}}}),
            "column",
        ),
        (
            json!({"metrics": {"m": {"weight": "1.5", "class": "metering"}}}),
            "column",
        ),
    ] {
        let document = document(&edit);
        let message = policy_message(POLICY_KIND, &jcs::canonicalize(&document));
        let signature = PolicySig {
            alg: "ed25519".into(),
            key: POLICY_KEY.into(),
            value: b64::url(&key(1).sign(&message)),
        };
        let error = policy::verify(&document, &signature, &ring).expect_err(want);
        assert!(error.to_string().contains(want), "{document}: {error}");
    }
}

/// One small epoch per rule set, one with claims, and one that corrects the first, byte for byte: the files are made by
/// `tests/recompute/rewarder_check.py` and explained in `docs/formats/rewarder.md`.
#[test]
fn small_golden_epochs_come_out_byte_for_byte() {
    for name in ["hamilton-1", "floor-1", "claims", "correction"] {
        let dir = repository("crates/svc-rewarder/tests/golden").join(name);
        let read = |file: &str| fs::read(dir.join(file)).expect("committed");
        let sealed = import::csv(read("usage.csv").as_slice(), ImportKind::Totals).expect("good");
        assert_eq!(
            sealed.bytes().expect("in memory").as_ref(),
            read(dir::SNAPSHOT),
            "{name}"
        );
        let document: Value = serde_json::from_slice(&read(dir::POLICY)).expect("JSON");
        let policy = signed(&document);
        assert_eq!(policy.canonical, read(dir::POLICY), "{name}");
        let tenant = "default".parse().expect("a tenant");
        let epoch = name.parse().expect("an epoch");
        let first = Dir::os(repository("crates/svc-rewarder/tests/golden/hamilton-1"));
        let earlier = correction::Earlier::open(&first).expect("an epoch");
        let adjusts =
            (name == "correction").then(|| Adjusts::of(&earlier, Target::Memory(Vec::new())));
        let computed = compute(&tenant, &epoch, adjusts, &sealed, &policy, &()).expect("a run");
        if let Some(accounts) = &computed.accounts {
            let bytes = accounts.bytes().expect("in memory");
            assert_eq!(bytes.as_ref(), read(dir::CORRECTION));
        }
        let table = computed.table.expect("paid");
        assert_eq!(
            table.bytes().expect("in memory").as_ref(),
            read(dir::PAYOUTS),
            "{name}"
        );
        assert_eq!(
            dir::to_json(&computed.manifest).expect("JSON"),
            read(dir::RUN),
            "{name}"
        );
    }
}

/// The content of a Parquet export: index, account, amount.
#[cfg(feature = "parquet")]
fn exported(dir: &Path) -> Vec<(u64, String, String)> {
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{Decimal128Type, UInt64Type};
    let reader = super::reader::Reader::open(&Dir::os(dir)).expect("a run");
    let mut bytes = Vec::new();
    super::export::parquet(&reader, &mut bytes, |_| {}).expect("written");
    let file = bytes::Bytes::from(bytes);
    let batches = parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(file, 700);
    let mut rows = Vec::new();
    for batch in batches.expect("a Parquet file") {
        let batch = batch.expect("whole");
        for row in 0..batch.num_rows() {
            let amount = match batch.column(2).as_primitive_opt::<Decimal128Type>() {
                Some(amounts) => amounts.value(row).to_string(),
                None => batch.column(2).as_string::<i32>().value(row).to_owned(),
            };
            rows.push((
                batch.column(0).as_primitive::<UInt64Type>().value(row),
                batch.column(1).as_string::<i32>().value(row).to_owned(),
                amount,
            ));
        }
    }
    rows
}

#[cfg(feature = "parquet")]
#[test]
fn a_parquet_export_holds_every_payout() {
    let temp = tempfile::tempdir().expect("a directory");
    for (name, pool) in [("small", "1000000"), ("large", &u128::MAX.to_string())] {
        let dir = temp.path().join(name);
        let edit = json!({"pool": {"account": "pool:default/test", "amount_minor": pool}});
        write_run(&dir, 900, &edit);
        let reader = super::reader::Reader::open(&Dir::os(&dir)).expect("a run");
        let payouts = reader.range(0, reader.len()).expect("readable");
        let want: Vec<_> = payouts
            .iter()
            .map(|p| (p.index, p.account.to_string(), p.amount_minor.to_string()))
            .collect();
        assert!(want.len() > 800, "{name}");
        assert_eq!(exported(&dir), want, "{name}");
    }
}
