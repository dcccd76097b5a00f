//! The ledger's wire types: entries, responses, receipts, account and epoch documents, events and
//! the head.
//!
//! Amounts are decimal strings of minor units, times are RFC 3339 UTC (written with milliseconds), `seq` and
//! nonces are JSON integers below 2^53. `seq` is the index of the entry's leaf in the ledger's log;
//! leaf 0 is the genesis record, so the first entry has `seq` 1 and `after=0` reads everything.

mod answer;
mod document;
mod entry;
mod kind;
mod name;
mod operands;
mod parts;
mod receipt_file;
mod request;
mod search;
mod terms;

pub use answer::{CommitAnswer, EntryAnswer, Event, EventPage, PrivateFacts, Receipt, RefusalCode};
pub use document::{
    AccountDoc, AssetDoc, AssetPage, BalanceDoc, BudgetDoc, ClassTotal, Closed, ClosedCause,
    EpochDoc, EpochState, HISTORY_BEHIND, Head, HoldDoc, LEDGER_CLOSED, ListedAsset, NOT_ACTIVE,
    ReversalsDoc, TrialBalance,
};
pub use entry::Entry;
pub use kind::EntryKind;
pub use name::{
    AccountClass, AssetTitle, BatchTag, BudgetId, EntryKey, HoldRef, LeafHash, Memo, Metadata,
    PrincipalName, Reference, TxId,
};
pub use parts::{Details, Operands, Original, RequestKey, TokenBudget};
pub use receipt_file::{
    Hash64, HiddenPart, LogRecord, PrivatePart, PrivateParts, RECEIPT_FORMAT, ReceiptFile,
    RecordPage, ShownPart,
};

pub use search::{
    AccountPage, Direction, EntryPage, EntrySearch, FoundEntry, HoldPage, HoldRecord, HoldState,
    ListedAccount, MetadataMember, PastBalance, PointInTime, SEARCH_NAMES, StatementPage,
    StatementTime, Viewer,
};

pub use request::CommitRequest;
pub use terms::{AccountTerms, AssetLimits, AssetTerms, MAX_SCALE, Sides};

use crate::values::{Account, EpochId, Tenant};

/// Maximum number of entries in one commit.
pub const MAX_ENTRIES: usize = 1_000;
/// Maximum size of one commit body, in bytes.
pub const MAX_COMMIT_BYTES: usize = 1 << 20;
/// Maximum number of token budgets that one entry counts against: the tokens of a line of
/// exchanges, and the narrowing statements on the last.
pub const MAX_BUDGETS: usize = 17;
/// Maximum size of a memo, in bytes.
pub const MAX_MEMO_BYTES: usize = 256;
/// Maximum size of a reference, in bytes.
pub const MAX_REFERENCE_BYTES: usize = 128;
/// Maximum number of metadata members of an entry.
pub const MAX_METADATA_MEMBERS: usize = 16;
/// Maximum size of the names and values of an entry's metadata together, in bytes.
pub const MAX_METADATA_BYTES: usize = 1_024;
/// Maximum of integers on the wire (nonce, index, recipients, seq): every JSON reader represents
/// them exactly.
pub const MAX_WIRE_INTEGER: u64 = (1 << 53) - 1;
/// Maximum number of assets that one epoch pays.
pub const EPOCH_ASSETS_MAX: usize = 16;
/// The principal of entries that the ledger makes itself; callers may not use it.
pub const LEDGER_PRINCIPAL: &str = "ron-ledger";
/// Accounts with this prefix are reserved for the ledger: only `epoch_open`, `payout` and
/// `epoch_close` change them.
pub const ESCROW_PREFIX: &str = "escrow:";
/// Prefix of the accounts that are pools of reward epochs; a tenant's pools are
/// `pool:<tenant>/<name>`.
pub const POOL_PREFIX: &str = "pool:";

/// True when `account` is a pool of `tenant`: `pool:`, the tenant, a slash and a name. A dot in the
/// tenant's name is written as a colon, because accounts have no dots; tenants have no colons, so
/// no two tenants share a pool.
pub fn is_pool_of(tenant: &Tenant, account: &Account) -> bool {
    let below = account.as_str().strip_prefix(POOL_PREFIX);
    let Some((owner, name)) = below.and_then(|below| below.split_once('/')) else {
        return false;
    };
    let spelt = tenant
        .as_str()
        .bytes()
        .map(|b| if b == b'.' { b':' } else { b });
    !name.is_empty() && owner.bytes().eq(spelt)
}

/// The escrow account of an epoch: `escrow:` and 64 hex digits derived from tenant and epoch only.
pub fn escrow_account(tenant: &Tenant, epoch: &EpochId) -> Account {
    let mut h = blake3::Hasher::new();
    h.update(b"ron-ledger/v1/escrow\0");
    for part in [tenant.as_str(), epoch.as_str()] {
        h.update(&(part.len() as u64).to_be_bytes());
        h.update(part.as_bytes());
    }
    format!("{ESCROW_PREFIX}{}", h.finalize().to_hex())
        .parse()
        .expect("prefix and hex digits make an account")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escrow_accounts_do_not_run_together() {
        let e = |t: &str, e: &str| escrow_account(&t.parse().unwrap(), &e.parse().unwrap());
        assert_ne!(e("ab", "c"), e("a", "bc"));
        assert!(e("a", "b").as_str().starts_with(ESCROW_PREFIX));
    }
}
