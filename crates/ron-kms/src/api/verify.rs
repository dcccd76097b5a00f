//! `POST /verify` and `POST /verify_batch`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_custody::{NO_MATCH, OK, Refusal};
use ron_http::{Method, Principal, Request, Response, Route};
use ron_kernel::RankedMutex;
use ron_proto::kms::{VerifyAnswer, VerifyBatch, VerifyBatchAnswer, VerifyRequest};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{Alg, Tenant};

use super::batch::{batch_answer, check_items};
use super::{Action, route};
use crate::errors::problem;
use crate::topology::VERIFY_LOCK;
use crate::work::Kms;

/// Maximum batches of one tenant that are verified at the same time: they occupy HTTP workers.
const BATCHES_PER_TENANT: usize = 2;

const ERRORS: &[u16] = &[400, 401, 403, 404, 413, 415, 429, 500, 503, 504];

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 2] {
    let need = scope::KMS_VERIFY;
    let running = Running::default();
    let many = (Method::POST, "/v1/kms/verify_batch");
    [
        route(
            kms,
            (Method::POST, "/v1/kms/verify"),
            need,
            |kms, request| {
                let answer = verify(kms, &request.principal, request.json()?);
                let answer = answer.map_err(problem)?;
                Ok(Action::Respond(Response::json(200, &answer)))
            },
        )
        .summary("Verify signatures; a wrong one is ok: false, not an error")
        .body::<VerifyRequest>()
        .returns::<VerifyAnswer>(200)
        .errors(ERRORS),
        route(kms, many, need, move |kms, request| {
            verify_many(kms, &running, request)
        })
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
    // Counted by the algorithm of the key, which an alias does not say.
    let index = kms.index.load();
    let kid = index.name_of(&caller.tenant, &body.key)?;
    let alg = kid.alg;
    counted(
        kms,
        ("verify", alg),
        |answer: &VerifyAnswer| answer.ok,
        || kms.verify(caller, body),
    )
}

/// Runs a verification and counts its result and its duration. A refused one is an answer of this thread, so it has no leaf.
pub(super) fn counted<T>(
    kms: &Kms,
    (op, alg): (&'static str, Alg),
    matches: impl FnOnce(&T) -> bool,
    check: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let since = kms.clock.now();
    let result = check();
    let label = match &result {
        Ok(answer) if matches(answer) => OK,
        Ok(_) => NO_MATCH,
        Err(refusal) => refusal.cause.code(),
    };
    let took = kms.clock.now().saturating_duration_since(since);
    kms.metrics.verified(op, alg.as_str(), label, took);
    result
}

fn verify_many(kms: &Kms, running: &Running, request: &Request) -> Result<Action, Problem> {
    let batch: VerifyBatch = request.json()?;
    check_items(batch.items.len())?;
    let Some(_one) = running.begin(&request.principal.tenant) else {
        let share = kms.metrics.rejects.with_label_values(&["tenant_share"]);
        share.inc();
        return Err(problem(Refusal::busy(1)));
    };
    let mut results = Vec::with_capacity(batch.items.len());
    for item in batch.items {
        // Checked for each item: a batch must not occupy an HTTP worker beyond its deadline.
        if request.deadline.expired() {
            return Err(Problem::deadline_exceeded(
                "the batch takes longer than the request's deadline; send fewer items",
            ));
        }
        results.push(verify(kms, &request.principal, item));
    }
    let answer = batch_answer(results.into_iter());
    Ok(Action::Respond(Response::json(200, &answer)))
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
