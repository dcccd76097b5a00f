//! What a payee reads of an epoch, with a token that may be limited to its account: payout, proof and
//! explanation.

use std::sync::Arc;

use ron_http::{Request, Response, Route};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{Payout, PayoutExplanation, PayoutProof};
use ron_proto::values::Account;

use super::epochs::{DRY_RUN, READ, damaged, quarantined, reader, reads_dry_runs, sealed};
use super::explained::NoPlan;
use super::{Api, Concern, param};
use crate::inline;
use crate::manifest::reader::{ProveError, prove};
use crate::manifest::verify;

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    let get = |path, answer: fn(&Api, &Request, &Account) -> Result<Response, Problem>| {
        let api = Arc::clone(api);
        let answer = move |request: &Request| {
            let account: Account = param(request, "account")?;
            api.check_caveats(request, Concern::Account(&account))?;
            request.query_only(&[DRY_RUN])?;
            answer(&api, request, &account)
        };
        reads_dry_runs(Route::get(path, READ, answer).while_draining())
    };
    vec![
        get("/rewarder/epochs/{id}/payouts/{account}", payout)
            .summary("An account's payout.")
            .returns::<Payout>(200)
            .errors(&[400, 404, 409]),
        get("/rewarder/epochs/{id}/proof/{account}", proof)
            .summary("Proof of an account's payout and of the total, up to the signed manifest.")
            .returns::<PayoutProof>(200)
            .errors(&[400, 404, 409]),
        get("/rewarder/epochs/{id}/explain/{account}", explain)
            .summary("Why an account gets what it gets, recomputed from the sealed inputs.")
            .returns::<PayoutExplanation>(200)
            .errors(&[400, 404, 409, 429]),
    ]
}

fn payout(api: &Api, request: &Request, account: &Account) -> Result<Response, Problem> {
    let payout = reader(api, request)?.payout(account);
    match payout.map_err(|error| damaged(&error))? {
        Some(payout) => Ok(Response::json(200, &payout)),
        None => Err(not_paid()),
    }
}

fn proof(api: &Api, request: &Request, account: &Account) -> Result<Response, Problem> {
    inline::here();
    match prove(&sealed(api, request)?, account) {
        Ok(proof) => Ok(Response::json(200, &proof)),
        Err(ProveError::NotPaid) => Err(not_paid()),
        Err(ProveError::Dir(error)) => Err(damaged(&error)),
    }
}

fn explain(api: &Api, request: &Request, account: &Account) -> Result<Response, Problem> {
    inline::here();
    let dir = sealed(api, request)?;
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    if manifest.payouts.is_none() {
        return Err(quarantined(api, request)?);
    }
    let plan = match api.explained.plan(&dir, manifest.commitment) {
        Ok(plan) => plan,
        Err(NoPlan::Busy) => return Err(Problem::busy(1)),
        Err(NoPlan::Damaged(error)) => return Err(damaged(&error)),
    };
    let explained = plan.explain(account).map_err(|error| damaged(&error))?;
    Ok(Response::json(200, &explained))
}

fn not_paid() -> Problem {
    Problem::not_found("this account has no payout in this epoch")
}
