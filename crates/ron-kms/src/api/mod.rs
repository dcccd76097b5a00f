//! The HTTP API: one file per resource, thin over the work.

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

use crate::work::{Asked, Kms};

/// Time between the end of a wait for a proof and the end of the request.
const PROOF_MARGIN: Duration = Duration::from_millis(250);

/// All routes of the service but those of the audit log and of the chassis.
pub fn router(kms: &Arc<Kms>) -> Router {
    let info = ApiInfo {
        title: "ron-kms",
        version: env!("CARGO_PKG_VERSION"),
        description: "Custody and signing: keys that never leave, versions, rotation, and an audit log that strangers can verify.",
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

/// Turns a request into someone who waits, at most until the sign deadline.
fn asked(kms: &Kms, request: Request, responder: Responder) -> Asked {
    // Some time is left for the answer to leave before the front gives up.
    let last = Deadline::within(request.deadline.remaining().saturating_sub(PROOF_MARGIN));
    Asked {
        proof_until: request
            .prefer_wait()
            .map(|wait| Deadline::within(wait).earlier(last)),
        caller: request.principal,
        responder,
        deadline: request
            .deadline
            .earlier(Deadline::within(kms.settings.sign_deadline)),
        since: kms.clock.now(),
    }
}
