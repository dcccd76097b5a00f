//! The HTTP API: one file per resource, thin over the work.

pub mod keys;
pub mod sign;
pub mod verify;

use std::sync::Arc;

use ron_http::{ApiInfo, Request, Responder, Router};
use ron_kernel::Deadline;

use crate::work::{Asked, Kms};

/// All routes of the service but those of the audit log and of the chassis.
pub fn router(kms: &Arc<Kms>) -> Router {
    let info = ApiInfo {
        title: "ron-kms",
        version: env!("CARGO_PKG_VERSION"),
        description: "Custody and signing: keys that never leave, versions, rotation, and an audit log that strangers can verify.",
    };
    Router::new(info)
        .add_all(keys::routes(kms))
        .add_all(sign::routes(kms))
        .add_all(verify::routes(kms))
}

/// Turns a request into someone who waits, at most until the sign deadline.
fn asked(kms: &Kms, request: Request, responder: Responder) -> Asked {
    Asked {
        caller: request.principal,
        responder,
        deadline: request
            .deadline
            .earlier(Deadline::within(kms.settings.sign_deadline)),
        since: kms.clock.now(),
    }
}
