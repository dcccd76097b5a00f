//! The HTTP API: one file per resource. Handlers answer from snapshots or queue a job.

mod feed;
mod forward;
pub mod forwarded;
mod issue;
mod issued;
pub mod judge;
mod oauth;
mod policy;
mod published;
mod refused;
mod revocations;
mod revoke;
mod verify;
mod well_known;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::RevocationView;
use ron_auth::{RonAuthorizer, TokenCache};
use ron_http::{ApiInfo, Peer, Proxies, Request, Router};
use ron_kernel::{SendError, Sender, SharedClock, Snapshot, TokenBuckets};
use ron_proto::Problem;
use ron_proto::passport::IssuerPolicy;

use forwarded::Gateways;

use crate::clients::Clients;
use crate::dpop::Proofs;
use crate::external::keys::FetchedKeys;
use crate::issue::{IssueJob, no_policy};
use crate::keys::KeyKeeper;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::once::Once;
use crate::policy::{Grant, Limits, TokenRequest, decide};
use crate::publish::PublishEvent;
use crate::refused::ClientRefusals;
use crate::revoke::{Revocation, RevokeEvent};
use crate::sync::{InForce, PolicyKeeper};

/// The `aud` of tokens for this service.
pub const SERVICE: &str = "svc-passport";

/// State that the handlers share.
pub struct Api {
    /// `iss`, now and before.
    pub names: Arc<Names>,
    /// Base of published URLs.
    pub public_url: String,
    /// Base of the URLs at which clients present certificates; `None` if they cannot.
    pub certs_at: Option<String>,
    /// `Cache-Control` of key sets and metadata.
    pub cached: String,
    /// The policy in force.
    pub policy: Arc<Snapshot<Option<InForce>>>,
    /// Takes new policies of administrators.
    pub policies: Arc<PolicyKeeper>,
    /// Limits from the configuration.
    pub limits: Arc<Snapshot<Limits>>,
    pub clients: Arc<Snapshot<Clients>>,
    pub refusals: ClientRefusals,
    /// Proxies that name the sender of a request.
    pub proxies: Proxies,
    /// Gateways whose description of a request counts.
    pub gateways: Gateways,
    /// Keys of other issuers that were read from their URLs.
    pub issuer_keys: Arc<Snapshot<FetchedKeys>>,
    /// Issuers whose keys are to be read now.
    pub wanted_keys: Sender<String>,
    /// DPoP proofs of token requests.
    pub proofs: Proofs,
    /// Takes ids that count at all nodes; `None` when there are no others.
    pub once: Option<Arc<Once>>,
    /// Authorizes bearers of passports and service tokens at the OAuth endpoints.
    pub auth: Arc<RonAuthorizer>,
    pub keys: Arc<KeyKeeper>,
    /// Signature checks that each peer may still cause; `None` for no limit.
    pub checks: Option<TokenBuckets>,
    /// Wrong client credentials that each peer may still send, a share of its own: a flood of them leaves the peer its
    /// signature checks.
    pub guesses: Option<TokenBuckets>,
    /// Cache of valid tokens.
    pub judged: TokenCache<judge::VerifiedToken>,
    /// How old the revocations may be by which other nodes issue; `None` when there are no others.
    pub others_max_age: Option<Duration>,
    pub view: Arc<Snapshot<RevocationView>>,
    /// Jobs for the issuers.
    pub issue: Sender<IssueJob>,
    /// Events for the revoker.
    pub revoke: Sender<RevokeEvent>,
    /// Requests for the publisher.
    pub publish: Sender<PublishEvent>,
    pub clock: SharedClock,
    pub metrics: Metrics,
}

pub fn router(api: &Arc<Api>) -> Router {
    Router::new(ApiInfo {
        title: "svc-passport",
        version: env!("CARGO_PKG_VERSION"),
        description: "Short-lived capability tokens, signed by the KMS.",
    })
    .add(issue::route(api))
    .add_all(verify::routes(api))
    .add(forward::route(api))
    .add(revoke::route(api))
    .add(issued::route(api))
    .add(revocations::route(api))
    .add(refused::route(api))
    .add(feed::route(api))
    .add_all(policy::routes(api))
    .add_all(published::routes(api))
    .add_all(oauth::routes(api))
    .add_all(well_known::routes(api))
}

impl Api {
    /// The sender of a request, as the front counts it: behind a listed proxy the client that the proxy names.
    fn sender(&self, request: &Request) -> Peer {
        let (addr, transport) = (request.peer, request.transport);
        self.proxies.client(addr, transport, &request.headers)
    }

    /// The name under which a sender's share is counted.
    fn share_of(&self, request: &Request) -> String {
        self.sender(request).to_string()
    }

    fn now_s(&self) -> u64 {
        self.clock.unix_ms() / 1000
    }

    /// The audiences that client assertions may name.
    fn audiences(&self) -> Vec<String> {
        let names = self.names.accepted(self.now_s());
        let bases = [&*self.public_url].into_iter().chain(names.iter().copied());
        let endpoints = bases.chain(self.certs_at.as_deref());
        let endpoints = endpoints.map(|base| format!("{base}/oauth2/token"));
        let names = names.iter().map(ToString::to_string);
        names.chain(endpoints).collect()
    }

    fn decide(&self, ask: &TokenRequest<'_>) -> Result<Grant, Problem> {
        let limits = self.limits.load();
        self.counted(self.with_policy(|p| decide(p, ask, &limits)))
    }

    /// Runs `ask` with the policy in force; without one nothing is issued.
    fn with_policy<T>(
        &self,
        ask: impl FnOnce(&IssuerPolicy) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let policy = self.policy.load();
        match &*policy {
            Some(in_force) => ask(&in_force.policy),
            None => Err(no_policy()),
        }
    }

    fn counted<T>(&self, outcome: Result<T, Problem>) -> Result<T, Problem> {
        if let Err(problem) = &outcome {
            self.metrics
                .rejects
                .with_label_values(&[problem.code])
                .inc();
        }
        outcome
    }

    /// Takes a signature check from the share of the request's peer. Tokens that were found valid before cost nothing, so a
    /// flood of others does not keep a peer from presenting them.
    fn charge(&self, request: &Request) -> Result<(), Problem> {
        let Some(checks) = &self.checks else {
            return Ok(());
        };
        let taken = checks.take(&self.share_of(request), self.clock.now());
        taken.map_err(|wait| Problem::rate_limited(wait.as_secs() as u32 + 1))
    }

    /// Refuses a client of a peer that has used up its share of wrong credentials.
    fn may_guess(&self, request: &Request) -> Result<(), Problem> {
        let guesses = self.guesses.as_ref();
        let wait =
            guesses.and_then(|guesses| guesses.empty(&self.share_of(request), self.clock.now()));
        match wait {
            None => Ok(()),
            Some(wait) => Err(Problem::rate_limited(wait.as_secs() as u32 + 1)),
        }
    }

    /// Takes a wrong credential from the share of the request's peer.
    fn guessed(&self, request: &Request) {
        if let Some(guesses) = &self.guesses {
            // With nothing left, the peer's next request is refused before its credential is judged.
            let _ = guesses.take(&self.share_of(request), self.clock.now());
        }
    }

    /// Queues the job for the issuers, or answers 429.
    fn enqueue(&self, job: IssueJob) {
        if let Err(SendError::Full(job) | SendError::Closed(job)) = self.issue.try_send(job) {
            self.metrics.rejects.with_label_values(&["busy"]).inc();
            let busy = Problem::busy(self.issue.retry_after_s());
            job.responder.send(match job.form {
                crate::issue::Form::Passport => busy,
                _ => busy.with_oauth("temporarily_unavailable"),
            });
        }
    }

    /// Queues the revocation for the revoker, or answers 429.
    fn send_revocation(&self, revocation: Revocation) {
        if let Err(
            SendError::Full(RevokeEvent::Revoke(revocation))
            | SendError::Closed(RevokeEvent::Revoke(revocation)),
        ) = self.revoke.try_send(RevokeEvent::Revoke(revocation))
        {
            self.metrics.rejects.with_label_values(&["busy"]).inc();
            revocation.answer(Err(Problem::busy(self.revoke.retry_after_s())));
        }
    }
}
