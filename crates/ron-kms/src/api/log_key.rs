//! `/log_key/rotate`: a new signing key for the audit log itself.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::kms::{RotateLogKey, RotateLogKeyAnswer};
use ron_proto::scope;

use super::call_context;
use crate::work::{Kms, StoreJob};

/// The route of this file.
pub fn route(kms: &Arc<Kms>) -> Route {
    let kms = kms.clone();
    Route::new(
        Method::POST,
        "/v1/kms/log_key/rotate",
        Need::Scope(scope::KMS_ADMIN),
        move |request, responder| rotate(&kms, request, responder),
    )
    .summary("Make a new signing key of the audit log, cross-signed with the present one; for a service token of tenant ron, never for a passport; idempotent by op_id for 24 hours")
    .body::<RotateLogKey>()
    .returns::<RotateLogKeyAnswer>(200)
    .errors(&[400, 401, 403, 409, 413, 415, 422, 429, 500, 503, 504])
}

fn rotate(kms: &Kms, request: Request, responder: Responder) {
    match request.json::<RotateLogKey>() {
        Ok(body) => kms.submit_store(StoreJob::RotateLogKey(
            call_context(kms, request, responder),
            body,
        )),
        Err(problem) => responder.send(problem),
    }
}
