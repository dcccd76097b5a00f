//! `/issuer_policy`: the signed issuer policy, which decides what the issuer's keys sign.

use std::sync::Arc;

use ron_custody::rights::may_bring_policy;
use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::{ISSUER_POLICY_BODY_MAX, IssuerPolicyInForce, PutIssuerPolicy};
use ron_proto::problem::Problem;
use ron_proto::scope;

use super::{Action, ERRORS_WITHOUT_KEY, route};
use crate::errors::problem;
use crate::work::policy::BroughtPolicy;
use crate::work::{Kms, StoreJob};

const PATH: &str = "/v1/kms/issuer_policy";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 2] {
    [
        route(kms, (Method::GET, PATH), scope::KMS_READ, read)
            .summary("The issuer policy in force: version and hash; for a service token of tenant ron")
            .returns::<IssuerPolicyInForce>(200)
            .errors(&[400, 401, 403, 404, 429, 500, 503, 504]),
        route(kms, (Method::PUT, PATH), scope::KMS_SIGN, put)
            .summary("Put a signed issuer policy in force; older versions and other signers are refused; for a service token of tenant ron")
            .body::<PutIssuerPolicy>()
            .body_cap(ISSUER_POLICY_BODY_MAX)
            .returns::<IssuerPolicyInForce>(200)
            .errors(ERRORS_WITHOUT_KEY),
    ]
}

fn read(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&[])?;
    may_bring_policy(&request.principal).map_err(problem)?;
    let shown = kms.issuer_policy().map_err(problem)?;
    Ok(Action::Respond(Response::json(200, &shown)))
}

fn put(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    let body = request.json::<PutIssuerPolicy>()?;
    // On this thread: the store thread should not wait for the check of a large document.
    let brought = kms
        .settings
        .with(|settings| BroughtPolicy::new(&body, &settings.keys.policy_keys));
    let brought = Box::new(brought);
    Ok(Action::store(move |call| {
        StoreJob::IssuerPolicy(call, brought)
    }))
}
