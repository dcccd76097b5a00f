//! The policies of a new data directory.

use ron_proto::passport::{AudienceRule, ClientRule, IssuerPolicy, PolicyPlaces, TTL_S_MAX};
use ron_proto::wallet::{WalletAction, WalletPolicy, WalletRule};
use ron_proto::{Tenant, scope};
use serde_json::Value;

/// The reward policy of the example epochs.
const REWARD: &str = include_str!("../../../../examples/rocketpool/policy.json");

/// Kind and policy.
pub fn all() -> Result<[(&'static str, Value); 3], String> {
    let value = |json: serde_json::Result<Value>| json.map_err(|e| e.to_string());
    Ok([
        ("issuer", value(serde_json::to_value(issuer()))?),
        ("wallet", value(serde_json::to_value(wallet()))?),
        ("reward", value(serde_json::from_str(REWARD))?),
    ])
}

/// The ledger accepts these from service tokens only.
const WRITES_THE_LEDGER: [&str; 2] = [scope::LEDGER_COMMIT, scope::LEDGER_SETTLE];

/// Policy of the issuer: the operator may have tokens for every service, with every scope of that
/// service that a passport may have.
fn issuer() -> IssuerPolicy {
    let audience = |service: &str, prefix: &str| AudienceRule {
        audience: service.to_owned(),
        scopes: scope::ALL
            .iter()
            .filter(|s| s.starts_with(prefix) && !WRITES_THE_LEDGER.contains(s))
            .map(|s| (*s).to_owned())
            .collect(),
        alg: None,
        algs: Vec::new(),
        from: Vec::new(),
        caveats: Vec::new(),
    };
    IssuerPolicy {
        places: PolicyPlaces::default(),
        version: 1,
        audiences: Vec::new(),
        issuers: Vec::new(),
        clients: vec![ClientRule {
            client_id: "operator".to_owned(),
            tenant: "default".parse().expect("a constant tenant is valid"),
            subjects: Vec::new(),
            audiences: vec![
                audience("ron-kms", "kms:"),
                audience("svc-passport", "passport:"),
                audience("ron-ledger", "ledger:"),
                audience("svc-wallet", "wallet:"),
                audience("svc-rewarder", "rewarder:"),
                audience("svc-admin", "admin:"),
            ],
            max_ttl_s: TTL_S_MAX,
            exchange: false,
            external: Vec::new(),
        }],
    }
}

/// Policy of the wallet: the operator may do everything with every account, within the wallet's own
/// limits.
fn wallet() -> WalletPolicy {
    let any = || vec!["*".to_owned()];
    WalletPolicy {
        version: 1,
        rules: vec![WalletRule {
            tenant: Tenant::default(),
            principal: "operator".to_owned(),
            clients: None,
            actions: vec![
                WalletAction::Read,
                WalletAction::Issue,
                WalletAction::Transfer,
                WalletAction::Burn,
                WalletAction::Hold,
                WalletAction::Reverse,
                WalletAction::Admin,
            ],
            accounts: any(),
            payees: None,
            assets: any(),
            per_op: None,
            daily: None,
        }],
    }
}
