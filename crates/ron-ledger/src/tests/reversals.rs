//! The offline check compares a reversal with the entry that it reverses. The logs are made by an
//! engine that is given wrong originals, as a ledger that lies would be.

use std::path::Path;
use std::sync::Arc;

use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_proto::ledger::{Details, Entry, Original, TxId};
use ron_proto::{Amount, Timestamp};
use ron_tlog::{Ed25519NoteSigner, Log, LogOptions, Record};

use super::support::*;
use crate::engine::{Engine, read_entry};
use crate::verify::{Fault, Report, verify_dir};

/// The first entry after those of [`ledger`]; it is in the second segment.
const NEXT: u64 = 271;
const TRANSFER: u64 = 2;
const CAPTURE: u64 = 4;
const PAYOUT: u64 = 7;
const REFUSED: u64 = 8;

fn signer() -> Ed25519NoteSigner {
    Ed25519NoteSigner::new("test/ledger", Ed25519Key::from_seed(&[5; 32])).unwrap()
}

fn txid(e: &Engine, seq: u64) -> TxId {
    read_entry(e.shared().reader(), seq).unwrap().0.txid()
}

/// A ledger with something of each kind that can be reversed, and some that cannot, in its first
/// segment.
fn ledger(dir: &Path) -> Engine {
    let mut e = Engine::open(Arc::new(OsDisk), dir, options(256), Timestamp(T0)).unwrap();
    let first = vec![
        issue("i", "a", 100),
        transfer("t", "a", "b", 40, 1),
        hold("h", "a", 20, 2, T0 + 1_000),
    ];
    commit(&mut e, first, false);
    let held = txid(&e, 3);
    let mut more = vec![
        capture("c", held, "b", 15),
        issue("p", "pool:t/x", 50),
        epoch_open("e", "pool:t/x", 30, 1, 1),
        payout("e", 0, "b", 30),
        transfer("over", "a", "b", 1_000, 3),
        eur("euro", "b", 50),
    ];
    more.extend((0..).map(|n| issue(&format!("i{n}"), "c", 1)).take(261));
    commit(&mut e, more, false);
    assert_eq!(e.shared().head() + 1, NEXT);
    e
}

fn eur(key: &str, to: &str, n: u128) -> Entry {
    let mut entry = issue(key, to, n);
    if let Entry::Issue { asset, .. } = &mut entry {
        *asset = "eur".parse().unwrap();
    }
    entry
}

/// What a reversal states of its original.
fn stated(from: &str, to: &str, asset: &str, n: u128) -> Option<Original> {
    Some(Original {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: asset.parse().unwrap(),
        amount_minor: Amount(n),
    })
}

fn reverse(key: &str, tx: TxId, n: Option<u128>, original: Option<Original>) -> Entry {
    Entry::Reverse {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        tx,
        amount_minor: n.map(Amount),
        original,
        details: Details::default(),
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    }
}

fn verified(dir: &Path, mut e: Engine) -> Result<Report, Fault> {
    e.take_checkpointer()
        .unwrap()
        .publish(&[&signer()])
        .unwrap();
    drop(e);
    verify_dir(dir, signer().verifier(), &mut |_, _| {})
}

/// Verifies the ledger with these entries appended; the fault must be that of entry `at`.
fn check(entries: impl FnOnce(&Engine) -> Vec<Entry>, at: u64, says: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut e = ledger(dir.path());
    let entries = entries(&e);
    commit(&mut e, entries, false);
    match verified(dir.path(), e) {
        Err(Fault::Entry { seq, why }) => {
            assert_eq!((seq, why.contains(says)), (at, true), "{why}");
        }
        other => panic!("{says}: {other:?}"),
    }
}

#[test]
fn true_reversals_verify() {
    let dir = tempfile::tempdir().unwrap();
    let mut e = ledger(dir.path());
    let of_transfer = || stated("b", "a", "ron", 40);
    let entries = vec![
        reverse("r1", txid(&e, TRANSFER), Some(10), of_transfer()),
        reverse("r2", txid(&e, TRANSFER), None, of_transfer()),
        reverse("r3", txid(&e, TRANSFER), None, of_transfer()),
        reverse("r4", txid(&e, CAPTURE), None, stated("b", "a", "ron", 15)),
        reverse(
            "r5",
            txid(&e, PAYOUT),
            Some(3),
            stated("b", "pool:t/x", "ron", 30),
        ),
        reverse("r6", txid(&e, REFUSED), None, None),
        reverse("r7", TxId::new(9_999, &[7; 32]), None, None),
        reverse("r8", TxId(txid(&e, TRANSFER).0 ^ 1), None, None),
    ];
    let outcomes = commit(&mut e, entries, false);
    let is_done: Vec<bool> = outcomes.iter().map(done).collect();
    assert_eq!(
        is_done,
        [true, true, false, true, true, false, false, false]
    );
    let report = verified(dir.path(), e).unwrap();
    assert_eq!(report.entries, NEXT + 7);
}

#[test]
fn a_reversal_that_states_another_original_is_named() {
    let one = |at: u64, original: Option<Original>, says: &str| {
        let entry = |e: &Engine| vec![reverse("r", txid(e, at), Some(1), original)];
        check(entry, NEXT, says);
    };
    let of = stated;
    one(
        TRANSFER,
        of("c", "a", "ron", 40),
        "entry 2 credited c, but that is b",
    );
    one(
        TRANSFER,
        of("b", "c", "ron", 40),
        "entry 2 was paid by c, but that is a",
    );
    one(
        TRANSFER,
        of("b", "a", "eur", 40),
        "entry 2 moved eur, but that is ron",
    );
    one(
        TRANSFER,
        of("b", "a", "ron", 41),
        "moved 41 minor units, but that is 40 minor units",
    );
    one(
        TRANSFER,
        of("b", "a", "ron", 39),
        "moved 39 minor units, but that is 40 minor units",
    );
    one(
        TRANSFER,
        None,
        "because entry 2 cannot be reversed, but it can",
    );
    one(
        CAPTURE,
        of("b", "a", "ron", 20),
        "moved 20 minor units, but that is 15 minor units",
    );
    one(
        PAYOUT,
        of("b", "a", "ron", 30),
        "entry 7 was paid by a, but that is pool:t/x",
    );
    one(
        REFUSED,
        of("b", "a", "ron", 1_000),
        "entry 8, which was refused",
    );
    one(
        1,
        of("a", "c", "ron", 100),
        "entry 1, which is no transfer, capture or payout",
    );
    one(
        3,
        of("b", "a", "ron", 20),
        "entry 3, which is no transfer, capture or payout",
    );
}

#[test]
fn a_reversal_of_an_entry_that_is_not_there_is_named() {
    let other = |e: &Engine| {
        let tx = TxId(txid(e, TRANSFER).0 ^ 1);
        vec![reverse("r", tx, None, stated("b", "a", "ron", 40))]
    };
    check(other, NEXT, "entry 2, which has another id");
    for seq in [0, NEXT, NEXT + 1] {
        let later = |_: &Engine| {
            let tx = TxId::new(seq, &[7; 32]);
            let reversal = reverse("r", tx, None, stated("b", "a", "ron", 40));
            vec![reversal, transfer("later", "b", "a", 40, 1)]
        };
        check(later, NEXT, &format!("entry {seq}, which is not before it"));
    }
}

#[test]
fn a_reversal_of_a_reversal_and_the_first_of_several_are_named() {
    let several = |e: &Engine| {
        vec![
            reverse("r1", txid(e, CAPTURE), Some(1), stated("b", "a", "ron", 15)),
            reverse("r2", txid(e, CAPTURE), Some(1), stated("b", "c", "ron", 15)),
            reverse(
                "r3",
                txid(e, TRANSFER),
                Some(1),
                stated("b", "c", "ron", 40),
            ),
        ]
    };
    check(several, NEXT + 1, "entry 4 was paid by c");
    let dir = tempfile::tempdir().unwrap();
    let mut e = ledger(dir.path());
    let first = reverse("r1", txid(&e, CAPTURE), None, stated("b", "a", "ron", 15));
    commit(&mut e, vec![first], false);
    let back = reverse("r2", txid(&e, NEXT), None, stated("a", "b", "ron", 15));
    assert!(done(&commit(&mut e, vec![back], false)[0]));
    let fault = verified(dir.path(), e).unwrap_err();
    let why = format!("it reverses entry {NEXT}, which is no transfer, capture or payout");
    assert_eq!(fault, Fault::Entry { seq: NEXT + 1, why });
}

struct Copied(Vec<u8>, Vec<u8>);

impl Record for Copied {
    fn leaf(&self) -> &[u8] {
        &self.0
    }

    fn private(&self) -> &[u8] {
        &self.1
    }
}

/// Each of the two is right alone; a log that has both reverses more than there is.
#[test]
fn reversals_that_exceed_their_original_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let of_transfer = || stated("b", "a", "ron", 40);
    let mut a = ledger(&one);
    let first = reverse("r1", txid(&a, TRANSFER), Some(30), of_transfer());
    commit(&mut a, vec![first], false);
    let mut b = ledger(&two);
    let second = reverse("r2", txid(&b, TRANSFER), Some(11), of_transfer());
    commit(&mut b, vec![issue("other", "b", 1), second], false);
    let copy = |e: &Engine, seq| {
        let (leaf, private) = e.shared().reader().record(seq).unwrap();
        Copied(leaf, private)
    };
    let mut records: Vec<Copied> = (0..=NEXT).map(|seq| copy(&a, seq)).collect();
    records.push(copy(&b, NEXT + 1));
    let log_options = LogOptions {
        segment_entries: 256,
        ..LogOptions::new("test/ledger")
    };
    let forged = dir.path().join("forged/log");
    let mut log = Log::open(Arc::new(OsDisk), &forged, log_options).unwrap();
    log.append(&records).unwrap();
    log.publish_checkpoint(&signer()).unwrap();
    drop(log);
    let fault = verify_dir(&forged, signer().verifier(), &mut |_, _| {}).unwrap_err();
    assert!(
        matches!(&fault, Fault::Entry { seq, why } if *seq == NEXT + 1 && why.contains("another result")),
        "{fault}"
    );
}

#[test]
fn a_payout_of_several_assets_goes_back_to_the_pool_of_its_asset() {
    let in_eur = |mut entry: Entry, from: &str| {
        match &mut entry {
            Entry::EpochOpen {
                asset, from: pool, ..
            } => {
                *asset = "eur".parse().unwrap();
                *pool = from.parse().unwrap();
            }
            Entry::Payout { asset, .. } => *asset = "eur".parse().unwrap(),
            other => panic!("{other:?}"),
        }
        entry
    };
    for (pool, good) in [("pool:t/y", true), ("pool:t/x", false)] {
        let dir = tempfile::tempdir().unwrap();
        let mut e = ledger(dir.path());
        let before = e.shared().head();
        let funds = vec![issue("more", "pool:t/x", 50), eur("y", "pool:t/y", 50)];
        commit(&mut e, funds, false);
        let own = epoch_open("two", "pool:t/x", 10, 1, 2);
        commit(&mut e, vec![own.clone(), in_eur(own, "pool:t/y")], true);
        let paid = payout("two", 0, "b", 10);
        commit(&mut e, vec![paid.clone(), in_eur(paid, "")], false);
        let tx = txid(&e, before + 6);
        let back = reverse("back", tx, None, stated("b", pool, "eur", 10));
        commit(&mut e, vec![back], false);
        let verified = verified(dir.path(), e);
        assert_eq!(verified.is_ok(), good, "{pool}: {verified:?}");
    }
}
