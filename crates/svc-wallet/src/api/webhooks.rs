//! `GET /v1/webhooks` and `POST /v1/webhooks/{name}/resume`: the endpoints of the caller's tenant.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_kernel::{SendError, Sender};
use ron_proto::ledger::MAX_WIRE_INTEGER;
use ron_proto::wallet::{ResumeWebhook, WalletPolicy, WebhookDoc, Webhooks};
use ron_proto::{Problem, scope};

use super::seen::is_narrowed;
use super::{Api, rules_caller};
use crate::webhooks::{Endpoint, Webhook};

/// An endpoint, and the queue to its thread.
pub type WebhookHandle = (Arc<Webhook>, Sender<ResumeWebhook>);

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let admin = Need::Scope(scope::WALLET_ADMIN);
    let (list_api, resume_api) = (api.clone(), api.clone());
    [
        Route::get("/v1/webhooks", admin, move |req| {
            list_api.metrics.requests.with_label_values(&["webhooks"]).inc();
            req.query_only(&[])?;
            let own = own(&list_api, req);
            let webhooks = own.map(|(webhook, _)| webhook.doc()).collect();
            let doc = Webhooks { webhooks };
            Ok(Response::json(200, &doc).cache("no-store"))
        })
        .summary("Webhook endpoints of the caller's tenant whose accounts the caller may administer, and how far each is.")
        .returns::<Webhooks>(200)
        .errors(&[403, 429])
        .while_draining(),
        Route::post("/v1/webhooks/{name}/resume", admin, move |req| {
            resume(&resume_api, req)
        })
        .summary("Send to a disabled or failing endpoint again at once, from its cursor or from another one.")
        .body::<ResumeWebhook>()
        .returns::<WebhookDoc>(202)
        .errors(&[400, 403, 404, 429, 503]),
    ]
}

/// The endpoints of the caller's tenant whose accounts it administers: others do not exist for it.
fn own<'a>(api: &'a Api, req: &'a Request) -> impl Iterator<Item = &'a WebhookHandle> {
    let caller = &req.principal;
    let own = move |(webhook, _): &&WebhookHandle| {
        let Endpoint {
            tenant, accounts, ..
        } = &webhook.endpoint;
        let administers = |p: &WalletPolicy| rules_caller(caller).administers(p, accounts);
        *tenant == caller.tenant
            && !is_narrowed(caller)
            && api.policy.with(|p| administers(&p.policy))
    };
    api.webhooks.iter().filter(own)
}

fn resume(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["webhooks"]).inc();
    let body: ResumeWebhook = req.json()?;
    if body.after.is_some_and(|after| after > MAX_WIRE_INTEGER) {
        return Err(Problem::bad_request("after is below 2^53"));
    }
    let name = req.param("name");
    let mut named = own(api, req).filter(|(webhook, _)| webhook.endpoint.name == name);
    let (webhook, resumes) = named
        .next()
        .ok_or_else(|| Problem::not_found("the tenant has no webhook endpoint of this name, or you do not administer its accounts"))?;
    if let Some(after) = body.after {
        // The endpoint's thread would take a cursor beyond the head for one of a ledger that was restored to an earlier
        // state, and would pass over every entry up to the head.
        api.within_head(req, after)?;
    }
    match resumes.try_send(body) {
        Ok(()) => Ok(Response::json(202, &webhook.doc())),
        Err(SendError::Full(_)) => Err(Problem::busy(resumes.retry_after_s())),
        Err(SendError::Closed(_)) => Err(Problem::draining(1)),
    }
}
