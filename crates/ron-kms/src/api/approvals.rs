//! `/keys/.../approvals`: operations that several people have to agree to.

use std::sync::Arc;

use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::{ApprovalList, Approve, AskApproval, KeyChanged};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{OpId, Timestamp};

use super::{Action, ERRORS, change_route, kid, named_by_path, route};
use crate::errors::problem;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

const APPROVALS: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals";
const APPROVE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/approvals/{request}/approve";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 3] {
    [
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
