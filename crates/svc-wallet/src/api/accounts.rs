//! `POST /v1/account/{a}/freeze` and `/unfreeze`.

use std::sync::Arc;

use ron_http::{Need, Request, Route};
use ron_proto::ledger::{Entry, RequestKey};
use ron_proto::wallet::{Remarks, Transaction, WalletAction};
use ron_proto::{Problem, scope};

use super::holds::remarks;
use super::submit::{Accepted, write};
use super::writes::{not_reserved, tag};
use super::{Api, account_of};

pub fn routes(api: &Arc<Api>) -> [Route; 2] {
    let admin = Need::Scope(scope::WALLET_ADMIN);
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
    ]
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
