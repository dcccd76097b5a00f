//! `POST /v1/issue`, `/v1/transfer`, `/v1/burn`.

use std::sync::Arc;

use ron_auth::caveats;
use ron_http::{Need, Request, Route};
use ron_proto::ledger::{BatchTag, ESCROW_PREFIX, Entry, MAX_WIRE_INTEGER, RequestKey};
use ron_proto::wallet::{Burn, IssueMoney, Transaction, Transfer, WalletAction};
use ron_proto::{Account, Amount, Asset, DebitAmount, Problem, scope};

use super::submit::{Accepted, write};
use super::{Api, asks, request_key};
use crate::policy::{PolicyRequest, limits_exceeded};

pub fn routes(api: &Arc<Api>) -> [Route; 3] {
    let scoped = |path, scope, op, read| write(api, path, Need::Scope(scope), op, read);
    [
        scoped("/v1/issue", scope::WALLET_ISSUE, "issue", |api, req| {
            let (entry, account) = issue(api, req, tag(req)?, req.json()?)?;
            Ok(Accepted::one(entry, account))
        })
        .summary("Create money in an account.")
        .body::<IssueMoney>()
        .returns::<Transaction>(200),
        scoped(
            "/v1/transfer",
            scope::WALLET_TRANSFER,
            "transfer",
            |api, req| {
                let (entry, account) = transfer(api, req, tag(req)?, req.json()?)?;
                Ok(Accepted::one(entry, account))
            },
        )
        .summary("Move money between accounts.")
        .body::<Transfer>()
        .returns::<Transaction>(200),
        scoped("/v1/burn", scope::WALLET_BURN, "burn", |api, req| {
            let (entry, account) = burn(api, req, tag(req)?, req.json()?)?;
            Ok(Accepted::one(entry, account))
        })
        .summary("Destroy money of an account.")
        .body::<Burn>()
        .returns::<Transaction>(200),
    ]
}

/// The fields of an entry that come from outside the body.
pub struct Tag {
    /// The caller with its idempotency key, or with the derived key of a batch item.
    pub owned: RequestKey,
    /// The batch that the entry belongs to.
    pub batch: Option<BatchTag>,
}

pub fn tag(req: &Request) -> Result<Tag, Problem> {
    Ok(Tag {
        owned: request_key(&req.principal, &req.idempotency_key()?)?,
        batch: None,
    })
}

/// An entry, and the account whose writes keep their order.
pub type WriteEntry = (Entry, Account);

pub fn issue(api: &Api, req: &Request, tag: Tag, body: IssueMoney) -> Result<WriteEntry, Problem> {
    positive(body.amount_minor)?;
    not_reserved(&body.to)?;
    api.allow(
        req,
        WalletAction::Issue,
        &body.to,
        Some(&body.asset),
        Some(body.amount_minor),
    )?;
    let account = body.to.clone();
    let entry = Entry::Issue {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        to: body.to,
        asset: body.asset,
        amount_minor: body.amount_minor,
        details: body.details,
        batch: tag.batch,
        budgets: req.principal.budgets.to_vec(),
    };
    Ok((entry, account))
}

pub fn transfer(api: &Api, req: &Request, tag: Tag, body: Transfer) -> Result<WriteEntry, Problem> {
    not_reserved(&body.to)?;
    if body.from == body.to {
        return Err(Problem::bad_request("from and to are the same account"));
    }
    let debit = Debit {
        action: WalletAction::Transfer,
        from: &body.from,
        to: Some(&body.to),
        asset: &body.asset,
        amount: body.amount_minor,
        nonce: body.nonce,
    };
    let terms = debit.allowed(api, req)?;
    let account = body.from.clone();
    let entry = Entry::Transfer {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        from: body.from,
        to: body.to,
        asset: body.asset,
        amount_minor: terms.amount,
        up_to: terms.up_to,
        nonce: body.nonce,
        details: body.details,
        batch: tag.batch,
        daily_ceiling: Some(terms.daily_ceiling),
        budgets: req.principal.budgets.to_vec(),
    };
    Ok((entry, account))
}

pub fn burn(api: &Api, req: &Request, tag: Tag, body: Burn) -> Result<WriteEntry, Problem> {
    let debit = Debit {
        action: WalletAction::Burn,
        from: &body.from,
        to: None,
        asset: &body.asset,
        amount: body.amount_minor,
        nonce: body.nonce,
    };
    let terms = debit.allowed(api, req)?;
    let account = body.from.clone();
    let entry = Entry::Burn {
        tenant: tag.owned.tenant,
        principal: tag.owned.principal,
        key: tag.owned.key,
        from: body.from,
        asset: body.asset,
        amount_minor: terms.amount,
        up_to: terms.up_to,
        nonce: body.nonce,
        details: body.details,
        batch: tag.batch,
        daily_ceiling: Some(terms.daily_ceiling),
        budgets: req.principal.budgets.to_vec(),
    };
    Ok((entry, account))
}

/// A debit by the account's owner: the common part of `transfer`, `burn` and `hold`.
pub struct Debit<'b> {
    pub action: WalletAction,
    pub from: &'b Account,
    /// The credited account of a transfer.
    pub to: Option<&'b Account>,
    pub asset: &'b Asset,
    pub amount: DebitAmount,
    pub nonce: Option<u64>,
}

/// What a debit may move, as the ledger enforces it with the entry.
pub struct DebitTerms {
    /// Zero for all that is available.
    pub amount: Amount,
    /// For all that is available, the maximum of one operation: the ledger alone knows the amount.
    pub up_to: Option<Amount>,
    pub daily_ceiling: Amount,
}

impl Debit<'_> {
    /// Checks the body, then caveats and policy.
    pub fn allowed(&self, api: &Api, req: &Request) -> Result<DebitTerms, Problem> {
        let amount = match self.amount {
            DebitAmount::Exactly(amount) => Some(amount),
            DebitAmount::Max => None,
        };
        amount.map_or(Ok(()), positive)?;
        let usable = |nonce| (1..=MAX_WIRE_INTEGER).contains(&nonce);
        if !self.nonce.is_none_or(usable) {
            return Err(Problem::bad_request(
                "nonce must be the account's next (1, 2, 3 ...), or absent",
            ));
        }
        not_reserved(self.from)?;
        let ask = PolicyRequest {
            account: Some(self.from),
            payee: self.to,
            asset: Some(self.asset),
            amount,
            ..asks(&req.principal, self.action)
        };
        let allowed = api.check(req, &ask)?;
        let of_token = caveats::per_op(&req.principal.caveats);
        let most = of_token.map_or(allowed.per_op, |most| most.min(allowed.per_op));
        // The ledger refuses a whole commit for an entry that may move nothing, and with it the entries of others.
        if amount.is_none() && most.is_zero() {
            return Err(limits_exceeded("one operation may move nothing"));
        }
        Ok(DebitTerms {
            amount: amount.unwrap_or(Amount::ZERO),
            up_to: amount.is_none().then_some(most),
            daily_ceiling: daily(api, allowed.daily),
        })
    }
}

/// The lower one of the limits of rule and configuration.
pub fn daily(api: &Api, rule: Option<Amount>) -> Amount {
    rule.map_or(api.daily_max, |most| most.min(api.daily_max))
}

pub fn positive(amount: Amount) -> Result<(), Problem> {
    if amount.0 == 0 {
        return Err(Problem::bad_request("amount_minor must be more than zero"));
    }
    Ok(())
}

pub fn not_reserved(account: &Account) -> Result<(), Problem> {
    if account.as_str().starts_with(ESCROW_PREFIX) {
        return Err(Problem::forbidden("escrow accounts belong to the ledger"));
    }
    Ok(())
}
