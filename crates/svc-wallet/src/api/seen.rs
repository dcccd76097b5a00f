//! What a caller sees of accounts and entries: as far as the policy and the caveats of its token allow it.

use ron_http::{Principal, Request};
use ron_proto::ledger::{Event, ListedAccount, Operands};
use ron_proto::wallet::WalletAction;
use ron_proto::{Account, Asset, Caveat, Problem};

use super::{Api, asks, is_own};
use crate::policy::PolicyRequest;
use crate::render::{Texts, texts};

/// Whether an entry with these operands is about the account and asset that the caller's token is limited to, if it is.
fn is_for(caller: &Principal, concerned: &Operands) -> bool {
    caller.caveats.iter().all(|caveat| match caveat {
        Caveat::Account(only) => [&concerned.from, &concerned.to]
            .into_iter()
            .any(|account| account.as_ref() == Some(only)),
        Caveat::Asset(only) => concerned.asset.as_ref() == Some(only),
        _ => true,
    })
}

/// Whether the entry is about the account and asset that the caller's token is limited to, if it is.
pub fn within(caller: &Principal, event: &Event) -> bool {
    is_for(caller, &event.operands())
}

/// Whether the caller's token is limited to an account or an asset.
pub fn is_narrowed(caller: &Principal) -> bool {
    let narrows = |caveat: &Caveat| matches!(caveat, Caveat::Account(_) | Caveat::Asset(_));
    caller.caveats.iter().any(narrows)
}

/// Whether the caller's token is not limited to another asset.
pub fn is_for_asset(caller: &Principal, asset: &Asset) -> bool {
    let other = |caveat: &Caveat| matches!(caveat, Caveat::Asset(only) if only != asset);
    !caller.caveats.iter().any(other)
}

impl Api {
    /// Whether the caller may read an account in an asset; without one, in all assets.
    pub(super) fn may_read(
        &self,
        caller: &Principal,
        account: &Account,
        asset: Option<&Asset>,
    ) -> bool {
        let ask = PolicyRequest {
            account: Some(account),
            asset,
            ..asks(caller, WalletAction::Read)
        };
        self.judge(caller, &ask).is_ok()
    }

    /// Whether the caller may see an entry: its own, or one that concerns an account that it may read.
    pub(super) fn may_see(&self, caller: &Principal, event: &Event) -> bool {
        let concerned = event.operands();
        let reads = |account| self.may_read(caller, account, concerned.asset.as_ref());
        let mut accounts = [&concerned.from, &concerned.to].into_iter().flatten();
        is_for(caller, &concerned) && (is_own(caller, &event.entry) || accounts.any(reads))
    }

    /// How much of an entry's texts the caller sees.
    pub(super) fn texts(&self, caller: &Principal, event: &Event) -> Texts {
        let asset = event.operands().asset;
        let reads = |payer: &Account| self.may_read(caller, payer, asset.as_ref());
        texts(event, &caller.tenant, Some(&caller.name), reads)
    }

    /// What the caller may read of a listed account; `None` when that is nothing.
    pub(super) fn readable(
        &self,
        caller: &Principal,
        mut listed: ListedAccount,
    ) -> Option<ListedAccount> {
        let ListedAccount {
            account, balances, ..
        } = &mut listed;
        balances.retain(|balance| self.may_read(caller, account, Some(&balance.asset)));
        let shown = !balances.is_empty() || self.may_read(caller, account, None);
        shown.then_some(listed)
    }

    /// Refuses a token that is limited to another asset.
    pub(super) fn check_asset(&self, req: &Request, asset: &Asset) -> Result<(), Problem> {
        if is_for_asset(&req.principal, asset) {
            return Ok(());
        }
        Err(self.caveat_refused(req))
    }

    /// Refuses entries that the token is not for.
    pub(super) fn check_within(&self, req: &Request, events: &[Event]) -> Result<(), Problem> {
        if events.iter().all(|event| within(&req.principal, event)) {
            return Ok(());
        }
        Err(self.caveat_refused(req))
    }
}
