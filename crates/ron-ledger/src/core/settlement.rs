//! What the kinds that settle reward epochs require and do.

use ron_proto::ledger::{EPOCH_ASSETS_MAX, escrow_account};
use ron_proto::{Account, Asset, ContentId, EpochId, Tenant};

use super::epoch::{EpochClose, EpochOpen, Payout};
use super::limits::ACCOUNTS_MAX;
use super::overlay::Overlay;
use super::rules::{Rule, Stop, no, reserved};
use super::state::{Due, EpochAsset, EpochKey, EpochRow, VoidKey};
use super::verdict::Refusal;

/// Reward settlement: an epoch binds once, payouts of each asset come in index order, and none of it is
/// left in the escrow.
impl Overlay<'_> {
    pub(super) fn epoch_open(&mut self, tenant: &Tenant, open: &EpochOpen, seq: u64) -> Rule<()> {
        let key: EpochKey = (tenant.clone(), open.epoch.clone());
        match self.epoch(&key) {
            Some(e) => self.check_bound(&key, e, open)?,
            None => self.check_unbound(tenant, open)?,
        }
        let (pool, asset) = self.check_pool(&open.from, &open.asset, open.amount.0)?;
        let escrow = escrow_account(tenant, &open.epoch);
        self.room_among(self.find(&escrow), ACCOUNTS_MAX)?;
        self.turnover(Some(asset), open.amount.0)?;
        self.debit(pool, asset, open.amount.0);
        let escrow = self.intern(&escrow);
        self.credit(escrow, asset, open.amount.0);
        let opened = EpochAsset {
            asset,
            sum_root: open.sum_root,
            from: open.from.clone(),
            recipients: open.recipients,
            total: open.amount.0,
            paid: 0,
            next_index: 0,
            opened_seq: seq,
            closed_seq: None,
            runs: Vec::new(),
        };
        if self.epoch(&key).is_some() {
            self.epoch_mut(&key).assets.push(opened);
            return Ok(());
        }
        let row = EpochRow {
            commitment: open.commitment,
            source: open.source,
            adjusts: open.adjusts.clone(),
            assets: vec![opened],
        };
        let top = self.top();
        let correction = open.adjusts.clone().map(Due::Correction);
        for due in [Some(Due::Usage(open.source)), correction]
            .into_iter()
            .flatten()
        {
            top.sources.insert((key.0.clone(), due), key.1.clone());
        }
        top.epochs.insert(key, row);
        Ok(())
    }

    /// An epoch takes another asset only in the linked commit that opens it, so that all of its assets
    /// are opened or none.
    fn check_bound(&self, key: &EpochKey, e: &EpochRow, open: &EpochOpen) -> Rule<()> {
        let same =
            e.commitment == open.commitment && e.source == open.source && e.adjusts == open.adjusts;
        if !same {
            return no(Refusal::EpochConflict);
        }
        let Some(opened) = self.asset_of(e, &open.asset) else {
            return if self.opened_before(key) {
                no(Refusal::EpochConflict)
            } else if e.assets.len() == EPOCH_ASSETS_MAX {
                no(Refusal::LimitsExceeded)
            } else {
                Ok(())
            };
        };
        let same = opened.sum_root == open.sum_root
            && opened.from == open.from
            && opened.recipients == open.recipients
            && opened.total == open.amount.0;
        if same {
            Err(Stop::Known(opened.opened_seq))
        } else {
            no(Refusal::EpochConflict)
        }
    }

    fn check_unbound(&self, tenant: &Tenant, open: &EpochOpen) -> Rule<()> {
        let manifest: VoidKey = (tenant.clone(), open.epoch.clone(), open.commitment);
        let withdrawn = self.voided_at(&manifest).is_some();
        #[cfg(mutant = "voided")] // forgets what was withdrawn
        let withdrawn = withdrawn && !crate::mutant("voided");
        if withdrawn {
            return no(Refusal::EpochVoid);
        }
        self.check_source(tenant, open.source, open.adjusts.as_ref())
    }

    /// The settlement of an asset of an epoch; `None` for an asset that the epoch does not pay.
    fn asset_of<'e>(&self, e: &'e EpochRow, asset: &Asset) -> Option<&'e EpochAsset> {
        e.assets
            .iter()
            .find(|it| self.asset(it.asset).name == *asset)
    }

    /// Usage is paid once, and an epoch is corrected once: a correcting epoch names the epoch that paid
    /// last, whatever usage it pays by.
    fn check_source(
        &self,
        tenant: &Tenant,
        source: ContentId,
        adjusts: Option<&EpochId>,
    ) -> Rule<()> {
        let paid = |by: &EpochId| no(Refusal::UsagePaid { by: by.clone() });
        match (self.paid_by(tenant, Due::Usage(source)), adjusts) {
            (Some(by), named) if named != Some(by) => return paid(by),
            (None, Some(named)) if self.epoch(&(tenant.clone(), named.clone())).is_none() => {
                return no(Refusal::EpochUnknown);
            }
            _ => {}
        }
        let correction = adjusts.cloned().map(Due::Correction);
        let corrected = correction.and_then(|due| self.paid_by(tenant, due));
        corrected.map_or(Ok(()), paid)
    }

    fn check_pool(&self, from: &Account, asset: &Asset, amount: u128) -> Rule<(u32, u32)> {
        reserved(from)?;
        let pool = self.find(from);
        pool.map_or(Ok(()), |ix| self.may_debit(ix))?;
        let (Some(pool), Some(asset)) = (pool, self.asset_ix(asset)?) else {
            return no(Refusal::InsufficientFunds);
        };
        if self.available(pool, asset) < amount {
            no(Refusal::InsufficientFunds)
        } else {
            Ok((pool, asset))
        }
    }

    pub(super) fn payout(&mut self, tenant: &Tenant, payout: &Payout, seq: u64) -> Rule<()> {
        let key: EpochKey = (tenant.clone(), payout.epoch.clone());
        let Some(e) = self.epoch(&key) else {
            return no(Refusal::EpochUnknown);
        };
        let Some(e) = self.asset_of(e, &payout.asset) else {
            return no(Refusal::EpochConflict);
        };
        if let Some(made) = e.payout_seq(payout.index) {
            return Err(Stop::Known(made));
        }
        self.check_payout(e, payout)?;
        let (asset, amount) = (e.asset, payout.amount.0);
        let escrow = self.intern(&escrow_account(tenant, &payout.epoch));
        self.debit(escrow, asset, amount);
        let to = self.intern(&payout.to);
        self.credit(to, asset, amount);
        let e = self.epoch_asset_mut(&key, asset);
        e.paid += amount;
        e.note_payout(seq);
        Ok(())
    }

    fn check_payout(&self, e: &EpochAsset, payout: &Payout) -> Rule<()> {
        reserved(&payout.to)?;
        if e.closed_seq.is_some() {
            return no(Refusal::EpochClosed);
        }
        if payout.index >= e.recipients {
            return no(Refusal::EpochConflict);
        }
        #[cfg(mutant = "cursor")] // off by one
        if crate::mutant("cursor") && payout.index == e.next_index + 1 {
            return Ok(());
        }
        if payout.index > e.next_index {
            let expected = e.next_index;
            return no(Refusal::IndexGap { expected });
        }
        // Every recipient still to come needs at least one unit, and the last one takes exactly the
        // remainder.
        let left = e.recipients - payout.index - 1;
        match (e.total - e.paid).checked_sub(payout.amount.0) {
            Some(rest) if rest >= u128::from(left) && (left > 0 || rest == 0) => {
                // No maximum of the payee holds up the epoch, but a payee that may not be credited does.
                let payee = self.find(&payout.to);
                self.may_credit(payee)?;
                self.room_among(payee, ACCOUNTS_MAX)?;
                self.turnover(Some(e.asset), payout.amount.0)
            }
            _ => no(Refusal::EpochConflict),
        }
    }

    pub(super) fn epoch_close(
        &mut self,
        tenant: &Tenant,
        close: &EpochClose,
        seq: u64,
    ) -> Rule<()> {
        let key: EpochKey = (tenant.clone(), close.epoch.clone());
        let Some(e) = self.epoch(&key) else {
            return no(Refusal::EpochUnknown);
        };
        if e.commitment != close.commitment {
            return no(Refusal::EpochConflict);
        }
        let found = match (&close.asset, e.assets.as_slice()) {
            (Some(asset), _) => self.asset_of(e, asset),
            (None, [single]) => Some(single),
            (None, _) => None,
        };
        let Some(e) = found else {
            return no(Refusal::EpochConflict);
        };
        if let Some(closed) = e.closed_seq {
            return Err(Stop::Known(closed));
        }
        let asset = e.asset;
        let paid = e.next_index == e.recipients && e.paid == e.total;
        if !paid || !self.escrow_is_empty(&key, asset) {
            return no(Refusal::EpochIncomplete);
        }
        self.epoch_asset_mut(&key, asset).closed_seq = Some(seq);
        Ok(())
    }

    /// Either an epoch is opened with a manifest or the manifest is withdrawn, whichever the log has
    /// first.
    pub(super) fn epoch_void(
        &mut self,
        (tenant, epoch): EpochKey,
        commitment: ContentId,
        seq: u64,
    ) -> Rule<()> {
        let key: EpochKey = (tenant, epoch);
        if self.epoch(&key).is_some_and(|e| e.commitment == commitment) {
            return no(Refusal::EpochOpened);
        }
        let manifest: VoidKey = (key.0, key.1, commitment);
        if let Some(made) = self.voided_at(&manifest) {
            return Err(Stop::Known(made));
        }
        self.top().voids.insert(manifest, seq);
        Ok(())
    }

    fn escrow_is_empty(&self, key: &EpochKey, asset: u32) -> bool {
        self.find(&escrow_account(&key.0, &key.1))
            .is_none_or(|ix| self.row(ix).balance(asset).is_empty())
    }
}
