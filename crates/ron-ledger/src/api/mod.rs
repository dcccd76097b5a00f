//! The HTTP API of the ledger: routes under `/v1/ledger` and the log under `/log/v1`.

mod commits;
mod errors;
mod reads;
mod receipts;

use std::sync::Arc;

use ron_http::{ApiInfo, Method, Need, Route, Router};
use ron_kernel::{Snapshot, Supervisor};
use ron_proto::ledger::{
    AccountDoc, AccountPage, AssetDoc, AssetPage, BudgetDoc, CommitAnswer, CommitRequest,
    Direction, EntryAnswer, EntryKind, EntryPage, EpochDoc, Event, EventPage, Head, HoldDoc,
    HoldPage, HoldState, MAX_COMMIT_BYTES, PastBalance, RequestKey, ReversalsDoc, StatementPage,
    StatementTime, TrialBalance,
};
use ron_proto::{Account, Asset, Timestamp, scope};
use ron_service::lag::FollowerLag;
use ron_service::log_host::LogHost;

use crate::feed::Feed;
use crate::ledger::Ledger;
use crate::projection::ProjectionReader;

/// State shared by the handlers.
pub struct Api {
    pub ledger: Ledger,
    pub feed: Feed,
    pub history: Option<ProjectionReader>,
    /// How far the projection is behind.
    pub lag: Arc<FollowerLag>,
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
        .add(history_route(api))
        .add_all(account_routes(api))
        .add_all(asset_routes(api))
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

fn state_routes(api: &Arc<Api>) -> [Route; 5] {
    let [a, b, c, d, e] = [api; 5].map(Arc::clone);
    [
        Route::get("/v1/ledger/accounts/{account}", READ, move |req| {
            reads::account(&a, req)
        })
        .summary("Balances, nonce and open holds of an account; with ledger:audit of any account, else of a pool of the caller's tenant")
        .query_as::<u64>("min_seq", false, MIN_SEQ_NOW)
        .returns::<AccountDoc>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/holds/{hold}", READ, move |req| {
            reads::hold(&b, req)
        })
        .summary("An open hold")
        .query_as::<u64>("min_seq", false, MIN_SEQ_NOW)
        .returns::<HoldDoc>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/budgets/{id}", READ, move |req| {
            reads::budget(&c, req)
        })
        .summary("What was spent under the budget of a token; without ledger:audit for services of the installation only")
        .query_as::<u64>("min_seq", false, MIN_SEQ_NOW)
        .returns::<BudgetDoc>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/epochs/{tenant}/{epoch}", READ, move |req| {
            reads::epoch(&d, req)
        })
        .summary("State of an epoch's settlement in one asset")
        .query_as::<Asset>("asset", false, "the asset; without it, the one that the epoch opened first")
        .query_as::<u64>("min_seq", false, MIN_SEQ_NOW)
        .returns::<EpochDoc>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/head", Need::Public, move |req| {
            reads::head(&e, req)
        })
        .summary("Head of the log: sequence, size, root")
        .returns::<Head>(200)
        .while_draining(),
    ]
}

/// Of reads of the state, which has every entry of its node at once.
const MIN_SEQ_NOW: &str = "Refuse with 400 unless the ledger has this entry; with 503 where several nodes have the ledger, of which a standby waits for it half a second at most";
const MIN_SEQ: &str =
    "Wait until this entry is in the history, for half a second at most; then 503";
const LIMIT: &str = "Maximum number of items to return, 1 to 500; 500 by default";

/// Answered from the projection, which follows the log.
fn history_route(api: &Arc<Api>) -> Route {
    let api = Arc::clone(api);
    Route::get("/v1/ledger/entries", READ, move |req| {
        reads::entries(&api, req)
    })
    .summary("Entries that match, newest first; without ledger:audit those of the caller's tenant")
    .query_as::<Account>("account", false, "Account that is debited or credited")
    .query_as::<String>("reference", false, "Reference given by the maker")
    .query_as::<String>(
        "batch",
        false,
        "Batch: the transaction id of its first item",
    )
    .query_as::<String>("hold", false, "Hold that was captured, released or expired")
    .query_as::<Asset>("asset", false, "Asset of the entry")
    .query_as::<EntryKind>("kind", false, "Kind of the entry")
    .query_as::<Direction>(
        "direction",
        false,
        "Whether the account is credited (in) or debited (out)",
    )
    .query_as::<Account>("counterparty", false, "The account on the other side")
    .query_as::<String>(
        "metadata",
        false,
        "name=value: a member of the metadata; may be repeated",
    )
    .query_as::<Timestamp>("from", false, "First time of the range")
    .query_as::<Timestamp>("until", false, "End of the range, not part of it")
    .query_as::<String>(
        "viewer_tenant",
        false,
        "With viewer: filter as this caller of the wallet may see the entries",
    )
    .query_as::<String>("viewer", false, "Principal of the viewer")
    .query_as::<u64>(
        "before",
        false,
        "Only entries before this sequence, the newest of them",
    )
    .query_as::<u64>(
        "after",
        false,
        "Only entries after this sequence, the oldest of them",
    )
    .query_as::<u64>("limit", false, LIMIT)
    .query_as::<u64>("min_seq", false, MIN_SEQ)
    .returns::<EntryPage>(200)
    .errors(&[400, 503])
    .while_draining()
}

/// Of accounts, answered likewise.
fn account_routes(api: &Arc<Api>) -> [Route; 4] {
    let [a, b, c, d] = [api; 4].map(Arc::clone);
    [
        Route::get("/v1/ledger/accounts", READ, move |req| reads::accounts(&a, req))
            .summary("Accounts that were ever opened, used or given terms, by name; without ledger:audit the pools of the caller's tenant")
            .query_as::<String>("prefix", false, "Only accounts whose name begins with this")
            .query_as::<Account>("after", false, "Only accounts after this one")
            .query_as::<u64>("limit", false, LIMIT)
            .query_as::<u64>("min_seq", false, MIN_SEQ)
            .returns::<AccountPage>(200)
            .errors(&[400, 503])
            .while_draining(),
        Route::get("/v1/ledger/accounts/{account}/balance", READ, move |req| {
            reads::balance_at(&b, req)
        })
        .summary("Balance of an account at a sequence or time; with ledger:audit of any account, else of a pool of the caller's tenant")
        .query_as::<Asset>("asset", true, "Asset to read")
        .query_as::<String>("at", true, "A sequence of the ledger, or a time: entries up to it count")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<PastBalance>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/accounts/{account}/statement", READ, move |req| {
            reads::statement(&c, req)
        })
        .summary("Opening balance, entries and closing balance of a range; with ledger:audit of any account, else of a pool of the caller's tenant")
        .query_as::<Asset>("asset", true, "Asset to read")
        .query_as::<Timestamp>("from", true, "First time of the range")
        .query_as::<Timestamp>("until", true, "End of the range, not part of it")
        .query_as::<StatementTime>("by", false, "entry (the ledger's time, the default) or effective (whole days, issues and debits on that of their effective_at, in one page)")
        .query_as::<u64>("after", false, "Only entries after this sequence")
        .query_as::<u64>("limit", false, LIMIT)
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<StatementPage>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/holds", READ, move |req| reads::holds(&d, req))
            .summary("Holds of an account, newest first; with ledger:audit of any account, else of a pool of the caller's tenant")
            .query_as::<Account>("account", true, "Account whose money is or was reserved")
            .query_as::<Asset>("asset", false, "Asset of the hold")
            .query_as::<HoldState>("state", false, "open or ended")
            .query_as::<u64>("before", false, "Only holds made before this sequence")
            .query_as::<u64>("limit", false, LIMIT)
            .query_as::<u64>("min_seq", false, MIN_SEQ)
            .returns::<HoldPage>(200)
            .errors(&[400, 404, 503])
            .while_draining(),
    ]
}

fn asset_routes(api: &Arc<Api>) -> [Route; 3] {
    let [a, b, c] = [api; 3].map(Arc::clone);
    [
        Route::get("/v1/ledger/assets", READ, move |req| reads::assets(&c, req))
            .summary("Assets that are registered or were ever used, by name; without ledger:audit for services of the installation only")
            .query_as::<Asset>("after", false, "Only assets after this one")
            .query_as::<u64>("limit", false, LIMIT)
            .query_as::<u64>("min_seq", false, MIN_SEQ_NOW)
            .returns::<AssetPage>(200)
            .errors(&[400, 404, 503])
            .while_draining(),
        Route::get("/v1/ledger/assets/{asset}", READ, move |req| {
            reads::asset(&a, req)
        })
        .summary("Scale and title of an asset")
        .query_as::<u64>("min_seq", false, MIN_SEQ_NOW)
        .returns::<AssetDoc>(200)
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/assets/{asset}/trial-balance", READ, move |req| {
            reads::trial_balance(&b, req)
        })
        .summary("Credits and debits of an asset by class of account; without ledger:audit for services of the installation only")
        .query_as::<String>("at", false, "A sequence of the ledger, or a time: entries up to it count")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<TrialBalance>(200)
        .errors(&[400, 404, 503])
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
        .errors(&[400, 404, 503])
        .while_draining(),
        Route::get("/v1/ledger/tx/{txid}", READ, move |req| reads::tx(&b, req))
            .summary("Entry of a transaction id")
            .returns::<Event>(200)
            .errors(&[400, 404, 503])
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
