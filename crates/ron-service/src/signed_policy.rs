//! Signed policies on disk: `<kind>.json` in canonical JSON beside `<kind>.json.sig`.
//!
//! A policy is believed only when its bytes are canonical, its signature verifies under the pinned
//! public key, and its version is not older than the newest one seen. Every refusal names the file.

use std::path::{Path, PathBuf};

use ron_crypto::sign::verify_ed25519_strict;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::{ContentId, b64, jcs, strict};
use serde::de::DeserializeOwned;

/// Longest policy file, in bytes.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// A policy whose signature was checked.
#[derive(Debug, Clone)]
pub struct SignedPolicy<T> {
    /// The policy.
    pub policy: T,
    /// Content id of its canonical bytes.
    pub hash: ContentId,
    /// Its canonical bytes.
    pub bytes: Vec<u8>,
    /// The signature that was checked.
    pub sig: PolicySig,
}

/// Why a policy is refused; the message names the file and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {file}: {why}")]
pub struct PolicyError {
    /// The file.
    pub file: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// Parses a pinned Ed25519 public key from base64url.
pub fn pinned_key(text: &str) -> Result<[u8; 32], String> {
    let raw = b64::from_url(text).map_err(|_| "not base64url without padding".to_owned())?;
    raw.try_into()
        .map_err(|_| "an Ed25519 public key has 32 bytes".to_owned())
}

/// Where a policy of this kind and its signature lie.
pub fn policy_paths(dir: &Path, kind: &str) -> (PathBuf, PathBuf) {
    (
        dir.join(format!("{kind}.json")),
        dir.join(format!("{kind}.json.sig")),
    )
}

/// Reads and checks `<kind>.json` and its signature in `dir` against the pinned public key.
pub fn load<T: DeserializeOwned>(
    dir: &Path,
    kind: &str,
    pinned: &[u8; 32],
) -> Result<SignedPolicy<T>, PolicyError> {
    let (json, sig) = policy_paths(dir, kind);
    let bytes = read(&json)?;
    let sig_bytes = match read(&sig) {
        Ok(bytes) => bytes,
        Err(e) => {
            let why = format!("is not signed ({}); sign it with `ron policy sign`", e.why);
            return Err(refuse(&json, why));
        }
    };
    let sig: PolicySig = strict::from_slice(&sig_bytes)
        .map_err(|e| refuse(&sig, format!("is not a signature document: {e}")))?;
    check(kind, &bytes, &sig, pinned).map_err(|why| refuse(&json, why))
}

/// Checks policy bytes and their signature against the pinned public key.
pub fn check<T: DeserializeOwned>(
    kind: &str,
    bytes: &[u8],
    sig: &PolicySig,
    pinned: &[u8; 32],
) -> Result<SignedPolicy<T>, String> {
    if sig.alg != "ed25519" {
        return Err("is signed with an algorithm other than ed25519".to_owned());
    }
    let value: [u8; 64] = b64::from_url(&sig.value)
        .ok()
        .and_then(|raw| raw.try_into().ok())
        .ok_or("has a signature that is not 64 bytes of base64url")?;
    if !verify_ed25519_strict(pinned, &policy_message(kind, bytes), &value) {
        return Err(
            "does not match its signature under the pinned key: it was altered, or signed by another key"
                .to_owned(),
        );
    }
    let tree: serde_json::Value = strict::from_slice(bytes).map_err(|e| e.to_string())?;
    if jcs::canonicalize(&tree) != bytes {
        return Err("is not in canonical JSON (RFC 8785)".to_owned());
    }
    let policy = strict::from_slice(bytes).map_err(|e| e.to_string())?;
    Ok(SignedPolicy {
        policy,
        hash: ContentId::of(bytes),
        bytes: bytes.to_vec(),
        sig: sig.clone(),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, PolicyError> {
    let meta = std::fs::metadata(path).map_err(|e| refuse(path, format!("cannot be read: {e}")))?;
    if meta.len() > POLICY_BYTES_MAX {
        return Err(refuse(path, "is larger than 1 MiB".to_owned()));
    }
    std::fs::read(path).map_err(|e| refuse(path, format!("cannot be read: {e}")))
}

fn refuse(path: &Path, why: String) -> PolicyError {
    PolicyError {
        file: path.display().to_string(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;

    use super::*;

    fn signed(key: &Ed25519Key, kind: &str, bytes: &[u8]) -> PolicySig {
        PolicySig {
            alg: "ed25519".to_owned(),
            key: "test".to_owned(),
            value: b64::url(&key.sign(&policy_message(kind, bytes))),
        }
    }

    #[test]
    fn only_the_exact_signed_bytes_of_the_right_kind_are_believed() {
        let key = Ed25519Key::from_seed(&[7; 32]);
        let pinned = key.public();
        let bytes = br#"{"rules":[],"version":1}"#;
        let sig = signed(&key, "wallet", bytes);
        let ok = |kind: &str, bytes: &[u8], sig: &PolicySig| {
            check::<serde_json::Value>(kind, bytes, sig, &pinned).is_ok()
        };
        assert!(ok("wallet", bytes, &sig));
        assert!(!ok("issuer", bytes, &sig), "another kind");
        for i in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[i] ^= 1;
            assert!(!ok("wallet", &bad, &sig), "byte {i}");
        }
        let spaced = br#"{"rules":[], "version":1}"#;
        assert!(
            !ok("wallet", spaced, &signed(&key, "wallet", spaced)),
            "not canonical"
        );
        let other = signed(&Ed25519Key::from_seed(&[8; 32]), "wallet", bytes);
        assert!(!ok("wallet", bytes, &other), "another key");
    }

    #[test]
    fn a_missing_signature_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("wallet.json"), b"{}").unwrap();
        let err = load::<serde_json::Value>(dir.path(), "wallet", &[0; 32]).unwrap_err();
        assert!(
            err.file.ends_with("wallet.json") && err.why.contains("not signed"),
            "{err}"
        );
    }
}
