//! `POST /sign` and `POST /sign_batch`.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_proto::kms::{
    BATCH_ITEMS_MAX, SignAnswer, SignBatch, SignBatchAnswer, SignRequest, SignResult,
};
use ron_proto::problem::Problem;
use ron_proto::scope;

use super::call_context;
use crate::work::operation::{Answer, Work, many, one, signed};
use crate::work::sign::{SignOutput, SignTask};
use crate::work::{Kms, SignJob};

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
            let call = call_context(kms, request, responder);
            let proof = kms.proof_request(&call);
            let what = one(SignTask::from_request(body), |answer| {
                signed(answer.map(SignAnswer::from), proof)
            });
            kms.submit_sign(SignJob { call, what });
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
            let what = batch(body);
            let call = call_context(kms, request, responder);
            kms.submit_sign(SignJob { call, what });
        }
        Err(problem) => responder.send(problem),
    }
}

/// The signatures of a batch, and their answer.
pub fn batch(batch: SignBatch) -> Box<dyn Work> {
    many(SignTask::from_batch(batch), |answers| {
        let results = answers.into_iter().map(result).collect();
        Response::json(200, &SignBatchAnswer { results })
    })
}

fn result(answer: Answer<SignOutput>) -> SignResult {
    match answer {
        Ok(signed) => SignResult {
            answer: Some(signed.into()),
            error: None,
        },
        Err(refusal) => SignResult {
            answer: None,
            error: Some(refusal.to_item()),
        },
    }
}
