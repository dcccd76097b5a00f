//! What a run pays: policies, usage and epochs, drawn from the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use ron_crypto::sign::Ed25519Key;
use ron_proto::policy::PolicySig;
use ron_proto::rewarder::{ComputeRequest, RunManifest};
use ron_proto::{Account, Asset, ContentId, EpochId, Tenant, b64};
use serde_json::{Value, json};

use super::formats::{Inputs, Policy};
use super::shares::Usage;
use crate::chance::below;

pub const POOL: &str = "pool:default/rewards";
/// The account to which some policies give the remainder; the others leave it in the pool.
const REST: &str = "treasury:rest";
const METRICS: [&str; 3] = ["cpu", "disk", "net"];
/// Accounts of a large epoch: more than one commit pays.
const LARGE: u64 = 1_050;

/// What an epoch of the plan is to be computed from.
#[derive(Debug)]
pub struct Epoch {
    pub id: EpochId,
    /// Number of its inputs, which its operator uses; careless ones use others.
    pub inputs: usize,
}

#[derive(Debug)]
pub struct Plan {
    pub tenant: Tenant,
    pub asset: Asset,
    pub pool: Account,
    pub inputs: Vec<Inputs>,
    pub epochs: Vec<Epoch>,
}

/// The key that signs policies.
pub fn policy_key() -> &'static Ed25519Key {
    static KEY: OnceLock<Ed25519Key> = OnceLock::new();
    KEY.get_or_init(|| Ed25519Key::from_seed(&[31; 32]))
}

fn any<'l, T>(list: &'l [T]) -> &'l T {
    &list[below(list.len() as u64) as usize]
}

impl Plan {
    pub fn drawn() -> Self {
        let policies: Vec<Policy> = (0..2 + below(2)).map(policy).collect();
        let large = (below(12) == 0).then(|| below(3));
        let inputs: Vec<Inputs> = (0..4 + below(3))
            .map(|number| {
                // The same usage of another period is another usage.
                let period = (below(3) == 0).then(|| format!("2026-{number:02}"));
                Inputs::new(usage(large == Some(number)), period, any(&policies))
            })
            .collect();
        let epochs: Vec<Epoch> = (0..3 + below(3))
            .map(|number| Epoch {
                id: format!("e{number}").parse().expect("an epoch"),
                // Now and then the usage of another epoch, which is paid once.
                inputs: match below(5) {
                    0 => below(inputs.len() as u64),
                    _ => number % inputs.len() as u64,
                } as usize,
            })
            .collect();
        Self {
            tenant: "default".parse().expect("a tenant"),
            asset: "credit".parse().expect("an asset"),
            pool: POOL.parse().expect("an account"),
            inputs,
            epochs,
        }
    }

    /// The manifest of an epoch with these inputs.
    pub fn manifest(&self, epoch: usize, inputs: usize) -> RunManifest {
        let epoch = &self.epochs[epoch];
        self.inputs[inputs].manifest(&self.tenant, &epoch.id)
    }

    /// The manifest of an epoch that is as wanted, and the number of its inputs.
    pub fn find(
        &self,
        epoch: usize,
        wanted: impl Fn(&RunManifest) -> bool,
    ) -> Option<(usize, RunManifest)> {
        let all = 0..self.inputs.len();
        let mut all = all.map(|inputs| (inputs, self.manifest(epoch, inputs)));
        all.find(|(_, manifest)| wanted(manifest))
    }

    /// The number of the inputs with these hashes.
    pub fn inputs_of(&self, snapshot: ContentId, policy_hash: ContentId) -> Option<usize> {
        let wanted = (snapshot, policy_hash);
        let mut all = self.inputs.iter();
        all.position(|inputs| (inputs.cid, inputs.policy_hash) == wanted)
    }

    pub fn request(&self, epoch: usize, inputs: usize, dry_run: bool) -> ComputeRequest {
        let of = &self.inputs[inputs];
        ComputeRequest {
            snapshot: of.cid,
            policy_id: of.policy.id.clone(),
            policy_hash: of.policy_hash,
            dry_run,
            adjusts: None,
        }
    }

    /// More than all epochs pay together.
    pub fn enough(&self) -> u128 {
        let most = self.inputs.iter().map(|inputs| inputs.table.pool).max();
        most.unwrap_or(0) * self.epochs.len() as u128
    }
}

/// A policy over all metrics, with some of the rules.
fn policy(number: u64) -> Policy {
    let weights = ["1", "2", "1/3", "3/2", "0"];
    let mut metrics = serde_json::Map::new();
    let mut categories = BTreeSet::new();
    for metric in METRICS {
        let mut rule = json!({"weight": any(&weights), "class": "metering"});
        if below(3) == 0 {
            let category = *any(&["a", "b"]);
            rule["category"] = category.into();
            categories.insert(category);
        }
        metrics.insert(metric.to_owned(), rule);
    }
    // A policy that could pay nobody is refused.
    metrics[*any(&METRICS)]["weight"] = "5/2".into();
    let pool = 1 + below(*any(&[10, 1_000, 1_000_000]));
    let mut caps = json!({});
    if below(3) == 0 {
        caps["account_minor"] = text(1 + below(pool));
    }
    if below(2) == 0 {
        let all = categories.iter();
        let capped: BTreeMap<_, _> = all.map(|c| (*c, text(below(pool)))).collect();
        caps["category_minor"] = json!(capped);
    }
    let mut eligibility = json!({});
    if below(4) == 0 {
        eligibility["exclude"] = json!([account(below(5)), account(7 + below(5))]);
    }
    if below(4) == 0 {
        eligibility["prefixes"] = json!(["user:00", "user:0"]);
    }
    if below(4) == 0 {
        eligibility["minimum"] = json!({(*any(&METRICS)): text(1 + below(20))});
    }
    let owner = if below(2) == 0 { POOL } else { REST };
    let document = json!({
        "format": 1, "tenant": "default", "id": format!("p{number}"), "version": 1 + below(3),
        "rule_set": if below(4) == 0 { "floor/1" } else { "hamilton/1" },
        "asset": "credit",
        "pool": {"account": POOL, "amount_minor": text(pool)},
        "metrics": metrics,
        "classes_allowed": ["metering"],
        "min_payout_minor": text(if below(3) == 0 { below(20) } else { 0 }),
        "caps": caps,
        "eligibility": eligibility,
        "residual": {"owner": owner}
    });
    Policy::new(document, |message| PolicySig {
        alg: "ed25519".to_owned(),
        key: "k".to_owned(),
        value: b64::url(&policy_key().sign(message)),
    })
}

/// Amounts are text in documents.
fn text(amount: u64) -> Value {
    amount.to_string().into()
}

fn account(number: u64) -> String {
    // Names of different lengths, whose order is not that of their numbers.
    if number.is_multiple_of(3) {
        format!("user:{number:04}/a")
    } else {
        format!("user:{number:04}")
    }
}

fn usage(large: bool) -> Usage {
    let accounts = match below(6) {
        _ if large => LARGE + below(LARGE),
        0 => 1,
        1 | 2 => 1 + below(4),
        3 | 4 => 2 + below(12),
        _ => 20 + below(60),
    };
    // Equal amounts tie.
    let most = *any(&[2, 10, 200]);
    let first = below(10);
    let one = |number| {
        let mut amounts = BTreeMap::new();
        for metric in METRICS {
            if below(3) > 0 {
                amounts.insert(metric.to_owned(), u128::from(below(most)));
            }
        }
        if amounts.is_empty() {
            amounts.insert(METRICS[0].to_owned(), 1);
        }
        (account(first + number), amounts)
    };
    (0..accounts).map(one).collect()
}
