//! `POST /v1/hold`, `/v1/hold/{id}/capture`, `/v1/hold/{id}/release`, `GET /v1/hold/{id}`: money reserved in two phases.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_client::ClientError;
use ron_http::{Need, Request, Response, Route};
use ron_kernel::RankedMutex;
use ron_proto::ledger::{Details, Entry, EntryAnswer, HoldRef, TxId};
use ron_proto::wallet::{Capture, Hold, HoldMoney, HoldState, Remarks, Transaction, WalletAction};
use ron_proto::{Account, Amount, Asset, Problem, Timestamp, scope};

use super::history::MIN_SEQ;
use super::submit::{Accepted, write};
use super::tx;
use super::writes::{Debit, Tag, WriteEntry, not_reserved, positive, tag};
use super::{Api, asks, body_or_default, param};
use crate::policy::PolicyRequest;
use crate::topology::HOLDS;

/// Holds per generation; at most twice as many are kept in the two generations together.
const REMEMBERED: usize = 4_096;

/// The terms of a hold. They never change after it was made.
#[derive(Debug, Clone)]
pub struct Facts {
    from: Account,
    asset: Asset,
    amount: Amount,
    expires_at: Timestamp,
}

impl Facts {
    /// The terms of the hold that an entry makes; `None` for an entry that makes none.
    pub fn of(entry: &Entry) -> Option<Self> {
        let Entry::Hold {
            from,
            asset,
            amount_minor,
            up_to,
            expires_at,
            ..
        } = entry
        else {
            return None;
        };
        Some(Self {
            from: from.clone(),
            asset: asset.clone(),
            // The amount is not known until the ledger has found what is available. Captures of the same request are
            // checked against its maximum.
            amount: up_to
                .filter(|_| amount_minor.is_zero())
                .unwrap_or(*amount_minor),
            expires_at: *expires_at,
        })
    }
}

/// Terms of recently used holds, in two generations.
#[derive(Debug)]
pub struct HoldFacts(RankedMutex<[BTreeMap<TxId, Arc<Facts>>; 2]>);

impl Default for HoldFacts {
    fn default() -> Self {
        Self(RankedMutex::new(&HOLDS, [BTreeMap::new(), BTreeMap::new()]))
    }
}

impl HoldFacts {
    fn get(&self, id: TxId) -> Option<Arc<Facts>> {
        let both = self.0.lock();
        both.iter().find_map(|half| half.get(&id).cloned())
    }

    fn keep(&self, id: TxId, facts: Arc<Facts>) {
        let mut both = self.0.lock();
        if both[0].len() >= REMEMBERED {
            // Swap and clear: the full generation becomes the old one, the oldest entries are
            // dropped.
            both.swap(0, 1);
            both[0].clear();
        }
        both[0].insert(id, facts);
    }
}

pub fn routes(api: &Arc<Api>) -> [Route; 4] {
    let hold = Need::Scope(scope::WALLET_HOLD);
    let reader = api.clone();
    [
        write(api, "/v1/hold", hold, "hold", |api, req| {
            let (entry, account) = make(api, req, tag(req)?, req.json()?)?;
            Ok(Accepted::one(entry, account))
        })
            .summary("Reserve money until it is captured, released or expires.")
            .body::<HoldMoney>()
            .returns::<Transaction>(200),
        write(api, "/v1/hold/{id}/capture", hold, "capture", |api, req| {
            let (tag, body) = (tag(req)?, req.json()?);
            let terms = || named(api, req);
            let (entry, account) = capture(api, req, tag, body, terms)?;
            Ok(Accepted::one(entry, account))
        })
            .summary("Pay out of a hold, in part or all that is left; the remainder stays reserved, unless the capture is final.")
            .body::<Capture>()
            .returns::<Transaction>(200)
            .errors(&[404]),
        write(api, "/v1/hold/{id}/release", hold, "release", |api, req| {
            let (tag, details) = (tag(req)?, remarks(req)?);
            let (entry, account) = release(api, req, tag, details, named(api, req)?)?;
            Ok(Accepted::one(entry, account))
        })
            .summary("End a hold; the remainder becomes available again.")
            .body::<Remarks>()
            .returns::<Transaction>(200)
            .errors(&[404]),
        Route::get(
            "/v1/hold/{id}",
            Need::Scope(scope::WALLET_READ),
            move |req| state(&reader, req),
        )
        .summary("Read the current state of a hold.")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<Hold>(200)
        .errors(&[400, 403, 404, 429, 503])
        .while_draining(),
    ]
}

pub fn make(api: &Api, req: &Request, tag: Tag, body: HoldMoney) -> Result<WriteEntry, Problem> {
    let debit = Debit {
        action: WalletAction::Hold,
        from: &body.from,
        to: None,
        asset: &body.asset,
        amount: body.amount_minor,
        nonce: body.nonce,
    };
    let terms = debit.allowed(api, req)?;
    let account = body.from.clone();
    let entry = Entry::Hold {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        from: body.from,
        asset: body.asset,
        amount_minor: terms.amount,
        up_to: terms.up_to,
        nonce: body.nonce,
        expires_at: body.expires_at,
        details: body.details,
        batch: tag.batch,
        daily_ceiling: Some(terms.daily_ceiling),
        budgets: req.principal.budgets.to_vec(),
    };
    Ok((entry, account))
}

/// A hold as a request names it, and its terms.
pub type NamedHold = (HoldRef, Arc<Facts>);

/// `terms` looks the hold up; called when the body is known to be good.
pub fn capture(
    api: &Api,
    req: &Request,
    tag: Tag,
    body: Capture,
    terms: impl FnOnce() -> Result<NamedHold, Problem>,
) -> Result<WriteEntry, Problem> {
    body.amount_minor.map_or(Ok(()), positive)?;
    not_reserved(&body.to)?;
    let (hold, facts) = terms()?;
    let ask = PolicyRequest {
        account: Some(&facts.from),
        payee: Some(&body.to),
        asset: Some(&facts.asset),
        // All that is left is at most what the hold had at first.
        amount: Some(body.amount_minor.unwrap_or(facts.amount)),
        ..asks(&req.principal, WalletAction::Hold)
    };
    api.check(req, &ask)?;
    let entry = Entry::Capture {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        hold,
        to: body.to,
        amount_minor: body.amount_minor,
        ends_hold: body.ends_hold,
        details: body.details,
        batch: tag.batch,
        // The day's limit bound the hold when it was made.
        budgets: req.principal.budgets.to_vec(),
    };
    Ok((entry, facts.from.clone()))
}

pub fn release(
    api: &Api,
    req: &Request,
    tag: Tag,
    details: Details,
    (hold, facts): NamedHold,
) -> Result<WriteEntry, Problem> {
    api.allow(
        req,
        WalletAction::Hold,
        &facts.from,
        Some(&facts.asset),
        None,
    )?;
    let entry = Entry::Release {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        hold,
        details,
        batch: tag.batch,
    };
    Ok((entry, facts.from.clone()))
}

/// The remarks in the body, which may be empty.
pub fn remarks(req: &Request) -> Result<Details, Problem> {
    body_or_default::<Remarks>(req).map(|body| body.details)
}

fn state(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics
        .requests
        .with_label_values(&["hold_state"])
        .inc();
    req.query_only(&["min_seq"])?;
    let hold = param(req, "id")?;
    let facts = facts(api, req, hold)?;
    api.allow(
        req,
        WalletAction::Read,
        &facts.from,
        Some(&facts.asset),
        None,
    )?;
    api.check_min_seq(req)?;
    let open = match api.upstream.client.hold(hold, Api::read_deadline(req)) {
        Ok(doc) => Some(doc),
        Err(ClientError::Refused { status: 404, .. }) => None,
        Err(e) => return Err(api.read_failed(&e, "hold")),
    };
    let captured_minor = match &open {
        Some(doc) => facts.amount.checked_sub(doc.amount_minor),
        None => captured(api, req, &facts.from, hold),
    };
    let doc = Hold {
        hold,
        state: match open {
            Some(_) => HoldState::Open,
            None => HoldState::Ended,
        },
        from: facts.from.clone(),
        asset: facts.asset.clone(),
        amount_minor: facts.amount,
        remaining_minor: open.map_or(Amount(0), |doc| doc.amount_minor),
        captured_minor,
        expires_at: facts.expires_at,
    };
    Ok(Response::json(200, &doc).cache("no-store"))
}

/// What was captured of a hold that has ended; `None` while the history does not have its end.
fn captured(api: &Api, req: &Request, from: &Account, id: TxId) -> Option<Amount> {
    let by = Api::read_deadline(req);
    let client = &api.upstream.client;
    let listed = |min_seq: u64| {
        let query = [
            ("account", from.to_string()),
            ("before", (id.seq() + 1).to_string()),
            ("limit", "1".to_owned()),
            ("min_seq", min_seq.to_string()),
        ];
        let page = client.holds(&query, by).ok()?;
        let found = page.holds.into_iter().find(|found| found.hold == id);
        found.filter(|found| found.state == HoldState::Ended)
    };
    // The hold ended at or before the head.
    let ended = listed(0).or_else(|| listed(client.head(by).ok()?.seq));
    ended.map(|found| found.captured_minor)
}

/// The hold named in the path.
fn named(api: &Api, req: &Request) -> Result<NamedHold, Problem> {
    let id: TxId = param(req, "id")?;
    Ok((id.into(), facts(api, req, id)?))
}

/// The terms of a hold: from memory, from the ledger, or from the copy while the ledger is
/// unavailable.
pub fn facts(api: &Api, req: &Request, id: TxId) -> Result<Arc<Facts>, Problem> {
    if let Some(known) = api.holds.get(id) {
        return Ok(known);
    }
    let event = tx::named(api, req, id, "hold")?;
    let absent = || Problem::not_found("there is no such hold");
    let EntryAnswer::Done { txid, .. } = &event.answer else {
        return Err(absent());
    };
    if *txid != id {
        return Err(absent());
    }
    let facts = Arc::new(Facts::of(&event.entry).ok_or_else(absent)?);
    api.holds.keep(id, Arc::clone(&facts));
    Ok(facts)
}
