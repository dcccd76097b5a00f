//! A caller of the ledger: all kinds of entries, alone and together, and requests that were sent before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_kernel::Deadline;
use ron_ledger::engine::Atomicity;
use ron_ledger::{Ledger, SubmitError};
use ron_proto::ledger::{
    AccountTerms, AssetLimits, AssetTerms, Details, Entry, EntryAnswer, HoldRef, RequestKey, Sides,
    TxId,
};
use ron_proto::{Account, Amount, ContentId, Timestamp};
use ron_sim::{ensure, time};

use super::book::{Book, Call, Sent};
use super::draws::Draws;
use super::names::{ACCOUNTS, POOL, account, asset, epoch, tenant};
use crate::model::{Together, item_key};

/// Longer than any request may take, also beside a caller that does not run for long.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer takes no longer, because the disk does not hang: a caller that only its deadline wakes was forgotten.
const PROMPT: Duration = Duration::from_secs(5);
const EPOCHS: u64 = 4;
const RECIPIENTS: u64 = 3;

/// What may go wrong in this boot of the ledger.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// The disk may fail.
    pub faults: bool,
    /// Set when the ledger is told to stop.
    pub stopping: Arc<AtomicBool>,
}

pub struct Caller {
    pub ledger: Ledger,
    pub book: Book,
    pub weather: Weather,
    pub draws: Draws,
    /// What the names of its requests begin with; differs in each boot.
    pub name: String,
    pub made: u64,
}

impl Caller {
    /// One request, of any kind.
    pub fn step(&mut self) {
        match self.draws.below(20) {
            0..=11 => {
                let key = self.key();
                let entry = self.entry(key);
                self.send(vec![entry], Atomicity::Independent);
            }
            12 | 13 => self.together(),
            14..=16 => self.settle(),
            17 => self.again(),
            18 => self.another(),
            _ => self.resolve(),
        }
    }

    /// Money for any account.
    pub fn filler(&mut self) -> Entry {
        let key = self.key();
        self.issue(key)
    }

    fn key(&mut self) -> String {
        self.made += 1;
        format!("{}-{}", self.name, self.made)
    }

    /// Sends a request and notes how it ended.
    pub fn send(&self, entries: Vec<Entry>, how: Atomicity) {
        let sent = Sent { entries, how };
        self.book.send(sent.clone());
        self.send_noted(sent);
    }

    fn send_noted(&self, sent: Sent) {
        let Sent { entries, how } = sent;
        let was_closed = self.ledger.head().closed.is_some();
        let before = self.ledger.head_seq();
        let begun = time::elapsed();
        let deadline = Deadline::within(PATIENCE);
        let answer = self.ledger.commit(entries.clone(), how, deadline);
        ensure(time::elapsed() < begun + PROMPT, "an answer comes at once");
        self.note(entries, answer, (before, was_closed));
    }

    fn note(
        &self,
        entries: Vec<Entry>,
        answer: Result<Vec<EntryAnswer>, SubmitError>,
        (before, was_closed): (u64, bool),
    ) {
        let after = self.ledger.head_seq();
        let stopping = self.weather.stopping.load(Ordering::SeqCst);
        let (end, allowed) = match &answer {
            Ok(_) => ("answered", true),
            Err(SubmitError::Busy { .. }) => ("busy", true),
            Err(SubmitError::Closed(_)) => ("closed", self.weather.faults),
            Err(SubmitError::Unable(_)) => ("unable", self.weather.faults || stopping),
            Err(SubmitError::Unknown(why)) => {
                let late = why.contains("the deadline passed");
                ("unknown", self.weather.faults && !late)
            }
            Err(SubmitError::Bad { .. } | SubmitError::Expired) => ("bad", false),
        };
        if !allowed {
            ensure(false, &format!("{answer:?} for {entries:?}"));
        }
        self.book.count(end);
        if let Ok(answers) = answer {
            if let Some(EntryAnswer::Done { seq, txid, .. }) = answers.first() {
                self.read_back(*seq, *txid);
            }
            self.book.answer(Call {
                entries,
                answers,
                heads: (before, after),
                was_closed,
            });
        }
    }

    /// What was answered can be read.
    fn read_back(&self, seq: u64, txid: TxId) {
        match self.ledger.tx(txid) {
            Ok(Some(event)) => ensure(event.seq == seq, "the entry of its id"),
            Ok(None) => ensure(false, &format!("{txid} was answered and cannot be read")),
            Err(e) => ensure(self.weather.faults, &format!("{txid}: {e}")),
        }
    }

    fn amount(&mut self, most: u64) -> Amount {
        Amount(u128::from(1 + self.draws.below(most)))
    }

    fn any_account(&mut self) -> Account {
        account(self.draws.below(ACCOUNTS))
    }

    /// Mostly the account's next nonce, which another caller may use first.
    fn nonce(&mut self, of: &Account) -> Option<u64> {
        match self.draws.below(4) {
            0 | 1 => None,
            2 => Some(self.ledger.account(of).nonce + 1),
            _ => Some(self.ledger.account(of).nonce + 1 + self.draws.below(2)),
        }
    }

    fn any_tx(&mut self) -> TxId {
        let known = self.book.lock();
        let made_up = TxId(7 << 64 | 7);
        self.draws.pick(&known.txs).copied().unwrap_or(made_up)
    }

    fn any_hold(&mut self) -> HoldRef {
        let known = self.book.lock();
        let recent = &known.holds[known.holds.len().saturating_sub(4)..];
        let found = self.draws.pick(recent).copied();
        HoldRef::Id(found.unwrap_or(TxId(7 << 64 | 7)))
    }

    /// An entry with a key.
    fn entry(&mut self, key: String) -> Entry {
        match self.draws.below(20) {
            0..=3 => self.issue(key),
            4..=8 => self.transfer(key),
            9 => self.burn(key),
            10..=12 => self.hold(key),
            13 | 14 => {
                let hold = self.any_hold();
                self.capture(key, hold)
            }
            15 => {
                let hold = self.any_hold();
                self.release(key, hold)
            }
            16 | 17 => self.reverse(key),
            18 => self.terms(key),
            _ => self.asset_or_freeze(key),
        }
    }

    fn issue(&mut self, key: String) -> Entry {
        let to = match self.draws.below(3) {
            0 => POOL.parse().expect("a name"),
            _ => self.any_account(),
        };
        Entry::Issue {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            to,
            asset: asset(self.draws.below(3) / 2),
            amount_minor: self.amount(1_000),
            details: Details::default(),
            batch: None,
            budgets: Vec::new(),
        }
    }

    fn principal(&self) -> ron_proto::ledger::PrincipalName {
        let name = self.name.split('-').next().unwrap_or("c");
        name.parse().expect("a name")
    }

    /// An amount, or all that is available.
    fn sized(&mut self) -> (Amount, Option<Amount>) {
        match self.draws.below(8) {
            0 => (Amount(0), Some(self.amount(2_000))),
            _ => (self.amount(200), None),
        }
    }

    fn transfer(&mut self, key: String) -> Entry {
        let payer = self.draws.below(ACCOUNTS);
        let payee = (payer + 1 + self.draws.below(ACCOUNTS - 1)) % ACCOUNTS;
        let (from, to) = (account(payer), account(payee));
        let (amount_minor, up_to) = self.sized();
        Entry::Transfer {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            nonce: self.nonce(&from),
            from,
            to,
            asset: asset(self.draws.below(3) / 2),
            amount_minor,
            up_to,
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        }
    }

    fn burn(&mut self, key: String) -> Entry {
        let from = self.any_account();
        let (amount_minor, up_to) = self.sized();
        Entry::Burn {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            nonce: self.nonce(&from),
            from,
            asset: asset(self.draws.below(3) / 2),
            amount_minor,
            up_to,
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        }
    }

    /// Ends within 2 s, and now and then has ended already.
    fn hold(&mut self, key: String) -> Entry {
        let from = self.any_account();
        let (amount_minor, up_to) = self.sized();
        let now = time::date().as_millis() as u64;
        let end = match self.draws.below(10) {
            0 => now,
            1..=4 => now + 1 + self.draws.below(20),
            _ => now + self.draws.below(2_000),
        };
        Entry::Hold {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            nonce: self.nonce(&from),
            from,
            asset: asset(self.draws.below(3) / 2),
            amount_minor,
            up_to,
            expires_at: Timestamp(end),
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        }
    }

    fn capture(&mut self, key: String, hold: HoldRef) -> Entry {
        let part = self.draws.below(3) > 0;
        Entry::Capture {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            hold,
            to: self.any_account(),
            amount_minor: part.then(|| self.amount(100)),
            ends_hold: self.draws.below(4) == 0,
            details: Details::default(),
            batch: None,
            budgets: Vec::new(),
        }
    }

    fn release(&mut self, key: String, hold: HoldRef) -> Entry {
        Entry::Release {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            hold,
            details: Details::default(),
            batch: None,
        }
    }

    fn reverse(&mut self, key: String) -> Entry {
        let part = self.draws.below(2) == 0;
        Entry::Reverse {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            tx: self.any_tx(),
            amount_minor: part.then(|| self.amount(100)),
            original: None,
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        }
    }

    fn terms(&mut self, key: String) -> Entry {
        let mut terms = AccountTerms::default();
        match self.draws.below(4) {
            0 => terms.closed = Some(self.draws.below(2) == 0),
            1 => terms.require_nonce = Some(self.draws.below(2) == 0),
            2 => terms.frozen = Some(Sides::None),
            _ => {
                let bounded = self.draws.below(2) == 0;
                terms.limits = Some(AssetLimits {
                    asset: asset(self.draws.below(2)),
                    credit_limit_minor: Amount(u128::from(self.draws.below(2) * 300)),
                    max_balance_minor: bounded.then(|| self.amount(5_000)),
                });
            }
        }
        Entry::Account {
            tenant: tenant(),
            principal: self.principal(),
            key: key.parse().expect("a key"),
            account: self.any_account(),
            terms,
            details: Details::default(),
        }
    }

    fn asset_or_freeze(&mut self, key: String) -> Entry {
        let (tenant, principal) = (tenant(), self.principal());
        let key = key.parse().expect("a key");
        let details = Details::default();
        let sides = Sides::ALL[1 + self.draws.below(3) as usize];
        match self.draws.below(6) {
            0 => Entry::Freeze {
                tenant,
                principal,
                key,
                account: self.any_account(),
                sides,
                details,
            },
            1..=3 => Entry::Unfreeze {
                tenant,
                principal,
                key,
                account: self.any_account(),
                sides: Sides::Both,
                details,
            },
            _ => Entry::Asset {
                tenant,
                principal,
                key,
                asset: asset(self.draws.below(2)),
                terms: AssetTerms {
                    scale: 2 + self.draws.below(2) as u8,
                    title: None,
                },
                details,
            },
        }
    }

    /// A linked commit or a batch, the linked one now and then with a hold that its other items use.
    fn together(&mut self) {
        let request = self.key();
        let all = 2 + self.draws.below(4) as usize;
        let how = match self.draws.below(3) {
            0 => Together::Batch,
            _ => Together::Linked,
        };
        let key = |at: usize| item_key(&request, at, all, how);
        let with_hold = how == Together::Linked && self.draws.below(3) == 0;
        let entries = (0..all).map(|at| match (with_hold, at) {
            (true, 0) => self.hold(key(at)),
            (true, _) if at + 1 == all => self.release(key(at), HoldRef::Item(0)),
            (true, _) => self.capture(key(at), HoldRef::Item(0)),
            (false, _) => self.entry(key(at)),
        });
        let entries = entries.collect();
        let how = match how {
            Together::Batch => Atomicity::Batch,
            Together::Linked => Atomicity::Linked,
        };
        self.send(entries, how);
    }

    /// The next step of an epoch, now and then one that is not its turn.
    fn settle(&mut self) {
        let n = self.draws.below(EPOCHS);
        let (tenant, epoch) = (tenant(), epoch(n));
        let principal: ron_proto::ledger::PrincipalName = "settler".parse().expect("a name");
        let doc = self.ledger.epoch(&tenant, &epoch, None);
        let total = 30 + n;
        let next = doc.as_ref().map_or(0, |doc| doc.next_index);
        let entry = if self.draws.below(24) == 0 {
            Entry::EpochVoid {
                principal,
                tenant,
                epoch,
                commitment: ContentId([n as u8; 32]),
            }
        } else if doc.is_none() && self.draws.below(8) > 0 {
            Entry::EpochOpen {
                principal,
                tenant,
                source: ContentId::of(&[n as u8]),
                epoch,
                from: POOL.parse().expect("a name"),
                asset: asset(0),
                amount_minor: Amount(u128::from(total)),
                commitment: ContentId([n as u8; 32]),
                sum_root: ContentId([9; 32]),
                recipients: RECIPIENTS,
                adjusts: None,
            }
        } else if next < RECIPIENTS {
            let index = next + u64::from(self.draws.below(5) == 0);
            let part = total / RECIPIENTS;
            let last = total - part * (RECIPIENTS - 1);
            let is_last = index + 1 == RECIPIENTS;
            Entry::Payout {
                principal,
                tenant,
                epoch,
                index,
                to: account(index % ACCOUNTS),
                asset: asset(0),
                amount_minor: Amount(u128::from(if is_last { last } else { part })),
            }
        } else {
            Entry::EpochClose {
                principal,
                tenant,
                epoch,
                commitment: ContentId([n as u8; 32]),
                asset: None,
            }
        };
        self.send(vec![entry], Atomicity::Independent);
    }

    fn any_sent(&mut self) -> Option<Sent> {
        let known = self.book.lock();
        self.draws.pick(&known.sent).cloned()
    }

    /// A request that was sent before, perhaps by another caller or before a restart.
    fn again(&mut self) {
        if let Some(sent) = self.any_sent() {
            self.send_noted(sent);
        }
    }

    /// Another request under a key that was used.
    fn another(&mut self) {
        let Some(mut sent) = self.any_sent().filter(|sent| sent.entries.len() == 1) else {
            return;
        };
        let entry = &mut sent.entries[0];
        let (Entry::Issue { amount_minor, .. }
        | Entry::Transfer {
            amount_minor,
            up_to: None,
            ..
        }) = entry
        else {
            return;
        };
        amount_minor.0 += 1;
        let key = entry.request_key().expect("such kinds have a key");
        self.book.lock().reused.insert(key);
        self.book.send(sent.clone());
        self.send_noted(sent);
    }

    /// Asks for the outcome of a key, which is abandoned when it has none.
    fn resolve(&mut self) {
        let key = match self.draws.below(4) {
            0 => RequestKey {
                tenant: tenant(),
                principal: self.principal(),
                key: self.key().parse().expect("a key"),
            },
            _ => {
                let sent = self.any_sent();
                let key = sent.and_then(|sent| sent.entries[0].request_key());
                let Some(key) = key else { return };
                key
            }
        };
        self.book.lock().reused.insert(key.clone());
        let was_closed = self.ledger.head().closed.is_some();
        let before = self.ledger.head_seq();
        let answer = self.ledger.resolve(key, Deadline::within(PATIENCE));
        let answer = answer.map(|answer| vec![answer]);
        self.note(Vec::new(), answer, (before, was_closed));
    }
}
