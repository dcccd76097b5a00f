//! Limits set by the operator. They apply to entries that callers request, not to the settlement of
//! reward epochs.
//!
//! **Invariant:** a replay does not read the configuration. A refusal by a limit records that
//! limit, so a replay decides it under the recorded limit and every other entry under none; limits
//! can only refuse.

/// Maximum accounts ever: row numbers have 32 bits.
pub const ACCOUNTS_MAX: u32 = 4_000_000_000;

/// Maximum minor units ever issued of an asset. No account can exceed it, and no sum of accounts
/// overflows 128 bits.
pub(super) const ISSUED_MAX: u128 = u128::MAX - 1_000_000_000;

/// The limits in force while entries are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum accounts; an entry that would create another is refused.
    pub accounts: u32,
    /// Maximum minor units of one asset in one account; an entry that would exceed it is refused.
    pub account_total: u128,
    /// Whether only registered assets may be issued.
    pub registered_assets: bool,
    /// Refusals with a leaf that a principal may cause at once; see [`REFUSAL_MS`].
    pub refusals: u32,
}

/// A refusal with a leaf uses up one unit of its principal's budget; this many milliseconds give one
/// back, which makes 60 a minute.
pub(super) const REFUSAL_MS: u64 = 1_000;
/// What an entry that is done gives back, in the same measure: one unit per four.
pub(super) const DONE_MS: u64 = REFUSAL_MS / 4;
/// The units of a full budget, unless a test sets others.
pub const REFUSALS_MAX: u32 = 1_000;

impl Default for Limits {
    /// Only the limits of the format.
    fn default() -> Self {
        Self {
            accounts: ACCOUNTS_MAX,
            account_total: ISSUED_MAX,
            registered_assets: false,
            refusals: u32::MAX,
        }
    }
}

impl Limits {
    /// `limit` alone, as for a replay.
    pub fn only(limit: Limit) -> Self {
        let none = Self::default();
        match limit {
            Limit::Accounts(accounts) => Self { accounts, ..none },
            Limit::AccountTotal(account_total) => Self {
                account_total,
                ..none
            },
            Limit::RegisteredAssets => Self {
                registered_assets: true,
                ..none
            },
        }
    }
}

/// The limit that refused an entry, as its leaf records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The maximum number of accounts.
    Accounts(u32),
    /// The maximum minor units of one asset in one account.
    AccountTotal(u128),
    /// Only registered assets may be issued.
    RegisteredAssets,
}
