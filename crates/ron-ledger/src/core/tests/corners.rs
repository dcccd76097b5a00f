//! Corners of the core: changed bytes, hostile entries, escrow, the end of 128 bits.

use ron_proto::ledger::{Entry, RefusalCode, escrow_account};
use ron_proto::{Amount, Timestamp};

use super::*;

fn issue(key: &str, to: &str, n: u128) -> Op {
    Op::new(Entry::Issue {
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
        memo: Some("for tests".parse().unwrap()),
        reference: Some("r-1".parse().unwrap()),
        daily_ceiling: Some(Amount(u128::MAX)),
    })
    .unwrap()
}

#[test]
fn every_changed_byte_of_a_leaf_is_another_leaf_or_none() {
    let leaf = Leaf {
        ts: Timestamp(1_700_000_000_123),
        link: Some(Link {
            position: 1,
            length: 3,
        }),
        body: Body::Entry {
            op: issue("k", "a", 5),
            verdict: Verdict::Refused {
                code: RefusalCode::NonceConflict,
                expected: Some(9),
            },
        },
    };
    let bytes = leaf.encode();
    assert_eq!(Leaf::decode(&bytes).unwrap(), leaf);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            assert_ne!(
                Leaf::decode(&other).ok(),
                Some(leaf.clone()),
                "byte {at} bit {bit}"
            );
        }
        assert!(Leaf::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn hostile_entries_are_no_ops() {
    let check = |entry: Entry, field: &str| assert_eq!(Op::new(entry).unwrap_err().field, field);
    let (principal, key) = (
        "p".parse::<ron_proto::ledger::PrincipalName>().unwrap(),
        "k".parse::<ron_proto::ledger::EntryKey>().unwrap(),
    );
    let transfer = |from: &str, to: &str, n: u128, nonce: u64| Entry::Transfer {
        principal: principal.clone(),
        key: key.clone(),
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: Amount(n),
        nonce,
        memo: None,
        reference: None,
        daily_ceiling: None,
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
    let said = book.commit(1, &[(vec![issue("k1", escrow.as_str(), 5)], Bond::Loose)]);
    assert_eq!(
        said[0][0],
        Outcome::Fresh {
            seq: 1,
            verdict: Verdict::refused(RefusalCode::ReservedAccount)
        }
    );
    assert_eq!(book.state.account_count(), 0);
}

#[test]
fn supply_cannot_pass_128_bits() {
    let mut book = Book::default();
    let said = book.commit(
        1,
        &[(
            vec![issue("k1", "a", u128::MAX), issue("k2", "b", 1)],
            Bond::Loose,
        )],
    );
    assert_eq!(
        said[0][1],
        Outcome::Fresh {
            seq: 2,
            verdict: Verdict::refused(RefusalCode::AmountOverflow)
        }
    );
    book.state.audit().unwrap();
}
