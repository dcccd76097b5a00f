//! Batches: many single operations in one request and one durable append. An item with an `op_id` is the same operation as
//! the single call with that `op_id`.

use std::sync::Arc;

use ron_custody::{Cause, Refusal};
use ron_http::{Method, Response, Route};
use ron_proto::kms::{BATCH_ITEMS_MAX, BatchAnswer, ItemResult};
use ron_proto::problem::Problem;
use ron_proto::values::{KeyRef, Kid};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Action, ERRORS, look_up, route};
use crate::errors::item_error;
use crate::work::Kms;
use crate::work::answering::Answer;
use crate::work::operation::{Operation, Work, many};

/// Renders the answer of one item, whose request may name a key.
type Render<O, A> = fn(Option<Kid>, Answer<<O as Operation>::Output>) -> Result<A, Refusal>;

/// A batch route: `split` gives the operations, one per item, or a refusal for an item that names no key.
pub(super) fn batch_route<B, O, A>(
    kms: &Arc<Kms>,
    path: &'static str,
    scope: &'static str,
    split: fn(B) -> Vec<Result<O, Refusal>>,
    render: Render<O, A>,
) -> Route
where
    B: DeserializeOwned + JsonSchema + 'static,
    O: Operation,
    A: Serialize + JsonSchema + 'static,
{
    route(kms, (Method::POST, path), scope, move |kms, request| {
        let mut tasks = split(request.json::<B>()?);
        check_items(tasks.len())?;
        for task in tasks.iter_mut().flatten() {
            look_up(kms, &request.principal, task);
        }
        Ok(Action::Work(batch(tasks, render)))
    })
    .body::<B>()
    .returns::<BatchAnswer<A>>(200)
    .errors(ERRORS)
}

/// The operations of a batch, and how their answers are rendered.
pub(super) fn batch<O: Operation, A: Serialize + 'static>(
    tasks: Vec<Result<O, Refusal>>,
    render: Render<O, A>,
) -> Box<dyn Work> {
    let key_of = |task: &Result<O, Refusal>| task.as_ref().ok()?.key().cloned();
    let keys: Vec<Option<Kid>> = tasks.iter().map(key_of).collect();
    many(tasks, move |answers| {
        let results = keys.into_iter().zip(answers);
        let results = results.map(|(key, one)| render(key, one));
        Response::json(200, &batch_answer(results))
    })
}

/// The answer of a batch: one result per item, in order.
pub(super) fn batch_answer<A>(results: impl Iterator<Item = Result<A, Refusal>>) -> BatchAnswer<A> {
    let results = results.map(|one| ItemResult::from(one.map_err(item_error)));
    BatchAnswer {
        results: results.collect(),
    }
}

/// Refuses a batch without items or with too many.
pub(super) fn check_items(count: usize) -> Result<(), Problem> {
    if (1..=BATCH_ITEMS_MAX).contains(&count) {
        return Ok(());
    }
    let detail = format!("`items` must hold 1 to {BATCH_ITEMS_MAX} entries");
    Err(Problem::bad_request(detail))
}

/// The key of an item: its own, else that of the batch.
pub(super) fn item_key(own: Option<&KeyRef>, batch: Option<&KeyRef>) -> Result<KeyRef, Refusal> {
    own.or(batch).cloned().ok_or_else(|| {
        let detail = "the item names no key and the batch has none";
        Refusal::new(Cause::BadRequest, detail)
    })
}
