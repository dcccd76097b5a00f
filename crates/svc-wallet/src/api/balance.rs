//! `GET /v1/balance?account&asset`: from the cache while it is fresh, else from the ledger; while
//! the ledger is unavailable, from the last known document with its true age.

use std::sync::Arc;
use std::time::Duration;

use ron_client::ClientError;
use ron_http::{Need, Request, Response, Route};
use ron_kernel::Deadline;
use ron_proto::wallet::{Balance, WalletAction};
use ron_proto::{Account, Amount, Asset, Problem, scope};

use super::Api;
use crate::balances::KnownBalance;

/// How long to wait for the ledger when a cached document can be served instead.
const FALLBACK_WAIT: Duration = Duration::from_millis(250);

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get("/v1/balance", Need::Scope(scope::WALLET_READ), move |req| {
        api.metrics.requests.with_label_values(&["balance"]).inc();
        req.query_only(&["account", "asset"])?;
        let missing =
            |what: &str| Problem::bad_request(format!("the query parameter {what} is missing"));
        let account: Account = req.query_as("account")?.ok_or_else(|| missing("account"))?;
        let asset: Asset = req.query_as("asset")?.ok_or_else(|| missing("asset"))?;
        let read = WalletAction::Read;
        api.allow(req, read, &account, Some(&asset), None)?;
        let found = find(&api, req, &account)?;
        api.metrics.staleness.observe(found.age.as_secs_f64());
        Ok(Response::json(200, &to_balance(&found, asset)).cache("no-store"))
    })
    .summary("Balance of an account in one asset, with the age of the value.")
    .query_as::<Account>("account", true, "Account to read")
    .query_as::<Asset>("asset", true, "Asset to read")
    .returns::<Balance>(200)
    .errors(&[400, 403, 429, 503])
    .while_draining()
}

fn find(api: &Api, req: &Request, account: &Account) -> Result<KnownBalance, Problem> {
    let asked = api.clock.now();
    if let Some(found) = api.balances.fresh(account, asked) {
        return Ok(found);
    }
    let older = api.balances.stale(account, asked);
    let failed = |e: Option<&ClientError>| {
        // The age at the time of this answer, not at the time of the request.
        let last = api.balances.stale(account, api.clock.now());
        last.ok_or_else(|| match e {
            Some(e) => api.read_failed(e, "account"),
            None => Problem::unavailable("the ledger cannot be read now", 2),
        })
    };
    if api.upstream.unreachable().is_some() {
        return failed(None);
    }
    let by: Deadline = match older {
        Some(_) => Api::read_deadline(req).capped(FALLBACK_WAIT),
        None => Api::read_deadline(req),
    };
    match api.upstream.client.account(account, by) {
        Ok(doc) => {
            let doc = Arc::new(doc);
            api.balances.keep(Arc::clone(&doc), asked);
            // The document was read for this answer.
            let age = Duration::ZERO;
            Ok(KnownBalance { doc, age })
        }
        Err(e) => failed(Some(&e)),
    }
}

fn to_balance(found: &KnownBalance, asset: Asset) -> Balance {
    let doc = &found.doc;
    let row = doc.balances.iter().find(|b| b.asset == asset);
    let zero = Amount(0);
    Balance {
        account: doc.account.clone(),
        amount_minor: row.map_or(zero, |b| b.amount_minor),
        available_minor: row.map_or(zero, |b| b.available_minor),
        as_of: doc.ts,
        as_of_seq: doc.seq,
        stale_ms: u64::try_from(found.age.as_millis()).unwrap_or(u64::MAX),
        nonce: doc.nonce,
        asset,
    }
}
