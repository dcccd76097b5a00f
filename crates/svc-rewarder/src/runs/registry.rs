//! The run table as readers see it. Only the scheduler writes; a reader holds the lock for one
//! lookup and gets shared, immutable records.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ron_http::Response;
use ron_kernel::RankedRwLock;
use ron_proto::rewarder::{EpochRun, PolicyId, RunState};
use ron_proto::values::{EpochId, Tenant};

use super::{Progress, Run, RunId};
use crate::errors;
use crate::topology::L_RUNS;

#[derive(Clone, Debug)]
pub struct Entry {
    pub run: Arc<Run>,
    pub progress: Arc<Progress>,
}

impl Entry {
    /// The same run in another state.
    pub(super) fn with(&self, run: Run) -> Self {
        Self {
            run: Arc::new(run),
            progress: Arc::clone(&self.progress),
        }
    }

    /// The run as the API shows it.
    pub fn view(&self, now_ms: u64) -> EpochRun {
        let run = &*self.run;
        EpochRun {
            tenant: run.tenant.clone(),
            epoch_id: run.epoch.clone(),
            state: run.state,
            reason: run.reason.clone(),
            dry_run: run.dry_run,
            settles: run.settle,
            snapshot: run.snapshot,
            policy_id: run.policy_id.clone(),
            policy_hash: run.policy_hash,
            adjusts: run.adjusts.clone(),
            run_key: run.run_key,
            commitment: run.commitment,
            totals: run.totals,
            progress: self.progress.view(now_ms),
            settlement: run.seqs,
            withdrawal: run.withdrawal.clone(),
            asked_by: run.asked_by.clone(),
            release: run.release.clone(),
            attempts: self.progress.attempts(),
            created_at: run.created_at,
            updated_at: run.updated_at,
        }
    }
}

/// The table; clones share it.
#[derive(Clone, Debug)]
pub struct Registry(Arc<RankedRwLock<BTreeMap<RunId, Entry>>>);

impl Registry {
    /// A table of the runs that the database holds.
    pub fn new(runs: Vec<Run>) -> Self {
        let mut table = BTreeMap::new();
        for run in runs {
            let progress = Progress::default();
            if run.commitment.is_some() {
                progress.computed(run.accounts);
                progress.sealed(run.intents);
            }
            if run.state == RunState::Settled {
                progress.settled_to(run.intents);
            }
            let entry = Entry {
                run: Arc::new(run),
                progress: Arc::new(progress),
            };
            table.insert(entry.run.id(), entry);
        }
        Self(Arc::new(RankedRwLock::new(&L_RUNS, table)))
    }

    pub fn get(&self, id: &RunId) -> Option<Entry> {
        self.0.read().get(id).cloned()
    }

    /// Up to `limit` runs of a tenant after `after`, in byte order of their epochs, and whether
    /// there are more.
    pub fn page(
        &self,
        tenant: &Tenant,
        after: Option<&EpochId>,
        limit: usize,
    ) -> (Vec<Entry>, bool) {
        let table = self.0.read();
        let from = match after {
            Some(epoch) => Bound::Excluded((tenant.clone(), epoch.clone())),
            None => Bound::Unbounded,
        };
        let mut page: Vec<Entry> = table
            .range((from, Bound::Unbounded))
            .filter(|((of, _), _)| of == tenant)
            .take(limit + 1)
            .map(|(_, entry)| entry.clone())
            .collect();
        let more = page.len() > limit;
        page.truncate(limit);
        (page, more)
    }

    /// The epoch of another run of the tenant that pays, or is paying, this usage by this policy.
    pub fn payer(&self, run: &Run) -> Option<EpochId> {
        let pays = |other: &Run| {
            let settles = matches!(other.state, RunState::Settling | RunState::Settled);
            settles
                && (&other.tenant, &other.policy_id) == (&run.tenant, &run.policy_id)
                && other.snapshot == run.snapshot
                && other.epoch != run.epoch
        };
        let table = self.0.read();
        let mut payers: Vec<&Run> = table
            .values()
            .map(|entry| &*entry.run)
            .filter(|other| pays(other))
            .collect();
        // A correction must name the latest payment, so that epoch is returned.
        payers.sort_unstable_by_key(|payer| payer.seqs.open_seq);
        payers.last().map(|payer| payer.epoch.clone())
    }

    /// The run that this tenant last settled by this policy, without corrections.
    pub fn last_settled(&self, tenant: &Tenant, policy: &PolicyId) -> Option<Arc<Run>> {
        let table = self.0.read();
        let settled = table.values().map(|entry| &entry.run).filter(|run| {
            run.state == RunState::Settled
                && (&run.tenant, &run.policy_id) == (tenant, policy)
                && run.adjusts.is_none()
        });
        settled.max_by_key(|run| run.seqs.open_seq).cloned()
    }

    pub fn all(&self) -> Vec<Entry> {
        self.0.read().values().cloned().collect()
    }

    /// Inserts a run; returns the one that it replaces. Only the scheduler calls this.
    pub(super) fn put(&self, entry: Entry) -> Option<Entry> {
        self.0.write().insert(entry.run.id(), entry)
    }
}

/// The response for a run: 200 when it is at rest, 202 while it is under way, and a problem for a
/// run that failed or is quarantined.
pub fn answer(entry: &Entry, now_ms: u64) -> Response {
    let run = &*entry.run;
    match run.state {
        RunState::Quarantined => errors::quarantined(run.reason.as_ref()).into(),
        RunState::Failed => errors::failed(run.reason.as_ref()).into(),
        _ => {
            let status = if run.at_rest() { 200 } else { 202 };
            Response::json(status, &entry.view(now_ms))
                .header("Location", format!("/rewarder/epochs/{}", run.epoch))
        }
    }
}
