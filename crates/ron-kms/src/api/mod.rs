//! The HTTP API: one file per resource. A handler checks the request and says what to do with it, an [`Action`]; [`route`] does it.

mod access;
mod aliases;
mod approvals;
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
mod which_op;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{
    ApiInfo, Method, Need, Principal, Request, Responder, Response, Route, Router, Transport,
};
use ron_kernel::Deadline;
use ron_proto::problem::Problem;
use ron_proto::values::{Alias, KeyRef, Kid};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::errors::problem;
use crate::work::operation::{Operation, Work};
use crate::work::{CallContext, Kms, SignJob, StoreJob};

#[cfg(test)]
pub use approvals::page as approvals_page;
#[cfg(test)]
pub use sign::batch as sign_batch;
pub use transit::VaultTokens;
use which_op::may_do_at;

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
    let of_keys = keys::routes(kms)
        .into_iter()
        .chain(transfer::routes(kms))
        .chain(attest::routes(kms))
        .chain(access::routes(kms))
        .chain(approvals::routes(kms));
    Router::new(info)
        .add_all(aliases::by_alias(of_keys))
        .add_all(keys::routes(kms))
        .add_all(access::routes(kms))
        .add_all(approvals::routes(kms))
        .add_all(aliases::routes(kms))
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
    /// The same, of a request that names its key by this alias.
    fn named_by(self, alias: Alias) -> Self {
        match self {
            Self::Work(mut what) => {
                what.name_by(&alias);
                Self::Work(what)
            }
            Self::Store(job) => Self::store(move |call| {
                job(CallContext {
                    alias: Some(alias),
                    ..call
                })
            }),
            action @ Self::Respond(_) => action,
        }
    }

    fn store(job: impl FnOnce(CallContext) -> StoreJob + 'static) -> Self {
        Self::Store(Box::new(job))
    }

    fn perform(self, kms: &Kms, request: Request, wait: Option<Duration>, responder: Responder) {
        match self {
            Self::Respond(response) => responder.send(response),
            Self::Work(what) => {
                let by = (peer_of(&request), request.deadline, request.principal);
                let mut call = call_context(kms, by, wait, responder);
                // Also when the disk under the audit log hangs. Only a wait for a proof may last as long as the
                // front allows.
                if call.proof_until.is_none() {
                    call.responder = call.responder.by(call.deadline);
                }
                kms.submit_sign(SignJob { call, what });
            }
            Self::Store(job) => {
                let by = (peer_of(&request), request.deadline, request.principal);
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
    route_for(kms, (method, path), Need::Scope(scope), handler)
}

/// A route of one handler, for callers that meet this need.
fn route_for(
    kms: &Arc<Kms>,
    (method, path): (Method, &'static str),
    need: Need,
    handler: impl Fn(&Kms, &Request) -> Result<Action, Problem> + Send + Sync + 'static,
) -> Route {
    let kms = kms.clone();
    Route::new(method, path, need, move |request, responder| {
        let accepted = request.wait().and_then(|wait| {
            may_do_at(&request).map_err(problem)?;
            Ok((wait, handler(&kms, &request)?))
        });
        match accepted {
            Ok((wait, action)) => action.perform(&kms, request, wait, responder),
            Err(problem) => responder.send(problem),
        }
    })
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
    route(kms, (method, path), scope, move |kms, request| {
        let (kid, body) = (kid(kms, request)?, request.json::<B>()?);
        let action = Action::store(move |call| job(call, kid, body));
        named_by_path(request, action)
    })
    .body::<B>()
    .errors(ERRORS)
}

/// The key as the path names it: by the four segments of its name, or by `alias/` and an alias.
fn key_ref(request: &Request) -> Result<KeyRef, Problem> {
    if let Some(alias) = request.param_if_any("alias") {
        let alias: Alias = alias.parse()?;
        return Ok(alias.into());
    }
    let name = ["tenant", "purpose", "alg", "id"].map(|name| request.param(name));
    let kid: Kid = name.join("/").parse()?;
    Ok(kid.into())
}

/// The same, with the alias by which the path names the key, if it does.
fn named_by_path(request: &Request, action: Action) -> Result<Action, Problem> {
    Ok(match key_ref(request)? {
        KeyRef::Alias(alias) => action.named_by(alias),
        KeyRef::Kid(_) => action,
    })
}

/// The name of the key that the path names.
fn kid(kms: &Kms, request: &Request) -> Result<Kid, Problem> {
    let index = kms.index.load();
    let named = index.name_of(&request.principal.tenant, &key_ref(request)?);
    named.map_err(problem)
}

/// Looks up the aliases of an operation.
pub fn look_up<O: Operation>(kms: &Kms, caller: &Principal, task: &mut O) {
    if let Some(key) = task.task_key_mut() {
        key.look_up(&kms.index, &caller.tenant);
    }
    if let Some(key) = task.other_key_mut() {
        key.look_up(&kms.index, &caller.tenant);
    }
}

/// The address that a request comes from; `None` for a socket.
fn peer_of(request: &Request) -> Option<IpAddr> {
    match request.transport {
        Transport::Tcp | Transport::Tls => Some(request.peer.ip()),
        Transport::Unix { .. } | Transport::ClientSocket { .. } => None,
    }
}

/// The context of a request that waits up to `wait` for a proof; its deadline is at most `sign_deadline` away.
fn call_context(
    kms: &Kms,
    (peer, deadline, caller): (Option<IpAddr>, Deadline, Principal),
    wait: Option<Duration>,
    responder: Responder,
) -> CallContext {
    // Leaves the HTTP front time to send the answer before it gives up on the request.
    let last = Deadline::within(deadline.remaining().saturating_sub(PROOF_MARGIN));
    CallContext {
        proof_until: wait.map(|wait| Deadline::within(wait).earlier(last)),
        alias: None,
        peer,
        caller,
        responder,
        deadline: deadline.earlier(Deadline::within(kms.sign_deadline())),
        since: kms.clock.now(),
    }
}
