//! What the ledger must have done, by its documents alone: accounts, holds and reversals of one asset, applied entry by
//! entry. It shares with the services only the types of the wire.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::ledger::{Entry, EntryAnswer, Event, HoldRef, RefusalCode, TxId};

#[derive(Debug)]
struct OpenHold {
    from: String,
    left: u128,
}

/// What a transaction moved, and how much of it was moved back.
#[derive(Debug)]
struct Moved {
    from: String,
    to: String,
    left: u128,
}

/// The end of a key: what the first request with it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Done(TxId),
    Refused(RefusalCode),
}

#[derive(Debug, Default)]
pub struct Model {
    balances: BTreeMap<String, u128>,
    holds: BTreeMap<String, OpenHold>,
    moved: BTreeMap<String, Moved>,
    issued: u128,
    burnt: u128,
    head: u64,
    txids: BTreeSet<String>,
    /// By key; of a batch by key and item, in their order.
    pub ends: BTreeMap<String, Vec<End>>,
}

/// What does not hold.
type Wrong = String;

impl Model {
    pub fn balance(&self, account: &str) -> u128 {
        self.balances.get(account).copied().unwrap_or(0)
    }

    pub fn available(&self, account: &str) -> u128 {
        let held = self.holds.values().filter(|hold| hold.from == account);
        self.balance(account)
            .saturating_sub(held.map(|hold| hold.left).sum())
    }

    fn take(&mut self, from: &str, amount: u128) -> Result<(), Wrong> {
        let left = self.balance(from).checked_sub(amount);
        let left = left.ok_or_else(|| format!("{from} has less than {amount}"))?;
        self.balances.insert(from.to_owned(), left);
        Ok(())
    }

    fn give(&mut self, to: &str, amount: u128) {
        *self.balances.entry(to.to_owned()).or_insert(0) += amount;
    }

    /// Debits what is not held.
    fn debit(&mut self, from: &str, amount: u128) -> Result<(), Wrong> {
        let available = self.available(from);
        if available < amount {
            return Err(format!(
                "{from} has {available} available, less than {amount}"
            ));
        }
        self.take(from, amount)
    }

    fn capture(
        &mut self,
        hold: &str,
        asked: Option<u128>,
        ends: bool,
    ) -> Result<(String, u128), Wrong> {
        let held = self
            .holds
            .get_mut(hold)
            .ok_or_else(|| format!("no hold {hold} is open"))?;
        let amount = asked.unwrap_or(held.left);
        let left = held.left.checked_sub(amount);
        held.left = left.ok_or_else(|| format!("hold {hold} has less than {amount}"))?;
        let from = held.from.clone();
        if ends || held.left == 0 {
            self.holds.remove(hold);
        }
        Ok((from, amount))
    }

    fn reverse(&mut self, tx: &str, asked: Option<u128>) -> Result<(), Wrong> {
        let moved = self
            .moved
            .get_mut(tx)
            .ok_or_else(|| format!("{tx} moved nothing"))?;
        let amount = asked.unwrap_or(moved.left);
        let left = moved.left.checked_sub(amount);
        moved.left = left.ok_or_else(|| format!("of {tx} less than {amount} is left"))?;
        let (from, to) = (moved.to.clone(), moved.from.clone());
        self.debit(&from, amount)?;
        self.give(&to, amount);
        Ok(())
    }

    /// One entry that took effect.
    fn done(&mut self, txid: &str, entry: &Entry) -> Result<(), Wrong> {
        match entry {
            Entry::Issue {
                to, amount_minor, ..
            } => {
                self.issued += amount_minor.0;
                self.give(to.as_str(), amount_minor.0);
            }
            Entry::Transfer {
                from,
                to,
                amount_minor,
                ..
            } => {
                self.debit(from.as_str(), amount_minor.0)?;
                self.give(to.as_str(), amount_minor.0);
                self.note(txid, from.as_str(), to.as_str(), amount_minor.0);
            }
            Entry::Burn {
                from, amount_minor, ..
            } => {
                self.debit(from.as_str(), amount_minor.0)?;
                self.burnt += amount_minor.0;
            }
            Entry::Hold {
                from, amount_minor, ..
            } => {
                if self.available(from.as_str()) < amount_minor.0 {
                    return Err(format!("{from} cannot hold {}", amount_minor.0));
                }
                let held = OpenHold {
                    from: from.to_string(),
                    left: amount_minor.0,
                };
                self.holds.insert(txid.to_owned(), held);
            }
            Entry::Capture {
                hold,
                to,
                amount_minor,
                ends_hold,
                ..
            } => {
                let asked = amount_minor.map(|amount| amount.0);
                let (from, amount) = self.capture(&id(hold), asked, *ends_hold)?;
                self.take(&from, amount)?;
                self.give(to.as_str(), amount);
                self.note(txid, &from, to.as_str(), amount);
            }
            Entry::Release { hold, .. } => {
                let open = self.holds.remove(&id(hold));
                open.ok_or_else(|| format!("no hold {hold:?} is open"))?;
            }
            Entry::Expire { hold } => {
                let open = self.holds.remove(&hold.to_string());
                open.ok_or_else(|| format!("no hold {hold} is open"))?;
            }
            Entry::Reverse {
                tx, amount_minor, ..
            } => {
                self.reverse(&tx.to_string(), amount_minor.map(|amount| amount.0))?;
            }
            other => return Err(format!("no client asks for {other:?}")),
        }
        Ok(())
    }

    fn note(&mut self, txid: &str, from: &str, to: &str, amount: u128) {
        let moved = Moved {
            from: from.to_owned(),
            to: to.to_owned(),
            left: amount,
        };
        self.moved.insert(txid.to_owned(), moved);
    }

    /// The next entry of the log.
    pub fn apply(&mut self, event: &Event) -> Result<(), Wrong> {
        if event.seq <= self.head {
            return Err(format!("sequence {} comes after {}", event.seq, self.head));
        }
        self.head = event.seq;
        let end = match &event.answer {
            EntryAnswer::Done {
                txid, seq, receipt, ..
            } => {
                if *seq != event.seq || receipt.seq != event.seq || receipt.txid != *txid {
                    return Err(format!("the answer is of another place: {receipt:?}"));
                }
                let name = txid.to_string();
                if !self.txids.insert(name.clone()) {
                    return Err(format!("{name} is in the log twice"));
                }
                self.done(&name, &event.entry)?;
                End::Done(*txid)
            }
            EntryAnswer::Refused { code, .. } => End::Refused(*code),
        };
        if let Some(key) = key_of(&event.entry) {
            self.ends.entry(key).or_default().push(end);
        }
        let all: u128 = self.balances.values().sum();
        if all + self.burnt == self.issued {
            Ok(())
        } else {
            Err(format!(
                "{all} there and {} burnt are not {} issued",
                self.burnt, self.issued
            ))
        }
    }
}

fn id(hold: &HoldRef) -> String {
    let text = serde_json::to_value(hold).expect("a name");
    text.as_str().unwrap_or_default().to_owned()
}

/// The key of an entry as its caller wrote it: the items of a batch have it with their numbers behind.
fn key_of(entry: &Entry) -> Option<String> {
    let value = serde_json::to_value(entry).expect("an entry");
    let key = value.get("key")?.as_str()?;
    key.split('#').next().map(str::to_owned)
}
