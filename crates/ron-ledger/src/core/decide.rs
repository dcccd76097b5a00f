//! Decides one batch: entries are decided in order against the state and the changes of the batch
//! so far.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ron_proto::Timestamp;
use ron_proto::ledger::TxId;

use super::delta::Delta;
use super::entry::{Body, Entry, Header};
use super::leaf::{self, Link, Place};
use super::limits::Limits;
use super::op::{Op, with_holds};
use super::overlay::Overlay;
use super::private::Salts;
use super::rules::Stop;
use super::state::{Balance, State};
use super::verdict::{Refusal, Verdict};

/// The outcome of an entry given to a [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Fresh {
        seq: u64,
        verdict: Verdict,
        /// The transaction id of the first item of its batch or linked commit.
        batch: Option<TxId>,
    },
    /// Its key, epoch or index already has a leaf; nothing changed. The caller compares whether it
    /// was the same request ([`Op::repeats`]).
    Known { seq: u64 },
    /// Part of a linked commit or batch with both used and unused keys, or with the same key twice:
    /// nothing changed, no leaf.
    Mixed,
    /// Refused without a leaf: nothing changed, and its key (if any) is unused.
    Rejected(Refusal),
}

/// How the entries of one request stand together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    Batch,
    Linked,
}

/// Why entries that stand together were not decided; nothing changed.
enum Apart {
    /// The entry at this place is refused without a leaf.
    Refused(usize, Refusal),
    /// The entries at these sequences have opened the epoch in the same words.
    Known(Vec<u64>),
}

/// What the log stores of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Canonical bytes of the leaf.
    pub leaf: Vec<u8>,
    /// Stored beside the leaf; the tree does not have it.
    pub private: Arc<[u8]>,
}

#[derive(Debug)]
pub struct Batch {
    /// Records in order; the first has `first_seq`.
    pub records: Vec<Record>,
    pub first_seq: u64,
    pub ts: Timestamp,
    pub delta: Delta,
}

impl Batch {
    /// Sequence of the last leaf. Call it only when there is one.
    pub fn last_seq(&self) -> u64 {
        self.first_seq + self.records.len() as u64 - 1
    }
}

/// An invariant does not hold: the batch must not be made durable, and the ledger must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ledger invariant broken: {0}")]
pub struct Broken(pub String);

/// Maximum holds expired in one batch, so that a flood of them cannot starve callers.
const EXPIRIES_PER_STEP: usize = 1_000;

/// A batch that is being decided.
#[derive(Debug)]
pub struct Step<'a> {
    pub(super) overlay: Overlay<'a>,
    records: Vec<Record>,
}

impl<'a> Step<'a> {
    /// Starts a batch at `now`; when the clock went back, the time of the last entry is used
    /// instead.
    pub fn new(state: &'a State, now: Timestamp) -> Self {
        Self {
            overlay: Overlay {
                state,
                delta: Delta::default(),
                group: None,
                ts: now.max(state.ts),
                limits: Limits::default(),
            },
            records: Vec::new(),
        }
    }

    /// Prepares for these entries, which are decided next.
    pub fn prepare<'b>(&self, ops: impl Iterator<Item = &'b Op>) {
        self.overlay.state.warm(ops);
    }

    /// Sets the limits for the entries that follow. By default only the limits of the format apply.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.overlay.limits = limits;
    }

    /// Decides one entry. `prior` is the sequence that its key already has outside this batch.
    pub fn entry(&mut self, op: &Op, prior: Option<u64>) -> Outcome {
        self.item(op, prior, None)
    }

    /// Decides one entry of the batch whose first item has the transaction id `batch`.
    pub fn item(&mut self, op: &Op, prior: Option<u64>, batch: Option<TxId>) -> Outcome {
        let place = Place { link: None, batch };
        if let Some(seq) = prior.or_else(|| self.used(op)) {
            return Outcome::Known { seq };
        }
        let seq = self.next_seq();
        match self.overlay.decide(op, seq) {
            Ok(effect) => self.record(op, place, Verdict::Done(effect)),
            Err(Stop::Refused(why)) if !has_leaf(op, &why) => Outcome::Rejected(why),
            Err(Stop::Refused(_)) if !self.overlay.may_refuse(&op.entry().header, 1) => {
                Outcome::Rejected(Refusal::RefusalBudget)
            }
            Err(Stop::Refused(why)) => self.record(op, place, Verdict::Refused(why)),
            Err(Stop::Known(seq)) => Outcome::Known { seq },
        }
    }

    /// Decides a batch: each entry by itself, but only if none of its keys is used and every entry
    /// gets a leaf. Otherwise nothing changes, so that the whole batch can be sent again.
    pub fn batch(&mut self, ops: &[Op], priors: &[Option<u64>]) -> Vec<Outcome> {
        self.together(ops, priors, Together::Batch)
    }

    /// Decides a linked commit: all entries take effect or none. `priors` has one item per entry. The leaves name the
    /// ids of holds that other entries of the commit make ([`with_holds`]).
    pub fn linked(&mut self, ops: &[Op], priors: &[Option<u64>]) -> Vec<Outcome> {
        self.together(ops, priors, Together::Linked)
    }

    fn together(&mut self, ops: &[Op], priors: &[Option<u64>], how: Together) -> Vec<Outcome> {
        if let ([op], [prior]) = (ops, priors) {
            return vec![self.entry(op, *prior)];
        }
        if let Some(outcomes) = self.known_together(ops, priors) {
            return outcomes;
        }
        let resolved = match how {
            Together::Linked => with_holds(ops, self.next_seq()),
            Together::Batch => Cow::Borrowed(ops),
        };
        let ops = &*resolved;
        let verdicts = match self.decide_together(ops, how) {
            Ok(verdicts) => verdicts,
            Err(Apart::Refused(at, why)) => {
                let mut outcomes = vec![Outcome::Rejected(Refusal::LinkedFailed); ops.len()];
                outcomes[at] = Outcome::Rejected(why);
                return outcomes;
            }
            Err(Apart::Known(seqs)) => {
                return seqs.into_iter().map(|seq| Outcome::Known { seq }).collect();
            }
        };
        let (length, batch) = (ops.len() as u32, self.batch_of(ops));
        let place = |i: usize| Place {
            link: (how == Together::Linked).then_some(Link {
                position: i as u32,
                length,
            }),
            batch,
        };
        ops.iter()
            .zip(verdicts)
            .enumerate()
            .map(|(i, (op, v))| self.record(op, place(i), v))
            .collect()
    }

    /// The link that items of one request share: the transaction id that its first item gets.
    fn batch_of(&self, ops: &[Op]) -> Option<TxId> {
        match ops {
            [first, _, ..] => Some(first.txid(self.next_seq())),
            _ => None,
        }
    }

    /// The outcomes of a request of which a key is already used or occurs twice; `None` when all
    /// keys are new.
    fn known_together(&self, ops: &[Op], priors: &[Option<u64>]) -> Option<Vec<Outcome>> {
        let known: Vec<Option<u64>> = ops
            .iter()
            .zip(priors)
            .map(|(op, p)| p.or_else(|| self.used(op)))
            .collect();
        if known.iter().any(Option::is_some) {
            let all = known.iter().all(Option::is_some);
            let outcomes = |k: Option<u64>| {
                k.filter(|_| all)
                    .map_or(Outcome::Mixed, |seq| Outcome::Known { seq })
            };
            return Some(known.into_iter().map(outcomes).collect());
        }
        let mut keys: Vec<_> = ops.iter().filter_map(Op::key).collect();
        keys.sort_unstable();
        let twice = keys.windows(2).any(|pair| pair[0] == pair[1]);
        twice.then(|| vec![Outcome::Mixed; ops.len()])
    }

    /// The verdicts of entries that stand together; their effects are in the batch. With an error
    /// nothing changed.
    fn decide_together(&mut self, ops: &[Op], how: Together) -> Result<Vec<Verdict>, Apart> {
        let first = self.next_seq();
        self.overlay.group = Some(Delta::default());
        let (mut verdicts, mut known) = (Vec::with_capacity(ops.len()), Vec::new());
        let mut refused = None;
        for (i, op) in ops.iter().enumerate() {
            let verdict = match self.overlay.decide(op, first + i as u64) {
                // The assets of an epoch are opened by one commit, so that either all of them are known
                // or none.
                Ok(_) if !known.is_empty() => Verdict::Refused(Refusal::EpochConflict),
                Ok(effect) => Verdict::Done(effect),
                Err(Stop::Refused(why)) => Verdict::Refused(why),
                Err(Stop::Known(seq)) if known.len() == i => {
                    known.push(seq);
                    continue;
                }
                Err(Stop::Known(_)) => Verdict::Refused(Refusal::EpochConflict),
            };
            let why = verdict.refusal().cloned();
            verdicts.push(verdict);
            if let Some(why) = why
                && (how == Together::Linked || !why.has_leaf())
            {
                refused = Some((i, why));
                break;
            }
        }
        let group = self.overlay.group.take().expect("set above");
        match refused {
            Some((at, why)) if !has_leaf(&ops[at], &why) => return Err(Apart::Refused(at, why)),
            None if !known.is_empty() => return Err(Apart::Known(known)),
            Some((at, why)) => {
                verdicts = vec![Verdict::Refused(Refusal::LinkedFailed); ops.len()];
                verdicts[at] = Verdict::Refused(why);
                self.may_refuse_all(ops, &verdicts)?;
            }
            None => {
                self.may_refuse_all(ops, &verdicts)?;
                self.overlay.delta.merge(group);
            }
        }
        Ok(verdicts)
    }

    /// The refusals of one request must fit the budgets of their owners together. The error names the
    /// first entry that does not.
    fn may_refuse_all(&self, ops: &[Op], verdicts: &[Verdict]) -> Result<(), Apart> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for (i, (op, verdict)) in ops.iter().zip(verdicts).enumerate() {
            let header = &op.entry().header;
            if verdict.is_done() {
                continue;
            }
            let count = counts
                .entry((&header.tenant, &header.principal))
                .or_default();
            *count += 1;
            if !self.overlay.may_refuse(header, *count) {
                return Err(Apart::Refused(i, Refusal::RefusalBudget));
            }
        }
        Ok(())
    }

    /// Ends the holds that are due; call it before the entries of the batch. `salts` gives those of
    /// each expiry. Returns how many ended.
    pub fn expire_due(&mut self, salts: &mut dyn FnMut() -> Salts) -> usize {
        let ts = self.overlay.ts;
        #[cfg(mutant = "expiry")] // off by one
        let ts = Timestamp(ts.0 + u64::from(crate::mutant("expiry")));
        let due: Vec<TxId> = self
            .overlay
            .state
            .expiries
            .range(..=(ts, u64::MAX))
            .take(EXPIRIES_PER_STEP)
            .filter_map(|(_, seq)| self.overlay.state.holds.get(seq).map(|h| h.id))
            .collect();
        for hold in &due {
            let expire = Entry::new(Header::own(), Body::Expire { hold: *hold });
            let op =
                Op::new(expire, &salts()).expect("an expiry has no key and nothing else to check");
            self.entry(&op, None);
        }
        due.len()
    }

    /// Checks every invariant on the changed rows and returns the batch.
    pub fn finish(self) -> Result<Batch, Broken> {
        self.check_rows()?;
        self.check_conservation()?;
        let first_seq = self.overlay.state.seq + 1;
        Ok(Batch {
            records: self.records,
            first_seq,
            ts: self.overlay.ts,
            delta: self.overlay.delta,
        })
    }

    /// The sequence that the next leaf gets.
    pub fn next_seq(&self) -> u64 {
        self.overlay.state.seq + 1 + self.records.len() as u64
    }

    fn used(&self, op: &Op) -> Option<u64> {
        op.key()
            .and_then(|k| self.overlay.delta.keys.get(&k).copied())
    }

    fn record(&mut self, op: &Op, place: Place, verdict: Verdict) -> Outcome {
        let seq = self.next_seq();
        self.records.push(Record {
            leaf: leaf::encode(seq, self.overlay.ts, place, &verdict, op),
            private: Arc::clone(op.private()),
        });
        if let Some(key) = op.key() {
            self.overlay.delta.add_key(key, seq);
        }
        let refused = !verdict.is_done();
        self.overlay.count_refusal(&op.entry().header, refused);
        Outcome::Fresh {
            seq,
            verdict,
            batch: place.batch,
        }
    }

    fn check_rows(&self) -> Result<(), Broken> {
        for t in &self.overlay.delta.touched {
            let old_nonce = self.overlay.state.account_at(t.ix).map_or(0, |r| r.nonce);
            if t.row.nonce != old_nonce + t.nonces {
                return Err(Broken(format!(
                    "account {}: nonce {old_nonce} became {} by {} debits with a nonce",
                    t.row.name, t.row.nonce, t.nonces
                )));
            }
            let uncovered = |b: &&Balance| !b.is_covered(t.row.limits(b.asset).credit);
            if let Some(b) = t.row.balances.iter().find(uncovered) {
                return Err(Broken(format!(
                    "account {}: held {} of {}",
                    t.row.name,
                    b.held,
                    b.level()
                )));
            }
        }
        match self.overlay.delta.epochs.iter().find(|(_, e)| {
            e.assets
                .iter()
                .any(|it| it.paid > it.total || it.next_index > it.recipients)
        }) {
            Some(((tenant, epoch), _)) => Err(Broken(format!(
                "epoch {tenant}/{epoch} paid more than its total"
            ))),
            None => Ok(()),
        }
    }

    /// Per asset: the credits and debits of the accounts rose by exactly those of the asset, and credits
    /// less debits are still issues less burns.
    fn check_conservation(&self) -> Result<(), Broken> {
        let mut moved: BTreeMap<u32, (u128, u128)> = self
            .overlay
            .delta
            .assets
            .keys()
            .map(|ix| (*ix, (0, 0)))
            .collect();
        for t in &self.overlay.delta.touched {
            let old = self.overlay.state.account_at(t.ix);
            for b in &t.row.balances {
                let before = old.map_or_else(Balance::default, |r| r.balance(b.asset));
                let (credits, debits) = moved.entry(b.asset).or_default();
                let rise = |sum: u128, now: u128, before: u128| {
                    now.checked_sub(before)
                        .and_then(|rise| sum.checked_add(rise))
                };
                let rises = (
                    rise(*credits, b.credits, before.credits),
                    rise(*debits, b.debits, before.debits),
                );
                let (Some(up), Some(down)) = rises else {
                    return Err(Broken(format!(
                        "account {}: credits or debits fell, or rose above 128 bits",
                        t.row.name
                    )));
                };
                (*credits, *debits) = (up, down);
            }
        }
        for (ix, (credits, debits)) in moved {
            let old = self.overlay.state.asset(ix);
            let Some(new) = self.overlay.delta.assets.get(&ix).or(old) else {
                continue;
            };
            let before = old.map_or((0, 0), |a| (a.credits, a.debits));
            let rises = new.credits.checked_sub(before.0) == Some(credits)
                && new.debits.checked_sub(before.1) == Some(debits);
            if !rises || !new.adds_up() {
                return Err(Broken(format!(
                    "asset {}: issued {}, burned {}, accounts credited {credits}, debited {debits}",
                    new.name, new.issued, new.burned
                )));
            }
        }
        Ok(())
    }
}

/// Whether the refusal of an entry has a leaf. Settlement entries have no key to use up, and a settler that waits for its pool to
/// be funded must not fill the log.
fn has_leaf(op: &Op, why: &Refusal) -> bool {
    why.has_leaf() && !op.kind().is_settlement()
}
