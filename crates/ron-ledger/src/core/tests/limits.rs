//! The operator's limits: what they refuse, and that a replay does not depend on their current
//! values.

use super::super::leaf::encode;
use super::corners::{done, issue, refused};
use super::*;

fn entry(json: serde_json::Value) -> Op {
    Op::new(serde_json::from_value::<Entry>(json).unwrap(), &salts()).unwrap()
}

fn transfer(key: &str, to: &str, n: u128, nonce: u64) -> Op {
    entry(
        serde_json::json!({"kind": "transfer", "tenant": "t", "principal": "p", "key": key, "from": "a", "to": to,
        "asset": "ron", "amount_minor": n.to_string(), "nonce": nonce}),
    )
}

fn hold(key: &str, n: u128, nonce: u64) -> Op {
    entry(
        serde_json::json!({"kind": "hold", "tenant": "t", "principal": "p", "key": key, "from": "a", "asset": "ron",
        "amount_minor": n.to_string(), "nonce": nonce, "expires_at": "2100-01-01T00:00:00.000Z"}),
    )
}

fn capture(key: &str, hold: TxId, to: &str, n: u128) -> Op {
    entry(
        serde_json::json!({"kind": "capture", "tenant": "t", "principal": "p", "key": key, "hold": hold.to_string(),
        "to": to, "amount_minor": n.to_string()}),
    )
}

fn freeze(key: &str, account: &str) -> Op {
    entry(
        serde_json::json!({"kind": "freeze", "tenant": "t", "principal": "p", "key": key, "account": account}),
    )
}

fn settlement(json: serde_json::Value) -> Op {
    let mut all = serde_json::json!({"principal": "rewarder", "tenant": "t", "epoch": "e"});
    for (name, value) in json.as_object().unwrap() {
        all[name] = value.clone();
    }
    entry(all)
}

fn loose(ops: Vec<Op>) -> [(Vec<Op>, Atomicity); 1] {
    [(ops, Atomicity::Independent)]
}

fn limited(limit: Limit, seq: u64) -> Outcome {
    let verdict = Verdict::Refused(Refusal::Limit(limit));
    Outcome::Fresh {
        seq,
        verdict,
        batch: None,
    }
}

fn book(limits: Limits) -> Book {
    Book {
        limits,
        ..Book::default()
    }
}

/// The outcomes of a request without the batch that they belong to.
fn without_batch(mut said: Vec<Outcome>) -> Vec<Outcome> {
    for one in &mut said {
        if let Outcome::Fresh { batch, .. } = one {
            assert!(batch.take().is_some());
        }
    }
    said
}

fn pick(said: &[Outcome]) -> Vec<bool> {
    said.iter().map(done).collect()
}

#[test]
fn at_the_maximum_of_accounts_new_ones_are_refused_and_existing_ones_work() {
    let limit = Limit::Accounts(3);
    let mut book = book(Limits::only(limit));
    let said = book.commit(1, &loose(vec![issue("k1", "a", 9), issue("k2", "b", 9)]));
    assert!(said[0].iter().all(done));
    // The third account is the last one allowed, created in the middle of a batch and of a linked
    // commit.
    let linked = (
        vec![transfer("l1", "c", 1, 1), transfer("l2", "d", 1, 2)],
        Atomicity::Linked,
    );
    let said = book.commit(2, &[linked]).remove(0);
    let items = [refused(Refusal::LinkedFailed, 3), limited(limit, 4)];
    assert_eq!(without_batch(said), items);
    assert_eq!(book.state.account_count(), 2, "all or nothing");
    let more = vec![
        transfer("t1", "c", 1, 1),
        transfer("t2", "d", 1, 2),
        transfer("t3", "b", 1, 2),
        issue("k3", "d", 1),
        issue("k4", "c", 1),
        freeze("f1", "d"),
        freeze("f2", "b"),
        hold("h1", 2, 3),
        capture("c1", hold("h1", 2, 3).txid(12), "d", 1),
        capture("c2", hold("h1", 2, 3).txid(12), "c", 1),
    ];
    let said = book.commit(3, &loose(more)).remove(0);
    assert_eq!(
        pick(&said),
        [
            true, false, true, false, true, false, true, true, false, true
        ]
    );
    for at in [1, 3, 5, 8] {
        assert_eq!(said[at], limited(limit, 5 + at as u64));
    }
    assert_eq!(book.state.account_count(), 3);
    replays(&book);
}

#[test]
fn an_account_takes_what_the_limit_leaves_room_for() {
    let limit = Limit::AccountTotal(100);
    let mut book = book(Limits::only(limit));
    let ops = vec![
        issue("k1", "a", 101),
        issue("k2", "a", 100),
        issue("k3", "a", 1),
        issue("k4", "b", 99),
        transfer("t1", "b", 2, 1),
        transfer("t2", "b", 1, 1),
        hold("h1", 50, 2),
    ];
    let said = book.commit(1, &loose(ops)).remove(0);
    assert_eq!(pick(&said), [false, true, false, true, false, true, true]);
    for at in [0, 2, 4] {
        assert_eq!(said[at], limited(limit, 1 + at as u64));
    }
    // A capture to the account of the hold itself moves nothing.
    let id = hold("h1", 50, 2).txid(7);
    let ops = vec![
        capture("c1", id, "b", 1),
        capture("c2", id, "a", 20),
        capture("c3", id, "c", 30),
        issue("k5", "a", 1),
        issue("k6", "a", 31),
    ];
    let said = book.commit(2, &loose(ops)).remove(0);
    assert_eq!(pick(&said), [false, true, true, true, false]);
    assert_eq!(said[0], limited(limit, 8));
    replays(&book);
}

#[test]
fn settlement_is_not_bound_by_the_limits() {
    let mut book = book(Limits {
        accounts: 1,
        account_total: 100,
    });
    let said = book.commit(
        1,
        &loose(vec![
            issue("k1", "pool:t/a", 60),
            issue("k2", "pool:t/a", 40),
        ]),
    );
    assert!(said[0].iter().all(done));
    let content = format!("b3:{}", "07".repeat(32));
    let ops = vec![
        settlement(
            serde_json::json!({"kind": "epoch_open", "from": "pool:t/a", "asset": "ron",
            "amount_minor": "100", "commitment": content, "sum_root": content, "recipients": 2,
            "source": content}),
        ),
        settlement(
            serde_json::json!({"kind": "payout", "index": 0, "to": "b", "asset": "ron",
            "amount_minor": "60"}),
        ),
        settlement(
            serde_json::json!({"kind": "payout", "index": 1, "to": "c", "asset": "ron",
            "amount_minor": "40"}),
        ),
        settlement(serde_json::json!({"kind": "epoch_close", "commitment": content})),
    ];
    let said = book.commit(2, &loose(ops)).remove(0);
    assert!(said.iter().all(done), "{said:?}");
    assert_eq!(book.state.account_count(), 4);
    replays(&book);
}

#[test]
fn a_limit_that_changes_changes_nothing_that_was_decided() {
    let mut book = book(Limits::only(Limit::AccountTotal(10)));
    book.commit(1, &loose(vec![issue("k1", "a", 8), issue("k2", "a", 8)]));
    book.limits = Limits::only(Limit::Accounts(1));
    let group = (
        vec![issue("l1", "a", 1), issue("l2", "b", 1)],
        Atomicity::Linked,
    );
    book.commit(
        1,
        &[group, (vec![issue("k3", "a", 8)], Atomicity::Independent)],
    );
    book.limits = Limits::default();
    book.commit(1, &loose(vec![issue("k4", "b", 8)]));
    let all: Vec<Verdict> = book.records.iter().map(verdict).collect();
    let no = Verdict::Refused(Refusal::LinkedFailed);
    let want = [
        Verdict::Done(None),
        Verdict::Refused(Refusal::Limit(Limit::AccountTotal(10))),
        no,
        Verdict::Refused(Refusal::Limit(Limit::Accounts(1))),
        Verdict::Done(None),
        Verdict::Done(None),
    ];
    assert_eq!(all, want);
    replays(&book);
    // A leaf that names a limit which would not have refused is detected.
    let mut forged = book.records.clone();
    let leaf = &mut forged[1].leaf;
    let at = leaf.windows(2).position(|w| w == [0xfe, 2]).unwrap();
    assert_eq!(leaf[at + 2..at + 4], [1, 10]);
    leaf[at + 3] = 16;
    let mut replay = crate::replay::Replay::new();
    let taken = forged
        .iter()
        .enumerate()
        .try_for_each(|(i, r)| replay.leaf(i as u64 + 1, &r.leaf, &r.private).map(drop));
    let why = taken.and_then(|()| replay.finish().map(drop)).unwrap_err();
    assert_eq!(why.seq, 2, "{why}");
}

/// A ceiling binds captures: it counts them on their own day, but for those of a hold that the same
/// day has counted already.
#[test]
fn a_ceiling_counts_a_capture_unless_its_day_counts_the_hold() {
    let under = |op: Op, ceiling: u128| {
        let mut entry = serde_json::to_value(Entry::from(&op)).unwrap();
        entry["daily_ceiling"] = ceiling.to_string().into();
        self::entry(entry)
    };
    let over = |seq| refused(Refusal::LimitsExceeded, seq);
    let mut book = book(Limits::default());
    book.commit(1, &loose(vec![issue("k1", "a", 5_000)]));
    let old = under(hold("h1", 600, 1), 1_000);
    let id = old.txid(2);
    book.commit(DAY, &loose(vec![old]));
    // From the image: the day that counted the hold is known after a restart.
    book.state = State::from_image(&image(&book.state)).unwrap();
    let said = book.commit(
        DAY,
        &loose(vec![
            under(capture("c1", id, "b", 10), 599),
            under(capture("c2", id, "b", 10), 600),
        ]),
    );
    assert_eq!(said[0][0], over(3), "the hold used more of the day");
    assert!(done(&said[0][1]), "the day counted the hold already");
    let uncounted = hold("h2", 100, 2);
    let new = under(hold("h3", 100, 3), 1_000);
    let (free, counted) = (uncounted.txid(8), new.txid(11));
    let said = book.commit(
        2 * DAY,
        &loose(vec![
            under(capture("c3", id, "b", 500), 5),
            under(capture("c4", id, "b", 3), 5),
            under(capture("c5", id, "b", 3), 5),
            uncounted,
            under(capture("c6", free, "b", 2), 5),
            under(capture("c7", free, "b", 1), 5),
            new,
            under(capture("c8", counted, "b", 100), 104),
            under(capture("c9", counted, "b", 100), 105),
            capture("c10", id, "b", 400),
            under(transfer("t1", "b", 1, 4), 105),
            under(transfer("t2", "b", 1, 4), 106),
        ]),
    );
    let want = [
        false, true, false, true, true, false, true, false, true, true, false, true,
    ];
    assert_eq!(pick(&said[0]), want);
    for at in [0, 2, 5, 7, 10] {
        assert_eq!(said[0][at], over(5 + at as u64));
    }
    replays(&book);
}

fn verdict(r: &Record) -> Verdict {
    Leaf::decode(&r.leaf, &r.private).unwrap().verdict
}

#[test]
fn the_leaf_of_a_limit_has_one_spelling() {
    let op = issue("k", "a", 5);
    let ts = Timestamp(5);
    let with = |limit: Limit| {
        let verdict = Verdict::Refused(Refusal::Limit(limit));
        encode(7, ts, Place::default(), &verdict, &op)
    };
    for limit in [
        Limit::Accounts(0),
        Limit::Accounts(ACCOUNTS_MAX),
        Limit::AccountTotal(0),
        Limit::AccountTotal(u128::MAX),
    ] {
        let leaf = Leaf::decode(&with(limit), op.private()).unwrap();
        assert_eq!(leaf.verdict, Verdict::Refused(Refusal::Limit(limit)));
    }
    // Format, kind, seq, ts, link; then the verdict of two bytes and a number of one.
    let bytes = with(Limit::Accounts(7));
    assert_eq!(bytes[..8], [1, 1, 7, 5, 0, 0xfe, 1, 7]);
    let with = |verdict: &[u8]| {
        let leaf = [&bytes[..5], verdict, &bytes[8..]].concat();
        Leaf::decode(&leaf, op.private()).map(|l| l.verdict)
    };
    assert!(with(&[0xfe, 1, 7]).is_ok());
    let past = [0xfe, 1, 0x81, 0xd0, 0xac, 0xf3, 0x0e]; // 4,000,000,001
    assert!(
        with(&past).unwrap_err().why.contains("so many"),
        "{:?}",
        with(&past)
    );
    assert!(with(&[0xfe, 3, 7]).unwrap_err().why.contains("limit 3"));
    assert!(with(&[0xfe, 2, 2, 0, 7]).is_err(), "a leading zero");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases() / 2, failure_persistence: None, ..ProptestConfig::default() })]
    /// Under limits that change between batches: the limits in force are kept, every refusal names
    /// one of them, and the leaves alone rebuild the same state.
    #[test]
    fn limits_are_kept_and_a_replay_does_not_need_them(
        plan in plans(),
        changes in prop::collection::vec((1..5u32, 1..90u128), 1..6),
    ) {
        let mut book = Book::default();
        let mut now = 20_000 * DAY;
        for (round, (pause, groups)) in plan.into_iter().enumerate() {
            now += pause * pause / 8;
            let (accounts, account_total) = changes[round % changes.len()];
            book.limits = Limits { accounts, account_total };
            let model = Model::default();
            let groups: Vec<(Vec<Op>, Atomicity)> = groups
                .iter()
                .map(|(draws, atomicity)| {
                    let holds = book.state.accounts().flat_map(|a| book.state.holds_of(&a.name)).map(|h| h.id).collect();
                    let mut maker = Maker::new(&model, now);
                    maker.holds = holds;
                    let made = draws.iter().filter_map(|d| maker.entry(d)).map(|e| with_nonce(&book.state, e));
                    let ops: Vec<Op> = made.map(|e| Op::new(e, &salts()).unwrap()).collect();
                    (if *atomicity == Atomicity::Independent { ops } else { drop_duplicate_keys(ops) }, *atomicity)
                })
                .filter(|(ops, _)| !ops.is_empty())
                .collect();
            let before = book.state.clone();
            let said = book.commit(now, &groups);
            for (op, outcome) in groups.iter().flat_map(|(ops, _)| ops).zip(said.iter().flatten()) {
                if let Outcome::Fresh { verdict: Verdict::Refused(Refusal::Limit(limit)), .. } = outcome {
                    let own = [Limit::Accounts(accounts), Limit::AccountTotal(account_total)];
                    prop_assert!(own.contains(limit) && !op.kind().is_settlement(), "{limit:?}");
                }
            }
            let settles = groups.iter().flat_map(|(ops, _)| ops).any(|op| op.kind().is_settlement());
            if !settles {
                let most = before.account_count().max(accounts as usize);
                prop_assert!(book.state.account_count() <= most);
                for row in book.state.accounts() {
                    for b in &row.balances {
                        let had = before.account(&row.name).map_or(0, |r| r.balance(b.asset).total);
                        prop_assert!(b.total <= had.max(account_total), "{}: {}", row.name, b.total);
                    }
                }
            }
        }
        replays(&book);
    }
}

/// Sets the next nonce, so that entries reach the check of the limits.
fn with_nonce(state: &State, mut e: Entry) -> Entry {
    if let Entry::Transfer { from, nonce, .. }
    | Entry::Burn { from, nonce, .. }
    | Entry::Hold { from, nonce, .. } = &mut e
    {
        *nonce = state.account(from).map_or(0, |r| r.nonce) + 1;
    }
    e
}
