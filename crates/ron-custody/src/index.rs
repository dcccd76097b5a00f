//! The snapshot of all keys. A reader loads it once per operation and takes everything from it, so a signature
//! never combines one version's number with another version's key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ron_http::Principal;
use ron_proto::kms::{
    Bytes, KeyDoc, KeyOp, KeyState, KeyVersionDoc, PayloadPolicy, Period, RotationDoc, TrimDoc,
    WaitingDoc,
};
use ron_proto::passport::IssuerPolicy;
use ron_proto::receipt::LogReceipt;
use ron_proto::values::{Alias, KeyRef, Kid, Purpose, Tenant, Timestamp};
use ron_service::signed_policy::SignedPolicy;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Facts, refusal};
use crate::backend::AttestGate;
use crate::backend::{Attestation, BackendId, Custody, SecretHalf};
use crate::keys::PublicKey;
use crate::labels::Labels;
use crate::rights::{may_name, may_use};
use crate::{Cause, Refusal};

/// One version of a key, public parts.
#[derive(Clone, Debug)]
pub struct Version {
    /// From 1.
    pub number: u32,
    /// When it was made.
    pub created: Timestamp,
    pub public: PublicKey,
    /// Origin of the audit log that records its making: that of the node that made it.
    pub log: Arc<str>,
    /// Index of the leaf.
    pub birth: u64,
    /// Whether its sealed record is damaged: it verifies, and does nothing else.
    pub damaged: bool,
    thumbprint: OnceLock<Box<str>>,
}

impl Version {
    /// A version whose record is sound.
    pub fn new(number: u32, created: Timestamp, public: PublicKey, birth: u64) -> Self {
        Self {
            number,
            created,
            public,
            log: Arc::default(),
            birth,
            damaged: false,
            thumbprint: OnceLock::new(),
        }
    }

    /// RFC 7638 thumbprint of the public key.
    pub fn thumbprint(&self) -> &str {
        // Computed once, and not at start: most versions are never asked for it.
        let thumbprint = || self.public.thumbprint().into();
        self.thumbprint.get_or_init(thumbprint)
    }
}

/// Schedule of automatic rotation.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// When the next version begins to sign.
    pub due: Timestamp,
    /// Maximum time between two rotations.
    pub every: Period,
}

/// An ordered destruction of the secrets of old versions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Trim {
    /// When it is carried out.
    pub at: Timestamp,
    /// The oldest version that stays.
    pub below: u32,
}

/// A published version above the head that does not sign yet.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// It does not sign before this time, unless the key is rotated by request.
    pub signs_from: Timestamp,
}

/// A key as signers and readers see it; immutable, and replaced as a whole by every change.
#[derive(Clone, Debug)]
pub struct Key {
    pub kid: Kid,
    /// Which payloads it may sign.
    pub payload: PayloadPolicy,
    /// When it was made.
    pub created: Timestamp,
    pub state: KeyState,
    /// When its secrets are (or were) destroyed.
    pub destroy_at: Option<Timestamp>,
    /// Its policy, its grants, and what waits for approvals.
    pub access: Arc<Access>,
    /// Aliases, tags and description.
    pub labels: Arc<Labels>,
    /// Whether it may be exported, wrapped.
    pub exportable: bool,
    /// Whether its first version was imported.
    pub imported: bool,
    /// Whether each use has a key of its own, derived from a context; only Vault's paths name one.
    pub derived: bool,
    /// Schedule of automatic rotation.
    pub rotation: Option<Rotation>,
    /// Set while the last version is published but does not sign yet.
    pub waiting: Option<Waiting>,
    /// The oldest version that still verifies.
    pub min_verify: u32,
    /// The oldest version that Vault's paths encrypt with; 0 for the head alone.
    pub min_wrap: u32,
    /// The oldest version whose secret exists; 0 for the first.
    pub min_available: u32,
    /// An ordered destruction of old versions.
    pub trim: Option<Trim>,
    /// Whether Vault's paths may destroy it.
    pub deletion_allowed: bool,
    /// The version that signs.
    pub head: u32,
    /// When the head began to sign, if it waited before.
    pub head_since: Option<Timestamp>,
    /// All versions; `versions[n].number == n + 1`. Never empty.
    pub versions: Vec<Arc<Version>>,
    /// The private key of the head, or its handle; `None` once it is destroyed.
    pub secret: Option<Arc<SecretHalf>>,
    /// The backend that holds the key.
    pub backend: BackendId,
    /// The attestation class of that backend.
    pub attestation: Attestation,
    /// The secret halves of all versions, by number, for keys that unwrap or check MACs; empty for signing keys, whose
    /// old versions only verify.
    pub secrets: BTreeMap<u32, Arc<SecretHalf>>,
}

impl Key {
    /// The version that signs.
    pub fn head(&self) -> &Version {
        self.version(self.head).expect("the head is a version")
    }

    /// The device that holds the key, if one does.
    pub fn held_by(&self) -> Option<&BackendId> {
        self.secret.as_ref()?.held_by()
    }

    /// Refuses what policy and grants do not allow a caller whose credential allows it.
    pub fn authorise(
        &self,
        caller: &Principal,
        op: KeyOp,
        facts: (Timestamp, Option<&str>, Option<IpAddr>),
    ) -> Result<(), Refusal> {
        // Most keys have no policy, and no decision is made for them.
        if self.access.policy.is_none() {
            return Ok(());
        }
        let (now, context, peer) = facts;
        let facts = Facts {
            now,
            context,
            peer,
            attestation: self.attestation.as_str(),
        };
        let of = (&self.kid, &*self.labels);
        match self.access.decide(of, caller, op, &facts) {
            verdict if verdict.is_allowed() => Ok(()),
            verdict => Err(refusal(verdict, op)),
        }
    }

    /// The head and its private key, for a signature; a refusal when the key is not active or `pinned` is not the
    /// head. Both come from this one snapshot.
    pub fn signing(&self, pinned: Option<u32>) -> Result<(&Version, &Custody), Refusal> {
        let secret = self.active_secret()?;
        Ok((self.head_for(pinned)?, secret))
    }

    /// The private key of the head, while the key is active.
    pub fn active_secret(&self) -> Result<&Custody, Refusal> {
        match (self.state, &self.secret) {
            (KeyState::Active, Some(secret)) => secret.open(),
            (KeyState::Active, None) => Err(Refusal::quarantined(&self.kid, self.head)),
            (state, _) => Err(not_active(state)),
        }
    }

    /// The version with this number.
    pub fn version(&self, number: u32) -> Option<&Version> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        self.versions.get(at).map(|version| &**version)
    }

    /// The head; a refusal when the caller requires another version.
    pub fn head_for(&self, pinned: Option<u32>) -> Result<&Version, Refusal> {
        let head = self.head();
        match pinned {
            None => Ok(head),
            Some(number) if number == head.number => Ok(head),
            Some(number) if self.version(number).is_none() => {
                Err(Refusal::new(Cause::NotFound, "the key has no such version")
                    .with_head(head.number))
            }
            Some(_) => Err(Refusal::new(
                Cause::VersionNotHead,
                "only the head version signs and encrypts; read the key and pin its head",
            )
            .with_head(head.number)),
        }
    }

    /// The version that encrypts or makes a MAC for a caller that may name an older one, down to `min_wrap`, and its secret
    /// half; the head when `wanted` is `None`.
    pub fn wrapping(&self, wanted: Option<u32>) -> Result<(&Version, &Custody), Refusal> {
        let Some(number) = wanted.filter(|number| *number != self.head) else {
            return Ok((self.head(), self.active_secret()?));
        };
        let least = match self.min_wrap {
            0 => self.head,
            least => least,
        };
        if number > self.head || self.version(number).is_none() {
            let none = Refusal::new(Cause::NotFound, "the key has no such version");
            return Err(none.with_head(self.head));
        }
        if number < least.max(self.min_verify) {
            let detail = "this version no longer encrypts: the oldest that does is `min_wrap_version` (min_encryption_version); lower it, or name the newest version";
            return Err(Refusal::new(Cause::VersionNotHead, detail).with_head(self.head));
        }
        self.active_secret()?;
        let secret = self.secrets.get(&number);
        let secret = secret.ok_or_else(|| Refusal::quarantined(&self.kid, number))?;
        let version = self.version(number).expect("it was found before");
        Ok((version, secret.open()?))
    }

    /// Whether an operation that was decided from `other`, the same key at another time, would be decided the same way now.
    pub fn decides_as(&self, other: &Self) -> bool {
        let version = |v: &Arc<Version>| (v.number, v.created, v.damaged);
        let versions = |key: &Self| key.versions.iter().map(version).collect::<Vec<_>>();
        let of = |key: &Self| {
            (
                key.state,
                key.exportable,
                key.min_verify,
                key.min_wrap,
                key.min_available,
                key.head,
            )
        };
        of(self) == of(other)
            && self.backend == other.backend
            && self.payload == other.payload
            && self.access.policy == other.access.policy
            && self.access.grants == other.access.grants
            && self.labels.aliases == other.labels.aliases
            && self.labels.tags == other.labels.tags
            && self.secret.is_some() == other.secret.is_some()
            && versions(self) == versions(other)
    }

    /// The key as the API shows it, with its head and the version that waits.
    pub fn to_doc(&self) -> KeyDoc {
        KeyDoc {
            versions: self.version_docs(self.head - 1, self.versions.len()),
            ..self.summary()
        }
    }

    /// At most `limit` versions above `after`, as the API shows them.
    pub fn version_docs(&self, after: u32, limit: usize) -> Vec<KeyVersionDoc> {
        let doc = |v: &Arc<Version>| KeyVersionDoc {
            version: v.number,
            created: v.created,
            public_key: Bytes(v.public.raw().to_vec()),
            public_key_pem: v.public.pem(),
            jwk: v.public.jwk(),
            receipt: LogReceipt {
                log: (*v.log).to_owned(),
                index: v.birth,
            },
            damaged: v.damaged,
        };
        let above = self.versions.iter().skip(after as usize);
        above.take(limit).map(doc).collect()
    }

    /// The key as lists show it, without versions.
    pub fn summary(&self) -> KeyDoc {
        KeyDoc {
            key: self.kid.clone(),
            payload: self.payload.clone(),
            head: self.head,
            head_since: self.head_since,
            min_verify_version: self.min_verify,
            min_wrap_version: self.min_wrap,
            min_available_version: self.min_available,
            trim: self.trim.map(|trim| TrimDoc {
                below_version: trim.below,
                destroy_at: trim.at,
            }),
            deletion_allowed: self.deletion_allowed,
            state: self.state,
            backend: self.backend.kind.as_str().to_owned(),
            token: self.backend.token.clone(),
            attestation: self.attestation.as_str().to_owned(),
            exportable: self.exportable,
            imported: self.imported,
            derived: self.derived,
            created: self.created,
            rotation: self.rotation.map(|rotation| RotationDoc {
                every: rotation.every,
                next: self.waiting.map_or(rotation.due, |w| w.signs_from),
            }),
            waiting: self.waiting.map(|waiting| WaitingDoc {
                version: self.head + 1,
                signs_from: waiting.signs_from,
            }),
            destroy_at: self.destroy_at,
            description: self.labels.description.clone(),
            aliases: self.labels.aliases.clone(),
            tags: self.labels.tags.clone(),
            versions: Vec::new(),
            receipt: None,
        }
    }
}

/// The refusal of a key that is not active.
pub fn not_active(state: KeyState) -> Refusal {
    let detail = match state {
        KeyState::Active => "the key is active",
        KeyState::Retired => "the key is retired: it verifies, but no longer signs",
        KeyState::PendingDestruction => {
            "the key is pending destruction; cancel that first, or use another key"
        }
        KeyState::Destroyed => "the key's secrets are destroyed; use another key",
    };
    Refusal::new(Cause::KeyNotActive, detail)
}

/// An issuer policy whose signature this store's owner has checked.
#[derive(Clone, Debug)]
pub struct PolicyInForce {
    pub signed: SignedPolicy<IssuerPolicy>,
    /// Origin of the audit log that its leaf is in.
    pub log: Arc<str>,
    /// Index of the audit leaf that records when it came into force.
    pub birth: u64,
}

/// All keys at one moment.
#[derive(Clone, Debug, Default)]
pub struct KeyIndex {
    /// Refuses signatures without a recent attestation, where the configuration requires one.
    pub gate: Arc<AttestGate>,
    pub keys: BTreeMap<Kid, Arc<Key>>,
    /// Keys whose stored metadata is damaged: none of them is in `keys`.
    pub damaged: Arc<BTreeSet<Kid>>,
    /// The issuer policy in force, which keys of payload policy `jwt` may follow.
    pub policy: Option<Arc<PolicyInForce>>,
    /// The whole-store version of this snapshot.
    pub store_version: u64,
    /// The keys by their aliases.
    pub aliases: Arc<BTreeMap<(Tenant, Alias), Kid>>,
}

const NO_SUCH_ALIAS: &str = "the tenant has no such alias; GET /v1/kms/aliases (`ron kms alias list`) lists the existing aliases";
const NO_SUCH_KEY: &str =
    "there is no such key; GET /v1/kms/keys (`ron kms list`) lists the existing keys";

impl KeyIndex {
    /// The key, if the caller may use it. Tenant and prefix are checked before existence, so that callers do not learn
    /// which keys others have.
    pub fn find(&self, caller: &Principal, kid: &Kid) -> Result<&Arc<Key>, Refusal> {
        may_name(caller, kid)?;
        let Some(key) = self.keys.get(kid) else {
            // A label that a caveat asks for is not known without the key.
            may_use(caller, kid, None)?;
            if self.damaged.contains(kid) {
                return Err(Refusal::quarantined_key(kid));
            }
            return Err(Refusal::new(Cause::NotFound, NO_SUCH_KEY));
        };
        may_use(caller, kid, Some(&key.labels))?;
        Ok(key)
    }

    /// The keys of a tenant with this purpose, also destroyed ones.
    pub fn of_purpose(&self, tenant: &Tenant, purpose: Purpose) -> impl Iterator<Item = &Arc<Key>> {
        let first = Kid::first(tenant, purpose);
        let keys = self.keys.range(first.clone()..);
        let keys = keys.take_while(move |(kid, _)| {
            (&kid.tenant, &kid.purpose) == (&first.tenant, &first.purpose)
        });
        keys.map(|(_, key)| key)
    }

    /// Whether the caller may use the key of this name.
    pub fn may_use(&self, caller: &Principal, kid: &Kid) -> Result<(), Refusal> {
        let key = self.keys.get(kid);
        may_use(caller, kid, key.map(|key| &*key.labels))
    }

    /// The key that an alias of this tenant names.
    pub fn named(&self, tenant: &Tenant, alias: &Alias) -> Result<&Kid, Refusal> {
        let found = self.aliases.get(&(tenant.clone(), alias.clone()));
        found.ok_or_else(|| Refusal::new(Cause::NotFound, NO_SUCH_ALIAS))
    }

    /// The name of the key that a caller of this tenant means.
    pub fn name_of(&self, tenant: &Tenant, asked: &KeyRef) -> Result<Kid, Refusal> {
        match asked {
            KeyRef::Kid(kid) => Ok(kid.clone()),
            KeyRef::Alias(alias) => self.named(tenant, alias).cloned(),
        }
    }

    /// Whether a key of this tenant that signs only tokens of `issuer`, and only those that the issuer policy allows, has a
    /// version with this thumbprint.
    pub fn issues(&self, tenant: &Tenant, issuer: &str, thumbprint: &str) -> bool {
        let signs_for = |key: &Key| matches!(&key.payload, PayloadPolicy::Jwt(jwt) if jwt.iss == issuer && jwt.issuer_policy);
        self.keys
            .values()
            .filter(|key| key.kid.tenant == *tenant && signs_for(key))
            .any(|key| key.versions.iter().any(|v| v.thumbprint() == thumbprint))
    }

    /// Whether operations with `keys` that were decided from `other`, the keys at another time, would be decided the same way now.
    pub fn decides_as(&self, other: &Self, keys: &[Kid]) -> bool {
        if self.store_version == other.store_version {
            return true;
        }
        let policy = |index: &Self| index.policy.as_ref().map(|policy| policy.signed.hash);
        let same = |kid: &Kid| match (self.keys.get(kid), other.keys.get(kid)) {
            (Some(now), Some(then)) => now.decides_as(then),
            _ => false,
        };
        let notes = |kid: &Kid| match self.keys.get(kid).map(|key| &key.payload) {
            // What a note may say depends on the tenant's keys that sign tokens.
            Some(PayloadPolicy::Note(_)) => {
                let of_tenant = |index: &Self| {
                    let keys = index.keys.keys().filter(|other| other.tenant == kid.tenant);
                    keys.cloned().collect::<Vec<_>>()
                };
                let all = of_tenant(self);
                all == of_tenant(other) && all.iter().all(same)
            }
            _ => true,
        };
        policy(self) == policy(other) && keys.iter().all(|kid| same(kid) && notes(kid))
    }

    /// A copy with `key` inserted or replaced, at `store_version`.
    pub fn with(&self, key: Key, store_version: u64) -> Self {
        // Copies a map of `Arc`s. Changes are rare, while every request loads the snapshot.
        let mut keys = self.keys.clone();
        let labels = key.labels.clone();
        let before = keys.insert(key.kid.clone(), Arc::new(key));
        let aliases = |key: &Key| key.labels.aliases.clone();
        let is_same = before.as_deref().map(aliases).unwrap_or_default() == labels.aliases;
        let index = Self {
            gate: self.gate.clone(),
            keys,
            damaged: self.damaged.clone(),
            policy: self.policy.clone(),
            store_version,
            aliases: self.aliases.clone(),
        };
        if is_same { index } else { index.with_aliases() }
    }

    /// A copy that knows the aliases of its keys.
    pub fn with_aliases(self) -> Self {
        let mut aliases = BTreeMap::new();
        for (kid, key) in &self.keys {
            for alias in &key.labels.aliases {
                aliases.insert((kid.tenant.clone(), alias.clone()), kid.clone());
            }
        }
        Self {
            aliases: Arc::new(aliases),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::SeededRandom;
    use ron_proto::kms::NotePolicy;
    use ron_proto::values::Alg;

    use super::*;
    use crate::keys::SecretKey;

    fn key(id: u128, payload: PayloadPolicy) -> Key {
        let kid = Kid {
            tenant: "shop".parse().unwrap(),
            purpose: "app".parse().unwrap(),
            alg: Alg::Ed25519,
            id: uuid::Uuid::from_u128(id),
        };
        let (secret, _) = SecretKey::generate(Alg::Ed25519, &SeededRandom::new(id as u64));
        let version = Version::new(1, Timestamp(1), secret.public(), 7);
        Key {
            kid,
            payload,
            created: Timestamp(1),
            state: KeyState::Active,
            destroy_at: None,
            access: Arc::default(),
            labels: Arc::default(),
            exportable: false,
            imported: false,
            derived: false,
            rotation: None,
            waiting: None,
            min_verify: 1,
            head: 1,
            head_since: None,
            versions: vec![Arc::new(version)],
            secret: None,
            min_wrap: 0,
            min_available: 0,
            trim: None,
            deletion_allowed: false,
            backend: ron_proto::kms::KeyBackend::File.into(),
            attestation: Attestation::None,
            secrets: BTreeMap::new(),
        }
    }

    /// The keys at a store version.
    fn index(keys: &[Key], store_version: u64) -> KeyIndex {
        let each = |key: &Key| (key.kid.clone(), Arc::new(key.clone()));
        KeyIndex {
            keys: keys.iter().map(each).collect(),
            store_version,
            ..KeyIndex::default()
        }
    }

    #[test]
    fn what_is_decided_from_newer_keys_is_the_same_only_where_the_key_is() {
        let note = PayloadPolicy::Note(NotePolicy {
            origin: "notes".into(),
        });
        let (signs, notes) = (key(1, PayloadPolicy::Any), key(2, note));
        let before = index(&[signs.clone(), notes.clone()], 1);
        let check = |now: &[Key], kid: &Kid, same: bool| {
            let now = index(now, 2);
            assert_eq!(now.decides_as(&before, std::slice::from_ref(kid)), same);
        };
        let retired = Key {
            state: KeyState::Retired,
            ..signs.clone()
        };
        let mut rotated = signs.clone();
        rotated.versions.push(rotated.versions[0].clone());
        rotated.head = 2;
        let scheduled = Key {
            destroy_at: Some(Timestamp(9)),
            ..signs.clone()
        };
        let another = key(3, PayloadPolicy::Any);
        let renamed = Key {
            labels: Arc::new(Labels {
                aliases: ["app".parse().unwrap()].into(),
                ..Labels::default()
            }),
            ..signs.clone()
        };
        check(&[signs.clone(), notes.clone()], &signs.kid, true);
        check(&[scheduled, notes.clone()], &signs.kid, true);
        check(&[signs.clone(), another.clone()], &signs.kid, true);
        for changed in [retired, rotated, renamed] {
            check(&[changed.clone(), notes.clone()], &signs.kid, false);
            check(&[changed, notes.clone()], &notes.kid, false);
        }
        check(std::slice::from_ref(&notes), &signs.kid, false);
        check(&[signs.clone(), notes.clone(), another], &notes.kid, false);
        check(&[signs, notes.clone()], &notes.kid, true);
        let none = index(&[], 1);
        assert!(
            none.decides_as(&before, std::slice::from_ref(&notes.kid)),
            "no version is between them"
        );
    }
}
