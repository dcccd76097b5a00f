//! What entries that settle reward epochs say.

use ron_proto::ledger::is_pool_of;
use ron_proto::{Account, Amount, Asset, ContentId, EpochId, Tenant};

use super::checks::{BadEntry, bad, count};

/// Binds an epoch to one manifest and moves the total of one of its assets from the pool into escrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochOpen {
    pub epoch: EpochId,
    /// The pool that funds it.
    pub from: Account,
    pub asset: Asset,
    /// The sum of all payouts.
    pub amount: Amount,
    pub commitment: ContentId,
    /// Root of the Merkle-sum tree over the payouts.
    pub sum_root: ContentId,
    pub recipients: u64,
    /// Identifies the usage that the epoch pays for.
    pub source: ContentId,
    /// The earlier epoch that this one corrects.
    pub adjusts: Option<EpochId>,
}

/// Ends the settlement of one asset of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochClose {
    pub epoch: EpochId,
    pub commitment: ContentId,
    /// The asset; absent only for an epoch that pays a single one.
    pub asset: Option<Asset>,
}

/// Pays one recipient out of the epoch's escrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payout {
    pub epoch: EpochId,
    /// Must be the next of the epoch's payouts in the asset.
    pub index: u64,
    pub to: Account,
    pub asset: Asset,
    pub amount: Amount,
}

impl EpochOpen {
    pub(super) fn check(&self, tenant: &Tenant) -> Result<(), BadEntry> {
        // A rule of the core, so that no caller that settles for several tenants pays one tenant's
        // epoch from another's pool.
        if !is_pool_of(tenant, &self.from) {
            return bad("from", "must be a pool of the tenant: pool:<tenant>/<name>");
        }
        if self.adjusts.as_ref() == Some(&self.epoch) {
            return bad("adjusts", "must name another epoch");
        }
        count("recipients", self.recipients, 0)?;
        let (recipients, amount) = (u128::from(self.recipients), self.amount.0);
        if (recipients == 0) != (amount == 0) || amount < recipients {
            return bad(
                "amount_minor",
                "must be at least one minor unit per recipient, and 0 without recipients",
            );
        }
        Ok(())
    }
}
