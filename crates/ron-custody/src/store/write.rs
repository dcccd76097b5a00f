//! Changes of the store. Each is one transaction: sealed record, metadata, version counter, MAC,
//! operation id and the leaf that still has to reach the audit log.

use std::sync::Arc;

use ron_crypto::SecretBytes;
use ron_crypto::hash::sha256;
use ron_proto::values::{Kid, OpId, Tenant, Timestamp};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::change::Change;
use super::ops::{self, OpRow};
use super::record::Record;
use super::seal::RecordName;
use super::{KeyStore, StoreError, erase};
use crate::keys::note::Checkpoint;

/// A change whose leaf is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Tenant of the operation.
    pub tenant: Tenant,
    pub op_id: OpId,
    /// The key that was made or changed.
    pub kid: Kid,
    /// The version that was made; 0 when none was.
    pub number: u32,
    /// The leaf, without its counters.
    pub leaf: Vec<u8>,
    /// The log had at least this many leaves before the change.
    pub log_size: u64,
    /// Store version before the change.
    pub version_before: u64,
}

impl Pending {
    fn insert(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        tx.execute(
            "INSERT INTO outbox VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                self.tenant.as_str(),
                self.op_id.to_string(),
                self.kid.to_string(),
                self.number,
                self.leaf,
                self.log_size.cast_signed(),
                self.version_before.cast_signed()
            ],
        )
        .map(drop)
    }
}

impl KeyStore {
    /// Commits `change` with its operation id and its leaf. A new version stays invisible until
    /// [`KeyStore::complete`]; destroyed secrets are erased from the file when this returns.
    pub fn commit(
        &mut self,
        change: Change,
        op: &OpRow,
        leaf: &[u8],
        log_size: u64,
    ) -> Result<(), StoreError> {
        let Change {
            kid,
            meta,
            new,
            erase,
        } = change;
        let (mut record, exists) = match self.records.get(&kid) {
            Some(record) => (record.clone(), true),
            None => (Record::new(meta.clone()), false),
        };
        // Version 1 is for a new key only, and every other change is for an existing one.
        if exists == new.as_ref().is_some_and(|new| new.number == 1) {
            return Err(StoreError::Db(
                "the key exists already, or does not exist".into(),
            ));
        }
        record.meta = meta;
        let number = new.as_ref().map_or(0, |new| new.number);
        let sealed = new.map(|new| {
            let public = new.public.raw().to_vec();
            (record.push(new), public)
        });
        let headers = if erase {
            self.erased(&kid, &mut record)
        } else {
            Vec::new()
        };
        let pending = Pending {
            tenant: op.tenant.clone(),
            op_id: op.op_id,
            kid: kid.clone(),
            number,
            leaf: leaf.to_vec(),
            log_size,
            version_before: self.version,
        };
        let sealer = self.sealer.clone();
        self.replace(&kid, record, |tx| {
            let name = pending.kid.to_string();
            if let Some(((created, sealed), public)) = sealed {
                tx.execute(
                    "INSERT INTO versions (kid, number, created, sealed, sealed_sha256, public)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![
                        name,
                        number,
                        created.0.cast_signed(),
                        sealed,
                        &sha256(&sealed)[..],
                        public
                    ],
                )?;
            }
            for (number, header) in (1_u32..).zip(headers) {
                tx.execute(
                    "UPDATE versions SET sealed = ?1, sealed_sha256 = ?2 WHERE kid = ?3 AND number = ?4",
                    params![header, &sha256(&header)[..], name, number],
                )?;
            }
            ops::insert(tx, &sealer, op)?;
            pending.insert(tx)
        })?;
        if erase {
            erase::rewrite(&self.db)?;
        }
        Ok(())
    }

    /// Replaces every sealed record by its public header.
    fn erased(&self, kid: &Kid, record: &mut Record) -> Vec<Vec<u8>> {
        record.secrets.clear();
        let mut headers = Vec::with_capacity(record.versions.len());
        for row in &mut record.versions {
            let version = &row.version;
            let name = RecordName::of(kid, version.number, version.created);
            let header = self.sealer.erased(&name, &version.public);
            row.sealed_sha256 = sha256(&header);
            if version.damaged {
                Arc::make_mut(&mut row.version).damaged = false;
            }
            headers.push(header);
        }
        headers
    }

    /// Reads a version's sealed record again and opens it: for an export, or for a device's handle.
    pub fn reopen(&self, kid: &Kid, number: u32) -> Result<Option<SecretBytes>, StoreError> {
        let row = self.db.read(|c| {
            c.query_row(
                "SELECT created, sealed FROM versions WHERE kid = ?1 AND number = ?2",
                params![kid.to_string(), number],
                |r| Ok((r.get::<_, i64>(0)?, r.get::<_, Vec<u8>>(1)?)),
            )
            .optional()
        })?;
        let Some((created, sealed)) = row else {
            return Ok(None);
        };
        let created = Timestamp(created.cast_unsigned());
        let name = RecordName::of(kid, number, created);
        Ok(Some(self.sealer.open_bytes(&name, &sealed)?.0))
    }

    /// Stores the checkpoint that a `note` key is about to sign.
    pub fn advance_note(&mut self, kid: &Kid, to: &Checkpoint) -> Result<(), StoreError> {
        let Some(record) = self.records.get(kid) else {
            return Err(StoreError::Db("there is no such key".into()));
        };
        let mut record = record.clone();
        record.meta.note = Some((to.size, hex::encode(to.root)));
        self.replace(kid, record, |_| Ok(()))
    }

    /// Replaces the key's record and increments the store version, in one transaction with `more`.
    pub(super) fn replace(
        &mut self,
        kid: &Kid,
        mut record: Record,
        more: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let name = kid.to_string();
        let meta = record.meta.to_bytes();
        let key_mac = self.sealer.mac(&name, &meta);
        record.set_mac(key_mac);
        // In memory first, because the MAC in the transaction covers all records; restored if the write fails.
        let old = self.records.insert(kid.clone(), record);
        let done = self.write_version(|tx| {
            tx.execute(
                "INSERT INTO keys VALUES (?1, ?2, ?3)
                 ON CONFLICT (kid) DO UPDATE SET meta = excluded.meta, mac = excluded.mac",
                params![name, meta, &key_mac[..]],
            )?;
            more(tx)
        });
        if done.is_err() {
            match old {
                Some(old) => self.records.insert(kid.clone(), old),
                None => self.records.remove(kid),
            };
        }
        done
    }

    /// Makes `change` and the store's next version durable in one transaction. What is in memory is the new state already,
    /// because the MAC in the transaction covers it; the caller restores the old one on an error.
    pub(super) fn write_version(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let version = self.version + 1;
        let mac = self.store_mac(version);
        self.db.write(|tx| {
            change(tx)?;
            tx.execute(
                "UPDATE store SET version = ?1, mac = ?2",
                params![version.cast_signed(), &mac[..]],
            )
        })?;
        self.version = version;
        Ok(())
    }

    /// Completes a change whose leaf is durable at `birth`: makes its version visible, stores its answer and empties
    /// the outbox, in one transaction.
    pub fn complete(
        &mut self,
        pending: &Pending,
        birth: u64,
        answer: &str,
    ) -> Result<(), StoreError> {
        let kid = pending.kid.to_string();
        self.db.write(|tx| {
            let mac = self.sealer.birth_mac(&kid, pending.number, birth);
            tx.execute(
                "UPDATE versions SET birth = ?1, birth_mac = ?2 WHERE kid = ?3 AND number = ?4",
                params![birth.cast_signed(), &mac[..], kid, pending.number],
            )?;
            ops::answer(tx, &self.sealer, (&pending.tenant, pending.op_id), answer)?;
            tx.execute("DELETE FROM outbox", [])
        })?;
        self.mark_born(pending, birth);
        Ok(())
    }

    /// Makes the version visible in snapshots from now on, in memory only. Called before [`KeyStore::complete`], because the
    /// answer shows the version, and again by it.
    pub fn mark_born(&mut self, pending: &Pending, birth: u64) {
        let Some(record) = self.records.get_mut(&pending.kid) else {
            return;
        };
        record.set_birth(pending.number, birth);
        record.drop_old_secrets(&pending.kid);
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
}
