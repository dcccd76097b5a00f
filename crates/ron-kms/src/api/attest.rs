//! `POST /keys/.../attest`.

use std::sync::Arc;

use ron_http::{Method, Response, Route};
use ron_proto::kms::{AttestAnswer, AttestRequest};
use ron_proto::scope;

use super::{Action, key_ref, look_up, route};
use crate::work::Kms;
use crate::work::attest::AttestTask;
use crate::work::operation::one;

const ATTEST: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/attest";

/// The route of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 1] {
    [route(kms, (Method::POST, ATTEST), scope::KMS_READ, |kms, request| {
        let (key, body) = (key_ref(request)?.into(), request.json::<AttestRequest>()?);
        let mut task = AttestTask { key, request: body };
        look_up(kms, &request.principal, &mut task);
        Ok(Action::Work(one(task, |answer| {
            Ok(Response::json(200, &AttestAnswer::from(answer?)))
        })))
    })
    .summary("Attest where a version of the key is held: a statement signed with the key of the audit log, and for a key in a TPM its certificate and a quote")
    .body::<AttestRequest>()
    .returns::<AttestAnswer>(200)
    .errors(&[400, 401, 403, 404, 409, 413, 415, 429, 500, 503, 504])]
}
