//! The HTTP API of the ledger: routes under `/v1/ledger` and the log under `/log/v1`.

mod commits;
mod errors;
mod reads;
mod receipts;

use std::sync::Arc;

use ron_http::{ApiInfo, Method, Need, Route, Router};
use ron_kernel::{Snapshot, Supervisor};
use ron_proto::ledger::{
    AccountDoc, CommitAnswer, CommitRequest, EntryAnswer, EpochDoc, Event, EventPage, Head,
    HoldDoc, MAX_COMMIT_BYTES, RequestKey,
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

const READ: Need = Need::Scope(scope::LEDGER_READ);

fn write_routes(api: &Arc<Api>) -> [Route; 2] {
    let (a, b) = (Arc::clone(api), Arc::clone(api));
    [
        Route::new(Method::POST, "/v1/ledger/commit", Need::Identity, move |req, res| commits::commit(&a, &req, res))
            .summary("Commit up to 1,000 entries; settlement kinds need ledger:settle, all others ledger:commit")
            .body::<CommitRequest>()
            .returns::<CommitAnswer>(200)
            .errors(&[400, 403, 429, 503, 504])
            .body_cap(MAX_COMMIT_BYTES)
            .while_draining(),
        Route::new(Method::POST, "/v1/ledger/resolve", Need::Scope(scope::LEDGER_COMMIT), move |req, res| {
            commits::resolve(&b, &req, res);
        })
        .summary("Outcome of an idempotency key; a key without an entry is permanently abandoned")
        .body::<RequestKey>()
        .returns::<EntryAnswer>(200)
        .errors(&[400, 429, 503, 504])
        .while_draining(),
    ]
}

fn state_routes(api: &Arc<Api>) -> [Route; 5] {
    let [a, b, c, d, e] = [api, api, api, api, api].map(Arc::clone);
    [
        Route::get("/v1/ledger/accounts/{account}", READ, move |req| {
            reads::account(&a, req)
        })
        .summary("Balances, nonce and open holds of an account")
        .returns::<AccountDoc>(200)
        .errors(&[400])
        .while_draining(),
        Route::get("/v1/ledger/accounts/{account}/history", READ, move |req| {
            reads::history(&b, req)
        })
        .summary("Entries of an account, oldest first")
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

fn entry_routes(api: &Arc<Api>) -> [Route; 3] {
    let [a, b, c] = [api, api, api].map(Arc::clone);
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
        Route::new(Method::GET, "/v1/ledger/events", READ, move |req, res| {
            reads::events(&c, &req, res);
        })
        .summary(
            "Entries after a sequence, in order and without gaps; wait=S makes it a long poll",
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
        .query_as::<u64>("limit", false, "Maximum number of entries to return, 1 to 500; 500 by default")
        .returns::<EventPage>(200)
        .errors(&[400, 429, 503])
        .long_poll(),
    ]
}
