//! What the callers of a world know: what they sent, what they were answered, what they saw. Compared with the log and
//! with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ron_ledger::Ledger;
use ron_proto::Account;
use ron_proto::ledger::{
    AccountDoc, Entry, EntryAnswer, Event, HoldRef, RefusalCode, RequestKey, TrialBalance, TxId,
};

use super::names::accounts;
use crate::model::{Model, is_own};

/// A request that was answered.
#[derive(Debug)]
pub struct Call {
    /// Empty for a resolve.
    pub entries: Vec<Entry>,
    pub answers: Vec<EntryAnswer>,
    /// The last durable sequence before the request and after the answer.
    pub heads: (u64, u64),
    /// Whether the ledger was closed for writing before the request.
    pub was_closed: bool,
}

/// A request that can be sent again.
#[derive(Clone, Debug)]
pub struct Sent {
    pub entries: Vec<Entry>,
    pub how: ron_ledger::engine::Atomicity,
}

/// All knowledge of the callers. No simulated operation happens while it is locked.
#[derive(Debug, Default)]
pub struct Known {
    pub sent: Vec<Sent>,
    /// Keys that were used for two requests or resolved on purpose.
    pub reused: BTreeSet<RequestKey>,
    pub by_key: BTreeMap<RequestKey, Vec<Entry>>,
    pub calls: Vec<Call>,
    pub holds: Vec<TxId>,
    pub txs: Vec<TxId>,
    pub accounts: Vec<AccountDoc>,
    pub totals: Vec<TrialBalance>,
    /// Requests by how they ended.
    pub ends: BTreeMap<&'static str, u64>,
    /// The log as far as it was compared.
    events: Vec<Event>,
    model: Model,
    /// The nonce of an account after an entry, where it changed.
    nonces: BTreeMap<Account, Vec<(u64, u64)>>,
}

/// Why a ledger is not what its callers know.
#[derive(Debug)]
pub enum Difference {
    /// It says that it cannot tell.
    Unreadable(String),
    Other(String),
}

impl From<String> for Difference {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Unreadable(why) | Self::Other(why)) = self;
        f.write_str(why)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Book(Arc<Mutex<Known>>);

impl Book {
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request before it is sent: after a power cut its entries may be in the log.
    pub fn send(&self, sent: Sent) {
        let mut known = self.lock();
        for entry in &sent.entries {
            if let Some(key) = entry.request_key() {
                known.by_key.entry(key).or_default().push(entry.clone());
            }
        }
        known.sent.push(sent);
    }

    pub fn count(&self, end: &'static str) {
        *self.lock().ends.entry(end).or_default() += 1;
    }

    /// Notes what the ledger answered, for the comparison with the log.
    pub fn answer(&self, call: Call) {
        let mut known = self.lock();
        for answer in &call.answers {
            let EntryAnswer::Done { txid, receipt, .. } = answer else {
                continue;
            };
            if receipt.op == ron_proto::ledger::EntryKind::Hold {
                known.holds.push(*txid);
            }
            known.txs.push(*txid);
        }
        known.calls.push(call);
    }

    /// Compares all that is known with the log and with what the ledger says now; the number of entries.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, ledger: &Ledger) -> Result<u64, Difference> {
        self.follow(ledger)?;
        // The state may go on meanwhile, because holds end: so each document is compared at its own sequence.
        let model = self.lock().model.clone();
        let accounts: Vec<_> = model.accounts().map(|a| ledger.account(a)).collect();
        let totals: Vec<_> = model.assets().map(|a| ledger.trial_balance(a)).collect();
        let missing = totals.iter().position(Option::is_none);
        if let Some(at) = missing {
            return Err(format!("the asset {:?} is unknown", model.assets().nth(at)).into());
        }
        {
            let mut known = self.lock();
            known.accounts.extend(accounts);
            known.totals.extend(totals.into_iter().flatten());
        }
        self.follow(ledger)?;
        let events = {
            let mut known = self.lock();
            let calls = std::mem::take(&mut known.calls);
            for call in &calls {
                let checked = known.check_call(call);
                checked.map_err(|why| format!("{why}\n  in {call:#?}"))?;
            }
            known.events.clone()
        };
        same_epochs(&model, ledger)?;
        same_keys(&events, ledger)?;
        Ok(events.len() as u64)
    }

    /// Takes the entries that the state has; the log may be ahead of it for a moment.
    fn follow(&self, ledger: &Ledger) -> Result<(), Difference> {
        let state = ledger.account(&accounts()[0]).seq;
        let mut events = all_events(ledger)?;
        events.truncate(state as usize);
        Ok(self.lock().follow(events)?)
    }
}

pub fn all_events(ledger: &Ledger) -> Result<Vec<Event>, Difference> {
    let mut events = Vec::new();
    loop {
        let page = ledger.events(events.len() as u64, 1_000);
        let page =
            page.map_err(|e| Difference::Unreadable(format!("the log cannot be read: {e}")))?;
        if page.events.is_empty() {
            return Ok(events);
        }
        events.extend(page.events);
    }
}

/// Epochs and reversals are what the model says.
fn same_epochs(model: &Model, ledger: &Ledger) -> Result<(), String> {
    for (tx, reversed) in model.reversed() {
        let said = ledger.reversed(tx).0;
        if said != reversed {
            return Err(format!("of {tx} is reversed {reversed}, not {said}"));
        }
    }
    for ((tenant, epoch), next, paid, closed) in model.epochs() {
        let doc = ledger.epoch(tenant, epoch, None);
        let doc = doc.ok_or_else(|| format!("{epoch} is unknown"))?;
        let is_closed = doc.closed_seq.is_some();
        if (doc.next_index, doc.paid_minor.0, is_closed) != (next, paid, closed) {
            return Err(format!("{epoch}: {next}, {paid}, {closed}, but {doc:?}"));
        }
    }
    Ok(())
}

/// Each key leads to its entry.
fn same_keys(events: &[Event], ledger: &Ledger) -> Result<(), Difference> {
    let unreadable = |e: &dyn std::fmt::Display| Difference::Unreadable(e.to_string());
    for event in events {
        let Some(key) = event.entry.request_key() else {
            continue;
        };
        let found = ledger.by_key(key.clone()).map_err(|e| unreadable(&e))?;
        if found.as_ref() != Some(event) {
            let why = format!("{key:?} leads to {found:?}, not to {event:?}");
            return Err(Difference::Other(why));
        }
        if let EntryAnswer::Done { txid, .. } = &event.answer {
            let found = ledger.tx(*txid).map_err(|e| unreadable(&e))?;
            if found.as_ref() != Some(event) {
                let why = format!("{txid} leads to {found:?}, not to {event:?}");
                return Err(Difference::Other(why));
            }
        }
    }
    Ok(())
}

pub fn same_account(model: &Model, doc: &AccountDoc) -> Result<(), String> {
    let holder = model.holder(&doc.account);
    let wrong = |what: &str| {
        let seq = model.seq();
        Err(format!("{what} after {seq}: {holder:?}, but {doc:#?}"))
    };
    let mine = (
        holder.nonce,
        holder.require_nonce,
        holder.frozen,
        holder.closed,
    );
    if mine != (doc.nonce, doc.require_nonce, doc.frozen, doc.closed) {
        return wrong("terms differ");
    }
    let shown: BTreeSet<_> = doc.balances.iter().map(|b| &b.asset).collect();
    if shown != holder.assets() {
        return wrong("assets differ");
    }
    for balance in &doc.balances {
        let purse = holder.purses.get(&balance.asset).copied();
        let purse = purse.unwrap_or_default();
        let (credit, max) = model.limits(&doc.account, &balance.asset);
        let mine = (purse.credits, purse.debits, credit, max);
        let said = (
            balance.credits_minor.0,
            balance.debits_minor.0,
            balance.credit_limit_minor.0,
            balance.max_balance_minor.map(|max| max.0),
        );
        let available = model.available(&doc.account, &balance.asset);
        if mine != said || balance.available_minor.0 != available {
            return wrong("a balance differs");
        }
        let (above, below) = (balance.amount_minor.0, balance.overdrawn_minor.0);
        if purse.credits + below != purse.debits + above || above.min(below) > 0 {
            return wrong("credits, debits and balance differ");
        }
    }
    if model.holds(&doc.account) != doc.holds {
        return wrong("holds differ");
    }
    Ok(())
}

pub fn same_totals(model: &Model, said: &TrialBalance) -> Result<(), String> {
    let (sums, turnover) = (model.sums(&said.asset), model.turnover(&said.asset));
    let mine = (sums.issued, sums.burned, turnover);
    let other = (
        said.issued_minor.0,
        said.burned_minor.0,
        (said.credits_minor.0, said.debits_minor.0),
    );
    let supply = said.credits_minor.0 - said.debits_minor.0;
    if mine != other || said.supply_minor.0 != supply {
        return Err(format!("totals after {}: {mine:?}, {said:?}", model.seq()));
    }
    Ok(())
}

impl Known {
    /// The log as far as it was compared.
    pub fn log(&self) -> Vec<Event> {
        self.events.clone()
    }

    /// Takes the entries that are new into the model; what callers saw at each sequence is compared on the way.
    fn follow(&mut self, events: Vec<Event>) -> Result<(), String> {
        let before = self.events.len();
        if events.get(..before) != Some(&self.events[..]) {
            let both = self.events.iter().zip(&events);
            let differ = both.filter(|(a, b)| a != b).next();
            let (was, is) = (before, events.len());
            return Err(format!("of {was} entries are left {is}: {differ:#?}"));
        }
        self.events = events;
        let mut accounts = std::mem::take(&mut self.accounts);
        let mut totals = std::mem::take(&mut self.totals);
        loop {
            let seq = self.model.seq();
            for doc in accounts.extract_if(.., |doc| doc.seq == seq) {
                same_account(&self.model, &doc)?;
            }
            for said in totals.extract_if(.., |said| said.seq == seq) {
                same_totals(&self.model, &said)?;
            }
            let rest = &self.events[seq as usize..];
            if rest.is_empty() {
                break;
            }
            let taken = self.model.take(rest)?;
            for event in &rest[..taken] {
                was_sent(&self.by_key, event)?;
            }
            self.note_nonces();
        }
        match (accounts.first(), totals.first()) {
            (None, None) => Ok(()),
            left => Err(format!("a state that no sequence has: {left:?}")),
        }
    }

    fn note_nonces(&mut self) {
        let seq = self.model.seq();
        for account in self.model.accounts() {
            let nonce = self.model.holder(account).nonce;
            let history = self.nonces.entry(account.clone()).or_default();
            if history.last().is_none_or(|(_, last)| *last != nonce) {
                history.push((seq, nonce));
            }
        }
    }

    fn check_call(&self, call: &Call) -> Result<(), String> {
        for (at, answer) in call.answers.iter().enumerate() {
            let entry = call.entries.get(at);
            let seq = match answer {
                EntryAnswer::Done { seq, .. } | EntryAnswer::Refused { seq: Some(seq), .. } => *seq,
                EntryAnswer::Refused { code, expected, .. } => {
                    self.check_rejected(call, entry, *code, *expected)?;
                    continue;
                }
            };
            let (before, after) = call.heads;
            if seq > after || (!answer.is_replayed() && seq <= before) {
                return Err(format!("{seq} is not between {before} and {after}"));
            }
            if call.was_closed && !answer.is_replayed() {
                return Err("a closed ledger decided".to_owned());
            }
            let event = self.events.get(seq as usize - 1);
            let event = event.ok_or_else(|| format!("the entry {seq} is lost"))?;
            let first = event.answer.clone();
            if first != *answer && first.as_replayed() != *answer {
                return Err(format!("the log has {event:#?}"));
            }
            let is_same = entry.is_none_or(|entry| {
                event.entry.request_key() == entry.request_key()
                    && (repeats(entry, &event.entry) || is_resolved(event))
            });
            if !is_same {
                return Err(format!("the log has another entry: {event:#?}"));
            }
        }
        let asked = call.entries.len().max(1);
        if call.answers.len() != asked {
            return Err("the number of answers differs".to_owned());
        }
        Ok(())
    }

    /// A refusal without a leaf.
    fn check_rejected(
        &self,
        call: &Call,
        entry: Option<&Entry>,
        code: RefusalCode,
        expected: Option<u64>,
    ) -> Result<(), String> {
        let entry = entry.ok_or("a resolve always has an entry")?;
        let allowed = match code {
            RefusalCode::NonceConflict if call.entries.len() == 1 => {
                self.nonce_was(entry, expected, call.heads)
            }
            RefusalCode::NonceConflict | RefusalCode::LinkedFailed => call.entries.len() > 1,
            RefusalCode::IdempotencyMismatch => {
                let mut keys = call.entries.iter().filter_map(Entry::request_key);
                keys.any(|key| self.reused.contains(&key))
            }
            _ => entry.request_key().is_none(),
        };
        if allowed {
            return Ok(());
        }
        Err(format!("{code} (expected {expected:?}) without a leaf"))
    }

    /// Whether the account of a debit had such a next nonce while the request was decided, and the debit another one.
    fn nonce_was(&self, entry: &Entry, expected: Option<u64>, (from, to): (u64, u64)) -> bool {
        let (Entry::Transfer {
            from: payer, nonce, ..
        }
        | Entry::Burn {
            from: payer, nonce, ..
        }
        | Entry::Hold {
            from: payer, nonce, ..
        }) = entry
        else {
            return false;
        };
        let next = expected.unwrap_or(0);
        let history = self.nonces.get(payer).map_or(&[][..], Vec::as_slice);
        let at_first = history.iter().rev().find(|(seq, _)| *seq <= from);
        let later = history.iter().filter(|(seq, _)| (from..=to).contains(seq));
        let had: Vec<u64> = later.chain(at_first).map(|(_, nonce)| nonce + 1).collect();
        *nonce != expected
            && (had.contains(&next)
                || (had.is_empty() && next == 1)
                || (at_first.is_none() && next == 1))
    }
}

/// Whether an entry of the log was asked for.
fn was_sent(by_key: &BTreeMap<RequestKey, Vec<Entry>>, event: &Event) -> Result<(), String> {
    let Some(key) = event.entry.request_key() else {
        return Ok(()); // settlement: the model knows what may come
    };
    if is_own(&event.entry) || is_resolved(event) {
        return Ok(());
    }
    let sent = by_key.get(&key).map_or(&[][..], Vec::as_slice);
    if sent.iter().any(|entry| repeats(entry, &event.entry)) {
        return Ok(());
    }
    Err(format!("nobody sent {event:#?}, but {sent:#?}"))
}

fn is_resolved(event: &Event) -> bool {
    matches!(event.entry, Entry::Abandon { .. })
}

/// Whether the log's entry is the one of the request.
fn repeats(sent: &Entry, logged: &Entry) -> bool {
    let mut sent = sent.clone();
    if let (
        Entry::Capture { hold, .. } | Entry::Release { hold, .. },
        Entry::Capture { hold: made, .. } | Entry::Release { hold: made, .. },
    ) = (&mut sent, logged)
        && matches!(hold, HoldRef::Item(_))
    {
        *hold = *made;
    }
    sent.compared() == logged.clone().compared()
}
