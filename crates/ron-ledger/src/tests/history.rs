//! What the projection answers, against the same worked out from all entries.

use std::collections::BTreeMap;

use ron_kernel::{Random as _, SeededRandom};
use ron_proto::ledger::{
    AccountPage, Details, Direction, Entry, EntryAnswer, EntryKind, EntryPage, EntrySearch, Event,
    EventPage, HoldPage, HoldState, PastBalance, StatementPage, TrialBalance, Viewer,
};
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};

use super::service::{Rig, rig};

const ACCOUNTS: [&str; 4] = ["a", "b", "c", "shop/1"];
const ASSETS: [&str; 2] = ["ron", "usd"];
const REFERENCES: [&str; 3] = ["order 1", "order 2", "order 3"];
const DAY_MS: u64 = 86_400_000;
const FAR: Timestamp = Timestamp(4_000_000_000_000);

fn pick<'a>(random: &SeededRandom, among: &[&'a str]) -> &'a str {
    among[random.u64() as usize % among.len()]
}

/// An entry of one of two principals in two tenants, with texts and times of all sorts.
fn entry(random: &SeededRandom, n: usize, holds: &[Event], today: u64) -> Entry {
    let tenant = pick(random, &["t", "u"]).parse().unwrap();
    let principal = pick(random, &["p", "q"]).parse().unwrap();
    let key = format!("k{n}").parse().unwrap();
    let maybe = |odds: u64| random.u64().is_multiple_of(odds);
    let days_off = random.u64() % 4;
    let details = Details {
        reference: maybe(2).then(|| pick(random, &REFERENCES).parse().unwrap()),
        metadata: maybe(2).then(|| {
            let value = pick(random, &["red", "blue"]).to_owned();
            BTreeMap::from([("colour".to_owned(), value)])
                .try_into()
                .unwrap()
        }),
        effective_at: maybe(3).then(|| Timestamp(today + DAY_MS - days_off * DAY_MS)),
        share_reference: maybe(2),
        ..Details::default()
    };
    let from: Account = pick(random, &ACCOUNTS).parse().unwrap();
    let to: Account = pick(random, &ACCOUNTS).parse().unwrap();
    let asset: Asset = pick(random, &ASSETS).parse().unwrap();
    let amount_minor = Amount(u128::from(1 + random.u64() % 20));
    let hold = holds.get(random.u64() as usize % holds.len().max(1));
    match (random.u64() % 6, hold) {
        (0, _) => Entry::Hold {
            tenant,
            principal,
            key,
            from,
            asset,
            amount_minor,
            up_to: None,
            nonce: None,
            expires_at: FAR,
            details,
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        },
        (1, Some(hold)) => Entry::Capture {
            tenant,
            principal,
            key,
            hold: hold.answer.receipt().unwrap().txid.into(),
            to,
            amount_minor: maybe(2).then_some(amount_minor),
            ends_hold: maybe(2),
            details,
            batch: None,
            budgets: Vec::new(),
        },
        (2, Some(hold)) => Entry::Release {
            tenant,
            principal,
            key,
            hold: hold.answer.receipt().unwrap().txid.into(),
            details,
            batch: None,
        },
        (3 | 4, _) if from != to => Entry::Transfer {
            tenant,
            principal,
            key,
            from,
            to,
            asset,
            amount_minor,
            up_to: None,
            nonce: None,
            details,
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        },
        _ => Entry::Issue {
            tenant,
            principal,
            key,
            to,
            asset,
            amount_minor,
            details,
            batch: None,
            budgets: Vec::new(),
        },
    }
}

fn all_events(rig: &Rig) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event.seq);
        let page: EventPage = rig.get(&format!("/v1/ledger/events?after={after}"));
        if page.events.is_empty() {
            return events;
        }
        events.extend(page.events);
    }
}

/// The accounts, asset and amount of an entry as its receipt or else its request names them.
fn named(
    event: &Event,
) -> (
    Option<Account>,
    Option<Account>,
    Option<Asset>,
    Option<Amount>,
) {
    let asked = event.entry.operands();
    assert_eq!(event.entry.asset(), asked.asset.as_ref());
    match event.answer.receipt() {
        Some(r) => (
            r.from.clone(),
            r.to.clone(),
            r.asset.clone(),
            r.amount_minor,
        ),
        None => (asked.from, asked.to, asked.asset, asked.amount_minor),
    }
}

fn matches(search: &EntrySearch, event: &Event) -> bool {
    let (from, to, asset, _) = named(event);
    let details = event.entry.operands().details;
    let made = event.entry.request_key().unwrap();
    let account = search.account.as_ref();
    let own_principal = |v: &Viewer| made.tenant == v.tenant && made.principal == v.principal;
    let own = |v: &Viewer| {
        own_principal(v)
            || (made.tenant == v.tenant && account.is_some() && from.as_ref() == account)
    };
    let viewer = search.viewer.as_ref();
    let metadata = details.metadata.as_ref();
    let of_account = account.is_none_or(|a| match search.direction {
        Some(Direction::In) => to.as_ref() == Some(a),
        Some(Direction::Out) => from.as_ref() == Some(a),
        None => from.as_ref() == Some(a) || to.as_ref() == Some(a),
    });
    let other = search.counterparty.as_ref().is_none_or(|other| {
        let pair = [from.as_ref(), to.as_ref()];
        pair == [account, Some(other)] || pair == [Some(other), account]
    });
    let reference = search.reference.as_ref().is_none_or(|wanted| {
        let seen = |v: &Viewer| match account {
            Some(_) => details.share_reference || own(v),
            None => made.tenant == v.tenant,
        };
        details.reference.as_ref() == Some(wanted) && viewer.is_none_or(seen)
    });
    let members = search.metadata.iter().all(|member| {
        metadata.and_then(|m| m.get(member.name())) == Some(member.value())
            && viewer.is_none_or(own)
    });
    let hold = event.answer.receipt().and_then(|r| r.hold);
    of_account
        && other
        && reference
        && members
        && search.hold.is_none_or(|wanted| hold == Some(wanted))
        && search
            .asset
            .as_ref()
            .is_none_or(|wanted| asset.as_ref() == Some(wanted))
        && search.kind.is_none_or(|kind| event.entry.kind() == kind)
        && search.from.is_none_or(|ts| event.ts >= ts)
        && search.until.is_none_or(|ts| event.ts < ts)
        && (event.answer.receipt().is_some() || viewer.is_none_or(own_principal))
}

fn any_search(random: &SeededRandom, events: &[Event]) -> EntrySearch {
    let maybe = |odds: u64| random.u64().is_multiple_of(odds);
    let some_event = || &events[random.u64() as usize % events.len()];
    let account: Option<Account> = (!maybe(4)).then(|| pick(random, &ACCOUNTS).parse().unwrap());
    let of_account = account.is_some();
    EntrySearch {
        reference: maybe(3).then(|| pick(random, &REFERENCES).parse().unwrap()),
        hold: maybe(6)
            .then(|| some_event().answer.receipt().and_then(|r| r.hold))
            .flatten(),
        asset: maybe(3).then(|| pick(random, &ASSETS).parse().unwrap()),
        kind: maybe(4).then_some(EntryKind::Transfer),
        direction: (of_account && maybe(3)).then_some(if maybe(2) {
            Direction::In
        } else {
            Direction::Out
        }),
        counterparty: (of_account && maybe(5)).then(|| pick(random, &ACCOUNTS).parse().unwrap()),
        metadata: if maybe(4) {
            vec!["colour=red".parse().unwrap()]
        } else {
            Vec::new()
        },
        from: maybe(5).then(|| some_event().ts),
        until: maybe(5).then(|| some_event().ts),
        viewer: maybe(2).then(|| Viewer {
            tenant: pick(random, &["t", "u"]).parse().unwrap(),
            principal: pick(random, &["p", "q"]).parse().unwrap(),
        }),
        account,
        limit: 1 + random.u64() % 9,
        min_seq: events.len() as u64,
        ..EntrySearch::default()
    }
}

fn ask(rig: &Rig, search: &EntrySearch) -> EntryPage {
    let query = search.pairs().into_iter().map(|(name, value)| {
        let value = value
            .replace(' ', "%20")
            .replace('/', "%2F")
            .replace('=', "%3D");
        format!("{name}={value}")
    });
    rig.get(&format!(
        "/v1/ledger/entries?{}",
        query.collect::<Vec<_>>().join("&")
    ))
}

/// Every page of a search, following its cursors down, and up again from before the first entry.
fn both_ways(rig: &Rig, search: &EntrySearch) -> [Vec<u64>; 2] {
    let seqs = |page: &EntryPage| page.entries.iter().map(|e| e.event.seq).collect::<Vec<_>>();
    let mut down = Vec::new();
    let mut page = ask(rig, search);
    down.extend(seqs(&page));
    while let Some(before) = page.older {
        page = ask(
            rig,
            &EntrySearch {
                before: Some(before),
                ..search.clone()
            },
        );
        down.extend(seqs(&page));
    }
    let mut up = Vec::new();
    let mut after = 0;
    loop {
        page = ask(
            rig,
            &EntrySearch {
                after: Some(after),
                ..search.clone()
            },
        );
        let found = seqs(&page);
        up.extend(found.iter().rev());
        if found.is_empty() && page.newer >= search.min_seq {
            return [down, up];
        }
        after = page.newer;
    }
}

#[test]
fn searches_balances_statements_and_holds_are_those_of_the_entries() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let seed = 20_261_125;
    let random = SeededRandom::new(seed);
    let today = {
        let first = rig.commit(vec![super::support::issue("first", "a", 1_000)]);
        let EntryAnswer::Done { receipt, .. } = &first[0] else {
            panic!("{first:?}");
        };
        Timestamp::from_utc_day(receipt.ts.utc_day()).0
    };
    let mut holds: Vec<Event> = Vec::new();
    for round in 0..20 {
        let entries = (0..15).map(|n| entry(&random, round * 15 + n, &holds, today));
        rig.commit(entries.collect());
        let made = all_events(&rig).into_iter().filter(|event| {
            event.entry.kind() == EntryKind::Hold && event.answer.receipt().is_some()
        });
        holds = made.collect();
    }
    let events = all_events(&rig);
    for n in 0..150 {
        let search = any_search(&random, &events);
        let mut want: Vec<u64> = events
            .iter()
            .filter(|event| matches(&search, event))
            .map(|event| event.seq)
            .collect();
        let [down, up] = both_ways(&rig, &search);
        assert_eq!(up, want, "seed {seed}, search {n} upwards: {search:?}");
        want.reverse();
        assert_eq!(down, want, "seed {seed}, search {n}: {search:?}");
    }
    balances(&rig, &events);
    statements(&rig, &events, today);
    listed_holds(&rig, &events);
}

/// Balance and held amount of an account and asset after some entries.
fn worked_out(events: &[Event], account: &str, asset: &str) -> (u128, u128) {
    let (mut balance, mut open) = (0u128, BTreeMap::new());
    for event in events {
        let Some(r) = event.answer.receipt() else {
            continue;
        };
        if r.asset.as_ref().is_none_or(|a| a.as_str() != asset) {
            continue;
        }
        let amount = r.amount_minor.unwrap().0;
        let is = |a: &Option<Account>| a.as_ref().is_some_and(|a| a.as_str() == account);
        match (&event.entry, r.hold) {
            (Entry::Hold { .. }, _) => {
                if is(&r.from) {
                    open.insert(r.txid, amount);
                }
                continue;
            }
            (Entry::Capture { ends_hold, .. }, Some(hold)) => {
                if let Some(left) = open.get_mut(&hold) {
                    *left -= amount;
                    if *ends_hold {
                        *left = 0;
                    }
                }
            }
            (_, Some(hold)) => {
                open.remove(&hold);
                continue;
            }
            _ => {}
        }
        if is(&r.to) {
            balance += amount;
        }
        if is(&r.from) {
            balance -= amount;
        }
    }
    (balance, open.values().sum())
}

fn balances(rig: &Rig, events: &[Event]) {
    for account in ACCOUNTS {
        for asset in ASSETS {
            for at in [0, 1, 7, 150, events.len()] {
                let path = account.replace('/', "%2F");
                let by_seq: PastBalance = rig.get(&format!(
                    "/v1/ledger/accounts/{path}/balance?asset={asset}&at={at}"
                ));
                let want = worked_out(&events[..at], account, asset);
                assert_eq!(
                    (by_seq.amount_minor.0, by_seq.held_minor.0),
                    want,
                    "{account} {at}"
                );
                let ts = by_seq.ts;
                let until = events.iter().filter(|event| event.ts <= ts).count();
                let by_time: PastBalance = rig.get(&format!(
                    "/v1/ledger/accounts/{path}/balance?asset={asset}&at={ts}"
                ));
                assert_eq!(by_time.seq, until as u64);
                let want = worked_out(&events[..until], account, asset);
                assert_eq!((by_time.amount_minor.0, by_time.held_minor.0), want);
            }
        }
    }
    trial_balances(rig, events);
    let late = format!(
        "/v1/ledger/accounts/a/balance?asset=ron&at={}",
        events.len() + 1
    );
    assert_eq!(rig.send("reader", &late, None).0, 400);
    let page: AccountPage = rig.get("/v1/ledger/accounts?prefix=shop&limit=1");
    let listed: Vec<_> = page.accounts.iter().map(|a| a.account.as_str()).collect();
    assert_eq!((listed, page.next), (vec!["shop/1"], None));
    let (status, body) = rig.send("of-t", "/v1/ledger/accounts?limit=3", None);
    let page: AccountPage = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (status, page.accounts.len()),
        (200, 0),
        "no pool of the tenant"
    );
    let page: AccountPage = rig.get("/v1/ledger/accounts?limit=3");
    assert_eq!(page.accounts.len(), 3);
    assert_eq!(page.next.map(|a| a.to_string()), Some("c".to_owned()));
    let ron = &page.accounts[0].balances[0];
    assert_eq!(ron.amount_minor.0, worked_out(events, "a", "ron").0);
}

/// After every third entry, the sums over all accounts are those of the entries.
fn trial_balances(rig: &Rig, events: &[Event]) {
    for (until, asset) in (0..=events.len())
        .step_by(3)
        .flat_map(|n| ASSETS.map(|a| (n, a)))
    {
        let moved = events[..until].iter().filter(|event| {
            let receipt = event.answer.receipt();
            let (_, _, of, _) = named(event);
            receipt.is_some_and(|r| r.op.moves_money()) && of.is_some_and(|of| of.as_str() == asset)
        });
        let (mut credits, mut debits) = (0, 0);
        for event in moved {
            let (from, to, _, amount) = named(event);
            let amount = amount.unwrap().0;
            credits += to.map_or(0, |_| amount);
            debits += from.map_or(0, |_| amount);
        }
        let sums: TrialBalance = rig.get(&format!(
            "/v1/ledger/assets/{asset}/trial-balance?at={until}"
        ));
        let found = (sums.credits_minor.0, sums.debits_minor.0);
        assert_eq!(found, (credits, debits), "{asset} at {until}");
    }
}

fn level(amount: u128) -> SignedAmount {
    Amount(amount).into()
}

fn statements(rig: &Rig, events: &[Event], today: u64) {
    for account in ACCOUNTS {
        let path = account.replace('/', "%2F");
        let moved = |event: &&Event| {
            let receipt = event.answer.receipt();
            let (from, to, asset, _) = named(event);
            let is = |a: &Option<Account>| a.as_ref().is_some_and(|a| a.as_str() == account);
            receipt.is_some()
                && asset.is_some_and(|asset| asset.as_str() == "ron")
                && (is(&from) || is(&to))
                && !matches!(event.entry.kind(), EntryKind::Hold | EntryKind::Release)
        };
        let (from, until) = (events[60].ts, events[220].ts);
        let before = events.iter().filter(|event| event.ts < from).count();
        let end = events.iter().filter(|event| event.ts < until).count();
        let mut seqs = Vec::new();
        let mut after = 0;
        loop {
            let page: StatementPage = rig.get(&format!(
                "/v1/ledger/accounts/{path}/statement?asset=ron&from={from}&until={until}&limit=7&after={after}"
            ));
            assert_eq!(
                page.opening_minor,
                level(worked_out(&events[..before], account, "ron").0)
            );
            assert_eq!(
                page.closing_minor,
                level(worked_out(&events[..end], account, "ron").0)
            );
            let sum = page.opening_minor.amount().0 + page.credits_minor.0 - page.debits_minor.0;
            assert_eq!(level(sum), page.closing_minor);
            for found in &page.entries {
                let seq = found.event.seq;
                let want = worked_out(&events[..seq as usize], account, "ron").0;
                assert_eq!(found.balance_minor, Some(level(want)));
                seqs.push(seq);
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        let want = events[before..end].iter().filter(moved).map(|e| e.seq);
        assert_eq!(seqs, want.collect::<Vec<_>>(), "{account}");

        // A payee has the entry on the day on which it came.
        let day_of = |event: &Event| {
            let at = event.entry.operands().details.effective_at;
            let paid = named(event).0.is_some_and(|from| from.as_str() != account);
            at.filter(|_| !paid).unwrap_or(event.ts).utc_day()
        };
        let first = Timestamp(today - DAY_MS);
        let last = Timestamp(today + DAY_MS);
        let page: StatementPage = rig.get(&format!(
            "/v1/ledger/accounts/{path}/statement?asset=ron&from={first}&until={last}&by=effective"
        ));
        let mut want: Vec<&Event> = events.iter().filter(moved).collect();
        let change = |events: &[&Event]| {
            let owned: Vec<Event> = events.iter().map(|e| (*e).clone()).collect();
            owned.iter().fold(0i128, |sum, event| {
                let (from, to, _, amount) = named(event);
                let amount = amount.unwrap().0 as i128;
                let is = |a: &Option<Account>| a.as_ref().is_some_and(|a| a.as_str() == account);
                sum + if is(&to) { amount } else { 0 } - if is(&from) { amount } else { 0 }
            })
        };
        let days = first.utc_day()..last.utc_day();
        let earlier: Vec<&Event> = want
            .iter()
            .copied()
            .filter(|e| day_of(e) < days.start)
            .collect();
        want.retain(|event| days.contains(&day_of(event)));
        want.sort_by_key(|event| (day_of(event), event.seq));
        let seqs: Vec<u64> = page.entries.iter().map(|e| e.event.seq).collect();
        assert_eq!(
            seqs,
            want.iter().map(|e| e.seq).collect::<Vec<_>>(),
            "{account}"
        );
        // A balance by effective day may be below zero.
        let opening = change(&earlier);
        assert_eq!(page.opening_minor.to_string(), opening.to_string());
        let closing = opening + change(&want);
        assert_eq!(page.closing_minor.to_string(), closing.to_string());
    }
    let uneven = "/v1/ledger/accounts/a/statement?asset=ron&from=2026-01-01T00:00:01Z&until=2026-02-01T00:00:00Z&by=effective";
    assert_eq!(rig.send("auditor", uneven, None).0, 400);
}

fn listed_holds(rig: &Rig, events: &[Event]) {
    for account in ACCOUNTS {
        let path = account.replace('/', "%2F");
        let read =
            |more: &str| -> HoldPage { rig.get(&format!("/v1/ledger/holds?account={path}{more}")) };
        let made: Vec<u64> = events
            .iter()
            .rev()
            .filter(|event| {
                event.entry.kind() == EntryKind::Hold
                    && event.answer.receipt().is_some_and(|r| {
                        r.from.as_ref().is_some_and(|from| from.as_str() == account)
                    })
            })
            .map(|event| event.seq)
            .collect();
        let all = read("");
        let seqs: Vec<u64> = all.holds.iter().map(|h| h.hold.seq()).collect();
        assert_eq!(seqs, made, "{account}");
        for asset in ASSETS {
            let open = read(&format!("&asset={asset}&state=open"));
            let held: u128 = open.holds.iter().map(|h| h.remaining_minor.0).sum();
            assert_eq!(
                held,
                worked_out(events, account, asset).1,
                "{account} {asset}"
            );
            assert!(open.holds.iter().all(|h| h.state == HoldState::Open));
        }
        let ended = all.holds.iter().filter(|h| h.state == HoldState::Ended);
        assert!(ended.clone().all(|h| h.remaining_minor.0 == 0));
        if made.len() > 1 {
            let first = read("&limit=1");
            let second = read(&format!("&limit=1&before={}", first.older.unwrap()));
            assert_eq!(
                [first.holds[0].hold.seq(), second.holds[0].hold.seq()],
                made[..2]
            );
        }
    }
}
