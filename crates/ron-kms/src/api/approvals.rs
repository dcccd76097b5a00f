//! `/keys/.../approvals` and `/approvals`: operations that several people have to agree to.

use std::ops::Bound;
use std::sync::Arc;

use ron_custody::rights::may_use;
use ron_http::{Method, Principal, Request, Response, Route};
use ron_proto::kms::{ApprovalList, Approve, AskApproval, KeyChanged};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{Kid, OpId, Timestamp};

use super::keys::limit;
use super::{Action, ERRORS, change_route, kid, named_by_path, route};
use crate::errors::problem;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

const APPROVALS: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals";
const APPROVE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals/{request}/approve";
const ALL: &str = "/v1/kms/approvals";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 4] {
    [
        route(kms, (Method::GET, ALL), scope::KMS_READ, list_all)
            .summary("The requests of all of the caller's keys that wait for approvals, or have them, ordered by key name")
            .query("after", false, "continue after the requests of this key")
            .query("limit", false, "1 to 200 requests, 50 by default; a page ends with a key, and may have 15 more for that")
            .returns::<ApprovalList>(200)
            .errors(&[400, 401, 403, 429, 500, 503, 504]),
        route(kms, (Method::GET, APPROVALS), scope::KMS_READ, list)
            .summary("The requests of a key that wait for approvals, or have them")
            .returns::<ApprovalList>(200)
            .errors(&[400, 401, 403, 404, 429, 500, 503, 504]),
        change_route(kms, (Method::POST, APPROVALS), scope::KMS_ADMIN, |call, kid, body: AskApproval| {
            StoreJob::Change(call, kid, KeyRequest::AskApproval(Box::new(body)))
        })
        .summary("Ask for approvals of a request; with enough of them the same caller sends that request itself, with its op_id")
        .returns::<KeyChanged>(200),
        route(kms, (Method::POST, APPROVE), scope::KMS_READ, |kms, request| {
            let (kid, body) = (kid(kms, request)?, request.json::<Approve>()?);
            let id: OpId = request.param("request").parse()?;
            let change = KeyRequest::Approve(id, body);
            named_by_path(request, Action::store(|call| StoreJob::Change(call, kid, change)))
        })
        .summary("Approve a request, by a signature with the key of an approver that the key's policy names")
        .body::<Approve>()
        .returns::<KeyChanged>(200)
        .errors(ERRORS),
    ]
}

fn list(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&[])?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(kms, request)?);
    let key = key.map_err(problem)?;
    let now = Timestamp(kms.clock.unix_ms());
    let mut list = ApprovalList::default();
    if let Some(rule) = key.access.approval_rule() {
        let live = key.access.requests.live(now);
        list.requests = live.map(|one| one.to_doc(&key.kid, rule)).collect();
    }
    Ok(Action::Respond(Response::json(200, &list)))
}

fn list_all(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&["after", "limit"])?;
    let after: Option<Kid> = request.query_as("after")?;
    let page = page(kms, &request.principal, after, limit(request)?);
    Ok(Action::Respond(Response::json(200, &page)))
}

/// The requests after those of the key `after`, of the keys that the caller may use.
pub fn page(kms: &Kms, caller: &Principal, after: Option<Kid>, limit: usize) -> ApprovalList {
    let now = Timestamp(kms.clock.unix_ms());
    let index = kms.index.load();
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut page = ApprovalList::default();
    for (kid, key) in index.keys.range((after, Bound::Unbounded)) {
        let mut live = key.access.requests.live(now).peekable();
        let (Some(rule), Some(_)) = (key.access.approval_rule(), live.peek()) else {
            continue;
        };
        if may_use(caller, kid, Some(&key.labels)).is_err() {
            continue;
        }
        if page.requests.len() >= limit {
            page.next = page.requests.last().map(|last| last.key.to_string());
            break;
        }
        page.requests.extend(live.map(|one| one.to_doc(kid, rule)));
    }
    page
}
