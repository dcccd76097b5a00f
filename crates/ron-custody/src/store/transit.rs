//! Keys on their way from a file to an engine, or back. All rows are copied as they are, so that the MAC of the store stays valid:
//! opened at the other side, it says that nothing is missing.
//!
//! `transit` in the row `store` says what a migration does with these tables; while it is set no node uses them.

use std::path::Path;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{Deadline, SharedRandom};
use ron_proto::strict;
use ron_proto::values::{Kid, Timestamp};
use ron_service::Store;
use ron_service::records::{FileRecords, RecordStore, Row, Statements, Value, Writer};
use ron_tlog::store::Transit;

use super::content::StoreRow;
use super::db::Db;
use super::meta::Meta;
use super::write::TRIES;
use super::{FILE_NAME, KeyStore, MIGRATIONS, StoreError, StoreSettings, erase};
use crate::backend::Backends;

/// Maximum time of a transaction with all rows.
const ALL_ROWS: Duration = Duration::from_secs(600);

/// The tables and their columns, but for `transit` of the first one.
const TABLES: [(&str, &str); 8] = [
    (
        "store",
        "id, store_id, salt, version, seal_check, log_origin, log_key, log_key_created, mac, tpm_counter",
    ),
    ("keys", "kid, meta, mac, changed"),
    (
        "versions",
        "kid, number, created, birth, birth_mac, sealed_sha256, public, sealed, birth_log",
    ),
    ("ops", "tenant, op_id, body, created, answer, mac"),
    ("logs", "origin, created, sealed"),
    (
        "outbox",
        "log, tenant, op_id, kid, number, leaf, log_size, version_before",
    ),
    (
        "log_keys",
        "log, number, created, sealed, statement, leaf, log_size, version_before, birth",
    ),
    (
        "issuer_policy",
        "id, version, policy, signature, leaf, log_size, version_before, birth, log",
    ),
];

/// What a store is opened for.
#[derive(Clone, Copy)]
pub(super) enum Opening {
    /// By a node, at this time.
    Node(Timestamp),
    Migration,
}

/// Refuses keys that a migration has, but to a migration.
pub(super) fn refuse(row: &StoreRow, is_moving: bool) -> Result<(), StoreError> {
    let why = match &row.transit {
        _ if is_moving => return Ok(()),
        None => return Ok(()),
        Some(Transit::Filling(place)) => format!(
            "they are being moved here from {place}; end that with `ron kms migrate` and --resume"
        ),
        Some(Transit::Moved(place)) => format!(
            "they were moved to {place}; use them there, or move them here again with `ron kms migrate`"
        ),
    };
    Err(StoreError::Transit(why))
}

/// All rows of a store, of one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct Rows([Vec<Row>; TABLES.len()]);

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({:?})", self.0.each_ref().map(Vec::len))
    }
}

impl Rows {
    fn read(tx: &mut dyn Statements) -> Result<Self, StoreError> {
        let mut all = [const { Vec::new() }; TABLES.len()];
        for (rows, (table, columns)) in all.iter_mut().zip(TABLES) {
            *rows = tx.query(&format!("SELECT {columns} FROM {table}"), &[])?;
            // Two engines give them in different orders.
            rows.sort_by(|one, other| one.0.cmp(&other.0));
        }
        Ok(Self(all))
    }

    fn insert(&self, tx: &mut dyn Statements) -> Result<(), StoreError> {
        for (rows, (table, columns)) in self.0.iter().zip(TABLES) {
            let count = columns.split(',').count();
            let places: Vec<String> = (1..=count).map(|n| format!("?{n}")).collect();
            let sql = format!(
                "INSERT INTO {table} ({columns}) VALUES ({})",
                places.join(", ")
            );
            for row in rows {
                tx.execute(&sql, &row.0)?;
            }
        }
        Ok(())
    }

    /// Number of keys, for messages of a migration.
    pub fn keys(&self) -> usize {
        self.0[1].len()
    }
}

/// What is known of a store without its seal key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    pub store_id: [u8; 16],
    /// `None` when nodes may use it.
    pub transit: Option<Transit>,
}

fn found(tx: &mut dyn Statements) -> Result<Option<Peeked>, StoreError> {
    let row = StoreRow::find(tx)?;
    Ok(row.map(|row| Peeked {
        store_id: row.store_id,
        transit: row.transit,
    }))
}

/// Looks at a store, which it makes no part of; `None` when the tables have none.
pub fn peek(records: &mut dyn RecordStore) -> Result<Option<Peeked>, StoreError> {
    let by = Deadline::within(ALL_ROWS);
    let peeked = records.read(by, found)?;
    records.confirm(by)?;
    Ok(peeked)
}

/// Fills tables that nodes do not use, in place of what an earlier migration of the same keys has left there.
pub fn fill(
    records: &mut dyn RecordStore,
    rows: &Rows,
    store_id: [u8; 16],
    from: &Transit,
) -> Result<(), StoreError> {
    let by = Deadline::within(ALL_ROWS);
    records.write(Writer::Shared, by, |tx| {
        match found(tx)? {
            None => {}
            Some(there) if there.store_id != store_id => {
                return Err(StoreError::Occupied("other keys are there already"));
            }
            Some(Peeked { transit: None, .. }) => {
                return Err(StoreError::Occupied("these keys are in use there already"));
            }
            Some(_) => {}
        }
        delete(tx, &TABLES)?;
        rows.insert(tx)?;
        mark(tx, Some(from))
    })
}

/// Deletes the keys from tables that nodes do not use any more; what says so stays.
pub fn forget(records: &mut dyn RecordStore) -> Result<(), StoreError> {
    let by = Deadline::within(ALL_ROWS);
    records.write(Writer::Shared, by, |tx| match found(tx)? {
        Some(Peeked { transit: None, .. }) => Err(StoreError::Occupied("these keys are in use")),
        _ => delete(tx, &TABLES[1..]),
    })
}

fn delete(tx: &mut dyn Statements, tables: &[(&str, &str)]) -> Result<(), StoreError> {
    for (table, _) in tables {
        tx.execute(&format!("DELETE FROM {table}"), &[])?;
    }
    Ok(())
}

fn mark(tx: &mut dyn Statements, transit: Option<&Transit>) -> Result<(), StoreError> {
    let holder = transit.map(|transit| transit.holder(0));
    let holder = holder.as_deref().map_or(Value::Null, Value::from);
    tx.execute("UPDATE store SET transit = ?1", &[holder])?;
    Ok(())
}

/// Why keys cannot be moved to another host; `None` when they can.
fn immovable(held: &[Kid], counts_starts: bool) -> Option<String> {
    if let [first, ..] = held {
        return Some(format!(
            "{} keys are in a device, which belongs to one host, such as {first}: destroy them, or leave the service in files",
            held.len()
        ));
    }
    counts_starts.then(|| {
        "the starts of this store are counted in a TPM (tpm.counter_index), which belongs to one host: leave the service in files".to_owned()
    })
}

/// Why the keys of a directory cannot be moved, as far as that can be seen beside a service that runs: no MAC is checked.
pub fn immovable_in(home: &Dir) -> Result<Option<String>, StoreError> {
    let Some(path) = home.os_path(FILE_NAME).filter(|path| path.exists()) else {
        return Ok(None);
    };
    let conn = Store::reader(&path)?;
    let read = || -> rusqlite::Result<(Vec<Kid>, bool)> {
        let mut statement = conn.prepare("SELECT kid, meta FROM keys ORDER BY kid")?;
        let mut rows = statement.query([])?;
        let mut held = Vec::new();
        while let Some(row) = rows.next()? {
            let (kid, meta): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
            // What is damaged is judged when the service has stopped.
            let meta: Option<Meta> = strict::from_slice(&meta).ok();
            let is_held = meta.is_some_and(|meta| meta.is_held_by_device());
            held.extend(kid.parse().ok().filter(|_| is_held));
        }
        let sql = "SELECT count(*) FROM store WHERE tpm_counter IS NOT NULL";
        let counts: i64 = conn.query_row(sql, [], |row| row.get(0))?;
        Ok((held, counts > 0))
    };
    let (held, counts_starts) = read().map_err(ron_service::StoreError::from)?;
    Ok(immovable(&held, counts_starts))
}

/// Whether a copy of the database has a change whose leaf is not known to be in the audit log. No MAC is checked.
pub fn is_unfinished(copy: &Path) -> Result<bool, StoreError> {
    let conn = Store::reader(copy)?;
    let sql =
        "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM log_keys WHERE birth IS NULL)
                 + (SELECT count(*) FROM issuer_policy WHERE birth IS NULL)";
    let count: rusqlite::Result<i64> = conn.query_row(sql, [], |row| row.get(0));
    Ok(count.map_err(ron_service::StoreError::from)? > 0)
}

/// Overwrites and removes the keys of a directory, which are elsewhere by now.
pub fn remove_from(home: &Dir) -> Result<(), StoreError> {
    let gone = |e| StoreError::Db(format!("{}: {e}", home.file(FILE_NAME).display()));
    if !home.exists(FILE_NAME).map_err(gone)? {
        return Ok(());
    }
    let file = Store::open_without_copies(home, FILE_NAME, MIGRATIONS)?;
    erase::prepare(&file)?;
    let mut records = FileRecords::new(file);
    let by = Deadline::within(ALL_ROWS);
    let deleted: &mut dyn RecordStore = &mut records;
    deleted.write(Writer::Shared, by, |tx| delete(tx, &TABLES))?;
    erase::rewrite(records.store())?;
    drop(records);
    // The name of the database last: while it is there, a migration is not at its end.
    for ending in ["-wal", "-shm", ""] {
        let name = format!("{FILE_NAME}{ending}");
        if home.exists(&name).map_err(gone)? {
            home.remove(&name).map_err(gone)?;
        }
    }
    home.sync().map_err(gone)
}

/// The tables in a directory, whose lock the caller has; `None` when there are none and `may_create` is not set.
pub fn records_in(
    home: &Dir,
    may_create: bool,
) -> Result<Option<Box<dyn RecordStore>>, StoreError> {
    let exists = home.exists(FILE_NAME);
    let exists = exists.map_err(|e| StoreError::Db(format!("{}: {e}", home.path().display())))?;
    if !exists && !may_create {
        return Ok(None);
    }
    let file = Store::open_without_copies(home, FILE_NAME, MIGRATIONS)?;
    erase::prepare(&file)?;
    Ok(Some(Box::new(FileRecords::new(file))))
}

impl KeyStore {
    /// Opens keys for a migration, whatever another one does with them: nothing is made, and all MACs are checked. `None` when there
    /// are none.
    pub fn open_moving(
        records: Box<dyn RecordStore>,
        settings: &StoreSettings,
        backends: Backends,
        random: SharedRandom,
    ) -> Result<Option<Self>, StoreError> {
        let mut db = Db::Engine(records);
        let Some(row) = db.read(StoreRow::find)? else {
            return Ok(None);
        };
        Self::load(db, row, settings, (backends, random), Opening::Migration).map(Some)
    }

    /// Tells the store from others.
    pub fn store_id(&self) -> [u8; 16] {
        self.sealer.store_id()
    }

    /// All rows, which were compared with the MAC of the store.
    pub fn rows(&mut self) -> Result<Rows, StoreError> {
        let by = Deadline::within(ALL_ROWS);
        let version = self.version;
        let records = self.db.records();
        let rows = records.read(by, |tx| {
            let row = StoreRow::find(tx)?;
            if row.is_none_or(|row| row.version != version) {
                return Err(StoreError::Moved);
            }
            Rows::read(tx)
        })?;
        records.confirm(by)?;
        Ok(rows)
    }

    /// Why these keys cannot be moved to another host; `None` when they can.
    pub fn immovable(&self) -> Option<String> {
        let held = self.records.iter();
        let held = held.filter(|(_, record)| record.meta.is_held_by_device());
        let held: Vec<_> = held.map(|(kid, _)| kid.clone()).collect();
        immovable(&held, self.tpm_counter.is_some())
    }

    /// Lets nodes use these keys.
    pub fn open_to_nodes(&mut self) -> Result<(), StoreError> {
        self.db.write(|tx| mark(tx, None))
    }

    /// Ends the use of these keys by all nodes, but for what is acknowledged by then. The version is raised: a node that has read the
    /// one before can neither append a result to its log nor change a key. Refused while a node other than this one has a change whose
    /// leaf is not in its log, because that could be acknowledged afterwards.
    pub fn close_to_nodes(&mut self, to: &Transit) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let (own, first) = (self.log().origin.clone(), self.logs[0].origin.clone());
            let closed = self.write_version(|tx| {
                if let Some(other) = unfinished(tx, &own, &first)? {
                    return Err(StoreError::Unfinished(other));
                }
                mark(tx, Some(to))
            });
            match closed {
                Err(StoreError::Moved) => self.refresh()?,
                done => return done,
            };
        }
        Err(StoreError::Moved)
    }
}

/// A log other than `own` that lacks the leaf of a change which is committed.
fn unfinished(
    tx: &mut dyn Statements,
    own: &str,
    first: &str,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT log FROM outbox WHERE log <> ?1
               UNION SELECT log FROM log_keys WHERE birth IS NULL AND log <> ?1
               UNION SELECT COALESCE(log, ?2) FROM issuer_policy WHERE birth IS NULL AND COALESCE(log, ?2) <> ?1";
    let rows = tx.query(sql, &[own.into(), first.into()])?;
    rows.first()
        .map(|row| Ok(row.text(0)?.to_owned()))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A column that a later migration adds must not be left behind.
    #[test]
    fn every_column_is_copied() {
        let store = Store::memory(MIGRATIONS).expect("tables");
        let mut records = FileRecords::new(store);
        let records: &mut dyn RecordStore = &mut records;
        let columns = records.read(Deadline::within(ALL_ROWS), |tx| {
            let sql = "SELECT m.name, c.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'";
            let rows = tx.query(sql, &[])?;
            let pairs = rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned())));
            pairs.collect::<Result<Vec<_>, StoreError>>()
        });
        let mut found = columns.expect("columns");
        found.retain(|column| *column != ("store".to_owned(), "transit".to_owned()));
        let copied = TABLES.iter().flat_map(|(table, columns)| {
            let columns = columns.split(", ");
            columns.map(|column| ((*table).to_owned(), column.to_owned()))
        });
        let mut copied: Vec<_> = copied.collect();
        copied.sort();
        found.sort();
        assert_eq!(found, copied);
    }
}
