//! `/keys/.../policy` and `/keys/.../grants`: who may do what with a key.

use std::sync::Arc;

use ron_custody::access::Facts;
use ron_http::{Method, Need, Principal, Request, Response, Route};
use ron_proto::kms::{
    ExplainKeyPolicy, GrantList, KeyChanged, KeyPolicyDoc, KeyPolicyExplained, MakeGrant,
    PutKeyPolicy, RetireGrant,
};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{OpId, Timestamp};

use super::{Action, ERRORS, change_route, kid, named_by_path, route, route_for};
use crate::errors::problem;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

const POLICY: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy";
const EXPLAIN: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/policy/explain";
const GRANTS: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants";
const RETIRE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/grants/{grant}/retire";

const READ_ERRORS: &[u16] = &[400, 401, 403, 404, 429, 500, 503, 504];

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 6] {
    [
        route(kms, (Method::GET, POLICY), scope::KMS_READ, policy)
            .summary("The policy of a key; null when scopes and caveats alone decide")
            .returns::<KeyPolicyDoc>(200)
            .errors(READ_ERRORS),
        change_route(kms, (Method::PUT, POLICY), scope::KMS_ADMIN, |call, kid, body: PutKeyPolicy| {
            StoreJob::Change(call, kid, KeyRequest::PutPolicy(Box::new(body)))
        })
        .summary("Set or remove the policy of a key; the caller must be able to change the new one again")
        .returns::<KeyChanged>(200),
        route(kms, (Method::POST, EXPLAIN), scope::KMS_READ, explain)
            .summary("What policy and grants decide about a caller, and by which rule")
            .body::<ExplainKeyPolicy>()
            .returns::<KeyPolicyExplained>(200)
            .errors(ERRORS),
        route(kms, (Method::GET, GRANTS), scope::KMS_READ, grants)
            .summary("The grants of a key that have not ended")
            .returns::<GrantList>(200)
            .errors(READ_ERRORS),
        route_for(kms, (Method::POST, GRANTS), Need::Identity, |kms, request| {
            let (kid, body) = (kid(kms, request)?, request.json::<MakeGrant>()?);
            let change = KeyRequest::MakeGrant(Box::new(body));
            named_by_path(request, Action::store(|call| StoreJob::Change(call, kid, change)))
        })
        .summary("Let another caller use the key for some time, as far as this caller may; for holders of the scopes of these operations whom the key's policy allows `grant`")
        .body::<MakeGrant>()
        .returns::<KeyChanged>(200)
        .errors(ERRORS),
        route_for(kms, (Method::POST, RETIRE), Need::Identity, |kms, request| {
            let (kid, body) = (kid(kms, request)?, request.json::<RetireGrant>()?);
            let grant: OpId = request.param("grant").parse()?;
            let change = KeyRequest::RetireGrant(grant, body);
            named_by_path(request, Action::store(|call| StoreJob::Change(call, kid, change)))
        })
        .summary("End a grant; for its grantee, its maker, and holders of kms:admin")
        .body::<RetireGrant>()
        .returns::<KeyChanged>(200)
        .errors(ERRORS),
    ]
}

fn policy(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&[])?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(kms, request)?);
    let key = key.map_err(problem)?;
    let doc = KeyPolicyDoc {
        key: key.kid.clone(),
        policy: key.access.policy.clone(),
    };
    Ok(Action::Respond(Response::json(200, &doc)))
}

fn explain(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    let ask: ExplainKeyPolicy = request.json()?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(kms, request)?);
    let key = key.map_err(problem)?;
    let caller = Principal {
        name: ask.principal,
        client: ask.client,
        tenant: key.kid.tenant.clone(),
        scopes: ask.scopes.into(),
        ..Principal::public()
    };
    let facts = Facts {
        now: ask.at.unwrap_or_else(|| Timestamp(kms.clock.unix_ms())),
        context: ask.context.as_deref(),
        peer: ask.peer,
        attestation: key.attestation.as_str(),
    };
    let verdict = key
        .access
        .decide((&key.kid, &key.labels), &caller, ask.op, &facts);
    let explained = KeyPolicyExplained {
        allowed: verdict.is_allowed(),
        by: verdict.by(),
        why: verdict.why(),
    };
    Ok(Action::Respond(Response::json(200, &explained)))
}

fn grants(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&[])?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(kms, request)?);
    let key = key.map_err(problem)?;
    let now = Timestamp(kms.clock.unix_ms());
    let live = key.access.grants.iter().filter(|grant| grant.is_live(now));
    let list = GrantList {
        grants: live.map(ron_custody::access::Grant::to_doc).collect(),
    };
    Ok(Action::Respond(Response::json(200, &list)))
}
