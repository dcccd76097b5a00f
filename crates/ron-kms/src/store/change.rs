//! A change of one key as a value: what its metadata will be, and the version it brings, if any.

use ron_crypto::secret::SecretBytes;
use ron_proto::kms::PayloadPolicy;
use ron_proto::values::{Kid, Timestamp};

use super::KeyStore;
use super::record::Meta;
use super::seal::RecordName;
use crate::backend::{BackendKind, Custody, Handle, Held, local};
use crate::error::{Refusal, Why};
use crate::keys::{PublicKey, SecretKey};
use crate::work::lifecycle::held::{Order, Unplanned};

/// A key version that is about to be stored.
pub struct NewVersion {
    /// The version's number.
    pub number: u32,
    /// Its public key.
    pub public: PublicKey,
    pub(super) created: Timestamp,
    pub(super) secret: Custody,
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
    /// The making of a key in `backend`, with a fresh first version; nothing is stored yet. A
    /// refusal when that backend makes no keys of this algorithm, or is away.
    pub fn new_key(
        &self,
        kid: &Kid,
        backend: BackendKind,
        payload: PayloadPolicy,
        now: Timestamp,
    ) -> Result<Change, Unplanned> {
        let new = self.generate(kid, backend, 1, now)?;
        Ok(Change {
            new: Some(new),
            ..Change::of(kid, Meta::new(now, backend, payload))
        })
    }

    /// The taking over of a key, whose first version is `secret`, with the bytes to seal.
    pub fn imported_key(
        &self,
        kid: &Kid,
        payload: PayloadPolicy,
        now: Timestamp,
        (secret, raw): (SecretKey, &SecretBytes),
    ) -> Change {
        let public = secret.public();
        let new = self.seal_version(kid, 1, now, (Custody::Local(secret), public, raw));
        let mut meta = Meta::new(now, self.backends.local(), payload);
        meta.imported = true;
        Change {
            new: Some(new),
            ..Change::of(kid, meta)
        }
    }

    /// A fresh next version at the head, in the backend that holds the key; nothing is stored yet.
    pub fn next_version(&self, kid: &Kid, now: Timestamp) -> Result<Change, Unplanned> {
        let new = self.version_above_head(kid, now)?;
        let mut meta = self.known(kid)?.clone();
        meta.head = new.number;
        Ok(Change {
            new: Some(new),
            ..Change::of(kid, meta)
        })
    }

    /// A fresh version above the head; nothing is stored yet.
    pub fn version_above_head(&self, kid: &Kid, now: Timestamp) -> Result<NewVersion, Unplanned> {
        let meta = self.known(kid)?;
        let next = meta.head.checked_add(1);
        let next = next.ok_or_else(|| Refusal::new(Why::Unsupported, "no version is left"))?;
        self.generate(kid, meta.backend(self.backends.local()), next, now)
    }

    /// The metadata of a key that must exist.
    pub fn known(&self, kid: &Kid) -> Result<&Meta, Refusal> {
        self.meta(kid)
            .ok_or_else(|| Refusal::new(Why::NotFound, "there is no such key"))
    }

    fn generate(
        &self,
        kid: &Kid,
        backend: BackendKind,
        number: u32,
        now: Timestamp,
    ) -> Result<NewVersion, Unplanned> {
        self.backends.check(backend, kid.alg)?;
        if !backend.is_local() {
            let held = self.made_held(kid, backend, number)?;
            let raw = SecretBytes::from_slice(&held.handle.0);
            let public = held.public.clone();
            return Ok(self.seal_version(kid, number, now, (Custody::Held(held), public, &raw)));
        }
        let (secret, raw) = local::make(kid.alg, self.random.as_ref()).ok_or_else(|| {
            Refusal::new(Why::Unsupported, "no backend makes keys of this algorithm")
        })?;
        let public = secret.public();
        Ok(self.seal_version(kid, number, now, (Custody::Local(secret), public, &raw)))
    }

    /// A key that a device has made for this version; an order for it when none has.
    fn made_held(&self, kid: &Kid, backend: BackendKind, number: u32) -> Result<Held, Unplanned> {
        let order = Order {
            kid: kid.clone(),
            number,
            backend,
        };
        match &self.ready {
            Some((made, held)) if *made == order => Ok(held.clone()?),
            _ => Err(Unplanned::NotMade(order)),
        }
    }

    /// What a device has made, or why it has not, for the change that is planned next.
    pub fn hold_ready(&mut self, ready: Option<(Order, Result<Held, Refusal>)>) {
        self.ready = ready;
    }

    /// Whether this version is the device's key of this handle.
    pub fn has_version(&self, kid: &Kid, number: u32, handle: &Handle) -> bool {
        let found = self.secret(kid, number);
        found
            .is_some_and(|secret| matches!(&*secret, Custody::Held(held) if held.handle == *handle))
    }

    fn seal_version(
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
            secret,
            sealed,
        }
    }
}
