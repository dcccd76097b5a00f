//! Signed policies on disk: `<kind>.json` in canonical JSON beside `<kind>.json.sig`.
//!
//! A policy is accepted only when its bytes are canonical and its signature verifies under a pinned
//! public key; services also refuse a version older than the one in force. Every refusal names the
//! file.

use std::path::{Path, PathBuf};

use ron_kernel::Registry;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::{ContentId, jcs, strict};
use serde::de::DeserializeOwned;

use crate::pinned::KeyRing;

/// Maximum size of a policy file, in bytes.
pub(crate) const POLICY_BYTES_MAX: u64 = 1 << 20;

/// A policy whose signature was verified.
#[derive(Debug, Clone)]
pub struct SignedPolicy<T> {
    pub policy: T,
    /// Content id of its canonical bytes.
    pub hash: ContentId,
    /// Its canonical bytes.
    pub bytes: Vec<u8>,
    pub sig: PolicySig,
}

/// Why a policy was refused; the message names the file and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {file}: {why}")]
pub struct PolicyError {
    pub file: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// Parses the bytes of a `.sig` file. They must be canonical JSON and a newline, so that no byte of
/// the file can change unnoticed.
pub fn parse_signature(bytes: &[u8]) -> Result<PolicySig, String> {
    let tree: serde_json::Value = strict::from_slice(bytes).map_err(|e| e.to_string())?;
    if bytes.strip_suffix(b"\n") != Some(&jcs::canonicalize(&tree)[..]) {
        return Err("not canonical JSON with a newline at its end".to_owned());
    }
    strict::from_slice(bytes).map_err(|e| e.to_string())
}

/// The bytes of a `.sig` file.
pub fn signature_bytes(sig: &PolicySig) -> Result<Vec<u8>, String> {
    let tree = serde_json::to_value(sig).map_err(|e| e.to_string())?;
    let mut bytes = jcs::canonicalize(&tree);
    bytes.push(b'\n');
    Ok(bytes)
}

/// The paths of a policy of this kind and of its signature.
pub fn policy_paths(dir: &Path, kind: &str) -> (PathBuf, PathBuf) {
    (
        dir.join(format!("{kind}.json")),
        dir.join(format!("{kind}.json.sig")),
    )
}

/// Reads `<kind>.json` and its signature in `dir` and verifies them against the pinned keys.
pub fn load<T: DeserializeOwned>(
    dir: &Path,
    kind: &str,
    pinned: &KeyRing,
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
    let sig = parse_signature(&sig_bytes)
        .map_err(|e| refuse(&sig, format!("is not a signature document: {e}")))?;
    check(kind, &bytes, &sig, pinned).map_err(|why| refuse(&json, why))
}

/// Verifies policy bytes and their signature against the pinned keys.
pub fn check<T: DeserializeOwned>(
    kind: &str,
    bytes: &[u8],
    sig: &PolicySig,
    pinned: &KeyRing,
) -> Result<SignedPolicy<T>, String> {
    let message = policy_message(kind, bytes);
    pinned
        .verify(&sig.alg, &sig.key, &sig.value, &message)
        .map_err(|e| format!("was altered, or signed by a key that is not pinned: {e}"))?;
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

/// Exports the version in force as `policy_version{kind}`; `version` is 0 while there is none.
pub fn show_version(
    registry: &Registry,
    kind: &str,
    version: impl Fn() -> u64 + Send + Sync + 'static,
) {
    registry.gauge_fn(
        "policy_version",
        "Version of the signed policy in force; 0 while there is none.",
        &[("kind", kind)],
        move || i64::try_from(version()).unwrap_or(i64::MAX),
    );
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
    use ron_proto::b64;

    use super::*;
    use crate::pinned::PinnedKey;

    fn signed(key: &Ed25519Key, kind: &str, bytes: &[u8]) -> PolicySig {
        PolicySig {
            alg: "ed25519".to_owned(),
            key: "test".to_owned(),
            value: b64::url(&key.sign(&policy_message(kind, bytes))),
        }
    }

    fn ring(key: &Ed25519Key) -> KeyRing {
        KeyRing::new(vec![PinnedKey::new(Some("test".into()), key.public())])
    }

    #[test]
    fn only_the_exact_signed_bytes_of_the_right_kind_are_believed() {
        let key = Ed25519Key::from_seed(&[7; 32]);
        let pinned = ring(&key);
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
    fn no_bit_of_either_file_can_change() {
        let key = Ed25519Key::from_seed(&[7; 32]);
        let policy = br#"{"rules":[],"version":1}"#;
        let sig = signature_bytes(&signed(&key, "wallet", policy)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (json_path, sig_path) = policy_paths(dir.path(), "wallet");
        let accepts = |json: &[u8], sig: &[u8]| {
            std::fs::write(&json_path, json).unwrap();
            std::fs::write(&sig_path, sig).unwrap();
            load::<serde_json::Value>(dir.path(), "wallet", &ring(&key)).is_ok()
        };
        assert!(accepts(policy, &sig));
        for bit in 0..8 * (policy.len() + sig.len()) {
            let mut files = [&policy[..], &sig].concat();
            files[bit / 8] ^= 1 << (bit % 8);
            let (json, sig) = files.split_at(policy.len());
            assert!(!accepts(json, sig), "bit {bit} of the two files");
        }
        assert!(!accepts(policy, &sig[..sig.len() - 1]));
        assert!(!accepts(policy, &[&sig[..], b" "].concat()));
    }

    #[test]
    fn a_missing_signature_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("wallet.json"), b"{}").unwrap();
        let err = load::<serde_json::Value>(dir.path(), "wallet", &KeyRing::default()).unwrap_err();
        assert!(
            err.file.ends_with("wallet.json") && err.why.contains("not signed"),
            "{err}"
        );
    }
}
