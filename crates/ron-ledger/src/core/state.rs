//! The ledger's state: accounts and their balances, assets, holds, epochs.
//!
//! Rows are numbered densely in the order of their first use, so the numbers are the same in every
//! replay.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::ledger::{AccountClass, AssetTerms, BudgetId, PrincipalName, Sides, TxId};
use ron_proto::{Account, Asset, ContentId, EpochId, SignedAmount, Tenant, Timestamp};
use smallvec::SmallVec;

pub use super::epoch_row::{EpochAsset, EpochKey, EpochRow, VoidKey};
use super::op::Op;
use crate::table::{Numbers, Rows};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    pub name: Account,
    /// The last nonce used; 0 before the first debit.
    pub nonce: u64,
    /// The sides that are frozen.
    pub frozen: Sides,
    /// What else was set for the account; most have none.
    pub terms: Option<Box<RowTerms>>,
    /// One per asset ever used, in the order of first use.
    pub balances: SmallVec<[Balance; 1]>,
}

/// What an operator set for an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTerms {
    /// Whether debits and credits are refused.
    pub closed: bool,
    /// Whether every debit has to carry a nonce.
    pub require_nonce: bool,
    pub class: Option<AccountClass>,
    /// By the row number of the asset; ones that limit nothing have no item.
    pub limits: BTreeMap<u32, BalanceLimits>,
}

/// Limits of a balance, in minor units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceLimits {
    /// How far it may be below zero.
    pub credit: u128,
    /// No entry brings it above this.
    pub max: Option<u128>,
}

/// An account's balance in one asset: credits less debits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    pub asset: u32,
    /// All that ever came in. At most the sum of the asset, which does not overflow.
    pub credits: u128,
    /// All that ever went out, held money excluded.
    pub debits: u128,
    /// The part reserved by open holds.
    pub held: u128,
    /// The UTC day of `day_total`.
    pub day: u64,
    /// What left on that day by entries that carried a ceiling, and holds made on it.
    pub day_total: u128,
}

impl Balance {
    /// What the next debit may take with this credit limit.
    pub const fn available(&self, credit: u128) -> u128 {
        let with_credit = match self.credits.checked_sub(self.debits) {
            Some(above) => above.saturating_add(credit),
            None => credit.saturating_sub(self.debits - self.credits),
        };
        with_credit.saturating_sub(self.held)
    }

    /// Whether a credit limit suffices for debits and held money.
    pub const fn is_covered(&self, credit: u128) -> bool {
        match self.debits.checked_sub(self.credits) {
            None => self.held <= (self.credits - self.debits).saturating_add(credit),
            Some(below) => match below.checked_add(self.held) {
                Some(used) => used <= credit,
                None => false,
            },
        }
    }

    /// The balance after `amount` more; `None` above 128 bits. Below zero counts as zero.
    pub const fn after_credit(&self, amount: u128) -> Option<u128> {
        match self.credits.checked_sub(self.debits) {
            Some(above) => above.checked_add(amount),
            None => Some(amount.saturating_sub(self.debits - self.credits)),
        }
    }

    /// Whether there is neither money nor debt, nor a hold.
    pub const fn is_empty(&self) -> bool {
        self.credits == self.debits && self.held == 0
    }

    pub const fn level(&self) -> SignedAmount {
        SignedAmount::of(self.credits, self.debits)
    }
}

impl AccountRow {
    pub(super) fn new(name: Account) -> Self {
        Self {
            name,
            nonce: 0,
            frozen: Sides::None,
            terms: None,
            balances: SmallVec::new(),
        }
    }

    /// The balance in `asset`; zero when it was never used.
    pub fn balance(&self, asset: u32) -> Balance {
        self.balances
            .iter()
            .find(|b| b.asset == asset)
            .copied()
            .unwrap_or(Balance {
                asset,
                ..Balance::default()
            })
    }

    pub(super) fn balance_mut(&mut self, asset: u32) -> &mut Balance {
        let at = self
            .balances
            .iter()
            .position(|b| b.asset == asset)
            .unwrap_or_else(|| {
                self.balances.push(Balance {
                    asset,
                    ..Balance::default()
                });
                self.balances.len() - 1
            });
        &mut self.balances[at]
    }

    pub fn is_closed(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.closed)
    }

    pub fn requires_nonce(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.require_nonce)
    }

    pub fn class(&self) -> Option<&AccountClass> {
        self.terms.as_ref()?.class.as_ref()
    }

    /// The limits of the balance in `asset`.
    pub fn limits(&self, asset: u32) -> BalanceLimits {
        let terms = self.terms.as_ref();
        terms
            .and_then(|terms| terms.limits.get(&asset).copied())
            .unwrap_or_default()
    }

    pub(super) fn set_limits(&mut self, asset: u32, limits: BalanceLimits) {
        let terms = self.terms_mut();
        if limits == BalanceLimits::default() {
            terms.limits.remove(&asset);
        } else {
            terms.limits.insert(asset, limits);
        }
    }

    pub(super) fn terms_mut(&mut self) -> &mut RowTerms {
        self.terms.get_or_insert_default()
    }

    /// Equal states have equal images, so terms that set nothing are not kept.
    pub(super) fn forget_empty_terms(&mut self) {
        if self.terms.as_deref() == Some(&RowTerms::default()) {
            self.terms = None;
        }
    }
}

/// Supply and turnover of one asset: credits less debits are issues less burns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetRow {
    pub name: Asset,
    /// Present for a registered asset.
    pub terms: Option<AssetTerms>,
    pub issued: u128,
    pub burned: u128,
    /// Sum of the credits of all accounts, maintained entry by entry and compared with their sum.
    pub credits: u128,
    /// Sum of the debits of all accounts.
    pub debits: u128,
}

impl AssetRow {
    pub(super) const fn new(name: Asset, terms: Option<AssetTerms>) -> Self {
        Self {
            name,
            terms,
            issued: 0,
            burned: 0,
            credits: 0,
            debits: 0,
        }
    }

    /// What was issued and not burned.
    pub const fn circulating(&self) -> u128 {
        self.issued - self.burned
    }

    /// Whether credits less debits are issues less burns.
    pub(super) const fn adds_up(&self) -> bool {
        match (
            self.issued.checked_sub(self.burned),
            self.credits.checked_sub(self.debits),
        ) {
            (Some(supply), Some(sum)) => supply == sum,
            _ => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    pub id: TxId,
    pub account: u32,
    pub asset: u32,
    pub remaining: u128,
    pub expires_at: Timestamp,
    /// The UTC day on which it was made.
    pub made_on: u64,
    /// Whether that day's total includes it: it carried a ceiling.
    pub counted: bool,
    /// The budgets that include it.
    pub budgets: Box<[BudgetId]>,
}

/// What was spent under a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetRow {
    /// In all, in minor units.
    pub spent: u128,
    /// The UTC day of `day_spent`.
    pub day: u64,
    pub day_spent: u128,
    /// The row is dropped after this time.
    pub until: Timestamp,
}

impl BudgetRow {
    /// What was spent on this UTC day.
    pub const fn spent_on(&self, day: u64) -> u128 {
        if self.day == day { self.day_spent } else { 0 }
    }
}

/// What an epoch pays for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Usage, by its hash.
    Usage(ContentId),
    /// The correction of another epoch.
    Correction(EpochId),
}

/// What was paid for, and the epoch that paid last. At most two items per epoch; rebuilt from the
/// epochs.
pub(super) type Sources = BTreeMap<(Tenant, Due), EpochId>;

/// The whole state as of the last applied sequence.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) seq: u64,
    pub(super) ts: Timestamp,
    /// Of the accounts, by name.
    pub(super) numbers: Numbers,
    pub(super) accounts: Rows<AccountRow>,
    pub(super) assets: Vec<AssetRow>,
    /// By the name in lower case, so that no second spelling comes into being.
    pub(super) asset_names: BTreeMap<Asset, u32>,
    pub(super) holds: BTreeMap<u64, HoldRow>,
    pub(super) holds_by_account: BTreeSet<(u32, u64)>,
    pub(super) expiries: BTreeSet<(Timestamp, u64)>,
    pub(super) epochs: BTreeMap<EpochKey, EpochRow>,
    pub(super) sources: Sources,
    /// Withdrawn manifests, with the sequences of the entries that withdrew them.
    pub(super) voids: BTreeMap<VoidKey, u64>,
    /// What was spent under each budget, until its token has ended.
    pub(super) budgets: BTreeMap<BudgetId, BudgetRow>,
    pub(super) budget_ends: BTreeSet<(Timestamp, BudgetId)>,
    /// By the sequence of a reversed entry, how much of it is reversed.
    pub(super) reversed: BTreeMap<u64, u128>,
    /// When the owner's budget of refusals will be full again. A full one has no row, so there are at
    /// most as many as owners with a refusal in the last minutes.
    pub(super) refusals: BTreeMap<Owner, Timestamp>,
    pub(super) refusal_ends: BTreeSet<(Timestamp, Owner)>,
}

/// The owner of keys: a principal of a tenant.
pub(super) type Owner = (Tenant, PrincipalName);

/// An immutable copy of a state; cheap to take, because account rows are shared.
#[derive(Clone, Debug)]
pub struct Frozen {
    pub(super) seq: u64,
    pub(super) ts: Timestamp,
    pub(super) accounts: Rows<AccountRow>,
    pub(super) assets: Vec<AssetRow>,
    pub(super) holds: BTreeMap<u64, HoldRow>,
    pub(super) epochs: BTreeMap<EpochKey, EpochRow>,
    pub(super) voids: BTreeMap<VoidKey, u64>,
    pub(super) budgets: BTreeMap<BudgetId, BudgetRow>,
    pub(super) refusals: BTreeMap<Owner, Timestamp>,
    pub(super) reversed: BTreeMap<u64, u128>,
}

impl Frozen {
    pub const fn seq(&self) -> u64 {
        self.seq
    }
}

impl State {
    /// The last applied sequence; 0 before the first entry.
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// The time of the last applied entry.
    pub const fn ts(&self) -> Timestamp {
        self.ts
    }

    pub const fn account_count(&self) -> usize {
        self.accounts.len()
    }

    pub fn hold_count(&self) -> usize {
        self.holds.len()
    }

    /// An account, if it was ever used.
    pub fn account(&self, name: &Account) -> Option<&AccountRow> {
        self.account_at(self.account_ix(name)?)
    }

    /// The row number of an account.
    pub(super) fn account_ix(&self, name: &Account) -> Option<u32> {
        let is_at = |ix| self.account_at(ix).is_some_and(|row| row.name == *name);
        self.numbers.get(name, is_at)
    }

    pub fn account_at(&self, ix: u32) -> Option<&AccountRow> {
        self.accounts.get(ix as usize)
    }

    /// The row number of an asset.
    pub fn asset_ix(&self, name: &Asset) -> Option<u32> {
        self.asset_like(name)
            .filter(|ix| self.assets[*ix as usize].name == *name)
    }

    /// The row number of the asset whose name is this one or differs from it in case only.
    pub(super) fn asset_like(&self, name: &Asset) -> Option<u32> {
        self.asset_names.get(&name.folded()).copied()
    }

    pub fn asset(&self, ix: u32) -> Option<&AssetRow> {
        self.assets.get(ix as usize)
    }

    /// The assets after this one, by name without regard to case.
    pub fn assets_after(&self, after: Option<&Asset>) -> impl Iterator<Item = &AssetRow> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map(Asset::folded);
        let range = (from.map_or(Unbounded, Excluded), Unbounded);
        let rows = self.asset_names.range(range);
        rows.filter_map(|(_, ix)| self.asset(*ix))
    }

    pub fn assets(&self) -> &[AssetRow] {
        &self.assets
    }

    /// Reads the rows of these entries' accounts. They lie scattered in memory: here the processor waits for many of them
    /// at once, in the rules it would wait for one after the other.
    pub(super) fn warm<'b>(&self, ops: impl Iterator<Item = &'b Op>) {
        let names = ops.flat_map(Op::accounts);
        let rows: Vec<u32> = names
            .flatten()
            .filter_map(|name| self.account_ix(name))
            .collect();
        let nonces = rows
            .iter()
            .filter_map(|ix| self.account_at(*ix))
            .map(|row| row.nonce);
        // Otherwise the compiler leaves the reads out.
        std::hint::black_box(nonces.fold(0, u64::wrapping_add));
    }

    /// All accounts in the order of first use.
    pub fn accounts(&self) -> impl Iterator<Item = &AccountRow> {
        self.accounts.iter()
    }

    /// A copy of all accounts; cheap, because the rows are shared.
    pub fn accounts_copy(&self) -> Rows<AccountRow> {
        self.accounts.clone()
    }

    pub fn hold(&self, id: TxId) -> Option<&HoldRow> {
        self.holds.get(&id.seq()).filter(|h| h.id == id)
    }

    /// Open holds on an account, oldest first.
    pub fn holds_of(&self, name: &Account) -> impl Iterator<Item = &HoldRow> {
        let ix = self.account_ix(name).unwrap_or(u32::MAX);
        self.holds_by_account
            .range((ix, 0)..=(ix, u64::MAX))
            .filter_map(|(_, seq)| self.holds.get(seq))
    }

    /// What was spent under a budget; nothing under one that was never used or has ended.
    pub fn budget(&self, id: BudgetId) -> BudgetRow {
        self.budgets.get(&id).copied().unwrap_or_default()
    }

    /// How much of the entry at `seq` is reversed, in minor units.
    pub fn reversed(&self, seq: u64) -> u128 {
        self.reversed.get(&seq).copied().unwrap_or(0)
    }

    /// The earliest expiry of an open hold.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.expiries.first().map(|(ts, _)| *ts)
    }

    pub fn epoch(&self, key: &EpochKey) -> Option<&EpochRow> {
        self.epochs.get(key)
    }

    /// Rebuilds the sources from the epochs, in the order of their opening. The error names the
    /// first epoch that pays for usage that is already paid without naming the epoch it corrects, or
    /// corrects an epoch a second time.
    pub(super) fn sources_of(epochs: &BTreeMap<EpochKey, EpochRow>) -> Result<Sources, String> {
        let mut opened: Vec<_> = epochs.iter().collect();
        opened.sort_unstable_by_key(|(_, row)| row.opened_seq());
        let mut sources = Sources::new();
        for ((tenant, epoch), row) in opened {
            let mut pay = |due| sources.insert((tenant.clone(), due), epoch.clone());
            let paid = pay(Due::Usage(row.source));
            let paid = paid.filter(|paid| row.adjusts.as_ref() != Some(paid));
            let corrected = row.adjusts.clone().and_then(|of| pay(Due::Correction(of)));
            if let Some(paid) = paid.or(corrected) {
                return Err(format!(
                    "epoch {tenant}/{epoch} pays what epoch {paid} has paid"
                ));
            }
        }
        Ok(sources)
    }

    /// A copy for a snapshot.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            seq: self.seq,
            ts: self.ts,
            accounts: self.accounts.clone(),
            assets: self.assets.clone(),
            holds: self.holds.clone(),
            epochs: self.epochs.clone(),
            voids: self.voids.clone(),
            budgets: self.budgets.clone(),
            refusals: self.refusals.clone(),
            reversed: self.reversed.clone(),
        }
    }

    /// Recomputes every sum from the rows: per asset, credits and debits are those of the accounts,
    /// and credits less debits are issues less burns; per account, held funds are its open holds and
    /// no more than balance and credit limit. The error names the first row at fault.
    pub fn audit(&self) -> Result<(), String> {
        let mut sums = vec![(0u128, 0u128); self.assets.len()];
        let mut held: BTreeMap<(u32, u32), u128> = BTreeMap::new();
        for h in self.holds.values() {
            let sum = held.entry((h.account, h.asset)).or_default();
            *sum = sum
                .checked_add(h.remaining)
                .ok_or("holds add up to more than 128 bits")?;
        }
        for (ix, row) in self.accounts.iter().enumerate() {
            let limits = row.terms.iter().flat_map(|terms| terms.limits.keys());
            if limits
                .into_iter()
                .any(|asset| *asset as usize >= sums.len())
            {
                return Err(format!("{}: limits of an unknown asset row", row.name));
            }
            for b in &row.balances {
                let (credits, debits) = sums
                    .get_mut(b.asset as usize)
                    .ok_or_else(|| format!("{}: unknown asset row", row.name))?;
                let overflow = || format!("{}: balances overflow", row.name);
                *credits = credits.checked_add(b.credits).ok_or_else(overflow)?;
                *debits = debits.checked_add(b.debits).ok_or_else(overflow)?;
                let open = held.remove(&(ix as u32, b.asset)).unwrap_or(0);
                if b.held != open || !b.is_covered(row.limits(b.asset).credit) {
                    return Err(format!(
                        "account {}: held {} of {}, open holds {open}",
                        row.name,
                        b.held,
                        b.level()
                    ));
                }
            }
        }
        if !held.is_empty() {
            return Err("a hold is on an account without that asset".to_owned());
        }
        if Self::sources_of(&self.epochs)? != self.sources {
            return Err("the sources paid for are not those of the epochs".to_owned());
        }
        for (tenant, epoch, commitment) in self.voids.keys() {
            let opened = self.epochs.get(&(tenant.clone(), epoch.clone()));
            if opened.is_some_and(|row| row.commitment == *commitment) {
                return Err(format!(
                    "epoch {tenant}/{epoch} is opened with a manifest that was withdrawn"
                ));
            }
        }
        for (row, (credits, debits)) in self.assets.iter().zip(sums) {
            if (row.credits, row.debits) != (credits, debits) || !row.adds_up() {
                return Err(format!(
                    "asset {}: issued {} - burned {} is not credits {credits} - debits {debits}",
                    row.name, row.issued, row.burned
                ));
            }
        }
        Ok(())
    }
}
