//! Lists of accounts and of holds, as the log has them.

use std::collections::BTreeSet;

use ron_proto::ledger::{AccountPage, EntryKind, Event, HoldPage, HoldRecord, HoldState};
use ron_proto::{Account, Asset};

use super::check::require;
use super::past;

/// Accounts that moved money in these entries, and the assets of each.
fn used(log: &[Event]) -> BTreeSet<(Account, Asset)> {
    let receipts = log.iter().filter_map(|event| event.answer.receipt());
    let moved = receipts.filter(|receipt| receipt.op.moves_money());
    let sides = moved.flat_map(|receipt| {
        let names = receipt.from.iter().chain(&receipt.to);
        let assets = receipt.asset.clone();
        names.filter_map(move |name| Some((name.clone(), assets.clone()?)))
    });
    sides.collect()
}

/// Every account between the name that a page begins after and the one at which the next begins that was used by the entry `least`,
/// with its balances at the sequence that the page names.
pub fn accounts(
    log: &[Event],
    after: Option<&Account>,
    (limit, least): (u64, u64),
    page: &AccountPage,
) -> Result<(), String> {
    let is_of_log = (least..=log.len() as u64).contains(&page.seq);
    require(is_of_log, || {
        format!("it is to be as of an entry after {least}")
    })?;
    let log = &log[..page.seq as usize];
    let listed: Vec<&Account> = page.accounts.iter().map(|of| &of.account).collect();
    let in_order = listed.windows(2).all(|pair| pair[0] < pair[1]);
    let begins = listed.first().is_none_or(|first| Some(*first) > after);
    require(in_order && begins && listed.len() as u64 <= limit, || {
        "its names are not in order".to_owned()
    })?;
    let is_within =
        |name: &Account| Some(name) > after && page.next.as_ref().is_none_or(|next| name <= next);
    let must = used(&log[..least as usize]);
    for (name, asset) in used(log).iter().filter(|(name, _)| is_within(name)) {
        let account = page.accounts.iter().find(|of| of.account == *name);
        let Some(account) = account else {
            let due = must.iter().any(|(of, _)| of == name);
            require(!due, || format!("{name} was used by {least}"))?;
            continue;
        };
        let balance = account.balances.iter().find(|of| of.asset == *asset);
        let sum = past::total(log, name, asset);
        let right = balance.is_some_and(|of| {
            of.amount_minor == sum.balance().amount()
                && (of.credits_minor.0, of.debits_minor.0) == (sum.credits, sum.debits)
        });
        require(right, || format!("{name} has {sum:?} of {asset}"))?;
    }
    Ok(())
}

/// The holds of an account without gaps, newest first, each as it was after one of its captures.
pub fn holds(
    log: &[Event],
    account: &Account,
    before: Option<u64>,
    limit: u64,
    page: &HoldPage,
) -> Result<(), String> {
    let is_hold = |event: &&Event| {
        let receipt = event.answer.receipt();
        receipt.is_some_and(|of| of.op == EntryKind::Hold && of.from.as_ref() == Some(account))
    };
    let newest = page.holds.first().map(|newest| newest.hold);
    let made: Vec<&Event> = log
        .iter()
        .rev()
        .filter(is_hold)
        .filter(|event| before.is_none_or(|before| event.seq < before))
        // Newer ones came after the page.
        .skip_while(|event| event.answer.receipt().map(|of| of.txid) != newest)
        .collect();
    let full = page.holds.len() as u64 == limit;
    require(full || page.holds.len() == made.len(), || {
        format!("it ends before the oldest hold of {account}")
    })?;
    for (record, event) in page.holds.iter().zip(&made) {
        hold(log, record, event)?;
    }
    let last = made.get(page.holds.len().saturating_sub(1));
    let more = made.len() > page.holds.len();
    let older = last.map(|event| event.seq).filter(|_| more);
    require(page.older == older, || format!("it goes on at {older:?}"))
}

fn hold(log: &[Event], record: &HoldRecord, made: &Event) -> Result<(), String> {
    let operands = made.operands();
    let same = made
        .answer
        .receipt()
        .is_some_and(|of| of.txid == record.hold)
        && operands.from.as_ref() == Some(&record.from)
        && operands.asset.as_ref() == Some(&record.asset)
        && operands.amount_minor == Some(record.amount_minor);
    require(same, || format!("{record:?} is not of {made:?}"))?;
    let receipts = log.iter().filter_map(|event| event.answer.receipt());
    let captures =
        receipts.filter(|of| of.op == EntryKind::Capture && of.hold == Some(record.hold));
    let mut captured = vec![0];
    for of in captures {
        let sum = captured.last().copied().unwrap_or(0);
        captured.push(sum + of.amount_minor.map_or(0, |amount| amount.0));
    }
    let left = record.remaining_minor.0;
    let open = record.state == HoldState::Open;
    let right = captured.contains(&record.captured_minor.0)
        && (left == 0 || left + record.captured_minor.0 == record.amount_minor.0)
        && open == (left > 0);
    require(right, || {
        format!("{record:?}, captures come to {captured:?}")
    })
}
