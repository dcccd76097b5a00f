//! Handlers that read the durable state and the log.

use std::str::FromStr;
use std::time::Duration;

use ron_http::{Request, Responder, Response};
use ron_kernel::Deadline;
use ron_proto::ledger::{
    AccountPage, Closed, EntryPage, EntrySearch, Event, FoundEntry, HISTORY_BEHIND,
    MAX_WIRE_INTEGER, PointInTime, RequestKey, ReversalsDoc, SEARCH_NAMES, StatementPage,
    StatementTime, TxId, Viewer,
};
use ron_proto::{Account, Asset, Problem, SignedAmount, Timestamp, ValueError};
use ron_tlog::ReadError;

use super::Api;
use crate::feed::{PAGE, Poll};
use crate::projection::{ProjectionReader, SearchError, StatementRange};
use crate::reader::Reader;

pub(super) type Answer = Result<Response, Problem>;

/// Longest wait of a standby for an entry that the caller knows of: several of its looks at the log.
const CATCH_UP: Duration = Duration::from_millis(500);

/// Parses a path parameter.
pub(super) fn param<T: FromStr<Err = ValueError>>(req: &Request, name: &str) -> Result<T, Problem> {
    req.param(name)
        .parse()
        .map_err(|e: ValueError| Problem::bad_request(e.to_string()))
}

/// The answer for what is not here, or not to be seen by the caller. A standby may not have it yet: the active node says whether it
/// exists.
pub(super) fn absent(api: &Api, what: &str) -> Problem {
    let Some(standby) = api.ledger.standby() else {
        return Problem::not_found(what);
    };
    let detail = format!("{what} at this node, which is a standby; the active node may have it");
    Closed { detail, ..standby }.problem()
}

fn found(api: &Api, req: &Request, event: Result<Option<Event>, ReadError>, what: &str) -> Answer {
    let reader = Reader::new(&req.principal);
    match event.map(|event| event.filter(|e| reader.sees(&e.entry))) {
        Ok(Some(event)) => Ok(Response::json(200, &event)),
        Ok(None) => Err(absent(api, &format!("there is no entry with this {what}"))),
        Err(e) => Err(log_read_failed(&e)),
    }
}

pub(super) fn log_read_failed(e: &dyn std::fmt::Display) -> Problem {
    tracing::error!(event = "log_read_failed", error = %e);
    Problem::internal("the log cannot be read; see the service's log")
}

pub(super) fn account(api: &Api, req: &Request) -> Answer {
    let account = readable_account(req)?;
    has_min_seq(api, req)?;
    Ok(Response::json(200, &api.ledger.account(&account)))
}

/// The projection, or why there is none.
fn projection(api: &Api) -> Result<&ProjectionReader, Problem> {
    api.history
        .as_ref()
        .ok_or_else(|| Problem::unavailable("the projection that answers this is switched off", 60))
}

fn search_failed(error: SearchError) -> Problem {
    match error {
        SearchError::Projection(e) => {
            tracing::warn!(event = "projection_read_failed", error = %e);
            Problem::unavailable("the projection cannot be read now", 1)
        }
        SearchError::Behind { .. } => {
            let (code, title) = (HISTORY_BEHIND, "History behind");
            Problem::new(503, code, title, error.to_string()).with_retry_after(1)
        }
        SearchError::Expired => Problem::unavailable(error.to_string(), 1),
        SearchError::TooLong => Problem::bad_request(error.to_string()),
    }
}

/// The events that a query of an account found: those that the reader sees, and the balances if it
/// sees the account.
fn load(
    api: &Api,
    req: &Request,
    account: Option<&Account>,
    found: Vec<(u64, Option<SignedAmount>)>,
) -> Result<Vec<FoundEntry>, Problem> {
    let reader = Reader::new(&req.principal);
    let of_account = account.is_some_and(|account| reader.sees_account(account));
    let mut entries = Vec::with_capacity(found.len());
    for (seq, balance) in found {
        let balance_minor = balance.filter(|_| of_account);
        let event = api.ledger.event(seq).map_err(|e| log_read_failed(&e))?;
        entries.extend(
            event
                .filter(|event| reader.sees(&event.entry))
                .map(|event| FoundEntry {
                    event,
                    balance_minor,
                }),
        );
    }
    Ok(entries)
}

fn sequence(req: &Request, name: &str) -> Result<Option<u64>, Problem> {
    let seq = req.query_as::<u64>(name)?;
    if seq.is_some_and(|seq| seq > MAX_WIRE_INTEGER) {
        return Err(Problem::bad_request(format!("{name} is below 2^53")));
    }
    Ok(seq)
}

/// The entry that the history must have; only one that exists is waited for.
fn min_seq(api: &Api, req: &Request) -> Result<u64, Problem> {
    existing(api, sequence(req, "min_seq")?.unwrap_or(0))
}

/// The only parameter of a read of the state.
fn has_min_seq(api: &Api, req: &Request) -> Result<(), Problem> {
    req.query_only(&["min_seq"])?;
    min_seq(api, req).map(drop)
}

/// A sequence that the ledger has. A standby may get it in a moment; and a node that takes itself
/// for the active one may have lost the log to another without knowing it yet.
fn existing(api: &Api, seq: u64) -> Result<u64, Problem> {
    if seq <= api.ledger.head_seq() {
        return Ok(seq);
    }
    if api.ledger.standby().is_some() && api.ledger.reaches(seq, Deadline::within(CATCH_UP)) {
        return Ok(seq);
    }
    let head = api.ledger.head_seq();
    if !api.ledger.has_other_nodes() {
        let why = format!("the ledger has no entry {seq} yet; its last is {head}");
        return Err(Problem::bad_request(why));
    }
    let why = format!("this node does not have entry {seq} yet; its last is {head}");
    let (code, title) = (HISTORY_BEHIND, "History behind");
    Err(Problem::new(503, code, title, why).with_retry_after(1))
}

/// The last entry at or before a point. The log knows it, also while the projection is behind.
fn seq_at(api: &Api, at: PointInTime) -> Result<u64, Problem> {
    match at {
        PointInTime::Seq(seq) => existing(api, seq),
        PointInTime::Time(ts) => api.ledger.last_at(ts).map_err(|e| log_read_failed(&e)),
    }
}

pub(super) fn entries(api: &Api, req: &Request) -> Answer {
    req.query_only(&SEARCH_NAMES)?;
    let limit = limit(req)?;
    let viewer = match (req.query_as("viewer_tenant")?, req.query_as("viewer")?) {
        (Some(tenant), Some(principal)) => Some(Viewer { tenant, principal }),
        (None, None) => None,
        _ => {
            return Err(Problem::bad_request(
                "viewer_tenant and viewer are given together",
            ));
        }
    };
    let search = EntrySearch {
        account: req.query_as("account")?,
        reference: req.query_as("reference")?,
        batch: req.query_as("batch")?,
        hold: req.query_as("hold")?,
        asset: req.query_as("asset")?,
        kind: req.query_as("kind")?,
        direction: req.query_as("direction")?,
        counterparty: req.query_as("counterparty")?,
        metadata: req.query_many("metadata")?,
        from: req.query_as("from")?,
        until: req.query_as("until")?,
        viewer,
        before: sequence(req, "before")?,
        after: sequence(req, "after")?,
        limit,
        min_seq: min_seq(api, req)?,
    };
    let of_account = search.direction.is_some() || search.counterparty.is_some();
    if of_account && search.account.is_none() {
        return Err(Problem::bad_request(
            "direction and counterparty are seen from an account: add account",
        ));
    }
    let found = projection(api)?.search(&search).map_err(search_failed)?;
    #[cfg(mutant = "newest")] // as of the ledger's last entry, whatever was read
    let found = {
        let mut found = found;
        if ron_kernel::mutant("newest") && search.before.is_none() {
            found.newer = api.ledger.head_seq();
        }
        found
    };
    Ok(Response::json(
        200,
        &EntryPage {
            entries: load(api, req, search.account.as_ref(), found.entries)?,
            older: found.older,
            newer: found.newer,
            head: api.ledger.head_seq(),
        },
    ))
}

/// The account in the path, if the reader may see what it has.
fn readable_account(req: &Request) -> Result<Account, Problem> {
    let account = param(req, "account")?;
    readable(req, &account)?;
    Ok(account)
}

/// Refuses an account of which the reader may not see what it has.
fn readable(req: &Request, account: &Account) -> Result<(), Problem> {
    if Reader::new(&req.principal).sees_account(account) {
        return Ok(());
    }
    Err(Problem::not_found(
        "the account is not a pool of the caller's tenant; svc-wallet shows balances and holds of other accounts, and the scope ledger:audit shows all accounts here",
    ))
}

pub(super) fn balance_at(api: &Api, req: &Request) -> Answer {
    req.query_only(&["asset", "at", "min_seq"])?;
    let account = readable_account(req)?;
    let asset = req.query_required("asset")?;
    let at = req.query_required("at")?;
    let seq = seq_at(api, at)?;
    let past = projection(api)?
        .balance_at(&account, &asset, seq, min_seq(api, req)?)
        .map_err(search_failed)?;
    Ok(Response::json(200, &past))
}

pub(super) fn statement(api: &Api, req: &Request) -> Answer {
    req.query_only(&["asset", "from", "until", "by", "after", "limit", "min_seq"])?;
    let account = readable_account(req)?;
    let (after, limit) = range(req)?;
    let range = StatementRange {
        account,
        asset: req.query_required("asset")?,
        from: req.query_required("from")?,
        until: req.query_required("until")?,
        by: req.query_as("by")?.unwrap_or_default(),
        after,
        limit,
    };
    if range.until <= range.from {
        return Err(Problem::bad_request("until is after from"));
    }
    let midnight = |ts: Timestamp| Timestamp::from_utc_day(ts.utc_day()) == ts;
    if range.by == StatementTime::Effective && !(midnight(range.from) && midnight(range.until)) {
        return Err(Problem::bad_request(
            "a statement by effective day has whole UTC days: from and until end in T00:00:00Z",
        ));
    }
    let last = match range.by {
        StatementTime::Entry => {
            let before = Timestamp(range.until.0.saturating_sub(1));
            seq_at(api, PointInTime::Time(before))?
        }
        // A later entry can take effect on an earlier day.
        StatementTime::Effective => api.ledger.head_seq(),
    };
    let min_seq = min_seq(api, req)?.max(last);
    let found = projection(api)?
        .statement(&range, min_seq)
        .map_err(search_failed)?;
    Ok(Response::json(
        200,
        &StatementPage {
            opening_minor: found.opening,
            closing_minor: found.closing,
            credits_minor: found.credits,
            debits_minor: found.debits,
            entries: load(api, req, Some(&range.account), found.entries)?,
            next: found.next,
            seq: found.seq,
        },
    ))
}

pub(super) fn holds(api: &Api, req: &Request) -> Answer {
    req.query_only(&["account", "asset", "state", "before", "limit", "min_seq"])?;
    let limit = limit(req)?;
    let account: Account = req.query_required("account")?;
    readable(req, &account)?;
    let asset = req.query_as("asset")?;
    let state = req.query_as("state")?;
    let before = sequence(req, "before")?;
    let page = projection(api)?
        .holds(
            &account,
            (asset.as_ref(), state),
            before,
            limit,
            min_seq(api, req)?,
        )
        .map_err(search_failed)?;
    Ok(Response::json(200, &page))
}

pub(super) fn accounts(api: &Api, req: &Request) -> Answer {
    req.query_only(&["prefix", "after", "limit", "min_seq"])?;
    let limit = limit(req)?;
    let prefix: String = req.query_as("prefix")?.unwrap_or_default();
    let after = req.query_as::<Account>("after")?;
    let (names, more) = projection(api)?
        .account_names(&prefix, after.as_ref(), limit, min_seq(api, req)?)
        .map_err(search_failed)?;
    let next = names.last().filter(|_| more).cloned();
    let reader = Reader::new(&req.principal);
    let seen: Vec<Account> = names
        .into_iter()
        .filter(|a| reader.sees_account(a))
        .collect();
    let (accounts, seq) = api.ledger.listed(&seen);
    let page = AccountPage {
        accounts,
        next,
        seq,
    };
    Ok(Response::json(200, &page))
}

pub(super) fn hold(api: &Api, req: &Request) -> Answer {
    let id: TxId = param(req, "hold")?;
    has_min_seq(api, req)?;
    let made = api.ledger.tx(id).map_err(|e| log_read_failed(&e))?;
    let reader = Reader::new(&req.principal);
    match made
        .filter(|made| reader.sees(&made.entry))
        .and_then(|_| api.ledger.hold(id))
    {
        Some(doc) => Ok(Response::json(200, &doc)),
        None => Err(absent(api, "there is no open hold with this id")),
    }
}

pub(super) fn asset(api: &Api, req: &Request) -> Answer {
    let asset: Asset = param(req, "asset")?;
    has_min_seq(api, req)?;
    match api.ledger.asset(&asset) {
        Some(doc) => Ok(Response::json(200, &doc)),
        None => Err(no_asset()),
    }
}

pub(super) fn assets(api: &Api, req: &Request) -> Answer {
    req.query_only(&["after", "limit", "min_seq"])?;
    let limit = limit(req)?;
    min_seq(api, req)?;
    let after = req.query_as::<Asset>("after")?;
    // An asset belongs to no tenant, and its name may tell something of those that use it.
    if !Reader::new(&req.principal).sees_all() {
        return Err(Problem::not_found(
            "assets belong to no tenant: svc-wallet lists those that its policy lets a caller read",
        ));
    }
    Ok(Response::json(
        200,
        &api.ledger.assets(after.as_ref(), limit as usize),
    ))
}

fn no_asset() -> Problem {
    Problem::not_found("the asset is neither registered nor used")
}

pub(super) fn trial_balance(api: &Api, req: &Request) -> Answer {
    req.query_only(&["at", "min_seq"])?;
    let asset: Asset = param(req, "asset")?;
    // Sums over accounts of all tenants.
    if !Reader::new(&req.principal).sees_all() {
        return Err(no_asset());
    }
    let min_seq = min_seq(api, req)?;
    let Some(at) = req.query_as::<PointInTime>("at")? else {
        let now = api.ledger.trial_balance(&asset).ok_or_else(no_asset)?;
        return Ok(Response::json(200, &now));
    };
    let seq = seq_at(api, at)?;
    api.ledger.asset(&asset).ok_or_else(no_asset)?;
    let history = projection(api)?;
    let past = history
        .trial_balance_at(&asset, seq, min_seq, req.deadline)
        .map_err(search_failed)?;
    Ok(Response::json(200, &past))
}

pub(super) fn budget(api: &Api, req: &Request) -> Answer {
    let id = param(req, "id")?;
    if !Reader::new(&req.principal).sees_all() {
        return Err(Problem::not_found(
            "budgets belong to tokens: svc-wallet shows a token its own at /v1/budget",
        ));
    }
    has_min_seq(api, req)?;
    Ok(Response::json(200, &api.ledger.budget(id)))
}

pub(super) fn epoch(api: &Api, req: &Request) -> Answer {
    let tenant = param(req, "tenant")?;
    req.query_only(&["asset", "min_seq"])?;
    min_seq(api, req)?;
    let asset = req.query_as::<Asset>("asset")?;
    let epoch = param(req, "epoch")?;
    let found = api.ledger.epoch(&tenant, &epoch, asset.as_ref());
    match found.filter(|_| Reader::new(&req.principal).is_of(&tenant)) {
        Some(doc) => Ok(Response::json(200, &doc)),
        None => Err(absent(
            api,
            "the epoch was never opened, or not in this asset",
        )),
    }
}

pub(super) fn head(api: &Api, _req: &Request) -> Answer {
    Ok(Response::json(200, &api.ledger.head()))
}

pub(super) fn by_key(api: &Api, req: &Request) -> Answer {
    let key = RequestKey {
        tenant: param(req, "tenant")?,
        principal: param(req, "principal")?,
        key: param(req, "key")?,
    };
    found(api, req, api.ledger.by_key(key), "key")
}

pub(super) fn tx(api: &Api, req: &Request) -> Answer {
    found(api, req, api.ledger.tx(param(req, "txid")?), "id")
}

pub(super) fn reversals(api: &Api, req: &Request) -> Answer {
    req.query_only(&[])?;
    let tx: TxId = param(req, "txid")?;
    let made = api.ledger.tx(tx).map_err(|e| log_read_failed(&e))?;
    let reader = Reader::new(&req.principal);
    if made.is_none_or(|made| !reader.sees(&made.entry)) {
        return Err(absent(api, "there is no entry with this id"));
    }
    let found = api.history.as_ref().map(|history| history.reversals(tx));
    let reversals = found.transpose().map_err(|e| search_failed(e.into()))?;
    let doc = ReversalsDoc {
        reversed_minor: api.ledger.reversed(tx),
        reversals: reversals.unwrap_or_default(),
    };
    Ok(Response::json(200, &doc))
}

pub(super) fn events(api: &Api, req: &Request, res: Responder) {
    match poll_query(req) {
        Err(problem) => res.send(problem),
        Ok((after, limit, wait)) => {
            let poll = Poll {
                responder: res,
                reader: Reader::new(&req.principal),
                after,
                limit,
                until: Deadline::within(wait),
            };
            if let Some(waiting) = poll.answer_or_wait(&api.ledger) {
                api.feed.park(waiting);
            }
        }
    }
}

fn poll_query(req: &Request) -> Result<(u64, u64, Duration), Problem> {
    req.query_only(&["after", "limit", "wait"])?;
    let (after, limit) = range(req)?;
    Ok((after, limit, req.wait()?.unwrap_or_default()))
}

/// Reads the query parameters `after` and `limit`.
pub(super) fn range(req: &Request) -> Result<(u64, u64), Problem> {
    Ok((sequence(req, "after")?.unwrap_or(0), limit(req)?))
}

fn limit(req: &Request) -> Result<u64, Problem> {
    let limit = req.query_as::<u64>("limit")?.unwrap_or(PAGE);
    if (1..=PAGE).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::bad_request(format!("limit is 1 to {PAGE}")))
}
