//! Which of its own entries the feed takes from the committers, and which it leaves to the ledger.

use ron_kernel::queue::bare_queue;
use ron_proto::Timestamp;
use ron_proto::ledger::{Details, LeafHash, PrivateFacts, Receipt, RefusalCode, TxId};

use super::*;
use crate::topology::OWN_QUEUE;

fn issue(key: &str) -> Arc<[Entry]> {
    Arc::new([Entry::Issue {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: key.parse().unwrap(),
        to: "a".parse().unwrap(),
        asset: "ron".parse().unwrap(),
        amount_minor: ron_proto::Amount(1),
        details: Details::default(),
        batch: None,
        budgets: Vec::new(),
    }])
}

fn done(seq: u64, entry: &Entry) -> EntryAnswer {
    let txid = TxId::new(seq, &[7; 32]);
    EntryAnswer::Done {
        seq,
        txid,
        receipt: Receipt {
            txid,
            op: entry.kind(),
            from: None,
            to: Some("a".parse().unwrap()),
            asset: None,
            amount_minor: None,
            ts: Timestamp(seq * 10),
            seq,
            hold: None,
            batch: None,
            reverses: None,
            receipt_hash: LeafHash([0; 32]),
        },
        private: PrivateFacts::default(),
        replayed: false,
    }
}

fn sides() -> (OwnWrites, OwnEntries) {
    own_writes(bare_queue(&OWN_QUEUE, OWN_QUEUE.capacity))
}

fn write(writes: &OwnWrites, seq: u64) {
    let entries = issue(&format!("k{seq}"));
    let answer = done(seq, &entries[0]);
    writes.answered(writes.round(), vec![entries], vec![answer]);
}

fn seqs(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.seq).collect()
}

#[test]
fn entries_are_given_in_order_without_a_gap() {
    let (writes, entries) = sides();
    let mut own = entries.restart();
    for seq in [6, 8, 5] {
        write(&writes, seq);
    }
    let gathered = own.gather(4);
    assert!(gathered.any);
    assert_eq!(seqs(&gathered.following), [5, 6]);
    assert_eq!(gathered.following[1].ts, Timestamp(60));
    assert_eq!(gathered.passed, None);

    // Entry 7 is of another client: the feed reads it, and perhaps more.
    write(&writes, 9);
    assert_eq!(seqs(&own.gather(8).following), [9]);
    write(&writes, 9);
    let again = own.gather(9);
    assert_eq!(again.passed.map(|event| event.seq), Some(9));
    assert_eq!(own.gather(9), Gathered::default());
}

#[test]
fn what_was_sent_before_a_restart_of_the_feed_does_not_count() {
    let (writes, entries) = sides();
    let _first = entries.restart();
    let sent = writes.round();
    write(&writes, 5);
    let mut own = entries.restart();
    let entry = issue("late");
    let answer = done(5, &entry[0]);
    writes.answered(sent, vec![entry], vec![answer]);
    assert_eq!(own.gather(4), Gathered::default());
    write(&writes, 5);
    assert_eq!(seqs(&own.gather(4).following), [5]);
}

#[test]
fn only_first_answers_of_entries_that_are_stored_as_sent_count() {
    let entry = issue("k").first().unwrap().clone();
    assert_eq!(event_of(&entry, done(1, &entry).as_replayed()), None);
    let refused = EntryAnswer::Refused {
        code: RefusalCode::InsufficientFunds,
        seq: Some(1),
        expected: None,
        paid_by: None,
        replayed: false,
    };
    assert_eq!(event_of(&entry, refused), None);
    let release = Entry::Release {
        tenant: "t".parse().unwrap(),
        principal: "p".parse().unwrap(),
        key: "k".parse().unwrap(),
        hold: ron_proto::ledger::HoldRef::Item(0),
        details: Details::default(),
        batch: None,
    };
    assert_eq!(event_of(&release, done(1, &release)), None);
    assert!(event_of(&entry, done(1, &entry)).is_some());
}

#[test]
fn a_full_queue_and_too_many_entries_behind_a_gap_lose_only_entries() {
    let (writes, entries) = sides();
    let mut own = entries.restart();
    for seq in 1..=OWN_QUEUE.capacity as u64 + 3 {
        write(&writes, seq);
    }
    assert_eq!(own.gather(0).following.len(), OWN_QUEUE.capacity);
    for from in (2..WAITING_MAX as u64 + 500).step_by(500) {
        let entries: Vec<_> = (from..from + 500).map(|n| issue(&n.to_string())).collect();
        let answers = (from..from + 500).zip(&entries);
        let answers = answers.map(|(seq, entry)| done(seq, &entry[0])).collect();
        writes.answered(writes.round(), entries, answers);
        own.gather(0);
    }
    assert!(own.waiting.len() <= WAITING_MAX);
}
