//! The HTTP API: one file per resource. Order of checks: framing and limits, identity, body, policy
//! and caveats, replay, readiness and queue. The ledger checks nonce and funds in one atomic step.

mod accounts;
mod assets;
mod balance;
mod batch;
mod budget;
mod events;
mod history;
mod holds;
mod ops;
mod receipt;
mod seen;
mod statement;
mod submit;
mod tx;
mod webhooks;
mod writes;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::{AuthReject, RonAuthorizer, caveats};
use ron_client::ClientError;
use ron_files::DiskRoom;
use ron_http::{ApiInfo, Principal, Request, Router};
use ron_kernel::{Deadline, Sender, SharedClock, Snapshot, Supervisor};
use ron_proto::ledger::{
    Entry, HISTORY_BEHIND, LEDGER_PRINCIPAL, MAX_WIRE_INTEGER, PrincipalName, RequestKey, Viewer,
};
use ron_proto::wallet::{WalletAction, WalletPolicy};
use ron_proto::{Account, Amount, Asset, IdemKey, Problem, ValueError};
use ron_service::lag::FollowerLag;
use ron_service::signed_policy::SignedPolicy;
use serde::de::DeserializeOwned;

pub use holds::HoldFacts;
pub use webhooks::WebhookHandle;

use crate::answers::AnswersReader;
use crate::audit::Audit;
use crate::balances::Balances;
use crate::commit::CommitQueues;
use crate::errors::retry_later;
use crate::events::{EventPoll, Watched};
use crate::inflight::InFlightTable;
use crate::metrics::{LEDGER, Metrics};
use crate::policy::{self, Allowed, PolicyRequest};
use crate::receipts::WaitingReceipt;
use crate::unresolved::UnresolvedKeys;
use crate::upstream::SharedUpstream;

/// Maximum time of one read from the ledger.
const READ_MAX: Duration = Duration::from_secs(1);

/// Maximum entries of one page.
const PAGE: u64 = 500;
/// Entries of a page when the query does not say.
const PAGE_DEFAULT: u64 = 100;

/// State shared by the handlers.
pub struct Api {
    /// The policy in force; replaced by a reload.
    pub policy: Arc<Snapshot<SignedPolicy<WalletPolicy>>>,
    /// Maximum minor units of one operation; a policy rule can only lower it.
    pub per_op_max: Amount,
    /// Maximum minor units per account and UTC day; a policy rule can only lower it.
    pub daily_max: Amount,
    pub queues: CommitQueues,
    /// New writes are refused while the disk has too little room.
    pub room: DiskRoom,
    /// Receipts that wait for a checkpoint.
    pub receipts: Sender<WaitingReceipt>,
    /// Long polls for the events of an account.
    pub event_polls: Sender<EventPoll>,
    /// Accounts that these polls wait for.
    pub watched: Arc<Watched>,
    /// In the order of the configuration.
    pub webhooks: Vec<WebhookHandle>,
    /// Writes that have not been answered.
    pub in_flight: Arc<InFlightTable>,
    /// Keys whose outcome is unknown.
    pub unresolved: Arc<UnresolvedKeys>,
    pub balances: Arc<Balances>,
    /// Cache of the terms of holds.
    pub holds: HoldFacts,
    /// The copy of answers, for replays while the ledger is unavailable.
    pub answers: AnswersReader,
    pub upstream: SharedUpstream,
    /// Counts and logs refusals.
    pub auth: Arc<RonAuthorizer>,
    pub audit: Audit,
    /// How far the feed is behind the ledger.
    pub lag: Arc<FollowerLag>,
    /// Knows whether the service drains.
    pub sup: Supervisor,
    pub clock: SharedClock,
    pub metrics: Metrics,
}

pub fn router(api: &Arc<Api>) -> Router {
    Router::new(ApiInfo {
        title: "svc-wallet",
        version: env!("CARGO_PKG_VERSION"),
        description: "Money for callers who hold a passport: issue, transfer, burn, batches, holds, accounts, \
                      assets, balance, history, events, webhooks, receipts with proofs.",
    })
    .add_all(writes::routes(api))
    .add(batch::route(api))
    .add_all(holds::routes(api))
    .add_all(accounts::routes(api))
    .add_all(assets::routes(api))
    .add(balance::route(api))
    .add_all(history::routes(api))
    .add(statement::route(api))
    .add_all(tx::routes(api))
    .add(receipt::route(api))
    .add_all(ops::routes(api))
    .add(budget::route(api))
    .add(events::route(api))
    .add_all(webhooks::routes(api))
}

impl Api {
    /// Checks the caveats, then the policy; a refusal is counted and logged.
    fn allow(
        &self,
        req: &Request,
        action: WalletAction,
        account: &Account,
        asset: Option<&Asset>,
        amount: Option<Amount>,
    ) -> Result<Allowed, Problem> {
        let ask = PolicyRequest {
            account: Some(account),
            asset,
            amount,
            ..asks(&req.principal, action)
        };
        self.check(req, &ask)
    }

    /// The same for any operation.
    fn check(&self, req: &Request, ask: &PolicyRequest<'_>) -> Result<Allowed, Problem> {
        self.judge(&req.principal, ask)
            .map_err(|(reason, problem)| self.refused(req, reason, problem))
    }

    /// Caveats and policy; a refusal has a reason for the metrics.
    fn judge(
        &self,
        caller: &Principal,
        ask: &PolicyRequest<'_>,
    ) -> Result<Allowed, (&'static str, Problem)> {
        let word = |problem: &Problem| match problem.code {
            "limits_exceeded" => "wallet_limits",
            _ => "wallet_policy",
        };
        caveats::check_operation(&caller.caveats, ask.account, ask.asset, ask.amount)
            .map_err(|reject| (reject.reason(), Problem::from(reject)))?;
        self.policy
            .with(|p| policy::decide(&p.policy, ask, self.per_op_max))
            .map_err(|problem| (word(&problem), problem))
    }

    /// Counts and logs a refusal.
    fn refused(&self, req: &Request, reason: &'static str, problem: Problem) -> Problem {
        self.auth.refused_request(reason, req);
        problem
    }

    fn caveat_refused(&self, req: &Request) -> Problem {
        let reject = AuthReject::Caveat;
        self.refused(req, reject.reason(), Problem::from(reject))
    }

    /// Refuses a sequence beyond the ledger's last entry.
    fn within_head(&self, req: &Request, seq: u64) -> Result<(), Problem> {
        let head = self.upstream.client.head(Api::read_deadline(req));
        let head = head.map_err(|e| self.read_failed(&e, "head"))?;
        if head.is_of_standby() && head.seq < seq {
            let why = format!("no node of the ledger that answers has entry {seq} yet");
            return Err(retry_later(why));
        }
        existing(seq, head.seq)
    }

    /// Checks `min_seq` of a read that the ledger answers from its newest state.
    fn check_min_seq(&self, req: &Request) -> Result<(), Problem> {
        match sequence(req, "min_seq")? {
            None | Some(0) => Ok(()),
            Some(seq) => self.within_head(req, seq),
        }
    }

    fn read_deadline(req: &Request) -> Deadline {
        req.deadline.capped(READ_MAX)
    }

    /// Maps a failed read: 404 and 400 of the ledger keep their meaning, everything else becomes 503. A
    /// history that is behind is no failure of the ledger.
    fn read_failed(&self, error: &ClientError, what: &str) -> Problem {
        match error {
            ClientError::Refused { status: 404, .. } => {
                return Problem::not_found(format!("there is no such {what}"));
            }
            // What is wrong with the query, in the ledger's words.
            ClientError::Refused {
                status: 400,
                problem,
                ..
            } => return Problem::bad_request(problem.detail.clone()),
            _ => {}
        }
        let calls = &self.metrics.upstream;
        let counted = |outcome| calls.with_label_values(&[LEDGER, "read", outcome]).inc();
        if let ClientError::Refused { problem, .. } = error
            && problem.code == HISTORY_BEHIND
        {
            counted("behind");
            return Problem::unavailable(problem.detail.clone(), 1);
        }
        counted("failed");
        self.metrics
            .ledger_failed("read", matches!(error, ClientError::Unknown { .. }));
        Problem::unavailable("the ledger cannot be read now", 2)
    }
}

/// The caller, as rules see it.
fn rules_caller(principal: &Principal) -> policy::Caller<'_> {
    policy::Caller {
        tenant: &principal.tenant,
        principal: &principal.name,
        client: principal.client.as_deref(),
    }
}

/// A caller's action on all accounts and assets, before it is narrowed.
fn asks(principal: &Principal, action: WalletAction) -> PolicyRequest<'_> {
    PolicyRequest::to(rules_caller(principal), action)
}

/// Whether the caller made the entry.
fn is_own(principal: &Principal, entry: &Entry) -> bool {
    entry.request_key().is_some_and(|owned| {
        owned.tenant == principal.tenant && owned.principal.as_str() == principal.name
    })
}

/// The caller, as searches of the ledger see it.
fn viewer(caller: &Principal) -> Result<Viewer, Problem> {
    Ok(Viewer {
        tenant: caller.tenant.clone(),
        principal: ledger_principal(caller)?,
    })
}

/// A parameter of the path.
fn param<T: FromStr<Err = ValueError>>(req: &Request, name: &str) -> Result<T, Problem> {
    req.param(name)
        .parse()
        .map_err(|e: ValueError| Problem::bad_request(e.to_string()))
}

/// The body of a request that may have none.
fn body_or_default<T: DeserializeOwned + Default>(req: &Request) -> Result<T, Problem> {
    if req.body.is_empty() {
        return Ok(T::default());
    }
    req.json()
}

/// Refuses a sequence beyond the ledger's last entry.
fn existing(seq: u64, head: u64) -> Result<(), Problem> {
    if seq <= head {
        return Ok(());
    }
    Err(Problem::bad_request(format!(
        "the ledger has no entry {seq} yet; its last is {head}"
    )))
}

/// A sequence of the ledger in the query.
fn sequence(req: &Request, name: &str) -> Result<Option<u64>, Problem> {
    let seq = req.query_as::<u64>(name)?;
    if seq.is_some_and(|seq| seq > MAX_WIRE_INTEGER) {
        return Err(Problem::bad_request(format!("{name} is below 2^53")));
    }
    Ok(seq)
}

/// Maximum entries of a page, from the query.
fn page_limit(req: &Request) -> Result<u64, Problem> {
    let limit = req.query_as::<u64>("limit")?.unwrap_or(PAGE_DEFAULT);
    if (1..=PAGE).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::bad_request(format!("limit is 1 to {PAGE}")))
}

fn ledger_principal(caller: &Principal) -> Result<PrincipalName, Problem> {
    caller.name.parse().map_err(|_| {
        Problem::forbidden(
            "the token's subject is longer than the 160 characters a ledger principal may have",
        )
    })
}

/// The caller's key as the ledger stores it.
fn request_key(caller: &Principal, key: &IdemKey) -> Result<RequestKey, Problem> {
    // The ledger refuses a whole commit for one such entry, and with it the entries of others.
    if caller.name == LEDGER_PRINCIPAL {
        return Err(Problem::forbidden(
            "the token's subject is reserved for entries that the ledger makes itself",
        ));
    }
    let principal = ledger_principal(caller)?;
    let key = key
        .to_string()
        .parse()
        .map_err(|_| Problem::bad_request("the idempotency key is not usable"))?;
    Ok(RequestKey {
        tenant: caller.tenant.clone(),
        principal,
        key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_ledger_is_forbidden() {
        let key: IdemKey = "0123456789abcdef".parse().unwrap();
        let mut caller = Principal::public();
        assert!(request_key(&caller, &key).is_ok());
        caller.name = LEDGER_PRINCIPAL.to_owned();
        let refused = request_key(&caller, &key).unwrap_err();
        assert_eq!((refused.status, refused.code), (403, "forbidden"));
    }
}
