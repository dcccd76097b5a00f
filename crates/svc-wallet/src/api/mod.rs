//! The HTTP API: one file per resource. Order of checks: framing and limits, identity, body, policy
//! and caveats, replay, readiness and queue; nonce and funds are the ledger's, in one atomic step.

mod accounts;
mod balance;
mod batch;
mod holds;
mod ops;
mod submit;
mod tx;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::{RonAuthorizer, caveats};
use ron_client::ClientError;
use ron_http::{ApiInfo, Peer, Principal, PrincipalKind, Request, Router};
use ron_kernel::{Deadline, SharedClock, Snapshot, Supervisor};
use ron_proto::ledger::Entry;
use ron_proto::wallet::{WalletAction, WalletPolicy};
use ron_proto::{Account, Amount, Asset, Problem};

pub use holds::HoldFacts;

use crate::answers::AnswersReader;
use crate::audit::Audit;
use crate::balances::Balances;
use crate::commit::Lanes;
use crate::flights::Flights;
use crate::metrics::Metrics;
use crate::pins::Pinned;
use crate::policy::{self, Allowed, Ask};
use crate::upstream::SharedUpstream;

/// Longest time for one read from the ledger.
const READ_MAX: Duration = Duration::from_secs(1);

/// What the handlers share.
pub struct Api {
    /// The policy in force.
    pub policy: Arc<Snapshot<WalletPolicy>>,
    /// Most minor units of one operation, whatever a rule says.
    pub per_op_max: Amount,
    /// Most minor units per account and UTC day, whatever a rule says.
    pub daily_max: Amount,
    /// The committers' queues.
    pub lanes: Lanes,
    /// Writes under way.
    pub flights: Arc<Flights>,
    /// Keys whose outcome is unknown.
    pub pinned: Arc<Pinned>,
    /// Balances as last told.
    pub balances: Arc<Balances>,
    /// What holds are on.
    pub holds: HoldFacts,
    /// The copy of answers.
    pub answers: AnswersReader,
    /// The ledger.
    pub upstream: SharedUpstream,
    /// Counts and logs refusals.
    pub auth: Arc<RonAuthorizer>,
    /// The audit stream.
    pub audit: Audit,
    /// Tells when the service drains.
    pub sup: Supervisor,
    /// Monotonic clock.
    pub clock: SharedClock,
    /// Metrics.
    pub metrics: Metrics,
}

/// All routes.
pub fn router(api: &Arc<Api>) -> Router {
    Router::new(ApiInfo {
        title: "svc-wallet",
        version: env!("CARGO_PKG_VERSION"),
        description: "Money for callers who hold a passport: issue, transfer, burn, batches, holds, freeze, \
                      balance, history, receipts with proofs.",
    })
    .add_all(writes::routes(api))
    .add(batch::route(api))
    .add_all(holds::routes(api))
    .add_all(accounts::routes(api))
    .add(balance::route(api))
    .add_all(tx::routes(api))
    .add(ops::route(api))
}

impl Api {
    /// Caveats first, then the policy; a refusal is counted and logged.
    fn allow(
        &self,
        req: &Request,
        action: WalletAction,
        account: &Account,
        asset: Option<&Asset>,
        amount: Option<Amount>,
    ) -> Result<Allowed, Problem> {
        let principal = &req.principal;
        let ask = Ask {
            principal: &principal.name,
            action,
            account,
            asset,
            amount,
        };
        let word = |problem: &Problem| match problem.code {
            "limits_exceeded" => "wallet_limits",
            _ => "wallet_policy",
        };
        caveats::check_operation(&principal.caveats, Some(account), asset, amount)
            .map_err(|reject| (reject.reason(), Problem::from(reject)))
            .and_then(|()| {
                self.policy
                    .with(|p| policy::decide(p, &ask, self.per_op_max))
                    .map_err(|problem| (word(&problem), problem))
            })
            .map_err(|(reason, problem)| {
                // A service is named in the configuration; the name in a passport is its client's choice.
                let service = principal.kind == PrincipalKind::Service;
                let client = service.then_some(principal.name.as_str());
                let peer = Peer::of(req.peer, req.transport);
                self.auth.refused(reason, peer, &req.request_id, client);
                problem
            })
    }

    fn may_read(&self, principal: &Principal, account: &Account) -> bool {
        let ask = Ask {
            principal: &principal.name,
            action: WalletAction::Read,
            account,
            asset: None,
            amount: None,
        };
        self.policy
            .with(|p| policy::decide(p, &ask, self.per_op_max))
            .is_ok()
    }

    /// May the caller see an entry: its own, or one that touches an account it may read.
    fn may_see(&self, principal: &Principal, entry: &Entry) -> bool {
        let own = entry
            .principal_key()
            .is_some_and(|(name, _)| name.as_str() == principal.name);
        own || accounts_of(entry)
            .into_iter()
            .flatten()
            .any(|a| self.may_read(principal, a))
    }

    fn read_deadline(req: &Request) -> Deadline {
        req.deadline.capped(READ_MAX)
    }

    /// A failed read: what the ledger refused keeps its meaning, everything else is 503.
    fn read_failed(&self, error: &ClientError, what: &str) -> Problem {
        match error {
            ClientError::Refused { status: 404, .. } => {
                Problem::not_found(format!("there is no such {what}"))
            }
            ClientError::Refused { status: 409, .. } => {
                Problem::unavailable(format!("the {what} is not ready yet; ask again"), 1)
            }
            _ => {
                self.metrics
                    .upstream
                    .with_label_values(&["ron-ledger", "read", "failed"])
                    .inc();
                self.metrics
                    .ledger_failed("read", matches!(error, ClientError::Unknown { .. }));
                Problem::unavailable("the ledger cannot be read now", 2)
            }
        }
    }
}

fn accounts_of(entry: &Entry) -> [Option<&Account>; 2] {
    match entry {
        Entry::Issue { to, .. } | Entry::Capture { to, .. } | Entry::Payout { to, .. } => {
            [None, Some(to)]
        }
        Entry::Transfer { from, to, .. } => [Some(from), Some(to)],
        Entry::Burn { from, .. } | Entry::Hold { from, .. } | Entry::EpochOpen { from, .. } => {
            [Some(from), None]
        }
        Entry::Freeze { account, .. } | Entry::Unfreeze { account, .. } => [Some(account), None],
        Entry::Release { .. }
        | Entry::Expire { .. }
        | Entry::EpochClose { .. }
        | Entry::Abandon { .. } => [None, None],
    }
}
