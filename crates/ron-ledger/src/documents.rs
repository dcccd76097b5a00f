//! Accounts, holds, assets and epochs as readers get them: the durable state now.

use ron_proto::ledger::{
    AccountDoc, AssetDoc, AssetPage, BalanceDoc, EpochDoc, EpochState, HoldDoc, ListedAccount,
    ListedAsset, Sides, TxId, escrow_account,
};
use ron_proto::{Account, Amount, Asset, EpochId, Tenant};

use crate::core::{AccountRow, AssetRow, HoldRow, State};
use crate::ledger::Ledger;

/// Maximum open holds in an account document.
const HOLDS_SHOWN: usize = 1_000;

impl Ledger {
    /// An account; an account that was never used reads as empty.
    pub fn account(&self, account: &Account) -> AccountDoc {
        self.shared.state(|s| {
            let row = s.account(account);
            AccountDoc {
                account: account.clone(),
                nonce: row.map_or(0, |r| r.nonce),
                require_nonce: row.is_some_and(AccountRow::requires_nonce),
                frozen: row.map_or(Sides::None, |r| r.frozen),
                closed: row.is_some_and(AccountRow::is_closed),
                class: row.and_then(AccountRow::class).cloned(),
                balances: row.map_or_else(Vec::new, |row| balances(s, row)),
                holds: s
                    .holds_of(account)
                    .take(HOLDS_SHOWN)
                    .filter_map(|h| hold_doc(s, h))
                    .collect(),
                seq: s.seq(),
                ts: s.ts(),
            }
        })
    }

    /// State of an epoch's settlement in an asset; without one, in the asset that it opened first.
    pub fn epoch(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        asset: Option<&Asset>,
    ) -> Option<EpochDoc> {
        self.shared.state(|s| {
            let row = s.epoch(&(tenant.clone(), epoch.clone()))?;
            let e = match asset {
                Some(asset) => row.of(s.asset_ix(asset)?)?,
                None => row.assets.first()?,
            };
            let others = row.assets.iter().filter(|it| it.asset != e.asset);
            let others = others.filter_map(|it| Some(s.asset(it.asset)?.name.clone()));
            Some(EpochDoc {
                tenant: tenant.clone(),
                epoch: epoch.clone(),
                state: if e.closed_seq.is_some() {
                    EpochState::Closed
                } else {
                    EpochState::Open
                },
                commitment: row.commitment,
                sum_root: e.sum_root,
                asset: s.asset(e.asset)?.name.clone(),
                other_assets: others.collect(),
                from: e.from.clone(),
                escrow: escrow_account(tenant, epoch),
                recipients: e.recipients,
                source: row.source,
                adjusts: row.adjusts.clone(),
                amount_minor: Amount(e.total),
                paid_minor: Amount(e.paid),
                next_index: e.next_index,
                opened_seq: e.opened_seq,
                closed_seq: e.closed_seq,
            })
        })
    }

    /// The accounts of these names that there are, and the last entry that they know.
    pub fn listed(&self, names: &[Account]) -> (Vec<ListedAccount>, u64) {
        self.shared.state(|s| {
            let rows = names.iter().filter_map(|name| s.account(name));
            let listed = rows.map(|row| ListedAccount {
                account: row.name.clone(),
                require_nonce: row.requires_nonce(),
                frozen: row.frozen,
                closed: row.is_closed(),
                class: row.class().cloned(),
                balances: balances(s, row),
            });
            (listed.collect(), s.seq())
        })
    }

    /// A hold, while it is open.
    pub fn hold(&self, id: TxId) -> Option<HoldDoc> {
        self.shared
            .state(|s| s.hold(id).and_then(|h| hold_doc(s, h)))
    }

    /// A registered asset, or one that was ever used.
    pub fn asset(&self, asset: &Asset) -> Option<AssetDoc> {
        self.shared.state(|s| {
            let row = listed_asset(s.asset(s.asset_ix(asset)?)?);
            Some(AssetDoc {
                asset: row.asset,
                scale: row.scale,
                title: row.title,
                seq: s.seq(),
                ts: s.ts(),
            })
        })
    }

    /// Assets after `after`, by name without regard to case.
    pub fn assets(&self, after: Option<&Asset>, limit: usize) -> AssetPage {
        self.shared.state(|s| {
            let mut rows = s.assets_after(after);
            let assets: Vec<_> = rows.by_ref().take(limit).map(listed_asset).collect();
            let more = rows.next().is_some();
            AssetPage {
                next: assets.last().filter(|_| more).map(|row| row.asset.clone()),
                assets,
                seq: s.seq(),
            }
        })
    }
}

/// The balances of an account in the assets that it had or has limits in, by asset.
fn balances(s: &State, row: &AccountRow) -> Vec<BalanceDoc> {
    let limited = row.terms.iter().flat_map(|terms| terms.limits.keys());
    let had = row.balances.iter().map(|b| &b.asset);
    let mut assets: Vec<u32> = had.chain(limited).copied().collect();
    assets.sort_unstable();
    assets.dedup();
    let doc = |asset: u32| {
        let (b, limits) = (row.balance(asset), row.limits(asset));
        let level = b.level();
        Some(BalanceDoc {
            asset: s.asset(asset)?.name.clone(),
            amount_minor: level.amount(),
            overdrawn_minor: level.overdrawn(),
            held_minor: Amount(b.held),
            available_minor: Amount(b.available(limits.credit)),
            credits_minor: Amount(b.credits),
            debits_minor: Amount(b.debits),
            credit_limit_minor: Amount(limits.credit),
            max_balance_minor: limits.max.map(Amount),
        })
    };
    let mut docs: Vec<BalanceDoc> = assets.into_iter().filter_map(doc).collect();
    docs.sort_unstable_by(|a, b| a.asset.cmp(&b.asset));
    docs
}

fn hold_doc(s: &State, h: &HoldRow) -> Option<HoldDoc> {
    Some(HoldDoc {
        hold: h.id,
        from: s.account_at(h.account)?.name.clone(),
        asset: s.asset(h.asset)?.name.clone(),
        amount_minor: Amount(h.remaining),
        expires_at: h.expires_at,
    })
}

fn listed_asset(row: &AssetRow) -> ListedAsset {
    ListedAsset {
        asset: row.name.clone(),
        scale: row.terms.as_ref().map(|terms| terms.scale),
        title: row.terms.as_ref().and_then(|terms| terms.title.clone()),
    }
}
