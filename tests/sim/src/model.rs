//! A second, simple ledger, written from `docs/formats/ledger.md`: it takes the entries of a log in their order, decides
//! each again, and knows what every account must have after it. It shares the types of the API with ron-ledger, and no
//! code. Not in it: daily ceilings, budgets, and the limits that an operator sets for all accounts.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::ledger::{
    Entry, EntryAnswer, EntryKind, Event, HoldDoc, HoldRef, RefusalCode, RequestKey, Sides, TxId,
};
use ron_proto::{Account, Amount, Asset, Timestamp};

use crate::model::books::Books;

mod books;
mod rules;

/// What an entry moved, or that it was refused.
type Rule<T = Moved> = Result<T, RefusalCode>;

/// The facts of a done entry that its receipt has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moved {
    from: Option<Account>,
    to: Option<Account>,
    asset: Option<Asset>,
    amount: Option<u128>,
    hold: Option<TxId>,
    reverses: Option<TxId>,
}

/// The limits of an account in an asset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limits {
    credit: u128,
    max: Option<u128>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purse {
    pub credits: u128,
    pub debits: u128,
    pub held: u128,
}

/// An account as the model knows it.
#[derive(Clone, Debug, Default)]
pub struct Holder {
    pub nonce: u64,
    pub require_nonce: bool,
    pub frozen: Sides,
    pub closed: bool,
    pub purses: BTreeMap<Asset, Purse>,
    limits: BTreeMap<Asset, Limits>,
}

impl Holder {
    /// The assets that the account had or has limits in.
    pub fn assets(&self) -> BTreeSet<&Asset> {
        let limits = self.limits.iter();
        let limited = limits.filter(|(_, limits)| **limits != Limits::default());
        let limited = limited.map(|(asset, _)| asset);
        self.purses.keys().chain(limited).collect()
    }
}

/// An asset's sums over all accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub issued: u128,
    pub burned: u128,
    scale: Option<u8>,
}

/// How the items of one request stand together; the workload writes it into their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    Batch,
    Linked,
}

/// The name of item `at` of `all` of a request, as the wallet makes it of the request's key.
pub fn item_key(request: &str, at: usize, all: usize, how: Together) -> String {
    let how = if how == Together::Linked { 'l' } else { 'b' };
    let key = format!("{request}.{all}.{how}");
    if at == 0 { key } else { format!("{key}#{at}") }
}

/// Reads such a name: the request, the item's number, the number of items.
fn item_of(key: &str) -> Option<(&str, usize, usize, Together)> {
    let (key, at) = match key.split_once('#') {
        Some((key, at)) => (key, at.parse().ok()?),
        None => (key, 0),
    };
    let mut parts = key.rsplitn(3, '.');
    let how = match parts.next()? {
        "l" => Together::Linked,
        "b" => Together::Batch,
        _ => return None,
    };
    let all = parts.next()?.parse().ok()?;
    Some((parts.next()?, at, all, how))
}

/// The model after the entries that it was given.
#[derive(Clone, Debug, Default)]
pub struct Model {
    seq: u64,
    ts: Timestamp,
    books: Books,
    keys: BTreeSet<RequestKey>,
}

impl Model {
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    pub fn holder(&self, account: &Account) -> Holder {
        self.books
            .accounts
            .get(account)
            .cloned()
            .unwrap_or_default()
    }

    /// Credit and maximum of an account in an asset.
    pub fn limits(&self, account: &Account, asset: &Asset) -> (u128, Option<u128>) {
        let limits = self.books.limits(account, asset);
        (limits.credit, limits.max)
    }

    /// What the next debit may take.
    pub fn available(&self, account: &Account, asset: &Asset) -> u128 {
        self.books.available(account, asset)
    }

    pub fn sums(&self, asset: &Asset) -> Sums {
        self.books.assets.get(asset).copied().unwrap_or_default()
    }

    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.books.accounts.keys()
    }

    pub fn assets(&self) -> impl Iterator<Item = &Asset> {
        self.books.assets.keys()
    }

    /// The open holds of an account, oldest first.
    pub fn holds(&self, account: &Account) -> Vec<HoldDoc> {
        let of = self.books.holds.iter().filter(|(_, h)| h.from == *account);
        let doc = |(id, h): (&TxId, &books::Hold)| HoldDoc {
            hold: *id,
            from: h.from.clone(),
            asset: h.asset.clone(),
            amount_minor: Amount(h.left),
            expires_at: h.expires_at,
        };
        of.map(doc).collect()
    }

    /// Credits and debits of all accounts in an asset.
    pub fn turnover(&self, asset: &Asset) -> (u128, u128) {
        self.books.turnover(asset)
    }

    /// By epoch: index of the next payout, what is paid, and whether it is closed.
    pub fn epochs(&self) -> impl Iterator<Item = (&books::EpochKey, u64, u128, bool)> {
        let all = self.books.epochs.iter();
        all.map(|(key, e)| (key, e.next, e.paid, e.closed))
    }

    /// How much of each entry is reversed.
    pub fn reversed(&self) -> impl Iterator<Item = (TxId, u128)> {
        let all = self.books.moved.iter();
        all.map(|(tx, moved)| (*tx, moved.amount - moved.left))
    }

    /// Takes the entries at the start of `events` that belong to one request; how many these are.
    ///
    /// # Errors
    /// When the log says something else than the model.
    pub fn take(&mut self, events: &[Event]) -> Result<usize, String> {
        let first = &events[0];
        let key = first.entry.request_key();
        let item = key.as_ref().and_then(|key| item_of(key.key.as_str()));
        let is_resolved = first.entry.kind() == EntryKind::Abandon;
        let taken = match item.filter(|_| !is_resolved) {
            None => {
                let mut books = std::mem::take(&mut self.books);
                let judged = self.judge(&mut books, first);
                self.books = books;
                judged.map_err(|why| format!("{why}\n  in {first:?}"))?;
                1
            }
            Some((request, at, all, how)) => {
                let items = events.get(..all);
                let items = items.ok_or_else(|| format!("`{request}` is torn: {first:?}"))?;
                if at != 0 {
                    return Err(format!("`{request}` begins with item {at}"));
                }
                for (i, event) in items.iter().enumerate() {
                    let key = event.entry.request_key();
                    let name = key.as_ref().map_or("", |key| key.key.as_str());
                    if item_of(name) != Some((request, i, all, how)) {
                        return Err(format!(
                            "`{name}` stands where item {i} of `{request}` must be"
                        ));
                    }
                }
                let done = match how {
                    Together::Batch => self.batch(items),
                    Together::Linked => self.linked(items),
                };
                done.map_err(|why| format!("{why}\n  in {items:#?}"))?;
                all
            }
        };
        for event in &events[..taken] {
            self.note(event)?;
        }
        self.books.conserved()?;
        Ok(taken)
    }

    /// Each item is decided by itself.
    fn batch(&mut self, items: &[Event]) -> Result<(), String> {
        let mut books = self.books.clone();
        for event in items {
            self.judge(&mut books, event)?;
        }
        self.books = books;
        Ok(())
    }

    /// All items take effect or none: when one is refused, the others say so.
    fn linked(&mut self, items: &[Event]) -> Result<(), String> {
        let code = |event: &Event| match &event.answer {
            EntryAnswer::Refused { code, .. } => Some(*code),
            EntryAnswer::Done { .. } => None,
        };
        let mut books = self.books.clone();
        let own = |e: &&Event| code(e).is_some_and(|code| code != RefusalCode::LinkedFailed);
        let Some(refused) = items.iter().find(own) else {
            for event in items {
                self.judge(&mut books, event)?;
            }
            self.books = books;
            return Ok(());
        };
        for event in items {
            let event = &within(event, items[0].seq);
            if event.seq == refused.seq {
                self.judge(&mut books, event)?;
                break;
            }
            // It took effect, until the refusal of a later one took it back.
            let done = books.decide(&event.entry, event.ts, id_of(event.seq));
            done.map_err(|code| format!("item {} is the one to be refused: {code}", event.seq))?;
        }
        let others = items.iter().filter(|event| event.seq != refused.seq);
        let mut wrong = others.filter(|e| code(e) != Some(RefusalCode::LinkedFailed));
        match wrong.next() {
            Some(event) => Err(format!("item {} of a refused commit is not", event.seq)),
            None => Ok(()),
        }
    }

    /// Decides the entry, and compares.
    fn judge(&self, books: &mut Books, event: &Event) -> Result<(), String> {
        let id = match &event.answer {
            EntryAnswer::Done { txid, .. } => *txid,
            EntryAnswer::Refused { .. } => id_of(event.seq),
        };
        match (books.decide(&event.entry, event.ts, id), &event.answer) {
            (Err(mine), EntryAnswer::Refused { code, .. }) if mine == *code => Ok(()),
            (Ok(moved), EntryAnswer::Done { receipt, .. }) => {
                let said = Moved {
                    from: receipt.from.clone(),
                    to: receipt.to.clone(),
                    asset: receipt.asset.clone(),
                    amount: receipt.amount_minor.map(|amount| amount.0),
                    hold: receipt.hold,
                    reverses: receipt.reverses,
                };
                let same = receipt.seq == event.seq
                    && receipt.txid.seq() == event.seq
                    && receipt.ts == event.ts
                    && receipt.op == event.entry.kind();
                if moved == said && same {
                    return Ok(());
                }
                Err(format!("the receipt should have {moved:?}"))
            }
            (Ok(_), EntryAnswer::Refused { code, .. }) => {
                Err(format!("it is refused ({code}) for no reason"))
            }
            (Err(code), _) => Err(format!("it must be refused: {code}")),
        }
    }

    /// Sequence, time and key of an entry: each is new.
    fn note(&mut self, event: &Event) -> Result<(), String> {
        if event.seq != self.seq + 1 || event.ts < self.ts {
            let (seq, ts) = (self.seq, self.ts);
            return Err(format!("after {seq} at {ts:?} comes {event:?}"));
        }
        (self.seq, self.ts) = (event.seq, event.ts);
        match event.entry.request_key() {
            Some(key) if !self.keys.insert(key.clone()) => {
                Err(format!("{key:?} is in the log twice: {event:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// An id for an entry without one, because it was refused.
const fn id_of(seq: u64) -> TxId {
    TxId((seq as u128) << 64)
}

/// The entry of a refused commit whose first has the sequence `first`, with the model's id of a hold that the commit makes.
fn within(event: &Event, first: u64) -> Event {
    let mut event = event.clone();
    if let Entry::Capture { hold, .. } | Entry::Release { hold, .. } = &mut event.entry
        && let Some(id) = hold.id()
        && id.seq() >= first
    {
        *hold = HoldRef::Id(id_of(id.seq()));
    }
    event
}

/// Whether the ledger made the entry by itself.
pub fn is_own(entry: &Entry) -> bool {
    entry.kind() == EntryKind::Expire
}
