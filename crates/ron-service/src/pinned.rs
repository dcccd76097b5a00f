//! Pinned public keys, for signatures of policies and manifests.

use std::fmt;
use std::str::FromStr;

use ron_crypto::sign::verify_ed25519_strict;
use ron_proto::b64;

/// A public key that this service or an auditor trusts. Written `NAME=KEY` or just `KEY`, where
/// `KEY` is a raw Ed25519 public key in base64url without padding and `NAME` the signing key's id
/// and version, `tenant/purpose/alg/uuid#vN`. With a name, only signatures under that name are
/// accepted.
#[derive(Clone, PartialEq, Eq)]
pub struct PinnedKey {
    name: Option<String>,
    public: [u8; 32],
}

impl PinnedKey {
    /// A key that signs under `name`, or under any name.
    pub fn new(name: Option<String>, public: [u8; 32]) -> Self {
        Self { name, public }
    }
}

impl fmt::Debug for PinnedKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("any name");
        write!(out, "PinnedKey({name}={})", b64::url(&self.public))
    }
}

impl FromStr for PinnedKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, key) = match text.rsplit_once('=') {
            Some((name, key)) if !name.is_empty() => (Some(name.to_owned()), key),
            Some(_) => return Err("the name before '=' is empty".into()),
            None => (None, text),
        };
        let public = b64::from_url(key)
            .ok()
            .and_then(|raw| <[u8; 32]>::try_from(raw).ok())
            .ok_or("the key must be 32 bytes in base64url without padding (43 characters)")?;
        Ok(Self { name, public })
    }
}

#[derive(Clone, Debug, Default)]
pub struct KeyRing(Vec<PinnedKey>);

/// Why a signature was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not `ed25519`.
    #[error("its algorithm is not ed25519")]
    Algorithm,
    /// No pinned key signs under that name.
    #[error("it is not signed by a pinned key")]
    UnknownKey,
    /// Malformed, or it does not verify.
    #[error("the signature does not match")]
    Mismatch,
}

impl KeyRing {
    pub fn new(keys: Vec<PinnedKey>) -> Self {
        Self(keys)
    }

    /// True if nothing can be verified with it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Verifies an Ed25519 signature over `message`; `alg`, `key` and `value` as in the signature
    /// document.
    pub fn verify(
        &self,
        alg: &str,
        key: &str,
        value: &str,
        message: &[u8],
    ) -> Result<(), SignatureError> {
        if alg != "ed25519" {
            return Err(SignatureError::Algorithm);
        }
        let signature: [u8; 64] = b64::from_url(value)
            .ok()
            .and_then(|raw| raw.try_into().ok())
            .ok_or(SignatureError::Mismatch)?;
        let named = |pinned: &&PinnedKey| match &pinned.name {
            Some(name) => name == key || b64::url(&pinned.public) == key,
            None => true,
        };
        let mut candidates = self.0.iter().filter(named).peekable();
        if candidates.peek().is_none() {
            return Err(SignatureError::UnknownKey);
        }
        if candidates.any(|pinned| verify_ed25519_strict(&pinned.public, message, &signature)) {
            Ok(())
        } else {
            Err(SignatureError::Mismatch)
        }
    }
}
