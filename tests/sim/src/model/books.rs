//! Accounts, assets, holds and epochs of the model, and their sums.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::ledger::TxId;
use ron_proto::{Account, Asset, ContentId, EpochId, Tenant, Timestamp};

use super::{Holder, Limits, Sums};

pub type EpochKey = (Tenant, EpochId);

#[derive(Clone, Debug)]
pub struct Hold {
    pub from: Account,
    pub asset: Asset,
    pub left: u128,
    pub expires_at: Timestamp,
}

/// What a transfer, capture or payout moved, and how much of it is not reversed. The credited account is first.
#[derive(Clone, Debug)]
pub struct Reversible {
    pub credited: Account,
    pub payer: Account,
    pub asset: Asset,
    pub amount: u128,
    pub left: u128,
}

#[derive(Clone, Debug)]
pub struct Epoch {
    pub commitment: ContentId,
    pub pool: Account,
    pub asset: Asset,
    pub total: u128,
    pub recipients: u64,
    pub next: u64,
    pub paid: u128,
    pub closed: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Books {
    pub accounts: BTreeMap<Account, Holder>,
    pub assets: BTreeMap<Asset, Sums>,
    pub holds: BTreeMap<TxId, Hold>,
    pub moved: BTreeMap<TxId, Reversible>,
    pub epochs: BTreeMap<EpochKey, Epoch>,
    /// The epoch that paid a source last.
    pub sources: BTreeMap<(Tenant, ContentId), EpochId>,
    /// Epochs that another one corrects.
    pub corrected: BTreeSet<EpochKey>,
    /// Manifests that may open no epoch any more.
    pub voids: BTreeSet<(EpochKey, ContentId)>,
}

impl Books {
    pub fn limits(&self, account: &Account, asset: &Asset) -> Limits {
        let holder = self.accounts.get(account);
        let limits = holder.and_then(|holder| holder.limits.get(asset));
        limits.copied().unwrap_or_default()
    }

    /// Credits and limit of credit, and what they have to cover.
    fn cover(&self, account: &Account, asset: &Asset) -> (u128, u128) {
        let holder = self.accounts.get(account);
        let purse = holder.and_then(|holder| holder.purses.get(asset));
        let purse = purse.copied().unwrap_or_default();
        let credit = self.limits(account, asset).credit;
        (purse.credits + credit, purse.debits + purse.held)
    }

    pub fn available(&self, account: &Account, asset: &Asset) -> u128 {
        let (has, used) = self.cover(account, asset);
        has.saturating_sub(used)
    }

    pub fn credit(&mut self, account: &Account, asset: &Asset, amount: u128) {
        let holder = self.accounts.entry(account.clone()).or_default();
        holder.purses.entry(asset.clone()).or_default().credits += amount;
    }

    pub fn debit(&mut self, account: &Account, asset: &Asset, amount: u128) {
        let holder = self.accounts.entry(account.clone()).or_default();
        holder.purses.entry(asset.clone()).or_default().debits += amount;
    }

    /// Reserves money, or gives it free.
    pub fn set_held(&mut self, account: &Account, asset: &Asset, by: i128) {
        let holder = self.accounts.entry(account.clone()).or_default();
        let purse = holder.purses.entry(asset.clone()).or_default();
        let held = purse.held.checked_add_signed(by);
        purse.held = held.expect("no more is given free than is held");
    }

    /// Credits and debits of all accounts in an asset.
    pub fn turnover(&self, asset: &Asset) -> (u128, u128) {
        let purses = self.accounts.values().filter_map(|h| h.purses.get(asset));
        purses.fold((0, 0), |(c, d), p| (c + p.credits, d + p.debits))
    }

    /// Per asset issues less burns are credits less debits; nothing is below its limit of credit; holds are what is held.
    pub fn conserved(&self) -> Result<(), String> {
        for (asset, sums) in &self.assets {
            let (credits, debits) = self.turnover(asset);
            if credits - debits != sums.issued - sums.burned {
                return Err(format!("{asset}: {credits} - {debits} is not {sums:?}"));
            }
        }
        for (name, holder) in &self.accounts {
            for (asset, purse) in &holder.purses {
                let (has, used) = self.cover(name, asset);
                let own = |h: &&Hold| h.from == *name && h.asset == *asset;
                let held: u128 = self.holds.values().filter(own).map(|h| h.left).sum();
                if used > has || held != purse.held {
                    return Err(format!("{name} has {purse:?} of {asset}, holds {held}"));
                }
            }
        }
        Ok(())
    }
}
