//! `GET` and `PUT /v1/assets/{asset}`, and its trial balance.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route};
use ron_proto::ledger::{AssetDoc, AssetTerms, Entry, MAX_SCALE, RequestKey, TrialBalance};
use ron_proto::wallet::{SetAsset, Transaction, WalletAction};
use ron_proto::{Asset, Problem, scope};

use super::history::{MIN_SEQ, given};
use super::submit::{Accepted, write_by};
use super::writes::tag;
use super::{Api, asks, param, rules_caller, sequence};
use crate::policy::PolicyRequest;

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    let [a, b] = [api; 2].map(Arc::clone);
    [
        Route::get(
            "/v1/assets/{asset}",
            Need::Scope(scope::WALLET_READ),
            move |req| asset(&a, req),
        )
        .summary("Scale and title of an asset; for callers that may read something in it.")
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
        .summary("Credits and debits of an asset by class of account; for administrators of all accounts.")
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
    req.query_only(&[])?;
    let asset: Asset = param(req, "asset")?;
    api.check_asset(req, &asset)?;
    let caller = rules_caller(&req.principal);
    let reads = api.policy.with(|p| caller.reads_asset(&p.policy, &asset));
    if !reads {
        return Err(Problem::forbidden(
            "the wallet policy has no rule by which you may read in this asset",
        ));
    }
    let doc = api
        .upstream
        .client
        .asset(&asset, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "asset"))?;
    Ok(Response::json(200, &doc).cache("no-store"))
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
    let doc = api
        .upstream
        .client
        .trial_balance(&asset, &given(query), Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "asset"))?;
    Ok(Response::json(200, &doc).cache("no-store"))
}
