//! The accounts, assets and epochs of all callers.

use ron_proto::{Account, Asset, EpochId, Tenant};

/// Accounts beside the pool.
pub const ACCOUNTS: u64 = 6;
pub const POOL: &str = "pool:t/main";

/// The accounts of all callers.
pub fn accounts() -> Vec<Account> {
    let named = (0..ACCOUNTS).map(|n| format!("a{n}"));
    let all = named.chain([POOL.to_owned()]);
    all.map(|name| name.parse().expect("a name")).collect()
}

pub fn asset(n: u64) -> Asset {
    let name = if n == 0 { "ron" } else { "eur" };
    name.parse().expect("a name")
}

pub fn tenant() -> Tenant {
    "t".parse().expect("a name")
}

pub fn account(n: u64) -> Account {
    format!("a{n}").parse().expect("a name")
}

pub fn epoch(n: u64) -> EpochId {
    format!("e{n}").parse().expect("a name")
}
