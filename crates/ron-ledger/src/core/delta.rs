//! The changes of a batch, laid over a state that is not modified until they are durable.

use std::collections::BTreeMap;

use ron_proto::ledger::BudgetId;
use ron_proto::{Account, Timestamp};

use super::entry::KeyHash;
use super::state::{
    AccountRow, AssetRow, BudgetRow, EpochKey, EpochRow, HoldRow, Owner, Sources, State, VoidKey,
};
use crate::table::{ByHash, ByRow, Table};

/// An account row after the batch.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub(super) ix: u32,
    pub(super) row: AccountRow,
    /// Nonces that the batch used.
    pub(super) nonces: u64,
}

/// New values of every row that a batch changed.
#[derive(Debug, Default)]
pub struct Delta {
    pub(super) touched: Vec<Touched>,
    at: ByRow<u32>,
    new_names: Table<Account, u32>,
    pub(super) assets: BTreeMap<u32, AssetRow>,
    pub(super) holds: BTreeMap<u64, Option<HoldRow>>,
    pub(super) epochs: BTreeMap<EpochKey, EpochRow>,
    pub(super) sources: Sources,
    pub(super) voids: BTreeMap<VoidKey, u64>,
    pub(super) budgets: BTreeMap<BudgetId, BudgetRow>,
    pub(super) refusals: BTreeMap<Owner, Timestamp>,
    pub(super) reversed: BTreeMap<u64, u128>,
    pub(super) keys: ByHash<KeyHash, u64>,
    pub(super) key_list: Vec<(KeyHash, u64)>,
    pub(super) accounts_added: u32,
    pub(super) assets_added: u32,
}

impl Delta {
    /// The keys that the batch used, with their sequences, in order.
    pub fn keys(&self) -> &[(KeyHash, u64)] {
        &self.key_list
    }

    pub(super) fn touched(&self, ix: u32) -> Option<&Touched> {
        self.at.get(&ix).map(|i| &self.touched[*i as usize])
    }

    pub(super) fn name(&self, name: &Account) -> Option<u32> {
        self.new_names.get(name).copied()
    }

    pub(super) fn touched_mut(&mut self, ix: u32, fresh: impl FnOnce() -> Touched) -> &mut Touched {
        let at = if let Some(i) = self.at.get(&ix) {
            *i
        } else {
            self.touched.push(fresh());
            let i = (self.touched.len() - 1) as u32;
            self.at.insert(ix, i);
            i
        };
        &mut self.touched[at as usize]
    }

    pub(super) fn add_account(&mut self, ix: u32, name: Account) {
        self.new_names.insert(name.clone(), ix);
        self.accounts_added += 1;
        self.touched_mut(ix, || Touched {
            ix,
            row: AccountRow::new(name),
            nonces: 0,
        });
    }

    pub(super) fn add_key(&mut self, key: KeyHash, seq: u64) {
        self.keys.insert(key, seq);
        self.key_list.push((key, seq));
    }

    /// Adopts the changes of a linked commit.
    pub(super) fn merge(&mut self, group: Self) {
        for t in group.touched {
            if t.ix_is_new(&group.new_names) {
                self.new_names.insert(t.row.name.clone(), t.ix);
            }
            let slot = self.touched_mut(t.ix, || t.clone());
            *slot = t;
        }
        self.accounts_added += group.accounts_added;
        self.assets_added += group.assets_added;
        self.assets.extend(group.assets);
        self.holds.extend(group.holds);
        self.epochs.extend(group.epochs);
        self.sources.extend(group.sources);
        self.voids.extend(group.voids);
        self.budgets.extend(group.budgets);
        self.reversed.extend(group.reversed);
        for (key, seq) in group.key_list {
            self.add_key(key, seq);
        }
    }
}

impl Touched {
    fn ix_is_new(&self, new: &Table<Account, u32>) -> bool {
        new.get(&self.row.name).is_some()
    }
}

impl State {
    /// Applies a durable batch. `seq` and `ts` are those of its last leaf.
    pub fn apply(&mut self, delta: Delta, seq: u64, ts: Timestamp) {
        self.seq = seq;
        self.ts = ts;
        let mut added: Vec<Touched> = Vec::new();
        for t in delta.touched {
            if (t.ix as usize) < self.accounts.len() {
                self.accounts.set(t.ix as usize, t.row);
            } else {
                added.push(t);
            }
        }
        // A batch lists its rows in the order of first change; new rows must be appended in row
        // order.
        added.sort_unstable_by_key(|t| t.ix);
        for t in added {
            self.numbers.add(&t.row.name, t.ix);
            let ix = self.accounts.push(t.row);
            assert_eq!(ix as u32, t.ix, "account rows are dense");
        }
        for (ix, row) in delta.assets {
            if let Some(old) = self.assets.get_mut(ix as usize) {
                *old = row;
            } else {
                self.asset_names.insert(row.name.folded(), ix);
                self.assets.push(row);
            }
        }
        for (seq, hold) in delta.holds {
            self.set_hold(seq, hold);
        }
        self.epochs.extend(delta.epochs);
        self.sources.extend(delta.sources);
        self.voids.extend(delta.voids);
        for (id, row) in delta.budgets {
            self.set_budget(id, row);
        }
        while let Some((until, id)) = self.budget_ends.first().copied()
            && until < ts
        {
            self.budget_ends.remove(&(until, id));
            self.budgets.remove(&id);
        }
        self.reversed.extend(delta.reversed);
        for (owner, full) in delta.refusals {
            self.set_refusals(owner, full);
        }
        while let Some(first) = self.refusal_ends.first().filter(|(full, _)| *full <= ts) {
            self.refusals.remove(&first.1);
            self.refusal_ends.pop_first();
        }
    }

    pub(super) fn set_refusals(&mut self, owner: Owner, full: Timestamp) {
        if let Some(old) = self.refusals.insert(owner.clone(), full) {
            self.refusal_ends.remove(&(old, owner.clone()));
        }
        self.refusal_ends.insert((full, owner));
    }

    pub(super) fn set_budget(&mut self, id: BudgetId, row: BudgetRow) {
        if let Some(old) = self.budgets.insert(id, row) {
            self.budget_ends.remove(&(old.until, id));
        }
        self.budget_ends.insert((row.until, id));
    }

    pub(super) fn set_hold(&mut self, seq: u64, hold: Option<HoldRow>) {
        if let Some(old) = self.holds.remove(&seq) {
            self.expiries.remove(&(old.expires_at, seq));
            self.holds_by_account.remove(&(old.account, seq));
        }
        if let Some(new) = hold {
            self.expiries.insert((new.expires_at, seq));
            self.holds_by_account.insert((new.account, seq));
            self.holds.insert(seq, new);
        }
    }
}
