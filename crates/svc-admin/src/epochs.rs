//! Reads the reward epochs of every rewarder of the fleet in the background, so that page requests
//! wait for no rewarder.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, SharedClock, Snapshot, ThreadCtx};
use ron_proto::Asset;
use ron_proto::Timestamp;
use ron_proto::admin::{EpochAsset, EpochList, EpochSource, EpochView};
use ron_proto::rewarder::{self, EpochRun, RunTotals};

use crate::actions::bearer;
use crate::fleet::Fleet;
use crate::node::Node;

/// Time between two rounds.
const PACE: Duration = Duration::from_secs(10);
/// Timeout for one page.
const READ: Duration = Duration::from_secs(2);
/// Maximum pages read from one rewarder.
const PAGES_MAX: usize = 5;
/// Name of the service whose epochs are read.
const REWARDER: &str = "svc-rewarder";

pub type Epochs = Snapshot<EpochList>;

/// The reader of the adm-epochs thread.
#[derive(Debug)]
pub struct EpochWatch {
    pub client: Arc<HttpClient>,
    pub clock: SharedClock,
}

impl EpochWatch {
    /// The body of the thread. The first round starts after a moment, when the samplers have
    /// identified the rewarders.
    pub fn run(&self, fleet: &Fleet, epochs: &Epochs, ctx: &ThreadCtx) {
        let mut wait = Duration::from_secs(2);
        while !ctx.shutdown.wait(Deadline::within(wait)) {
            self.tick(fleet, epochs);
            wait = PACE;
        }
    }

    /// One round. A rewarder that cannot be read keeps its previous epochs, with the problem beside
    /// them.
    pub fn tick(&self, fleet: &Fleet, epochs: &Epochs) {
        let before = epochs.load();
        let mut sources = Vec::new();
        let mut all = Vec::new();
        let roster = fleet.roster();
        for node in &roster.nodes {
            let known = node.view().status.service.as_deref() == Some(REWARDER);
            let (true, Some(api)) = (known, &node.spec.api_url) else {
                continue;
            };
            let id = node.spec.id.clone();
            let last = before.sources.iter().find(|source| source.node == id);
            match self.read(node, api) {
                Ok((runs, truncated)) => {
                    all.extend(runs.iter().map(|run| view(&id, run)));
                    sources.push(EpochSource {
                        node: id,
                        read_at: Some(Timestamp(self.clock.unix_ms())),
                        problem: None,
                        truncated,
                    });
                }
                Err(problem) => {
                    // The last epochs stay visible; `read_at` and `problem` show that they are old.
                    all.extend(before.epochs.iter().filter(|e| e.node == id).cloned());
                    sources.push(EpochSource {
                        node: id,
                        read_at: last.and_then(|source| source.read_at),
                        problem: Some(problem),
                        truncated: last.is_some_and(|source| source.truncated),
                    });
                }
            }
        }
        all.sort_by(|a, b| {
            (attention(&b.run_state), b.updated_at).cmp(&(attention(&a.run_state), a.updated_at))
        });
        epochs.store(EpochList {
            as_of: Timestamp(self.clock.unix_ms()),
            sources,
            epochs: all,
        });
    }

    fn read(&self, node: &Node, api: &str) -> Result<(Vec<EpochRun>, bool), String> {
        let credential = node.spec.credential.as_deref();
        let path = credential.ok_or("no credential_file is configured for this node")?;
        let bearer = bearer(path)?;
        let headers = [("authorization", bearer.as_str())];
        let mut runs = Vec::new();
        let mut after = String::new();
        for _ in 0..PAGES_MAX {
            let url = format!("{api}/rewarder/epochs{after}");
            let call = Call::get(&url, Deadline::within(READ)).headers(&headers);
            let reply = self.client.call(call).map_err(|error| error.detail)?;
            if !reply.is_success() {
                return Err(format!("answered {}", reply.status));
            }
            let page: rewarder::EpochList = reply.json().map_err(|error| error.detail)?;
            runs.extend(page.epochs);
            match page.next {
                Some(next) => after = format!("?after={next}"),
                None => return Ok((runs, false)),
            }
        }
        Ok((runs, true))
    }
}

/// Sort order: epochs that need an operator first, epochs under way next.
fn attention(state: &str) -> u8 {
    match state {
        "quarantined" | "failed" => 3,
        "held" | "review" => 2,
        "settled" => 0,
        _ => 1,
    }
}

fn view(node: &str, run: &EpochRun) -> EpochView {
    EpochView {
        node: node.to_owned(),
        tenant: run.tenant.to_string(),
        epoch: run.epoch_id.to_string(),
        run_state: run.state.as_str().to_owned(),
        reason_code: run.reason.as_ref().map(|reason| reason.code.clone()),
        reason: run.reason.as_ref().map(|reason| reason.detail.clone()),
        dry_run: run.dry_run,
        policy: run.policy_id.to_string(),
        assets: assets(run),
        rows_total: run.progress.rows_total,
        shares_computed: run.progress.shares_computed,
        intents_total: run.progress.intents_total,
        intents_settled: run.progress.intents_settled,
        eta_ms: run.progress.eta_ms,
        attempts: run.attempts,
        commitment: run.commitment.map(|id| id.to_string()),
        created_at: run.created_at,
        updated_at: run.updated_at,
    }
}

fn assets(run: &EpochRun) -> Vec<EpochAsset> {
    let sums = |asset: Option<&Asset>, totals: &RunTotals| EpochAsset {
        asset: asset.map(Asset::to_string),
        pool_minor: totals.pool_minor.to_string(),
        payout_minor: totals.payout_minor.to_string(),
        residual_minor: totals.residual_minor.to_string(),
        recipients: totals.recipients,
    };
    if run.assets.is_empty() {
        let totals = run.totals.as_ref();
        return totals
            .map(|totals| sums(None, totals))
            .into_iter()
            .collect();
    }
    let all = run.assets.iter();
    all.map(|of| sums(Some(&of.asset), &of.totals)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_that_need_an_operator_come_first() {
        let mut states = ["settled", "settling", "held", "failed", "queued"];
        states.sort_by_key(|state| std::cmp::Reverse(attention(state)));
        assert_eq!(states, ["failed", "held", "settling", "queued", "settled"]);
    }
}
