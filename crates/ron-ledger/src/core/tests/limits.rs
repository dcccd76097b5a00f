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
        serde_json::json!({"kind": "freeze", "tenant": "t", "principal": "p", "key": key, "account": account,
            "sides": "debits"}),
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
        ..Limits::default()
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

fn with(op: Op, field: &str, value: serde_json::Value) -> Op {
    let mut json = serde_json::to_value(Entry::from(&op)).unwrap();
    json[field] = value;
    entry(json)
}

fn under(op: Op, ceiling: u128) -> Op {
    with(op, "daily_ceiling", ceiling.to_string().into())
}

fn release(key: &str, hold: TxId) -> Op {
    entry(
        serde_json::json!({"kind": "release", "tenant": "t", "principal": "p", "key": key, "hold": hold.to_string()}),
    )
}

/// A day's limit counts what leaves: holds on the day they are made, and not what comes back on it.
#[test]
fn a_hold_takes_its_share_of_the_day_and_gives_back_what_it_did_not_pay() {
    let over = |seq| refused(Refusal::LimitsExceeded, seq);
    let mut book = book(Limits::default());
    book.commit(1, &loose(vec![issue("k1", "a", 9_000)]));
    let first = under(hold("h1", 600, 1), 1_000);
    let id = first.txid(2);
    let said = book.commit(
        DAY,
        &loose(vec![
            first,
            under(transfer("t1", "b", 401, 2), 1_000),
            capture("c1", id, "b", 100),
            under(transfer("t2", "b", 400, 2), 1_000),
        ]),
    );
    assert_eq!(pick(&said[0]), [true, false, true, true]);
    assert_eq!(said[0][1], over(3));
    // From the image: the day of the hold is known after a restart.
    book.state = State::from_image(&image(&book.state)).unwrap();
    let brief = with(
        hold("h2", 500, 3),
        "expires_at",
        Timestamp(DAY + 10).to_string().into(),
    );
    let said = book.commit(DAY, &loose(vec![release("r1", id), under(brief, 1_000)]));
    assert_eq!(pick(&said[0]), [true, true], "the rest of 500 came back");
    let kept = under(hold("h3", 500, 4), 1_000);
    let kept_id = kept.txid(9);
    let said = book.commit(DAY + 10, &loose(vec![kept]));
    assert!(done(&said[0][0]), "an expired hold came back");
    let said = book.commit(
        2 * DAY,
        &loose(vec![
            under(transfer("t3", "b", 1_000, 5), 1_000),
            capture("c2", kept_id, "b", 200),
            release("r2", kept_id),
            under(transfer("t4", "b", 1, 6), 1_000),
        ]),
    );
    assert_eq!(pick(&said[0]), [true, true, true, false]);
    replays(&book);
}

/// Refusals have leaves as long as the budget of their principal lasts.
#[test]
fn refusals_beyond_the_budget_have_no_leaf() {
    let mut book = book(Limits {
        refusals: 3,
        ..Limits::default()
    });
    let over = |key: &str| transfer(key, "b", 9_000, 1);
    let broke = |seq| refused(Refusal::InsufficientFunds, seq);
    let beyond = Outcome::Rejected(Refusal::RefusalBudget);
    let mut at = |now, ops: Vec<Op>| book.commit(now, &loose(ops)).remove(0);
    at(1_000, vec![issue("k1", "a", 100)]);
    let said = at(1_000, ["x1", "x2", "x3", "x4"].map(over).to_vec());
    assert_eq!(said, [broke(2), broke(3), broke(4), beyond.clone()]);
    // The key is unused; another principal has a budget of its own.
    let mut other = serde_json::to_value(Entry::from(&over("x4"))).unwrap();
    other["principal"] = "q".into();
    assert_eq!(at(1_000, vec![entry(other)]), [broke(5)]);
    assert_eq!(at(1_999, vec![over("x4")]), std::slice::from_ref(&beyond));
    assert_eq!(
        at(2_000, vec![over("x4"), over("x5")]),
        [broke(6), beyond.clone()]
    );
    // Four done entries earn one.
    let pay = |key: &str| with(transfer(key, "b", 1, 1), "nonce", serde_json::Value::Null);
    assert!(
        at(2_000, ["y1", "y2", "y3"].map(pay).to_vec())
            .iter()
            .all(done)
    );
    assert_eq!(at(2_000, vec![over("x5")]), std::slice::from_ref(&beyond));
    assert!(at(2_000, vec![pay("y4")]).iter().all(done));
    assert_eq!(at(2_000, vec![over("x5")]), [broke(11)]);
    // Two refusals of one linked commit do not fit one unit; nothing of it is recorded.
    let linked = vec![pay("z1"), over("z2")];
    let said = book
        .commit(3_000, &[(linked.clone(), Atomicity::Linked)])
        .remove(0);
    assert_eq!(said, [Outcome::Rejected(Refusal::LinkedFailed), beyond]);
    book.state = State::from_image(&image(&book.state)).unwrap();
    let said = book.commit(4_000, &[(linked, Atomicity::Linked)]).remove(0);
    let short = Some(Err(RefusalCode::InsufficientFunds));
    assert_eq!(said_of(&said[1]), short);
    // A full budget has no row.
    assert_eq!(book.state.refusals.len(), 1);
    book.commit(9_000, &loose(vec![issue("k2", "a", 1)]));
    assert!(book.state.refusals.is_empty());
    replays(&book);
}

fn budget(name: &str, total: Option<u128>, daily: Option<u128>, until: u64) -> serde_json::Value {
    let limit = |most: Option<u128>| most.map(|n| n.to_string());
    serde_json::json!({"id": BudgetId::derive(name), "total": limit(total), "daily": limit(daily),
        "until": Timestamp(until).to_string()})
}

/// The budgets of tokens bind all that they move, holds and captures once.
#[test]
fn a_token_spends_its_budget_and_no_more() {
    const END: u64 = 9 * DAY;
    let of = |op: Op, budgets: &[serde_json::Value]| with(op, "budgets", budgets.to_vec().into());
    let token = || budget("token", Some(100), None, END);
    let both = || [token(), budget("child", Some(30), Some(20), END)];
    let mut book = book(Limits::default());
    let spent = |book: &Book, name: &str| book.state.budget(BudgetId::derive(name)).spent;
    book.commit(1, &loose(vec![issue("k1", "a", 5_000)]));
    let own = of(hold("h1", 40, 1), &[token()]);
    let id = own.txid(2);
    let said = book.commit(
        DAY,
        &loose(vec![
            own,
            of(transfer("t1", "b", 61, 2), &[token()]),
            // The hold has paid for its captures; another budget pays for its own.
            of(capture("c1", id, "b", 10), &[token()]),
            of(capture("c2", id, "b", 21), &both()),
            of(capture("c3", id, "b", 10), &both()),
            of(transfer("t2", "b", 11, 2), &both()),
            of(transfer("t3", "b", 10, 2), &both()),
        ]),
    );
    assert_eq!(
        pick(&said[0]),
        [true, false, true, false, true, false, true]
    );
    assert_eq!((spent(&book, "token"), spent(&book, "child")), (50, 20));
    book.state = State::from_image(&image(&book.state)).unwrap();
    let said = book.commit(
        2 * DAY,
        &loose(vec![
            of(transfer("t4", "b", 11, 3), &both()),
            of(transfer("t5", "b", 10, 3), &both()),
            release("r1", id),
            of(issue("k2", "a", 61), &[token()]),
            of(issue("k3", "a", 60), &[token()]),
        ]),
    );
    assert_eq!(pick(&said[0]), [false, true, true, false, true]);
    assert_eq!((spent(&book, "token"), spent(&book, "child")), (100, 30));
    // Within one linked commit the second debit sees the first.
    let linked = vec![
        of(
            transfer("l1", "b", 3, 4),
            &[budget("third", Some(5), None, END)],
        ),
        of(
            transfer("l2", "b", 3, 5),
            &[budget("third", Some(5), None, END)],
        ),
    ];
    let said = book
        .commit(2 * DAY, &[(linked, Atomicity::Linked)])
        .remove(0);
    let over = Some(Err(RefusalCode::LimitsExceeded));
    assert_eq!(said_of(&said[1]), over);
    assert_eq!(spent(&book, "third"), 0);
    // The token has ended: the state forgets its budget.
    book.commit(END + 1, &loose(vec![issue("k4", "a", 1)]));
    assert_eq!((spent(&book, "token"), spent(&book, "child")), (0, 0));
    replays(&book);
}

#[test]
fn budgets_are_well_formed() {
    let check = |budgets: Vec<serde_json::Value>| {
        let mut json = serde_json::to_value(Entry::from(&issue("k", "a", 1))).unwrap();
        json["budgets"] = budgets.into();
        let made = Op::new(serde_json::from_value::<Entry>(json).unwrap(), &salts());
        made.map_err(|bad| bad.field).map(drop)
    };
    let one = |name: &str| budget(name, Some(1), None, DAY);
    assert_eq!(check(vec![one("a"), one("b")]), Ok(()));
    assert_eq!(check(vec![one("a"), one("a")]), Err("budgets"));
    assert_eq!(check(vec![budget("a", None, None, DAY)]), Err("budgets"));
    let many = |n: usize| (0..n).map(|i| one(&i.to_string())).collect();
    assert_eq!(check(many(17)), Ok(()));
    assert_eq!(check(many(18)), Err("budgets"));
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
        Limit::RegisteredAssets,
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
    assert!(with(&[0xfe, 4, 7]).unwrap_err().why.contains("limit 4"));
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
            book.limits = Limits { accounts, account_total, ..Limits::default() };
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
                        let had = before.account(&row.name).map_or(0, |r| r.balance(b.asset).level().amount().0);
                        let level = b.level().amount().0;
                        prop_assert!(level <= had.max(account_total), "{}: {level}", row.name);
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
        *nonce = Some(state.account(from).map_or(0, |r| r.nonce) + 1);
    }
    e
}
