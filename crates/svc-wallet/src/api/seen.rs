//! What a caller sees of accounts and entries: as far as the policy and the caveats of its token allow it.

use ron_http::{Principal, Request};
use ron_proto::ledger::{Event, ListedAccount};
use ron_proto::wallet::WalletAction;
use ron_proto::{Account, Asset, Caveat, Problem};

use super::{Access, Api, is_own};

/// What an entry concerns: what it moved, or what a refused one asked for.
struct Concerns {
    accounts: [Option<Account>; 2],
    asset: Option<Asset>,
}

impl Concerns {
    fn of(event: &Event) -> Self {
        // A receipt has the resolved accounts (a release names only its hold).
        if let Some(moved) = event.answer.receipt() {
            return Self {
                accounts: [moved.from.clone(), moved.to.clone()],
                asset: moved.asset.clone(),
            };
        }
        let named = event.entry.operands();
        Self {
            accounts: [named.from, named.to],
            asset: named.asset,
        }
    }

    fn within(&self, caller: &Principal) -> bool {
        caller.caveats.iter().all(|caveat| match caveat {
            Caveat::Account(only) => self.accounts.iter().flatten().any(|name| name == only),
            Caveat::Asset(only) => self.asset.as_ref() == Some(only),
            _ => true,
        })
    }
}

/// Whether the entry concerns the accounts and assets that the caller's token is limited to, if it is.
pub fn within(caller: &Principal, event: &Event) -> bool {
    Concerns::of(event).within(caller)
}

/// Whether the caller's token is limited to an account or an asset.
pub fn is_narrowed(caller: &Principal) -> bool {
    let narrows = |caveat: &Caveat| matches!(caveat, Caveat::Account(_) | Caveat::Asset(_));
    caller.caveats.iter().any(narrows)
}

impl Api {
    /// Whether the caller may read an account in an asset; without one, in all assets.
    pub(super) fn may_read(
        &self,
        caller: &Principal,
        account: &Account,
        asset: Option<&Asset>,
    ) -> bool {
        let access = Access {
            account: Some(account),
            asset,
            ..Access::to(WalletAction::Read)
        };
        self.judge(caller, access).is_ok()
    }

    /// Whether the caller may see an entry: its own, or one that concerns an account that it may read.
    pub(super) fn may_see(&self, caller: &Principal, event: &Event) -> bool {
        let concerns = Concerns::of(event);
        let reads = |account| self.may_read(caller, account, concerns.asset.as_ref());
        concerns.within(caller)
            && (is_own(caller, &event.entry) || concerns.accounts.iter().flatten().any(reads))
    }

    /// What the caller may read of a listed account; `None` when that is nothing.
    pub(super) fn readable(
        &self,
        caller: &Principal,
        mut listed: ListedAccount,
    ) -> Option<ListedAccount> {
        let ListedAccount { account, balances } = &mut listed;
        balances.retain(|balance| self.may_read(caller, account, Some(&balance.asset)));
        (!balances.is_empty()).then_some(listed)
    }

    /// Refuses a token that is limited to another asset.
    pub(super) fn check_asset(&self, req: &Request, asset: &Asset) -> Result<(), Problem> {
        let other = |caveat: &Caveat| matches!(caveat, Caveat::Asset(only) if only != asset);
        if req.principal.caveats.iter().any(other) {
            return Err(self.caveat_refused(req));
        }
        Ok(())
    }

    /// Refuses entries that the token is not for.
    pub(super) fn check_within(&self, req: &Request, events: &[Event]) -> Result<(), Problem> {
        if events.iter().all(|event| within(&req.principal, event)) {
            return Ok(());
        }
        Err(self.caveat_refused(req))
    }
}
