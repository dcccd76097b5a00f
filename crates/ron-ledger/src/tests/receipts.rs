//! Receipt files: proved without the ledger, and refused when anything in them is changed.

use ron_crypto::sign::Ed25519Key;
use ron_files::SimDisk;
use ron_proto::ledger::{
    Entry, EntryAnswer, EntryKind, Hash64, HiddenPart, PrivatePart, ReceiptFile,
};
use ron_tlog::{Cosigner, Ed25519NoteSigner, Note, Policy, TlogProof, VerifierKey};
use serde_json::json;

use super::support::*;
use crate::answers::{self, LogEntry};
use crate::core::Kind;
use crate::engine::{Engine, read_entry};
use crate::receipt::{self, ReceiptFault};

fn signer() -> Ed25519NoteSigner {
    Ed25519NoteSigner::new("test/ledger", Ed25519Key::from_seed(&[5; 32])).unwrap()
}

/// A ledger with a payment that says something at sequence 5.
fn ledger() -> Engine {
    let mut e = open(&SimDisk::new());
    let payment = json!({"kind": "transfer", "tenant": "tenant-x", "principal": "principal-x", "key": "key-x",
        "from": "a", "to": "b", "asset": "ron", "amount_minor": "5", "nonce": 1, "memo": "memo-x",
        "metadata": {"name-x": "value-x"}, "reference": "order 17", "effective_at": "2031-02-03T04:05:06.789Z",
        "daily_ceiling": "1000"});
    let payment: Entry = serde_json::from_value(payment).unwrap();
    let mut all: Vec<Entry> = (0..4).map(|n| issue(&format!("i{n}"), "a", 9)).collect();
    all.push(payment);
    all.extend((0..7).map(|n| issue(&format!("j{n}"), "c", 9)));
    all.push(transfer("over", "a", "b", 1_000, 2));
    assert_eq!(commit(&mut e, all, false).len(), 13);
    e.take_checkpointer()
        .unwrap()
        .publish(&[&signer()])
        .unwrap();
    e
}

fn file(e: &Engine, seq: u64) -> ReceiptFile {
    let shared = e.shared();
    let (leaf, private) = shared.reader().record(seq).unwrap();
    let proof = TlogProof::parse(&shared.reader().proof(seq).unwrap()).unwrap();
    receipt::file(leaf, &private, proof, signer().verifier().to_string()).unwrap()
}

fn verify(json: &[u8], key: &VerifierKey) -> Result<receipt::Proven, ReceiptFault> {
    receipt::read(json).and_then(|file| receipt::verify(&file, key, None))
}

#[test]
fn a_receipt_file_proves_what_the_answer_said() {
    let e = ledger();
    for seq in 1..=12 {
        let file = file(&e, seq);
        let proven = receipt::verify(&file, signer().verifier(), None).unwrap();
        let (leaf, hash) = read_entry(e.shared().reader(), seq).unwrap();
        let answer = answers::answer(LogEntry::of(&leaf, hash));
        let EntryAnswer::Done {
            receipt, private, ..
        } = answer
        else {
            panic!("{answer:?}");
        };
        assert_eq!(
            (proven.receipt, proven.private),
            (receipt, private),
            "{seq}"
        );
        assert_eq!(proven.checkpoint.size, 14);
    }
    let refused = receipt::verify(&file(&e, 13), signer().verifier(), None);
    assert_eq!(refused, Err(ReceiptFault::Refused));
}

#[test]
fn every_changed_byte_of_a_receipt_file_is_refused() {
    let e = ledger();
    let good = file(&e, 5);
    let key = signer().verifier().clone();
    let json = serde_json::to_vec(&good).unwrap();
    verify(&json, &key).unwrap();
    for at in 0..json.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut changed = json.clone();
            changed[at] ^= flip;
            let read = receipt::read(&changed);
            assert!(
                verify(&changed, &key).is_err() || read.is_ok_and(|file| file == good),
                "byte {at}: {}",
                String::from_utf8_lossy(&changed[at.saturating_sub(20)..(at + 20).min(json.len())])
            );
        }
        assert!(verify(&json[..at], &key).is_err(), "cut at {at}");
    }
}

#[test]
fn a_receipt_file_is_of_one_log_and_under_one_policy() {
    let e = ledger();
    let good = file(&e, 5);
    let other = Ed25519NoteSigner::new("test/ledger", Ed25519Key::from_seed(&[6; 32])).unwrap();
    let said = receipt::verify(&good, other.verifier(), None);
    assert_eq!(said, Err(ReceiptFault::OtherLog("test/ledger".into())));
    // A forger names the trusted key and signs with another.
    let mut forged = good.clone();
    forged.checkpoint = e_checkpoint(&good, &other);
    let said = receipt::verify(&forged, signer().verifier(), None);
    assert!(matches!(said, Err(ReceiptFault::Checkpoint(_))), "{said:?}");
    // The leaf of another entry, with its own path or with this one.
    let mut swapped = good.clone();
    swapped.leaf = file(&e, 6).leaf;
    swapped.private = None;
    let said = receipt::verify(&swapped, signer().verifier(), None);
    assert!(matches!(said, Err(ReceiptFault::Path(_))), "{said:?}");
    // The private record of another entry.
    let mut swapped = good.clone();
    swapped.private = file(&e, 6).private;
    let said = receipt::verify(&swapped, signer().verifier(), None);
    assert_eq!(said, Err(ReceiptFault::Private));
    // A policy that demands a witness fails closed, and names the one that has cosigned.
    let none = Policy::parse(b"quorum none\n").unwrap();
    receipt::verify(&good, signer().verifier(), Some(&none)).unwrap();
    let witness = Cosigner::new("w.example", Ed25519Key::from_seed(&[7; 32])).unwrap();
    let policy = format!("witness w1 {}\nquorum w1\n", witness.verifier());
    let policy = Policy::parse(policy.as_bytes()).unwrap();
    let said = receipt::verify(&good, signer().verifier(), Some(&policy));
    assert!(matches!(said, Err(ReceiptFault::Policy(_))), "{said:?}");
    let mut cosigned = good.clone();
    let mut note = Note::parse(&good.checkpoint).unwrap();
    note.signatures
        .push(witness.cosign(&note.text, 1_800_000_000).unwrap());
    cosigned.checkpoint = note.to_string();
    let proven = receipt::verify(&cosigned, signer().verifier(), Some(&policy)).unwrap();
    assert_eq!(proven.witnesses, ["w1"]);
}

fn e_checkpoint(good: &ReceiptFile, by: &Ed25519NoteSigner) -> String {
    let checkpoint = ron_tlog::Checkpoint::read_unverified(&good.checkpoint, None).unwrap();
    checkpoint.sign(&[by]).unwrap()
}

fn hidden(part: &PrivatePart) -> PrivatePart {
    let PrivatePart::Shown(shown) = part else {
        panic!("{part:?}");
    };
    let hash = ron_crypto::hash::sha256(&[shown.salt.as_slice(), &shown.bytes].concat());
    PrivatePart::Hidden(HiddenPart { hash: Hash64(hash) })
}

#[test]
fn hidden_parts_prove_the_shown_one() {
    let e = ledger();
    let mut copy = file(&e, 5);
    let parts = copy.private.as_mut().unwrap();
    parts.caller = hidden(&parts.caller);
    parts.memo = parts.memo.as_ref().map(hidden);
    parts.metadata = parts.metadata.as_ref().map(hidden);
    let proven = receipt::verify(&copy, signer().verifier(), None).unwrap();
    assert_eq!(proven.private.reference.unwrap().as_str(), "order 17");
    assert_eq!((proven.private.idem, proven.maker), (None, None));
    let mut raw = copy.leaf.clone();
    let parts = copy.private.as_ref().unwrap();
    for part in [
        Some(&parts.caller),
        parts.memo.as_ref(),
        parts.metadata.as_ref(),
        parts.reference.as_ref(),
    ] {
        match part.unwrap() {
            PrivatePart::Shown(shown) => raw.extend_from_slice(&shown.bytes),
            PrivatePart::Hidden(hidden) => raw.extend_from_slice(&hidden.hash.0),
        }
    }
    for secret in [
        "tenant-x",
        "principal-x",
        "key-x",
        "memo-x",
        "name-x",
        "value-x",
    ] {
        let found = raw.windows(secret.len()).any(|w| w == secret.as_bytes());
        assert!(!found, "{secret}");
    }
    // A part that is left out, or shown with another salt, is not the record of the leaf.
    let mut less = copy.clone();
    less.private.as_mut().unwrap().memo = None;
    let said = receipt::verify(&less, signer().verifier(), None);
    assert_eq!(said, Err(ReceiptFault::Private));
}

#[test]
fn the_format_names_every_kind_that_has_receipts() {
    let format = include_str!("../../../../docs/formats/receipt.md");
    for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Abandon) {
        let named = format!("{} {}", *kind as u8, EntryKind::from(*kind));
        assert!(
            format.contains(&named),
            "docs/formats/receipt.md lacks {named}"
        );
    }
}
