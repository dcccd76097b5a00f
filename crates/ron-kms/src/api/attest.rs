//! `POST /keys/.../attest`.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::kms::{AttestAnswer, AttestRequest};
use ron_proto::scope;

use super::{call_context, keys};
use crate::audit::entry::ReplyBody;
use crate::work::attest::AttestTask;
use crate::work::operation::{json, one};
use crate::work::{Kms, SignJob};

/// The route of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 1] {
    let kms = kms.clone();
    [Route::new(
        Method::POST,
        "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/attest",
        Need::Scope(scope::KMS_READ),
        move |request, responder| attest(&kms, request, responder),
    )
    .summary("Attest where a version of the key is held: a statement signed with the key of the audit log, and for a key in a TPM its certificate and a quote")
    .body::<AttestRequest>()
    .returns::<AttestAnswer>(200)
    .errors(&[400, 401, 403, 404, 409, 413, 415, 429, 500, 503, 504])]
}

fn attest(kms: &Kms, request: Request, responder: Responder) {
    match keys::kid(&request).and_then(|kid| Ok((kid, request.json::<AttestRequest>()?))) {
        Ok((key, body)) => {
            let task = AttestTask { key, request: body };
            let call = call_context(kms, request, responder);
            let what = one(task, |answer| {
                ReplyBody::Now(json(answer.map(AttestAnswer::from)))
            });
            kms.submit_sign(SignJob { call, what });
        }
        Err(problem) => responder.send(problem),
    }
}
