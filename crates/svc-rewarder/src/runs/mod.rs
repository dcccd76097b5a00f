//! Runs: the life of an epoch from request to settlement.
//!
//! One thread (`rew-sched`) owns the run table and its database; the other stages report to it. A
//! run is durable as `queued` before any response mentions it. Its artifacts are durable before
//! anything is paid. The ledger is the only record of what was paid. So a crash at any point is
//! repaired by repeating the unfinished stage.

mod admit;
pub mod artifact;
pub mod db;
pub mod emitter;
mod guards;
pub mod ports;
pub mod progress;
pub mod registry;
mod release;
mod replace;
pub mod retention;
pub mod scheduler;
mod timeline;
pub mod worker;

use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_http::{Responder, Trace};
use ron_kernel::Deadline;
use ron_proto::rewarder::{
    AssetTotals, PolicyId, RunReason, RunRelease, RunState, RunTotals, SettlementSeqs, Withdrawal,
};
use ron_proto::values::{ContentId, EpochId, Tenant, Timestamp};

use crate::manifest::dir;

pub use progress::Progress;

#[cfg(test)]
mod tests;

/// Identifies a run: a tenant has at most one live run per epoch, and beside it dry runs, each of other
/// inputs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId {
    pub tenant: Tenant,
    pub epoch: EpochId,
    /// The run key of a dry run.
    pub dry_run: Option<ContentId>,
}

impl RunId {
    /// The run that pays the epoch.
    pub const fn live(tenant: Tenant, epoch: EpochId) -> Self {
        Self {
            tenant,
            epoch,
            dry_run: None,
        }
    }
}

/// Maximum number of dry runs that are kept of one epoch; a further one takes the place of the oldest.
pub const DRY_RUNS_MAX: usize = 16;

/// The record of a run. Everything but the state `computing` is also in the database.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub tenant: Tenant,
    pub epoch: EpochId,
    /// The usage that the run pays for.
    pub snapshot: ContentId,
    /// The policy that the run pays by.
    pub policy_id: PolicyId,
    pub policy_hash: ContentId,
    /// The epoch that this one corrects.
    pub adjusts: Option<EpochId>,
    /// Identifies these inputs for this epoch; see [`crate::manifest::run_key`].
    pub run_key: ContentId,
    /// A dry run is computed and never paid.
    pub dry_run: bool,
    /// Settlement was requested, by configuration or by a caller.
    pub settle: bool,
    pub state: RunState,
    /// Why, for states that need a reason.
    pub reason: Option<RunReason>,
    /// The manifest's commitment, once computed.
    pub commitment: Option<ContentId>,
    /// The manifest's totals, once computed.
    pub totals: Option<RunTotals>,
    /// The totals of every asset, once computed.
    pub assets: Vec<AssetTotals>,
    /// Accounts of the snapshot, once computed.
    pub accounts: u64,
    /// Rows of the payout tables, once computed.
    pub intents: u64,
    /// Positions in the ledger, once settlement has begun or the manifest is withdrawn.
    pub seqs: SettlementSeqs,
    /// The withdrawal that was asked for.
    pub withdrawal: Option<Withdrawal>,
    /// The principal that asked for the run, which may not approve it.
    pub asked_by: String,
    /// What it waits for before it pays, once computed.
    pub release: Option<RunRelease>,
    /// When the run was accepted.
    pub created_at: Timestamp,
    /// When the state last changed.
    pub updated_at: Timestamp,
}

impl Run {
    pub fn id(&self) -> RunId {
        RunId {
            tenant: self.tenant.clone(),
            epoch: self.epoch.clone(),
            dry_run: self.dry_run.then_some(self.run_key),
        }
    }

    /// The directory of its artifacts under `root`.
    pub fn dir(&self, root: &Dir) -> Dir {
        let dry_run = self.dry_run.then_some(&self.run_key);
        dir::of(root, &self.tenant, &self.epoch, dry_run)
    }

    /// True when the state does not change any more without a new request.
    pub fn at_rest(&self) -> bool {
        match self.state {
            RunState::Settled
            | RunState::Quarantined
            | RunState::Failed
            | RunState::Withdrawn
            | RunState::Review => true,
            RunState::Sealed => self.dry_run || !self.settle,
            RunState::Queued
            | RunState::Computing
            | RunState::Settling
            | RunState::Held
            | RunState::Withdrawing => false,
        }
    }

    /// Notes that the run was just computed, and what it waits for before it pays.
    fn seal(&mut self, approvals: u32, breaches: &[RunReason]) {
        let release = RunRelease {
            needed: approvals.max(u32::from(!breaches.is_empty())),
            approvals: Vec::new(),
            breaches: breaches.to_vec(),
        };
        self.settle = self.settle && release.is_approved();
        self.release = Some(release);
        self.rest();
    }

    /// Notes that no stage works on the computed run: it is in `review` while it is beyond a guard rail
    /// and not approved. A dry run shows what a live one would wait for, and pays in no case.
    fn rest(&mut self) {
        let release = self.release.as_ref();
        let waits = release.filter(|release| !self.dry_run && !release.is_approved());
        self.reason = waits.and_then(|release| release.breaches.first().cloned());
        self.state = match self.reason {
            Some(_) => RunState::Review,
            None => RunState::Sealed,
        };
    }

    /// True once a stage can change the run no more: only a new request does.
    pub const fn is_final(&self) -> bool {
        matches!(self.state, RunState::Settled | RunState::Withdrawn)
    }
}

/// A reason with its stable code.
pub fn reason(code: &str, detail: impl Into<String>) -> RunReason {
    RunReason {
        code: code.to_owned(),
        detail: detail.into(),
    }
}

/// What a caller requests.
#[derive(Clone, Debug, PartialEq)]
pub enum RunAction {
    /// Compute an epoch. The handler has checked that policy and snapshot exist and fit each other.
    Compute {
        snapshot: ContentId,
        policy_id: PolicyId,
        policy_hash: ContentId,
        /// The epoch to correct.
        adjusts: Option<EpochId>,
        /// Identifies these inputs for the epoch.
        run_key: ContentId,
        /// Compute and never pay.
        dry_run: bool,
        /// The principal that asks for it.
        by: String,
    },
    /// Settle a sealed epoch.
    Settle,
    /// Approve the manifest with this commitment.
    Approve {
        commitment: ContentId,
        /// The principal that approves.
        by: String,
    },
    /// Withdraw the manifest with this commitment.
    Withdraw {
        commitment: ContentId,
        reason: String,
        /// The principal that asks for it.
        by: String,
    },
}

impl RunAction {
    /// The run of an epoch that is asked for.
    fn run_of(&self, tenant: Tenant, epoch: EpochId) -> RunId {
        let dry_run = match self {
            Self::Compute {
                dry_run: true,
                run_key,
                ..
            } => Some(*run_key),
            _ => None,
        };
        RunId {
            tenant,
            epoch,
            dry_run,
        }
    }
}

/// One request on its way to the scheduler.
pub struct RunRequest {
    pub tenant: Tenant,
    pub epoch: EpochId,
    pub action: RunAction,
    /// How long the caller waits for the run's end; `None` is answered at once.
    pub wait: Option<Duration>,
    /// Set if the caller waits with a deadline of its own: a computation past it is wasted.
    pub compute_by: Option<Deadline>,
    pub responder: Responder,
}

/// A run to compute.
#[derive(Clone)]
pub struct Job {
    /// The run as it was queued.
    pub run: Arc<Run>,
    /// Counters that the stage updates.
    pub progress: Arc<Progress>,
    /// The request that it is computed for.
    pub request: Option<Trace>,
    /// After this time nobody needs the result.
    pub deadline: Deadline,
}

/// A run to sign and, if requested, to settle.
#[derive(Clone)]
pub struct Intent {
    /// The run as it was sealed.
    pub run: Arc<Run>,
    /// Counters that the stage updates.
    pub progress: Arc<Progress>,
    /// The request that it is settled for.
    pub request: Option<Trace>,
}

/// A stage's report to the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    pub id: RunId,
    /// The scheduler ignores reports about a run that has been replaced.
    pub run_key: ContentId,
    pub event: RunEvent,
}

/// An event in the life of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEvent {
    /// A worker has started on the run.
    Computing,
    /// The artifacts are durable.
    Sealed {
        commitment: ContentId,
        totals: RunTotals,
        /// The totals of every asset.
        assets: Vec<AssetTotals>,
        /// Accounts of the snapshot.
        accounts: u64,
        /// Rows of the payout tables.
        intents: u64,
        /// Number of approvals that the policy asks for.
        approvals: u32,
        /// The guard rails that it is beyond.
        breaches: Vec<RunReason>,
    },
    /// The artifacts are durable, and record that an invariant broke.
    Quarantined {
        commitment: ContentId,
        totals: RunTotals,
        reason: RunReason,
    },
    /// The run cannot complete with these inputs.
    Failed(RunReason),
    /// The manifest is signed and settlement has begun.
    Settling {
        /// The sequence number of the epoch's opening entry in the ledger.
        open_seq: u64,
    },
    /// Settlement waits for a retry.
    Held(RunReason),
    /// The manifest is signed; settlement was not requested.
    Signed,
    /// The ledger has recorded the withdrawal.
    Withdrawn {
        /// The sequence number of the entry.
        void_seq: u64,
    },
    /// The ledger refused the withdrawal, because it has opened the epoch with this manifest.
    Opened,
    /// A dry run is past its retention.
    Expired,
    /// Everything is paid and the epoch is closed.
    Settled {
        /// Sequence numbers of the opening and the closing entry.
        seqs: SettlementSeqs,
    },
}
