//! The past as the log has it, added up again for each question: no index, no sums that are kept.

use ron_proto::ledger::{Event, StatementTime};
use ron_proto::{Account, Asset, SignedAmount, Timestamp};

/// What an account got and gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub credits: u128,
    pub debits: u128,
}

impl Total {
    pub const fn balance(self) -> SignedAmount {
        SignedAmount::of(self.credits, self.debits)
    }

    fn add(&mut self, event: &Event, account: &Account) {
        let Some(receipt) = event.answer.receipt() else {
            return;
        };
        let amount = receipt.amount_minor.map_or(0, |amount| amount.0);
        if receipt.to.as_ref() == Some(account) {
            self.credits += amount;
        }
        if receipt.from.as_ref() == Some(account) {
            self.debits += amount;
        }
    }
}

/// Whether the entry moved money of the account in the asset.
fn moves(event: &Event, account: &Account, asset: &Asset) -> bool {
    event.answer.receipt().is_some_and(|receipt| {
        let names = [&receipt.from, &receipt.to];
        receipt.op.moves_money()
            && receipt.asset.as_ref() == Some(asset)
            && names.contains(&&Some(account.clone()))
    })
}

/// What the account had after these entries.
pub fn total(log: &[Event], account: &Account, asset: &Asset) -> Total {
    let mut total = Total::default();
    let of = log.iter().filter(|event| moves(event, account, asset));
    of.for_each(|event| total.add(event, account));
    total
}

/// The time at which statements of the account show the entry: the maker's day where the account is debited, or where an issue
/// credits it.
fn shown_at(event: &Event, account: &Account, by: StatementTime) -> Timestamp {
    let operands = event.operands();
    let own = operands.from.is_none_or(|from| from == *account);
    match (by, operands.details.effective_at) {
        (StatementTime::Effective, Some(at)) if own => Timestamp::from_utc_day(at.utc_day()),
        (StatementTime::Effective, _) => Timestamp::from_utc_day(event.ts.utc_day()),
        (StatementTime::Entry, _) => event.ts,
    }
}

/// A statement of these entries: what the account had before, what it got and gave, and which entries these were.
pub struct Extract<'l> {
    pub before: Total,
    pub within: Total,
    pub entries: Vec<&'l Event>,
}

pub fn statement<'l>(
    log: &'l [Event],
    (account, asset): (&Account, &Asset),
    by: StatementTime,
    (from, until): (Timestamp, Timestamp),
) -> Extract<'l> {
    let mut told = Extract {
        before: Total::default(),
        within: Total::default(),
        entries: Vec::new(),
    };
    for event in log.iter().filter(|event| moves(event, account, asset)) {
        let at = shown_at(event, account, by);
        if at < from {
            told.before.add(event, account);
        } else if at < until {
            told.within.add(event, account);
            told.entries.push(event);
        }
    }
    told.entries
        .sort_by_key(|event| (shown_at(event, account, by), event.seq));
    told
}

/// Whether the entry names the account, also when it was refused.
pub fn names(event: &Event, account: &Account) -> bool {
    let operands = event.operands();
    operands.from.as_ref() == Some(account) || operands.to.as_ref() == Some(account)
}
