//! The HTTP API: one file per resource. Handlers parse the request and submit a job to [`crate::work`].

pub mod attest;
pub mod envelope;
pub mod envelope_batch;
pub mod keys;
pub mod lifecycle;
pub mod log_key;
pub mod sign;
pub mod transfer;
pub mod transit;
pub mod verify;
pub mod verify_raw;

use std::sync::Arc;
use std::time::Duration;

use ron_http::{ApiInfo, Request, Responder, Router};
use ron_kernel::Deadline;

use crate::work::{CallContext, Kms};

/// How long before the request's deadline a wait for a proof ends, so that the answer can still be sent.
const PROOF_MARGIN: Duration = Duration::from_millis(250);

/// All routes of the service except those of the audit log and of the chassis.
pub fn router(kms: &Arc<Kms>) -> Router {
    let info = ApiInfo {
        title: "ron-kms",
        version: env!("CARGO_PKG_VERSION"),
        description: "Custody and signing: keys that never leave, versions, rotation, and an audit log that third parties can verify.",
    };
    Router::new(info)
        .add_all(keys::routes(kms))
        .add_all(lifecycle::routes(kms))
        .add_all(transfer::routes(kms))
        .add_all(attest::routes(kms))
        .add(log_key::route(kms))
        .add_all(sign::routes(kms))
        .add_all(verify::routes(kms))
        .add_all(verify_raw::routes(kms))
        .add_all(envelope::routes(kms))
        .add_all(envelope_batch::routes(kms))
        .add_all(transit::routes(kms))
}

/// The context of a request; its deadline is at most `sign_deadline` away.
fn call_context(kms: &Kms, request: Request, responder: Responder) -> CallContext {
    // Leaves the HTTP front time to send the answer before it gives up on the request.
    let last = Deadline::within(request.deadline.remaining().saturating_sub(PROOF_MARGIN));
    CallContext {
        proof_until: request
            .prefer_wait()
            .map(|wait| Deadline::within(wait).earlier(last)),
        caller: request.principal,
        responder,
        deadline: request
            .deadline
            .earlier(Deadline::within(kms.settings.keys.sign_deadline)),
        since: kms.clock.now(),
    }
}
