//! Proofs of payees: what they lead to, and what makes them fail.

use ron_files::Dir;
use ron_proto::rewarder::PayoutProof;
use ron_service::pinned::KeyRing;
use serde_json::json;

use super::commitment;
use super::reader::{ProveError, prove};
use super::tests::{pins, write_run};
use super::verify::{ProofError, check_proof, check_signed_proof};

#[test]
fn every_payee_has_a_proof_and_no_other_proof_passes() {
    let temp = tempfile::tempdir().expect("a directory");
    for rows in [1, 2, 3, 4, 5, 7, 8, 9, 17] {
        let target = temp.path().join(format!("run-{rows}"));
        let computed = write_run(&target, rows, &json!({}));
        let table = computed.table.expect("paid");
        assert_eq!(table.len(), rows);
        for (row, payout) in table.payouts().expect("readable").into_iter().enumerate() {
            let proof = prove(&Dir::os(&target), &payout.account).expect("a payee");
            assert_eq!(proof.payout, payout);
            assert_eq!(proof.manifest, computed.manifest);
            check_proof(&proof).expect("a true proof");
            let fails = |edit: &dyn Fn(&mut PayoutProof)| {
                let mut forged = proof.clone();
                edit(&mut forged);
                assert!(check_proof(&forged).is_err(), "row {row} of {rows}");
            };
            fails(&|proof| proof.payout.amount_minor.0 += 1);
            fails(&|proof| proof.payout.index += 1);
            fails(&|proof| proof.payout.account = "acc:thief".parse().expect("an account"));
            fails(&|proof| proof.manifest.commitment.0[0] ^= 1);
            fails(&|proof| proof.manifest.totals.payout_minor.0 += 1);
            fails(&|proof| proof.manifest.payouts = None);
            fails(&|proof| {
                let root = proof.manifest.payouts.as_mut().expect("paid");
                root.total_minor.0 += 1;
                proof.manifest.commitment = commitment(&proof.manifest);
            });
            if rows > 1 {
                fails(&|proof| proof.path[0].sum_minor.0 ^= 1);
                fails(&|proof| proof.path.truncate(proof.path.len() - 1));
                fails(&|proof| proof.path.push(proof.path[0].clone()));
            }
        }
        let nobody = "acc:nobody".parse().expect("an account");
        assert_eq!(prove(&Dir::os(&target), &nobody), Err(ProveError::NotPaid));
    }
}

#[test]
fn a_proof_of_another_run_is_refused() {
    let temp = tempfile::tempdir().expect("a directory");
    let (one, two) = (temp.path().join("one"), temp.path().join("two"));
    write_run(&one, 4, &json!({}));
    let pool = json!({"account": "pool:default/test", "amount_minor": "999"});
    let other = write_run(&two, 4, &json!({"pool": pool}));
    let account = "acc:1".parse().expect("an account");
    let mut proof = prove(&Dir::os(&one), &account).expect("a payee");
    assert_ne!(proof.manifest.payouts, other.manifest.payouts);
    proof.manifest = other.manifest;
    assert!(matches!(check_proof(&proof), Err(ProofError::Path(_))));
}

#[test]
fn a_proof_ends_in_a_signature_of_a_pinned_key() {
    let temp = tempfile::tempdir().expect("a directory");
    let target = temp.path().join("run");
    let computed = write_run(&target, 4, &json!({}));
    let account = "acc:1".parse().expect("an account");
    let keys = pins().manifest;
    let mut proof = prove(&Dir::os(&target), &account).expect("a payee");
    let signature = check_signed_proof(&proof, &keys).expect("signed");
    assert_eq!(Some(signature), proof.signatures.first());
    let refused = |proof: &PayoutProof, keys: &KeyRing| check_signed_proof(proof, keys).err();
    assert!(matches!(
        refused(&proof, &KeyRing::default()),
        Some(ProofError::Signature(_))
    ));
    // A manifest of other totals has another commitment, which nobody has signed.
    let mut other = proof.clone();
    other.manifest.totals.recipients += 1;
    other.manifest.commitment = commitment(&other.manifest);
    assert!(matches!(
        refused(&other, &keys),
        Some(ProofError::Signature(_))
    ));
    // A signature that does not verify takes nothing from one that does.
    proof.signatures.insert(0, proof.signatures[0].clone());
    proof.signatures[0].value = "AA".repeat(43);
    check_signed_proof(&proof, &keys).expect("signed");
    proof.signatures.clear();
    assert_eq!(refused(&proof, &keys), Some(ProofError::Unsigned));
    assert_eq!(proof.manifest.commitment, computed.manifest.commitment);
}
