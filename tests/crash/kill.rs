//! `kill -9` at random moments while the demo and a paying client run: nothing acknowledged is
//! lost, nothing is paid twice, and the demo finishes in the end.

use std::process::{Command, Stdio};
use std::time::Duration;

use ron_client::{Credential, KmsClient};
use ron_kernel::Deadline;
use ron_kms::Leaf;
use ron_proto::kms::{CreateKey, PayloadPolicy, SignRequest};
use ron_proto::ledger::Details;
use ron_proto::values::{Alg, Kid, OpId};
use ron_proto::wallet::{IssueMoney, Transaction};
use ron_tests::{CALL, Draws, Fleet, number, ok, ron_binary};

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_paid_twice() {
    let mut draws = Draws::seeded();
    let mut fleet = Fleet::start();
    let mut journal = Journal {
        key: journal_key(&fleet),
        receipts: Vec::new(),
        signatures: Vec::new(),
    };
    for round in 0..number("RON_KILL_ROUNDS", 50) {
        let mut demo = Command::new(ron_binary())
            .args(["demo", "--json", "--data-dir"])
            .arg(fleet.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Duration::from_millis(20 + draws.below(1_200));
        pay_until(&fleet, round, until, &mut journal);
        fleet.kill();
        let _ = demo.kill();
        let _ = demo.wait();
        let dir = fleet.keep_dir();
        fleet = Fleet::start_in(dir);
    }
    println!(
        "{} acknowledged receipts and {} signatures over {} kills",
        journal.receipts.len(),
        journal.signatures.len(),
        number("RON_KILL_ROUNDS", 50)
    );
    assert!(!journal.receipts.is_empty() && !journal.signatures.is_empty());
    let wallet = fleet.wallet();
    for (key, receipt) in &journal.receipts {
        let mut found = wallet.tx(receipt.receipt.txid, Deadline::within(CALL));
        // What became of the transaction is no part of its receipt.
        if let Ok(found) = &mut found {
            found.now = None;
        }
        assert_eq!(
            found.as_ref(),
            Ok(receipt),
            "{key}: an acknowledged receipt is missing or differs"
        );
    }
    let paid = ok(&fleet.ron(&["demo", "--json"]));
    assert_eq!(paid.lines().count(), 5, "{paid}");
    assert_eq!(
        ok(&fleet.ron(&["demo", "--json"])),
        paid,
        "nothing more is paid"
    );
    for check in [
        ["audit", "verify"],
        ["ledger", "verify"],
        ["rewarder", "verify"],
    ] {
        ok(&fleet.ron(&check));
    }
    assert_eq!(fleet.stop(), Some(0));
    signatures_have_their_leaves(&fleet, &journal.signatures);
}

/// The responses a client received, kept outside the fleet.
struct Journal {
    /// The key that signs for the client.
    key: Kid,
    /// Idempotency key and receipt of each payment.
    receipts: Vec<(String, Transaction)>,
    /// Leaf index and signature of each signature.
    signatures: Vec<(u64, Vec<u8>)>,
}

fn kms(fleet: &Fleet) -> KmsClient {
    let token = fleet.token("ron-kms", None);
    let api = fleet.api("ron-kms");
    KmsClient::new(&api, Credential::bearer(&token), fleet.http.clone())
}

fn journal_key(fleet: &Fleet) -> Kid {
    let request = CreateKey {
        tenant: "default".parse().unwrap(),
        purpose: "journal".parse().unwrap(),
        alg: Alg::Ed25519,
        payload: PayloadPolicy::Any,
        exportable: false,
        derived: false,
        rotate_every: None,
        backend: None,
        op_id: OpId(uuid::Uuid::from_u128(7)),
        token: None,
    };
    let made = kms(fleet).create_key(&request, Deadline::within(ron_tests::CALL));
    made.unwrap().key
}

/// Every acknowledged signature is the one that its leaf records.
fn signatures_have_their_leaves(fleet: &Fleet, journal: &[(u64, Vec<u8>)]) {
    let verifiers = std::fs::read(fleet.dir().join("verifiers.json")).unwrap();
    let verifiers: serde_json::Value = serde_json::from_slice(&verifiers).unwrap();
    let vkey = verifiers["audit_vkey"].as_str().unwrap().parse().unwrap();
    let mut outputs = Vec::new();
    let mut on_entry = |_: u64, bytes: &[u8], _: &[u8]| {
        outputs.push(Leaf::parse(bytes)?.output_sha256);
        Ok(())
    };
    let dir = fleet.dir().join("ron-kms/data/audit");
    ron_tlog::verify_dir(&dir, &vkey, &mut on_entry, &mut |_, _| {}).unwrap();
    for (index, signature) in journal {
        let leaf = outputs.get(*index as usize).cloned().flatten();
        assert_eq!(
            leaf,
            Some(hex::encode(ron_crypto::hash::sha256(signature))),
            "leaf {index}: an acknowledged signature is missing or differs"
        );
    }
}

/// Pays one unit after the other, for this long and until one was answered; only answered payments
/// go into the journal.
fn pay_until(fleet: &Fleet, round: u64, until: Duration, journal: &mut Journal) {
    let (wallet, kms) = (fleet.wallet(), kms(fleet));
    let before = (journal.receipts.len(), journal.signatures.len());
    let (end, late) = (
        Deadline::within(until),
        Deadline::within(Duration::from_secs(60)),
    );
    let within = || Deadline::within(ron_tests::CALL);
    for n in 0_u32.. {
        let one_each = journal.receipts.len() > before.0 && journal.signatures.len() > before.1;
        if end.expired() && one_each {
            return;
        }
        assert!(!late.expired(), "nothing was answered within a minute");
        let key = format!("kill-{round}-{n}");
        let request = IssueMoney {
            to: "acct:journal".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: ron_proto::Amount(1),
            details: Details::default(),
        };
        if let Ok(receipt) = wallet.issue(&key.parse().unwrap(), &request, within()) {
            journal.receipts.push((key.clone(), receipt));
        }
        let sign = SignRequest::message(journal.key.clone(), key.into_bytes());
        if let Ok(answer) = kms.sign(&sign, within()) {
            let signature = answer.signatures[0].signature.as_slice().to_vec();
            journal.signatures.push((answer.receipt.index, signature));
        }
    }
}
