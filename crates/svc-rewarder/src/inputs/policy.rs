//! Signed policies: canonical bytes, hash, signature, rules.

use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{POLICY_KIND, RewardPolicy};
use ron_proto::values::ContentId;
use ron_proto::{jcs, strict};
use serde_json::Value;

use crate::calculus::{RuleError, check_policy};
use ron_service::pinned::{KeyRing, SignatureError};
use ron_service::signed_policy;

/// A policy that may be run: well-formed, consistent, and signed by a pinned key.
#[derive(Clone, Debug)]
pub struct VerifiedPolicy {
    pub policy: RewardPolicy,
    /// Content id of the canonical bytes.
    pub hash: ContentId,
    pub canonical: Vec<u8>,
    pub signature: PolicySig,
}

impl VerifiedPolicy {
    /// One policy for each of its assets, known by the hash and the signature of the whole.
    pub fn of_each_asset(&self) -> Vec<Self> {
        let each = self.policy.of_each_asset().into_iter();
        let whole = |policy| Self {
            policy,
            ..self.clone()
        };
        each.map(whole).collect()
    }
}

/// Why a policy is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyRefused {
    /// Not a policy document.
    #[error("not a reward policy: {0}")]
    Malformed(String),
    /// The stored bytes are not the canonical form, so they are not the bytes that were signed.
    #[error("altered: its bytes are not canonical JSON")]
    NotCanonical,
    #[error("unsigned: there is no signature beside it")]
    Unsigned,
    /// The signature file does not hold a policy signature.
    #[error("its signature file is not a policy signature: {0}")]
    SignatureFile(String),
    /// The signature does not verify under a pinned key.
    #[error("altered or not signed by a trusted key: {0}")]
    Signature(SignatureError),
    /// Signed, but not runnable.
    #[error("not runnable: {0}")]
    Rules(RuleError),
}

/// Checks a document and its signature as received over HTTP.
pub fn verify(
    document: &Value,
    signature: &PolicySig,
    keys: &KeyRing,
) -> Result<VerifiedPolicy, PolicyRefused> {
    check_canonical(jcs::canonicalize(document), signature.clone(), keys)
}

/// Checks stored bytes: they must be canonical to the byte, and the signature must match them.
pub fn verify_stored(
    json: &[u8],
    signature: Option<&[u8]>,
    keys: &KeyRing,
) -> Result<VerifiedPolicy, PolicyRefused> {
    let document: Value =
        strict::from_slice(json).map_err(|error| PolicyRefused::Malformed(error.to_string()))?;
    let canonical = jcs::canonicalize(&document);
    if canonical != json {
        return Err(PolicyRefused::NotCanonical);
    }
    let signature = signature.ok_or(PolicyRefused::Unsigned)?;
    let signature =
        signed_policy::parse_signature(signature).map_err(PolicyRefused::SignatureFile)?;
    check_canonical(canonical, signature, keys)
}

/// The signature comes first: an unsigned document is not interpreted any further.
fn check_canonical(
    canonical: Vec<u8>,
    signature: PolicySig,
    keys: &KeyRing,
) -> Result<VerifiedPolicy, PolicyRefused> {
    let message = policy_message(POLICY_KIND, &canonical);
    keys.verify(&signature.alg, &signature.key, &signature.value, &message)
        .map_err(PolicyRefused::Signature)?;
    let policy: RewardPolicy = strict::from_slice(&canonical)
        .map_err(|error| PolicyRefused::Malformed(error.to_string()))?;
    check_policy(&policy).map_err(PolicyRefused::Rules)?;
    Ok(VerifiedPolicy {
        policy,
        hash: ContentId::of(&canonical),
        canonical,
        signature,
    })
}
