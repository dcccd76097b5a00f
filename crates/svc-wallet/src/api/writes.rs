//! `POST /v1/issue`, `/v1/transfer`, `/v1/burn`.

use std::sync::Arc;

use ron_auth::caveats::daily_ceiling;
use ron_http::{Method, Need, Request, Responder, Route};
use ron_proto::ledger::{ESCROW_PREFIX, Entry, MAX_WIRE_INTEGER, Receipt};
use ron_proto::wallet::{Burn, IssueMoney, Transfer, WalletAction};
use ron_proto::{Account, Amount, Problem, scope};

use super::Api;
use crate::commit::{CommitJob, entry_key, principal_name};

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    let errors: &[u16] = &[400, 403, 409, 422, 429, 503, 504];
    [
        write(api, "/v1/issue", scope::WALLET_ISSUE, "issue", issue)
            .summary("Create money in an account.")
            .body::<IssueMoney>()
            .returns::<Receipt>(200)
            .errors(errors),
        write(
            api,
            "/v1/transfer",
            scope::WALLET_TRANSFER,
            "transfer",
            transfer,
        )
        .summary("Move money between accounts.")
        .body::<Transfer>()
        .returns::<Receipt>(200)
        .errors(errors),
        write(api, "/v1/burn", scope::WALLET_BURN, "burn", burn)
            .summary("Destroy money of an account.")
            .body::<Burn>()
            .returns::<Receipt>(200)
            .errors(errors),
    ]
}

/// An accepted write: the entry and the account whose order matters.
type Accepted = (Entry, Account);

fn write(
    api: &Arc<Api>,
    path: &'static str,
    scope: &'static str,
    op: &'static str,
    read: fn(&Api, &Request) -> Result<Accepted, Problem>,
) -> Route {
    let api = api.clone();
    Route::new(
        Method::POST,
        path,
        Need::Scope(scope),
        move |req, responder| {
            handle(&api, &req, responder, op, read);
        },
    )
    .idempotency_key()
}

fn handle(
    api: &Api,
    req: &Request,
    responder: Responder,
    op: &'static str,
    read: fn(&Api, &Request) -> Result<Accepted, Problem>,
) {
    api.metrics.requests.with_label_values(&[op]).inc();
    let (entry, account) = match read(api, req) {
        Ok(accepted) => accepted,
        Err(problem) => return responder.send(problem),
    };
    let job = CommitJob {
        entry,
        op,
        reads_account: api.may_read(&req.principal, &account),
        since: api.clock.now(),
        responder,
    };
    api.metrics.inflight.with_label_values(&[op]).inc();
    if let Err((job, retry_after_s)) = api.lanes.put(&account, job) {
        api.metrics.inflight.with_label_values(&[op]).dec();
        api.metrics.rejects.with_label_values(&["busy"]).inc();
        job.responder.send(Problem::busy(retry_after_s));
    }
}

fn issue(api: &Api, req: &Request) -> Result<Accepted, Problem> {
    let key = entry_key(&req.idempotency_key()?)?;
    let body: IssueMoney = req.json()?;
    positive(body.amount_minor)?;
    not_reserved(&body.to)?;
    let allowed = api.allow(
        &req.principal,
        WalletAction::Issue,
        &body.to,
        Some(&body.asset),
        Some(body.amount_minor),
    )?;
    let account = body.to.clone();
    let entry = Entry::Issue {
        principal: principal_name(&req.principal.name)?,
        key,
        to: body.to,
        asset: body.asset,
        amount_minor: body.amount_minor,
        memo: body.memo,
        reference: None,
        daily_ceiling: daily(api, req, allowed.daily),
    };
    Ok((entry, account))
}

fn transfer(api: &Api, req: &Request) -> Result<Accepted, Problem> {
    let key = entry_key(&req.idempotency_key()?)?;
    let body: Transfer = req.json()?;
    positive(body.amount_minor)?;
    nonce(body.nonce)?;
    not_reserved(&body.from)?;
    not_reserved(&body.to)?;
    if body.from == body.to {
        return Err(Problem::bad_request("from and to are the same account"));
    }
    let allowed = api.allow(
        &req.principal,
        WalletAction::Transfer,
        &body.from,
        Some(&body.asset),
        Some(body.amount_minor),
    )?;
    let account = body.from.clone();
    let entry = Entry::Transfer {
        principal: principal_name(&req.principal.name)?,
        key,
        from: body.from,
        to: body.to,
        asset: body.asset,
        amount_minor: body.amount_minor,
        nonce: body.nonce,
        memo: body.memo,
        reference: None,
        daily_ceiling: daily(api, req, allowed.daily),
    };
    Ok((entry, account))
}

fn burn(api: &Api, req: &Request) -> Result<Accepted, Problem> {
    let key = entry_key(&req.idempotency_key()?)?;
    let body: Burn = req.json()?;
    positive(body.amount_minor)?;
    nonce(body.nonce)?;
    not_reserved(&body.from)?;
    let allowed = api.allow(
        &req.principal,
        WalletAction::Burn,
        &body.from,
        Some(&body.asset),
        Some(body.amount_minor),
    )?;
    let account = body.from.clone();
    let entry = Entry::Burn {
        principal: principal_name(&req.principal.name)?,
        key,
        from: body.from,
        asset: body.asset,
        amount_minor: body.amount_minor,
        nonce: body.nonce,
        memo: body.memo,
        reference: None,
        daily_ceiling: daily(api, req, allowed.daily),
    };
    Ok((entry, account))
}

/// The tightest of rule, token and configuration.
fn daily(api: &Api, req: &Request, rule: Option<Amount>) -> Option<Amount> {
    let token = daily_ceiling(&req.principal.caveats);
    [rule, token, Some(api.daily_max)]
        .into_iter()
        .flatten()
        .min()
}

fn positive(amount: Amount) -> Result<(), Problem> {
    if amount.0 == 0 {
        return Err(Problem::bad_request("amount_minor must be more than zero"));
    }
    Ok(())
}

fn nonce(nonce: u64) -> Result<(), Problem> {
    if nonce == 0 || nonce > MAX_WIRE_INTEGER {
        return Err(Problem::bad_request(
            "nonce must be the account's next: 1, 2, 3 ...",
        ));
    }
    Ok(())
}

fn not_reserved(account: &Account) -> Result<(), Problem> {
    if account.as_str().starts_with(ESCROW_PREFIX) {
        return Err(Problem::forbidden("escrow accounts belong to the ledger"));
    }
    Ok(())
}
