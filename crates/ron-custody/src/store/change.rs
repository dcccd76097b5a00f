//! A change of one key as a value: the new metadata and the new version, if any.

use std::sync::Arc;

use ron_crypto::secret::SecretBytes;
use ron_proto::kms::{PayloadPolicy, TokenObject};
use ron_proto::values::{Kid, Timestamp};

use super::KeyStore;
use super::meta::Meta;
use super::record::NewVersion;
use super::seal::RecordName;
use crate::backend::{BackendId, Custody, DeviceKey, Handle};
use crate::keys::{PublicKey, SecretKey};
use crate::{Cause, Refusal};

/// A key version that is to be made: by a device, or locally when it takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub kid: Kid,
    pub number: u32,
    pub backend: BackendId,
    /// The object that is taken in place of a new one.
    pub adopt: Option<TokenObject>,
}

/// Why a change cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The change is refused.
    Refusal(Refusal),
    /// This key has to be made first.
    KeyMissing(Order),
}

/// A key that was made on an [`Order`].
#[derive(Clone, Debug)]
pub enum MadeKey {
    Device(DeviceKey),
    /// The bytes to seal, as [`SecretKey::generate`] makes them.
    Local(Arc<SecretBytes>),
}

impl From<Refusal> for PlanError {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

/// The secrets that a change destroys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Erase {
    #[default]
    None,
    /// Of the versions below this one.
    Below(u32),
    All,
}

/// A change of a key.
pub struct Change {
    pub kid: Kid,
    pub meta: Meta,
    /// The new version, if the change makes one.
    pub new: Option<NewVersion>,
    /// The versions before it, when a key is restored.
    pub earlier: Vec<NewVersion>,
    /// Which secrets of the key are destroyed.
    pub erase: Erase,
    /// Another key whose metadata changes in the same transaction: the one that an alias leaves.
    pub other: Option<(Kid, Meta)>,
}

impl Change {
    /// A change of metadata only.
    pub fn of(kid: &Kid, meta: Meta) -> Self {
        Self {
            kid: kid.clone(),
            meta,
            new: None,
            earlier: Vec::new(),
            erase: Erase::None,
            other: None,
        }
    }

    /// Whether the change makes the key.
    pub fn makes_key(&self) -> bool {
        let first = self.earlier.first().or(self.new.as_ref());
        first.is_some_and(|version| version.number == 1)
    }

    /// The version that this change is about: the new one, else the head after the change.
    pub fn version(&self) -> u32 {
        self.new.as_ref().map_or(self.meta.head, |new| new.number)
    }
}

impl KeyStore {
    /// A change that makes a key in `backend`, with a new first version; nothing is stored yet. Refused when that
    /// backend makes no keys of this algorithm or is unavailable.
    pub fn new_key(
        &self,
        kid: &Kid,
        backend: impl Into<BackendId>,
        payload: PayloadPolicy,
        now: Timestamp,
    ) -> Result<Change, PlanError> {
        let backend = backend.into();
        let new = self.generate(kid, &backend, (1, None), now)?;
        Ok(Change {
            new: Some(new),
            ..Change::of(kid, Meta::new(now, backend, payload))
        })
    }

    /// A change that makes a key of an object that a device has already; nothing is stored yet.
    pub fn adopted_key(
        &self,
        kid: &Kid,
        (backend, object): (BackendId, &TokenObject),
        payload: PayloadPolicy,
        now: Timestamp,
    ) -> Result<Change, PlanError> {
        let new = self.generate(kid, &backend, (1, Some(object)), now)?;
        let mut meta = Meta::new(now, backend, payload);
        meta.adopted = true;
        Ok(Change {
            new: Some(new),
            ..Change::of(kid, meta)
        })
    }

    /// A change that imports a key whose first version is `secret`; `raw` holds the bytes to seal.
    pub fn imported_key(
        &self,
        kid: &Kid,
        payload: PayloadPolicy,
        now: Timestamp,
        (secret, raw): (SecretKey, &SecretBytes),
    ) -> Change {
        let public = secret.public();
        let new = self.seal_version(kid, 1, now, (Custody::Local(secret), public, raw));
        let mut meta = Meta::new(now, self.backends.local().into(), payload);
        meta.imported = true;
        Change {
            new: Some(new),
            ..Change::of(kid, meta)
        }
    }

    /// A change that makes `secret` the new head version of a local key; nothing is stored yet.
    pub fn imported_version(
        &self,
        kid: &Kid,
        (secret, raw): (SecretKey, &SecretBytes),
        now: Timestamp,
    ) -> Result<Change, Refusal> {
        let mut meta = self.known(kid)?.clone();
        let next = meta.head.checked_add(1);
        let next = next.ok_or_else(|| Refusal::new(Cause::Unsupported, "no version is left"))?;
        let public = secret.public();
        let new = self.seal_version(kid, next, now, (Custody::Local(secret), public, raw));
        meta.head = next;
        meta.head_since = None;
        Ok(Change {
            new: Some(new),
            ..Change::of(kid, meta)
        })
    }

    /// A change that makes a new head version in the backend that holds the key; nothing is stored yet.
    pub fn next_version(&self, kid: &Kid, now: Timestamp) -> Result<Change, PlanError> {
        let new = self.version_above_head(kid, now)?;
        let mut meta = self.known(kid)?.clone();
        meta.head = new.number;
        meta.head_since = None;
        Ok(Change {
            new: Some(new),
            ..Change::of(kid, meta)
        })
    }

    /// A new version above the head; nothing is stored yet.
    pub fn version_above_head(&self, kid: &Kid, now: Timestamp) -> Result<NewVersion, PlanError> {
        let meta = self.known(kid)?;
        let next = meta.head.checked_add(1);
        let next = next.ok_or_else(|| Refusal::new(Cause::Unsupported, "no version is left"))?;
        let backend = meta.backend(self.backends.local());
        self.generate(kid, &backend, (next, None), now)
    }

    /// The metadata of a key, or the refusal `not_found` or, for damaged metadata, `quarantined`.
    pub fn known(&self, kid: &Kid) -> Result<&Meta, Refusal> {
        if self.damaged.contains_key(kid) {
            return Err(Refusal::quarantined_key(kid));
        }
        self.meta(kid)
            .ok_or_else(|| Refusal::new(Cause::NotFound, "there is no such key"))
    }

    fn generate(
        &self,
        kid: &Kid,
        backend: &BackendId,
        (number, adopt): (u32, Option<&TokenObject>),
        now: Timestamp,
    ) -> Result<NewVersion, PlanError> {
        self.backends.check(backend, kid.alg)?;
        if backend.is_local() && !kid.alg.is_rsa() && !kid.alg.is_oaep() {
            let (secret, raw) = SecretKey::generate(kid.alg, self.random.as_ref());
            let public = secret.public();
            return Ok(self.seal_version(kid, number, now, (Custody::Local(secret), public, &raw)));
        }
        let order = Order {
            kid: kid.clone(),
            number,
            backend: backend.clone(),
            adopt: adopt.cloned(),
        };
        match self.made_key(order)? {
            MadeKey::Device(key) => {
                let raw = SecretBytes::from_slice(&key.handle.0);
                let public = key.public.clone();
                Ok(self.seal_version(kid, number, now, (Custody::Device(key), public, &raw)))
            }
            MadeKey::Local(raw) => {
                let secret = SecretKey::from_secret(kid.alg, &raw).expect("it was made so");
                let public = secret.public();
                Ok(self.seal_version(kid, number, now, (Custody::Local(secret), public, &raw)))
            }
        }
    }

    /// The key that was made for this version, or the order to make it.
    fn made_key(&self, order: Order) -> Result<MadeKey, PlanError> {
        match &self.made {
            Some((made, key)) if *made == order => Ok(key.clone()?),
            _ => Err(PlanError::KeyMissing(order)),
        }
    }

    /// Sets the key that was made for the change that is planned next; cleared with `None` afterwards.
    pub fn set_made(&mut self, made: Option<(Order, Result<MadeKey, Refusal>)>) {
        self.made = made;
    }

    /// Whether this version is the device's key with this handle.
    pub fn has_version(&self, kid: &Kid, number: u32, handle: &Handle) -> bool {
        let found = self.secret(kid, number);
        found.is_some_and(
            |secret| matches!(secret.open(), Ok(Custody::Device(key)) if key.handle == *handle),
        )
    }

    pub(super) fn seal_version(
        &self,
        kid: &Kid,
        number: u32,
        now: Timestamp,
        (secret, public, raw): (Custody, PublicKey, &SecretBytes),
    ) -> NewVersion {
        let name = RecordName::of(kid, number, now);
        let sealed = self.sealer.seal(&name, &public, raw, self.random.as_ref());
        NewVersion {
            number,
            public,
            created: now,
            secret: Some(secret),
            sealed,
        }
    }
}
