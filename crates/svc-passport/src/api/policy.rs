//! The issuer policy for administrators: the one in force, a new signed one, and what the one in force would decide. The
//! signature alone makes a policy acceptable; the scope only keeps others from asking.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route, sync};
use ron_proto::kms::{ISSUER_POLICY_BODY_MAX, PutIssuerPolicy};
use ron_proto::passport::{CurrentPolicy, IssuerPolicy, PolicyQuestion, PolicyVerdict};
use ron_proto::{Problem, jcs, scope, strict};
use ron_service::kept_policy::Versioned as _;
use ron_service::signed_policy;

use super::Api;
use crate::explain::answer;
use crate::issue::no_policy;
use crate::sync::InForce;

const ADMIN: Need = Need::Scope(scope::PASSPORT_ADMIN);

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    let (current, new, asked) = (api.clone(), api.clone(), api.clone());
    [
        Route::get("/v1/passport/policy/current", ADMIN, move |_| {
            let in_force = current.policy.load();
            let in_force = in_force.as_ref().as_ref().ok_or_else(no_policy)?;
            Ok(Response::json(200, &shown(in_force)?))
        })
        .summary("The signed issuer policy in force.")
        .returns::<CurrentPolicy>(200)
        .errors(&[503]),
        Route::new(
            Method::PUT,
            "/v1/passport/policy/current",
            ADMIN,
            sync(move |req| put(&new, req)),
        )
        .summary("Put a newer signed issuer policy in force: in the KMS, here, and in the directory that it is read from.")
        .body::<PutIssuerPolicy>()
        .body_cap(ISSUER_POLICY_BODY_MAX)
        .returns::<CurrentPolicy>(200)
        .errors(&[400, 409, 503]),
        Route::post("/v1/passport/policy/explain", ADMIN, move |req| {
            let question = req.json::<PolicyQuestion>()?;
            Ok(Response::json(200, &explain(&asked, &question)?))
        })
        .summary("Whether a client would get a token, and which rule of the policy in force decides.")
        .body::<PolicyQuestion>()
        .returns::<PolicyVerdict>(200)
        .errors(&[400, 503]),
    ]
}

fn shown(in_force: &InForce) -> Result<CurrentPolicy, Problem> {
    let policy = strict::from_slice(&in_force.bytes);
    Ok(CurrentPolicy {
        version: in_force.policy.version,
        hash: in_force.hash,
        policy: policy.map_err(|e| Problem::internal(e.to_string()))?,
        signature: in_force.sig.clone(),
    })
}

fn put(api: &Api, req: &Request) -> Result<Response, Problem> {
    let body = req.json::<PutIssuerPolicy>()?;
    let bytes = jcs::to_vec(&body.policy)
        .map_err(|e| Problem::bad_request(format!("policy: it has no canonical form: {e}")))?;
    let keys = &api.policies.keys;
    let new = signed_policy::check(IssuerPolicy::KIND, &bytes, &body.signature, keys);
    let new: InForce = new.map_err(|why| Problem::bad_request(format!("the policy {why}")))?;
    let faults = new.policy.faults();
    if !faults.is_empty() {
        return Err(Problem::bad_request(format!(
            "the policy has faults: {}",
            faults.join("; ")
        )));
    }
    let answer = shown(&new)?;
    let (version, by) = (new.policy.version, &*req.principal.name);
    tracing::info!(service = "svc-passport", event = "policy_sent", version, by);
    api.policies.put(new)?;
    Ok(Response::json(200, &answer))
}

fn explain(api: &Api, question: &PolicyQuestion) -> Result<PolicyVerdict, Problem> {
    let limits = api.limits.load();
    api.with_policy(|policy| {
        let verdict = PolicyVerdict {
            issued: false,
            version: policy.version,
            rule: rule(policy, question),
            error: None,
            reason: None,
            token: None,
        };
        Ok(
            match answer(policy, question, &limits, api.keys.pq_ready()) {
                Ok(token) => PolicyVerdict {
                    issued: true,
                    token: Some(token),
                    ..verdict
                },
                Err(problem) => PolicyVerdict {
                    error: Some(problem.oauth.unwrap_or(problem.code).to_owned()),
                    reason: Some(problem.detail),
                    ..verdict
                },
            },
        )
    })
}

/// The place in the policy that decides.
fn rule(policy: &IssuerPolicy, question: &PolicyQuestion) -> Option<String> {
    let mut clients = policy.clients.iter();
    let at = clients.position(|rule| rule.client_id == question.client_id)?;
    let client = &policy.clients[at];
    let name = client.asked(question.audience.as_deref());
    let mut audiences = client.audiences.iter();
    Some(
        match audiences.position(|one| Some(&*one.audience) == name) {
            Some(n) => format!("clients[{at}].audiences[{n}]"),
            None => format!("clients[{at}]"),
        },
    )
}
