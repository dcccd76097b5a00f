//! The snapshot of all keys. Readers load it once and take everything from it, so a signature can
//! never carry one version's number and another version's key.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_http::Principal;
use ron_proto::kms::{Bytes, KeyDoc, KeyState, KeyVersionDoc, PayloadPolicy};
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Kid, Timestamp};

use super::PublicKey;
use crate::backend::gate::AttestGate;
use crate::backend::{Attestation, BackendKind, Custody};
use crate::error::{Refusal, Why};

/// One version of a key, public parts.
#[derive(Clone, Debug)]
pub struct Version {
    /// From 1.
    pub number: u32,
    /// When it was made.
    pub created: Timestamp,
    /// Its public key.
    pub public: PublicKey,
    /// RFC 7638 thumbprint of the public key.
    pub thumbprint: Arc<str>,
    /// Index of the audit leaf that records its making.
    pub birth: u64,
}

/// A key as signers and readers see it; immutable, replaced as a whole by a rotation.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name.
    pub kid: Kid,
    /// What it may sign.
    pub payload: PayloadPolicy,
    /// When it was made.
    pub created: Timestamp,
    /// The oldest version that still verifies.
    pub min_verify: u32,
    /// All versions; `versions[n].number == n + 1`. Never empty.
    pub versions: Vec<Version>,
    /// The secret half of the last version.
    pub secret: Arc<Custody>,
    /// Which backend holds it.
    pub backend: BackendKind,
    /// What that backend can prove.
    pub attestation: Attestation,
    /// The secret halves of all versions, by number, for keys that unwrap or check MACs; empty for
    /// keys that sign, whose old versions only verify.
    pub secrets: BTreeMap<u32, Arc<Custody>>,
}

impl Key {
    /// The version that signs.
    pub fn head(&self) -> &Version {
        self.versions
            .last()
            .expect("a key has at least one version")
    }

    /// The version with this number.
    pub fn version(&self, number: u32) -> Option<&Version> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        self.versions.get(at)
    }

    /// The head, unless the caller pinned another version.
    pub fn head_for(&self, pinned: Option<u32>) -> Result<&Version, Refusal> {
        let head = self.head();
        match pinned {
            None => Ok(head),
            Some(number) if number == head.number => Ok(head),
            Some(number) if self.version(number).is_none() => {
                Err(Refusal::new(Why::NotFound, "the key has no such version")
                    .with_head(head.number))
            }
            Some(_) => Err(Refusal::new(
                Why::VersionNotHead,
                "only the head version signs; read the key and pin its head",
            )
            .with_head(head.number)),
        }
    }

    /// The key as the API shows it. `log` is the origin of the audit log.
    pub fn to_doc(&self, log: &str) -> KeyDoc {
        let version = |v: &Version| KeyVersionDoc {
            version: v.number,
            created: v.created,
            public_key: Bytes(v.public.raw().to_vec()),
            public_key_pem: v.public.pem(),
            jwk: v.public.jwk(),
            receipt: LogReceipt {
                log: log.to_owned(),
                index: v.birth,
            },
        };
        KeyDoc {
            key: self.kid.clone(),
            payload: self.payload.clone(),
            head: self.head().number,
            min_verify_version: self.min_verify,
            state: KeyState::Active,
            backend: self.backend.as_str().to_owned(),
            attestation: self.attestation.as_str().to_owned(),
            exportable: false,
            created: self.created,
            versions: self.versions.iter().map(version).collect(),
            receipt: None,
        }
    }
}

/// All keys at one moment.
#[derive(Clone, Debug, Default)]
pub struct KeyIndex {
    /// Whether keys may sign although nobody has attested where they are.
    pub gate: Arc<AttestGate>,
    /// By name.
    pub keys: BTreeMap<Kid, Arc<Key>>,
    /// The whole-store version that this is the picture of.
    pub store_version: u64,
}

impl KeyIndex {
    /// The key, if the caller may use it: right tenant, right prefix, exists. In this order, so
    /// that nobody learns which keys others have.
    pub fn find(&self, caller: &Principal, kid: &Kid) -> Result<&Arc<Key>, Refusal> {
        may_use(caller, kid)?;
        self.keys
            .get(kid)
            .ok_or_else(|| Refusal::new(Why::NotFound, "there is no such key"))
    }

    /// A copy with `key` put in and the store at `store_version`.
    pub fn with(&self, key: Key, store_version: u64) -> Self {
        let mut keys = self.keys.clone();
        keys.insert(key.kid.clone(), Arc::new(key));
        Self {
            gate: self.gate.clone(),
            keys,
            store_version,
        }
    }
}

/// Whether the caller may name this key at all.
pub fn may_use(caller: &Principal, kid: &Kid) -> Result<(), Refusal> {
    if caller.tenant != kid.tenant {
        return Err(Refusal::new(
            Why::Forbidden,
            "the key belongs to another tenant",
        ));
    }
    let allowed = caller.key_prefixes.as_deref().is_none_or(|prefixes| {
        let name = kid.to_string();
        prefixes.iter().any(|prefix| prefix_covers(prefix, &name))
    });
    if allowed {
        return Ok(());
    }
    Err(Refusal::new(
        Why::Forbidden,
        "the credential is limited to other keys",
    ))
}

/// A prefix covers whole path segments only: `ron/iss` does not cover `ron/issuer/...`.
/// An ending `/`, `/*` or nothing mean the same.
fn prefix_covers(prefix: &str, name: &str) -> bool {
    let prefix = prefix.strip_suffix('*').unwrap_or(prefix);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    !prefix.is_empty()
        && name
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_whole_segments() {
        let name = "ron/issuer/ed25519/0190";
        let check =
            |prefix: &str, ok: bool| assert_eq!(prefix_covers(prefix, name), ok, "{prefix}");
        check("ron/issuer/", true);
        check("ron/issuer/*", true);
        check("ron/issuer", true);
        check("ron/", true);
        check("ron/issuer/ed25519/0190", true);
        check("ron/iss", false);
        check("ron/iss*", false);
        check("ro", false);
        check("", false);
        check("*", false);
        check("/", false);
        check("ron/issuer/ed25519/01", false);
        check("other/issuer/", false);
    }
}
