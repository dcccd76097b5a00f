//! The manifest: the payouts of a run, bound to its inputs, as bytes that anyone can recompute.
//!
//! `run key -> payout table -> Merkle-sum root -> manifest -> commitment`. None of it depends on
//! time, on the ledger or on the state of the run.

pub mod assets;
pub mod bundle;
pub mod claims;
pub mod claims_file;
pub mod correction;
mod correction_build;
pub mod dir;
pub mod explain;
#[cfg(feature = "parquet")]
pub mod export;
mod files;
pub mod reader;
pub mod table;
pub mod tree;
pub mod verify;

use ron_proto::jcs;
use ron_proto::rewarder::{
    AlsoPaid, ClaimsRoot, Correction, MANIFEST_CLAIMS, MANIFEST_CORRECTION, MANIFEST_LEDGER,
    Payout, PayoutsRoot, PolicyId, RewardPolicy, RuleSet, RunInputs, RunManifest, RunStatus,
    RunTotals,
};
use ron_proto::values::{Account, Amount, Asset, ContentId, EpochId, Tenant};
use serde::Serialize;

use crate::calculus::{self, Rules, Stop, Sums, Usage, Watch};
use crate::inputs::policy::VerifiedPolicy;
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::Target;
use assets::AssetJob;
use correction::Earlier;
use table::Table;
use tree::Tree;

const RUN_KEY_DOMAIN: &[u8] = b"ron-rewarder/v1/run-key\0";
const SOURCE_DOMAIN: &[u8] = b"ron-rewarder/v1/source\0";
const COMMITMENT_DOMAIN: &[u8] = b"ron-rewarder/v1/commitment\0";

/// Identifies the inputs of a run for its epoch: BLAKE3-256 over a domain and, each preceded by its
/// length in four bytes: tenant, epoch id, snapshot id (32 bytes), policy hash (32 bytes), rule
/// set, the epoch that it corrects (empty if it corrects none).
pub fn run_key(
    tenant: &Tenant,
    epoch: &EpochId,
    adjusts: Option<&EpochId>,
    snapshot: &ContentId,
    policy_hash: &ContentId,
    rule_set: RuleSet,
) -> ContentId {
    let parts: [&[u8]; 6] = [
        tenant.as_str().as_bytes(),
        epoch.as_str().as_bytes(),
        &snapshot.0,
        &policy_hash.0,
        rule_set.as_str().as_bytes(),
        adjusts.map_or(b"", |epoch| epoch.as_str().as_bytes()),
    ];
    hash_of(RUN_KEY_DOMAIN, &parts)
}

/// Identifies what a run pays for, independent of the epoch's name and the policy's version:
/// computed like the run key, over tenant, policy id and snapshot id (32 bytes). The ledger pays a
/// source once.
pub fn source(tenant: &Tenant, policy: &PolicyId, snapshot: &ContentId) -> ContentId {
    let parts: [&[u8]; 3] = [
        tenant.as_str().as_bytes(),
        policy.as_str().as_bytes(),
        &snapshot.0,
    ];
    hash_of(SOURCE_DOMAIN, &parts)
}

fn hash_of(domain: &[u8], parts: &[&[u8]]) -> ContentId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(domain);
    for part in parts {
        // Every part is a bounded name or a hash, far below 2^32 bytes.
        hasher.update(&(part.len() as u32).to_be_bytes());
        hasher.update(part);
    }
    ContentId(*hasher.finalize().as_bytes())
}

/// The fields under the commitment, with the names they have in the manifest.
#[derive(Serialize)]
struct Committed<'a> {
    version: u32,
    tenant: &'a Tenant,
    epoch_id: &'a EpochId,
    #[serde(skip_serializing_if = "Option::is_none")]
    adjusts: &'a Option<EpochId>,
    run_key: &'a ContentId,
    inputs: &'a RunInputs,
    rule_set: RuleSet,
    asset: &'a Asset,
    pool_account: &'a Account,
    residual_owner: &'a Account,
    totals: &'a RunTotals,
    payouts: &'a Option<PayoutsRoot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: &'a Option<ClaimsRoot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correction: &'a Option<Correction>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    also: &'a [AlsoPaid],
}

/// The commitment a manifest must carry: BLAKE3-256 over a domain and the canonical JSON of every
/// field but `status` and `commitment`.
pub fn commitment(manifest: &RunManifest) -> ContentId {
    let body = jcs::to_vec(&Committed {
        version: manifest.version,
        tenant: &manifest.tenant,
        epoch_id: &manifest.epoch_id,
        adjusts: &manifest.adjusts,
        run_key: &manifest.run_key,
        inputs: &manifest.inputs,
        rule_set: manifest.rule_set,
        asset: &manifest.asset,
        pool_account: &manifest.pool_account,
        residual_owner: &manifest.residual_owner,
        totals: &manifest.totals,
        payouts: &manifest.payouts,
        claims: &manifest.claims,
        correction: &manifest.correction,
        also: &manifest.also,
    })
    .expect("strings and integers below 2^53 always have a canonical form");
    let mut hasher = blake3::Hasher::new();
    hasher.update(COMMITMENT_DOMAIN);
    hasher.update(&body);
    ContentId(*hasher.finalize().as_bytes())
}

/// Number of payouts that the ledger makes for a manifest: with claims the one that moves the total.
pub fn ledger_payouts(manifest: &RunManifest) -> u64 {
    let payees = manifest.payouts.map_or(0, |payouts| payouts.count);
    match manifest.claims {
        Some(_) => payees.min(1),
        None => payees,
    }
}

/// The one payout of a manifest with claims; `None` for a manifest without, whose payouts are those of
/// its table.
pub fn claims_payout(manifest: &RunManifest) -> Option<Payout> {
    let (claims, payouts) = (manifest.claims.as_ref()?, manifest.payouts?);
    Some(Payout {
        index: 0,
        account: claims.account.clone(),
        amount_minor: payouts.total_minor,
    })
}

/// The result of a computation.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The manifest, with its commitment.
    pub manifest: RunManifest,
    /// The payout table; `None` for a quarantined run and for [`Target::Nowhere`].
    pub table: Option<Table>,
    /// The first bytes of the table, which identify its content; `None` for a quarantined run.
    pub head: Option<[u8; table::HEAD]>,
    /// The table's tree; `None` for a quarantined run.
    pub tree: Option<Tree>,
    /// What was due and paid before, of a correction; `None` for [`Target::Nowhere`].
    pub accounts: Option<Sealed>,
    /// The further assets of the epoch, each as a run that pays it alone.
    pub also: Vec<Self>,
    /// The broken invariant of a quarantined run.
    pub quarantine: Option<Stop>,
}

impl Computed {
    /// This and the further assets of the epoch, in the order of the policy.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.also)
    }
}

/// Why a run could not be computed at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The policy does not fit the snapshot.
    #[error(transparent)]
    Rules(#[from] calculus::RuleError),
    /// The epoch that it adjusts is not corrected so.
    #[error("{0}")]
    Correction(String),
    /// [`Watch::cancelled`] returned true.
    #[error("cancelled before the result was complete")]
    Cancelled,
    /// The snapshot could not be read, or the payout table could not be written.
    #[error("{0}")]
    Io(String),
}

/// The epoch that a correction corrects.
#[derive(Debug)]
pub struct Adjusts<'a> {
    pub epoch: &'a EpochId,
    /// What it has paid, and where `correction.bin` is written. Without it only a run can be computed
    /// that ends in quarantine.
    pub earlier: Option<(&'a Earlier, Target)>,
}

impl<'a> Adjusts<'a> {
    /// The correction of an epoch, written to `accounts`.
    pub fn of(earlier: &'a Earlier, accounts: Target) -> Self {
        Self {
            epoch: earlier.epoch(),
            earlier: Some((earlier, accounts)),
        }
    }
}

/// Computes an epoch in memory; see [`compute_to`] and, for an epoch that pays several assets,
/// [`assets::compute_each`].
pub fn compute(
    tenant: &Tenant,
    epoch: &EpochId,
    adjusts: Option<Adjusts<'_>>,
    snapshot: &Sealed,
    policy: &VerifiedPolicy,
    watch: &impl Watch,
) -> Result<Computed, RunError> {
    let memory = Target::Memory(Vec::new());
    if adjusts.is_none() && !policy.policy.also.is_empty() {
        let job = |policy| AssetJob {
            policy,
            target: Target::Memory(Vec::new()),
            adjusts: None,
        };
        let jobs = policy.of_each_asset().into_iter().map(job).collect();
        return assets::compute_each(tenant, epoch, jobs, snapshot, watch);
    }
    compute_to(memory, tenant, epoch, adjusts, snapshot, policy, watch)
}

/// Computes an epoch that pays one asset ([`assets`] has the others): shares, payout table (to `target`), root, manifest. A broken invariant or an
/// overflow gives a quarantined manifest, not an error. Memory does not grow with the epoch, except
/// for a target in memory. An epoch that adjusts another pays the differences.
pub fn compute_to(
    target: Target,
    tenant: &Tenant,
    epoch: &EpochId,
    adjusts: Option<Adjusts<'_>>,
    snapshot: &Sealed,
    policy: &VerifiedPolicy,
    watch: &impl Watch,
) -> Result<Computed, RunError> {
    if policy.policy.tenant != *tenant {
        let owner = policy.policy.tenant.clone();
        return Err(calculus::RuleError::Tenant(owner).into());
    }
    let corrects = adjusts.as_ref().map(|adjusts| adjusts.epoch);
    let earlier = adjusts.and_then(|adjusts| adjusts.earlier);
    if let Some((earlier, _)) = &earlier {
        earlier
            .check(&policy.policy)
            .map_err(RunError::Correction)?;
    }
    let is_whole = corrects.is_none() || earlier.is_some();
    let rules = Rules::new(&policy.policy, &snapshot.metric_names())?;
    let built = calculus::plan(snapshot, &rules, watch).and_then(|plan| {
        let (built, correction) = match earlier {
            None => {
                let built = Table::build(snapshot, &plan, &policy.policy, target, watch)?;
                (built, None)
            }
            Some((earlier, accounts)) => {
                let targets = correction_build::Targets {
                    payouts: target,
                    accounts,
                };
                let made = correction_build::build(
                    snapshot,
                    &plan,
                    &policy.policy,
                    (earlier, targets),
                    watch,
                )?;
                (made.built, Some((made.correction, made.accounts)))
            }
        };
        let root = built.tree.root();
        let root = root.map_err(|_| Stop::Broken("the payout table passes 2^128"))?;
        // The owner of the residual is a payee like others of a correction.
        let residual_row = correction.is_none() && policy.policy.pays_residual();
        check_books(&built.sums, &root, residual_row)?;
        Ok((built, root, correction))
    });
    let (built, payouts, totals, correction, quarantine) = match built {
        Ok(_) if !is_whole => {
            let detail = "it names an epoch that it corrects, and does not say what that has paid";
            return Err(RunError::Correction(detail.to_owned()));
        }
        Ok((built, root, correction)) => {
            let totals = RunTotals {
                pool_minor: Amount(built.sums.pool),
                payout_minor: Amount(built.sums.payout),
                residual_minor: Amount(built.sums.residual),
                recipients: built.sums.recipients,
            };
            (Some(built), Some(root), totals, correction, None)
        }
        Err(Stop::Cancelled) => return Err(RunError::Cancelled),
        Err(Stop::Io(why)) => return Err(RunError::Io(why)),
        Err(Stop::Payee(why)) => return Err(calculus::RuleError::Payee(why).into()),
        Err(stop) => (None, None, nothing_paid(rules.pool()), None, Some(stop)),
    };
    let claims = built.as_ref().and_then(|built| built.claims.as_ref());
    let claims = claims.zip(policy.policy.claims_account.as_ref());
    let claims = claims.map(|(tree, account)| ClaimsRoot {
        root: tree.root(),
        account: account.clone(),
    });
    let (correction, accounts) = correction.unzip();
    let paid = (totals, payouts, claims, correction);
    let manifest = assemble(tenant, (epoch, corrects), snapshot, policy, paid);
    let head = built.as_ref().map(|built| built.head);
    let (table, tree) = built.map_or((None, None), |built| (built.table, Some(built.tree)));
    Ok(Computed {
        manifest,
        table,
        head,
        tree,
        accounts: accounts.flatten(),
        also: Vec::new(),
        quarantine,
    })
}

/// Payouts and residual must add up to the pool in both sums: over the shares of the calculus, and
/// over the tree of the written table. `residual_row`: a residual has a record.
fn check_books(sums: &Sums, root: &PayoutsRoot, residual_row: bool) -> Result<(), Stop> {
    if sums.payout.checked_add(sums.residual) != Some(sums.pool) {
        return Err(Stop::Broken(
            "payouts and residual do not add up to the pool",
        ));
    }
    let apart = residual_row && sums.residual > 0;
    let moved = if apart { sums.pool } else { sums.payout };
    let rows = sums.recipients + u64::from(apart);
    if root.total_minor.0 != moved || root.count != rows {
        return Err(Stop::Broken(
            "the payout table does not add up to the totals",
        ));
    }
    Ok(())
}

fn nothing_paid(pool: u128) -> RunTotals {
    RunTotals {
        pool_minor: Amount(pool),
        payout_minor: Amount::ZERO,
        residual_minor: Amount(pool),
        recipients: 0,
    }
}

fn assemble(
    tenant: &Tenant,
    (epoch, adjusts): (&EpochId, Option<&EpochId>),
    snapshot: &Sealed,
    policy: &VerifiedPolicy,
    (totals, payouts, claims, correction): (
        RunTotals,
        Option<PayoutsRoot>,
        Option<ClaimsRoot>,
        Option<Correction>,
    ),
) -> RunManifest {
    let RewardPolicy {
        id,
        version,
        rule_set,
        asset,
        pool,
        residual,
        ..
    } = &policy.policy;
    let mut manifest = RunManifest {
        // Manifests without claims or correction keep the bytes that they always had.
        version: match (&claims, &correction) {
            (_, Some(_)) => MANIFEST_CORRECTION,
            (Some(_), None) => MANIFEST_CLAIMS,
            (None, None) => MANIFEST_LEDGER,
        },
        tenant: tenant.clone(),
        epoch_id: epoch.clone(),
        adjusts: adjusts.cloned(),
        run_key: run_key(
            tenant,
            epoch,
            adjusts,
            &snapshot.cid(),
            &policy.hash,
            *rule_set,
        ),
        inputs: RunInputs {
            snapshot: snapshot.cid(),
            accounts: snapshot.accounts() as u64,
            policy_id: id.clone(),
            policy_version: *version,
            policy_hash: policy.hash,
        },
        rule_set: *rule_set,
        asset: asset.clone(),
        pool_account: pool.account.clone(),
        residual_owner: residual.owner.clone(),
        totals,
        status: if payouts.is_some() {
            RunStatus::Ok
        } else {
            RunStatus::Quarantined
        },
        payouts,
        claims,
        correction,
        also: Vec::new(),
        commitment: ContentId([0; 32]),
    };
    manifest.commitment = commitment(&manifest);
    manifest
}

#[cfg(test)]
mod correction_tests;
#[cfg(test)]
mod explain_tests;
#[cfg(test)]
mod laws_tests;
#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod quarantine_tests;
#[cfg(test)]
mod tenant_tests;
#[cfg(test)]
mod tests;
