//! The HTTP API: one file per resource. A handler checks the request and says what to do with it, an [`Action`]; [`route`] does it.

mod attest;
mod batch;
mod entries;
mod envelope;
mod issuer_policy;
pub mod keys;
mod sign;
mod transfer;
mod transit;
mod verify;
mod verify_raw;

use std::sync::Arc;
use std::time::Duration;

use ron_http::{ApiInfo, Method, Need, Principal, Request, Responder, Response, Route, Router};
use ron_kernel::Deadline;
use ron_proto::problem::Problem;
use ron_proto::values::Kid;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::work::operation::Work;
use crate::work::{CallContext, Kms, SignJob, StoreJob};

#[cfg(test)]
pub use sign::batch as sign_batch;
pub use transit::VaultTokens;

/// How long before the request's deadline a wait for a proof ends, so that the answer can still be sent.
const PROOF_MARGIN: Duration = Duration::from_millis(250);

/// Statuses of operations that name a key.
const ERRORS: &[u16] = &[400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503, 504];
/// Statuses of changes that name no existing key.
const ERRORS_WITHOUT_KEY: &[u16] = &[400, 401, 403, 409, 413, 415, 422, 429, 500, 503, 504];

/// All routes of the service except those of the audit log and of the chassis.
pub fn router(kms: &Arc<Kms>) -> Router {
    let info = ApiInfo {
        title: "ron-kms",
        version: env!("CARGO_PKG_VERSION"),
        description: "Custody and signing: keys that never leave, versions, rotation, and an audit log that third parties can verify.",
    };
    Router::new(info)
        .add_all(keys::routes(kms))
        .add_all(entries::routes(kms))
        .add_all(issuer_policy::routes(kms))
        .add_all(transfer::routes(kms))
        .add_all(attest::routes(kms))
        .add_all(sign::routes(kms))
        .add_all(verify::routes(kms))
        .add_all(verify_raw::routes(kms))
        .add_all(envelope::routes(kms))
        .add_all(transit::routes(kms))
}

/// What is done with a request that a handler accepts.
enum Action {
    /// Answer from the snapshot, on the HTTP worker's thread.
    Respond(Response),
    /// Submit to the signers, or to the threads of the device that holds the key.
    Work(Box<dyn Work>),
    /// Submit to the store thread.
    Store(Box<dyn FnOnce(CallContext) -> StoreJob>),
}

impl Action {
    fn store(job: impl FnOnce(CallContext) -> StoreJob + 'static) -> Self {
        Self::Store(Box::new(job))
    }

    fn perform(self, kms: &Kms, request: Request, wait: Option<Duration>, responder: Responder) {
        match self {
            Self::Respond(response) => responder.send(response),
            Self::Work(what) => {
                let by = (request.principal, request.deadline);
                let mut call = call_context(kms, by, wait, responder);
                // Also when the disk under the audit log hangs. Only a wait for a proof may last as long as the
                // front allows.
                if call.proof_until.is_none() {
                    call.responder = call.responder.by(call.deadline);
                }
                kms.submit_sign(SignJob { call, what });
            }
            Self::Store(job) => {
                let by = (request.principal, request.deadline);
                kms.submit_store(job(call_context(kms, by, wait, responder)));
            }
        }
    }
}

/// A route of one handler.
fn route(
    kms: &Arc<Kms>,
    (method, path): (Method, &'static str),
    scope: &'static str,
    handler: impl Fn(&Kms, &Request) -> Result<Action, Problem> + Send + Sync + 'static,
) -> Route {
    let kms = kms.clone();
    Route::new(
        method,
        path,
        Need::Scope(scope),
        move |request, responder| {
            let accepted = request
                .wait()
                .and_then(|wait| Ok((wait, handler(&kms, &request)?)));
            match accepted {
                Ok((wait, action)) => action.perform(&kms, request, wait, responder),
                Err(problem) => responder.send(problem),
            }
        },
    )
}

/// A change that names no existing key.
fn store_route<B: DeserializeOwned + JsonSchema + 'static>(
    kms: &Arc<Kms>,
    path: &'static str,
    scope: &'static str,
    job: fn(CallContext, B) -> StoreJob,
) -> Route {
    route(kms, (Method::POST, path), scope, move |_, request| {
        let body = request.json::<B>()?;
        Ok(Action::store(move |call| job(call, body)))
    })
    .body::<B>()
    .errors(ERRORS_WITHOUT_KEY)
}

/// A change of the key that the path names.
fn change_route<B: DeserializeOwned + JsonSchema + 'static>(
    kms: &Arc<Kms>,
    (method, path): (Method, &'static str),
    scope: &'static str,
    job: fn(CallContext, Kid, B) -> StoreJob,
) -> Route {
    route(kms, (method, path), scope, move |_, request| {
        let (kid, body) = (kid(request)?, request.json::<B>()?);
        Ok(Action::store(move |call| job(call, kid, body)))
    })
    .body::<B>()
    .errors(ERRORS)
}

/// The key that the path's four segments name.
fn kid(request: &Request) -> Result<Kid, Problem> {
    let name = ["tenant", "purpose", "alg", "id"].map(|name| request.param(name));
    name.join("/").parse().map_err(Problem::from)
}

/// The context of a request that waits up to `wait` for a proof; its deadline is at most `sign_deadline` away.
fn call_context(
    kms: &Kms,
    (caller, deadline): (Principal, Deadline),
    wait: Option<Duration>,
    responder: Responder,
) -> CallContext {
    // Leaves the HTTP front time to send the answer before it gives up on the request.
    let last = Deadline::within(deadline.remaining().saturating_sub(PROOF_MARGIN));
    CallContext {
        proof_until: wait.map(|wait| Deadline::within(wait).earlier(last)),
        caller,
        responder,
        deadline: deadline.earlier(Deadline::within(kms.sign_deadline())),
        since: kms.clock.now(),
    }
}
