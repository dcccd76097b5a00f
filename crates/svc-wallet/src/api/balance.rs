//! `GET /v1/balance?account&asset&at`: from the cache while it is fresh, else from the ledger; while
//! the ledger is unavailable, from the last known document with its true age.

use std::sync::Arc;
use std::time::Duration;

use ron_client::ClientError;
use ron_http::{Need, Request, Response, Route};
use ron_kernel::Deadline;
use ron_proto::ledger::PointInTime;
use ron_proto::wallet::{Balance, WalletAction};
use ron_proto::{Account, Amount, Asset, Problem, scope};

use super::history::MIN_SEQ;
use super::{Api, existing, sequence};
use crate::balances::KnownBalance;

/// How long to wait for the ledger when a cached document can be served instead.
const FALLBACK_WAIT: Duration = Duration::from_millis(250);

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get("/v1/balance", Need::Scope(scope::WALLET_READ), move |req| {
        api.metrics.requests.with_label_values(&["balance"]).inc();
        req.query_only(&["account", "asset", "at", "min_seq"])?;
        let account: Account = req.query_required("account")?;
        let asset: Asset = req.query_required("asset")?;
        let at = req.query_as::<PointInTime>("at")?;
        let min_seq = sequence(req, "min_seq")?.unwrap_or(0);
        let read = WalletAction::Read;
        api.allow(req, read, &account, Some(&asset), None)?;
        if let Some(at) = at {
            let past = at_a_point(&api, req, (account, asset), at, min_seq)?;
            return Ok(Response::json(200, &past).cache("no-store"));
        }
        let found = find(&api, req, &account, min_seq)?;
        api.metrics.staleness.observe(found.age.as_secs_f64());
        Ok(Response::json(200, &to_balance(&found, asset)).cache("no-store"))
    })
    .summary("Balance of an account in one asset, with the age of the value.")
    .query_as::<Account>("account", true, "Account to read")
    .query_as::<Asset>("asset", true, "Asset to read")
    .query_as::<String>(
        "at",
        false,
        "A ledger sequence, or a time: only entries up to it count; now by default",
    )
    .query_as::<u64>("min_seq", false, MIN_SEQ)
    .returns::<Balance>(200)
    .errors(&[400, 403, 429, 503])
    .while_draining()
}

/// The balance after the last entry at or before a point.
fn at_a_point(
    api: &Api,
    req: &Request,
    (account, asset): (Account, Asset),
    at: PointInTime,
    min_seq: u64,
) -> Result<Balance, Problem> {
    let query = [
        ("asset", asset.to_string()),
        ("at", at.to_string()),
        ("min_seq", min_seq.to_string()),
    ];
    let past = api
        .upstream
        .client
        .balance_at(&account, &query, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "account"))?;
    Ok(Balance {
        account,
        asset,
        amount_minor: past.amount_minor,
        overdrawn_minor: past.overdrawn_minor,
        available_minor: Amount(past.amount_minor.0.saturating_sub(past.held_minor.0)),
        as_of: past.ts,
        as_of_seq: past.seq,
        stale_ms: 0,
        nonce: None,
    })
}

fn find(
    api: &Api,
    req: &Request,
    account: &Account,
    min_seq: u64,
) -> Result<KnownBalance, Problem> {
    let asked = api.clock.now();
    let knows = |found: &KnownBalance| {
        #[cfg(mutant = "known")] // whatever the reader knows already
        if ron_kernel::mutant("known") {
            return true;
        }
        found.doc.seq >= min_seq
    };
    if let Some(found) = api.balances.fresh(account, asked).filter(knows) {
        return Ok(found);
    }
    let older = api.balances.stale(account, asked).filter(knows);
    let failed = |e: Option<&ClientError>| {
        // The age at the time of this answer, not at the time of the request.
        let last = api.balances.stale(account, api.clock.now()).filter(knows);
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
            existing(min_seq, doc.seq)?;
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
        overdrawn_minor: row.map_or(zero, |b| b.overdrawn_minor),
        available_minor: row.map_or(zero, |b| b.available_minor),
        as_of: doc.ts,
        as_of_seq: doc.seq,
        stale_ms: u64::try_from(found.age.as_millis()).unwrap_or(u64::MAX),
        nonce: Some(doc.nonce),
        asset,
    }
}
