//! What a caller sees: the whole ledger, or what belongs to its tenant.

use ron_http::Principal;
use ron_proto::ledger::{Entry, is_pool_of};
use ron_proto::{Account, Tenant, scope};

/// A caller of the reading routes.
#[derive(Clone, Debug)]
pub enum Reader {
    /// An auditor, or a service of the installation, which serves all tenants.
    OfAll,
    OfTenant(Tenant),
}

impl Reader {
    pub fn new(caller: &Principal) -> Self {
        if caller.is_installation() || caller.has_scope(scope::LEDGER_AUDIT) {
            Self::OfAll
        } else {
            Self::OfTenant(caller.tenant.clone())
        }
    }

    /// Entries without a tenant are the ledger's own; only readers of the whole ledger see them.
    pub fn sees(&self, entry: &Entry) -> bool {
        entry
            .tenant()
            .map_or(matches!(self, Self::OfAll), |owner| self.is_of(owner))
    }

    /// True when this reader sees what belongs to `owner`.
    pub fn is_of(&self, owner: &Tenant) -> bool {
        match self {
            Self::OfAll => true,
            Self::OfTenant(tenant) => tenant == owner,
        }
    }

    /// For what belongs to no tenant: a budget's id does not say whose token it belongs to, and a trial
    /// balance sums the accounts of all.
    pub const fn sees_all(&self) -> bool {
        matches!(self, Self::OfAll)
    }

    /// Of all accounts only pools belong to a tenant. The policy of svc-wallet
    /// says which callers read the others.
    pub fn sees_account(&self, account: &Account) -> bool {
        match self {
            Self::OfAll => true,
            Self::OfTenant(tenant) => is_pool_of(tenant, account),
        }
    }
}
