//! Runs: the life of an epoch from request to settlement.
//!
//! One thread (`rew-sched`) owns the run table and its database; the other stages report to it.
//! A run is durable as `queued` before anyone is told; its artifacts are durable before anything
//! is paid; and what was paid is the ledger's to know. So a crash at any point is repaired by
//! doing the unfinished stage again.

pub mod artifact;
pub mod db;
pub mod emitter;
pub mod library;
pub mod ports;
pub mod progress;
pub mod registry;
pub mod retention;
pub mod scheduler;
pub mod worker;

use std::sync::Arc;
use std::time::Duration;

use ron_http::Responder;
use ron_kernel::Deadline;
use ron_proto::rewarder::{PolicyId, RunReason, RunState, RunTotals, SettlementSeqs};
use ron_proto::values::{ContentId, EpochId, Tenant, Timestamp};

pub use progress::Progress;

#[cfg(test)]
mod tests;

/// Names a run: an epoch of a tenant has one.
pub type RunId = (Tenant, EpochId);

/// What is kept of a run. Everything but the state `computing` is also in the database.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Whose.
    pub tenant: Tenant,
    /// Which epoch.
    pub epoch: EpochId,
    /// The usage it pays for.
    pub snapshot: ContentId,
    /// The policy it pays by.
    pub policy_id: PolicyId,
    /// The policy's hash.
    pub policy_hash: ContentId,
    /// The epoch that it corrects.
    pub adjusts: Option<EpochId>,
    /// Names these inputs for this epoch.
    pub run_key: ContentId,
    /// Never pays.
    pub dry_run: bool,
    /// Settlement was asked for, by configuration or by a caller.
    pub settle: bool,
    /// Where it is.
    pub state: RunState,
    /// Why, where the state needs it.
    pub reason: Option<RunReason>,
    /// The manifest's, once computed.
    pub commitment: Option<ContentId>,
    /// The manifest's, once computed.
    pub totals: Option<RunTotals>,
    /// Rows of the payout table, once computed.
    pub intents: u64,
    /// What the ledger said.
    pub seqs: SettlementSeqs,
    /// Accepted.
    pub created_at: Timestamp,
    /// State changed.
    pub updated_at: Timestamp,
}

impl Run {
    /// Its name.
    pub fn id(&self) -> RunId {
        (self.tenant.clone(), self.epoch.clone())
    }

    /// True when nothing more will happen by itself.
    pub fn at_rest(&self) -> bool {
        match self.state {
            RunState::Settled | RunState::Quarantined | RunState::Failed => true,
            RunState::Sealed => self.dry_run || !self.settle,
            RunState::Queued | RunState::Computing | RunState::Settling | RunState::Held => false,
        }
    }
}

/// A reason with its stable code.
pub fn reason(code: &str, detail: impl Into<String>) -> RunReason {
    RunReason {
        code: code.to_owned(),
        detail: detail.into(),
    }
}

/// What a caller asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Compute an epoch. The handler has checked that policy and snapshot are there and fit.
    Compute {
        /// The usage.
        snapshot: ContentId,
        /// The policy.
        policy_id: PolicyId,
        /// Its hash.
        policy_hash: ContentId,
        /// The epoch to correct.
        adjusts: Option<EpochId>,
        /// Made of these and the epoch.
        run_key: ContentId,
        /// Never pay.
        dry_run: bool,
    },
    /// Settle a sealed epoch.
    Settle,
}

/// One request on its way to the scheduler.
pub struct Asked {
    /// Which run.
    pub id: RunId,
    /// What for.
    pub ask: Ask,
    /// How long the caller waits for the end of it; `None` answers at once.
    pub wait: Option<Duration>,
    /// The caller set a deadline of its own and waits: computing past it is wasted.
    pub compute_by: Option<Deadline>,
    /// Who gets the answer.
    pub responder: Responder,
}

/// A run to compute.
#[derive(Clone)]
pub struct Job {
    /// The run as it was queued.
    pub run: Arc<Run>,
    /// Where to count.
    pub progress: Arc<Progress>,
    /// When the result is no longer wanted.
    pub deadline: Deadline,
}

/// A run to sign and, if asked for, to settle.
#[derive(Clone)]
pub struct Intent {
    /// The run as it was sealed.
    pub run: Arc<Run>,
    /// Where to count.
    pub progress: Arc<Progress>,
}

/// What a stage reports to the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Which run.
    pub id: RunId,
    /// Guards against reports about a run that has been replaced.
    pub run_key: ContentId,
    /// What happened.
    pub news: News,
}

/// What happened to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A worker has it.
    Computing,
    /// Its artifacts are durable.
    Sealed {
        /// The manifest's.
        commitment: ContentId,
        /// The manifest's.
        totals: RunTotals,
        /// Rows of the payout table.
        intents: u64,
    },
    /// Its artifacts are durable, and say that an invariant broke.
    Quarantined {
        /// The manifest's.
        commitment: ContentId,
        /// The manifest's.
        totals: RunTotals,
        /// What broke.
        reason: RunReason,
    },
    /// It cannot be done as asked.
    Failed(RunReason),
    /// The manifest is signed and settlement has begun.
    Settling {
        /// The ledger's sequence of the opening.
        open_seq: u64,
    },
    /// Settlement waits.
    Held(RunReason),
    /// The manifest is signed; nobody has asked for settlement.
    Signed,
    /// Everything is paid and the epoch is closed.
    Settled {
        /// The ledger's sequences.
        seqs: SettlementSeqs,
    },
}
