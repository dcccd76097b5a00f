//! One key as the store holds it: metadata under a MAC, sealed versions, and the conversion of both into the
//! [`Key`] that readers get.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::{Sha256, sha256};
use ron_proto::kms::PayloadPolicy;
use ron_proto::strict;
use ron_proto::values::{Kid, Timestamp};
use ron_service::records::{Row, Statements};

use super::db::{bytes, number, optional, unsigned};
use super::meta::Meta;
use super::part::{KEYS, Part};
use super::seal::{Macs, RecordName, SealError, Sealer, Trust, refuse};
use super::{PAGE, StoreError};
use crate::Refusal;
use crate::backend::{Attestation, Backends, Custody, Device, DeviceKey, Handle, SecretHalf};
use crate::index::{Key, Version};
use crate::keys::PublicKey;

/// A key version that is about to be stored.
pub struct NewVersion {
    pub number: u32,
    pub public: PublicKey,
    pub(super) created: Timestamp,
    /// `None` for a version that is restored after its secret was destroyed.
    pub(super) secret: Option<Custody>,
    pub(super) sealed: Vec<u8>,
}

/// One version as the store holds it.
#[derive(Clone)]
pub(super) struct VersionRow {
    /// What snapshots show; its `birth` is set once the version is born.
    pub(super) version: Arc<Version>,
    /// Whether its leaf is durable.
    pub(super) born: bool,
    /// Of the record that was written.
    pub(super) sealed_sha256: [u8; 32],
}

/// A key as the store holds it.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) meta: Meta,
    pub(super) mac: [u8; 32],
    pub(super) versions: Vec<VersionRow>,
    /// Private keys by number; only those that a snapshot needs stay loaded.
    pub(super) secrets: BTreeMap<u32, Arc<SecretHalf>>,
    /// Of everything that the MAC of the store covers.
    pub(super) digest: [u8; 32],
}

impl Record {
    /// A key without versions.
    pub(super) fn new(meta: Meta) -> Self {
        Self {
            meta,
            mac: [0; 32],
            versions: Vec::new(),
            secrets: BTreeMap::new(),
            digest: [0; 32],
        }
    }

    /// Sets the MAC of the metadata, and the digest of the whole record.
    pub(super) fn set_mac(&mut self, mac: [u8; 32]) {
        self.mac = mac;
        let mut hash = Sha256::new();
        hash.update(&mac);
        for row in &self.versions {
            hash.update(&row.sealed_sha256);
            // All public keys of an algorithm have the same length.
            hash.update(row.version.public.raw());
        }
        self.digest = hash.finish();
    }

    /// Adds a version whose leaf is not durable yet; returns its row's time and sealed record.
    pub(super) fn push(&mut self, new: NewVersion) -> (Timestamp, Vec<u8>) {
        self.versions.push(VersionRow {
            version: Arc::new(Version::new(new.number, new.created, new.public, 0)),
            born: false,
            sealed_sha256: sha256(&new.sealed),
        });
        if let Some(secret) = new.secret {
            let secret = SecretHalf::opened(secret);
            self.secrets.insert(new.number, Arc::new(secret));
        }
        (new.created, new.sealed)
    }

    /// Whether the leaf of a version is not known to be durable.
    pub(super) fn is_unborn(&self) -> bool {
        self.versions.iter().any(|row| !row.born)
    }

    /// Keeps the private keys of `old` that are the same: opened already, and with use numbers that are free.
    pub(super) fn keep_secrets(&mut self, old: &Self) {
        let sealed = |rows: &[VersionRow], number: u32| {
            rows.get(number as usize - 1).map(|row| row.sealed_sha256)
        };
        for (number, secret) in &mut self.secrets {
            if let Some(kept) = old.secrets.get(number)
                && sealed(&old.versions, *number) == sealed(&self.versions, *number)
            {
                secret.clone_from(kept);
            }
        }
    }

    /// Records the leaf of the versions up to this one that have none: more than one only when a key was restored.
    pub(super) fn set_birth(&mut self, number: u32, (log, birth): (&Arc<str>, u64)) {
        let rows = self.versions.iter_mut().take(number as usize);
        for row in rows.filter(|row| !row.born) {
            row.born = true;
            let version = Arc::make_mut(&mut row.version);
            (version.log, version.birth) = (log.clone(), birth);
        }
    }

    /// Drops private keys that are no longer used: old versions of a signing key only verify. Old versions of other
    /// keys still unwrap or check MACs, so all of theirs stay.
    pub(super) fn drop_old_secrets(&mut self, kid: &Kid) {
        let from = oldest_needed(kid, self.meta.head).max(self.meta.min_available);
        self.secrets.retain(|number, _| *number >= from);
    }

    /// The key as readers see it, with the versions whose leaf is durable; `None` before the first one is.
    pub(super) fn visible(&self, kid: &Kid, backends: &Backends) -> Option<Key> {
        // Versions become visible in order: only the last one can be without its leaf.
        let born = self.versions.iter().take_while(|row| row.born);
        let versions: Vec<Arc<Version>> = born.map(|row| row.version.clone()).collect();
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
            access: Arc::new(meta.access.clone()),
            labels: Arc::new(meta.labels.clone()),
            exportable: meta.exportable,
            imported: meta.imported,
            derived: meta.derived,
            rotation: meta.rotation,
            waiting: meta.waiting.filter(|_| versions.len() > head as usize),
            min_verify: meta.min_verify,
            min_wrap: meta.min_wrap,
            min_available: meta.min_available,
            trim: meta.trim,
            deletion_allowed: meta.deletion_allowed,
            head,
            head_since: meta.head_since.filter(|_| head == meta.head),
            secret,
            secrets: if kid.alg.signs() {
                BTreeMap::new()
            } else {
                self.secrets.clone()
            },
            attestation: if meta.adopted {
                Attestation::Adopted
            } else {
                backends.attestation(&backend)
            },
            backend,
            versions,
        })
    }
}

fn oldest_needed(kid: &Kid, head: u32) -> u32 {
    if kid.alg.signs() { head } else { 1 }
}

/// What the tables hold of the keys that were read. The store's MAC is still to be checked.
pub(super) struct Loaded {
    pub(super) records: BTreeMap<Kid, Record>,
    /// Digests of the keys whose metadata is damaged.
    pub(super) damaged: BTreeMap<Kid, [u8; 32]>,
    /// Whether any record differs from its sum, or from what the sealed record states.
    pub(super) differs: bool,
}

pub(super) fn load_records(
    tx: &mut dyn Statements,
    sealer: &Arc<Sealer>,
    backends: &Backends,
    part: &Part,
    first_log: &str,
) -> Result<Loaded, StoreError> {
    let trust = part.trust();
    let mut differing = Vec::new();
    let mut keys = load_keys(tx, (sealer, backends), part, &mut differing)?;
    let mut loader = Loader {
        sealer,
        macs: sealer.macs(),
        backends,
        trust,
        differing: &mut differing,
        first_log: first_log.into(),
    };
    let mut left = keys.iter_mut().peekable();
    let mut after = (String::new(), 0);
    loop {
        let (sql, params) = part.versions_after((&after.0, after.1), PAGE);
        let rows = tx.query(&sql, &params)?;
        for row in &rows {
            let name = row.text(0)?;
            // Both are sorted by name, so a version belongs to this key or to a later one.
            while left.next_if(|key| key.name.as_str() < name).is_some() {}
            match left.peek_mut() {
                Some(key) if key.name == name => loader.add(key, row)?,
                _ => return Err(StoreError::Tampered("a version belongs to no key".into())),
            }
        }
        match rows.last() {
            Some(last) => after = (last.text(0)?.to_owned(), last.int(1)?),
            None => break,
        }
    }
    refuse_moved(tx, &differing)?;
    let mut loaded = Loaded {
        records: BTreeMap::new(),
        damaged: BTreeMap::new(),
        differs: !differing.is_empty(),
    };
    for KeyRow {
        name,
        kid,
        mut record,
        damaged,
    } in keys
    {
        record.set_mac(record.mac);
        if damaged {
            loaded.damaged.insert(kid, record.digest);
        } else if record.versions.len() == record.meta.versions() as usize {
            loaded.records.insert(kid, record);
        } else {
            return Err(StoreError::Tampered(format!("metadata of key {name}")));
        }
    }
    Ok(loaded)
}

/// A row of `keys`, to which its versions are added.
struct KeyRow {
    name: String,
    kid: Kid,
    record: Record,
    /// Whether metadata and MAC differ: nothing is known of the key but its versions.
    damaged: bool,
}

fn load_keys(
    tx: &mut dyn Statements,
    (sealer, backends): (&Arc<Sealer>, &Backends),
    part: &Part,
    differing: &mut Vec<Differing>,
) -> Result<Vec<KeyRow>, StoreError> {
    let rows = tx.query(KEYS, &part.chosen())?;
    let macs = sealer.macs();
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        let (name, meta) = (row.text(0)?.to_owned(), row.blob(1)?.to_vec());
        let tampered = || StoreError::Tampered(format!("metadata of key {name}"));
        let kid: Kid = name
            .parse()
            .map_err(|_| StoreError::Tampered("a key's name".into()))?;
        let mac: [u8; 32] = row.blob(2)?.try_into().map_err(|_| tampered())?;
        let found = macs.of(&name, [&meta[..]]);
        let damaged = !ct::eq(&found, &mac);
        let parsed = if damaged {
            differing.push(Differing {
                name: format!("key {name}"),
                place: Place::Meta,
                found: meta,
            });
            // Stands in for metadata of which nothing is known; as destroyed, no secret is loaded for it.
            Meta {
                destroyed: true,
                ..Meta::new(Timestamp(0), backends.local().into(), PayloadPolicy::Any)
            }
        } else {
            // Parsed only after its MAC is right, so only bytes that this store has written.
            strict::from_slice(&meta).map_err(|_| tampered())?
        };
        let mut record = Record::new(parsed);
        record.mac = match part.trust() {
            Trust::Sums => mac,
            Trust::Records => found,
        };
        keys.push(KeyRow {
            name,
            kid,
            record,
            damaged,
        });
    }
    Ok(keys)
}

/// Where a value was found that differs from its sum.
#[derive(Clone, Copy)]
enum Place {
    Meta,
    Public,
    /// The hash of the sealed record.
    Sealed,
}

/// A value that is another one than was written.
struct Differing {
    name: String,
    place: Place,
    found: Vec<u8>,
}

/// Refuses a store in which a value of one row stands in the place of another's: no damage does that.
fn refuse_moved(tx: &mut dyn Statements, differing: &[Differing]) -> Result<(), StoreError> {
    for one in differing {
        // A sealed record is looked for by the hash that is stored for it; the other two are found at their own place too.
        let (sql, own) = match one.place {
            Place::Meta => ("SELECT count(*) FROM keys WHERE meta = ?1", 1),
            Place::Public => ("SELECT count(*) FROM versions WHERE public = ?1", 1),
            Place::Sealed => ("SELECT count(*) FROM versions WHERE sealed_sha256 = ?1", 0),
        };
        let rows = tx.query(sql, &[one.found[..].into()])?;
        if rows.first().map_or(Ok(0), |row| row.int(0))? > own {
            let why = format!("{} holds the record of another one", one.name);
            return Err(StoreError::Tampered(why));
        }
    }
    Ok(())
}

/// A sealed record that was compared with its hash. Opening it fails only when this program should not have written it.
struct SealedVersion {
    sealer: Arc<Sealer>,
    name: RecordName,
    public: PublicKey,
    /// The device that holds the key, for a key in a device.
    device: Option<Arc<dyn Device>>,
    record: Box<[u8]>,
}

impl SealedVersion {
    fn open(&self) -> Result<Custody, Refusal> {
        self.custody().map_err(|error| {
            tracing::error!(event = "key_record_refused", %error);
            Refusal::quarantined(&self.name.key, self.name.version)
        })
    }

    /// The local key, or the handle of a key inside the device.
    fn custody(&self) -> Result<Custody, SealError> {
        let Some(device) = &self.device else {
            let (secret, public) = self.sealer.open(&self.name, &self.record)?;
            self.same(&public)?;
            return Ok(Custody::Local(secret));
        };
        let (handle, public) = self.sealer.open_bytes(&self.name, &self.record)?;
        self.same(&public)?;
        let handle = Handle(handle.expose().to_vec());
        let key = DeviceKey::new(device.clone(), handle, public);
        Ok(Custody::Device(key))
    }

    fn same(&self, public: &PublicKey) -> Result<(), SealError> {
        if *public == self.public {
            return Ok(());
        }
        Err(refuse(&self.name, "its public key is not the stored one"))
    }
}

/// Reads the rows of versions.
struct Loader<'a> {
    sealer: &'a Arc<Sealer>,
    macs: Macs,
    backends: &'a Backends,
    trust: Trust,
    differing: &'a mut Vec<Differing>,
    /// The log of versions that name none.
    first_log: Arc<str>,
}

impl Loader<'_> {
    /// Whether the leaf of the version is durable, and its index unless that is damaged.
    fn birth(&self, key: &str, number: u32, row: &Row) -> Result<(bool, Option<u64>), StoreError> {
        let birth = optional(row, 3)?;
        let mac = (!row.is_null(4)).then(|| row.blob(4)).transpose()?;
        let log = (!row.is_null(8)).then(|| row.text(8)).transpose()?;
        let born = birth.is_some() || mac.is_some();
        let whole = birth.filter(|birth| {
            let found = self.macs.birth(key, number, (log, *birth));
            mac.is_some_and(|mac| ct::eq(&found, mac))
        });
        Ok((born, whole))
    }

    /// The log that records the making of the version in this row.
    fn log_of(&self, row: &Row) -> Result<Arc<str>, StoreError> {
        Ok(if row.is_null(8) {
            self.first_log.clone()
        } else {
            row.text(8)?.into()
        })
    }

    /// The private key in a record, which is opened when it is first used.
    fn secret(
        &self,
        name: RecordName,
        public: &PublicKey,
        device: Option<Arc<dyn Device>>,
        record: &[u8],
    ) -> SecretHalf {
        let sealed = SealedVersion {
            sealer: self.sealer.clone(),
            name,
            public: public.clone(),
            device: device.clone(),
            record: record.into(),
        };
        SecretHalf::sealed(device, move || sealed.open())
    }

    /// Adds the version in this row to its key. Its record is compared with its hash and not opened; hash and public key
    /// are covered by the MAC of the store, which is checked when all rows are loaded.
    fn add(&mut self, key: &mut KeyRow, row: &Row) -> Result<(), StoreError> {
        let (name, kid, record) = (&key.name, &key.kid, &mut key.record);
        let number = number(row, 1)?;
        if number as usize != record.versions.len() + 1 {
            return Err(StoreError::Tampered(format!("versions of key {kid}")));
        }
        let (born, birth) = self.birth(name, number, row)?;
        let sum: [u8; 32] = bytes(row, 5)?;
        let sealed = row.blob(7)?;
        let found_sha256 = sha256(sealed);
        let whole = found_sha256 == sum;
        if whole {
            Sealer::refuse_newer((name, number), sealed)?;
        }
        let created = Timestamp(unsigned(row, 2)?);
        let public = row.blob(6)?;
        let mut differs = |place, found: &[u8]| {
            self.differing.push(Differing {
                name: format!("{kid}#v{number}"),
                place,
                found: found.to_vec(),
            });
        };
        let mut version = Stated::of(kid, public, created);
        let header = Sealer::stated(name, sealed);
        let header = header.filter(|header| *header != (created, public));
        let header = header.and_then(|(created, public)| Stated::of(kid, public, created));
        if !whole {
            differs(Place::Sealed, &found_sha256);
            version = version.or(header);
        } else if header.is_some() {
            // The record is the one that was written, and states again what stands beside it.
            differs(Place::Public, public);
            version = header;
        }
        let damaged = !whole
            || born != birth.is_some()
            || version.as_ref().is_none_or(|v| !v.is(public, created));
        let Some(Stated { created, public }) = version else {
            let why = format!("public key of {kid}#v{number}");
            return Err(StoreError::Tampered(why));
        };
        let mut version = Version::new(number, created, public, birth.unwrap_or(0));
        version.log = self.log_of(row)?;
        version.damaged = damaged;
        let meta = &record.meta;
        // The version below the head too: while the head's leaf is missing, that version still signs.
        let needed =
            number >= oldest_needed(kid, meta.head.saturating_sub(1)).max(meta.min_available);
        if needed && !version.damaged && !meta.destroyed {
            let name = RecordName {
                key: name.clone(),
                version: number,
                alg: kid.alg,
                created,
            };
            let device = meta.device().map(|id| self.backends.holder(&id));
            let secret = self.secret(name, &version.public, device, sealed);
            record.secrets.insert(number, Arc::new(secret));
        }
        record.versions.push(VersionRow {
            version: Arc::new(version),
            born,
            sealed_sha256: match self.trust {
                Trust::Sums => sum,
                Trust::Records => found_sha256,
            },
        });
        Ok(())
    }
}

/// What a row and the header of its sealed record both state.
struct Stated {
    created: Timestamp,
    public: PublicKey,
}

impl Stated {
    /// `None` when the bytes are no public key of the algorithm.
    fn of(kid: &Kid, public: &[u8], created: Timestamp) -> Option<Self> {
        let public = PublicKey::from_raw(kid.alg, public)?;
        Some(Self { created, public })
    }

    fn is(&self, public: &[u8], created: Timestamp) -> bool {
        self.public.raw() == public && self.created == created
    }
}
