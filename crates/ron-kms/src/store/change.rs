//! A change of one key as a value: what its metadata will be, and the version it brings, if any.

use ron_proto::kms::PayloadPolicy;
use ron_proto::values::{Kid, Timestamp};

use super::KeyStore;
use super::record::Meta;
use super::seal::RecordName;
use crate::keys::{PublicKey, SecretKey};

/// A key version that is about to be stored.
pub struct NewVersion {
    /// The version's number.
    pub number: u32,
    /// Its public key.
    pub public: PublicKey,
    pub(super) created: Timestamp,
    pub(super) secret: SecretKey,
    pub(super) sealed: Vec<u8>,
}

/// A change of one key.
pub struct Change {
    /// The key.
    pub kid: Kid,
    /// Its metadata afterwards.
    pub meta: Meta,
    /// The version that it brings.
    pub new: Option<NewVersion>,
    /// Whether every secret of the key is destroyed.
    pub erase: bool,
}

impl Change {
    /// A change of metadata only.
    pub fn of(kid: &Kid, meta: Meta) -> Self {
        Self {
            kid: kid.clone(),
            meta,
            new: None,
            erase: false,
        }
    }

    /// The version that this change is about: the one it brings, else the head afterwards.
    pub fn version(&self) -> u32 {
        self.new.as_ref().map_or(self.meta.head, |new| new.number)
    }
}

impl KeyStore {
    /// The making of a key with a fresh first version; nothing is stored yet. `None` when no
    /// backend makes keys of this algorithm.
    pub fn new_key(&self, kid: &Kid, payload: PayloadPolicy, now: Timestamp) -> Option<Change> {
        let new = self.generate(kid, 1, now)?;
        Some(self.first(kid, Meta::new(now, payload), new))
    }

    /// The making of a key whose first version is `secret`, with the bytes to seal.
    pub fn imported_key(
        &self,
        kid: &Kid,
        payload: PayloadPolicy,
        now: Timestamp,
        secret: (SecretKey, &ron_crypto::SecretBytes),
    ) -> Change {
        let new = self.seal_version(kid, 1, now, secret);
        let mut meta = Meta::new(now, payload);
        meta.imported = true;
        self.first(kid, meta, new)
    }

    fn first(&self, kid: &Kid, meta: Meta, new: NewVersion) -> Change {
        debug_assert!(!self.records.contains_key(kid), "names are random");
        Change {
            new: Some(new),
            ..Change::of(kid, meta)
        }
    }

    /// A fresh next version at the head; nothing is stored yet.
    pub fn next_version(&self, kid: &Kid, now: Timestamp) -> Option<Change> {
        let mut meta = self.meta(kid)?.clone();
        meta.head = meta.head.checked_add(1)?;
        let new = self.generate(kid, meta.head, now)?;
        Some(Change {
            new: Some(new),
            ..Change::of(kid, meta)
        })
    }

    /// A fresh next version that waits above the head; the metadata says how long.
    pub fn waiting_version(&self, kid: &Kid, now: Timestamp) -> Option<NewVersion> {
        let head = self.meta(kid)?.head;
        self.generate(kid, head.checked_add(1)?, now)
    }

    fn generate(&self, kid: &Kid, number: u32, now: Timestamp) -> Option<NewVersion> {
        let (secret, raw) = SecretKey::generate(kid.alg, self.random.as_ref())?;
        Some(self.seal_version(kid, number, now, (secret, &raw)))
    }

    fn seal_version(
        &self,
        kid: &Kid,
        number: u32,
        now: Timestamp,
        (secret, raw): (SecretKey, &ron_crypto::SecretBytes),
    ) -> NewVersion {
        let public = secret.public();
        let name = RecordName::of(kid, number, now);
        let sealed = self.sealer.seal(&name, &public, raw, self.random.as_ref());
        NewVersion {
            number,
            public,
            created: now,
            secret,
            sealed,
        }
    }
}
