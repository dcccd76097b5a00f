//! Corrections: what is paid and what is overpaid, chains of them, and that the books close.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use ron_files::Dir;
use ron_proto::rewarder::{CorrectedPayee, ImportKind};
use serde_json::{Value, json};

use super::correction::{Earlier, Rows, accounts};
use super::explain::Explainer;
use super::laws_tests::{any_policy, csv_of, usage};
use super::reader::{Reader, prove};
use super::tests::{document, pins, run, sign, signed};
use super::verify::{check_proof, check_signed_proof, verify_run_dir};
use super::*;
use crate::inputs::import;

fn sealed(rows: &str) -> Sealed {
    let text = format!("account,metric,amount\n{rows}");
    import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows")
}

/// Computes `epoch` into a directory, and signs it. `earlier` is the directory of the epoch that it
/// corrects.
fn write(
    dir: &Path,
    epoch: &str,
    earlier: Option<&Path>,
    (usage, policy): (&Sealed, &VerifiedPolicy),
) -> Computed {
    let (tenant, epoch) = ("default".parse().expect("t"), epoch.parse().expect("e"));
    let earlier = earlier.map(|dir| Earlier::open(&Dir::os(dir)).expect("paid"));
    let memory = || Target::Memory(Vec::new());
    let adjusts = earlier.as_ref().map(|of| Adjusts::of(of, memory()));
    let computed = compute(&tenant, &epoch, adjusts, usage, policy, &()).expect("a run");
    let dir = Dir::os(dir);
    dir::write(&dir, &computed, usage, policy).expect("writable");
    sign(&dir, &computed.manifest);
    computed
}

/// The payouts of a run by account, a residual that is paid out among them.
fn paid(dir: &Path) -> BTreeMap<String, u128> {
    let reader = Reader::open(&Dir::os(dir)).expect("a run");
    let mut paid = BTreeMap::new();
    for row in reader.range(0, reader.len()).expect("readable") {
        *paid.entry(row.account.to_string()).or_default() += row.amount_minor.0;
    }
    paid
}

fn listed(dir: &Path) -> Vec<(String, u128, u128)> {
    let dir = Dir::os(dir);
    let manifest = verify::read_manifest(&dir).expect("a manifest");
    let accounts = accounts(&dir, &manifest)
        .expect("whole")
        .expect("a correction");
    let (mut rows, mut all) = (Rows::over(&accounts), Vec::new());
    while let Some(row) = rows.next().expect("readable") {
        let name = String::from_utf8(row.account).expect("text");
        all.push((name, row.paid, row.due));
    }
    all
}

#[test]
fn a_correction_pays_the_differences_and_lists_what_was_overpaid() {
    let temp = tempfile::tempdir().expect("a directory");
    let (first, fixed) = (temp.path().join("first"), temp.path().join("fixed"));
    let policy = signed(&document(&json!({})));
    // 1000 minor units by 1:3; right is 1:1:2.
    let wrong = sealed("acct:alice,m,1\nacct:mallory,m,3\n");
    write(&first, "2026-11", None, (&wrong, &policy));
    let right = sealed("acct:alice,m,1\nacct:bob,m,1\nacct:mallory,m,2\n");
    let computed = write(&fixed, "2026-11-fix", Some(&first), (&right, &policy));
    let manifest = &computed.manifest;
    assert_eq!(manifest.version, MANIFEST_CORRECTION);
    assert_eq!(
        manifest.adjusts.as_ref().map(EpochId::as_str),
        Some("2026-11")
    );
    let it = manifest.correction.expect("a correction");
    let before = verify::read_manifest(&Dir::os(&first)).expect("a manifest");
    assert_eq!(it.of, before.commitment);
    assert_eq!((it.paid_minor.0, it.due.payout_minor.0), (1000, 1000));
    assert_eq!((it.overpaid_minor.0, it.overpaid), (250, 1));
    let totals = manifest.totals;
    assert_eq!((totals.pool_minor.0, totals.payout_minor.0), (250, 250));
    assert_eq!((totals.residual_minor.0, totals.recipients), (0, 1));
    assert_eq!(paid(&fixed), BTreeMap::from([("acct:bob".to_owned(), 250)]));
    let row = |name: &str, paid, due| (name.to_owned(), paid, due);
    assert_eq!(
        listed(&fixed),
        [
            row("acct:alice", 250, 250),
            row("acct:bob", 0, 250),
            row("acct:mallory", 750, 500)
        ]
    );
    // Old, new and difference, for everyone.
    let explainer = Explainer::open(&Dir::os(&fixed), &()).expect("a run");
    for (name, before, due) in listed(&fixed).into_iter().chain([row("acct:eve", 0, 0)]) {
        let account: Account = name.parse().expect("an account");
        let why = explainer.explain(&account).expect("explained");
        let meant = CorrectedPayee::of(account.clone(), before, due);
        assert_eq!((why.paid_minor.0, why.correction), (due, Some(meant)));
    }
    // Offline, from its own directory, with the earlier one, and by a payee's proof.
    let dir = Dir::os(&fixed);
    verify_run_dir(&dir, &pins()).expect("verifies");
    let earlier = Earlier::open(&Dir::os(&first)).expect("paid");
    earlier.check_correction(&dir).expect("what was paid");
    let bob = "acct:bob".parse().expect("an account");
    let proof = prove(&dir, &bob).expect("a payee");
    check_signed_proof(&proof, &pins().manifest).expect("holds");
    let mut forged = proof;
    forged.manifest.correction.as_mut().expect("one").paid_minor = Amount(999);
    assert!(check_proof(&forged).is_err(), "the commitment covers it");
}

#[test]
fn a_correction_of_a_correction_counts_what_both_have_paid() {
    let temp = tempfile::tempdir().expect("a directory");
    let place = |name: &str| temp.path().join(name);
    let policy = signed(&document(&json!({})));
    write(
        &place("e"),
        "e",
        None,
        (&sealed("acc:a,m,1\nacc:b,m,1\n"), &policy),
    );
    let second = sealed("acc:a,m,1\nacc:c,m,1\n");
    write(&place("c1"), "c1", Some(&place("e")), (&second, &policy));
    assert_eq!(
        paid(&place("c1")),
        BTreeMap::from([("acc:c".to_owned(), 500)])
    );
    // Back to the first usage: nobody is owed anything, and the pool has paid 500 too much.
    let same = sealed("acc:a,m,1\nacc:b,m,1\n");
    let back = write(&place("c2"), "c2", Some(&place("c1")), (&same, &policy));
    let it = back.manifest.correction.expect("a correction");
    assert_eq!((it.paid_minor.0, it.overpaid_minor.0), (1500, 500));
    assert_eq!(back.manifest.totals.recipients, 0);
    let third = sealed("acc:c,m,3\nacc:d,m,1\n");
    let more = write(&place("c3"), "c3", Some(&place("c1")), (&third, &policy));
    let due = BTreeMap::from([("acc:c".to_owned(), 250), ("acc:d".to_owned(), 250)]);
    assert_eq!(paid(&place("c3")), due);
    assert_eq!(
        more.manifest.correction.expect("one").overpaid_minor.0,
        1000
    );
    for name in ["c1", "c2", "c3"] {
        verify_run_dir(&Dir::os(place(name)), &pins()).expect(name);
    }
    let earlier = Earlier::open(&Dir::os(place("c1"))).expect("paid");
    earlier
        .check_correction(&Dir::os(place("c3")))
        .expect("what was paid");
    let other = Earlier::open(&Dir::os(place("e"))).expect("paid");
    let refused = other
        .check_correction(&Dir::os(place("c3")))
        .expect_err("c1");
    assert_eq!(refused.file, dir::RUN);
}

#[test]
fn the_owner_of_the_residual_is_a_payee_like_others() {
    let temp = tempfile::tempdir().expect("a directory");
    let (first, fixed) = (temp.path().join("first"), temp.path().join("fixed"));
    let owned = |cap: &str, owner: &str| {
        let edit = json!({"caps": {"account_minor": cap}, "residual": {"owner": owner}});
        signed(&document(&edit))
    };
    let usage = sealed("acc:a,m,1\nacc:z,m,1\n");
    // Caps leave 400 to acc:k, and then 200 to acc:z, which has a share of its own.
    write(&first, "e", None, (&usage, &owned("300", "acc:k")));
    let policy = owned("400", "acc:z");
    let computed = write(&fixed, "c", Some(&first), (&usage, &policy));
    let row = |name: &str, paid, due| (name.to_owned(), paid, due);
    let all = [
        row("acc:a", 300, 400),
        row("acc:k", 400, 0),
        row("acc:z", 300, 600),
    ];
    assert_eq!(listed(&fixed), all);
    let it = computed.manifest.correction.expect("a correction");
    assert_eq!((it.due.residual_minor.0, it.overpaid_minor.0), (200, 400));
    assert_eq!(computed.manifest.totals.payout_minor.0, 400);
    let explainer = Explainer::open(&Dir::os(&fixed), &()).expect("a run");
    let why = explainer.explain(&"acc:z".parse().expect("an account"));
    let why = why.expect("explained");
    assert_eq!(
        (why.paid_minor.0, why.residual_minor),
        (400, Some(Amount(200)))
    );
    verify_run_dir(&Dir::os(&fixed), &pins()).expect("verifies");
}

#[test]
fn what_another_policy_paid_is_not_corrected() {
    let temp = tempfile::tempdir().expect("a directory");
    let policy = signed(&document(&json!({})));
    let usage = sealed("acc:a,m,1\n");
    write(temp.path(), "e", None, (&usage, &policy));
    let earlier = Earlier::open(&Dir::os(temp.path())).expect("paid");
    let (tenant, epoch) = ("default".parse().expect("t"), "c".parse().expect("e"));
    for (edit, want) in [
        (json!({"id": "other"}), "paid by policy \"test\""),
        (json!({"asset": "usd"}), "paid ron, and the policy pays usd"),
        (
            json!({"pay": "claims", "claims_account": "pool:default/claims"}),
            "one of the two pays claims",
        ),
    ] {
        let adjusts = Adjusts::of(&earlier, Target::Memory(Vec::new()));
        let policy = signed(&document(&edit));
        let refused = compute(&tenant, &epoch, Some(adjusts), &usage, &policy, &());
        let why = refused.expect_err(want).to_string();
        assert!(why.contains(want), "{why}");
    }
    // A manifest that names an epoch, and not what that has paid, is that of no correction.
    let named = "e".parse().expect("an epoch");
    let adjusts = Adjusts {
        epoch: &named,
        earlier: None,
    };
    let refused = compute(&tenant, &epoch, Some(adjusts), &usage, &policy, &());
    assert!(matches!(refused, Err(RunError::Correction(_))));
}

#[test]
fn an_address_is_not_paid_again_in_another_spelling() {
    let temp = tempfile::tempdir().expect("a directory");
    let (first, fixed) = (temp.path().join("first"), temp.path().join("fixed"));
    let policy = signed(&document(
        &json!({"pay": "claims", "claims_account": "claims:bridge"}),
    ));
    let (one, other) = (
        format!("0x{}", "ab".repeat(20)),
        format!("0x{}", "cd".repeat(20)),
    );
    let usage = |one: &str| sealed(&format!("{one},m,1\n{other},m,1\n"));
    write(
        &first,
        "e",
        None,
        (&sealed(&format!("{one},m,1\n")), &policy),
    );
    let earlier = Earlier::open(&Dir::os(&first)).expect("paid");
    let (tenant, epoch) = ("default".parse().expect("t"), "c".parse().expect("e"));
    let adjusts = Adjusts::of(&earlier, Target::Memory(Vec::new()));
    let upper = format!("0x{}", "AB".repeat(20));
    let refused = compute(&tenant, &epoch, Some(adjusts), &usage(&upper), &policy, &());
    let why = refused.expect_err("two spellings").to_string();
    assert!(
        why.contains("two spellings") && why.contains("paid before"),
        "{why}"
    );
    let computed = write(&fixed, "c", Some(&first), (&usage(&one), &policy));
    let claims = computed.manifest.claims.expect("a claim tree");
    assert_eq!(paid(&fixed), BTreeMap::from([(other.clone(), 500)]));
    let proof = prove(&Dir::os(&fixed), &other.parse().expect("an account"));
    check_proof(&proof.expect("a payee")).expect("holds");
    assert_ne!(claims.root.0, [0; 32]);
    verify_run_dir(&Dir::os(&fixed), &pins()).expect("verifies");
}

#[test]
fn a_changed_correction_is_refused_by_name() {
    let temp = tempfile::tempdir().expect("a directory");
    let (first, fixed) = (temp.path().join("first"), temp.path().join("fixed"));
    let policy = signed(&document(&json!({})));
    write(&first, "e", None, (&sealed("acc:a,m,1\n"), &policy));
    let usage = sealed("acc:a,m,1\nacc:b,m,1\n");
    write(&fixed, "c", Some(&first), (&usage, &policy));
    let file = fixed.join(dir::CORRECTION);
    let good = std::fs::read(&file).expect("there");
    let refused = || {
        verify_run_dir(&Dir::os(&fixed), &pins())
            .expect_err("changed")
            .file
    };
    let mut bad = good.clone();
    *bad.last_mut().expect("bytes") ^= 1;
    std::fs::write(&file, bad).expect("writable");
    assert_eq!(refused(), dir::CORRECTION);
    // Well-formed, and of other amounts.
    let other = import::csv(
        "account,metric,amount\nacc:a,due,500\nacc:a,paid,900\nacc:b,due,500\n".as_bytes(),
        ImportKind::Totals,
    );
    let other = other.expect("good rows");
    std::fs::write(&file, other.bytes().expect("small")).expect("writable");
    assert_eq!(refused(), dir::CORRECTION);
    std::fs::remove_file(&file).expect("there");
    assert_eq!(refused(), dir::CORRECTION);
    std::fs::write(&file, good).expect("writable");
    verify_run_dir(&Dir::os(&fixed), &pins()).expect("as it was");
}

fn of_one_policy(policy: &Value) -> VerifiedPolicy {
    let mut policy = policy.clone();
    // Pools whose sums over three epochs stay below 2^128.
    let pool: u128 = policy["pool"]["amount_minor"]
        .as_str()
        .expect("text")
        .parse()
        .expect("a number");
    policy["pool"]["amount_minor"] = (pool / 8 + 1).to_string().into();
    policy["caps"] = json!({});
    signed(&policy)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever the inputs of an epoch and of two corrections: everybody ends with the most that was
    /// ever due, nothing is lost or made, and each correction verifies from its own directory.
    #[test]
    fn corrections_conserve_money(inputs in prop::collection::vec((usage(), any_policy()), 3)) {
        let temp = tempfile::tempdir().expect("a directory");
        let place = |at: usize| temp.path().join(format!("e{at}"));
        let mut held: BTreeMap<String, u128> = BTreeMap::new();
        for (at, (rows, policy)) in inputs.iter().enumerate() {
            let text = csv_of(rows);
            let usage = import::csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
            let policy = of_one_policy(policy);
            let plain = run(&usage, &policy);
            let Some(table) = plain.table else { return Ok(()) };
            let mut due: BTreeMap<String, u128> = BTreeMap::new();
            for row in table.payouts().expect("readable") {
                *due.entry(row.account.to_string()).or_default() += row.amount_minor.0;
            }
            let earlier = (at > 0).then(|| place(at - 1));
            let computed = write(&place(at), &format!("e{at}"), earlier.as_deref(), (&usage, &policy));
            let dir = Dir::os(place(at));
            verify_run_dir(&dir, &pins()).expect("verifies");
            let payouts = paid(&place(at));
            if at == 0 {
                prop_assert_eq!(&payouts, &due);
                held = due;
                continue;
            }
            let it = computed.manifest.correction.expect("a correction");
            prop_assert_eq!(it.due, plain.manifest.totals);
            let sum = |of: &BTreeMap<String, u128>| of.values().sum::<u128>();
            prop_assert_eq!(it.paid_minor.0, sum(&held));
            prop_assert_eq!(sum(&due) + it.overpaid_minor.0, sum(&held) + sum(&payouts));
            prop_assert_eq!(computed.manifest.totals.payout_minor.0, sum(&payouts));
            for (account, due) in &due {
                let was = held.get(account).copied().unwrap_or(0);
                prop_assert_eq!(payouts.get(account).copied().unwrap_or(0), due.saturating_sub(was));
                held.insert(account.clone(), was.max(*due));
            }
            prop_assert!(payouts.keys().all(|account| due.contains_key(account)));
            let explainer = Explainer::open(&dir, &()).expect("a run");
            for (account, paid, due) in listed(&place(at)) {
                let account: Account = account.parse().expect("an account");
                let why = explainer.explain(&account).expect("explained");
                prop_assert_eq!(why.correction, Some(CorrectedPayee::of(account, paid, due)));
            }
            let before = Earlier::open(&Dir::os(place(at - 1))).expect("paid");
            before.check_correction(&dir).expect("what was paid");
        }
    }
}
