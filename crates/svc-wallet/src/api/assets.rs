//! `GET` and `PUT /v1/assets/{asset}`, and its trial balance.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route};
use ron_proto::ledger::{
    AssetDoc, AssetPage, AssetTerms, Entry, MAX_SCALE, RequestKey, TrialBalance,
};
use ron_proto::wallet::{SetAsset, Transaction, WalletAction};
use ron_proto::{Asset, Problem, scope};

use super::history::{LIMIT, MIN_SEQ, given};
use super::seen::is_for_asset;
use super::submit::{Accepted, write_by};
use super::writes::tag;
use super::{Api, asks, page_limit, param, rules_caller, sequence};
use crate::policy::PolicyRequest;

pub fn routes(api: &Arc<Api>) -> [Route; 4] {
    let [a, b, c] = [api; 3].map(Arc::clone);
    [
        Route::get("/v1/assets", Need::Scope(scope::WALLET_READ), move |req| {
            assets(&c, req)
        })
        .summary("Assets in which the caller may read something, by name, with scale and title.")
        .query_as::<Asset>("after", false, "Only assets after this one")
        .query_as::<u64>("limit", false, LIMIT)
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<AssetPage>(200)
        .errors(&[400, 403, 429, 503])
        .while_draining(),
        Route::get(
            "/v1/assets/{asset}",
            Need::Scope(scope::WALLET_READ),
            move |req| asset(&a, req),
        )
        .summary("Scale and title of an asset; for callers that may read something in it.")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<AssetDoc>(200)
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
        write_by(
            api,
            Method::PUT,
            "/v1/assets/{asset}",
            Need::Scope(scope::WALLET_ADMIN),
            "asset",
            set_asset,
        )
        .summary("Register an asset with its scale, or change its title; for administrators of all accounts.")
        .body::<SetAsset>()
        .returns::<Transaction>(200),
        Route::get(
            "/v1/assets/{asset}/trial-balance",
            Need::Scope(scope::WALLET_ADMIN),
            move |req| trial_balance(&b, req),
        )
        .summary("Credits and debits of an asset by class of account; for administrators of all accounts. One of the past reads every account that changed since, within the time that the request has.")
        .query_as::<String>(
            "at",
            false,
            "A ledger sequence, or a time: only entries up to it count; now by default",
        )
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<TrialBalance>(200)
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
    ]
}

fn asset(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["asset"]).inc();
    req.query_only(&["min_seq"])?;
    let asset: Asset = param(req, "asset")?;
    api.check_asset(req, &asset)?;
    if !reads(api, req, &asset) {
        return Err(Problem::forbidden(
            "the wallet policy has no rule by which you may read in this asset",
        ));
    }
    api.check_min_seq(req)?;
    let doc = api
        .upstream
        .client
        .asset(&asset, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "asset"))?;
    Ok(Response::json(200, &doc).cache("no-store"))
}

fn assets(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["assets"]).inc();
    req.query_only(&["after", "limit", "min_seq"])?;
    let after = req.query_as::<Asset>("after")?;
    let query = [
        ("after", after.map(|asset| asset.to_string())),
        ("limit", Some(page_limit(req)?.to_string())),
        (
            "min_seq",
            sequence(req, "min_seq")?.map(|seq| seq.to_string()),
        ),
    ];
    let mut page = api
        .upstream
        .client
        .assets(&given(query), Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "asset"))?;
    page.assets.retain(|listed| {
        is_for_asset(&req.principal, &listed.asset) && reads(api, req, &listed.asset)
    });
    Ok(Response::json(200, &page).cache("no-store"))
}

/// Whether the policy lets the caller read something in the asset.
fn reads(api: &Api, req: &Request, asset: &Asset) -> bool {
    let caller = rules_caller(&req.principal);
    api.policy.with(|p| caller.reads_asset(&p.policy, asset))
}

/// Checks that the caller administers all accounts.
fn administers(api: &Api, req: &Request, asset: &Asset) -> Result<(), Problem> {
    let ask = PolicyRequest {
        asset: Some(asset),
        ..asks(&req.principal, WalletAction::Admin)
    };
    api.check(req, &ask)?;
    Ok(())
}

fn set_asset(api: &Api, req: &Request) -> Result<Accepted, Problem> {
    let RequestKey {
        tenant,
        principal,
        key,
    } = tag(req)?.owned;
    let body: SetAsset = req.json()?;
    if body.scale > MAX_SCALE {
        return Err(Problem::bad_request(format!(
            "scale is at most {MAX_SCALE}"
        )));
    }
    let asset: Asset = param(req, "asset")?;
    administers(api, req, &asset)?;
    let entry = Entry::Asset {
        tenant,
        principal,
        key,
        asset: asset.clone(),
        terms: AssetTerms {
            scale: body.scale,
            title: body.title,
        },
        details: body.details,
    };
    // No account is concerned; a name for all registrations keeps their order.
    let order = "assets".parse().expect("a constant name");
    Ok(Accepted::one(entry, order))
}

fn trial_balance(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics
        .requests
        .with_label_values(&["trial_balance"])
        .inc();
    req.query_only(&["at", "min_seq"])?;
    let asset: Asset = param(req, "asset")?;
    administers(api, req, &asset)?;
    let query = [
        ("at", req.query_one("at")?.map(str::to_owned)),
        (
            "min_seq",
            sequence(req, "min_seq")?.map(|seq| seq.to_string()),
        ),
    ];
    // The work grows with the accounts that changed since then, so it may take all of the caller's time.
    let doc = api
        .upstream
        .client
        .trial_balance(&asset, &given(query), req.deadline)
        .map_err(|e| api.read_failed(&e, "asset"))?;
    Ok(Response::json(200, &doc).cache("no-store"))
}
