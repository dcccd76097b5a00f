//! `GET` and `PUT /v1/account/{a}`, `POST /v1/account/{a}/freeze` and `/unfreeze`.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route};
use ron_proto::ledger::{AccountDoc, AccountTerms, Details, Entry, RequestKey, Sides};
use ron_proto::wallet::{FreezeAccount, SetAccount, Transaction, WalletAction};
use ron_proto::{Account, Problem, scope};

use super::history::MIN_SEQ;
use super::submit::{Accepted, write, write_by};
use super::writes::{not_reserved, tag};
use super::{Api, body_or_default, existing, param, sequence};

pub fn routes(api: &Arc<Api>) -> [Route; 4] {
    let admin = || Need::Scope(scope::WALLET_ADMIN);
    let reads = Arc::clone(api);
    [
        Route::get(
            "/v1/account/{account}",
            Need::Scope(scope::WALLET_READ),
            move |req| account(&reads, req),
        )
        .summary("An account: balances in all assets, limits, open holds, class, whether it is frozen or closed. One that was never used reads as empty.")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<AccountDoc>(200)
        .errors(&[400, 403, 429, 503])
        .while_draining(),
        write_by(
            api,
            Method::PUT,
            "/v1/account/{account}",
            admin(),
            "account",
            set_account,
        )
        .summary("Open or close an account, or set its class, freeze and limits. A credit limit above zero needs the rights of an issue of as much.")
        .body::<SetAccount>()
        .returns::<Transaction>(200),
        write(
            api,
            "/v1/account/{account}/freeze",
            admin(),
            "freeze",
            |api, req| {
                let (owned, account, sides, details) = frozen(api, req, Sides::Debits)?;
                let entry = Entry::Freeze {
                    tenant: owned.tenant,
                    principal: owned.principal,
                    key: owned.key,
                    account: account.clone(),
                    sides,
                    details,
                };
                Ok(Accepted::one(entry, account))
            },
        )
        .summary("Freeze an account: it refuses debits, credits or both until it is unfrozen.")
        .body::<FreezeAccount>()
        .returns::<Transaction>(200),
        write(
            api,
            "/v1/account/{account}/unfreeze",
            admin(),
            "unfreeze",
            |api, req| {
                let (owned, account, sides, details) = frozen(api, req, Sides::Both)?;
                let entry = Entry::Unfreeze {
                    tenant: owned.tenant,
                    principal: owned.principal,
                    key: owned.key,
                    account: account.clone(),
                    sides,
                    details,
                };
                Ok(Accepted::one(entry, account))
            },
        )
        .summary("Unfreeze an account: it accepts debits, credits or both again.")
        .body::<FreezeAccount>()
        .returns::<Transaction>(200),
    ]
}

fn account(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["account"]).inc();
    req.query_only(&["min_seq"])?;
    let account = param(req, "account")?;
    let min_seq = sequence(req, "min_seq")?.unwrap_or(0);
    api.allow(req, WalletAction::Read, &account, None, None)?;
    let doc = api
        .upstream
        .client
        .account(&account, Api::read_deadline(req))
        .map_err(|e| api.read_failed(&e, "account"))?;
    existing(min_seq, doc.seq)?;
    Ok(Response::json(200, &doc).cache("no-store"))
}

fn set_account(api: &Api, req: &Request) -> Result<Accepted, Problem> {
    let RequestKey {
        tenant,
        principal,
        key,
    } = tag(req)?.owned;
    let body: SetAccount = req.json()?;
    let terms = AccountTerms {
        closed: body.closed,
        frozen: body.frozen,
        require_nonce: body.require_nonce,
        class: body.class,
        limits: body.limits,
    };
    if terms == AccountTerms::default() {
        return Err(Problem::bad_request(
            "the body sets nothing; it has closed, frozen, require_nonce, class or limits",
        ));
    }
    let account = param(req, "account")?;
    not_reserved(&account)?;
    may_set(api, req, &account, &terms)?;
    let entry = Entry::Account {
        tenant,
        principal,
        key,
        account: account.clone(),
        terms,
        details: body.details,
    };
    Ok(Accepted::one(entry, account))
}

/// Checks the rights to set this. An account with credit spends money that nobody issued, so its limit
/// needs the rights of an issue of as much.
fn may_set(
    api: &Api,
    req: &Request,
    account: &Account,
    terms: &AccountTerms,
) -> Result<(), Problem> {
    let whole = AccountTerms {
        limits: None,
        ..terms.clone()
    };
    if whole != AccountTerms::default() {
        api.allow(req, WalletAction::Admin, account, None, None)?;
    }
    let Some(limits) = &terms.limits else {
        return Ok(());
    };
    let asset = Some(&limits.asset);
    api.allow(req, WalletAction::Admin, account, asset, None)?;
    let credit = limits.credit_limit_minor;
    if credit.is_zero() {
        return Ok(());
    }
    if !req.principal.has_scope(scope::WALLET_ISSUE) {
        return Err(Problem::forbidden(format!(
            "a credit limit needs the scope {} too",
            scope::WALLET_ISSUE
        )));
    }
    api.allow(req, WalletAction::Issue, account, asset, Some(credit))?;
    Ok(())
}

type Freeze = (RequestKey, Account, Sides, Details);

/// The parts of a freeze, which is of `sides` when the body does not say.
fn frozen(api: &Api, req: &Request, sides: Sides) -> Result<Freeze, Problem> {
    let owned = tag(req)?.owned;
    let body: FreezeAccount = body_or_default(req)?;
    let sides = body.sides.unwrap_or(sides);
    if sides.is_none() {
        return Err(Problem::bad_request("sides are debits, credits or both"));
    }
    let account = param(req, "account")?;
    not_reserved(&account)?;
    api.allow(req, WalletAction::Admin, &account, None, None)?;
    Ok((owned, account, sides, body.details))
}
