//! Epochs that pay several assets: each has its pool, its split and its tree, under one policy and one
//! manifest.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CapRule, GuardRails, Metric, MetricRule, PoolRule, ReleaseRule, ResidualRule, RewardPolicy,
    RunTotals, is_default,
};
use crate::values::{Account, Amount, Asset, ContentId};

/// A further asset that a policy pays for the same usage. What it does not name is that of the policy.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlsoRule {
    /// Asset that is paid; another one than all others of the policy.
    pub asset: Asset,
    /// Source and size of its pool.
    pub pool: PoolRule,
    /// Every metric that may appear in a snapshot, with its weight for this asset; those of the policy
    /// when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<BTreeMap<Metric, MetricRule>>,
    /// Minimum payout, in minor units of the asset; smaller payouts go to the residual.
    #[serde(default, skip_serializing_if = "is_default")]
    pub min_payout_minor: Amount,
    /// Upper bounds per account and category, in minor units of the asset.
    #[serde(default, skip_serializing_if = "is_default")]
    pub caps: CapRule,
    /// Owner of the residual.
    pub residual: ResidualRule,
    /// Bounds of what the epoch may pay of the asset without being looked at; those of `release` are for
    /// the policy's own asset.
    #[serde(default, skip_serializing_if = "is_default")]
    pub guards: GuardRails,
    /// The account that the total moves to, with `pay: "claims"` and only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_account: Option<Account>,
}

impl RewardPolicy {
    /// One policy for each asset, which pays that asset alone. The first is of the policy's own members.
    pub fn of_each_asset(&self) -> Vec<Self> {
        let own = Self {
            also: Vec::new(),
            ..self.clone()
        };
        let mut each = vec![own.clone()];
        each.extend(self.also.iter().map(|also| own.paying(also)));
        each
    }

    /// The same policy for an asset alone; `None` if it does not pay the asset.
    pub fn of_asset(&self, asset: &Asset) -> Option<Self> {
        let mut each = self.of_each_asset().into_iter();
        each.find(|policy| policy.asset == *asset)
    }

    fn paying(&self, also: &AlsoRule) -> Self {
        let metrics = also.metrics.as_ref().unwrap_or(&self.metrics);
        Self {
            asset: also.asset.clone(),
            pool: also.pool.clone(),
            metrics: metrics.clone(),
            min_payout_minor: also.min_payout_minor,
            caps: also.caps.clone(),
            residual: also.residual.clone(),
            release: ReleaseRule {
                guards: also.guards,
                ..self.release
            },
            claims_account: also.claims_account.clone(),
            ..self.clone()
        }
    }
}

/// A further asset of an epoch, in its manifest.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlsoPaid {
    /// Asset that is paid.
    pub asset: Asset,
    /// Commitment of the asset's own manifest.
    pub commitment: ContentId,
}

/// The sums of one asset of a run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssetTotals {
    /// Asset that is paid.
    pub asset: Asset,
    /// The totals of the asset's manifest.
    pub totals: RunTotals,
}

/// One asset's payout to an account.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssetPayout {
    /// Asset that is paid.
    pub asset: Asset,
    /// Index of the row in the asset's table and of the payout in the ledger's settlement.
    pub index: u64,
    /// Amount in minor units; never zero.
    pub amount_minor: Amount,
}

/// Response of `GET /rewarder/epochs/{id}/payouts/{account}`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountPayouts {
    /// Account that receives the payouts.
    pub account: Account,
    /// One payout for each asset that it receives, in the order of the policy.
    pub payouts: Vec<AssetPayout>,
}
