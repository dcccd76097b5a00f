//! The HTTP API of the ledger: routes under `/v1/ledger` and the log under `/log/v1`.

mod commits;
mod errors;
mod reads;
mod receipts;

use std::sync::Arc;

use ron_http::{ApiInfo, Method, Need, Route, Router};
use ron_kernel::{Snapshot, Supervisor};
use ron_proto::ledger::{
    AccountDoc, BudgetDoc, CommitAnswer, CommitRequest, EntryAnswer, EpochDoc, Event, EventPage,
    Head, HoldDoc, MAX_COMMIT_BYTES, RequestKey, ReversalsDoc,
};
use ron_proto::scope;
use ron_service::log_host::LogHost;

use crate::feed::Feed;
use crate::ledger::Ledger;
use crate::projection::ProjectionReader;

/// State shared by the handlers.
pub struct Api {
    pub ledger: Ledger,
    pub feed: Feed,
    pub history: Option<ProjectionReader>,
    /// Prefixes of the accounts that may fund reward epochs; replaced by a reload.
    pub pool_prefixes: Arc<Snapshot<Vec<String>>>,
    /// The log, for receipt files.
    pub log: LogHost,
    pub sup: Supervisor,
}

/// The ledger's own routes; those of the log come from the chassis.
pub fn router(api: &Arc<Api>) -> Router {
    let info = ApiInfo {
        title: "ron-ledger",
        version: env!("CARGO_PKG_VERSION"),
        description: "Durable double-entry ledger: nonces, idempotency, receipts with proofs.",
    };
    Router::new(info)
        .add_all(write_routes(api))
        .add_all(state_routes(api))
        .add_all(entry_routes(api))
        .add_all(receipts::routes(api))
}

/// Without `ledger:audit`, a caller that is not a service of the installation sees only what belongs to its tenant.
const READ: Need = Need::Scope(scope::LEDGER_READ);

fn write_routes(api: &Arc<Api>) -> [Route; 2] {
    let (a, b) = (Arc::clone(api), Arc::clone(api));
    [
        Route::new(Method::POST, "/v1/ledger/commit", Need::Identity, move |req, res| commits::commit(&a, &req, res))
            .summary("Commit up to 1,000 entries; for service tokens of tenant ron only, settlement kinds with ledger:settle, all others with ledger:commit")
            .body::<CommitRequest>()
            .returns::<CommitAnswer>(200)
            .errors(&[400, 403, 429, 503, 504])
            .body_cap(MAX_COMMIT_BYTES)
            .while_draining(),
        Route::new(Method::POST, "/v1/ledger/resolve", Need::Scope(scope::LEDGER_COMMIT), move |req, res| {
            commits::resolve(&b, &req, res);
        })
        .summary("Outcome of an idempotency key; a key without an entry is permanently abandoned; for service tokens of tenant ron only")
        .body::<RequestKey>()
        .returns::<EntryAnswer>(200)
        .errors(&[400, 403, 429, 503, 504])
        .while_draining(),
    ]
}

fn state_routes(api: &Arc<Api>) -> [Route; 6] {
    let [a, b, c, d, e, f] = [api; 6].map(Arc::clone);
    [
        Route::get("/v1/ledger/accounts/{account}", READ, move |req| {
            reads::account(&a, req)
        })
        .summary("Balances, nonce and open holds of an account; with ledger:audit of any account, else of a pool of the caller's tenant")
        .returns::<AccountDoc>(200)
        .errors(&[400, 404])
        .while_draining(),
        Route::get("/v1/ledger/accounts/{account}/history", READ, move |req| {
            reads::history(&b, req)
        })
        .summary("Entries of an account, oldest first; without ledger:audit those of the caller's tenant")
        .query_as::<u64>("after", false, "Return only entries after this sequence")
        .query_as::<u64>(
            "limit",
            false,
            "Maximum number of entries to return, 1 to 500; 500 by default",
        )
        .returns::<EventPage>(200)
        .errors(&[400, 503])
        .while_draining(),
        Route::get("/v1/ledger/holds/{hold}", READ, move |req| {
            reads::hold(&c, req)
        })
        .summary("An open hold")
        .returns::<HoldDoc>(200)
        .errors(&[400, 404])
        .while_draining(),
        Route::get("/v1/ledger/budgets/{id}", READ, move |req| {
            reads::budget(&f, req)
        })
        .summary("What was spent under the budget of a token; without ledger:audit for services of the installation only")
        .returns::<BudgetDoc>(200)
        .errors(&[400, 404])
        .while_draining(),
        Route::get("/v1/ledger/epochs/{tenant}/{epoch}", READ, move |req| {
            reads::epoch(&d, req)
        })
        .summary("State of an epoch's settlement")
        .returns::<EpochDoc>(200)
        .errors(&[400, 404])
        .while_draining(),
        Route::get("/v1/ledger/head", Need::Public, move |req| {
            reads::head(&e, req)
        })
        .summary("Head of the log: sequence, size, root")
        .returns::<Head>(200)
        .while_draining(),
    ]
}

fn entry_routes(api: &Arc<Api>) -> [Route; 4] {
    let [a, b, c, d] = [api; 4].map(Arc::clone);
    [
        Route::get("/v1/ledger/by-key/{tenant}/{principal}/{key}", READ, move |req| {
            reads::by_key(&a, req)
        })
        .summary("Entry committed under an idempotency key")
        .returns::<Event>(200)
        .errors(&[400, 404])
        .while_draining(),
        Route::get("/v1/ledger/tx/{txid}", READ, move |req| reads::tx(&b, req))
            .summary("Entry of a transaction id")
            .returns::<Event>(200)
            .errors(&[400, 404])
            .while_draining(),
        Route::get("/v1/ledger/tx/{txid}/reversals", READ, move |req| {
            reads::reversals(&d, req)
        })
        .summary("How much of a transaction is reversed, and by what")
        .returns::<ReversalsDoc>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::new(Method::GET, "/v1/ledger/events", READ, move |req, res| {
            reads::events(&c, &req, res);
        })
        .summary(
            "Entries after a sequence, in order; with ledger:audit all of them without gaps, else those of the caller's tenant; wait=S makes it a long poll",
        )
        .query_as::<u64>(
            "after",
            false,
            "Return only entries after this sequence; 0 reads everything. A sequence beyond the head is answered at once, with a smaller `head`: the ledger is a different one",
        )
        .query_as::<u64>(
            "wait",
            false,
            "Maximum seconds to wait for an entry when there is none yet, up to 30",
        )
        .query_as::<u64>("limit", false, "Maximum number of entries to read, 1 to 500; 500 by default")
        .returns::<EventPage>(200)
        .errors(&[400, 429, 503])
        .long_poll(),
    ]
}
