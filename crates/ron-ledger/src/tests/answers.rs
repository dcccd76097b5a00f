//! The answers to each kind of entry: the whole receipt, field by field.

use ron_proto::ledger::{Entry, EntryAnswer, RefusalCode, TxId, escrow_account};
use ron_proto::{Amount, Timestamp};
use serde_json::{Value, json};

use super::support::{T0, salts};
use crate::answers::{self, LogEntry};
use crate::core::{Effect, Limit, Op, Refusal, Verdict};

fn op(json: Value) -> Op {
    Op::new(serde_json::from_value::<Entry>(json).unwrap(), &salts()).unwrap()
}

/// The entry at sequence 9.
fn at_nine<'a>(op: &'a Op, verdict: &'a Verdict) -> LogEntry<'a> {
    LogEntry {
        seq: 9,
        ts: Timestamp(T0),
        batch: None,
        op,
        verdict,
        leaf_hash: [7; 32],
    }
}

/// The receipt of a committed entry at sequence 9 and its private side, without ids and hash.
fn told(op: &Op, effect: Option<Effect>) -> Value {
    let answer = answers::answer(at_nine(op, &Verdict::Done(effect)));
    let EntryAnswer::Done {
        receipt, private, ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(receipt.txid, op.txid(9));
    assert_eq!(receipt.receipt_hash.0, [7; 32]);
    let mut json = serde_json::to_value(receipt).unwrap();
    let fields = json.as_object_mut().unwrap();
    for name in ["txid", "receipt_hash", "seq", "ts"] {
        assert!(fields.remove(name).is_some(), "{name}");
    }
    for (name, value) in serde_json::to_value(private).unwrap().as_object().unwrap() {
        assert!(
            fields.insert(name.clone(), value.clone()).is_none(),
            "{name}"
        );
    }
    json
}

#[test]
fn receipts_of_what_callers_ask_for() {
    let check = |entry: Value, want: Value| assert_eq!(told(&op(entry), None), want);
    check(
        json!({"kind": "issue", "tenant": "t", "principal": "p", "key": "k", "to": "a", "asset": "ron", "amount_minor": "5"}),
        json!({"op": "issue", "to": "a", "asset": "ron", "amount_minor": "5", "idem": "k"}),
    );
    check(
        json!({"kind": "transfer", "tenant": "t", "principal": "p", "key": "k", "from": "a", "to": "b", "asset": "ron", "amount_minor": "5", "nonce": 3}),
        json!({"op": "transfer", "from": "a", "to": "b", "asset": "ron", "amount_minor": "5", "nonce": 3, "idem": "k"}),
    );
    check(
        json!({"kind": "burn", "tenant": "t", "principal": "p", "key": "k", "from": "a", "asset": "ron", "amount_minor": "5", "nonce": 4}),
        json!({"op": "burn", "from": "a", "asset": "ron", "amount_minor": "5", "nonce": 4, "idem": "k"}),
    );
    check(
        json!({"kind": "hold", "tenant": "t", "principal": "p", "key": "k", "from": "a", "asset": "ron", "amount_minor": "5", "nonce": 5, "expires_at": "2100-01-01T00:00:00.000Z"}),
        json!({"op": "hold", "from": "a", "asset": "ron", "amount_minor": "5", "nonce": 5, "idem": "k"}),
    );
    for kind in ["freeze", "unfreeze"] {
        check(
            json!({"kind": kind, "tenant": "t", "principal": "p", "key": "k", "account": "a", "sides": "debits"}),
            json!({"op": kind, "from": "a", "idem": "k"}),
        );
    }
}

#[test]
fn receipts_of_holds_that_end_say_what_moved() {
    let hold = TxId(7 << 64).to_string();
    let effect = |n: u128| {
        Some(Effect {
            from: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount: Amount(n),
        })
    };
    let capture = op(
        json!({"kind": "capture", "tenant": "t", "principal": "p", "key": "k", "hold": hold, "to": "b", "amount_minor": "5"}),
    );
    assert_eq!(
        told(&capture, effect(5)),
        json!({"op": "capture", "hold": hold, "from": "a", "to": "b", "asset": "ron", "amount_minor": "5", "idem": "k"})
    );
    let release =
        op(json!({"kind": "release", "tenant": "t", "principal": "p", "key": "k", "hold": hold}));
    assert_eq!(
        told(&release, effect(2)),
        json!({"op": "release", "hold": hold, "from": "a", "asset": "ron", "amount_minor": "2", "idem": "k"})
    );
    let expire = op(json!({"kind": "expire", "hold": hold}));
    assert_eq!(
        told(&expire, effect(3)),
        json!({"op": "expire", "hold": hold, "from": "a", "asset": "ron", "amount_minor": "3", "idem": format!("expire:{hold}")})
    );
}

#[test]
fn receipts_of_settlement_name_the_escrow() {
    let escrow = escrow_account(&"t".parse().unwrap(), &"e".parse().unwrap());
    let content = format!("b3:{}", "07".repeat(32));
    let base = |more: Value| {
        let mut all = json!({"principal": "r", "tenant": "t", "epoch": "e"});
        for (name, value) in more.as_object().unwrap() {
            all[name] = value.clone();
        }
        op(all)
    };
    let open = base(
        json!({"kind": "epoch_open", "from": "pool:t/a", "asset": "ron", "amount_minor": "9",
        "commitment": content, "sum_root": content, "recipients": 2, "source": content}),
    );
    assert_eq!(
        told(&open, None),
        json!({"op": "epoch_open", "from": "pool:t/a", "to": escrow, "asset": "ron", "amount_minor": "9", "idem": "epoch_open:t/e/ron"})
    );
    let payout =
        base(json!({"kind": "payout", "index": 1, "to": "b", "asset": "ron", "amount_minor": "4"}));
    assert_eq!(
        told(&payout, None),
        json!({"op": "payout", "from": escrow, "to": "b", "asset": "ron", "amount_minor": "4", "idem": "payout:t/e/ron/1"})
    );
    let close = base(json!({"kind": "epoch_close", "commitment": content}));
    assert_eq!(
        told(&close, None),
        json!({"op": "epoch_close", "idem": "epoch_close:t/e"})
    );
    let void = base(json!({"kind": "epoch_void", "commitment": content}));
    assert_eq!(
        told(&void, None),
        json!({"op": "epoch_void", "idem": format!("epoch_void:t/e/{content}")})
    );
}

#[test]
fn refusals_and_mismatches() {
    let issue = |key: &str, n: u32| {
        op(
            json!({"kind": "issue", "tenant": "t", "principal": "p", "key": key, "to": "a", "asset": "ron", "amount_minor": n.to_string()}),
        )
    };
    let refused = |code, seq, expected, replayed| EntryAnswer::Refused {
        code,
        seq,
        expected,
        paid_by: None,
        replayed,
    };
    assert_eq!(
        answers::rejected(&Refusal::NonceConflict { expected: 4 }),
        refused(RefusalCode::NonceConflict, None, Some(4), false)
    );
    let limited = Verdict::Refused(Refusal::Limit(Limit::AccountTotal(7)));
    let first = issue("k", 1);
    let again = answers::replayed(&issue("k", 1), at_nine(&first, &limited));
    assert_eq!(
        again,
        refused(RefusalCode::LimitsExceeded, Some(9), None, true),
        "the limit itself is the operator's matter"
    );
    let by = "e".parse().unwrap();
    let paid = answers::rejected(&Refusal::UsagePaid { by });
    let told = serde_json::to_value(paid).unwrap();
    let want = json!({"outcome": "refused", "code": "usage_paid", "paid_by": "e"});
    assert_eq!(told, want, "who asked learns which epoch paid");
    let other = answers::replayed(&issue("k", 2), at_nine(&first, &limited));
    assert_eq!(
        other,
        refused(RefusalCode::IdempotencyMismatch, None, None, false)
    );
    let payout = op(
        json!({"kind": "payout", "principal": "r", "tenant": "t", "epoch": "e", "index": 1,
        "to": "b", "asset": "ron", "amount_minor": "4"}),
    );
    assert_eq!(
        answers::mismatch(&payout),
        refused(RefusalCode::EpochConflict, None, None, false)
    );
    let event = answers::event(at_nine(&first, &Verdict::Done(None)));
    assert_eq!((event.seq, event.ts), (9, Timestamp(T0)));
    assert_eq!(event.entry, Entry::from(&first));
    assert!(event.answer.receipt().is_some());
}
