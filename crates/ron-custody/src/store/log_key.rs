//! The keys of the audit logs, of which each node has one. The first key is in the `store` row, or in a row of `logs` for further
//! nodes, each later one in a row of `log_keys`, with the statement that both it and its predecessor have signed. A row without a
//! birth is its own outbox: it holds the leaf to append.

use std::sync::Arc;

use ron_crypto::hash::{hkdf_sha256, sha256};
use ron_crypto::secret::Secret32;
use ron_kernel::{Random, SharedClock};
use ron_proto::values::{Alg, Timestamp};
use ron_service::records::{Statements, Value};
use ron_tlog::note::{NoteSigner, SignFailed, VerifierKey};
use ron_tlog::rotation::{KeyChain, Rotation};
use ron_tlog::{Cosigner, CosignerKey};

use super::db::{number, optional, unsigned};
use super::ops::{self, OpName, OpRow};
use super::seal::{RecordName, Sealer};
use super::write::TRIES;
use super::{KeyStore, StoreError};
use crate::keys::{Input, PublicKey, SecretKey};

/// Name under which the keys are sealed; not a key name, so it cannot collide.
pub const LOG_KEY_NAME: &str = "ron-kms/log-key";

/// HKDF label: separates the second key from every other key derived from the log key.
const SECOND_KEY: &[u8] = b"ron-kms/v1/log-key/ml-dsa-44";

/// One key of the audit log.
#[derive(Clone)]
pub struct LogKey {
    /// From 1.
    pub number: u32,
    /// When it was made.
    pub created: Timestamp,
    pub secret: Arc<SecretKey>,
    pub public: [u8; 32],
    /// The statement by which its predecessor vouches for it; the first key has none.
    pub statement: Option<Arc<str>>,
    /// Index of the leaf that records it; `None` for the first, and while the leaf is not known to be durable.
    pub birth: Option<u64>,
}

/// Name and signing keys of the audit log.
#[derive(Clone)]
pub struct LogIdentity {
    /// Origin line of its checkpoints.
    pub origin: String,
    /// Oldest first; never empty.
    pub keys: Vec<LogKey>,
    /// Of the sealed record of the first key.
    first_sha256: [u8; 32],
    /// What the store's MAC covers of the later keys; empty without any, so that older stores verify.
    digest: Vec<u8>,
}

impl LogIdentity {
    /// The identity of a log that still has its first key.
    pub(super) fn new(origin: String, key: SecretKey, created: Timestamp, sealed: &[u8]) -> Self {
        let public = public_of(&key);
        Self {
            origin,
            first_sha256: sha256(sealed),
            keys: vec![LogKey {
                number: 1,
                created,
                secret: Arc::new(key),
                public,
                statement: None,
                birth: None,
            }],
            digest: Vec::new(),
        }
    }

    /// The key that signs now.
    pub fn newest(&self) -> &LogKey {
        &self.keys[self.keys.len() - 1]
    }

    /// The verifier key of the key that signs now; fails when the origin is not a valid note name.
    pub fn verifier(&self) -> Result<VerifierKey, String> {
        verifier(&self.origin, &self.newest().public)
    }

    /// The public keys with their statements; fails when the origin is not a valid note name or a statement does not verify.
    pub fn chain(&self) -> Result<KeyChain, String> {
        let first = verifier(&self.origin, &self.keys[0].public)?;
        let mut chain = KeyChain::new(first);
        for key in &self.keys[1..] {
            chain
                .push(key.statement.as_deref().unwrap_or_default())
                .map_err(|e| e.to_string())?;
            if chain.newest().public() != &key.public {
                return Err(format!(
                    "key {} of the audit log is not the one of its statement",
                    key.number
                ));
            }
        }
        Ok(chain)
    }

    /// Adds the bytes that the store's MAC covers.
    pub(super) fn cover(&self, all: &mut Vec<u8>) {
        all.extend_from_slice(&self.first_sha256);
        all.extend_from_slice(self.origin.as_bytes());
        all.extend_from_slice(&self.digest);
    }

    fn push(&mut self, key: LogKey, sealed: &[u8]) {
        if self.digest.is_empty() {
            self.digest.extend_from_slice(b"\nlog-keys\n");
        }
        self.digest.extend_from_slice(&key.number.to_be_bytes());
        self.digest.extend_from_slice(&sha256(sealed));
        let statement = key.statement.as_deref().unwrap_or_default();
        self.digest.extend_from_slice(&sha256(statement.as_bytes()));
        self.keys.push(key);
    }
}

fn verifier(origin: &str, public: &[u8; 32]) -> Result<VerifierKey, String> {
    VerifierKey::ed25519(origin, public)
        .map_err(|e| format!("the origin of the audit log cannot name a note key: {e}"))
}

fn public_of(key: &SecretKey) -> [u8; 32] {
    let PublicKey::Ed25519(public) = key.public() else {
        unreachable!("a log key is made and sealed as Ed25519")
    };
    public
}

/// The name that a key's sealed record is bound to.
pub(super) fn record_name(number: u32, created: Timestamp) -> RecordName {
    RecordName {
        key: LOG_KEY_NAME.into(),
        version: number,
        alg: Alg::Ed25519,
        created,
    }
}

/// Signs checkpoints with a log key that is sealed in the store.
pub struct LogSigner {
    verifier: VerifierKey,
    key: Arc<SecretKey>,
}

impl LogSigner {
    /// The signer with one key of the log; fails when the origin is not a valid note name.
    pub fn new(origin: &str, key: &LogKey) -> Result<Self, String> {
        Ok(Self {
            verifier: verifier(origin, &key.public)?,
            key: key.secret.clone(),
        })
    }

    /// The key that verifies these signatures.
    pub fn verifier(&self) -> &VerifierKey {
        &self.verifier
    }
}

impl NoteSigner for LogSigner {
    fn name(&self) -> &str {
        self.verifier.name()
    }

    fn key_id(&self) -> u32 {
        self.verifier.key_id()
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, SignFailed> {
        // An Ed25519 key makes exactly one signature.
        let mut signatures = self.key.sign(Input::Message(text), None);
        Ok(signatures.swap_remove(0).signature.0)
    }
}

/// Signs checkpoints a second time with ML-DSA-44 (`audit.ml_dsa`). Its key is derived from the sealed log key, so it is backed up,
/// sealed and rotated with it. The public keys do not reveal the relation.
pub struct SecondSigner {
    cosigner: Cosigner,
    clock: SharedClock,
}

impl SecondSigner {
    /// The second signer that belongs to one key of the log.
    pub fn new(origin: &str, key: &LogKey, clock: SharedClock) -> Result<Self, String> {
        let cosigner = second_key(origin, key)?;
        Ok(Self { cosigner, clock })
    }

    /// The key that verifies the second signatures, whether `audit.ml_dsa` is on or not.
    pub fn verifier_of(origin: &str, key: &LogKey) -> Result<CosignerKey, String> {
        second_key(origin, key).map(|second| second.verifier().clone())
    }
}

fn second_key(origin: &str, key: &LogKey) -> Result<Cosigner, String> {
    let SecretKey::Ed25519(first) = &*key.secret else {
        return Err("the log key is not an Ed25519 key".into());
    };
    let mut seed = Secret32::zeroed();
    hkdf_sha256(b"", first.seed().expose(), SECOND_KEY, seed.expose_mut());
    Cosigner::ml_dsa_44(origin, &seed).map_err(|e| e.to_string())
}

impl NoteSigner for SecondSigner {
    fn name(&self) -> &str {
        self.cosigner.verifier().name()
    }

    fn key_id(&self) -> u32 {
        self.cosigner.verifier().key_id()
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, SignFailed> {
        let text = std::str::from_utf8(text).map_err(|e| SignFailed(e.to_string()))?;
        let time_s = (self.clock.unix_ms() / 1000).max(1);
        let line = self.cosigner.cosign(text, time_s);
        line.map(|line| line.signature)
            .ok_or_else(|| SignFailed("the text is no checkpoint".into()))
    }
}

/// A log key that is about to be made.
pub struct NewLogKey {
    key: LogKey,
    sealed: Vec<u8>,
    /// The statement about this key, signed by it and by its predecessor.
    pub statement: Arc<str>,
}

impl NewLogKey {
    pub fn number(&self) -> u32 {
        self.key.number
    }

    pub fn public(&self) -> &[u8; 32] {
        &self.key.public
    }
}

/// A log key whose leaf is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingLogKey {
    pub number: u32,
    /// The leaf, without its counters.
    pub leaf: Vec<u8>,
    /// The log had at least this many leaves before the change.
    pub log_size: u64,
    /// Store version before the change.
    pub version_before: u64,
}

impl KeyStore {
    /// The log of this name among those of all nodes.
    pub(super) fn place_of(&self, origin: &str) -> Option<usize> {
        self.logs.iter().position(|log| log.origin == origin)
    }

    /// Makes the log `origin`, which the store has, this node's.
    pub(super) fn take_log(&mut self, origin: String) -> Result<(), StoreError> {
        let place = self.place_of(&origin);
        self.own = place.ok_or_else(|| StoreError::Origin {
            configured: origin,
            stored: self.logs[0].origin.clone(),
        })?;
        Ok(())
    }

    /// Makes the log `origin` this node's, with a key of its own if it is a new one.
    pub(super) fn join(&mut self, origin: &str, now: Timestamp) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            if let Some(own) = self.place_of(origin) {
                self.own = own;
                return Ok(());
            }
            match self.add_log(origin, now) {
                Err(StoreError::Moved) => self.refresh()?,
                done => return done,
            };
        }
        Err(StoreError::Moved)
    }

    /// Begins a log of this name, which the store must not have, in a store that was restored from a backup: it must not go on with
    /// the log of the store that the backup was taken of.
    pub fn begin_log(&mut self, origin: &str, now: Timestamp) -> Result<(), StoreError> {
        if self.place_of(origin).is_some() {
            return Err(StoreError::Occupied("it has an audit log of this name"));
        }
        self.join(origin, now)
    }

    fn add_log(&mut self, origin: &str, now: Timestamp) -> Result<(), StoreError> {
        let random: &dyn Random = self.random.as_ref();
        let (key, secret) = SecretKey::generate(Alg::Ed25519, random);
        let name = record_name(1, now);
        let sealed = self.sealer.seal(&name, &key.public(), &secret, random);
        let before = (self.logs.clone(), self.own);
        // In the order in which they are read: the MAC covers it.
        let further = &self.logs[1..];
        let own = 1 + further.partition_point(|log| log.origin.as_str() < origin);
        let log = LogIdentity::new(origin.to_owned(), key, now, &sealed);
        self.logs.insert(own, log);
        self.own = own;
        let done = self.write_version(|tx| {
            tx.execute(
                "INSERT INTO logs (origin, created, sealed) VALUES (?1, ?2, ?3)",
                &[origin.into(), now.0.cast_signed().into(), sealed[..].into()],
            )?;
            Ok(())
        });
        if done.is_err() {
            (self.logs, self.own) = before;
        }
        done
    }

    /// Generates and seals the next key of the audit log and has both keys sign its statement; nothing is stored yet. `size` is
    /// the number of leaves that are durable.
    pub fn next_log_key(&self, size: u64, now: Timestamp) -> Result<NewLogKey, StoreError> {
        let last = self.log().newest();
        let number = last.number + 1;
        // The wall clock may go back; the times of statements must not.
        let created = Timestamp(now.0.max(last.created.0));
        let random: &dyn Random = self.random.as_ref();
        let (secret, raw) = SecretKey::generate(Alg::Ed25519, random);
        let public = secret.public();
        let name = record_name(number, created);
        let sealed = self.sealer.seal(&name, &public, &raw, random);
        let mut key = LogKey {
            number,
            created,
            public: public_of(&secret),
            secret: Arc::new(secret),
            statement: None,
            birth: None,
        };
        let statement = cross_sign(&self.log().origin, last, &key, size).map_err(StoreError::Db)?;
        key.statement = Some(statement.clone());
        Ok(NewLogKey {
            key,
            sealed,
            statement,
        })
    }

    /// Commits `new` with its operation id and its leaf. From then on it signs checkpoints beside its predecessor.
    pub fn commit_log_key(
        &mut self,
        new: NewLogKey,
        op: &OpRow,
        leaf: &[u8],
        log_size: u64,
    ) -> Result<(), StoreError> {
        // Kept to undo the change in memory if the write fails.
        let own = self.own;
        let before = self.logs[own].clone();
        let (key, sealed) = (new.key, new.sealed);
        // In memory first, because the MAC in the transaction covers it; restored if the write fails.
        self.logs[own].push(key.clone(), &sealed);
        let version_before = self.version.cast_signed();
        let statement = key.statement.as_deref().unwrap_or_default();
        let sealer = self.sealer.clone();
        let done = self.write_version(|tx| {
            tx.execute(
                "INSERT INTO log_keys
                   (log, number, created, sealed, statement, leaf, log_size, version_before, birth)
                 VALUES (?8, ?1, ?2, ?3, ?4, ?5, ?6, ?7, NULL)",
                &[
                    i64::from(key.number).into(),
                    key.created.0.cast_signed().into(),
                    sealed[..].into(),
                    statement.into(),
                    leaf.into(),
                    log_size.cast_signed().into(),
                    version_before.into(),
                    before.origin.as_str().into(),
                ],
            )?;
            ops::insert(tx, &sealer, op)
        });
        if done.is_err() {
            self.logs[own] = before;
        }
        done
    }

    /// The log key whose leaf is not known to be durable; at most the newest one.
    pub fn pending_log_key(&mut self) -> Result<Option<PendingLogKey>, StoreError> {
        let (log, last) = (&self.logs[self.own].origin, self.logs[self.own].newest());
        if last.number == 1 || last.birth.is_some() {
            return Ok(None);
        }
        let newest = last.number;
        self.db.read(|tx| {
            let sql = "SELECT leaf, log_size, version_before FROM log_keys WHERE log = ?1 AND number = ?2";
            let rows = tx.query(sql, &[log.as_str().into(), i64::from(newest).into()])?;
            let row = rows.first();
            let row =
                row.ok_or_else(|| StoreError::Tampered("the keys of the audit log".into()))?;
            Ok(Some(PendingLogKey {
                number: newest,
                leaf: row.blob(0)?.to_vec(),
                log_size: unsigned(row, 1)?,
                version_before: unsigned(row, 2)?,
            }))
        })
    }

    /// Records that the leaf of log key `number` is durable at `birth`, and `answer` for its operation id.
    pub fn complete_log_key(
        &mut self,
        number: u32,
        birth: u64,
        op: OpName<'_>,
        answer: &str,
    ) -> Result<(), StoreError> {
        let (sealer, log) = (self.sealer.clone(), self.log().origin.clone());
        self.write_shown(|tx| {
            let born: [Value; 3] = [
                birth.cast_signed().into(),
                log.as_str().into(),
                i64::from(number).into(),
            ];
            let sql = "UPDATE log_keys SET birth = ?1 WHERE log = ?2 AND number = ?3";
            tx.execute(sql, &born)?;
            ops::answer(tx, &sealer, op, answer)
        })?;
        let own = &mut self.logs[self.own];
        if let Some(key) = own.keys.iter_mut().find(|k| k.number == number) {
            key.birth = Some(birth);
        }
        Ok(())
    }
}

/// The statement about `new`, signed by both keys.
fn cross_sign(origin: &str, old: &LogKey, new: &LogKey, size: u64) -> Result<Arc<str>, String> {
    let (by_old, by_new) = (LogSigner::new(origin, old)?, LogSigner::new(origin, new)?);
    let second = SecondSigner::verifier_of(origin, new)?.to_string();
    let rotation = Rotation {
        number: new.number,
        size,
        time_ms: new.created.0,
        old: by_old.verifier().clone(),
        new: by_new.verifier().clone(),
        second: Some(sha256(second.as_bytes())),
    };
    debug_assert_eq!(by_old.name(), by_new.name());
    let note = rotation.sign(&by_old, &by_new).map_err(|e| e.to_string())?;
    Ok(note.into())
}

/// Loads the logs of all nodes, the one in the row `store` first: its origin, and time and sealed record of its first key.
pub(super) fn load(
    tx: &mut dyn Statements,
    sealer: &Sealer,
    (origin, created, sealed): (&str, Timestamp, &[u8]),
) -> Result<Vec<LogIdentity>, StoreError> {
    let first = |origin: &str, created: Timestamp, sealed: &[u8]| {
        let (key, _) = sealer.open(&record_name(1, created), sealed)?;
        let log = LogIdentity::new(origin.to_owned(), key, created, sealed);
        Ok::<_, StoreError>(log)
    };
    let mut logs = vec![first(origin, created, sealed)?];
    for row in tx.query(
        "SELECT origin, created, sealed FROM logs ORDER BY origin",
        &[],
    )? {
        logs.push(first(
            row.text(0)?,
            Timestamp(unsigned(&row, 1)?),
            row.blob(2)?,
        )?);
    }
    let sql =
        "SELECT number, created, sealed, statement, birth, log FROM log_keys ORDER BY log, number";
    for row in tx.query(sql, &[])? {
        let (number, created) = (number(&row, 0)?, Timestamp(unsigned(&row, 1)?));
        let origin = row.text(5)?;
        let log = logs.iter_mut().find(|log| log.origin == origin);
        let log = log.filter(|log| number == log.newest().number + 1);
        let log = log.ok_or_else(|| StoreError::Tampered("the keys of the audit log".into()))?;
        let sealed = row.blob(2)?;
        let (secret, _) = sealer.open(&record_name(number, created), sealed)?;
        let key = LogKey {
            number,
            created,
            public: public_of(&secret),
            secret: Arc::new(secret),
            statement: Some(row.text(3)?.into()),
            birth: optional(&row, 4)?,
        };
        log.push(key, sealed);
    }
    Ok(logs)
}
