//! Nonces that conflict or are absent, reversals, captures of the rest, own holds of linked commits, debits of all that is
//! available, the spelling of assets.

use ron_proto::ledger::{Entry, RefusalCode};

use super::corners::{done, issue, issue_of, refused};
use super::*;

fn debit(key: &str, n: u128, nonce: Option<u64>) -> Op {
    let mut entry = serde_json::json!({"kind": "transfer", "tenant": "t", "principal": "p", "key": key, "from": "a", "to": "b",
        "asset": "ron", "amount_minor": n.to_string()});
    if let Some(nonce) = nonce {
        entry["nonce"] = nonce.into();
    }
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

fn one(book: &mut Book, op: Op) -> Outcome {
    let said = book.commit(1, &[(vec![op], Atomicity::Independent)]);
    said.into_iter().flatten().next().unwrap()
}

#[test]
fn a_nonce_conflict_uses_neither_key_nor_nonce() {
    let mut book = Book::default();
    one(&mut book, issue("i", "a", 10));
    let conflict = Outcome::Rejected(Refusal::NonceConflict { expected: 1 });
    assert_eq!(one(&mut book, debit("k", 3, Some(2))), conflict);
    assert_eq!(book.state.seq(), 1, "no leaf");
    assert!(done(&one(&mut book, debit("k", 3, Some(1)))));
    // The nonce is no part of what is compared, so either attempt may arrive first.
    assert_eq!(
        one(&mut book, debit("k", 3, Some(2))),
        Outcome::Known { seq: 2 }
    );
    assert!(debit("k", 3, Some(2)).repeats(&debit("k", 3, None)));
    assert!(!debit("k", 4, None).repeats(&debit("k", 3, None)));
    replays(&book);
}

#[test]
fn debits_without_a_nonce_take_none() {
    let mut book = Book::default();
    one(&mut book, issue("i", "a", 10));
    for key in ["k1", "k2"] {
        assert!(done(&one(&mut book, debit(key, 1, None))));
    }
    assert_eq!(book.state.account_at(0).unwrap().nonce, 0);
    assert!(done(&one(&mut book, debit("k3", 1, Some(1)))));
    assert!(done(&one(&mut book, debit("k4", 1, None))));
    assert!(done(&one(&mut book, debit("k5", 1, Some(2)))));
    replays(&book);
}

#[test]
fn a_batch_with_a_nonce_conflict_changes_nothing() {
    for atomicity in [Atomicity::Batch, Atomicity::Linked] {
        let mut book = Book::default();
        one(&mut book, issue("i", "a", 10));
        let ops = |nonce| vec![debit("k1", 1, Some(1)), debit("k2", 1, Some(nonce))];
        let said = book.commit(1, &[(ops(3), atomicity)]).remove(0);
        let conflict = Outcome::Rejected(Refusal::NonceConflict { expected: 2 });
        assert_eq!(said, [Outcome::Rejected(Refusal::LinkedFailed), conflict]);
        assert_eq!(book.state.seq(), 1);
        let said = book.commit(1, &[(ops(2), atomicity)]).remove(0);
        assert!(said.iter().all(done), "the keys are unused");
        replays(&book);
    }
}

fn reversal(key: &str, tx: TxId, n: Option<u128>, moved: u128) -> Op {
    let entry = serde_json::json!({"kind": "reverse", "tenant": "t", "principal": "p", "key": key, "tx": tx.to_string(),
        "amount_minor": n.map(|n| n.to_string()),
        "original": {"from": "b", "to": "a", "asset": "ron", "amount_minor": moved.to_string()}});
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

#[test]
fn an_entry_is_reversed_once() {
    let mut book = Book::default();
    one(&mut book, issue("i", "a", 10));
    let paid = debit("t", 6, None);
    let tx = paid.txid(2);
    assert!(done(&one(&mut book, paid)));
    let too_large = |seq| refused(Refusal::ReversalTooLarge, seq);
    assert_eq!(one(&mut book, reversal("r1", tx, Some(7), 6)), too_large(3));
    assert!(done(&one(&mut book, reversal("r2", tx, Some(4), 6))));
    book.state = State::from_image(&image(&book.state)).unwrap();
    assert_eq!(one(&mut book, reversal("r3", tx, Some(3), 6)), too_large(5));
    assert!(done(&one(&mut book, reversal("r4", tx, None, 6))));
    assert_eq!(one(&mut book, reversal("r5", tx, None, 6)), too_large(7));
    assert_eq!(book.state.reversed(2), 6);
    assert_eq!(
        book.state.account_at(0).unwrap().balances[0]
            .level()
            .amount()
            .0,
        10
    );
    // The debited account must have the money, as for any outflow.
    let paid = debit("u", 6, None);
    let tx = paid.txid(8);
    one(&mut book, paid);
    let entry = serde_json::json!({"kind": "burn", "tenant": "t", "principal": "p", "key": "b", "from": "b", "asset": "ron",
        "amount_minor": "1"});
    one(
        &mut book,
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap(),
    );
    let short = refused(Refusal::InsufficientFunds, 10);
    assert_eq!(one(&mut book, reversal("r6", tx, None, 6)), short);
    let first = reversal("r7", tx, Some(2), 6);
    assert!(done(&one(&mut book, first.clone())));
    // What the ledger finds under the id is no part of the request.
    let mut json = serde_json::to_value(Entry::from(&first)).unwrap();
    json["original"] = serde_json::Value::Null;
    let bare = Op::new(serde_json::from_value::<Entry>(json).unwrap(), &salts()).unwrap();
    assert!(bare.repeats(&first));
    assert_eq!(one(&mut book, bare), Outcome::Known { seq: 11 });
    replays(&book);
}

#[test]
fn a_capture_takes_all_that_is_left_and_a_final_one_releases_the_rest() {
    let mut book = Book::default();
    one(&mut book, issue("i", "a", 10));
    let capture = |key: &str, hold: TxId, n: Option<u128>, last: bool| {
        let entry = serde_json::json!({"kind": "capture", "tenant": "t", "principal": "p", "key": key, "hold": hold.to_string(),
            "to": "b", "amount_minor": n.map(|n| n.to_string()), "final": last});
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
    };
    let hold = |key: &str| {
        let entry = serde_json::json!({"kind": "hold", "tenant": "t", "principal": "p", "key": key, "from": "a", "asset": "ron",
            "amount_minor": "5", "expires_at": "2100-01-01T00:00:00Z"});
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
    };
    let (h1, h2) = (hold("h1"), hold("h2"));
    let (first, second) = (h1.txid(2), h2.txid(3));
    one(&mut book, h1);
    one(&mut book, h2);
    assert!(done(&one(&mut book, capture("c1", first, Some(2), false))));
    assert!(done(&one(&mut book, capture("c2", first, None, false))));
    assert!(book.state.hold(first).is_none(), "all is captured");
    assert!(done(&one(&mut book, capture("c3", second, Some(1), true))));
    assert!(book.state.hold(second).is_none(), "the rest is released");
    let a = book.state.account_at(0).unwrap().balances[0];
    assert_eq!((a.level().amount().0, a.held), (4, 0));
    replays(&book);
}

#[test]
fn an_asset_has_one_spelling() {
    let mut book = Book::default();
    let spelling = |seq| refused(Refusal::AssetSpelling, seq);
    assert!(done(&one(&mut book, issue_of("k1", "a", "EUR"))));
    assert_eq!(one(&mut book, issue_of("k2", "a", "eur")), spelling(2));
    let entry = serde_json::json!({"kind": "burn", "tenant": "t", "principal": "p", "key": "k3", "from": "a", "asset": "Eur",
        "amount_minor": "1"});
    let burn = Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap();
    assert_eq!(one(&mut book, burn), spelling(3));
    let both = vec![issue_of("k4", "a", "Usd"), issue_of("k5", "a", "USD")];
    let said = book.commit(1, &[(both, Atomicity::Linked)]).remove(0);
    let twice = Some(Err(RefusalCode::AssetSpelling));
    assert_eq!(said_of(&said[1]), twice, "also within one linked commit");
    assert_eq!(book.state.assets().len(), 1);
    book.state = State::from_image(&image(&book.state)).unwrap();
    assert_eq!(one(&mut book, issue_of("k6", "a", "eur")), spelling(6));
    replays(&book);
}

#[test]
fn a_linked_commit_with_its_own_holds_and_all_that_is_available_replays() {
    let op = |kind: &str, key: &str, more: serde_json::Value| {
        let mut entry =
            serde_json::json!({"kind": kind, "tenant": "t", "principal": "p", "key": key});
        let members = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(members);
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
    };
    let debit = |kind: &str, key: &str, more: serde_json::Value| {
        let mut all = serde_json::json!({"from": "a", "asset": "as1"});
        if kind == "hold" {
            all["expires_at"] = "2100-01-01T00:00:00.000Z".into();
        }
        let members = more.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(members);
        op(kind, key, all)
    };
    let all = |most: u128| serde_json::json!({"amount_minor": "0", "up_to": most.to_string()});
    let pay = |key: &str, most: u128| {
        let mut more = all(most);
        more["to"] = "c".into();
        debit("transfer", key, more)
    };
    let ops = vec![
        issue_of("k1", "a", "as1"),
        debit("hold", "h1", serde_json::json!({"amount_minor": "4"})),
        debit("hold", "h2", all(5)),
        op(
            "capture",
            "c1",
            serde_json::json!({"hold": "#1", "to": "b", "amount_minor": "1"}),
        ),
        op("release", "r1", serde_json::json!({"hold": "#1"})),
        pay("t1", 100),
        op(
            "capture",
            "c2",
            serde_json::json!({"hold": "#2", "to": "b"}),
        ),
    ];
    let (first, second) = (ops[1].txid(2), ops[2].txid(3));
    let refused = vec![
        issue_of("k2", "a", "as1"),
        debit("hold", "h3", all(9)),
        op(
            "capture",
            "c3",
            serde_json::json!({"hold": "#1", "to": "b", "amount_minor": "10"}),
        ),
    ];
    let more = [("k3", 9), ("t2", 8), ("t3", 9), ("t4", 9)].map(|(key, most)| match key {
        "k3" => issue_of(key, "a", "as1"),
        _ => pay(key, most),
    });
    let mut book = Book::default();
    let groups = [
        (ops, Atomicity::Linked),
        (refused, Atomicity::Linked),
        (more.to_vec(), Atomicity::Independent),
    ];
    let said = book.commit(1, &groups);
    let why: Vec<_> = said.iter().flatten().filter_map(said_of).collect();
    let linked = Err(RefusalCode::LinkedFailed);
    let mut want = vec![Ok(()); 7];
    want.extend([linked, linked, Err(RefusalCode::HoldTooSmall)]);
    // More than the maximum, all of it, and nothing.
    want.extend([Ok(()), Err(RefusalCode::LimitsExceeded), Ok(())]);
    want.push(Err(RefusalCode::InsufficientFunds));
    assert_eq!(why, want);
    let facts: Vec<_> = book
        .records
        .iter()
        .map(|r| PublicLeaf::decode(&r.leaf).unwrap().facts)
        .collect();
    let moved: Vec<_> = facts.iter().map(|f| f.amount.map(|n| n.0)).collect();
    let some = |all: &[u128]| all.iter().copied().map(Some).collect::<Vec<_>>();
    assert_eq!(moved[..7], some(&[9, 4, 5, 1, 3, 3, 5]));
    assert_eq!(
        moved[7..],
        [Some(9), None, Some(10), Some(9), None, Some(9), None]
    );
    let holds: Vec<_> = facts.iter().filter_map(|f| f.hold).collect();
    assert_eq!(holds[..3], [first, first, second]);
    assert_eq!(book.state.hold_count(), 0);
    replays(&book);
}
