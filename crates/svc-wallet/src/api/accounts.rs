//! `POST /v1/account/{a}/freeze`, `/unfreeze` and `GET /v1/account/{a}/history`.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::ledger::{Entry, Event, MAX_WIRE_INTEGER, RequestKey};
use ron_proto::wallet::{HistoryPage, Remarks, Transaction, WalletAction};
use ron_proto::{Account, Problem, scope};

use super::holds::remarks;
use super::submit::{Accepted, write};
use super::writes::{not_reserved, tag};
use super::{Api, is_own};
use crate::render::{code_of, history_entry};

/// Maximum entries of one page.
const PAGE: u64 = 500;

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    let admin = Need::Scope(scope::WALLET_ADMIN);
    let reader = api.clone();
    [
        write(
            api,
            "/v1/account/{account}/freeze",
            admin,
            "freeze",
            |api, req| set_frozen(api, req, true),
        )
        .summary("Freeze an account: it refuses debits until it is unfrozen.")
        .body::<Remarks>()
        .returns::<Transaction>(200),
        write(
            api,
            "/v1/account/{account}/unfreeze",
            admin,
            "unfreeze",
            |api, req| set_frozen(api, req, false),
        )
        .summary("Unfreeze an account: it accepts debits again.")
        .body::<Remarks>()
        .returns::<Transaction>(200),
        Route::get(
            "/v1/account/{account}/history",
            Need::Scope(scope::WALLET_READ),
            move |req| history(&reader, req),
        )
        .summary("Entries that touched an account, oldest first. Refused attempts are shown only to their makers.")
        .query_as::<u64>(
            "after",
            false,
            "Return only entries after this ledger sequence",
        )
        .query_as::<u64>(
            "limit",
            false,
            "Maximum number of entries to return, 1 to 500; 100 by default",
        )
        .returns::<HistoryPage>(200)
        .errors(&[400, 403, 429, 503])
        .while_draining(),
    ]
}

fn account_of(req: &Request) -> Result<Account, Problem> {
    req.param("account")
        .parse()
        .map_err(|e| Problem::bad_request(format!("{e}")))
}

fn set_frozen(api: &Api, req: &Request, frozen: bool) -> Result<Accepted, Problem> {
    let tag = tag(req)?;
    let details = remarks(req)?;
    let account = account_of(req)?;
    not_reserved(&account)?;
    api.allow(req, WalletAction::Admin, &account, None, None)?;
    let RequestKey {
        tenant,
        principal,
        key,
    } = tag.owned;
    let entry = if frozen {
        Entry::Freeze {
            tenant,
            principal,
            key,
            account: account.clone(),
            details,
        }
    } else {
        Entry::Unfreeze {
            tenant,
            principal,
            key,
            account: account.clone(),
            details,
        }
    };
    Ok(Accepted::one(entry, account))
}

fn history(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["history"]).inc();
    req.query_only(&["after", "limit"])?;
    let after = req.query_as::<u64>("after")?.unwrap_or(0);
    let limit = req.query_as::<u64>("limit")?.unwrap_or(100);
    if after > MAX_WIRE_INTEGER || limit == 0 || limit > PAGE {
        return Err(Problem::bad_request(format!(
            "limit is 1 to {PAGE}, after is below 2^53"
        )));
    }
    let account = account_of(req)?;
    api.allow(req, WalletAction::Read, &account, None, None)?;
    let page = api
        .upstream
        .client
        .history(&account, after, limit, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "history"))?;
    let doc = HistoryPage {
        account,
        entries: page
            .events
            .into_iter()
            .filter(|event| concerns(req, event))
            .map(history_entry)
            .collect(),
        next: page.next,
        head: page.head,
    };
    Ok(Response::json(200, &doc).cache("no-store"))
}

/// Whether an entry is part of the history that the caller sees: an attempt that was refused changed
/// nothing, and only its maker sees it.
fn concerns(req: &Request, event: &Event) -> bool {
    code_of(&event.answer).is_none() || is_own(&req.principal, &event.entry)
}
