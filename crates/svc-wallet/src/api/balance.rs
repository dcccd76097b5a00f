//! `GET /v1/balance?account&asset`.

use std::sync::Arc;

use ron_http::{Need, Response, Route};
use ron_proto::wallet::{Balance, WalletAction};
use ron_proto::{Account, Amount, Asset, Problem, scope};

use super::Api;

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get("/v1/balance", Need::Scope(scope::WALLET_READ), move |req| {
        api.metrics.requests.with_label_values(&["balance"]).inc();
        req.query_only(&["account", "asset"])?;
        let missing =
            |what: &str| Problem::bad_request(format!("the query parameter {what} is missing"));
        let account: Account = req.query_as("account")?.ok_or_else(|| missing("account"))?;
        let asset: Asset = req.query_as("asset")?.ok_or_else(|| missing("asset"))?;
        api.allow(
            &req.principal,
            WalletAction::Read,
            &account,
            Some(&asset),
            None,
        )?;
        let doc = api
            .ledger
            .account(&account, Api::read_deadline(req))
            .map_err(|e| api.read_failed(&e, "account"))?;
        let found = doc.balances.iter().find(|b| b.asset == asset);
        let zero = Amount(0);
        Ok(Response::json(
            200,
            &Balance {
                amount_minor: found.map_or(zero, |b| b.amount_minor),
                available_minor: found.map_or(zero, |b| b.available_minor),
                as_of: doc.ts,
                as_of_seq: doc.seq,
                stale_ms: 0, // read for this answer
                nonce: doc.nonce,
                account,
                asset,
            },
        )
        .cache("no-store"))
    })
    .summary("What an account has of an asset.")
    .query_as::<Account>("account", true, "the account")
    .query_as::<Asset>("asset", true, "the asset")
    .returns::<Balance>(200)
    .errors(&[400, 403, 429, 503])
    .while_draining()
}
