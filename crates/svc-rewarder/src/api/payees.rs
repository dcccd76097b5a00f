//! What a payee reads of an epoch, with a token that may be limited to its account: payout, proof and
//! explanation.

use std::sync::Arc;

use ron_files::Dir;
use ron_http::{Request, Response, Route};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{
    AccountPayouts, AssetPayout, PayoutExplanation, PayoutProof, RunManifest,
};
use ron_proto::values::Account;

use super::epochs::{
    ASSET, DRY_RUN, READ, damaged, quarantined, reads_assets, reads_dry_runs, sealed, sealed_run,
};
use super::explained::NoPlan;
use super::{Api, Concern, param};
use crate::inline;
use crate::manifest::assets;
use crate::manifest::reader::{ProveError, Reader, prove};
use crate::manifest::verify::{self, VerifyError};

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    let get = |path, answer: fn(&Api, &Request, &Account) -> Result<Response, Problem>| {
        let api = Arc::clone(api);
        let answer = move |request: &Request| {
            let account: Account = param(request, "account")?;
            api.check_caveats(request, Concern::Account(&account))?;
            answer(&api, request, &account)
        };
        Route::get(path, READ, answer).while_draining()
    };
    vec![
        reads_dry_runs(get("/rewarder/epochs/{id}/payouts/{account}", payouts))
            .summary("What an account is paid: one payout for each asset of the epoch.")
            .returns::<AccountPayouts>(200)
            .errors(&[400, 404, 409]),
        reads_assets(get("/rewarder/epochs/{id}/proof/{account}", proof))
            .summary("Proof of an account's payout and of the total, up to the signed manifest.")
            .returns::<PayoutProof>(200)
            .errors(&[400, 404, 409]),
        reads_assets(get("/rewarder/epochs/{id}/explain/{account}", explain))
            .summary("Why an account gets what it gets, recomputed from the sealed inputs.")
            .returns::<PayoutExplanation>(200)
            .errors(&[400, 404, 409, 429]),
    ]
}

fn payouts(api: &Api, request: &Request, account: &Account) -> Result<Response, Problem> {
    inline::here();
    request.query_only(&[DRY_RUN])?;
    let run = sealed_run(api, request)?;
    let manifest = verify::read_manifest(&run).map_err(|error| damaged(&error))?;
    if manifest.payouts.is_none() {
        return Err(quarantined(api, request)?);
    }
    let payouts = paid(&run, &manifest, account).map_err(|error| damaged(&error))?;
    if payouts.is_empty() {
        return Err(not_paid());
    }
    let answer = AccountPayouts {
        account: account.clone(),
        payouts,
    };
    Ok(Response::json(200, &answer))
}

/// The account's payout in each asset of a run.
fn paid(
    run: &Dir,
    manifest: &RunManifest,
    account: &Account,
) -> Result<Vec<AssetPayout>, VerifyError> {
    let mut paid = Vec::new();
    for dir in assets::of_each_asset(run, manifest) {
        let reader = Reader::open(&dir)?;
        let payout = reader.payout(account)?;
        paid.extend(payout.map(|payout| AssetPayout {
            asset: reader.manifest.asset.clone(),
            index: payout.index,
            amount_minor: payout.amount_minor,
        }));
    }
    Ok(paid)
}

fn proof(api: &Api, request: &Request, account: &Account) -> Result<Response, Problem> {
    inline::here();
    request.query_only(&[ASSET, DRY_RUN])?;
    match prove(&sealed(api, request)?, account) {
        Ok(proof) => Ok(Response::json(200, &proof)),
        Err(ProveError::NotPaid) => Err(not_paid()),
        Err(ProveError::Dir(error)) => Err(damaged(&error)),
    }
}

fn explain(api: &Api, request: &Request, account: &Account) -> Result<Response, Problem> {
    inline::here();
    request.query_only(&[ASSET, DRY_RUN])?;
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
