//! Claim trees against vectors of OpenZeppelin's package, addresses, and the files of a run.

use std::fs;

use ron_files::Dir;
use serde_json::{Value, json};

use super::*;
use crate::calculus::RuleError;
use crate::inputs::import;
use crate::inputs::policy::VerifiedPolicy;
use crate::manifest::claims_file::tree_of;
use crate::manifest::reader::{Reader, prove};
use crate::manifest::tests::{document, pins, run, signed};
use crate::manifest::verify::{ProofError, check_proof, verify_run_dir};
use crate::manifest::{RunError, compute, dir};
use ron_proto::rewarder::{ImportKind, MANIFEST_CLAIMS};

fn claims_policy(edit: &Value) -> VerifiedPolicy {
    let mut fields = json!({"pay": "claims", "claims_account": "claims:test"});
    for (key, value) in edit.as_object().expect("an object") {
        fields[key] = value.clone();
    }
    signed(&document(&fields))
}

fn usage(rows: &[(&str, u64)]) -> crate::inputs::snapshot::Sealed {
    let mut text = String::from("account,metric,amount\n");
    for (account, amount) in rows {
        text.push_str(&format!("{account},m,{amount}\n"));
    }
    import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows")
}

fn numbered(n: usize) -> String {
    format!("0x{n:040x}")
}

fn many(count: usize) -> crate::inputs::snapshot::Sealed {
    let names: Vec<String> = (1..=count).map(numbered).collect();
    let rows: Vec<_> = names.iter().map(|name| (name.as_str(), 3)).collect();
    usage(&rows)
}

/// The example of the package's README, with the root that it prints.
#[test]
fn the_published_example_has_its_root() {
    let (one, two) = ("1".repeat(40), "2".repeat(40));
    let records: Vec<u8> = [
        (one, 5_000_000_000_000_000_000_u128),
        (two, 2_500_000_000_000_000_000),
    ]
    .into_iter()
    .flat_map(|(digits, amount)| {
        let mut record = format!("0x{digits}").into_bytes();
        record.extend_from_slice(&amount.to_be_bytes());
        record
    })
    .collect();
    let mut grower = Grower::default();
    grower.add(&records, 42 + 16).expect("addresses");
    let tree = grower.finish().expect("two payees");
    assert_eq!(
        tree.root().to_string(),
        "0xd4dee0beab2d53f2cc83e567171bd2820e49898130a22622b10ead383e90bd77"
    );
}

#[test]
fn addresses_are_twenty_bytes_in_a_spelling_that_ethereum_knows() {
    // The examples of EIP-55.
    for good in [
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "0xde709f2102306220921060314715629080e2fb77",
    ] {
        let bytes = address(good.as_bytes()).expect(good);
        assert_eq!(hex::encode(bytes), good[2..].to_lowercase());
        let lower = address(good.to_lowercase().as_bytes());
        assert_eq!(lower.expect("lower case"), bytes);
    }
    for (bad, why) in [
        ("0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "misspelt"),
        ("acct:alice", "not an address"),
        (
            "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAe",
            "not an address",
        ),
        (
            "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAedd0",
            "not an address",
        ),
        (
            "5aaeb6053f3e94c9b9a09f33669435e7ef1beaed00",
            "not an address",
        ),
    ] {
        let error = address(bad.as_bytes()).expect_err(bad).to_string();
        assert!(error.contains(why), "{bad}: {error}");
    }
}

#[test]
fn a_payee_that_is_no_address_or_stands_twice_stops_the_epoch() {
    let lower = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
    let mixed = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
    let other = numbered(1);
    for (rows, why) in [
        (vec![(lower, 1), ("acct:bob", 1)], "acct:bob"),
        (vec![(lower, 1), (other.as_str(), 2), (mixed, 3)], lower),
    ] {
        let (tenant, epoch) = ("default".parse().unwrap(), "e:1".parse().unwrap());
        let policy = claims_policy(&json!({}));
        let refused = compute(&tenant, &epoch, None, &usage(&rows), &policy, &());
        match refused {
            Err(RunError::Rules(RuleError::Payee(said))) => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
    }
    // An account that gets nothing need not be an address.
    let zero = usage(&[(lower, 1), ("acct:bob", 0)]);
    assert_eq!(
        run(&zero, &claims_policy(&json!({})))
            .manifest
            .totals
            .recipients,
        1
    );
    let others = usage(&[(lower, 1), ("acct:bob", 5)]);
    let only = claims_policy(&json!({"eligibility": {"prefixes": ["0x"]}}));
    assert_eq!(run(&others, &only).manifest.totals.recipients, 1);
}

/// Every shape of a tree up to 70 payees: each path holds, alone and from the stored form, and no path
/// holds for another amount.
#[test]
fn every_payee_of_every_shape_is_proven() {
    for count in 0..70 {
        let computed = run(&many(count), &claims_policy(&json!({})));
        let table = computed.table.expect("in memory");
        let tree = tree_of(&table).expect("addresses");
        let of = computed.manifest.claims.expect("a tree");
        assert_eq!((of.root, of.account.as_str()), (tree.root(), "claims:test"));
        assert_eq!(computed.manifest.version, MANIFEST_CLAIMS);
        let mut stored = Vec::new();
        tree.each_stored(|piece| {
            stored.extend_from_slice(piece);
            Ok(())
        })
        .expect("memory");
        let read = |from: u64, len| {
            stored
                .get(from as usize..from as usize + len)
                .map(<[u8]>::to_vec)
        };
        for payout in table.payouts().expect("rows") {
            let row = payout.index as usize;
            let path = tree.path(row).expect("a row");
            check_path(&payout, &path, &of.root).expect("it holds");
            assert_eq!(stored_path(table.len(), row, read), Some(path.clone()));
            let more = Payout {
                amount_minor: ron_proto::Amount(payout.amount_minor.0 + 1),
                ..payout
            };
            let refused = check_path(&more, &path, &of.root);
            assert_eq!(refused, Err(ClaimPathError::Root));
        }
        assert_eq!(tree.path(count), None);
    }
}

/// The files of the tree belong to the verified run, and a proof needs only the table.
#[test]
fn the_files_of_a_run_are_checked_and_the_stored_tree_is_only_a_shortcut() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = Dir::os(temp.path().join("run"));
    let (snapshot, policy) = (many(9), claims_policy(&json!({})));
    let computed = run(&snapshot, &policy);
    dir::write(&target, &computed, &snapshot, &policy).expect("writable");
    let mut pins = pins();
    pins.unsigned = true;
    verify_run_dir(&target, &pins).expect("untouched");
    let account = numbered(4).parse().expect("an account");
    let proof = prove(&target, &account).expect("paid");
    assert_eq!(
        (check_proof(&proof), proof.claim.is_empty()),
        (Ok(()), false)
    );
    for (name, needed) in [(dir::CLAIMS_TREE, false), (dir::CLAIMS, true)] {
        let path = target.file(name);
        let good = fs::read(&path).expect("there");
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).expect("writable");
            let error = verify_run_dir(&target, &pins).expect_err("changed");
            assert_eq!(error.file, name);
            assert_eq!(prove(&target, &account).expect("from the table"), proof);
        }
        fs::remove_file(&path).expect("there");
        assert_eq!(verify_run_dir(&target, &pins).is_err(), needed, "{name}");
        assert_eq!(prove(&target, &account).expect("from the table"), proof);
        fs::write(&path, &good).expect("writable");
    }
    let mut without = proof.clone();
    without.claim.clear();
    let missing = check_proof(&without);
    assert_eq!(missing, Err(ProofError::Claim(ClaimPathError::Root)));
    let json: Value =
        serde_json::from_slice(&fs::read(target.file(dir::CLAIMS)).expect("there")).expect("JSON");
    assert_eq!(json["tree"].as_array().map(Vec::len), Some(17));
    assert_eq!(json["values"][3]["value"], json!([account, "111"]));
    assert_eq!(Reader::open(&target).expect("open").len(), 9);
}

#[test]
fn rules_under_which_both_sides_would_pay_are_refused() {
    for (edit, why) in [
        (json!({"claims_account": null}), "needs claims_account"),
        (json!({"pay": "ledger"}), "needs pay"),
        (json!({"claims_account": "escrow:x"}), "escrow"),
        (
            json!({"claims_account": "pool:default/test"}),
            "second time",
        ),
        (
            json!({"residual": {"owner": "treasury:x"}}),
            "residual.owner",
        ),
    ] {
        let mut fields = document(&json!({"pay": "claims", "claims_account": "claims:test"}));
        for (key, value) in edit.as_object().expect("an object") {
            fields[key] = value.clone();
        }
        let policy = serde_json::from_value(fields).expect("a policy");
        let error = crate::calculus::check_policy(&policy).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
}
