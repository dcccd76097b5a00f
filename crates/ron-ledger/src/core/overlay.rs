//! The changes of a batch laid over the state: what the rules read and write.

use ron_proto::ledger::TxId;
use ron_proto::{Account, Asset, ContentId, EpochId, Tenant, Timestamp};

use super::delta::{Delta, Touched};
use super::limits::Limits;
use super::state::{AccountRow, AssetRow, EpochKey, EpochRow, HoldRow, State};

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
