//! Decides one batch: entries are decided in order against the state and the changes of the batch
//! so far.

use std::collections::BTreeMap;

use ron_proto::ledger::{Entry, RefusalCode, TxId};
use ron_proto::{Account, Asset, ContentId, EpochId, Tenant, Timestamp};

use super::Verdict;
use super::delta::{Delta, Touched};
use super::leaf::{self, Link};
use super::limits::Limits;
use super::op::Op;
use super::state::{AccountRow, AssetRow, EpochKey, EpochRow, HoldRow, State};

/// The outcome of an entry given to a [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Fresh {
        seq: u64,
        verdict: Verdict,
    },
    /// Its key, epoch or index already has a leaf; nothing changed. The caller compares whether it
    /// was the same request ([`Op::repeats`]).
    Known {
        seq: u64,
    },
    /// Part of a linked commit or batch with both used and unused keys, or with the same key twice:
    /// nothing changed, no leaf.
    Mixed,
}

#[derive(Debug)]
pub struct Batch {
    /// Canonical leaves in order; the first has `first_seq`.
    pub leaves: Vec<Vec<u8>>,
    pub first_seq: u64,
    pub ts: Timestamp,
    pub delta: Delta,
}

impl Batch {
    /// Sequence of the last leaf. Call it only when there is one.
    pub fn last_seq(&self) -> u64 {
        self.first_seq + self.leaves.len() as u64 - 1
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
    state: &'a State,
    delta: Delta,
    /// Changes of the current linked commit; dropped when one of its entries is refused.
    group: Option<Delta>,
    leaves: Vec<Vec<u8>>,
    pub(super) ts: Timestamp,
    pub(super) limits: Limits,
}

impl<'a> Step<'a> {
    /// Starts a batch at `now`; when the clock went back, the time of the last entry is used
    /// instead.
    pub fn new(state: &'a State, now: Timestamp) -> Self {
        Self {
            state,
            delta: Delta::default(),
            group: None,
            leaves: Vec::new(),
            ts: now.max(state.ts),
            limits: Limits::default(),
        }
    }

    /// Sets the limits for the entries that follow. By default only the limits of the format apply.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Decides one entry. `prior` is the sequence that its key already has outside this batch.
    pub fn entry(&mut self, op: &Op, prior: Option<u64>) -> Outcome {
        if let Some(seq) = prior.or_else(|| self.used(op)) {
            return Outcome::Known { seq };
        }
        let seq = self.next_seq();
        match self.decide(op, seq) {
            Ok(verdict) => self.record(op, None, verdict),
            Err(known) => Outcome::Known { seq: known },
        }
    }

    /// Decides a batch: each entry by itself, but only if none of its keys is used.
    pub fn batch(&mut self, ops: &[Op], priors: &[Option<u64>]) -> Vec<Outcome> {
        if let Some(outcomes) = self.known_together(ops, priors) {
            return outcomes;
        }
        ops.iter().map(|op| self.entry(op, None)).collect()
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

    /// Decides a linked commit: all entries take effect or none. `priors` has one item per entry.
    pub fn linked(&mut self, ops: &[Op], priors: &[Option<u64>]) -> Vec<Outcome> {
        if let ([op], [prior]) = (ops, priors) {
            return vec![self.entry(op, *prior)];
        }
        if let Some(outcomes) = self.known_together(ops, priors) {
            return outcomes;
        }
        let first = self.next_seq();
        self.group = Some(Delta::default());
        let mut failed = None;
        let mut verdicts = Vec::with_capacity(ops.len());
        for (i, op) in ops.iter().enumerate() {
            match self.decide(op, first + i as u64) {
                Ok(v @ Verdict::Done(_)) => verdicts.push(v),
                Ok(v) => failed = Some((i, v)),
                // Linked commits contain keyed entries only, so none is found by epoch or index.
                Err(_) => failed = Some((i, Verdict::refused(RefusalCode::EpochConflict))),
            }
            if failed.is_some() {
                break;
            }
        }
        let group = self.group.take().expect("set above");
        if let Some((at, verdict)) = failed {
            let others = Verdict::refused(RefusalCode::LinkedFailed);
            verdicts = (0..ops.len())
                .map(|i| {
                    if i == at {
                        verdict.clone()
                    } else {
                        others.clone()
                    }
                })
                .collect();
        } else {
            self.delta.merge(group);
        }
        let length = ops.len() as u32;
        let link = |i: usize| {
            Some(Link {
                position: i as u32,
                length,
            })
        };
        ops.iter()
            .zip(verdicts)
            .enumerate()
            .map(|(i, (op, v))| self.record(op, link(i), v))
            .collect()
    }

    /// Ends the holds that are due; call it before the entries of the batch. Returns how many
    /// ended.
    pub fn expire_due(&mut self) -> usize {
        let due: Vec<TxId> = self
            .state
            .expiries
            .range(..=(self.ts, u64::MAX))
            .take(EXPIRIES_PER_STEP)
            .filter_map(|(_, seq)| self.state.holds.get(seq).map(|h| h.id))
            .collect();
        for hold in &due {
            let op =
                Op::new(Entry::Expire { hold: *hold }).expect("an expiry has nothing to check");
            self.entry(&op, None);
        }
        due.len()
    }

    /// Checks every invariant on the changed rows and returns the batch.
    pub fn finish(self) -> Result<Batch, Broken> {
        self.check_rows()?;
        self.check_conservation()?;
        let first_seq = self.state.seq + 1;
        Ok(Batch {
            leaves: self.leaves,
            first_seq,
            ts: self.ts,
            delta: self.delta,
        })
    }

    /// The sequence that the next leaf gets.
    pub fn next_seq(&self) -> u64 {
        self.state.seq + 1 + self.leaves.len() as u64
    }

    fn used(&self, op: &Op) -> Option<u64> {
        op.key().and_then(|k| self.delta.keys.get(&k).copied())
    }

    fn record(&mut self, op: &Op, link: Option<Link>, verdict: Verdict) -> Outcome {
        let seq = self.next_seq();
        self.leaves.push(leaf::encode(self.ts, link, &verdict, op));
        if let Some(key) = op.key() {
            self.delta.add_key(key, seq);
        }
        Outcome::Fresh { seq, verdict }
    }

    fn check_rows(&self) -> Result<(), Broken> {
        for t in &self.delta.touched {
            let old_nonce = self.state.account_at(t.ix).map_or(0, |r| r.nonce);
            if t.row.nonce != old_nonce + t.debits {
                return Err(Broken(format!(
                    "account {}: nonce {old_nonce} became {} by {} debits",
                    t.row.name, t.row.nonce, t.debits
                )));
            }
            if let Some(b) = t.row.balances.iter().find(|b| b.held > b.total) {
                return Err(Broken(format!(
                    "account {}: held {} of {}",
                    t.row.name, b.held, b.total
                )));
            }
        }
        match self
            .delta
            .epochs
            .iter()
            .find(|(_, e)| e.paid > e.total || e.next_index > e.recipients)
        {
            Some(((tenant, epoch), _)) => Err(Broken(format!(
                "epoch {tenant}/{epoch} paid more than its total"
            ))),
            None => Ok(()),
        }
    }

    /// Per asset: the balances changed by exactly what was issued and burned, and the supply still
    /// adds up.
    fn check_conservation(&self) -> Result<(), Broken> {
        let mut moved: BTreeMap<u32, (u128, u128)> =
            self.delta.assets.keys().map(|ix| (*ix, (0, 0))).collect();
        let overflow = || Broken("balances of one batch overflow".to_owned());
        for t in &self.delta.touched {
            let old = self.state.account_at(t.ix);
            for b in &t.row.balances {
                let before = old.map_or(0, |r| r.balance(b.asset).total);
                let (up, down) = moved.entry(b.asset).or_default();
                let sum = if b.total >= before { up } else { down };
                *sum = sum
                    .checked_add(b.total.abs_diff(before))
                    .ok_or_else(overflow)?;
            }
        }
        for (ix, (up, down)) in moved {
            let old = self.state.asset(ix);
            let Some(new) = self.delta.assets.get(&ix).or(old) else {
                continue;
            };
            let issued = new.issued - old.map_or(0, |a| a.issued);
            let burned = new.burned - old.map_or(0, |a| a.burned);
            // up + burned == down + issued, without subtraction; the carry is part of the
            // comparison, so sums above 128 bits compare correctly.
            let moved_sum = up.overflowing_add(burned) == down.overflowing_add(issued);
            if !moved_sum || new.issued.checked_sub(new.burned) != Some(new.circulating) {
                return Err(Broken(format!(
                    "asset {}: issued {issued}, burned {burned}, balances rose {up}, fell {down}",
                    new.name
                )));
            }
        }
        Ok(())
    }
}

/// Reads search the linked commit, then the batch, then the state; writes go to the topmost of
/// these.
impl Step<'_> {
    pub(super) fn top(&mut self) -> &mut Delta {
        self.group.as_mut().unwrap_or(&mut self.delta)
    }

    fn layers(&self) -> impl Iterator<Item = &Delta> {
        self.group.iter().chain(std::iter::once(&self.delta))
    }

    pub(super) fn find(&self, name: &Account) -> Option<u32> {
        self.layers()
            .find_map(|d| d.name(name))
            .or_else(|| self.state.names.get(name).copied())
    }

    pub(super) fn row(&self, ix: u32) -> &AccountRow {
        let here = self.layers().find_map(|d| d.touched(ix)).map(|t| &t.row);
        here.or_else(|| self.state.account_at(ix))
            .expect("row numbers come from find or intern")
    }

    pub(super) fn touch(&mut self, ix: u32) -> &mut Touched {
        let (state, delta) = (self.state, &mut self.delta);
        let from_state = || {
            let row = state
                .account_at(ix)
                .expect("row numbers come from find or intern")
                .clone();
            Touched { ix, row, debits: 0 }
        };
        match &mut self.group {
            None => delta.touched_mut(ix, from_state),
            Some(group) => {
                let below = delta.touched(ix);
                group.touched_mut(ix, || below.cloned().unwrap_or_else(from_state))
            }
        }
    }

    /// Number of accounts, including those created in the batch.
    pub(super) fn account_count(&self) -> u64 {
        let added: u32 = self.layers().map(|d| d.accounts_added).sum();
        self.state.accounts.len() as u64 + u64::from(added)
    }

    /// The row of an account, created when it is new; callers have checked the limit with `room`.
    pub(super) fn intern(&mut self, name: &Account) -> u32 {
        if let Some(ix) = self.find(name) {
            return ix;
        }
        let ix = u32::try_from(self.account_count()).expect("there is room, so fewer than 2^32");
        self.top().add_account(ix, name.clone());
        ix
    }

    pub(super) fn asset_ix(&self, name: &Asset) -> Option<u32> {
        let first_new = self.state.assets.len() as u32;
        let among_new = |d: &Delta| {
            d.assets
                .range(first_new..)
                .find(|(_, a)| a.name == *name)
                .map(|(ix, _)| *ix)
        };
        self.state
            .asset_ix(name)
            .or_else(|| self.layers().find_map(among_new))
    }

    pub(super) fn asset(&self, ix: u32) -> &AssetRow {
        let here = self.layers().find_map(|d| d.assets.get(&ix));
        here.or_else(|| self.state.asset(ix))
            .expect("row numbers come from asset_ix or add_asset")
    }

    pub(super) fn asset_mut(&mut self, ix: u32) -> &mut AssetRow {
        let row = self.asset(ix).clone();
        self.top().assets.entry(ix).or_insert(row)
    }

    pub(super) fn add_asset(&mut self, name: &Asset) -> u32 {
        let added: u32 = self.layers().map(|d| d.assets_added).sum();
        let ix = self.state.assets.len() as u32 + added;
        let row = AssetRow {
            name: name.clone(),
            issued: 0,
            burned: 0,
            circulating: 0,
        };
        let top = self.top();
        top.assets_added += 1;
        top.assets.insert(ix, row);
        ix
    }

    pub(super) fn hold(&self, id: TxId) -> Option<&HoldRow> {
        let seq = id.seq();
        match self.layers().find_map(|d| d.holds.get(&seq)) {
            Some(here) => here.as_ref(),
            None => self.state.holds.get(&seq),
        }
        .filter(|h| h.id == id)
    }

    pub(super) fn epoch(&self, key: &EpochKey) -> Option<&EpochRow> {
        self.layers()
            .find_map(|d| d.epochs.get(key))
            .or_else(|| self.state.epochs.get(key))
    }

    /// The epoch of the tenant that last paid for this source.
    pub(super) fn paid_by(&self, tenant: &Tenant, source: ContentId) -> Option<&EpochId> {
        let key = (tenant.clone(), source);
        self.layers()
            .find_map(|d| d.sources.get(&key))
            .or_else(|| self.state.sources.get(&key))
    }

    pub(super) fn epoch_mut(&mut self, key: &EpochKey) -> &mut EpochRow {
        if !self.top().epochs.contains_key(key) {
            let row = self.epoch(key).expect("callers looked it up").clone();
            self.top().epochs.insert(key.clone(), row);
        }
        self.top().epochs.get_mut(key).expect("inserted above")
    }
}
