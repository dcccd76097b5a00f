//! What must hold at the end of a run: pages and messages are those of the log, and the log is what the model decides.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::Account;
use ron_proto::ledger::{EntryAnswer, EntryKind, Event, StatementTime, TrialBalance};
use ron_proto::wallet::{Balance, HistoryEntry, HistoryPage, Statement};
use ron_sim::ensure;

use super::lists;
use super::past::{self, Total};
use super::payer::Payer;
use super::reader::{Asked, Page, Reader};
use super::receiver::{Arrival, Receiver};
use super::{ENDPOINTS, has};
use crate::model::Model;
use crate::money::requests::Answer;

/// The entries that an endpoint gets, oldest first; of the first two only those that came after its own start.
pub fn due<'l>(log: &'l [Event], accounts: &[&str]) -> Vec<&'l Event> {
    let is_due = |event: &&Event| {
        event.answer.receipt().is_some_and(|receipt| {
            let mut names = receipt.from.iter().chain(&receipt.to);
            names.any(|account| has(accounts, account.as_str()))
        })
    };
    log.iter().filter(is_due).collect()
}

pub fn all(log: &[Event], payers: &[Payer], reader: &mut Reader, receiver: &Receiver) {
    follow(log);
    for payer in payers {
        answers_are_in(log, payer);
    }
    for page in std::mem::take(&mut reader.pages) {
        let same = match &page {
            Page::History(asked, page) => history(log, asked, page),
            Page::Statement(after, limit, page) => statement(log, *after, *limit, page),
            Page::Balance(at, read) => balance(log, *at, read),
            Page::Totals(at, read) => totals(log, *at, read),
            Page::Accounts(after, limit, least, page) => {
                lists::accounts(log, after.as_ref(), (*limit, *least), page)
            }
            Page::Holds(of, before, limit, page) => lists::holds(log, of, *before, *limit, page),
        };
        if let Err(why) = same {
            ensure(false, &format!("{why}\n  in {page:?}"));
        }
    }
    let arrivals = receiver.arrivals();
    ids_are_of_one_message(&arrivals);
    for (name, accounts) in ENDPOINTS {
        let due = due(log, accounts);
        let of: Vec<&Arrival> = arrivals.iter().filter(|a| a.endpoint == name).collect();
        in_order(name, &due, &of);
        for arrival in of {
            let event = due.iter().find(|e| e.seq == arrival.message.data.seq);
            let event = event.expect("it is due");
            content(event, accounts, arrival);
        }
    }
}

fn follow(log: &[Event]) {
    let mut model = Model::default();
    while model.seq() < log.len() as u64 {
        let taken = model.take(&log[model.seq() as usize..]);
        ensure(taken.is_ok(), &format!("{taken:?}"));
    }
}

fn answers_are_in(log: &[Event], payer: &Payer) {
    for paid in &payer.paid {
        let is_of = |event: &&Event| {
            let key = event.entry.request_key();
            key.is_some_and(|key| key.key.as_str() == paid.key)
        };
        let ends: Vec<&Event> = log.iter().filter(is_of).collect();
        let agrees = match &paid.answer {
            Some(Answer::Done(receipt)) => {
                ends.len() == 1 && ends[0].answer.receipt() == Some(receipt)
            }
            _ => !ends.iter().any(|end| end.answer.receipt().is_some()),
        };
        ensure(agrees, &format!("{paid:?}, but the log has {ends:?}"));
    }
}

pub fn require(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// What a page must show of an entry, with its texts, which are the reader's own.
fn same_entry(event: &Event, shown: &HistoryEntry, texts: bool) -> Result<(), String> {
    let operands = event.operands();
    let refused = match &event.answer {
        EntryAnswer::Refused { code, .. } => Some(*code),
        EntryAnswer::Done { .. } => None,
    };
    let details = operands.details;
    let wanted = HistoryEntry {
        seq: event.seq,
        ts: event.ts,
        op: event.entry.kind(),
        txid: event.answer.receipt().map(|r| r.txid),
        refused,
        from: operands.from,
        to: operands.to,
        asset: operands.asset,
        amount_minor: operands.amount_minor,
        balance_minor: shown.balance_minor,
        nonce: operands.nonce.filter(|_| texts),
        hold: event.answer.receipt().and_then(|r| r.hold),
        batch: event.answer.receipt().and_then(|r| r.batch),
        reverses: event.answer.receipt().and_then(|r| r.reverses),
        reference: details
            .reference
            .filter(|_| texts || details.share_reference),
        memo: details.memo.filter(|_| texts),
        metadata: details.metadata.filter(|_| texts),
        effective_at: details.effective_at.filter(|_| texts),
    };
    require(wanted == *shown, || format!("{shown:?} is not {wanted:?}"))
}

fn matches(event: &Event, account: &Account, asked: &Asked) -> bool {
    let of = event.operands();
    let is = |side: &Option<Account>| side.as_ref() == Some(account);
    let other = |other: &Account| {
        let with = |side: &Option<Account>| side.as_ref() == Some(other);
        (is(&of.from) && with(&of.to)) || (is(&of.to) && with(&of.from))
    };
    let reference = of.details.reference.as_ref().map(|r| r.as_str());
    let colour = of.details.metadata.as_ref().and_then(|m| m.get("colour"));
    past::names(event, account)
        && (asked.asset.is_none() || asked.asset == of.asset)
        && asked.direction.is_none_or(|way| match way {
            "in" => is(&of.to),
            _ => is(&of.from),
        })
        && asked.counterparty.as_ref().is_none_or(other)
        && asked
            .reference
            .is_none_or(|wanted| reference == Some(wanted))
        && asked.colour.is_none_or(|wanted| colour == Some(wanted))
}

/// A page is what the log has up to the sequence that it names, and says rightly where it goes on.
fn history(log: &[Event], asked: &Asked, page: &HistoryPage) -> Result<(), String> {
    let newer = page.newer;
    require(newer <= page.head && page.head <= log.len() as u64, || {
        format!(
            "it is as of {newer}, and the ledger's last is {}",
            page.head
        )
    })?;
    let matching = log[..newer as usize].iter();
    let mut matching: Vec<&Event> = matching
        .filter(|event| matches(event, &page.account, asked))
        .filter(|event| asked.after.is_none_or(|after| event.seq > after))
        .collect();
    matching.reverse();
    if asked.after.is_none() {
        let more = matching.len() as u64 > asked.limit;
        matching.truncate(asked.limit as usize);
        let older = matching.last().map(|event| event.seq).filter(|_| more);
        require(page.older == older, || format!("it goes on at {older:?}"))?;
    }
    let seqs = |page: &[HistoryEntry]| page.iter().map(|e| e.seq).collect::<Vec<_>>();
    let wanted: Vec<u64> = matching.iter().map(|event| event.seq).collect();
    require(seqs(&page.entries) == wanted, || {
        format!("it must have {wanted:?}")
    })?;
    for (event, shown) in matching.iter().zip(&page.entries) {
        same_entry(event, shown, true)?;
        let sum = |asset| past::total(&log[..event.seq as usize], &page.account, asset).balance();
        let balance = event.operands().asset.as_ref().map(sum);
        require(shown.balance_minor == balance, || {
            format!("the balance after {} is {balance:?}", event.seq)
        })?;
    }
    Ok(())
}

fn statement(
    log: &[Event],
    after: Option<u64>,
    limit: u64,
    page: &Statement,
) -> Result<(), String> {
    require(page.as_of_seq <= log.len() as u64, || {
        "it is as of an entry to come".to_owned()
    })?;
    let (account, asset) = (&page.account, &page.asset);
    let log = &log[..page.as_of_seq as usize];
    let range = (page.from, page.until);
    let told = past::statement(log, (account, asset), page.by, range);
    let closing = Total {
        credits: told.before.credits + told.within.credits,
        debits: told.before.debits + told.within.debits,
    };
    let sums = (
        told.before.balance(),
        told.within.credits,
        told.within.debits,
        closing.balance(),
    );
    let said = (
        page.opening_minor,
        page.credits_minor.0,
        page.debits_minor.0,
        page.closing_minor,
    );
    require(said == sums, || format!("its sums are {sums:?}"))?;
    let mut entries = told.entries;
    let mut next = None;
    if page.by == StatementTime::Entry {
        entries.retain(|event| event.seq > after.unwrap_or(0));
        if entries.len() as u64 > limit {
            entries.truncate(limit as usize);
            next = entries.last().map(|event| event.seq);
        }
    }
    require(page.next == next, || format!("it goes on at {next:?}"))?;
    let wanted: Vec<u64> = entries.iter().map(|event| event.seq).collect();
    let seqs: Vec<u64> = page.entries.iter().map(|e| e.seq).collect();
    require(seqs == wanted, || format!("it must have {wanted:?}"))?;
    for (event, shown) in entries.iter().zip(&page.entries) {
        same_entry(event, shown, true)?;
        let sum = past::total(&log[..event.seq as usize], account, asset).balance();
        let balance = (page.by == StatementTime::Entry).then_some(sum);
        require(shown.balance_minor == balance, || {
            format!("the balance after {} is {balance:?}", event.seq)
        })?;
    }
    Ok(())
}

fn balance(log: &[Event], at: u64, read: &Balance) -> Result<(), String> {
    let sum = past::total(&log[..at as usize], &read.account, &read.asset).balance();
    let said = (read.amount_minor, read.overdrawn_minor, read.as_of_seq);
    require(said == (sum.amount(), sum.overdrawn(), at), || {
        format!("the balance at {at} is {sum:?}")
    })
}

fn totals(log: &[Event], at: u64, read: &TrialBalance) -> Result<(), String> {
    let (mut issued, mut burned, mut moved) = (0, 0, 0);
    for receipt in log[..at as usize].iter().filter_map(|e| e.answer.receipt()) {
        if receipt.asset.as_ref() != Some(&read.asset) || !receipt.op.moves_money() {
            continue;
        }
        let amount = receipt.amount_minor.map_or(0, |amount| amount.0);
        match receipt.op {
            EntryKind::Issue => issued += amount,
            EntryKind::Burn => burned += amount,
            _ => moved += amount,
        }
    }
    let sums = (issued, burned, issued + moved, burned + moved, at);
    let said = (
        read.issued_minor.0,
        read.burned_minor.0,
        read.credits_minor.0,
        read.debits_minor.0,
        read.seq,
    );
    require(said == sums, || format!("the totals at {at} are {sums:?}"))
}

/// A message has its id for ever, and no other message has it.
fn ids_are_of_one_message(arrivals: &[Arrival]) {
    let mut ids = BTreeMap::new();
    for arrival in arrivals {
        let message = (arrival.endpoint, arrival.message.data.seq);
        let first = ids.entry(message).or_insert(&arrival.id);
        let text = format!("{message:?} has the ids {first} and {}", arrival.id);
        ensure(*first == &arrival.id, &text);
    }
    let distinct: BTreeSet<_> = ids.values().collect();
    ensure(distinct.len() == ids.len(), "two messages have one id");
}

/// Messages come in the order of the log, each when the one before it was accepted. What was accepted may come once more: after
/// a lost answer, and after the cursor was set back.
fn in_order(name: &str, due: &[&Event], arrivals: &[&Arrival]) {
    let index = |arrival: &Arrival| {
        let seq = arrival.message.data.seq;
        due.iter().position(|event| event.seq == seq)
    };
    let early = due.iter().filter(|event| event.seq <= 2).count();
    let first = arrivals.first().and_then(|first| index(first));
    let mut next = first.unwrap_or(0).min(early);
    let mut backs = 0;
    let mut accepted_at = vec![0; due.len()];
    for arrival in arrivals {
        let seq = arrival.message.data.seq;
        let at = index(arrival);
        // The operator may set a cursor behind the entries with which the world begins.
        if let Some(at) = at
            && at > next
            && at <= early
        {
            next = at;
        }
        let text = || format!("{name} gets {seq}, expected is number {next} of the log's");
        ensure(at.is_some(), &format!("{}: it is not due", text()));
        let at = at.unwrap_or(0);
        ensure(
            at <= next,
            &format!("{}: one before it was not accepted", text()),
        );
        let again = at + 1 == next || at == next;
        // It was under way when a later attempt was accepted.
        let late = at < next && arrival.signed_s <= accepted_at[at];
        if !again && !late {
            let may_go_back = arrival.backs > backs;
            ensure(may_go_back, &format!("{}: it was accepted before", text()));
            backs = arrival.backs;
            next = at;
        }
        if arrival.accepted && at >= next.saturating_sub(1) && !late {
            accepted_at[at] = arrival.signed_s;
            next = at + 1;
        }
    }
}

fn content(event: &Event, accounts: &[&str], arrival: &Arrival) {
    let message = &arrival.message;
    let kind = format!("entry.{}", event.entry.kind().as_str());
    let named = message.kind == kind && message.timestamp == event.ts;
    ensure(named, &format!("{message:?} is of {event:?}"));
    let from = event.operands().from;
    // The endpoint's tenant made every entry, but those that the ledger makes itself.
    let texts = from.is_some_and(|from| has(accounts, from.as_str()))
        && event.entry.request_key().is_some();
    let same = same_entry(event, &message.data, texts);
    ensure(
        same.is_ok() && message.data.balance_minor.is_none(),
        &format!("{same:?}"),
    );
}
