//! `/keys`: create, list, read, rotate. The other changes are in [`super::lifecycle`].

use std::ops::Bound;
use std::sync::Arc;

use ron_custody::index::Key;
use ron_custody::index::may_use;
use ron_http::{Method, Need, Principal, Request, Responder, Response, Route, sync};
use ron_proto::kms::{CreateKey, KeyDoc, KeyList, KeyState, RotateAnswer, RotateRequest};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{Alg, Kid, Purpose};

use super::call_context;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

const PAGE_DEFAULT: usize = 50;
const PAGE_MAX: usize = 200;

pub(super) const KEY: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}";
const KEY_ROTATE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/rotate";
pub(super) const CHANGE_ERRORS: &[u16] =
    &[400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503, 504];

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 4] {
    let (for_create, for_list, for_read, for_rotate) =
        (kms.clone(), kms.clone(), kms.clone(), kms.clone());
    [
        Route::new(
            Method::POST,
            "/v1/kms/keys",
            Need::Scope(scope::KMS_CREATE),
            move |request, responder| {
                create(&for_create, request, responder);
            },
        )
        .summary("Make a key; idempotent by op_id for 24 hours")
        .body::<CreateKey>()
        .returns::<KeyDoc>(201)
        .errors(CHANGE_ERRORS),
        Route::new(
            Method::GET,
            "/v1/kms/keys",
            Need::Scope(scope::KMS_READ),
            sync(move |request| list(&for_list, request)),
        )
        .summary("The caller's keys, ordered by name")
        .query("purpose", false, "only keys of this purpose")
        .query("alg", false, "only keys of this algorithm")
        .query(
            "state",
            false,
            "only keys in this state: active, retired, pending_destruction, destroyed",
        )
        .query("after", false, "continue after this key name")
        .query("limit", false, "1 to 200 keys, 50 by default")
        .returns::<KeyList>(200)
        .errors(&[400, 401, 403, 429, 500, 503, 504]),
        Route::new(
            Method::GET,
            KEY,
            Need::Scope(scope::KMS_READ),
            sync(move |request| read(&for_read, request)),
        )
        .summary("One key: versions and public keys")
        .returns::<KeyDoc>(200)
        .errors(&[400, 401, 403, 404, 429, 500, 503, 504]),
        Route::new(
            Method::POST,
            KEY_ROTATE,
            Need::Scope(scope::KMS_ROTATE),
            move |request, responder| {
                rotate(&for_rotate, request, responder);
            },
        )
        .summary("Make a new head version; idempotent by op_id for 24 hours")
        .body::<RotateRequest>()
        .returns::<RotateAnswer>(200)
        .errors(CHANGE_ERRORS),
    ]
}

fn create(kms: &Kms, request: Request, responder: Responder) {
    match request.json::<CreateKey>() {
        Ok(body) => kms.submit_store(StoreJob::Create(
            call_context(kms, request, responder),
            Box::new(body),
        )),
        Err(problem) => responder.send(problem),
    }
}

fn rotate(kms: &Kms, request: Request, responder: Responder) {
    match kid(&request).and_then(|kid| Ok((kid, request.json::<RotateRequest>()?))) {
        Ok((kid, body)) => {
            let change = KeyRequest::Rotate(body);
            kms.submit_store(StoreJob::Change(
                call_context(kms, request, responder),
                kid,
                change,
            ));
        }
        Err(problem) => responder.send(problem),
    }
}

fn read(kms: &Kms, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(request)?)?;
    Ok(Response::json(200, &key.to_doc(&kms.origin)))
}

fn list(kms: &Kms, request: &Request) -> Result<Response, Problem> {
    request.query_only(&["purpose", "alg", "state", "after", "limit"])?;
    let wanted = Wanted {
        purpose: request.query_as("purpose")?,
        alg: request.query_as("alg")?,
        state: request.query_as("state")?,
    };
    let after: Option<Kid> = request.query_as("after")?;
    let limit = request.query_as::<usize>("limit")?.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!(
            "`limit` must be 1..={PAGE_MAX}"
        )));
    }
    Ok(Response::json(
        200,
        &page(kms, &request.principal, &wanted, after, limit),
    ))
}

/// Filters of the list.
struct Wanted {
    purpose: Option<Purpose>,
    alg: Option<Alg>,
    state: Option<KeyState>,
}

impl Wanted {
    fn has(&self, key: &Key) -> bool {
        self.purpose.as_ref().is_none_or(|p| *p == key.kid.purpose)
            && self.alg.is_none_or(|alg| alg == key.kid.alg)
            && self.state.is_none_or(|state| state == key.state)
    }
}

fn page(
    kms: &Kms,
    caller: &Principal,
    wanted: &Wanted,
    after: Option<Kid>,
    limit: usize,
) -> KeyList {
    let index = kms.index.load();
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut visible = index
        .keys
        .range((from, Bound::Unbounded))
        .map(|(_, key)| key)
        .filter(|key| wanted.has(key) && may_use(caller, &key.kid).is_ok());
    let keys: Vec<KeyDoc> = visible
        .by_ref()
        .take(limit)
        .map(|key| key.to_doc(&kms.origin))
        .collect();
    let next = visible
        .next()
        .and_then(|_| keys.last())
        .map(|last| last.key.to_string());
    KeyList { keys, next }
}

/// The key that the path's four segments name.
pub(super) fn kid(request: &Request) -> Result<Kid, Problem> {
    let part = |name| request.param(name);
    format!(
        "{}/{}/{}/{}",
        part("tenant"),
        part("purpose"),
        part("alg"),
        part("id")
    )
    .parse()
    .map_err(Problem::from)
}
