//! `/rewarder/policy/{id}`: signed policies.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route, sync};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{POLICY_KIND, PolicyId, PolicyStored, SignedPolicy};
use ron_proto::values::ContentId;
use ron_proto::{scope, strict};
use ron_service::events::{Event, EventKind};

use super::{Api, Concern, param};
use crate::errors;
use crate::inputs::policy::PolicyRefused;

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    let (put_api, get_api) = (Arc::clone(api), Arc::clone(api));
    vec![
        Route::new(
            Method::PUT,
            "/rewarder/policy/{id}",
            Need::Scope(scope::REWARDER_RUN),
            sync(move |request| put(&put_api, request)),
        )
        .summary("Stores a signed policy version.")
        .body::<SignedPolicy>()
        .returns::<PolicyStored>(200)
        .returns::<PolicyStored>(201)
        .errors(&[400, 409, 422, 503]),
        Route::get(
            "/rewarder/policy/{id}",
            Need::Scope(scope::REWARDER_READ),
            move |request| get(&get_api, request),
        )
        .summary("The newest version of a policy, or the one with a hash, with its signature.")
        .query_as::<ContentId>("hash", false, "the hash of the wanted version")
        .returns::<SignedPolicy>(200)
        .errors(&[400, 404, 422, 503])
        .while_draining(),
    ]
}

fn put(api: &Api, request: &Request) -> Result<Response, Problem> {
    api.check_caveats(request, Concern::All)?;
    request.query_only(&[])?;
    let id: PolicyId = param(request, "id")?;
    let signed: SignedPolicy = request.json()?;
    let verified = api
        .library
        .verify(&signed)
        .map_err(|error| errors::policy_refused(&error))?;
    if verified.policy.id != id {
        let why = PolicyRefused::Malformed("its id is not the one in the path".into());
        return Err(errors::policy_refused(&why));
    }
    if verified.policy.tenant != request.principal.tenant {
        let why = PolicyRefused::Malformed("its tenant is not the caller's".into());
        return Err(errors::policy_refused(&why));
    }
    let new = api
        .library
        .put_policy(&request.principal.tenant, &verified)
        .map_err(|error| errors::library(&error, true))?;
    if new {
        let adopted = Event::info(EventKind::PolicyAdopted).reason(POLICY_KIND);
        let version = verified.policy.version;
        api.events.publish(adopted.number(version));
    }
    let stored = PolicyStored {
        id,
        version: verified.policy.version,
        hash: verified.hash,
    };
    Ok(Response::json(if new { 201 } else { 200 }, &stored))
}

fn get(api: &Api, request: &Request) -> Result<Response, Problem> {
    api.check_caveats(request, Concern::All)?;
    request.query_only(&["hash"])?;
    let id: PolicyId = param(request, "id")?;
    let tenant = &request.principal.tenant;
    let found = match request.query_as::<ContentId>("hash")? {
        Some(hash) => api.library.policy(tenant, &id, &hash),
        None => api.library.newest_policy(tenant, &id),
    };
    let found = found.map_err(|error| errors::library(&error, true))?;
    let policy = strict::from_slice(&found.canonical)?;
    let signed = SignedPolicy {
        policy,
        signature: found.signature,
    };
    Ok(Response::json(200, &signed).etag(&found.hash.to_string()))
}
