//! The ledger of the models: its real pure core behind one lock, and calls that fail as a test
//! plans.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ron_client::ClientError;
use ron_kernel::{Deadline, LockSpec, RankedMutex};
use ron_ledger::answers::{self, LogEntry};
use ron_ledger::core::{KeyHash, Op, Outcome, Salts, State, Step, Verdict, key_hash};
use ron_proto::ledger::{
    AccountDoc, BalanceDoc, CommitAnswer, CommitRequest, Entry, EntryAnswer, EntryKey, Event,
    RequestKey,
};
use ron_proto::{Account, Amount, Problem, Timestamp};

pub static LEDGER: LockSpec = LockSpec {
    name: "ledger",
    rank: 1_000,
    guards: "the ledger of the model",
};

/// As in the wallet.
#[derive(Debug)]
pub enum Committed {
    Answered(CommitAnswer),
    NotDone(Problem),
    Unknown(String),
}

/// How one call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Well,
    /// Not done, and answered so.
    NotDone,
    /// Done, and the answer is lost.
    AnswerLost,
    /// Not done, and no answer.
    RequestLost,
}

#[derive(Debug, Default)]
pub struct Book {
    state: State,
    keys: BTreeMap<KeyHash, u64>,
    entries: Vec<(Op, Verdict)>,
    /// Results of the next calls; the calls after them succeed.
    fates: VecDeque<Fate>,
}

/// The constant time of the models' ledger.
const NOW: Timestamp = Timestamp(1_700_000_000_000);

impl Book {
    fn commit<'e>(&mut self, entries: impl IntoIterator<Item = &'e Entry>) -> Vec<EntryAnswer> {
        entries.into_iter().map(|e| self.one(e)).collect()
    }

    fn one(&mut self, entry: &Entry) -> EntryAnswer {
        let op = Op::new(entry.clone(), &Salts::new([[7; 16]; 5]))
            .expect("models send well-formed entries");
        let mut step = Step::new(&self.state, NOW);
        let prior = op.key().and_then(|k| self.keys.get(&k).copied());
        let outcome = step.entry(&op, prior);
        let batch = step.finish().expect("invariants hold");
        match outcome {
            Outcome::Fresh { seq, verdict, .. } => {
                self.keys.extend(batch.delta.keys().iter().copied());
                self.state.apply(batch.delta, seq, NOW);
                self.entries.push((op, verdict));
                answers::answer(self.entry(seq))
            }
            Outcome::Known { seq } => answers::replayed(&op, self.entry(seq)),
            Outcome::Mixed => answers::mismatch(&op),
            Outcome::Rejected(why) => answers::rejected(&why),
        }
    }
}

impl Book {
    fn entry(&self, seq: u64) -> LogEntry<'_> {
        let (op, verdict) = &self.entries[seq as usize - 1];
        LogEntry {
            seq,
            ts: NOW,
            batch: None,
            op,
            verdict,
            // The models keep no log.
            leaf_hash: [0; 32],
        }
    }
}

/// The ledger's reads, as the wallet makes them.
#[derive(Debug)]
pub struct Client(RankedMutex<Book>);

impl Client {
    pub fn by_key(&self, key: &RequestKey, _by: Deadline) -> Result<Event, ClientError> {
        let book = self.0.lock();
        let found = book.keys.get(&key_hash(key.clone())).copied();
        let seq = found.ok_or_else(|| ClientError::NotSent {
            detail: "no such key".to_owned(),
        })?;
        Ok(answers::event(book.entry(seq)))
    }

    /// Entries with this key that took effect.
    pub fn times_done(&self, key: &EntryKey) -> usize {
        let book = self.0.lock();
        let of = |op: &Op| op.entry().header.key.as_ref() == Some(key);
        let all = book.entries.iter();
        all.filter(|(op, v)| of(op) && v.is_done()).count()
    }

    pub fn account(&self, account: &Account) -> AccountDoc {
        let book = self.0.lock();
        let row = book.state.account(account);
        let total = row.map_or(0, |r| r.balance(0).level().amount().0);
        AccountDoc {
            require_nonce: false,
            account: account.clone(),
            nonce: row.map_or(0, |r| r.nonce),
            frozen: ron_proto::ledger::Sides::None,
            closed: false,
            class: None,
            balances: vec![BalanceDoc {
                asset: "ron".parse().expect("a constant name"),
                amount_minor: Amount(total),
                held_minor: Amount(0),
                available_minor: Amount(total),
                overdrawn_minor: Amount(0),
                credits_minor: Amount(total),
                debits_minor: Amount(0),
                credit_limit_minor: Amount(0),
                max_balance_minor: None,
            }],
            holds: Vec::new(),
            seq: book.state.seq(),
            ts: NOW,
        }
    }

    /// Commits at once, as the call of another client.
    pub fn put(&self, entries: &[Entry]) -> Vec<EntryAnswer> {
        self.0.lock().commit(entries)
    }
}

#[derive(Debug)]
pub struct Upstream {
    pub client: Client,
}

pub type SharedUpstream = Arc<Upstream>;

impl Upstream {
    pub fn new(fates: &[Fate]) -> SharedUpstream {
        let book = Book {
            fates: fates.iter().copied().collect(),
            ..Book::default()
        };
        Arc::new(Self {
            client: Client(RankedMutex::new(&LEDGER, book)),
        })
    }

    pub fn commit(&self, _slot: usize, request: &CommitRequest<&Entry>) -> Committed {
        let mut book = self.client.0.lock();
        let lost = || Committed::Unknown("lost on the way".to_owned());
        match book.fates.pop_front().unwrap_or(Fate::Well) {
            Fate::Well => Committed::Answered(CommitAnswer {
                results: book.commit(request.entries.iter().copied()),
            }),
            Fate::NotDone => Committed::NotDone(crate::errors::retry_later("not now")),
            Fate::AnswerLost => {
                book.commit(request.entries.iter().copied());
                lost()
            }
            Fate::RequestLost => lost(),
        }
    }

    pub fn watched<T>(
        &self,
        _slot: usize,
        _within: Deadline,
        call: impl FnOnce() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        call()
    }

    /// Nothing in a model stalls; what ends a wait there is an event.
    pub const fn stalls_within(&self) -> Duration {
        Duration::MAX
    }

    pub fn trouble(&self) -> Option<Problem> {
        None
    }
}
