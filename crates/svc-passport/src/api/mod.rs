//! The HTTP API: one file per resource; each turns a request into a job or an answer.

mod feed;
mod issue;
mod oauth;
mod revoke;
mod verify;
mod well_known;

use std::sync::Arc;

use ron_auth::revocation::RevocationView;
use ron_http::{ApiInfo, Router};
use ron_kernel::{Sender, SharedClock, Snapshot};
use ron_proto::Problem;
use ron_proto::passport::IssuerPolicy;

use crate::clients::Clients;
use crate::issue::IssueJob;
use crate::issue::keys::KeyKeeper;
use crate::metrics::Metrics;
use crate::policy::{self, Ask, Grant};
use crate::revoke::RevokeEvent;

/// What the handlers share.
pub struct Api {
    /// `iss`.
    pub issuer_url: String,
    /// Base of published URLs.
    pub public_url: String,
    /// The policy in force.
    pub policy: Arc<Snapshot<IssuerPolicy>>,
    /// Lifetime where none is asked for, in seconds.
    pub ttl_s_default: u64,
    /// OAuth clients.
    pub clients: Arc<Snapshot<Clients>>,
    /// Signing keys.
    pub keys: Arc<KeyKeeper>,
    /// Revocations.
    pub view: Arc<Snapshot<RevocationView>>,
    /// To the issuers.
    pub issue: Sender<IssueJob>,
    /// To the revoker.
    pub revoke: Sender<RevokeEvent>,
    /// Clock.
    pub clock: SharedClock,
    /// Metrics.
    pub metrics: Metrics,
}

/// All routes.
pub fn router(api: &Arc<Api>) -> Router {
    Router::new(ApiInfo {
        title: "svc-passport",
        version: env!("CARGO_PKG_VERSION"),
        description: "Short-lived capability tokens, signed by the KMS.",
    })
    .add(issue::route(api))
    .add_all(verify::routes(api))
    .add(revoke::route(api))
    .add(feed::route(api))
    .add(oauth::route(api))
    .add_all(well_known::routes(api))
}

impl Api {
    fn decide(&self, ask: &Ask<'_>) -> Result<Grant, Problem> {
        let decided = self
            .policy
            .with(|p| policy::decide(p, ask, self.ttl_s_default));
        if let Err(problem) = &decided {
            self.metrics
                .rejects
                .with_label_values(&[problem.code])
                .inc();
        }
        decided
    }

    /// Gives the job to the issuers, or answers 429.
    fn enqueue(&self, job: IssueJob) {
        if let Err(ron_kernel::SendError::Full(job) | ron_kernel::SendError::Closed(job)) =
            self.issue.try_send(job)
        {
            self.metrics.rejects.with_label_values(&["busy"]).inc();
            job.responder
                .send(Problem::busy(self.issue.retry_after_s()));
        }
    }
}
