//! The key store: sealed private keys, their metadata and the whole-store version in one database (a SQLite file, or an
//! engine behind `ron_service::records`), changed in one transaction and authenticated as a whole.
//!
//! ```text
//! store     one row: store id, salt, store version, origin and sealed key of the audit log,
//!           check of the seal key, MAC over everything below and the version
//! keys      name, metadata as canonical JSON, MAC of it, store version of its last change
//! versions  key name, number, sealed record, its hash, public key, log and index of the leaf that records its making and a MAC of it
//! ops       operation ids of changes with their answers, kept 24 hours, each with a MAC
//! logs      name and first key of the audit log of each further node; that of the first one is in `store`
//! outbox    of each node: leaf of a change that is committed here but not yet known to be in its audit log
//! log_keys  later keys of audit logs: number, sealed record, statement of both keys, its leaf and the leaf's index
//! issuer_policy  the newest issuer policy: version, document, signature, its leaf, the log and the leaf's index
//! ```
//!
//! **Invariants.** A version without a leaf index is invisible to everyone until its leaf is
//! durable. One thread writes, and a change is refused when another node has changed the store since
//! it was read. After a failed write nothing more is written. In a file deleted data is overwritten,
//! and after a destruction the file is rewritten (`erase.rs`).

mod answers;
mod backup;
mod change;
mod content;
mod db;
mod erase;
mod error;
mod log_key;
mod meta;
mod ops;
mod part;
mod policy;
mod record;
mod schema;
mod seal;
mod source;
mod transit;
mod uses;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_crypto::ct;
use ron_crypto::hash::sha256;
use ron_crypto::secret::Secret32;
use ron_files::Dir;
use ron_kernel::{DiskWatch, SharedRandom};
use ron_proto::values::{Alg, Alias, Kid, Tenant, Timestamp};
use ron_service::Store;
use ron_service::records::{RecordStore, Value};

use crate::Refusal;
use crate::backend::Backends;
use crate::index::{Key, KeyIndex};
use crate::keys::SecretKey;
use crate::keys::note::Checkpoint;
use content::{Content, StoreRow};
use db::Db;
use log_key::record_name as log_key_name;
use part::{NAMED_MAX, Part};
use policy::StoredPolicy;
use record::Record;
use seal::{Sealer, Trust};
use transit::Opening;

pub use answers::AnswerSealer;
pub use backup::{Backup, BackupError, Facts};
pub use change::{Change, Erase, MadeKey, Order, PlanError};
pub use error::StoreError;
pub use log_key::{
    LOG_KEY_NAME, LogIdentity, LogKey, LogSigner, NewLogKey, PendingLogKey, SecondSigner,
};
pub use meta::Meta;
pub use ops::{OpName, OpRecord, OpRow, OpsCheck};
pub use policy::PendingPolicy;
pub use record::NewVersion;
pub use schema::MIGRATIONS;
pub use seal::SealError;
pub use source::SealSource;
pub use transit::{
    Peeked, Rows, fill, forget, immovable_in, is_unfinished, peek, records_in, remove_from,
};
pub use write::Pending;

/// Name of the database inside the data directory.
pub const FILE_NAME: &str = "keys.db";

/// Rows that are read at once, so that not all are in memory a second time.
const PAGE: i64 = 1_000;

/// How long the operation ids of changes are kept, in milliseconds.
pub const OP_ID_MS: u64 = 24 * 3600 * 1000;

/// Where the store is, and what protects it.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// `None`: a database in memory.
    pub home: Option<Dir>,
    pub seal: SealSource,
    /// Name of this node's audit log; `None` keeps the stored one, or makes one with a new store. In an engine each node has
    /// another name, and a new name is a new node.
    pub origin: Option<String>,
}

/// The open store; owned by one thread.
pub struct KeyStore {
    db: Db,
    sealer: Arc<Sealer>,
    backends: Backends,
    random: SharedRandom,
    records: BTreeMap<Kid, Record>,
    /// Keys whose stored metadata is damaged, with their digests: they are out of use and stay in the set.
    damaged: BTreeMap<Kid, [u8; 32]>,
    version: u64,
    /// What was read last does not match the MAC of the store.
    unchecked: bool,
    /// That of the row `store` first, those of further nodes by their names.
    logs: Vec<LogIdentity>,
    /// Which of them is this node's.
    own: usize,
    /// The device's answer for the change that is planned next.
    made: Option<(Order, Result<MadeKey, Refusal>)>,
    /// The TPM counter's value, or the value it is about to get.
    tpm_counter: Option<u64>,
    /// The newest issuer policy.
    policy: Option<StoredPolicy>,
    /// The last policy before it whose leaf is durable: in force until the newest one is.
    policy_before: Option<StoredPolicy>,
    /// Opened by a migration, which reads keys that no node may use.
    is_moving: bool,
}

impl KeyStore {
    /// Has writes watched from now on, so that a disk that hangs is noticed.
    pub fn watch_disk(&mut self, watch: DiskWatch) {
        self.db.watch_disk(watch);
    }

    /// Opens the store, or makes a new one. Every sealed record is compared with its hash and every
    /// MAC is checked before anything is served, but for those of operations ([`KeyStore::check_ops`]); records are opened when they are first used. A damaged record takes only its own key or version out of use; a
    /// set of records that is not the one written refuses the store.
    pub fn open(
        settings: &StoreSettings,
        backends: Backends,
        random: SharedRandom,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let file = match &settings.home {
            // Rows carry a hash or a MAC each, and a destroyed key must be gone from one place.
            Some(home) => Store::open_without_copies(home, FILE_NAME, MIGRATIONS),
            None => Store::memory(MIGRATIONS),
        };
        let file = file?;
        erase::prepare(&file)?;
        Self::open_db(Db::of_file(file), settings, backends, random, now)
    }

    /// As [`KeyStore::open`], in an engine, which has the tables of [`MIGRATIONS`]. A destroyed secret is replaced in its row; what the
    /// engine keeps of earlier rows is not overwritten.
    pub fn open_in(
        records: Box<dyn RecordStore>,
        settings: &StoreSettings,
        backends: Backends,
        random: SharedRandom,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        if settings.origin.is_none() {
            return Err(StoreError::NoOrigin);
        }
        Self::open_db(Db::Engine(records), settings, backends, random, now)
    }

    fn open_db(
        mut db: Db,
        settings: &StoreSettings,
        backends: Backends,
        random: SharedRandom,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        match db.read(StoreRow::find)? {
            None => Self::make(db, settings, backends, random, now),
            Some(row) => Self::load(db, row, settings, (backends, random), Opening::Node(now)),
        }
    }

    fn make(
        db: Db,
        settings: &StoreSettings,
        backends: Backends,
        random: SharedRandom,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut store_id = [0_u8; 16];
        let mut salt = [0_u8; 16];
        random.fill(&mut store_id);
        random.fill(&mut salt);
        let seal_key = source::seal_key(settings, &salt, true, random.as_ref(), &backends)?;
        let sealer = Arc::new(Sealer::new(&seal_key, store_id));
        let (key, secret) = SecretKey::generate(Alg::Ed25519, random.as_ref());
        let public = key.public();
        let name = log_key_name(1, now);
        let sealed = sealer.seal(&name, &public, &secret, random.as_ref());
        let origin = settings.origin.clone().unwrap_or_else(|| {
            format!("ron-kms.local/{}", hex::encode(&sha256(public.raw())[..4]))
        });
        let log = LogIdentity::new(origin, key, now, &sealed);
        let mut store = Self {
            db,
            sealer,
            backends,
            random,
            records: BTreeMap::new(),
            damaged: BTreeMap::new(),
            version: 0,
            unchecked: false,
            logs: vec![log],
            own: 0,
            made: None,
            tpm_counter: None,
            policy: None,
            policy_before: None,
            is_moving: false,
        };
        let (mac, check) = (store.store_mac(0), seal_check(&store.sealer, &salt));
        let origin = store.log().origin.clone();
        let mut made = 0;
        store.db.write(|tx| {
            made = tx.execute(
                "INSERT INTO store (id, store_id, salt, version, seal_check, log_origin, log_key,
                   log_key_created, mac) VALUES (1, ?1, ?2, 0, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (id) DO NOTHING",
                &[
                    store_id[..].into(),
                    salt[..].into(),
                    check[..].into(),
                    origin.as_str().into(),
                    sealed[..].into(),
                    now.0.cast_signed().into(),
                    mac[..].into(),
                ],
            )?;
            Ok(())
        })?;
        if made == 0 {
            // Another node was first, and what it has made is the store.
            let row = store.db.read(StoreRow::find)?;
            let row = row.ok_or_else(|| StoreError::Tampered("its first row is gone".into()))?;
            let parts = (store.backends, store.random);
            return Self::load(store.db, row, settings, parts, Opening::Node(now));
        }
        Ok(store)
    }

    fn load(
        db: Db,
        row: StoreRow,
        settings: &StoreSettings,
        (backends, random): (Backends, SharedRandom),
        opening: Opening,
    ) -> Result<Self, StoreError> {
        let is_moving = matches!(opening, Opening::Migration);
        transit::refuse(&row, is_moving)?;
        let seal_key = source::seal_key(settings, &row.salt, false, random.as_ref(), &backends)?;
        let sealer = Arc::new(Sealer::new(&seal_key, row.store_id));
        // First, because with a wrong key every record would look tampered with.
        if !ct::eq(&seal_check(&sealer, &row.salt), &row.seal_check) {
            return Err(StoreError::WrongSealKey);
        }
        let configured = settings.origin.clone();
        let own = configured.unwrap_or_else(|| row.log_origin.clone());
        let (log_key, _) = sealer.open(&log_key_name(1, row.log_key_created), &row.log_key)?;
        let mut store = Self {
            db,
            sealer,
            backends,
            random,
            records: BTreeMap::new(),
            damaged: BTreeMap::new(),
            version: row.version,
            unchecked: true,
            logs: vec![LogIdentity::new(
                row.log_origin,
                log_key,
                row.log_key_created,
                &row.log_key,
            )],
            own: 0,
            made: None,
            tpm_counter: None,
            policy: None,
            policy_before: None,
            is_moving,
        };
        if !is_moving && store.db.file().is_some() && store.pending()?.is_some() {
            // The interrupted change may be a destruction that crashed before the rewrite.
            store.rewrite_file()?;
        }
        store.read_all(None)?;
        match opening {
            // A file that came back from an engine has the logs of other nodes too, but a new name is a mistake.
            Opening::Node(now) if store.db.is_shared() => store.join(&own, now)?,
            _ => store.take_log(own)?,
        }
        Ok(store)
    }

    /// Reads the store again when another node has changed it, or when it is not known what became of a change of this one. True
    /// when it was another version. After an error nothing of this store may be used until this has succeeded.
    pub fn refresh(&mut self) -> Result<bool, StoreError> {
        self.db.settle()?;
        self.read_all((!self.unchecked).then_some(self.version))
    }

    /// Reads what is not known of the version `known`, and compares the store that comes of it with its MAC, unless it is of this
    /// version. False: it is.
    fn read_all(&mut self, known: Option<u64>) -> Result<bool, StoreError> {
        // Of records that differ from their sums either may be what was written.
        let all = [Part::All(Trust::Sums), Part::All(Trust::Records)];
        // The MAC tells when a change is missing in what was read; then everything is read.
        let newest = known.and_then(|version| self.newest(version));
        let is_moving = self.is_moving;
        for part in newest.into_iter().chain(all) {
            let (sealer, backends) = (&self.sealer, &self.backends);
            let read = self.db.read(|tx| {
                let row = StoreRow::find(tx)?;
                let row =
                    row.ok_or_else(|| StoreError::Tampered("its first row is gone".into()))?;
                transit::refuse(&row, is_moving)?;
                if known == Some(row.version) {
                    return Ok(None);
                }
                Content::read(tx, row, sealer, backends, &part).map(Some)
            });
            let is_part = matches!(part, Part::Since(..));
            let content = match read {
                Ok(Some(content)) => content,
                Ok(None) => return Ok(false),
                // A version of a key that was not read belongs to no key.
                Err(StoreError::Tampered(_)) if is_part => continue,
                Err(error) => return Err(error),
            };
            let differs = content.loaded.differs;
            if !(is_part && differs) && self.adopt(content, &part) {
                return Ok(true);
            }
            if !is_part && !differs {
                break;
            }
        }
        Err(StoreError::Tampered(
            "its keys do not match the store version it states (rows were added, removed or rolled back)".into(),
        ))
    }

    /// What may differ from the version that was read; `None` when that is not known.
    fn newest(&self, version: u64) -> Option<Part> {
        // The MAC does not cover the leaf of a version, and a program of an earlier format completes a change without a
        // mark. So what this node has without a leaf is read in any case.
        let records = self.records.iter();
        let unborn = records.filter(|(_, record)| record.is_unborn());
        let named: Vec<Kid> = unborn.map(|(kid, _)| kid.clone()).collect();
        // Each node has one change under way, so that more are rare.
        let is_part = self.damaged.is_empty() && named.len() <= NAMED_MAX;
        is_part.then_some(Part::Since(version, named))
    }

    /// Takes what was read; false when the store does not match its MAC then.
    fn adopt(&mut self, content: Content, part: &Part) -> bool {
        let mut loaded = content.loaded;
        for (kid, record) in &mut loaded.records {
            if let Some(old) = self.records.get(kid) {
                record.keep_secrets(old);
            }
        }
        match part {
            Part::All(_) => (self.records, self.damaged) = (loaded.records, loaded.damaged),
            Part::Since(..) => self.records.extend(loaded.records),
        }
        self.version = content.row.version;
        let own = self.log().origin.clone();
        self.logs = content.logs;
        // A log is never removed: the MAC covers all of them.
        self.own = self.place_of(&own).unwrap_or(0);
        self.tpm_counter = content.row.tpm_counter;
        self.replace_policy(content.policy);
        self.unchecked = !ct::eq(&self.store_mac(self.version), &content.row.mac);
        !self.unchecked
    }

    /// Removes what was deleted from the file; of an engine it stays wherever that keeps it.
    fn rewrite_file(&mut self) -> Result<(), StoreError> {
        match self.db.file() {
            Some(file) => erase::rewrite(file),
            None => Ok(()),
        }
    }

    /// Whether the keys are in an engine, where other nodes may change them.
    pub fn is_shared(&self) -> bool {
        self.db.is_shared()
    }

    /// The whole-store version: incremented by every change of a key.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The MAC key of the journal of answers, derived from the seal key.
    pub fn replay_key(&self) -> Secret32 {
        Secret32::new(self.sealer.mac("replay journal", b""))
    }

    /// The MAC key of the counters beside the audit log, derived from the seal key.
    pub fn counters_key(&self) -> Secret32 {
        Secret32::new(self.sealer.mac("audit counters", b""))
    }

    /// The stored value of the TPM counter; `None` if starts were never counted.
    pub fn tpm_counter(&self) -> Option<u64> {
        self.tpm_counter
    }

    /// Stores the value that the counter is about to get, durably.
    pub fn set_tpm_counter(&mut self, counter: u64) -> Result<(), StoreError> {
        if self.db.is_shared() {
            // The version stays, so that another node would not read the MAC that covers the counter.
            let why = "starts are counted for keys in a file alone";
            return Err(StoreError::Db(why.to_owned()));
        }
        // In memory first, because the MAC covers it; restored if the write fails.
        let before = self.tpm_counter.replace(counter);
        let version = self.version;
        let mac = self.store_mac(version);
        let written = self.db.write(|tx| {
            let set: [Value; 3] = [
                counter.cast_signed().into(),
                mac[..].into(),
                version.cast_signed().into(),
            ];
            let sql = "UPDATE store SET tpm_counter = ?1, mac = ?2 WHERE version = ?3";
            match tx.execute(sql, &set)? {
                0 => Err(StoreError::Moved),
                _ => Ok(()),
            }
        });
        if written.is_err() {
            self.tpm_counter = before;
        }
        written
    }

    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    /// Name and keys of the audit log.
    pub fn log(&self) -> &LogIdentity {
        &self.logs[self.own]
    }

    /// The audit logs of the other nodes that have had these keys.
    pub fn peer_logs(&self) -> impl Iterator<Item = &LogIdentity> {
        let own = self.own;
        let others = self
            .logs
            .iter()
            .enumerate()
            .filter(move |(at, _)| *at != own);
        others.map(|(_, log)| log)
    }

    /// All keys as a snapshot: versions whose leaf is durable. Without the issuer policy, see [`KeyStore::policy_in_force`].
    pub fn index(&self) -> KeyIndex {
        let keys = self.records.iter().filter_map(|(kid, record)| {
            Some((kid.clone(), Arc::new(record.visible(kid, &self.backends)?)))
        });
        KeyIndex {
            gate: self.backends.gate().clone(),
            keys: keys.collect(),
            damaged: Arc::new(self.damaged.keys().cloned().collect()),
            policy: None,
            store_version: self.version,
            aliases: Arc::default(),
        }
        .with_aliases()
    }

    /// The key as snapshots show it now; `None` before the leaf of its first version is durable.
    pub fn key(&self, kid: &Kid) -> Option<Key> {
        self.records.get(kid)?.visible(kid, &self.backends)
    }

    /// Whether a version of the key was made whose leaf is not known to be durable.
    pub fn is_unfinished(&self, kid: &Kid) -> bool {
        self.records.get(kid).is_some_and(Record::is_unborn)
    }

    /// The metadata of a key as committed, which may be ahead of the snapshot.
    pub fn meta(&self, kid: &Kid) -> Option<&Meta> {
        Some(&self.records.get(kid)?.meta)
    }

    /// The key that an alias names, as committed.
    pub fn named(&self, tenant: &Tenant, alias: &Alias) -> Option<&Kid> {
        let mut named = self.records.iter().filter(|(kid, record)| {
            kid.tenant == *tenant && record.meta.labels.aliases.contains(alias)
        });
        named.next().map(|(kid, _)| kid)
    }

    /// The newest checkpoint that was remembered for a `note` key.
    pub fn note_head(&self, kid: &Kid) -> Option<Checkpoint> {
        let (size, root) = self.records.get(kid)?.meta.note.as_ref()?;
        let mut raw = [0_u8; 32];
        hex::decode_to_slice(root, &mut raw).ok()?;
        Some(Checkpoint {
            size: *size,
            root: raw,
        })
    }

    /// The keys whose metadata is damaged, as `key`, and the versions whose records are, as `key#vN`. Such a key is out of
    /// use. The public key of such a version is known, so it verifies; nothing is signed or decrypted with it.
    pub fn damaged(&self) -> Vec<String> {
        let versions = |(kid, record): (&Kid, &Record)| {
            let versions = record.versions.iter().map(|row| &row.version);
            let of = versions.filter(|version| version.damaged);
            of.map(|version| format!("{kid}#v{}", version.number))
                .collect::<Vec<_>>()
        };
        let keys = self.damaged.keys().map(ToString::to_string);
        keys.chain(self.records.iter().flat_map(versions)).collect()
    }

    /// Covers every key's MAC, the hash of every sealed record, every public key, the issuer policy and the version, so that neither a row nor the store version can be
    /// changed without the seal key. (A rollback of the whole file is detected by the audit log.)
    fn store_mac(&self, version: u64) -> [u8; 32] {
        let records = self
            .records
            .iter()
            .map(|(kid, record)| (kid, &record.digest));
        let keys: BTreeMap<_, _> = records.chain(&self.damaged).collect();
        let mut all = Vec::with_capacity(64 + keys.len() * 96);
        all.extend_from_slice(&version.to_be_bytes());
        let (first, further) = self.logs.split_first().expect("a store has a log");
        first.cover(&mut all);
        for (kid, digest) in keys {
            all.extend_from_slice(kid.to_string().as_bytes());
            all.extend_from_slice(digest);
        }
        if let Some(policy) = &self.policy {
            all.extend_from_slice(b"issuer policy");
            all.extend_from_slice(&policy.digest());
        }
        // Left out in stores that never counted, so that their MAC stays valid.
        if let Some(counter) = self.tpm_counter {
            all.extend_from_slice(b"tpm counter");
            all.extend_from_slice(&counter.to_be_bytes());
        }
        for log in further {
            all.extend_from_slice(b"\nlog of a node\n");
            log.cover(&mut all);
        }
        self.sealer.mac("store", &all)
    }
}

fn seal_check(sealer: &Sealer, salt: &[u8; 16]) -> [u8; 32] {
    sealer.mac("seal-check", salt)
}
