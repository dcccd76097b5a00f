//! Signed policies: the signature format shared by issuer, wallet and reward policy, and the exact
//! bytes that a digest signature covers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Detached signature of a policy, stored beside it as `<kind>.json.sig`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySig {
    /// The signature algorithm, `ed25519`.
    pub alg: String,
    /// The signing key: a key version `tenant/purpose/alg/uuid#vN`, or the raw public key in
    /// base64url.
    pub key: String,
    /// The signature in base64url without padding.
    pub value: String,
}

/// The digest that a policy's signature covers. `kind` is `issuer`, `wallet` or `reward`;
/// `jcs_bytes` is the policy in canonical JSON. A signature is valid for one kind only.
pub fn policy_digest(kind: &str, jcs_bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"ron-policy/v1\0");
    hasher.update(kind.as_bytes());
    hasher.update(b"\0");
    hasher.update(blake3::hash(jcs_bytes).as_bytes());
    *hasher.finalize().as_bytes()
}

/// The bytes the KMS signs for a digest request. `alg` is the name of the hash, `blake3` or
/// `sha256`; the prefix distinguishes a digest from any message.
pub fn digest_message(alg: &str, digest: &[u8; 32]) -> Vec<u8> {
    let prefix = b"ron-kms/v1/digest\0";
    let mut message = Vec::with_capacity(prefix.len() + alg.len() + 1 + digest.len());
    message.extend_from_slice(prefix);
    message.extend_from_slice(alg.as_bytes());
    message.push(0);
    message.extend_from_slice(digest);
    message
}

/// The bytes signed by a policy's Ed25519 signature: [`digest_message`] of [`policy_digest`].
pub fn policy_message(kind: &str, jcs_bytes: &[u8]) -> Vec<u8> {
    digest_message("blake3", &policy_digest(kind, jcs_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_laid_out_as_documented() {
        let json = br#"{"version":1}"#;
        let mut bytes = b"ron-policy/v1\0reward\0".to_vec();
        bytes.extend_from_slice(blake3::hash(json).as_bytes());
        assert_eq!(
            policy_digest("reward", json),
            *blake3::hash(&bytes).as_bytes()
        );
        let digest = policy_digest("reward", json);
        let mut message = b"ron-kms/v1/digest\0blake3\0".to_vec();
        message.extend_from_slice(&digest);
        assert_eq!(policy_message("reward", json), message);
    }

    #[test]
    fn kind_body_and_hash_all_count() {
        let base = policy_message("reward", b"{}");
        assert_ne!(base, policy_message("wallet", b"{}"));
        assert_ne!(base, policy_message("reward", b"{ }"));
        assert_ne!(
            digest_message("blake3", &[1; 32]),
            digest_message("sha256", &[1; 32])
        );
    }
}
