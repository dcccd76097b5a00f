//! Changes of the store. Each is one transaction: sealed record, metadata, version counter, MAC,
//! operation id and the leaf that still has to reach the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_crypto::secret::SecretBytes;
use ron_kernel::Deadline;
use ron_proto::kms::PayloadPolicy;
use ron_proto::values::{Kid, OpId, Tenant, Timestamp};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::seal::RecordName;
use super::{KeyStore, Meta, Record, StoreError, VersionRow, meta_bytes};
use crate::backend::{BackendKind, Custody, Held, local};
use crate::error::{Refusal, Why};
use crate::keys::PublicKey;
use crate::keys::note::Checkpoint;
use crate::replay::REPLAY_MS;

/// Longest time for a device to make a key.
const MAKE_WAIT: Duration = Duration::from_secs(2);

/// Who did what: the row that makes create and rotate idempotent.
#[derive(Clone, Debug)]
pub struct OpRow {
    /// Tenant of the caller.
    pub tenant: Tenant,
    /// The operation id.
    pub op_id: OpId,
    /// SHA-256 of the operation's name and canonical body.
    pub body: [u8; 32],
    /// When.
    pub now: Timestamp,
}

/// What the store knows of an operation id.
#[derive(Debug, PartialEq, Eq)]
pub struct SeenOp {
    /// SHA-256 of the operation's name and canonical body.
    pub body: [u8; 32],
    /// The answer as JSON, once its leaf was durable.
    pub answer: Option<String>,
}

/// A change whose leaf is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Tenant of the operation.
    pub tenant: Tenant,
    /// Its id.
    pub op_id: OpId,
    /// The key that was made or rotated.
    pub kid: Kid,
    /// The version that was made.
    pub number: u32,
    /// The leaf, without its counters.
    pub leaf: Vec<u8>,
    /// The log had at least this many leaves before.
    pub log_size: u64,
    /// Store version before the change.
    pub version_before: u64,
}

/// A key version that is about to be made.
pub struct NewVersion {
    /// The key.
    pub kid: Kid,
    /// The version's number.
    pub number: u32,
    /// Its public key.
    pub public: PublicKey,
    created: Timestamp,
    payload: Option<PayloadPolicy>,
    backend: BackendKind,
    secret: Custody,
    sealed: Vec<u8>,
}

impl KeyStore {
    /// Generates and seals the first version of a key in `backend`; nothing is stored yet. A
    /// refusal when that backend makes no keys of this algorithm, or is away.
    pub fn new_key(
        &self,
        kid: &Kid,
        backend: BackendKind,
        payload: PayloadPolicy,
        now: Timestamp,
    ) -> Result<NewVersion, Refusal> {
        self.generate(kid, backend, 1, Some(payload), now)
    }

    /// Generates and seals the next version of a key, in the backend that holds the key; nothing
    /// is stored yet.
    pub fn next_version(&self, kid: &Kid, now: Timestamp) -> Result<NewVersion, Refusal> {
        let record = self.records.get(kid);
        let record = record.ok_or_else(|| Refusal::new(Why::NotFound, "there is no such key"))?;
        let next = record.meta.head.checked_add(1);
        let next = next.ok_or_else(|| Refusal::new(Why::Unsupported, "no version is left"))?;
        self.generate(kid, record.backend(self.backends.local()), next, None, now)
    }

    fn generate(
        &self,
        kid: &Kid,
        backend: BackendKind,
        number: u32,
        payload: Option<PayloadPolicy>,
        now: Timestamp,
    ) -> Result<NewVersion, Refusal> {
        self.backends.check(backend, kid.alg)?;
        let (secret, public, raw) = if backend.is_local() {
            let (secret, raw) = local::make(kid.alg, self.random.as_ref()).ok_or_else(|| {
                Refusal::new(Why::Unsupported, "no backend makes keys of this algorithm")
            })?;
            let public = secret.public();
            (Custody::Local(secret), public, raw)
        } else {
            let held = self.make_held(kid, backend, number)?;
            let raw = SecretBytes::from_slice(&held.handle.0);
            let public = held.public.clone();
            (Custody::Held(held), public, raw)
        };
        let name = RecordName::of(kid, number, now);
        let sealed = self.sealer.seal(&name, &public, &raw, self.random.as_ref());
        Ok(NewVersion {
            kid: kid.clone(),
            number,
            public,
            created: now,
            payload,
            backend,
            secret,
            sealed,
        })
    }

    /// A key that is made inside a device.
    fn make_held(&self, kid: &Kid, backend: BackendKind, number: u32) -> Result<Held, Refusal> {
        let device = self.backends.holder(backend);
        let until = Deadline::within(MAKE_WAIT);
        let made = device.make(kid.alg, &format!("{kid}#v{number}"), until)?;
        Ok(Held {
            device,
            handle: made.handle,
            alg: kid.alg,
            public: made.public,
        })
    }

    /// Stores `new` with its operation id and its leaf. The version stays invisible until
    /// [`KeyStore::settle`].
    pub fn commit(
        &mut self,
        new: NewVersion,
        op: &OpRow,
        leaf: &[u8],
        log_size: u64,
    ) -> Result<(), StoreError> {
        let mut record = match (self.records.get(&new.kid), new.payload) {
            (Some(record), None) => record.clone(),
            (None, Some(payload)) => Record {
                meta: Meta {
                    created: new.created,
                    head: 0,
                    min_verify: 1,
                    backend: (!new.backend.is_local()).then(|| new.backend.as_str().to_owned()),
                    note: None,
                    payload,
                    uses: Vec::new(),
                },
                mac: [0; 32],
                versions: Vec::new(),
                secrets: BTreeMap::new(),
            },
            _ => return Err(StoreError::Db("the key exists already, or not yet".into())),
        };
        record.meta.head = new.number;
        record.versions.push(VersionRow {
            created: new.created,
            public: new.public,
            sealed_sha256: sha256(&new.sealed),
            birth: None,
        });
        record.secrets.insert(new.number, Arc::new(new.secret));
        let (kid, number, sealed) = (new.kid.to_string(), new.number, new.sealed);
        let (created, before) = (new.created.0.cast_signed(), self.version.cast_signed());
        let op = op.clone();
        self.replace(&new.kid, record, |tx| {
            tx.execute(
                "INSERT INTO versions (kid, number, created, sealed) VALUES (?1, ?2, ?3, ?4)",
                params![kid, number, created, sealed],
            )?;
            let forget = op.now.0.saturating_sub(REPLAY_MS).cast_signed();
            tx.execute(
                "DELETE FROM ops WHERE created <= ?1 AND answer IS NOT NULL",
                [forget],
            )?;
            let (tenant, op_id) = (op.tenant.as_str(), op.op_id.to_string());
            tx.execute(
                "INSERT INTO ops (tenant, op_id, body, created) VALUES (?1, ?2, ?3, ?4)",
                params![tenant, op_id, &op.body[..], op.now.0.cast_signed()],
            )?;
            tx.execute(
                "INSERT INTO outbox VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    tenant,
                    op_id,
                    kid,
                    number,
                    leaf,
                    log_size.cast_signed(),
                    before
                ],
            )?;
            Ok(())
        })
    }

    /// Remembers the checkpoint that a `note` key is about to sign.
    pub fn advance_note(&mut self, kid: &Kid, to: &Checkpoint) -> Result<(), StoreError> {
        let Some(record) = self.records.get(kid) else {
            return Err(StoreError::Db("there is no such key".into()));
        };
        let mut record = record.clone();
        record.meta.note = Some((to.size, hex::encode(to.root)));
        self.replace(kid, record, |_| Ok(()))
    }

    /// Puts `record` in place of the key's record and counts the store version up.
    pub(super) fn replace(
        &mut self,
        kid: &Kid,
        mut record: Record,
        more: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let name = kid.to_string();
        let meta = meta_bytes(&record.meta);
        record.mac = self.sealer.mac(&name, &meta);
        let key_mac = record.mac;
        let old = self.records.insert(kid.clone(), record);
        let version = self.version + 1;
        let mac = self.store_mac(version, &self.records);
        let done = self.db.write(|tx| {
            tx.execute(
                "INSERT INTO keys VALUES (?1, ?2, ?3)
                 ON CONFLICT (kid) DO UPDATE SET meta = excluded.meta, mac = excluded.mac",
                params![name, meta, &key_mac[..]],
            )?;
            more(tx)?;
            tx.execute(
                "UPDATE store SET version = ?1, mac = ?2",
                params![version.cast_signed(), &mac[..]],
            )
        });
        match done {
            Ok(_) => {
                self.version = version;
                Ok(())
            }
            Err(error) => {
                match old {
                    Some(old) => self.records.insert(kid.clone(), old),
                    None => self.records.remove(kid),
                };
                Err(error)
            }
        }
    }

    /// The leaf of `pending` is durable at `birth`: its version becomes visible and its answer is
    /// remembered.
    pub fn settle(
        &mut self,
        pending: &Pending,
        birth: u64,
        answer: &str,
    ) -> Result<(), StoreError> {
        let kid = pending.kid.to_string();
        self.db.write(|tx| {
            tx.execute(
                "UPDATE versions SET birth = ?1 WHERE kid = ?2 AND number = ?3",
                params![birth.cast_signed(), kid, pending.number],
            )?;
            tx.execute(
                "UPDATE ops SET answer = ?1 WHERE tenant = ?2 AND op_id = ?3",
                params![answer, pending.tenant.as_str(), pending.op_id.to_string()],
            )?;
            tx.execute("DELETE FROM outbox", [])
        })?;
        self.mark_born(pending, birth);
        Ok(())
    }

    /// Shows the version in snapshots made from now on, without writing: what [`KeyStore::settle`]
    /// does last, and what its answer is made from before it is written.
    pub fn mark_born(&mut self, pending: &Pending, birth: u64) {
        let Some(record) = self.records.get_mut(&pending.kid) else {
            return;
        };
        if let Some(row) = record.versions.get_mut(pending.number as usize - 1) {
            row.birth = Some(birth);
        }
        if pending.kid.alg.signs() {
            record.secrets.retain(|number, _| *number >= pending.number);
        }
    }

    /// The change whose leaf is not known to be durable; at most one, because one thread writes
    /// and waits for each.
    pub fn pending(&self) -> Result<Option<Pending>, StoreError> {
        let row = self.db.read(|c| {
            c.query_row(
                "SELECT tenant, op_id, kid, number, leaf, log_size, version_before FROM outbox",
                [],
                |r| {
                    Ok((
                        r.get::<_, String>(0)?,
                        r.get::<_, String>(1)?,
                        r.get::<_, String>(2)?,
                        r.get::<_, u32>(3)?,
                        r.get::<_, Vec<u8>>(4)?,
                        r.get::<_, i64>(5)?.cast_unsigned(),
                        r.get::<_, i64>(6)?.cast_unsigned(),
                    ))
                },
            )
            .optional()
        })?;
        let Some((tenant, op_id, kid, number, leaf, log_size, version_before)) = row else {
            return Ok(None);
        };
        let bad = || StoreError::Tampered("the outbox".into());
        Ok(Some(Pending {
            tenant: tenant.parse().map_err(|_| bad())?,
            op_id: op_id.parse().map_err(|_| bad())?,
            kid: kid.parse().map_err(|_| bad())?,
            number,
            leaf,
            log_size,
            version_before,
        }))
    }

    /// What is known of an operation id, if it is younger than 24 hours.
    pub fn seen_op(
        &self,
        tenant: &Tenant,
        op_id: OpId,
        now: Timestamp,
    ) -> Result<Option<SeenOp>, StoreError> {
        let young = now.0.saturating_sub(REPLAY_MS).cast_signed();
        let row = self.db.read(|c| {
            c.query_row(
                "SELECT body, answer FROM ops WHERE tenant = ?1 AND op_id = ?2 AND (created > ?3 OR answer IS NULL)",
                params![tenant.as_str(), op_id.to_string(), young],
                |r| Ok((r.get::<_, [u8; 32]>(0)?, r.get::<_, Option<String>>(1)?)),
            )
            .optional()
        })?;
        Ok(row.map(|(body, answer)| SeenOp { body, answer }))
    }
}
