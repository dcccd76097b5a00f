//! Changes of the store. Each is one transaction: sealed record, metadata, version counter, MAC,
//! operation id and the leaf that still has to reach the audit log.

use std::sync::Arc;

use ron_crypto::SecretBytes;
use ron_crypto::hash::sha256;
use ron_proto::values::{Kid, OpId, Tenant, Timestamp};
use ron_service::records::{Statements, Value};

use super::change::{Change, Erase};
use super::db::{number, unsigned};
use super::ops::{self, OpRow};
use super::record::Record;
use super::seal::RecordName;
use super::{KeyStore, StoreError};
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
    fn insert(&self, tx: &mut dyn Statements, log: &str) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO outbox
               (log, tenant, op_id, kid, number, leaf, log_size, version_before)
             VALUES (?8, ?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            &[
                self.tenant.as_str().into(),
                self.op_id.to_string().as_str().into(),
                self.kid.to_string().as_str().into(),
                i64::from(self.number).into(),
                self.leaf[..].into(),
                self.log_size.cast_signed().into(),
                self.version_before.cast_signed().into(),
                log.into(),
            ],
        )?;
        Ok(())
    }
}

fn insert_version(
    tx: &mut dyn Statements,
    (key, number): (&Value, u32),
    created: Timestamp,
    (sealed, public): (&[u8], &[u8]),
) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO versions (kid, number, created, sealed, sealed_sha256, public)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        &[
            key.clone(),
            i64::from(number).into(),
            created.0.cast_signed().into(),
            sealed.into(),
            sha256(sealed)[..].into(),
            public.into(),
        ],
    )?;
    Ok(())
}

/// How often another node may be first before a change is given up.
pub(super) const TRIES: usize = 16;

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
        let makes_key = change.makes_key();
        let Change {
            kid,
            meta,
            new,
            earlier,
            erase,
            other,
        } = change;
        let (mut record, exists) = match self.records.get(&kid) {
            Some(record) => (record.clone(), true),
            None => (Record::new(meta.clone()), false),
        };
        // Version 1 is for a new key only, and every other change is for an existing one.
        if exists == makes_key {
            return Err(StoreError::Db(
                "the key exists already, or does not exist".into(),
            ));
        }
        record.meta = meta;
        let number = new.as_ref().map_or(0, |new| new.number);
        let sealed: Vec<_> = earlier
            .into_iter()
            .chain(new)
            .map(|new| {
                let (number, public) = (new.number, new.public.raw().to_vec());
                (number, record.push(new), public)
            })
            .collect();
        let headers = self.erased(&kid, &mut record, erase);
        let pending = Pending {
            tenant: op.tenant.clone(),
            op_id: op.op_id,
            kid: kid.clone(),
            number,
            leaf: leaf.to_vec(),
            log_size,
            version_before: self.version,
        };
        let (sealer, log) = (self.sealer.clone(), self.log().origin.clone());
        let mut changed = vec![(kid.clone(), record)];
        if let Some((kid, meta)) = other {
            let record = self.records.get(&kid).cloned();
            let record = record.ok_or_else(|| StoreError::Db("there is no such key".into()))?;
            changed.push((kid, Record { meta, ..record }));
        }
        self.replace(changed, |tx| {
            let name = pending.kid.to_string();
            let name: Value = name.as_str().into();
            for (number, (created, sealed), public) in &sealed {
                insert_version(tx, (&name, *number), *created, (sealed, public))?;
            }
            for (number, header) in (1_i64..).zip(&headers) {
                tx.execute(
                    "UPDATE versions SET sealed = ?1, sealed_sha256 = ?2 WHERE kid = ?3 AND number = ?4",
                    &[header[..].into(), sha256(header)[..].into(), name.clone(), number.into()],
                )?;
            }
            ops::insert(tx, &sealer, op)?;
            pending.insert(tx, &log)
        })?;
        if erase != Erase::None {
            self.rewrite_file()?;
        }
        Ok(())
    }

    /// Replaces the sealed records that a change destroys by their public headers: of the first versions, in order.
    fn erased(&self, kid: &Kid, record: &mut Record, erase: Erase) -> Vec<Vec<u8>> {
        let count = match erase {
            Erase::None => 0,
            Erase::Below(number) => record.versions.len().min(number as usize - 1),
            Erase::All => record.versions.len(),
        };
        record.secrets.retain(|number, _| *number as usize > count);
        let mut headers = Vec::with_capacity(count);
        for row in &mut record.versions[..count] {
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
    pub fn reopen(&mut self, kid: &Kid, number: u32) -> Result<Option<SecretBytes>, StoreError> {
        let row = self.db.read(|tx| {
            let sql = "SELECT created, sealed FROM versions WHERE kid = ?1 AND number = ?2";
            let name = kid.to_string();
            let rows = tx.query(sql, &[name.as_str().into(), i64::from(number).into()])?;
            let row = rows.first();
            row.map(|row| Ok((unsigned(row, 0)?, row.blob(1)?.to_vec())))
                .transpose()
        })?;
        let Some((created, sealed)) = row else {
            return Ok(None);
        };
        let created = Timestamp(created);
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
        self.replace(vec![(kid.clone(), record)], |_| Ok(()))
    }

    /// Replaces the records of keys and increments the store version, in one transaction with `more`.
    pub(super) fn replace(
        &mut self,
        changed: Vec<(Kid, Record)>,
        mut more: impl FnMut(&mut dyn Statements) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut rows = Vec::with_capacity(changed.len());
        let mut before = Vec::with_capacity(changed.len());
        for (kid, mut record) in changed {
            let (name, meta) = (kid.to_string(), record.meta.to_bytes());
            let mac = self.sealer.mac(&name, &meta);
            record.set_mac(mac);
            rows.push((name, meta, mac));
            // In memory first, because the MAC in the transaction covers all records; restored if the write fails.
            let old = self.records.insert(kid.clone(), record);
            before.push((kid, old));
        }
        let version = (self.version + 1).cast_signed();
        let done = self.write_version(|tx| {
            for (name, meta, mac) in &rows {
                tx.execute(
                    "INSERT INTO keys (kid, meta, mac, changed) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (kid) DO UPDATE SET meta = excluded.meta, mac = excluded.mac, changed = excluded.changed",
                    &[
                        name.as_str().into(),
                        meta[..].into(),
                        mac[..].into(),
                        version.into(),
                    ],
                )?;
            }
            more(tx)
        });
        if done.is_err() {
            for (kid, old) in before {
                match old {
                    Some(old) => self.records.insert(kid, old),
                    None => self.records.remove(&kid),
                };
            }
        }
        done
    }

    /// Makes `change` and the store's next version durable in one transaction. What is in memory is the new state already,
    /// because the MAC in the transaction covers it; the caller restores the old one on an error.
    pub(super) fn write_version(
        &mut self,
        mut change: impl FnMut(&mut dyn Statements) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.unchecked {
            return Err(StoreError::Tampered("it was not read again".into()));
        }
        let (before, version) = (self.version, self.version + 1);
        let mac = self.store_mac(version);
        self.db.write(|tx| {
            // First: its lock keeps other nodes out, and with another version nothing of the change is right.
            let raised = tx.execute(
                "UPDATE store SET version = ?1, mac = ?2 WHERE version = ?3",
                &[
                    version.cast_signed().into(),
                    mac[..].into(),
                    before.cast_signed().into(),
                ],
            )?;
            if raised == 0 {
                return Err(StoreError::Moved);
            }
            change(tx)
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
        let (sealer, log) = (self.sealer.clone(), self.log().origin.clone());
        let macs = sealer.macs();
        // NULL stands for the first log, so that the rows of a store with one node stay as they are.
        let further = (self.own > 0).then_some(log.as_str());
        let log_value = further.map_or(Value::Null, Value::from);
        self.write_shown(|tx| {
            // More than one only when a key was restored.
            let unborn = tx.query(
                "SELECT number FROM versions WHERE kid = ?1 AND number <= ?2 AND birth IS NULL",
                &[kid.as_str().into(), i64::from(pending.number).into()],
            )?;
            for row in &unborn {
                let version = number(row, 0)?;
                let mac = macs.birth(&kid, version, (further, birth));
                tx.execute(
                    "UPDATE versions SET birth = ?1, birth_mac = ?2, birth_log = ?5
                     WHERE kid = ?3 AND number = ?4",
                    &[
                        birth.cast_signed().into(),
                        mac[..].into(),
                        kid.as_str().into(),
                        i64::from(version).into(),
                        log_value.clone(),
                    ],
                )?;
            }
            tx.execute(
                "UPDATE keys SET changed = (SELECT version FROM store) WHERE kid = ?1",
                &[kid.as_str().into()],
            )?;
            ops::answer(tx, &sealer, (&pending.tenant, pending.op_id), answer)?;
            tx.execute("DELETE FROM outbox WHERE log = ?1", &[log.as_str().into()])?;
            Ok(())
        })?;
        self.mark_born(pending, birth);
        Ok(())
    }

    /// Makes `change`, which the MAC of the store does not cover, durable in one transaction. In an engine it raises the version,
    /// by which other nodes notice that there is something to read.
    pub(super) fn write_shown(
        &mut self,
        mut change: impl FnMut(&mut dyn Statements) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if !self.db.is_shared() {
            return self.db.write(change);
        }
        for _ in 0..TRIES {
            match self.write_version(&mut change) {
                Err(StoreError::Moved) => self.refresh()?,
                done => return done,
            };
        }
        Err(StoreError::Moved)
    }

    /// Makes the version visible in snapshots from now on, in memory only. Called before [`KeyStore::complete`], because the
    /// answer shows the version, and again by it.
    pub fn mark_born(&mut self, pending: &Pending, birth: u64) {
        let log: Arc<str> = self.log().origin.as_str().into();
        let Some(record) = self.records.get_mut(&pending.kid) else {
            return;
        };
        record.set_birth(pending.number, (&log, birth));
        record.drop_old_secrets(&pending.kid);
    }

    /// The change of this node whose leaf is not known to be durable; at most one, because one thread writes
    /// and waits for each.
    pub fn pending(&mut self) -> Result<Option<Pending>, StoreError> {
        let bad = || StoreError::Tampered("the outbox".into());
        let own = self.logs[self.own].origin.as_str();
        self.db.read(|tx| {
            let sql =
                "SELECT tenant, op_id, kid, number, leaf, log_size, version_before FROM outbox
                       WHERE log = ?1";
            let rows = tx.query(sql, &[own.into()])?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            Ok(Some(Pending {
                tenant: row.text(0)?.parse().map_err(|_| bad())?,
                op_id: row.text(1)?.parse().map_err(|_| bad())?,
                kid: row.text(2)?.parse().map_err(|_| bad())?,
                number: number(row, 3)?,
                leaf: row.blob(4)?.to_vec(),
                log_size: unsigned(row, 5)?,
                version_before: unsigned(row, 6)?,
            }))
        })
    }
}
