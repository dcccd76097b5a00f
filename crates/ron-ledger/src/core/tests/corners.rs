//! Corners of the core: changed bytes, hostile entries, escrow, the end of 128 bits.

use ron_proto::ledger::{Entry, RefusalCode, escrow_account};
use ron_proto::{Amount, Timestamp};

use super::*;

pub(super) fn issue(key: &str, to: &str, n: u128) -> Op {
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

pub(super) fn refused(code: RefusalCode, seq: u64) -> Outcome {
    let verdict = Verdict::refused(code);
    Outcome::Fresh { seq, verdict }
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
    let said = book.commit(1, &[(ops, Bond::Loose)]).remove(0);
    assert!(done(&said[0]) && done(&said[1]));
    assert_eq!(said[2], refused(RefusalCode::LimitsExceeded, 3));
    assert_eq!(said[3], refused(RefusalCode::AmountOverflow, 4));
    book.state.audit().unwrap();
    assert_eq!(book.state.asset(0).unwrap().circulating, most);
}

#[test]
fn a_batch_that_breaks_an_invariant_is_not_made() {
    let mut book = Book::default();
    book.commit(1, &[(vec![issue("k1", "a", 10)], Bond::Loose)]);
    let broken = |what: &str, tamper: fn(&mut Step<'_>)| {
        let mut step = Step::new(&book.state, Timestamp(2));
        tamper(&mut step);
        let why = step.finish().unwrap_err().to_string();
        assert!(why.contains(what), "{why}");
    };
    broken("nonce 0 became 1 by 0 debits", |s| {
        s.touch(0).row.nonce += 1;
    });
    broken("nonce 0 became 0 by 1 debits", |s| s.touch(0).debits += 1);
    broken("held 11 of 10", |s| s.touch(0).row.balance_mut(0).held = 11);
    broken("balances rose 1, fell 0", |s| {
        s.touch(0).row.balance_mut(0).total += 1;
    });
    broken("balances rose 0, fell 1", |s| {
        s.touch(0).row.balance_mut(0).total -= 1;
    });
    broken("issued 1, burned 0", |s| s.asset_mut(0).issued += 1);
    broken("issued 0, burned 1", |s| s.asset_mut(0).burned += 1);
    broken("asset ron", |s| s.asset_mut(0).circulating += 1);
    let mut step = Step::new(&book.state, Timestamp(2));
    step.touch(0);
    assert!(step.finish().is_ok(), "looking changes nothing");
}
