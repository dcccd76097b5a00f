//! The keys of the audit log: the first is in the `store` row, each later one in a row of `log_keys`, with the statement that
//! both it and its predecessor have signed. A row without a birth is its own outbox: it holds the leaf to append.

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
use super::{KeyStore, StoreError};
use crate::keys::{PublicKey, SecretKey};

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
    /// The bytes of the later keys that the store's MAC covers.
    digest: Vec<u8>,
}

impl LogIdentity {
    /// The identity of a log that still has its first key.
    pub(super) fn new(origin: String, key: SecretKey, created: Timestamp) -> Self {
        let public = public_of(&key);
        Self {
            origin,
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

    /// The public keys with their statements; fails when the origin is not a valid note name or a statement does not verify.
    pub fn chain(&self) -> Result<KeyChain, String> {
        let named = |e| format!("the origin of the audit log cannot name a note key: {e}");
        let first = VerifierKey::ed25519(&self.origin, &self.keys[0].public).map_err(named)?;
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

    /// The bytes that the store's MAC covers besides the first key; empty without later keys, so that older stores verify.
    pub(super) fn digest(&self) -> &[u8] {
        &self.digest
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
        let verifier = VerifierKey::ed25519(origin, &key.public)
            .map_err(|e| format!("the origin of the audit log cannot name a note key: {e}"))?;
        Ok(Self {
            verifier,
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
        Ok(self.key.sign(text).swap_remove(0).signature.0)
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
    /// Generates and seals the next key of the audit log and has both keys sign its statement; nothing is stored yet. `size` is
    /// the number of leaves that are durable.
    pub fn next_log_key(&self, size: u64, now: Timestamp) -> Result<NewLogKey, StoreError> {
        let last = self.log.newest();
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
        let statement = cross_sign(&self.log.origin, last, &key, size).map_err(StoreError::Db)?;
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
        let before = self.log.clone();
        let (key, sealed) = (new.key, new.sealed);
        // In memory first, because the MAC in the transaction covers it; restored if the write fails.
        self.log.push(key.clone(), &sealed);
        let version_before = self.version.cast_signed();
        let statement = key.statement.as_deref().unwrap_or_default();
        let sealer = self.sealer.clone();
        let done = self.write_version(|tx| {
            tx.execute(
                "INSERT INTO log_keys
                   (number, created, sealed, statement, leaf, log_size, version_before, birth)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, NULL)",
                &[
                    i64::from(key.number).into(),
                    key.created.0.cast_signed().into(),
                    sealed[..].into(),
                    statement.into(),
                    leaf.into(),
                    log_size.cast_signed().into(),
                    version_before.into(),
                ],
            )?;
            ops::insert(tx, &sealer, op)
        });
        if done.is_err() {
            self.log = before;
        }
        done
    }

    /// The log key whose leaf is not known to be durable; at most the newest one.
    pub fn pending_log_key(&mut self) -> Result<Option<PendingLogKey>, StoreError> {
        let last = self.log.newest();
        if last.number == 1 || last.birth.is_some() {
            return Ok(None);
        }
        let newest = last.number;
        self.db.read(|tx| {
            let sql = "SELECT leaf, log_size, version_before FROM log_keys WHERE number = ?1";
            let rows = tx.query(sql, &[i64::from(newest).into()])?;
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
        let sealer = self.sealer.clone();
        self.write_shown(|tx| {
            let born: [Value; 2] = [birth.cast_signed().into(), i64::from(number).into()];
            tx.execute("UPDATE log_keys SET birth = ?1 WHERE number = ?2", &born)?;
            ops::answer(tx, &sealer, op, answer)
        })?;
        if let Some(key) = self.log.keys.iter_mut().find(|k| k.number == number) {
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

/// Loads the later keys and appends them to `log`.
pub(super) fn load(
    tx: &mut dyn Statements,
    sealer: &Sealer,
    log: &mut LogIdentity,
) -> Result<(), StoreError> {
    let sql = "SELECT number, created, sealed, statement, birth FROM log_keys ORDER BY number";
    for row in tx.query(sql, &[])? {
        let (number, created) = (number(&row, 0)?, Timestamp(unsigned(&row, 1)?));
        if number != log.newest().number + 1 {
            return Err(StoreError::Tampered("the keys of the audit log".into()));
        }
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
    Ok(())
}
