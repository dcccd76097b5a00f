//! Sealed usage, manifest and roots of an epoch, as `docs/formats/rewarder.md` describes them.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::jcs;
use ron_proto::policy::PolicySig;
use ron_proto::rewarder::{
    PayoutProof, PayoutsRoot, ProofSide, RewardPolicy, RunInputs, RunManifest, RunStatus,
    RunTotals, SignedPolicy,
};
use ron_proto::{Amount, ContentId, EpochId, Tenant};

use super::shares::{self, Table, Usage};

/// Usage and a policy: what an epoch is computed from, and what it then pays.
#[derive(Debug)]
pub struct Inputs {
    pub usage: Usage,
    pub period: Option<String>,
    pub cid: ContentId,
    pub signed: SignedPolicy,
    pub policy: RewardPolicy,
    pub policy_hash: ContentId,
    pub table: Table,
    pub root: ContentId,
}

impl Inputs {
    pub fn new(usage: Usage, period: Option<String>, policy: &Policy) -> Self {
        let table = shares::table(&policy.policy, &usage);
        Self {
            cid: ContentId::of(&sealed(&usage, period.as_deref())),
            usage,
            period,
            signed: policy.signed.clone(),
            policy: policy.policy.clone(),
            policy_hash: policy.hash,
            root: root(&table),
            table,
        }
    }

    /// What the ledger pays once.
    pub fn source(&self, tenant: &Tenant) -> ContentId {
        let parts = [
            tenant.as_str().as_bytes(),
            self.policy.id.as_str().as_bytes(),
            &self.cid.0,
        ];
        named("source", &parts)
    }

    /// The manifest of an epoch with these inputs.
    pub fn manifest(&self, tenant: &Tenant, epoch: &EpochId) -> RunManifest {
        let (policy, table) = (&self.policy, &self.table);
        let parts = [
            tenant.as_str().as_bytes(),
            epoch.as_str().as_bytes(),
            &self.cid.0,
            &self.policy_hash.0,
            policy.rule_set.as_str().as_bytes(),
            // It corrects no other epoch.
            b"",
        ];
        let mut manifest = RunManifest {
            version: 1,
            tenant: tenant.clone(),
            epoch_id: epoch.clone(),
            adjusts: None,
            run_key: named("run-key", &parts),
            inputs: RunInputs {
                snapshot: self.cid,
                accounts: self.usage.len() as u64,
                policy_id: policy.id.clone(),
                policy_version: policy.version,
                policy_hash: self.policy_hash,
            },
            rule_set: policy.rule_set,
            asset: policy.asset.clone(),
            pool_account: policy.pool.account.clone(),
            residual_owner: policy.residual.owner.clone(),
            totals: RunTotals {
                pool_minor: Amount(table.pool),
                payout_minor: Amount(table.paid),
                residual_minor: Amount(table.residual),
                recipients: table.recipients,
            },
            payouts: Some(PayoutsRoot {
                root: self.root,
                count: table.rows.len() as u64,
                total_minor: Amount(table.total()),
            }),
            claims: None,
            correction: None,
            also: Vec::new(),
            status: RunStatus::Ok,
            commitment: ContentId([0; 32]),
        };
        manifest.commitment = commitment(&manifest);
        manifest
    }
}

#[derive(Debug)]
pub struct Policy {
    pub policy: RewardPolicy,
    pub signed: SignedPolicy,
    pub hash: ContentId,
}

impl Policy {
    /// `sign` gets the message.
    pub fn new(document: serde_json::Value, sign: impl Fn(&[u8]) -> PolicySig) -> Self {
        let canonical = jcs::canonicalize(&document);
        let hash = ContentId::of(&canonical);
        let inner = b3(&[b"ron-policy/v1\0reward\0", &hash.0]);
        Self {
            policy: serde_json::from_value(document.clone()).expect("a policy"),
            signed: SignedPolicy {
                policy: document,
                signature: sign(&digest_message(&inner)),
            },
            hash,
        }
    }
}

/// What a key of the KMS signs for a digest.
pub fn digest_message(digest: &ContentId) -> Vec<u8> {
    [b"ron-kms/v1/digest\0blake3\0".as_slice(), &digest.0].concat()
}

fn b3(parts: &[&[u8]]) -> ContentId {
    ContentId::of(&parts.concat())
}

fn domain(name: &str) -> Vec<u8> {
    format!("ron-rewarder/v1/{name}\0").into_bytes()
}

/// The hash of parts, each preceded by its length in four bytes.
fn named(name: &str, parts: &[&[u8]]) -> ContentId {
    let mut bytes = domain(name);
    for part in parts {
        bytes.extend((part.len() as u32).to_be_bytes());
        bytes.extend(*part);
    }
    ContentId::of(&bytes)
}

pub fn commitment(manifest: &RunManifest) -> ContentId {
    let mut all = serde_json::to_value(manifest).expect("a document");
    let members = all.as_object_mut().expect("an object");
    members.remove("status");
    members.remove("commitment");
    b3(&[&domain("commitment"), &jcs::canonicalize(&all)])
}

/// A node: hash and sum.
type Node = (ContentId, u128);

fn leaf(index: u64, account: &str, amount: u128) -> Node {
    let length = (account.len() as u32).to_be_bytes();
    let parts: [&[u8]; 5] = [
        &domain("leaf"),
        &index.to_be_bytes(),
        &length,
        account.as_bytes(),
        &amount.to_be_bytes(),
    ];
    (b3(&parts), amount)
}

fn node(left: Node, right: Node) -> Node {
    let (a, b) = (left.1.to_be_bytes(), right.1.to_be_bytes());
    let parts: [&[u8]; 5] = [&domain("node"), &left.0.0, &a, &right.0.0, &b];
    (b3(&parts), left.1 + right.1)
}

fn top(count: u64, total: u128, hash: ContentId) -> ContentId {
    let (count, total) = (count.to_be_bytes(), total.to_be_bytes());
    b3(&[&domain("root"), &count, &total, &hash.0])
}

fn root(table: &Table) -> ContentId {
    let rows = table.rows.iter().enumerate();
    let mut level: Vec<Node> = rows.map(|(i, r)| leaf(i as u64, &r.0, r.1)).collect();
    while level.len() > 1 {
        let pairs = level.chunks(2).map(|pair| match *pair {
            [left, right] => node(left, right),
            _ => pair[0],
        });
        level = pairs.collect();
    }
    let hash = level.first().map_or(ContentId([0; 32]), |top| top.0);
    top(table.rows.len() as u64, table.total(), hash)
}

/// Whether the proof leads from its payout to its root.
pub fn leads_to_root(proof: &PayoutProof) -> bool {
    let payout = &proof.payout;
    let mut at = leaf(payout.index, payout.account.as_str(), payout.amount_minor.0);
    for step in &proof.path {
        let sibling = (step.hash, step.sum_minor.0);
        at = match step.side {
            ProofSide::Left => node(sibling, at),
            ProofSide::Right => node(at, sibling),
        };
    }
    let Some(root) = proof.manifest.payouts else {
        return false;
    };
    at.1 == root.total_minor.0 && top(root.count, at.1, at.0) == root.root
}

/// The sealed form of usage.
pub fn sealed(usage: &Usage, period: Option<&str>) -> Vec<u8> {
    let metrics: BTreeSet<&String> = usage.values().flat_map(BTreeMap::keys).collect();
    let width = usage.keys().map(String::len).max().unwrap_or(0);
    let mut records = Vec::new();
    for (account, amounts) in usage {
        records.extend(padded(account, width));
        for metric in &metrics {
            let amount = amounts.get(*metric).copied().unwrap_or(0);
            records.extend(amount.to_be_bytes());
        }
    }
    let mut bytes = b"RONUSAG\x01".to_vec();
    bytes.extend((width as u32).to_be_bytes());
    bytes.extend((metrics.len() as u32).to_be_bytes());
    bytes.extend((usage.len() as u64).to_be_bytes());
    bytes.extend(ContentId::of(&records).0);
    bytes.extend(padded(period.unwrap_or(""), 64));
    for metric in metrics {
        let amounts = usage.values().filter_map(|all| all.get(metric).copied());
        let above: Vec<u128> = amounts.filter(|amount| *amount > 0).collect();
        bytes.extend(padded(metric, 64));
        bytes.extend((above.len() as u64).to_be_bytes());
        bytes.extend(above.iter().sum::<u128>().to_be_bytes());
    }
    bytes.extend(records);
    bytes
}

fn padded(text: &str, width: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(width, 0);
    bytes
}

/// The payout table as a file.
pub fn payouts(table: &Table) -> Vec<u8> {
    let width = table.rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let mut records = Vec::new();
    for (account, amount) in &table.rows {
        records.extend(padded(account, width));
        records.extend(amount.to_be_bytes());
    }
    let residual = table.rows.len() as u64 > table.recipients;
    let mut bytes = b"RONPAYS\x01".to_vec();
    bytes.extend((width as u32).to_be_bytes());
    bytes.extend(u32::from(residual).to_be_bytes());
    bytes.extend((table.rows.len() as u64).to_be_bytes());
    bytes.extend(table.total().to_be_bytes());
    bytes.extend(ContentId::of(&records).0);
    bytes.extend(records);
    bytes
}
