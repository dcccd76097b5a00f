//! `POST /verify` and `POST /verify_batch`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_custody::Refusal;
use ron_http::{Method, Need, Principal, Request, Response, Route, sync};
use ron_kernel::RankedMutex;
use ron_proto::kms::{
    BATCH_ITEMS_MAX, VerifyAnswer, VerifyBatch, VerifyBatchAnswer, VerifyRequest, VerifyResult,
};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::Tenant;

use crate::topology::VERIFY_LOCK;
use crate::work::Kms;

/// Maximum batches of one tenant that are verified at the same time: they occupy HTTP workers.
const BATCHES_PER_TENANT: usize = 2;

const ERRORS: &[u16] = &[400, 401, 403, 404, 413, 415, 429, 500, 503, 504];

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 2] {
    let need = Need::Scope(scope::KMS_VERIFY);
    let (one, many) = (kms.clone(), kms.clone());
    let running = Arc::new(Running::default());
    let verify_one = move |request: &Request| {
        let body: VerifyRequest = request.json()?;
        verify(&one, &request.principal, body)
            .map(|answer| Response::json(200, &answer))
            .map_err(Problem::from)
    };
    [
        Route::new(Method::POST, "/v1/kms/verify", need, sync(verify_one))
            .summary("Verify signatures; a wrong one is ok: false, not an error")
            .body::<VerifyRequest>()
            .returns::<VerifyAnswer>(200)
            .errors(ERRORS),
        Route::new(
            Method::POST,
            "/v1/kms/verify_batch",
            need,
            sync(move |request| verify_many(&many, &running, request)),
        )
        .summary("Verify up to 1,000 items: errors per item; two batches of a tenant at a time")
        .body::<VerifyBatch>()
        .returns::<VerifyBatchAnswer>(200)
        .errors(ERRORS),
    ]
}

/// Verifies and counts the result and its duration.
pub(super) fn verify(
    kms: &Kms,
    caller: &Principal,
    body: VerifyRequest,
) -> Result<VerifyAnswer, Refusal> {
    let since = kms.clock.now();
    let alg = body.key.alg.as_str();
    let result = kms.verify(caller, body);
    let label = match &result {
        Ok(VerifyAnswer { ok: true, .. }) => "ok",
        Ok(_) => "no_match",
        Err(refusal) => refusal.cause.code(),
    };
    let took = kms.clock.now().saturating_duration_since(since);
    let metrics = &kms.metrics;
    metrics.ops.with_label_values(&["verify", alg, label]).inc();
    metrics
        .op_seconds
        .with_label_values(&["verify", alg])
        .observe(took.as_secs_f64());
    result
}

fn verify_many(kms: &Kms, running: &Running, request: &Request) -> Result<Response, Problem> {
    let batch: VerifyBatch = request.json()?;
    if batch.items.is_empty() || batch.items.len() > BATCH_ITEMS_MAX {
        return Err(Problem::bad_request(format!(
            "`items` must hold 1 to {BATCH_ITEMS_MAX} entries"
        )));
    }
    let Some(_one) = running.begin(&request.principal.tenant) else {
        let share = kms.metrics.rejects.with_label_values(&["tenant_share"]);
        share.inc();
        return Err(Refusal::busy(1).into());
    };
    let mut results = Vec::with_capacity(batch.items.len());
    for item in batch.items {
        // Checked for each item: a batch must not occupy an HTTP worker beyond its deadline.
        if request.deadline.expired() {
            return Err(Problem::deadline_exceeded(
                "the batch takes longer than the request's deadline; send fewer items",
            ));
        }
        results.push(match verify(kms, &request.principal, item) {
            Ok(answer) => VerifyResult {
                answer: Some(answer),
                error: None,
            },
            Err(refusal) => VerifyResult {
                answer: None,
                error: Some(refusal.to_item()),
            },
        });
    }
    Ok(Response::json(200, &VerifyBatchAnswer { results }))
}

/// How many batches each tenant verifies now.
struct Running(RankedMutex<BTreeMap<Tenant, usize>>);

impl Default for Running {
    fn default() -> Self {
        Self(RankedMutex::new(&VERIFY_LOCK, BTreeMap::new()))
    }
}

/// One running batch; ends when dropped.
struct One<'a> {
    running: &'a Running,
    tenant: Tenant,
}

impl Running {
    fn begin(&self, tenant: &Tenant) -> Option<One<'_>> {
        let mut running = self.0.lock();
        let count = running.entry(tenant.clone()).or_default();
        if *count >= BATCHES_PER_TENANT {
            return None;
        }
        *count += 1;
        drop(running);
        Some(One {
            running: self,
            tenant: tenant.clone(),
        })
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        let mut running = self.running.0.lock();
        if let Some(count) = running.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_verifies_two_batches_at_a_time() {
        let running = Running::default();
        let (a, b): (Tenant, Tenant) = ("a".parse().expect("a"), "b".parse().expect("b"));
        let first = running.begin(&a).expect("room");
        let second = running.begin(&a).expect("room");
        assert!(running.begin(&a).is_none());
        assert!(
            running.begin(&b).is_some(),
            "tenants do not share the limit"
        );
        drop(first);
        assert!(running.begin(&a).is_some());
        drop(second);
        assert!(running.0.lock().is_empty());
    }
}
