//! The run table as readers see it. Only the scheduler writes; a reader holds the lock for one
//! lookup and gets shared, immutable records.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Bound;
use std::sync::Arc;

use ron_http::{Response, Trace};
use ron_kernel::RankedRwLock;
use ron_proto::rewarder::{EpochRun, PolicyId, RunState};
use ron_proto::values::{ContentId, EpochId, Tenant, Timestamp};

use super::{Progress, Run, RunId};
use crate::errors;
use crate::topology::L_RUNS;

#[derive(Clone, Debug)]
pub struct Entry {
    pub run: Arc<Run>,
    pub progress: Arc<Progress>,
    /// The request that last changed the run; none after a restart.
    pub request: Option<Trace>,
}

impl Entry {
    /// The same run in another state.
    pub(super) fn with(&self, run: Run) -> Self {
        Self {
            run: Arc::new(run),
            progress: Arc::clone(&self.progress),
            // A stage's report comes on a thread that works for no request.
            request: Trace::current().or_else(|| self.request.clone()),
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
            assets: run.assets.clone(),
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
                request: None,
            };
            table.insert(entry.run.id(), entry);
        }
        Self(Arc::new(RankedRwLock::new(&L_RUNS, table)))
    }

    pub fn get(&self, id: &RunId) -> Option<Entry> {
        self.0.read().get(id).cloned()
    }

    /// The run of an epoch: the live one or, while there is none, the newest dry run.
    pub fn current(&self, tenant: &Tenant, epoch: &EpochId) -> Option<Entry> {
        let table = self.0.read();
        let runs = of_epoch(&table, tenant, epoch);
        runs.max_by_key(|entry| precedence(&entry.run)).cloned()
    }

    /// A run of an epoch, live or dry, that is as wanted.
    pub fn find(
        &self,
        tenant: &Tenant,
        epoch: &EpochId,
        wanted: impl Fn(&Run) -> bool,
    ) -> Option<Entry> {
        let table = self.0.read();
        let mut runs = of_epoch(&table, tenant, epoch);
        runs.find(|entry| wanted(&entry.run)).cloned()
    }

    /// The dry runs of an epoch, the newest first.
    pub fn dry_runs(&self, tenant: &Tenant, epoch: &EpochId) -> Vec<Entry> {
        let table = self.0.read();
        let runs = of_epoch(&table, tenant, epoch).filter(|entry| entry.run.dry_run);
        let mut runs: Vec<Entry> = runs.cloned().collect();
        drop(table);
        runs.sort_unstable_by_key(|entry| Reverse(precedence(&entry.run)));
        runs
    }

    /// Up to `limit` epochs of a tenant after `after`, in byte order, each with its
    /// [current](Self::current) run, and whether there are more.
    pub fn page(
        &self,
        tenant: &Tenant,
        after: Option<&EpochId>,
        limit: usize,
    ) -> (Vec<Entry>, bool) {
        let table = self.0.read();
        let from = match after {
            // No run key is greater.
            Some(epoch) => Bound::Excluded(RunId {
                tenant: tenant.clone(),
                epoch: epoch.clone(),
                dry_run: Some(ContentId([0xff; 32])),
            }),
            None => Bound::Unbounded,
        };
        let runs = table.range((from, Bound::Unbounded));
        let runs = runs.filter(|(id, _)| id.tenant == *tenant);
        let mut page: Vec<Entry> = Vec::new();
        for (id, entry) in runs {
            let full = page.len() == limit;
            match page.last_mut() {
                Some(last) if last.run.epoch == id.epoch => {
                    if precedence(&entry.run) > precedence(&last.run) {
                        *last = entry.clone();
                    }
                }
                _ if full => return (page, true),
                _ => page.push(entry.clone()),
            }
        }
        (page, false)
    }

    /// The epoch of another run of the tenant that pays, or is paying, this usage by this policy, or the
    /// same correction.
    pub fn payer(&self, run: &Run) -> Option<EpochId> {
        let corrects_the_same = |other: &Run| run.adjusts.is_some() && other.adjusts == run.adjusts;
        let pays = |other: &Run| {
            let settles = matches!(other.state, RunState::Settling | RunState::Settled);
            settles
                && (&other.tenant, &other.policy_id) == (&run.tenant, &run.policy_id)
                && (other.snapshot == run.snapshot || corrects_the_same(other))
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

    /// Removes a dry run. Only the scheduler calls this.
    pub(super) fn remove(&self, id: &RunId) -> Option<Entry> {
        self.0.write().remove(id)
    }
}

fn of_epoch<'t>(
    table: &'t BTreeMap<RunId, Entry>,
    tenant: &Tenant,
    epoch: &EpochId,
) -> impl Iterator<Item = &'t Entry> {
    // The live run is first among the runs of an epoch.
    let first = RunId::live(tenant.clone(), epoch.clone());
    let of = first.clone();
    let runs = table.range(first..).map(|(_, entry)| entry);
    runs.take_while(move |entry| entry.run.tenant == of.tenant && entry.run.epoch == of.epoch)
}

/// Orders the runs of an epoch: the live one is the greatest, then the newest.
fn precedence(run: &Run) -> (bool, Timestamp, ContentId) {
    (!run.dry_run, run.created_at, run.run_key)
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
            let mut location = format!("/rewarder/epochs/{}", run.epoch);
            if run.dry_run {
                let _ = write!(location, "?dry_run={}", run.run_key);
            }
            Response::json(status, &entry.view(now_ms)).header("Location", location)
        }
    }
}
