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

/// Opens one asset of an epoch, with so many minor units for two recipients.
fn open_asset(epoch: &str, commitment: u8, asset: &str, minor: u128) -> Op {
    adjust_asset(epoch, commitment, asset, minor, None)
}

fn adjust_asset(
    epoch: &str,
    commitment: u8,
    asset: &str,
    minor: u128,
    adjusts: Option<&str>,
) -> Op {
    let content = |byte: u8| ContentId([byte; 32]);
    let mut entry = serde_json::json!({"kind": "epoch_open", "principal": "r", "tenant": "t", "epoch": epoch,
        "from": "pool:t/a", "asset": asset, "amount_minor": minor.to_string(), "commitment": content(commitment),
        "sum_root": content(minor as u8), "recipients": 2, "source": ContentId::of(epoch.as_bytes())});
    if let Some(earlier) = adjusts {
        entry["adjusts"] = earlier.into();
    }
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

fn pay(epoch: &str, asset: &str, index: u64, minor: u128) -> Op {
    let entry = serde_json::json!({"kind": "payout", "principal": "r", "tenant": "t", "epoch": epoch, "index": index,
        "to": format!("acct:{index}"), "asset": asset, "amount_minor": minor.to_string()});
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

fn close(epoch: &str, asset: Option<&str>) -> Op {
    let mut entry = serde_json::json!({"kind": "epoch_close", "principal": "r", "tenant": "t", "epoch": epoch,
        "commitment": ContentId([7; 32])});
    if let Some(asset) = asset {
        entry["asset"] = asset.into();
    }
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

fn issue_of(key: &str, asset: &str) -> Op {
    let entry = serde_json::json!({"kind": "issue", "tenant": "t", "principal": "p", "key": key, "to": "pool:t/a",
        "asset": asset, "amount_minor": "100"});
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

fn rich() -> Book {
    let mut book = Book::default();
    let ops = vec![issue_of("k1", "ron"), issue_of("k2", "usd")];
    book.commit(1, &[(ops, Atomicity::Independent)]);
    book
}

fn commit(book: &mut Book, ops: Vec<Op>, how: Atomicity) -> Vec<Outcome> {
    // From the image each time: what is opened and paid is known after a restart.
    book.state = State::from_image(&image(&book.state)).unwrap();
    book.commit(2, &[(ops, how)]).remove(0)
}

fn known(seqs: &[u64]) -> Vec<Outcome> {
    seqs.iter()
        .map(|seq| Outcome::Known { seq: *seq })
        .collect()
}

#[test]
fn an_epoch_opens_all_of_its_assets_or_none() {
    let mut book = rich();
    let opens = |usd: u128| {
        vec![
            open_asset("e1", 7, "ron", 10),
            open_asset("e1", 7, "usd", usd),
        ]
    };
    let refused = |at: usize, why: Refusal| {
        let mut all = vec![Outcome::Rejected(Refusal::LinkedFailed); 2];
        all[at] = Outcome::Rejected(why);
        all
    };
    // A pool that is short of one asset pays none, and writes no leaf.
    let before = book.state.seq();
    let said = commit(&mut book, opens(101), Atomicity::Linked);
    assert_eq!(said, refused(1, Refusal::InsufficientFunds));
    assert_eq!(book.state.seq(), before);
    let said = commit(&mut book, opens(20), Atomicity::Linked);
    assert!(said.iter().all(|it| matches!(it, Outcome::Fresh { .. })));
    for _ in 0..2 {
        let again = commit(&mut book, opens(20), Atomicity::Linked);
        assert_eq!(again, known(&[3, 4]));
    }
    // Another total, another set of assets, or an asset that comes later is a conflict.
    let said = commit(&mut book, opens(21), Atomicity::Linked);
    assert_eq!(said, refused(1, Refusal::EpochConflict));
    let first = open_asset("e1", 7, "ron", 10);
    let more = open_asset("e1", 7, "eur", 5);
    for later in [more.clone(), issue_of("k3", "eur"), more] {
        let moves = later.key().is_some();
        let said = commit(&mut book, vec![later], Atomicity::Independent);
        assert_eq!(matches!(said[0], Outcome::Fresh { .. }), moves, "{said:?}");
    }
    let third = vec![first.clone(), open_asset("e1", 7, "eur", 5)];
    let said = commit(&mut book, third, Atomicity::Linked);
    assert_eq!(said, refused(1, Refusal::EpochConflict));
    // The entry of one asset alone repeats what is there.
    let alone = commit(&mut book, vec![first], Atomicity::Independent);
    assert_eq!(alone, known(&[3]));
    replays(&book);
}

#[test]
fn the_assets_of_an_epoch_are_paid_and_closed_apart() {
    let mut book = rich();
    let opens = ["ron", "usd"].map(|asset| open_asset("e1", 7, asset, 10));
    commit(&mut book, opens.to_vec(), Atomicity::Linked);
    let one = |book: &mut Book, op: Op| commit(book, vec![op], Atomicity::Independent).remove(0);
    let no = Outcome::Rejected;
    // Indices of one asset are not those of the other; neither are escrow, total and end.
    assert_eq!(
        one(&mut book, pay("e1", "usd", 1, 4)),
        no(Refusal::IndexGap { expected: 0 })
    );
    for (asset, first) in [("usd", 4), ("ron", 7)] {
        let made = one(&mut book, pay("e1", asset, 0, first));
        assert!(matches!(made, Outcome::Fresh { .. }), "{made:?}");
        assert_eq!(
            one(&mut book, close("e1", Some(asset))),
            no(Refusal::EpochIncomplete)
        );
        let made = one(&mut book, pay("e1", asset, 1, 10 - first));
        assert!(matches!(made, Outcome::Fresh { .. }), "{made:?}");
    }
    assert_eq!(
        one(&mut book, pay("e1", "eur", 0, 1)),
        no(Refusal::EpochConflict)
    );
    for asset in [None, Some("eur")] {
        let said = one(&mut book, close("e1", asset));
        assert_eq!(said, no(Refusal::EpochConflict), "{asset:?}");
    }
    for asset in ["ron", "usd"] {
        let closed = one(&mut book, close("e1", Some(asset)));
        let Outcome::Fresh { seq, .. } = closed else {
            panic!("{closed:?}");
        };
        let again = one(&mut book, close("e1", Some(asset)));
        assert_eq!(again, Outcome::Known { seq });
    }
    for asset in ["ron", "usd"] {
        let row = book.state.account(&"acct:0".parse().unwrap()).unwrap();
        let ix = book.state.asset_ix(&asset.parse().unwrap()).unwrap();
        let paid = if asset == "usd" { 4 } else { 7 };
        assert_eq!(row.balance(ix).credits, paid);
    }
    replays(&book);
}

#[test]
fn a_correction_opens_all_of_its_assets_under_one_name() {
    let mut book = rich();
    let opens = |epoch: &str, adjusts: Option<&str>| {
        ["ron", "usd"]
            .map(|asset| adjust_asset(epoch, 7, asset, 10, adjusts))
            .to_vec()
    };
    let is_fresh = |said: &[Outcome]| said.iter().all(|it| matches!(it, Outcome::Fresh { .. }));
    let said = commit(&mut book, opens("e1", None), Atomicity::Linked);
    assert!(is_fresh(&said), "{said:?}");
    let said = commit(&mut book, opens("e2", Some("e1")), Atomicity::Linked);
    assert!(is_fresh(&said), "{said:?}");
    // An epoch is corrected once, whichever asset comes first.
    let mut again = opens("e3", Some("e1"));
    again.reverse();
    let said = commit(&mut book, again, Atomicity::Linked);
    let by = "e2".parse().unwrap();
    assert_eq!(said[0], Outcome::Rejected(Refusal::UsagePaid { by }));
    // A withdrawal concerns the manifest, and with it every asset.
    let void = serde_json::json!({"kind": "epoch_void", "principal": "r", "tenant": "t", "epoch": "e2",
        "commitment": ContentId([7; 32])});
    let void = Op::new(serde_json::from_value::<Entry>(void).unwrap(), &salts()).unwrap();
    let said = commit(&mut book, vec![void], Atomicity::Independent);
    assert_eq!(said, [Outcome::Rejected(Refusal::EpochOpened)]);
    replays(&book);
}
