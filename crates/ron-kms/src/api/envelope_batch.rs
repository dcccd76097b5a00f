//! `POST /wrap_batch`, `/unwrap_batch`: many single operations in one request and one durable append. An item with
//! an `op_id` is the same operation as the single call with that `op_id`.

use std::sync::Arc;

use ron_custody::{Cause, Refusal};
use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_proto::kms::{
    BATCH_ITEMS_MAX, UnwrapBatch, UnwrapBatchAnswer, UnwrapItem, UnwrapRequest, UnwrapResult,
    WrapBatch, WrapBatchAnswer, WrapItem, WrapRequest, WrapResult,
};
use ron_proto::problem::Problem;
use ron_proto::values::Kid;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call_context;
use super::envelope::{Ask, ERRORS, answer_of, task_of};
use crate::work::envelope::EnvelopeTask;
use crate::work::operation::many;
use crate::work::{Kms, SignJob};

/// A batch of one kind of request.
trait Batch: DeserializeOwned + JsonSchema + Send + 'static {
    type One: Ask;
    type Answer: Serialize + JsonSchema;
    const PATH: &'static str;
    const SUMMARY: &'static str;

    /// The single requests, one per item; a refusal for an item that names no key.
    fn split(self) -> Vec<Result<Self::One, Refusal>>;
    /// The answer of the batch.
    fn join(results: Vec<Result<<Self::One as Ask>::Answer, Refusal>>) -> Self::Answer;
}

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 2] {
    [route::<WrapBatch>(kms), route::<UnwrapBatch>(kms)]
}

fn route<B: Batch>(kms: &Arc<Kms>) -> Route {
    let kms = kms.clone();
    Route::new(
        Method::POST,
        B::PATH,
        Need::Scope(B::One::SCOPE),
        move |request, responder| serve::<B>(&kms, request, responder),
    )
    .summary(B::SUMMARY)
    .body::<B>()
    .returns::<B::Answer>(200)
    .errors(ERRORS)
}

fn serve<B: Batch>(kms: &Kms, request: Request, responder: Responder) {
    let items = match request.json::<B>() {
        Ok(body) => body.split(),
        Err(problem) => return responder.send(problem),
    };
    if items.is_empty() || items.len() > BATCH_ITEMS_MAX {
        return responder.send(Problem::bad_request(format!(
            "`items` must hold 1 to {BATCH_ITEMS_MAX} entries"
        )));
    }
    let tasks: Vec<Result<EnvelopeTask, Refusal>> =
        items.into_iter().map(|item| item.map(task_of)).collect();
    let key_of = |task: &Result<EnvelopeTask, Refusal>| task.as_ref().ok()?.key.clone();
    let keys: Vec<Option<Kid>> = tasks.iter().map(key_of).collect();
    let what = many(tasks, move |answers| {
        let one = |(key, answer)| answer_of::<B::One>(key, answer);
        let results = keys.into_iter().zip(answers).map(one).collect();
        Response::json(200, &B::join(results))
    });
    kms.submit_sign(SignJob {
        call: call_context(kms, request, responder),
        what,
    });
}

fn keyless() -> Refusal {
    Refusal::new(
        Cause::BadRequest,
        "the item names no key and the batch has none",
    )
}

impl Batch for WrapBatch {
    type One = WrapRequest;
    type Answer = WrapBatchAnswer;
    const PATH: &'static str = "/v1/kms/wrap_batch";
    const SUMMARY: &'static str =
        "Encrypt up to 1,000 items: one leaf each, one durable append, errors per item";

    fn split(self) -> Vec<Result<WrapRequest, Refusal>> {
        let Self { key, items } = self;
        let one = |item: WrapItem| {
            Ok(WrapRequest {
                key: item.key.or_else(|| key.clone()).ok_or_else(keyless)?,
                version: item.version,
                plaintext: item.plaintext,
                aad: item.aad,
                op_id: item.op_id,
                context: item.context,
            })
        };
        items.into_iter().map(one).collect()
    }

    fn join(results: Vec<Result<<WrapRequest as Ask>::Answer, Refusal>>) -> WrapBatchAnswer {
        let one = |result: Result<_, Refusal>| match result {
            Ok(answer) => WrapResult {
                answer: Some(answer),
                error: None,
            },
            Err(refusal) => WrapResult {
                answer: None,
                error: Some(refusal.to_item()),
            },
        };
        WrapBatchAnswer {
            results: results.into_iter().map(one).collect(),
        }
    }
}

impl Batch for UnwrapBatch {
    type One = UnwrapRequest;
    type Answer = UnwrapBatchAnswer;
    const PATH: &'static str = "/v1/kms/unwrap_batch";
    const SUMMARY: &'static str =
        "Decrypt up to 1,000 items: one leaf each, one durable append, errors per item";

    fn split(self) -> Vec<Result<UnwrapRequest, Refusal>> {
        let Self { key, items } = self;
        let one = |item: UnwrapItem| {
            Ok(UnwrapRequest {
                key: item.key.or_else(|| key.clone()).ok_or_else(keyless)?,
                ciphertext: item.ciphertext,
                aad: item.aad,
                op_id: item.op_id,
                context: item.context,
            })
        };
        items.into_iter().map(one).collect()
    }

    fn join(results: Vec<Result<<UnwrapRequest as Ask>::Answer, Refusal>>) -> UnwrapBatchAnswer {
        let one = |result: Result<_, Refusal>| match result {
            Ok(answer) => UnwrapResult {
                answer: Some(answer),
                error: None,
            },
            Err(refusal) => UnwrapResult {
                answer: None,
                error: Some(refusal.to_item()),
            },
        };
        UnwrapBatchAnswer {
            results: results.into_iter().map(one).collect(),
        }
    }
}
