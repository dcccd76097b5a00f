//! `/keys/...`: updates, retirement and destruction of a key.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::kms::{DestroyKey, KeyChanged, RetireKey, UpdateKey};
use ron_proto::scope;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::call_context;
use super::keys::{CHANGE_ERRORS, KEY, kid};
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

const RETIRE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/retire";
const DESTROY: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy";
const CANCEL: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy/cancel";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 4] {
    [
        change::<UpdateKey>(kms, Method::PATCH, KEY, KeyRequest::Update)
            .summary("Change min_verify_version or rotate_every, or withdraw exportable"),
        change::<RetireKey>(kms, Method::POST, RETIRE, KeyRequest::Retire)
            .summary("Retire the key: it no longer signs and still verifies"),
        change::<DestroyKey>(kms, Method::POST, DESTROY, KeyRequest::Destroy).summary(
            "Stop using the key now and destroy its secrets after a delay; its signatures still verify",
        ),
        change::<RetireKey>(kms, Method::POST, CANCEL, KeyRequest::CancelDestroy)
            .summary("Cancel a destruction; the key returns to its earlier state"),
    ]
}

fn change<T: DeserializeOwned + JsonSchema + 'static>(
    kms: &Arc<Kms>,
    method: Method,
    path: &'static str,
    wrap: fn(T) -> KeyRequest,
) -> Route {
    let kms = kms.clone();
    let handle = move |request: Request, responder: Responder| match kid(&request)
        .and_then(|kid| Ok((kid, request.json::<T>()?)))
    {
        Ok((kid, body)) => {
            let call = call_context(&kms, request, responder);
            kms.submit_store(StoreJob::Change(call, kid, wrap(body)));
        }
        Err(problem) => responder.send(problem),
    };
    Route::new(method, path, Need::Scope(scope::KMS_ADMIN), handle)
        .body::<T>()
        .returns::<KeyChanged>(200)
        .errors(CHANGE_ERRORS)
}
