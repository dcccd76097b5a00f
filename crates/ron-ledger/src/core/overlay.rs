//! The changes of a batch laid over the state: what the rules read and write.

use ron_proto::ledger::{BudgetId, LEDGER_PRINCIPAL, TxId};
use ron_proto::{Account, Asset, EpochId, Tenant, Timestamp};

use super::delta::{Delta, Touched};
use super::entry::Header;
use super::limits::{DONE_MS, Limits, REFUSAL_MS};
use super::state::{
    AccountRow, AssetRow, BudgetRow, Due, EpochAsset, EpochKey, EpochRow, HoldRow, Owner, State,
    VoidKey,
};

/// Reads search the linked commit, then the batch, then the state; writes go to the topmost of
/// these. The state itself does not change.
#[derive(Debug)]
pub(super) struct Overlay<'a> {
    pub(super) state: &'a State,
    pub(super) delta: Delta,
    /// Changes of the current linked commit; dropped when one of its entries is refused.
    pub(super) group: Option<Delta>,
    pub(super) ts: Timestamp,
    pub(super) limits: Limits,
}

fn owner_of(header: &Header) -> Owner {
    (header.tenant.clone(), header.principal.clone())
}

impl Overlay<'_> {
    pub(super) fn top(&mut self) -> &mut Delta {
        self.group.as_mut().unwrap_or(&mut self.delta)
    }

    fn layers(&self) -> impl Iterator<Item = &Delta> {
        self.group.iter().chain(std::iter::once(&self.delta))
    }

    pub(super) fn find(&self, name: &Account) -> Option<u32> {
        self.layers()
            .find_map(|d| d.name(name))
            .or_else(|| self.state.account_ix(name))
    }

    pub(super) fn row(&self, ix: u32) -> &AccountRow {
        let here = self.layers().find_map(|d| d.touched(ix)).map(|t| &t.row);
        here.or_else(|| self.state.account_at(ix))
            .expect("row numbers come from find or intern")
    }

    /// What may leave the account now: its balance and credit limit less what is held.
    pub(super) fn available(&self, account: u32, asset: u32) -> u128 {
        let row = self.row(account);
        row.balance(asset).available(row.limits(asset).credit)
    }

    /// Credits an account; callers have checked that the asset has room for it.
    pub(super) fn credit(&mut self, account: u32, asset: u32, amount: u128) {
        self.touch(account).row.balance_mut(asset).credits += amount;
        self.asset_mut(asset).credits += amount;
    }

    /// Debits an account; callers have checked what is available.
    pub(super) fn debit(&mut self, account: u32, asset: u32, amount: u128) {
        self.touch(account).row.balance_mut(asset).debits += amount;
        self.asset_mut(asset).debits += amount;
    }

    pub(super) fn touch(&mut self, ix: u32) -> &mut Touched {
        let (state, delta) = (self.state, &mut self.delta);
        let from_state = || {
            let row = state
                .account_at(ix)
                .expect("row numbers come from find or intern")
                .clone();
            Touched { ix, row, nonces: 0 }
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
        self.or_new(self.find(name), name)
    }

    /// The same for a name that was looked up.
    pub(super) fn or_new(&mut self, found: Option<u32>, name: &Account) -> u32 {
        if let Some(ix) = found {
            return ix;
        }
        let ix = u32::try_from(self.account_count()).expect("there is room, so fewer than 2^32");
        self.top().add_account(ix, name.clone());
        ix
    }

    /// The row number of the asset whose name is this one or differs from it in case only.
    pub(super) fn asset_like(&self, name: &Asset) -> Option<u32> {
        let first_new = self.state.assets.len() as u32;
        let among_new = |d: &Delta| {
            d.assets
                .range(first_new..)
                .find(|(_, a)| a.name.folded() == name.folded())
                .map(|(ix, _)| *ix)
        };
        self.state
            .asset_like(name)
            .or_else(|| self.layers().find_map(among_new))
    }

    pub(super) fn asset(&self, ix: u32) -> &AssetRow {
        let here = self.layers().find_map(|d| d.assets.get(&ix));
        here.or_else(|| self.state.asset(ix))
            .expect("row numbers come from asset_like or add_asset")
    }

    pub(super) fn asset_mut(&mut self, ix: u32) -> &mut AssetRow {
        if !self.top().assets.contains_key(&ix) {
            let row = self.asset(ix).clone();
            self.top().assets.insert(ix, row);
        }
        self.top().assets.get_mut(&ix).expect("inserted above")
    }

    pub(super) fn add_asset(&mut self, name: &Asset) -> u32 {
        let added: u32 = self.layers().map(|d| d.assets_added).sum();
        let ix = self.state.assets.len() as u32 + added;
        let row = AssetRow::new(name.clone(), None);
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

    pub(super) fn budget(&self, id: BudgetId) -> BudgetRow {
        self.layers()
            .find_map(|d| d.budgets.get(&id).copied())
            .unwrap_or_else(|| self.state.budget(id))
    }

    /// When the owner's budget of refusals will be full again; in the past for a full one.
    fn refusals_full_at(&self, owner: &Owner) -> Timestamp {
        // Refusals are counted when a leaf is made, so no row is in the layer of a linked commit.
        let row = self.delta.refusals.get(owner);
        let row = row.or_else(|| self.state.refusals.get(owner));
        row.copied().unwrap_or_default().max(self.ts)
    }

    /// Whether the budget of the owner has room for `n` more refusals.
    pub(super) fn may_refuse(&self, header: &Header, n: u64) -> bool {
        if header.principal.as_str() == LEDGER_PRINCIPAL {
            return true;
        }
        let full = self.refusals_full_at(&owner_of(header));
        let used = full.0 - self.ts.0 + n * REFUSAL_MS;
        used <= u64::from(self.limits.refusals) * REFUSAL_MS
    }

    /// Takes a refusal from the budget of the owner, or gives back what a done entry earns.
    pub(super) fn count_refusal(&mut self, header: &Header, refused: bool) {
        let none = self.delta.refusals.is_empty() && self.state.refusals.is_empty();
        if header.principal.as_str() == LEDGER_PRINCIPAL || (none && !refused) {
            return;
        }
        let owner = owner_of(header);
        let full = self.refusals_full_at(&owner);
        if refused {
            let full = Timestamp(full.0 + REFUSAL_MS);
            self.delta.refusals.insert(owner, full);
        } else if full > self.ts {
            let full = Timestamp(full.0.saturating_sub(DONE_MS)).max(self.ts);
            self.delta.refusals.insert(owner, full);
        }
    }

    /// How much of the entry at `seq` is reversed.
    pub(super) fn reversed(&self, seq: u64) -> u128 {
        let here = self.layers().find_map(|d| d.reversed.get(&seq).copied());
        here.unwrap_or_else(|| self.state.reversed(seq))
    }

    pub(super) fn epoch(&self, key: &EpochKey) -> Option<&EpochRow> {
        self.layers()
            .find_map(|d| d.epochs.get(key))
            .or_else(|| self.state.epochs.get(key))
    }

    /// Whether the epoch was opened before the current linked commit.
    pub(super) fn opened_before(&self, key: &EpochKey) -> bool {
        self.delta.epochs.contains_key(key) || self.state.epochs.contains_key(key)
    }

    /// The epoch of the tenant that last paid for this.
    pub(super) fn paid_by(&self, tenant: &Tenant, due: Due) -> Option<&EpochId> {
        let key = (tenant.clone(), due);
        self.layers()
            .find_map(|d| d.sources.get(&key))
            .or_else(|| self.state.sources.get(&key))
    }

    /// The sequence of the entry that withdrew this manifest.
    pub(super) fn voided_at(&self, manifest: &VoidKey) -> Option<u64> {
        let here = self.layers().find_map(|d| d.voids.get(manifest).copied());
        here.or_else(|| self.state.voids.get(manifest).copied())
    }

    pub(super) fn epoch_mut(&mut self, key: &EpochKey) -> &mut EpochRow {
        if !self.top().epochs.contains_key(key) {
            let row = self.epoch(key).expect("callers looked it up").clone();
            self.top().epochs.insert(key.clone(), row);
        }
        self.top().epochs.get_mut(key).expect("inserted above")
    }

    pub(super) fn epoch_asset_mut(&mut self, key: &EpochKey, asset: u32) -> &mut EpochAsset {
        let found = self.epoch_mut(key).of_mut(asset);
        found.expect("callers looked it up")
    }
}
