//! Epochs that pay several assets. Each asset is computed as an epoch that pays it alone, with its own table,
//! tree and manifest; the manifest of the first names those of the others, so that its commitment binds
//! all of them.
//!
//! ```text
//! run.json           the manifest of the first asset, with `also`
//! payouts.bin ..     its artifacts
//! asset-<name>/      the same files of each further asset, as a run that pays it alone
//! ```

use ron_files::Dir;
use ron_proto::rewarder::{
    AlsoPaid, AssetTotals, MANIFEST_ASSETS, MANIFEST_LEDGER, RunManifest, RunStatus,
};
use ron_proto::values::{Asset, EpochId, Tenant};

use super::correction::Earlier;
use super::correction_build::Quiet;
pub use super::dir::further;
use super::files::{VerifyError, read_manifest, wrong};
use super::{Adjusts, Computed, RunError, commitment, compute_to, dir, nothing_paid};
use crate::calculus::{Stop, Watch};
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::Target;

/// One asset of an epoch, to compute.
#[derive(Debug)]
pub struct AssetJob<'a> {
    /// The policy that pays the asset alone, of [`VerifiedPolicy::of_each_asset`].
    pub policy: VerifiedPolicy,
    /// Where the payout table is written.
    pub target: Target,
    /// What the epoch that is corrected has paid of the asset.
    pub adjusts: Option<Adjusts<'a>>,
}

/// A job for each asset of a policy, in its order. `earlier` is what the epoch that is corrected has paid of each, or empty. `target`
/// makes the file `payouts` or `correction` of an asset, with room for so many accounts.
pub fn jobs<'e, E>(
    policy: &VerifiedPolicy,
    earlier: &'e [Earlier],
    accounts: usize,
    target: impl Fn(&str, &Asset, usize) -> Result<Target, E>,
) -> Result<Vec<AssetJob<'e>>, E> {
    let job = |(at, policy): (usize, VerifiedPolicy)| {
        let asset = &policy.policy.asset;
        let adjusts = match earlier.get(at) {
            Some(earlier) => {
                // It has a row for every account of the two.
                let rows = accounts + earlier.accounts();
                Some(Adjusts::of(earlier, target("correction", asset, rows)?))
            }
            None => None,
        };
        Ok(AssetJob {
            target: target("payouts", asset, accounts)?,
            adjusts,
            policy,
        })
    };
    let each = policy.of_each_asset().into_iter();
    each.enumerate().map(job).collect()
}

/// Computes every asset of an epoch, in the order of the policy. One that ends in quarantine takes the whole
/// epoch with it, whose manifest then names no other asset.
pub fn compute_each(
    tenant: &Tenant,
    epoch: &EpochId,
    jobs: Vec<AssetJob<'_>>,
    snapshot: &Sealed,
    watch: &impl Watch,
) -> Result<Computed, RunError> {
    let mut all = Vec::with_capacity(jobs.len());
    for job in jobs {
        let AssetJob {
            policy,
            target,
            adjusts,
        } = job;
        // Progress counts every account once.
        let computed = if all.is_empty() {
            compute_to(target, tenant, epoch, adjusts, snapshot, &policy, watch)
        } else {
            let quiet = Quiet(watch);
            compute_to(target, tenant, epoch, adjusts, snapshot, &policy, &quiet)
        };
        all.push((computed?, policy));
    }
    let stopped = all.iter().find_map(|(it, _)| it.quarantine.clone());
    let mut all = all.into_iter();
    let Some((mut first, policy)) = all.next() else {
        return Err(RunError::Io("the policy pays no asset".to_owned()));
    };
    if let Some(stop) = stopped {
        let pool = policy.policy.pool.amount_minor.0;
        return Ok(quarantined(first, pool, stop));
    }
    first.also = all.map(|(computed, _)| computed).collect();
    if !first.also.is_empty() {
        let named = first.also.iter().map(|it| AlsoPaid {
            asset: it.manifest.asset.clone(),
            commitment: it.manifest.commitment,
        });
        first.manifest.also = named.collect();
        first.manifest.version = MANIFEST_ASSETS;
        first.manifest.commitment = commitment(&first.manifest);
    }
    Ok(first)
}

fn quarantined(first: Computed, pool: u128, stop: Stop) -> Computed {
    let mut manifest = RunManifest {
        version: MANIFEST_LEDGER,
        totals: nothing_paid(pool),
        payouts: None,
        claims: None,
        correction: None,
        status: RunStatus::Quarantined,
        ..first.manifest
    };
    manifest.commitment = commitment(&manifest);
    Computed {
        manifest,
        table: None,
        head: None,
        tree: None,
        accounts: None,
        also: Vec::new(),
        quarantine: Some(stop),
    }
}

/// The directory of an asset in that of a run with this manifest; `None` for an asset that the run does not
/// pay.
pub fn of_asset(run: &Dir, manifest: &RunManifest, asset: &Asset) -> Option<Dir> {
    if manifest.asset == *asset {
        return Some(run.clone());
    }
    let is_further = manifest.also.iter().any(|it| it.asset == *asset);
    is_further.then(|| further(run, asset))
}

/// The directory of every asset of a run, in the order of the policy.
pub fn of_each_asset(run: &Dir, manifest: &RunManifest) -> Vec<Dir> {
    let further = manifest.also.iter().map(|it| further(run, &it.asset));
    std::iter::once(run.clone()).chain(further).collect()
}

/// The manifests of the further assets, which must be those that this one names.
pub fn read_further(run: &Dir, manifest: &RunManifest) -> Result<Vec<RunManifest>, VerifyError> {
    let read = |named: &AlsoPaid| {
        let found = read_manifest(&further(run, &named.asset))?;
        if (&found.asset, found.commitment) == (&named.asset, named.commitment) {
            Ok(found)
        } else {
            let asset = &named.asset;
            let why = format!("the manifest of {asset} is not the one that it names");
            Err(wrong(dir::RUN, &why))
        }
    };
    manifest.also.iter().map(read).collect()
}

/// What an epoch that was settled has paid of each asset of a policy, to correct it.
pub fn earlier_of_each(run: &Dir, policy: &VerifiedPolicy) -> Result<Vec<Earlier>, VerifyError> {
    let manifest = read_manifest(run)?;
    let paid = std::iter::once(&manifest.asset).chain(manifest.also.iter().map(|it| &it.asset));
    let each = policy.policy.of_each_asset();
    let pays = each.iter().map(|one| &one.asset);
    if (!manifest.also.is_empty() || each.len() > 1) && !paid.eq(pays) {
        let why = "the epoch to correct paid other assets than the policy pays, or in another order; correct it by \
                   a version of its policy with the same ones";
        return Err(wrong(dir::RUN, &why));
    }
    let dirs = of_each_asset(run, &manifest);
    dirs.iter().map(Earlier::open).collect()
}

/// The totals of every asset, in the order of the policy.
pub fn totals_of_each(computed: &Computed) -> Vec<AssetTotals> {
    let totals = |it: &Computed| AssetTotals {
        asset: it.manifest.asset.clone(),
        totals: it.manifest.totals,
    };
    computed.each().map(totals).collect()
}

#[cfg(test)]
#[path = "assets_tests.rs"]
mod tests;
