//! `GET /v1/account/{a}/history`, `/v1/tx?reference`, `/v1/accounts` and `/v1/holds`: what the ledger's
//! history answers.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{
    AccountPage, Direction, EntryKind, EntryPage, EntrySearch, FoundEntry, HoldPage, HoldState,
};
use ron_proto::wallet::{FoundTransactions, HistoryEntry, HistoryPage, WalletAction};
use ron_proto::{Account, Asset, Problem, Timestamp, scope};

use super::seen::within;
use super::{Api, page_limit, param, sequence, viewer};
use crate::render::{Texts, history_entry, shown};

pub const MIN_SEQ: &str = "Ledger sequence that the answer must know: `seq` of an earlier receipt";
pub const LIMIT: &str = "Maximum number of items to return, 1 to 500; 100 by default";
const METADATA: &str = "name=value: a member of the metadata, of entries whose texts the caller may see; may be repeated";
const BEFORE: &str = "Return only entries before this ledger sequence, the newest of them";
const AFTER: &str = "Return only entries after this ledger sequence, the oldest of them; the page is newest first all the same";

pub fn routes(api: &Arc<Api>) -> [Route; 4] {
    let [a, b, c, d] = [api; 4].map(Arc::clone);
    let read = || Need::Scope(scope::WALLET_READ);
    [
        Route::get("/v1/account/{account}/history", read(), move |req| {
            history(&a, req)
        })
        .summary("Entries that touched an account, newest first. Refused attempts are shown only to their makers.")
        .query_as::<u64>("before", false, BEFORE)
        .query_as::<u64>("after", false, AFTER)
        .query_as::<u64>("limit", false, LIMIT)
        .query_as::<Timestamp>("from", false, "First time of the range")
        .query_as::<Timestamp>("until", false, "End of the range, not part of it")
        .query_as::<Asset>("asset", false, "Asset of the entry")
        .query_as::<EntryKind>("kind", false, "Kind of the entry")
        .query_as::<Direction>("direction", false, "Whether the account was credited (in) or debited (out)")
        .query_as::<Account>("counterparty", false, "The account on the other side")
        .query_as::<String>("reference", false, "Reference of the entry, as far as the caller may see it")
        .query_as::<String>("batch", false, "Batch: the transaction id of its first item")
        .query_as::<String>("hold", false, "Hold that was captured, released or expired")
        .query_as::<String>("metadata", false, METADATA)
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<HistoryPage>(200)
        .errors(&[400, 403, 429, 503])
        .while_draining(),
        Route::get("/v1/tx", read(), move |req| transactions(&b, req))
            .summary("Transactions made with a reference, newest first: the caller's own, and those of its tenant that debited an account it may read. Directions and counterparties are seen from an account: its history takes a reference too.")
            .query_as::<String>("reference", true, "Reference given by the maker")
            .query_as::<u64>("before", false, BEFORE)
            .query_as::<u64>("after", false, AFTER)
            .query_as::<u64>("limit", false, LIMIT)
            .query_as::<Timestamp>("from", false, "First time of the range")
            .query_as::<Timestamp>("until", false, "End of the range, not part of it")
            .query_as::<Asset>("asset", false, "Asset of the entry")
            .query_as::<EntryKind>("kind", false, "Kind of the entry")
            .query_as::<String>("batch", false, "Batch: the transaction id of its first item")
            .query_as::<String>("hold", false, "Hold that was captured, released or expired")
            .query_as::<String>("metadata", false, METADATA)
            .query_as::<u64>("min_seq", false, MIN_SEQ)
            .returns::<FoundTransactions>(200)
            .errors(&[400, 403, 429, 503])
            .while_draining(),
        Route::get("/v1/accounts", read(), move |req| accounts(&c, req))
            .summary("Accounts that were ever opened, used or given terms and that the caller may read, by name: balances, holds and limits in the assets that the caller may read, class, whether they are frozen or closed.")
            .query_as::<String>("prefix", false, "Only accounts whose name begins with this")
            .query_as::<Account>("after", false, "Only accounts after this one")
            .query_as::<u64>("limit", false, LIMIT)
            .query_as::<u64>("min_seq", false, MIN_SEQ)
            .returns::<AccountPage>(200)
            .errors(&[400, 403, 429, 503])
            .while_draining(),
        Route::get("/v1/holds", read(), move |req| holds(&d, req))
            .summary("Holds of an account, newest first.")
            .query_as::<Account>("account", true, "Account whose money is or was reserved")
            .query_as::<Asset>("asset", false, "Asset of the hold")
            .query_as::<HoldState>("state", false, "open or ended")
            .query_as::<u64>("before", false, "Return only holds made before this ledger sequence")
            .query_as::<u64>("limit", false, LIMIT)
            .query_as::<u64>("min_seq", false, MIN_SEQ)
            .returns::<HoldPage>(200)
            .errors(&[400, 403, 429, 503])
            .while_draining(),
    ]
}

fn history(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["history"]).inc();
    req.query_only(&[&FILTERS[..], &["reference", "direction", "counterparty"]].concat())?;
    let account = param(req, "account")?;
    let asset: Option<Asset> = req.query_as("asset")?;
    api.allow(req, WalletAction::Read, &account, asset.as_ref(), None)?;
    let viewer = viewer(&req.principal)?;
    let search = EntrySearch {
        account: Some(account.clone()),
        reference: req.query_as("reference")?,
        direction: req.query_as("direction")?,
        counterparty: req.query_as("counterparty")?,
        viewer: Some(viewer.clone()),
        ..filtered(req)?
    };
    let page = search_entries(api, req, &search)?;
    let shown = |found: FoundEntry| HistoryEntry {
        balance_minor: found.balance_minor,
        ..shown(found.event, &viewer, &account)
    };
    let doc = HistoryPage {
        entries: page.entries.into_iter().map(shown).collect(),
        account: account.clone(),
        older: page.older,
        newer: page.newer,
        head: page.head,
    };
    Ok(Response::json(200, &doc).cache("no-store"))
}

/// Filters and cursors that every search takes.
const FILTERS: [&str; 11] = [
    "before", "after", "limit", "min_seq", "from", "until", "asset", "kind", "batch", "hold",
    "metadata",
];

/// A search with these.
fn filtered(req: &Request) -> Result<EntrySearch, Problem> {
    Ok(EntrySearch {
        batch: req.query_as("batch")?,
        hold: req.query_as("hold")?,
        asset: req.query_as("asset")?,
        kind: req.query_as("kind")?,
        metadata: req.query_many("metadata")?,
        from: req.query_as("from")?,
        until: req.query_as("until")?,
        before: sequence(req, "before")?,
        after: sequence(req, "after")?,
        limit: page_limit(req)?,
        min_seq: sequence(req, "min_seq")?.unwrap_or(0),
        ..EntrySearch::default()
    })
}

fn search_entries(api: &Api, req: &Request, search: &EntrySearch) -> Result<EntryPage, Problem> {
    let found = api.upstream.client.entries(search, Api::read_deadline(req));
    found.map_err(|e| api.read_failed(&e, "entry"))
}

fn transactions(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["tx"]).inc();
    req.query_only(&[&FILTERS[..], &["reference"]].concat())?;
    let reference = req.query_required("reference")?;
    let search = EntrySearch {
        reference: Some(reference),
        viewer: Some(viewer(&req.principal)?),
        ..filtered(req)?
    };
    let page = search_entries(api, req, &search)?;
    let caller = &req.principal;
    let seen = |found: FoundEntry| {
        if !within(caller, &found.event) {
            return None;
        }
        let texts = api.texts(caller, &found.event);
        let shown = history_entry(found.event, texts);
        // What the caller does not see must not be found by guessing it either.
        let guessed = texts != Texts::All && !search.metadata.is_empty();
        (shown.reference.is_some() && !guessed).then_some(shown)
    };
    let doc = FoundTransactions {
        entries: page.entries.into_iter().filter_map(seen).collect(),
        older: page.older,
        newer: page.newer,
    };
    Ok(Response::json(200, &doc).cache("no-store"))
}

fn accounts(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["accounts"]).inc();
    req.query_only(&["prefix", "after", "limit", "min_seq"])?;
    let limit = page_limit(req)?;
    let after = req.query_as::<Account>("after")?;
    let query = [
        ("prefix", req.query_as::<String>("prefix")?),
        ("after", after.map(|account| account.to_string())),
        ("limit", Some(limit.to_string())),
        (
            "min_seq",
            sequence(req, "min_seq")?.map(|seq| seq.to_string()),
        ),
    ];
    let mut page = api
        .upstream
        .client
        .accounts(&given(query), Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "account"))?;
    let listed = page.accounts.into_iter();
    page.accounts = listed
        .filter_map(|listed| api.readable(&req.principal, listed))
        .collect();
    Ok(Response::json(200, &page).cache("no-store"))
}

fn holds(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics
        .requests
        .with_label_values(&["hold_state"])
        .inc();
    req.query_only(&["account", "asset", "state", "before", "limit", "min_seq"])?;
    let account: Account = req.query_required("account")?;
    let asset: Option<Asset> = req.query_as("asset")?;
    api.allow(req, WalletAction::Read, &account, asset.as_ref(), None)?;
    let state = req.query_as::<HoldState>("state")?;
    let query = [
        ("account", Some(account.to_string())),
        ("asset", asset.map(|asset| asset.to_string())),
        ("state", state.map(|state| state.as_str().to_owned())),
        (
            "before",
            sequence(req, "before")?.map(|seq| seq.to_string()),
        ),
        ("limit", Some(page_limit(req)?.to_string())),
        (
            "min_seq",
            sequence(req, "min_seq")?.map(|seq| seq.to_string()),
        ),
    ];
    let page: HoldPage = api
        .upstream
        .client
        .holds(&given(query), Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "account"))?;
    Ok(Response::json(200, &page).cache("no-store"))
}

/// The members of a query that have a value.
pub fn given<const N: usize>(
    query: [(&'static str, Option<String>); N],
) -> Vec<(&'static str, String)> {
    let given = query.into_iter();
    given
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .collect()
}
