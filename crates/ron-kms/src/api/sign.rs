//! `POST /sign` and `POST /sign_batch`.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::kms::{BATCH_ITEMS_MAX, SignAnswer, SignBatch, SignBatchAnswer, SignRequest};
use ron_proto::problem::Problem;
use ron_proto::scope;

use super::call_context;
use crate::work::task::SignTask;
use crate::work::{Kms, SignJob, SignOp};

const ERRORS: &[u16] = &[400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503, 504];

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 2] {
    let need = Need::Scope(scope::KMS_SIGN);
    let (one, many) = (kms.clone(), kms.clone());
    [
        Route::new(
            Method::POST,
            "/v1/kms/sign",
            need,
            move |request, responder| {
                sign(&one, request, responder);
            },
        )
        .summary("Sign a message or a digest; the answer leaves once its audit leaf is durable. With Prefer: wait=N it waits up to N seconds (and no longer than request_deadline) for a checkpoint and carries the proof")
        .body::<SignRequest>()
        .returns::<SignAnswer>(200)
        .errors(ERRORS),
        Route::new(
            Method::POST,
            "/v1/kms/sign_batch",
            need,
            move |request, responder| {
                sign_batch(&many, request, responder);
            },
        )
        .summary("Sign up to 1,000 items: one leaf each, one durable append, errors per item")
        .body::<SignBatch>()
        .returns::<SignBatchAnswer>(200)
        .errors(ERRORS),
    ]
}

fn sign(kms: &Kms, request: Request, responder: Responder) {
    match request.json::<SignRequest>() {
        Ok(body) => {
            let what = SignOp::One(Box::new(SignTask::from_request(body)));
            kms.submit_sign(SignJob {
                call: call_context(kms, request, responder),
                what,
            });
        }
        Err(problem) => responder.send(problem),
    }
}

fn sign_batch(kms: &Kms, request: Request, responder: Responder) {
    match request.json::<SignBatch>() {
        Ok(body) if body.items.is_empty() || body.items.len() > BATCH_ITEMS_MAX => {
            responder.send(Problem::bad_request(format!(
                "`items` must hold 1 to {BATCH_ITEMS_MAX} entries"
            )));
        }
        Ok(body) => {
            let what = SignOp::Batch(SignTask::from_batch(body));
            kms.submit_sign(SignJob {
                call: call_context(kms, request, responder),
                what,
            });
        }
        Err(problem) => responder.send(problem),
    }
}
