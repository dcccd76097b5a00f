//! Corners of the core: changed bytes, hostile entries, escrow, the end of 128 bits.

use ron_proto::ledger::{Details, Entry, escrow_account};
use ron_proto::{Amount, Timestamp};

use super::super::leaf::encode;
use super::epochs::open;
use super::*;

pub(super) fn issue(key: &str, to: &str, n: u128) -> Op {
    Op::new(
        Entry::Issue {
            tenant: "t".parse().unwrap(),
            principal: "p".parse().unwrap(),
            key: key.parse().unwrap(),
            to: to.parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(n),
            details: Details {
                memo: Some("for tests".parse().unwrap()),
                reference: Some("r-1".parse().unwrap()),
                ..Details::default()
            },
            batch: None,
            budgets: Vec::new(),
        },
        &salts(),
    )
    .unwrap()
}

/// A changed bit of leaf or private record is another entry, or none; and no changed private record
/// is that of the leaf.
#[test]
fn every_changed_byte_of_a_record_is_found() {
    let (seq, ts) = (300, Timestamp(1_700_000_000_123));
    let place = Place {
        link: Some(Link {
            position: 1,
            length: 3,
        }),
        batch: Some(ron_proto::ledger::TxId(7)),
    };
    let op = issue("k", "a", 5);
    let verdict = Verdict::Refused(Refusal::HoldTooSmall);
    let bytes = encode(seq, ts, place, &verdict, &op);
    let leaf = Leaf {
        seq,
        ts,
        place,
        op,
        verdict,
    };
    let private = leaf.op.private().to_vec();
    assert_eq!(Leaf::decode(&bytes, &private).unwrap(), leaf);
    leaf.op.check_private().unwrap();
    let same = |bytes: &[u8], private: &[u8]| {
        Leaf::decode(bytes, private).is_ok_and(|l| l == leaf && l.op.check_private().is_ok())
    };
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            assert!(!same(&other, &private), "byte {at} bit {bit}");
        }
        assert!(Leaf::decode(&bytes[..at], &private).is_err(), "cut at {at}");
    }
    for at in 0..private.len() {
        for bit in 0..8 {
            let mut other = private.clone();
            other[at] ^= 1 << bit;
            let read = Leaf::decode(&bytes, &other);
            assert!(
                read.is_err() || read.unwrap().op.check_private().is_err(),
                "private byte {at} bit {bit}"
            );
        }
        assert!(!same(&bytes, &private[..at]), "cut at {at}");
    }
}

/// The leaf has nothing that is private.
#[test]
fn a_leaf_shows_only_public_facts() {
    let entry = serde_json::json!({"kind": "transfer", "tenant": "tenant-x", "principal": "principal-x",
        "key": "key-x", "from": "acc:a", "to": "acc:b", "asset": "ron", "amount_minor": "5", "nonce": 0x1122_3344_5566_u64,
        "memo": "memo-x", "reference": "reference-x", "metadata": {"name-x": "value-x"},
        "effective_at": "2031-02-03T04:05:06.789Z", "daily_ceiling": "1234567890123"});
    let op = Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap();
    let leaf = encode(1, Timestamp(2), Place::default(), &Verdict::Done(None), &op);
    let has = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).any(|w| w == needle);
    for public in ["acc:a", "acc:b", "ron"] {
        assert!(has(&leaf, public.as_bytes()), "{public}");
    }
    for private in [
        "tenant-x",
        "principal-x",
        "key-x",
        "memo-x",
        "reference-x",
        "name-x",
        "value-x",
    ] {
        assert!(!has(&leaf, private.as_bytes()), "{private}");
        assert!(has(op.private(), private.as_bytes()), "{private}");
    }
    for number in [0x1122_3344_5566_u64, 1_927_857_906_789, 1_234_567_890_123] {
        let mut varint = codec::Out::default();
        varint.varint(number);
        let be = number.to_be_bytes();
        let be = &be[number.leading_zeros() as usize / 8..];
        assert!(!has(&leaf, &varint.0) && !has(&leaf, be), "{number}");
        assert!(
            has(op.private(), &varint.0) || has(op.private(), be),
            "{number}"
        );
    }
    // Without its salts, equal entries have different leaves.
    let other = Op::new(op.entry().clone(), &Salts::new([[9; 16]; 5])).unwrap();
    assert_ne!(other.private_hash(), op.private_hash());
}

/// An erased text leaves hash, root and replay as they are, and a repetition is still recognised.
#[test]
fn a_text_is_erased_without_a_trace_in_the_leaf() {
    let mut book = Book::default();
    let first = issue("k1", "a", 5);
    book.commit(
        1,
        &[(vec![first.clone(), issue("k2", "a", 6)], Atomicity::Batch)],
    );
    let mut private = book.records[0].private.to_vec();
    let layout = Layout::of(&private).unwrap();
    assert_eq!(layout.erase(&mut private), 2);
    assert!(!private.windows(9).any(|w| w == b"for tests"));
    let before = book.records[0].clone();
    book.records[0].private = private.clone().into();
    let leaf = Leaf::decode(&before.leaf, &private).unwrap();
    leaf.op.check_private().unwrap();
    let erased = leaf.op.erased();
    assert!(erased.memo && erased.reference && !erased.metadata);
    assert_eq!(leaf.op.entry().header.memo, None);
    assert!(first.repeats(&leaf.op));
    assert!(!issue("k1", "a", 6).repeats(&leaf.op));
    let mut replay = crate::replay::Replay::new();
    for (i, r) in book.records.iter().enumerate() {
        let erased = replay.leaf(i as u64 + 1, &r.leaf, &r.private).unwrap();
        assert_eq!(erased.any(), i == 0);
    }
    let (state, _) = replay.finish().unwrap();
    assert_eq!(image(&state), image(&book.state));
    // What looks erased but still has bytes is refused, and nothing is erased twice.
    let again = Layout::of(&private).unwrap();
    assert_eq!(again.erase(&mut private), 0);
    *private.last_mut().unwrap() = 1;
    assert!(Layout::of(&private).is_err());
}

/// Items of one request name its first item; a replay notices an item that was moved.
#[test]
fn items_of_a_batch_name_the_first() {
    let mut book = Book::default();
    let items = |keys: [&str; 3]| keys.map(|k| issue(k, "a", 1)).to_vec();
    book.commit(
        1,
        &[
            (items(["b0", "b1", "b2"]), Atomicity::Batch),
            (items(["l0", "l1", "l2"]), Atomicity::Linked),
            (items(["i0", "i1", "i2"]), Atomicity::Independent),
        ],
    );
    let leaves: Vec<PublicLeaf> = book
        .records
        .iter()
        .map(|r| PublicLeaf::decode(&r.leaf).unwrap())
        .collect();
    for (i, leaf) in leaves.iter().enumerate() {
        let first = (i < 6).then(|| leaves[i / 3 * 3].txid());
        assert_eq!(leaf.facts.batch, first, "{i}");
    }
    replays(&book);
    let mut torn = book;
    torn.records.remove(0);
    let r = &torn.records[0];
    let why = crate::replay::Replay::new()
        .leaf(1, &r.leaf, &r.private)
        .unwrap_err();
    assert!(why.why.contains("first item of its batch"), "{why}");
}

#[test]
fn hostile_entries_are_no_ops() {
    let check =
        |entry: Entry, field: &str| assert_eq!(Op::new(entry, &salts()).unwrap_err().field, field);
    let (principal, key) = (
        "p".parse::<ron_proto::ledger::PrincipalName>().unwrap(),
        "k".parse::<ron_proto::ledger::EntryKey>().unwrap(),
    );
    let tenant: ron_proto::Tenant = "t".parse().unwrap();
    let transfer = |from: &str, to: &str, n: u128, nonce: u64| Entry::Transfer {
        tenant: tenant.clone(),
        principal: principal.clone(),
        key: key.clone(),
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
        up_to: None,
        nonce: Some(nonce),
        details: Details::default(),
        batch: None,
        daily_ceiling: None,
        budgets: Vec::new(),
    };
    check(transfer("a", "b", 0, 1), "amount_minor");
    check(transfer("a", "a", 1, 1), "to");
    check(transfer("a", "b", 1, 0), "nonce");
    check(transfer("a", "b", 1, 1 << 53), "nonce");
}

#[test]
fn escrow_is_out_of_reach() {
    let escrow = escrow_account(&"t".parse().unwrap(), &"e".parse().unwrap());
    let mut book = Book::default();
    let said = book.commit(
        1,
        &[(
            vec![issue("k1", escrow.as_str(), 5)],
            Atomicity::Independent,
        )],
    );
    assert_eq!(
        said[0][0],
        Outcome::Fresh {
            seq: 1,
            verdict: Verdict::Refused(Refusal::ReservedAccount),
            batch: None,
        }
    );
    assert_eq!(book.state.account_count(), 0);
}

pub(super) fn refused(why: Refusal, seq: u64) -> Outcome {
    let verdict = Verdict::Refused(why);
    Outcome::Fresh {
        seq,
        verdict,
        batch: None,
    }
}

pub(super) fn done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Fresh { verdict, .. } if verdict.is_done())
}

#[test]
fn no_sum_of_accounts_can_pass_128_bits() {
    let mut book = Book::default();
    let most = u128::MAX - 1_000_000_000;
    let amounts = [
        ("k1", "a", most - 1),
        ("k2", "b", 1),
        ("k3", "c", 1),
        ("k4", "c", u128::MAX),
    ];
    let ops = amounts.map(|(key, to, n)| issue(key, to, n)).to_vec();
    let said = book.commit(1, &[(ops, Atomicity::Independent)]).remove(0);
    assert!(done(&said[0]) && done(&said[1]));
    assert_eq!(said[2], refused(Refusal::LimitsExceeded, 3));
    assert_eq!(said[3], refused(Refusal::AmountOverflow, 4));
    book.state.audit().unwrap();
    assert_eq!(book.state.asset(0).unwrap().circulating(), most);
}

#[test]
fn an_audit_names_the_row_at_fault() {
    let mut book = Book::default();
    book.commit(1, &[(vec![issue("k1", "a", 10)], Atomicity::Independent)]);
    book.state.audit().unwrap();
    let at_fault = |change: &dyn Fn(&mut State)| {
        let mut state = book.state.clone();
        change(&mut state);
        state.audit().unwrap_err()
    };
    let balance = |change: &dyn Fn(&mut Balance)| {
        at_fault(&|state| {
            let mut row = state.account_at(0).unwrap().clone();
            change(&mut row.balances[0]);
            state.accounts.set(0, row);
        })
    };
    assert!(balance(&|b| b.credits += 1).starts_with("asset ron: issued 10"));
    assert!(balance(&|b| b.debits += 1).starts_with("asset ron: issued 10"));
    assert!(balance(&|b| b.held = 1).starts_with("account a: held 1 of 10, open holds 0"));
    assert_eq!(balance(&|b| b.asset = 9), "a: unknown asset row");
    let credits = at_fault(&|state| state.assets[0].credits += 1);
    assert!(credits.starts_with("asset ron: issued 10"));
}

#[test]
fn a_batch_that_breaks_an_invariant_is_not_made() {
    let mut book = Book::default();
    book.commit(1, &[(vec![issue("k1", "a", 10)], Atomicity::Independent)]);
    let broken = |what: &str, tamper: fn(&mut Step<'_>)| {
        let mut step = Step::new(&book.state, Timestamp(2));
        tamper(&mut step);
        let why = step.finish().unwrap_err().to_string();
        assert!(why.contains(what), "{why}");
    };
    broken("nonce 0 became 1 by 0 debits with a nonce", |s| {
        s.overlay.touch(0).row.nonce += 1;
    });
    broken("nonce 0 became 0 by 1 debits with a nonce", |s| {
        s.overlay.touch(0).nonces += 1;
    });
    broken("held 11 of 10", |s| {
        s.overlay.touch(0).row.balance_mut(0).held = 11;
    });
    broken("credited 1, debited 0", |s| {
        s.overlay.touch(0).row.balance_mut(0).credits += 1;
    });
    broken("credited 0, debited 1", |s| {
        s.overlay.touch(0).row.balance_mut(0).debits += 1;
    });
    broken("credits or debits fell", |s| {
        s.overlay.touch(0).row.balance_mut(0).credits -= 1;
    });
    broken("issued 11, burned 0", |s| {
        s.overlay.asset_mut(0).issued += 1;
    });
    broken("issued 10, burned 1", |s| {
        s.overlay.asset_mut(0).burned += 1;
    });
    broken("asset ron", |s| s.overlay.asset_mut(0).credits += 1);
    let mut step = Step::new(&book.state, Timestamp(2));
    step.overlay.touch(0);
    assert!(step.finish().is_ok(), "looking changes nothing");
}

pub(super) fn issue_of(key: &str, to: &str, asset: &str) -> Op {
    let entry = serde_json::json!({"kind": "issue", "tenant": "t", "principal": "p", "key": key, "to": to, "asset": asset,
        "amount_minor": "9"});
    Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
}

#[test]
fn linked_commits_that_make_assets_and_holds_number_them_as_single_entries_do() {
    let hold = |key: &str, nonce: u64| {
        let entry = serde_json::json!({"kind": "hold", "tenant": "t", "principal": "p", "key": key, "from": "a", "asset": "as1",
            "amount_minor": "1", "nonce": nonce, "expires_at": "2100-01-01T00:00:00.000Z"});
        Op::new(serde_json::from_value::<Entry>(entry).unwrap(), &salts()).unwrap()
    };
    let first = vec![issue_of("k1", "a", "as1"), issue_of("k2", "a", "as2")];
    let second = vec![
        issue_of("k3", "b", "as3"),
        hold("h1", 1),
        issue_of("k4", "b", "as4"),
        hold("h2", 2),
    ];
    let single = vec![issue_of("k5", "c", "as5"), issue_of("k6", "c", "as1")];
    let ids = [second[1].txid(4), second[3].txid(6)];
    let mut book = Book::default();
    // One step, so that the second commit builds on changes of the first that are not durable yet.
    let groups = [
        (first, Atomicity::Linked),
        (second, Atomicity::Linked),
        (single, Atomicity::Independent),
    ];
    let said = book.commit(1, &groups);
    assert!(said.iter().flatten().all(done), "{said:?}");
    let assets: Vec<&str> = book
        .state
        .assets()
        .iter()
        .map(|a| a.name.as_str())
        .collect();
    assert_eq!(assets, ["as1", "as2", "as3", "as4", "as5"]);
    for id in ids {
        assert!(book.state.hold(id).is_some(), "{id}");
    }
    replays(&book);
}

#[test]
fn an_epoch_that_pays_more_or_more_often_than_it_holds_is_not_made() {
    let mut book = Book::default();
    let open = open("t", "e", "pool:t/a", 7, None).unwrap();
    book.commit(
        1,
        &[(
            vec![issue("k1", "pool:t/a", 10), open],
            Atomicity::Independent,
        )],
    );
    let key = ("t".parse().unwrap(), "e".parse().unwrap());
    for (paid, next_index, good) in [(11, 0, false), (0, 3, false), (10, 2, true)] {
        let mut step = Step::new(&book.state, Timestamp(2));
        let row = step.overlay.epoch_mut(&key);
        (row.assets[0].paid, row.assets[0].next_index) = (paid, next_index);
        assert_eq!(step.finish().is_ok(), good);
    }
}
