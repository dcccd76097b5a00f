//! Requests that make a run. The scheduler's thread carries them out.

use std::sync::Arc;

use ron_http::Trace;
use ron_kernel::Deadline;
use ron_proto::problem::Problem;
use ron_proto::rewarder::{PolicyId, RunState, SettlementSeqs};
use ron_proto::values::{ContentId, EpochId, Timestamp};

use super::registry::Entry;
use super::replace::{may_replace, outdated};
use super::scheduler::{Admission, Memory, SECOND_TRIES_MAX, Scheduler};
use super::{Progress, Run, RunAction, RunId};
use crate::errors;

impl Scheduler {
    /// Admits a compute request: finds the matching run, or makes a new one durable as queued.
    pub(super) fn admit(
        &self,
        memory: &mut Memory,
        id: &RunId,
        action: &RunAction,
        compute_by: Option<Deadline>,
    ) -> Result<Admission, Box<Problem>> {
        let RunAction::Compute {
            snapshot,
            policy_id,
            policy_hash,
            adjusts,
            run_key,
            dry_run,
            by,
        } = action
        else {
            return Ok(Admission::Admitted);
        };
        if let Some(entry) = self.registry.get(id)
            && !may_replace(&entry.run, run_key)?
        {
            return Ok(Admission::Admitted);
        }
        let run = self.queued(
            id,
            (*snapshot, policy_id, *policy_hash),
            (adjusts, *run_key),
            by,
        );
        self.may_adjust(&run)?;
        // The ledger would refuse it later; refusing here saves the computation.
        let payer = self.registry.payer(&run).filter(|_| !*dry_run);
        if let Some(payer) = payer.filter(|payer| run.adjusts.as_ref() != Some(payer)) {
            return Err(Box::new(errors::usage_paid(&payer)));
        }
        let entry = Entry {
            run: Arc::new(run),
            progress: Arc::new(Progress::default()),
            request: Trace::current(),
        };
        if memory.second_tries.len() >= SECOND_TRIES_MAX {
            return Err(Box::new(Problem::busy(self.work.retry_after_s())));
        }
        self.has_room()?;
        let others = self.registry.dry_runs(&id.tenant, &id.epoch);
        if *dry_run && others.iter().all(|other| other.run.id() != *id) {
            // Its artifacts are removed with the next sweep, which finds no run that has them.
            let oldest = outdated(&others)?;
            oldest.map_or(Ok(()), |oldest| self.forget(memory, &oldest))?;
        }
        memory.to_settle.remove(id);
        memory.backoffs.remove(id);
        self.save(memory, &entry)?;
        Ok(match self.enqueue(&entry, compute_by) {
            Ok(()) => Admission::Admitted,
            Err(()) => Admission::QueueFull,
        })
    }

    /// A run that is asked for now.
    fn queued(
        &self,
        id: &RunId,
        (snapshot, policy_id, policy_hash): (ContentId, &PolicyId, ContentId),
        (adjusts, run_key): (&Option<EpochId>, ContentId),
        by: &str,
    ) -> Run {
        let dry_run = id.dry_run.is_some();
        let now = Timestamp(self.clock.unix_ms());
        Run {
            tenant: id.tenant.clone(),
            epoch: id.epoch.clone(),
            snapshot,
            policy_id: policy_id.clone(),
            policy_hash,
            adjusts: adjusts.clone(),
            run_key,
            dry_run,
            // Paying the same usage a second time is never automatic.
            settle: self.auto_settle && !dry_run && adjusts.is_none(),
            state: RunState::Queued,
            reason: None,
            commitment: None,
            totals: None,
            assets: Vec::new(),
            accounts: 0,
            intents: 0,
            seqs: SettlementSeqs::default(),
            withdrawal: None,
            asked_by: by.to_owned(),
            release: None,
            created_at: now,
            updated_at: now,
        }
    }

    /// Refuses to correct what was not paid by the same policy.
    fn may_adjust(&self, run: &Run) -> Result<(), Box<Problem>> {
        let Some(epoch) = &run.adjusts else {
            return Ok(());
        };
        let earlier = RunId::live(run.tenant.clone(), epoch.clone());
        let earlier = self.registry.get(&earlier);
        let settled = earlier.filter(|entry| entry.run.state == RunState::Settled);
        let Some(earlier) = settled else {
            return Err(Box::new(errors::not_settled(epoch)));
        };
        if earlier.run.policy_id == run.policy_id {
            return Ok(());
        }
        Err(Box::new(errors::policy_mismatch(format!(
            "epoch {epoch} was paid by policy \"{}\"; correct it by a version of that policy",
            earlier.run.policy_id
        ))))
    }
}
