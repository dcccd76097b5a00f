//! Limits that the operator sets. They bind those who move money by request, not the settlement of reward epochs.
//!
//! **Invariant:** a replay does not read the configuration. A refusal by a limit records the limit, so it is decided
//! again under that one; everything else is decided again under none, because limits only ever refuse.

/// Rows of accounts have 32-bit numbers; more than these there can never be.
pub const ACCOUNTS_MAX: u32 = 4_000_000_000;

/// The limits in force while entries are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Accounts there may be; entries that would make another are refused.
    pub accounts: u32,
    /// Minor units of one asset that one account may have; entries that would bring it above are refused.
    pub account_total: u128,
}

impl Default for Limits {
    /// None but those of the format.
    fn default() -> Self {
        Self {
            accounts: ACCOUNTS_MAX,
            account_total: super::rules::ISSUED_MAX,
        }
    }
}

impl Limits {
    /// `limit` alone.
    pub fn only(limit: Limit) -> Self {
        let none = Self::default();
        match limit {
            Limit::Accounts(accounts) => Self { accounts, ..none },
            Limit::AccountTotal(account_total) => Self {
                account_total,
                ..none
            },
        }
    }
}

/// The limit that refused an entry, as its leaf records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many accounts were allowed.
    Accounts(u32),
    /// So many minor units in one account were allowed.
    AccountTotal(u128),
}
