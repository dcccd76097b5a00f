//! The HTTP API: one file per resource. Order of checks: framing and limits, identity, body, policy
//! and caveats, queue; nonce, funds and replay are the ledger's, in one atomic step.

mod balance;
mod ops;
mod tx;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::caveats;
use ron_client::{ClientError, LedgerClient};
use ron_http::{ApiInfo, Principal, Request, Router};
use ron_kernel::{Deadline, SharedClock, Snapshot};
use ron_proto::ledger::Entry;
use ron_proto::wallet::{WalletAction, WalletPolicy};
use ron_proto::{Account, Amount, Asset, Problem};

use crate::commit::{Lanes, Pinned};
use crate::metrics::Metrics;
use crate::policy::{self, Allowed, Ask};

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
    /// Keys whose outcome is unknown.
    pub pinned: Arc<Pinned>,
    /// The ledger.
    pub ledger: Arc<LedgerClient>,
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
        description: "Issue, transfer, burn and balance for callers who hold a passport.",
    })
    .add_all(writes::routes(api))
    .add(balance::route(api))
    .add_all(tx::routes(api))
    .add(ops::route(api))
}

impl Api {
    /// Caveats first, then the policy.
    fn allow(
        &self,
        principal: &Principal,
        action: WalletAction,
        account: &Account,
        asset: Option<&Asset>,
        amount: Option<Amount>,
    ) -> Result<Allowed, Problem> {
        let decided = caveats::check_operation(&principal.caveats, Some(account), asset, amount)
            .map_err(Problem::from)
            .and_then(|()| {
                let ask = Ask {
                    principal: &principal.name,
                    action,
                    account,
                    asset,
                    amount,
                };
                self.policy
                    .with(|p| policy::decide(p, &ask, self.per_op_max))
            });
        if let Err(problem) = &decided {
            self.metrics
                .rejects
                .with_label_values(&[problem.code])
                .inc();
        }
        decided
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
        own || accounts(entry)
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
                Problem::unavailable("the ledger cannot be read now", 2)
            }
        }
    }
}

fn accounts(entry: &Entry) -> [Option<&Account>; 2] {
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
