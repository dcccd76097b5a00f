//! `POST /sign` and `POST /sign_batch`.

use std::sync::Arc;

use ron_custody::Refusal;
use ron_http::{Method, Route};
use ron_proto::kms::{SignAnswer, SignBatch, SignItem, SignRequest};
use ron_proto::scope;

use super::batch::{batch_route, item_key};
use super::{Action, ERRORS, look_up, route};
use crate::work::Kms;
use crate::work::operation::one;
use crate::work::sign::SignTask;

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 2] {
    let need = scope::KMS_SIGN;
    [
        route(kms, (Method::POST, "/v1/kms/sign"), need, |kms, request| {
            let mut task = SignTask::from_request(request.json()?);
            look_up(kms, &request.principal, &mut task);
            Ok(Action::Work(one(task, |answer| {
                answer.map(SignAnswer::from)
            })))
        })
        .summary("Sign a message or a digest; the answer leaves once its audit leaf is durable. With Prefer: wait=N it waits up to N seconds (and no longer than request_deadline) for a checkpoint and carries the proof")
        .body::<SignRequest>()
        .returns::<SignAnswer>(200)
        .errors(ERRORS),
        batch_route(kms, "/v1/kms/sign_batch", need, split, |_, answer| {
            answer.map(SignAnswer::from)
        })
        .summary("Sign up to 1,000 items: one leaf each, one durable append, errors per item"),
    ]
}

fn split(batch: SignBatch) -> Vec<Result<SignTask, Refusal>> {
    let one = |item: SignItem| {
        let key = item_key(item.key.as_ref(), batch.key.as_ref())?;
        // The version of the batch belongs to the key of the batch.
        let version = match item.key {
            Some(_) => item.version,
            None => item.version.or(batch.version),
        };
        let request = item.with_key(key);
        Ok(SignTask::from_request(SignRequest { version, ..request }))
    };
    batch.items.into_iter().map(one).collect()
}

/// The signatures of a batch, and their answer.
#[cfg(test)]
pub fn batch(batch: SignBatch) -> Box<dyn crate::work::operation::Work> {
    super::batch::batch(split(batch), |_, answer| answer.map(SignAnswer::from))
}
