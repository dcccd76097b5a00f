//! Reward epochs: their pools, usage that is paid once, and manifests that are withdrawn.

use ron_proto::ledger::Entry;
use ron_proto::{ContentId, Timestamp};

use super::super::leaf::encode;
use super::corners::issue;
use super::*;

/// Opens an epoch of 10 minor units for two recipients.
pub(super) fn open(
    tenant: &str,
    epoch: &str,
    from: &str,
    source: u8,
    adjusts: Option<&str>,
) -> Result<Op, BadEntry> {
    let content = format!("b3:{}", "07".repeat(32));
    let mut entry = serde_json::json!({"kind": "epoch_open", "principal": "r", "tenant": tenant, "epoch": epoch,
        "from": from, "asset": "ron", "amount_minor": "10", "commitment": content, "sum_root": content,
        "recipients": 2, "source": format!("b3:{}", format!("{source:02x}").repeat(32))});
    if let Some(earlier) = adjusts {
        entry["adjusts"] = earlier.into();
    }
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts())
}

#[test]
fn an_epoch_is_funded_from_a_pool_of_its_tenant_alone() {
    for (tenant, pool, good) in [
        ("t", "pool:t/a", true),
        ("t", "pool:t/a/b", true),
        ("t", "pool:t/", false),
        ("t", "pool:t", false),
        ("t", "pool:tt/a", false),
        ("t", "pool:u/a", false),
        ("t", "pool:a", false),
        ("t", "pool:T/a", false),
        ("t", "acct:t/a", false),
        ("t", "t/a", false),
        ("a.b", "pool:a:b/c", true),
        ("a.b", "pool:a-b/c", false),
        ("a.b", "pool:a/b", false),
    ] {
        let made = open(tenant, "e", pool, 1, None);
        assert_eq!(made.is_ok(), good, "{tenant} from {pool}");
        if let Err(why) = made {
            assert_eq!(why.field, "from");
        }
    }
    // Such a leaf is not decoded either, so no log can contain one.
    let good = open("t", "e", "pool:t/a", 1, None).unwrap();
    let place = Place::default();
    let mut bytes = encode(1, Timestamp(1), place, &Verdict::Done(None), &good);
    let at = bytes.windows(8).position(|w| w == b"pool:t/a").unwrap();
    bytes[at + 5] = b'u';
    let why = Leaf::decode(&bytes, good.private()).unwrap_err();
    assert!(why.why.contains("pool"), "{why}");
}

#[test]
fn usage_is_paid_once_unless_the_paying_epoch_is_corrected_by_name() {
    let mut book = Book::default();
    let pools = ["pool:t/a", "pool:u/a"].map(|pool| issue(pool, pool, 100));
    book.commit(1, &[(pools.to_vec(), Atomicity::Independent)]);
    let paid = |by: &str| {
        let by = by.parse().unwrap();
        Verdict::Refused(Refusal::UsagePaid { by })
    };
    let no = Verdict::Refused;
    for (at, (tenant, epoch, source, adjusts, want)) in [
        ("t", "e1", 1, None, Verdict::Done(None)),
        ("t", "e2", 1, None, paid("e1")),
        ("t", "e3", 2, Some("e0"), no(Refusal::EpochUnknown)),
        ("t", "e3", 1, Some("e1"), Verdict::Done(None)),
        ("t", "e2", 1, Some("e1"), paid("e3")),
        ("t", "e2", 1, Some("e3"), Verdict::Done(None)),
        ("t", "e4", 1, None, paid("e2")),
        // An epoch is corrected once, also by other usage, which that correction pays as well.
        ("t", "e4", 2, Some("e1"), paid("e3")),
        ("t", "e4", 2, Some("e2"), Verdict::Done(None)),
        ("t", "e6", 2, None, paid("e4")),
        ("t", "e6", 2, Some("e2"), paid("e4")),
        ("t", "e6", 1, Some("e4"), paid("e2")),
        ("t", "e6", 7, Some("e2"), paid("e4")),
        // Usage of another tenant is separate.
        ("u", "e1", 1, None, Verdict::Done(None)),
        ("u", "e2", 1, Some("e2"), paid("e1")),
        ("u", "e5", 3, Some("e3"), no(Refusal::EpochUnknown)),
    ]
    .into_iter()
    .enumerate()
    {
        let op = match open(tenant, epoch, &format!("pool:{tenant}/a"), source, adjusts) {
            Ok(op) => op,
            Err(why) => {
                assert_eq!((why.field, adjusts), ("adjusts", Some(epoch)));
                continue;
            }
        };
        // From the image each time: paid usage is known after a restart.
        book.state = State::from_image(&image(&book.state)).unwrap();
        let said = book
            .commit(2, &[(vec![op], Atomicity::Independent)])
            .remove(0);
        let seq = book.state.seq();
        // A refused settlement entry has no leaf.
        let expected = match want {
            Verdict::Refused(why) => Outcome::Rejected(why),
            verdict @ Verdict::Done(_) => Outcome::Fresh {
                seq,
                verdict,
                batch: None,
            },
        };
        assert_eq!(said[0], expected, "step {at}");
    }
    // Opening an epoch again with the same fields changes nothing; with another source it is a
    // conflict.
    let again = open("t", "e1", "pool:t/a", 1, None).unwrap();
    let other = open("t", "e1", "pool:t/a", 9, None).unwrap();
    let said = book
        .commit(3, &[(vec![again, other], Atomicity::Independent)])
        .remove(0);
    assert!(matches!(said[0], Outcome::Known { .. }));
    assert_eq!(said[1], Outcome::Rejected(Refusal::EpochConflict));
    replays(&book);
}

#[test]
fn an_image_with_usage_paid_twice_is_refused() {
    let mut book = Book::default();
    let ops = vec![
        issue("k1", "pool:t/a", 100),
        open("t", "e1", "pool:t/a", 1, None).unwrap(),
        open("t", "e2", "pool:t/a", 9, None).unwrap(),
    ];
    book.commit(1, &[(ops, Atomicity::Independent)]);
    let mut bytes = image(&book.state);
    let at = bytes.windows(32).position(|w| w == [9; 32]).unwrap();
    bytes[at..at + 32].copy_from_slice(&[1; 32]);
    let why = State::from_image(&bytes).unwrap_err().to_string();
    assert!(
        why.contains("epoch t/e2 pays what epoch e1 has paid"),
        "{why}"
    );
}

#[test]
fn a_manifest_is_opened_or_withdrawn_whichever_comes_first() {
    let void = |epoch: &str, commitment: u8| {
        let entry = serde_json::json!({"kind": "epoch_void", "principal": "r", "tenant": "t", "epoch": epoch,
            "commitment": ContentId([commitment; 32])});
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
    };
    let opened = |epoch: &str, source: u8| open("t", epoch, "pool:t/a", source, None).unwrap();
    let mut book = Book::default();
    book.commit(
        1,
        &[(vec![issue("k1", "pool:t/a", 100)], Atomicity::Independent)],
    );
    let no = |why| Some(Outcome::Rejected(why));
    // `None` is a fresh entry that takes effect.
    for (at, (op, want)) in [
        (void("e1", 7), None),
        (opened("e1", 1), no(Refusal::EpochVoid)),
        (void("e1", 7), Some(Outcome::Known { seq: 2 })),
        // Another epoch may open with a manifest of this commitment, and another manifest is free.
        (opened("e2", 2), None),
        (void("e2", 7), no(Refusal::EpochOpened)),
        (void("e2", 8), None),
        (void("e1", 8), None),
        (opened("e1", 1), no(Refusal::EpochVoid)),
        (opened("e2", 2), Some(Outcome::Known { seq: 3 })),
    ]
    .into_iter()
    .enumerate()
    {
        // From the image each time: what is withdrawn is known after a restart.
        book.state = State::from_image(&image(&book.state)).unwrap();
        let said = book
            .commit(2, &[(vec![op], Atomicity::Independent)])
            .remove(0);
        let seq = book.state.seq();
        let fresh = Outcome::Fresh {
            seq,
            verdict: Verdict::Done(None),
            batch: None,
        };
        assert_eq!(said[0], want.unwrap_or(fresh), "step {at}");
    }
    replays(&book);
    // No image says both.
    let mut bytes = image(&book.state);
    let withdrawn = bytes.windows(32).rposition(|w| w == [8; 32]).unwrap();
    bytes[withdrawn..withdrawn + 32].copy_from_slice(&[7; 32]);
    let why = State::from_image(&bytes).unwrap_err().to_string();
    assert!(
        why.contains("epoch t/e2 is opened with a manifest"),
        "{why}"
    );
}

#[test]
fn a_payout_made_again_is_the_same_only_with_the_same_words() {
    let payout = |to: &str, n: &str, principal: &str| {
        let entry = serde_json::json!({"kind": "payout", "principal": principal, "tenant": "t", "epoch": "e", "index": 1,
            "to": to, "asset": "ron", "amount_minor": n});
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
    };
    let first = payout("b", "4", "r");
    assert!(
        payout("b", "4", "another").repeats(&first),
        "whoever sends it"
    );
    assert!(!payout("c", "4", "r").repeats(&first));
    assert!(!payout("b", "5", "r").repeats(&first));
}
