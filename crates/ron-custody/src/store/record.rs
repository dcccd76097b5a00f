//! One key as the store holds it: metadata under a MAC, sealed versions, and the conversion of both into the
//! [`Key`] that readers get.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::sha256;
use ron_proto::kms::{KeyBackend, KeyState, PayloadPolicy};
use ron_proto::values::{Kid, Timestamp};
use ron_proto::{jcs, strict};
use serde::{Deserialize, Serialize};

use super::seal::{RecordName, SealError, Sealer};
use super::{Db, StoreError};
use crate::backend::{Backends, Custody, Device, DeviceKey, Handle};
use crate::index::{Key, Version};
use crate::index::{Rotation, Waiting};
use crate::keys::PublicKey;

/// Metadata of a key, stored as canonical JSON under a MAC. Members that were added later are absent while they hold
/// their default, so that the stored bytes of a key that does not use them do not change.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// The device that holds the key; absent for local keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<KeyBackend>,
    /// When the key was made.
    pub created: Timestamp,
    /// When its secrets are (or were) destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy_at: Option<Timestamp>,
    /// Whether its secrets are destroyed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub destroyed: bool,
    /// Whether it may be exported, wrapped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exportable: bool,
    /// The version that signs.
    pub head: u32,
    /// Whether its first version was imported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// The oldest version that verifies.
    pub min_verify: u32,
    /// Size and hex root of the newest checkpoint signed by a `note` key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<(u64, String)>,
    /// Which payloads it may sign.
    pub payload: PayloadPolicy,
    /// Whether it is retired: it verifies and unwraps, but no longer signs or wraps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// Schedule of automatic rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// Reserved uses of each version, in order of versions, for keys whose nonces are counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<u32>,
    /// Set while the version above the head is published but does not sign yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
}

impl Meta {
    /// The metadata of a new key.
    pub fn new(created: Timestamp, backend: KeyBackend, payload: PayloadPolicy) -> Self {
        Self {
            backend: (!backend.is_local()).then_some(backend),
            created,
            destroy_at: None,
            destroyed: false,
            exportable: false,
            head: 1,
            imported: false,
            min_verify: 1,
            note: None,
            payload,
            retired: false,
            rotation: None,
            uses: Vec::new(),
            waiting: None,
        }
    }

    /// The backend that holds the key; `local` is the local one.
    pub fn backend(&self, local: KeyBackend) -> KeyBackend {
        self.backend.unwrap_or(local)
    }

    pub fn state(&self) -> KeyState {
        match (self.destroyed, self.destroy_at, self.retired) {
            (true, ..) => KeyState::Destroyed,
            (_, Some(_), _) => KeyState::PendingDestruction,
            (_, None, true) => KeyState::Retired,
            (_, None, false) => KeyState::Active,
        }
    }

    pub fn versions(&self) -> u32 {
        self.head + u32::from(self.waiting.is_some())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        jcs::to_vec(self).expect("metadata holds strings and integers only")
    }
}

/// A key version that is about to be stored.
pub struct NewVersion {
    pub number: u32,
    pub public: PublicKey,
    pub(super) created: Timestamp,
    pub(super) secret: Custody,
    pub(super) sealed: Vec<u8>,
}

/// One version as the store holds it.
#[derive(Clone)]
pub(super) struct VersionRow {
    pub(super) created: Timestamp,
    pub(super) public: PublicKey,
    /// Of the record that was written.
    pub(super) sealed_sha256: [u8; 32],
    pub(super) birth: Option<u64>,
    /// Whether the stored record is another one than was written.
    pub(super) damaged: bool,
    /// Hash of the stored record, until the store is loaded; only of a damaged one.
    found_sha256: Option<[u8; 32]>,
}

/// A key as the store holds it.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) meta: Meta,
    pub(super) mac: [u8; 32],
    pub(super) versions: Vec<VersionRow>,
    /// Private keys by number; only those that a snapshot needs stay loaded.
    pub(super) secrets: BTreeMap<u32, Arc<Custody>>,
}

impl Record {
    /// A key without versions.
    pub(super) fn new(meta: Meta) -> Self {
        Self {
            meta,
            mac: [0; 32],
            versions: Vec::new(),
            secrets: BTreeMap::new(),
        }
    }

    /// Adds a version whose leaf is not durable yet; returns its row's time and sealed record.
    pub(super) fn push(&mut self, new: NewVersion) -> (Timestamp, Vec<u8>) {
        self.versions.push(VersionRow {
            created: new.created,
            public: new.public,
            sealed_sha256: sha256(&new.sealed),
            birth: None,
            damaged: false,
            found_sha256: None,
        });
        self.secrets.insert(new.number, Arc::new(new.secret));
        (new.created, new.sealed)
    }

    /// Drops private keys that are no longer used: old versions of a signing key only verify. Old versions of other
    /// keys still unwrap or check MACs, so all of theirs stay.
    pub(super) fn drop_old_secrets(&mut self, kid: &Kid) {
        let from = oldest_needed(kid, self.meta.head);
        self.secrets.retain(|number, _| *number >= from);
    }

    /// The key as readers see it, with the versions whose leaf is durable; `None` before the first one is.
    pub(super) fn visible(&self, kid: &Kid, backends: &Backends) -> Option<Key> {
        let versions: Vec<Version> = (1_u32..)
            .zip(&self.versions)
            // Versions become visible in order: only the last one can be without its leaf.
            .map_while(|(number, row)| {
                Some(Version {
                    number,
                    created: row.created,
                    public: row.public.clone(),
                    thumbprint: row.public.thumbprint().into(),
                    birth: row.birth?,
                    damaged: row.damaged,
                })
            })
            .collect();
        let meta = &self.meta;
        // While a rotation waits for its leaf, the metadata is ahead of the visible versions.
        let head = meta.head.min(versions.last()?.number);
        let secret = self.secrets.get(&head).cloned();
        let damaged = versions[head as usize - 1].damaged;
        if secret.is_none() && !meta.destroyed && !damaged {
            return None;
        }
        let backend = meta.backend(backends.local());
        Some(Key {
            kid: kid.clone(),
            payload: meta.payload.clone(),
            created: meta.created,
            state: meta.state(),
            destroy_at: meta.destroy_at,
            exportable: meta.exportable,
            imported: meta.imported,
            rotation: meta.rotation,
            waiting: meta.waiting.filter(|_| versions.len() > head as usize),
            min_verify: meta.min_verify,
            head,
            secret,
            secrets: if kid.alg.signs() {
                BTreeMap::new()
            } else {
                self.secrets.clone()
            },
            backend,
            attestation: backends.attestation(backend),
            versions,
        })
    }
}

fn oldest_needed(kid: &Kid, head: u32) -> u32 {
    if kid.alg.signs() { head } else { 1 }
}

/// The secret half of a version: a local key, or the handle of a key inside `device`.
fn open_custody(
    sealer: &Sealer,
    name: &RecordName,
    sealed: &[u8],
    device: Option<&Arc<dyn Device>>,
) -> Result<(Custody, PublicKey), SealError> {
    let Some(device) = device else {
        let (secret, public) = sealer.open(name, sealed)?;
        return Ok((Custody::Local(secret), public));
    };
    let (handle, public) = sealer.open_bytes(name, sealed)?;
    let key = DeviceKey {
        device: device.clone(),
        handle: Handle(handle.expose().to_vec()),
        alg: name.alg,
        public: public.clone(),
    };
    Ok((Custody::Device(key), public))
}

pub(super) fn load_records(
    db: &Db,
    sealer: &Sealer,
    backends: &Backends,
) -> Result<BTreeMap<Kid, Record>, StoreError> {
    let rows = db.read(|c| {
        let mut query = c.prepare("SELECT kid, meta, mac FROM keys ORDER BY kid")?;
        let rows = query.query_map([], |r| {
            Ok((
                r.get::<_, String>(0)?,
                r.get::<_, Vec<u8>>(1)?,
                r.get::<_, Vec<u8>>(2)?,
            ))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    })?;
    let mut records = BTreeMap::new();
    for (name, meta, mac) in rows {
        let tampered = || StoreError::Tampered(format!("metadata of key {name}"));
        let kid: Kid = name
            .parse()
            .map_err(|_| StoreError::Tampered("a key's name".into()))?;
        let mac: [u8; 32] = mac.try_into().map_err(|_| tampered())?;
        if !ct::eq(&sealer.mac(&name, &meta), &mac) {
            return Err(tampered());
        }
        // Parsed only after its MAC is right, so only bytes that this store has written.
        let meta: Meta = strict::from_slice(&meta).map_err(|_| tampered())?;
        let device = meta.backend.map(|kind| backends.holder(kind));
        let (versions, secrets) = load_versions(db, sealer, &kid, &meta, device.as_ref())?;
        if versions.len() != meta.versions() as usize {
            return Err(tampered());
        }
        let record = Record {
            meta,
            mac,
            versions,
            secrets,
        };
        records.insert(kid, record);
    }
    Ok(records)
}

/// Refuses a store in which the record of one version stands in the place of another: no damage does that.
pub(super) fn refuse_moved(records: &mut BTreeMap<Kid, Record>) -> Result<(), StoreError> {
    let rows = records.values().flat_map(|record| &record.versions);
    let written: BTreeSet<[u8; 32]> = rows.map(|row| row.sealed_sha256).collect();
    for (kid, record) in records {
        for (number, row) in (1_u32..).zip(&mut record.versions) {
            let found = row.found_sha256.take();
            if found.is_some_and(|found| written.contains(&found)) {
                let why = format!("{kid}#v{number} holds the record of another version");
                return Err(StoreError::Tampered(why));
            }
        }
    }
    Ok(())
}

struct StoredVersion {
    number: u32,
    created: Timestamp,
    sealed: Vec<u8>,
    sealed_sha256: [u8; 32],
    public: Vec<u8>,
    birth: Option<u64>,
}

type LoadedVersions = (Vec<VersionRow>, BTreeMap<u32, Arc<Custody>>);

fn load_versions(
    db: &Db,
    sealer: &Sealer,
    kid: &Kid,
    meta: &Meta,
    device: Option<&Arc<dyn Device>>,
) -> Result<LoadedVersions, StoreError> {
    let rows = db.read(|c| {
        let mut query = c.prepare(
            "SELECT number, created, sealed, sealed_sha256, public, birth FROM versions WHERE kid = ?1 ORDER BY number",
        )?;
        let rows = query.query_map([kid.to_string()], |r| {
            Ok(StoredVersion {
                number: r.get(0)?,
                created: Timestamp(r.get::<_, i64>(1)?.cast_unsigned()),
                sealed: r.get(2)?,
                sealed_sha256: r.get(3)?,
                public: r.get(4)?,
                birth: r.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned),
            })
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    })?;
    let mut versions = Vec::with_capacity(rows.len());
    let mut secrets = BTreeMap::new();
    // The version below the head too: while the head's leaf is missing, that version still signs.
    let keep_from = oldest_needed(kid, meta.head.saturating_sub(1));
    for (at, row) in rows.into_iter().enumerate() {
        let number = row.number;
        if number as usize != at + 1 {
            return Err(StoreError::Tampered(format!("versions of key {kid}")));
        }
        let name = RecordName::of(kid, number, row.created);
        let found = sha256(&row.sealed);
        // The hash and the public key are covered by the MAC of the store, which is checked when all rows are loaded.
        let damaged = found != row.sealed_sha256;
        let public = if damaged {
            Sealer::refuse_newer(&name, &row.sealed)?;
            PublicKey::from_raw(kid.alg, &row.public)
                .ok_or_else(|| StoreError::Tampered(format!("public key of {kid}#v{number}")))?
        } else if meta.destroyed {
            sealer.public_of(&name, &row.sealed)?
        } else {
            // Old versions only verify: their records are opened as a check, and the private keys dropped.
            let (secret, public) = open_custody(sealer, &name, &row.sealed, device)?;
            if number >= keep_from {
                secrets.insert(number, Arc::new(secret));
            }
            public
        };
        versions.push(VersionRow {
            created: row.created,
            public,
            sealed_sha256: row.sealed_sha256,
            birth: row.birth,
            damaged,
            found_sha256: damaged.then_some(found),
        });
    }
    Ok((versions, secrets))
}
