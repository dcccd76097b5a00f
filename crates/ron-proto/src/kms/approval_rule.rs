//! The part of a key policy that says which operations need approvals, and whose.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, Period};
use crate::values::{Alg, KeyOp};

/// Maximum approvers of a key.
pub const APPROVERS_MAX: usize = 32;
/// Maximum time in which a request can be approved, in seconds (30 days).
pub const APPROVAL_S_MAX: u64 = 30 * 24 * 3600;

/// How many of whom have to agree. A change of the key's policy always needs them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRule {
    /// How many approvers, beside the caller that asks.
    pub needed: u32,
    /// For which operations, beside changes of the policy: `destroy`, `export`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<KeyOp>,
    /// How long a request can be approved and used, at most 30d.
    pub within: Period,
    /// Who may approve.
    pub approvers: Vec<Approver>,
}

/// Somebody who may approve, by a key that this service does not have.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approver {
    /// The name under which this person calls the service.
    pub name: String,
    /// `ed25519` or `ecdsa-p256`.
    pub alg: Alg,
    /// Ed25519: 32 bytes. P-256: uncompressed SEC 1 point.
    pub public_key: Bytes,
}

impl ApprovalRule {
    /// What is wrong with the rule.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let count = self.approvers.len();
        if self.needed == 0 || self.needed as usize > count || count > APPROVERS_MAX {
            faults.push(format!(
                "`approvals.needed` must be 1 to the number of approvers, and there are at most {APPROVERS_MAX}"
            ));
        }
        let gated = |op: &KeyOp| matches!(op, KeyOp::Destroy | KeyOp::Export);
        if !self.ops.iter().all(gated) {
            faults.push(
                "`approvals.ops` may name destroy and export; a change of the policy always needs approvals"
                    .to_owned(),
            );
        }
        if self.within.as_s() > APPROVAL_S_MAX {
            faults.push("`approvals.within` is at most 30d".to_owned());
        }
        for (at, one) in self.approvers.iter().enumerate() {
            let bytes = match one.alg {
                Alg::Ed25519 => 32,
                Alg::EcdsaP256 => 65,
                _ => 0,
            };
            if one.name.is_empty() || one.public_key.0.len() != bytes || bytes == 0 {
                faults.push(format!(
                    "`approvals.approvers[{at}]` needs a name and a public key, of ed25519 with 32 bytes or of ecdsa-p256 with 65"
                ));
            }
            let same =
                |other: &&Approver| other.name == one.name || other.public_key == one.public_key;
            if self.approvers[..at].iter().any(|other| same(&other)) {
                faults.push(format!(
                    "`approvals.approvers[{at}]` has the name or the key of another approver"
                ));
            }
        }
        faults
    }

    /// Whether an operation needs approvals.
    pub fn gates(&self, op: KeyOp) -> bool {
        op == KeyOp::Policy || self.ops.contains(&op)
    }
}
