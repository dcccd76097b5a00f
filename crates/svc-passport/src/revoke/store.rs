//! Durable storage of revocations and of the last key set: one SQLite file, or memory with amnesia on.

use ron_auth::revocation_log;
use ron_files::{Dir, DiskRoom};
use ron_kernel::DiskWatch;
use ron_proto::passport::{Jwks, RevocationEvent};
use ron_proto::{Problem, Timestamp};
use ron_service::{Migration, Store, StoreError};
use rusqlite::{CachedStatement, Connection};

use crate::clients::UsedAssertion;
use crate::lists::{KnownLists, LIST_KEPT_S, LIST_OWN_BITS, ListRow};
use crate::trail::{Grants, IssuedFor};

static MIGRATIONS: [Migration; 2] = [
    Migration {
        version: 1,
        name: "revocations, key set, status lists, used assertions",
        sql: "
        CREATE TABLE revocation (
            seq     INTEGER PRIMARY KEY CHECK (seq > 0),
            ts_ms   INTEGER NOT NULL,
            what    TEXT NOT NULL,
            salt    BLOB NOT NULL,
            actor   TEXT NOT NULL,
            reason  TEXT NOT NULL,
            by_salt BLOB NOT NULL,
            sig     BLOB NOT NULL
        ) STRICT;
        CREATE TABLE kept (
            name    TEXT PRIMARY KEY,
            value   TEXT NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE status_list (
            id       INTEGER PRIMARY KEY CHECK (id > 0),
            kid      TEXT NOT NULL,
            epoch    INTEGER NOT NULL,
            opened_s INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE used_assertion (
            client   TEXT NOT NULL,
            jti      TEXT NOT NULL,
            until_s  INTEGER NOT NULL,
            PRIMARY KEY (client, jti)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX used_assertion_until ON used_assertion (until_s);
    ",
    },
    Migration {
        version: 2,
        name: "what tokens are issued for",
        sql: "
        CREATE TABLE issued_for (
            number INTEGER PRIMARY KEY CHECK (number > 0),
            what   TEXT NOT NULL UNIQUE
        ) STRICT;
    ",
    },
];

/// Name of the database inside the data directory.
pub const FILE_NAME: &str = "passport.db";

/// The store of revocations; owned by the revoker thread after start.
#[derive(Debug)]
pub struct RevocationStore(Store);

/// A revocation as it is stored: an event and what the feed does not show of it.
#[derive(Debug, Clone)]
pub struct Row {
    pub event: RevocationEvent,
    pub actor: String,
    pub reason: String,
    /// With it the event commits to actor and reason.
    pub by_salt: [u8; revocation_log::SALT_BYTES],
    /// This service's signature.
    pub sig: Vec<u8>,
}

/// A change that was not made, or a read that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailed {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row cannot be parsed.
    #[error("the revocation store holds a row that cannot be read: {0}")]
    Row(String),
    /// The revocation log failed or is closed for writing.
    #[error("the revocation log: {0}")]
    Log(String),
    /// Another node has recorded events first. Nothing was changed.
    #[error("another issuer records revocations at the same time")]
    Moved,
    /// The engine that keeps the log does not answer, or refuses. Nothing was changed.
    #[error("the log of revocations is unavailable: {0}")]
    Unread(String),
    /// What was appended may be in the log, or come into it.
    #[error("the outcome of an append to the log of revocations is unknown: {0}")]
    Unknown(String),
}

impl From<rusqlite::Error> for StoreFailed {
    fn from(e: rusqlite::Error) -> Self {
        Self::Store(StoreError::Sqlite(e))
    }
}

impl StoreFailed {
    /// Logs the failure and returns the caller's problem.
    pub fn problem(&self) -> Problem {
        tracing::error!(service = "svc-passport", event = "store_failed", why = %self);
        match self {
            Self::Store(StoreError::NoRoom(full)) => Problem::unavailable(full.to_string(), 5),
            Self::Moved | Self::Unread(_) => {
                Problem::unavailable(format!("{self}; nothing was changed"), 1)
            }
            Self::Unknown(_) => Problem::unavailable(
                "the log of revocations did not answer in time; what was asked for may take effect all the same: ask for it again",
                1,
            ),
            // The rows may be on the disk; the next start completes what it finds there.
            Self::Store(StoreError::Commit(_)) | Self::Log(_) => Problem::unavailable(
                "the revocation store does not work; what was asked for may take effect when the service is restarted",
                5,
            ),
            _ => Problem::unavailable("the revocation store does not work; nothing was changed", 5),
        }
    }
}

impl RevocationStore {
    /// Opens the store in a file of this directory.
    pub fn open(home: &Dir) -> Result<Self, StoreError> {
        Store::open_in(home, FILE_NAME, &MIGRATIONS).map(Self)
    }

    /// Opens a store in memory, for amnesia and tests.
    pub fn memory() -> Result<Self, StoreError> {
        Store::memory(&MIGRATIONS).map(Self)
    }

    /// Has writes watched from now on, so that a disk that hangs is noticed, and refused while the disk has too
    /// little room.
    pub fn watch_disk(&mut self, watch: DiskWatch, room: DiskRoom) {
        self.0.watch_disk(watch, room);
    }

    /// True once a commit has failed: writes are refused.
    pub fn poisoned(&self) -> bool {
        self.0.poisoned()
    }

    /// Makes revocations durable under their numbers.
    pub fn append(&self, rows: &[Row]) -> Result<(), StoreFailed> {
        self.0.write(|tx| {
            let mut insert = tx.prepare_cached(
                "INSERT INTO revocation (seq, ts_ms, what, salt, actor, reason, by_salt, sig) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?;
            for row in rows {
                let event = &row.event;
                let what = serde_json::to_string(&event.revoked)
                    .map_err(|e| StoreFailed::Row(e.to_string()))?;
                insert.execute(rusqlite::params![
                    event.seq as i64,
                    event.ts.0 as i64,
                    what,
                    event.salt.as_slice(),
                    row.actor,
                    row.reason,
                    row.by_salt,
                    row.sig,
                ])?;
            }
            Ok(())
        })
    }

    /// Deletes revocations and used assertions, which are in an engine by now.
    pub fn forget(&self) -> Result<(), StoreFailed> {
        self.0.write(|tx| {
            tx.execute("DELETE FROM revocation", [])?;
            tx.execute("DELETE FROM used_assertion", [])?;
            Ok(())
        })
    }

    /// The number of the last revocation; 0 in a new store.
    pub fn last(&self) -> Result<u64, StoreFailed> {
        self.0.read(|conn| {
            let last: i64 =
                conn.query_row("SELECT coalesce(max(seq), 0) FROM revocation", [], |r| {
                    r.get(0)
                })?;
            Ok(last.cast_unsigned())
        })
    }

    /// Up to `limit` revocations after a number.
    pub fn rows(&self, after: u64, limit: usize) -> Result<Vec<Row>, StoreFailed> {
        self.0.read(|conn| rows_of(conn, after, limit))
    }

    /// Up to `limit` revocations before a number, newest first.
    pub fn rows_before(&self, before: u64, limit: usize) -> Result<Vec<Row>, StoreFailed> {
        self.0.read(|conn| {
            let query = conn.prepare_cached(&rows_where("seq < ?1 ORDER BY seq DESC"))?;
            rows_found(query, before, limit)
        })
    }

    /// Opens a status list under a number that was never used, and deletes lists that no valid token refers to. `of_node` stands above the
    /// bits of [`LIST_OWN_BITS`]: 0, or what no other node of the issuer has drawn for a list.
    pub fn open_list(
        &self,
        kid: &str,
        epoch: u64,
        now_s: u64,
        of_node: u32,
    ) -> Result<ListRow, StoreFailed> {
        self.0.write(|tx| {
            let last: i64 = tx.query_row(
                "SELECT coalesce(max(id & ?1), 0) FROM status_list",
                [(1_i64 << LIST_OWN_BITS) - 1],
                |r| r.get(0),
            )?;
            // With amnesia on the table starts empty, but tokens of an earlier process may still be valid: the time as
            // lower bound keeps their lists' numbers from being used again.
            let id = (last + 1).max(now_s as i64) | i64::from(of_node) << LIST_OWN_BITS;
            let old = now_s.saturating_sub(LIST_KEPT_S) as i64;
            tx.execute("DELETE FROM status_list WHERE opened_s < ?1", [old])?;
            tx.execute(
                "INSERT INTO status_list (id, kid, epoch, opened_s) VALUES (?1, ?2, ?3, ?4)",
                rusqlite::params![id, kid, epoch as i64, now_s as i64],
            )?;
            Ok(ListRow {
                id: id.cast_unsigned(),
                kid: kid.to_owned(),
                epoch,
                opened_s: now_s,
            })
        })
    }

    /// Makes the use of assertions durable, and deletes those that have expired.
    pub fn keep_assertions(&self, used: &[UsedAssertion], now_s: u64) -> Result<(), StoreFailed> {
        self.0.write(|tx| {
            tx.execute(
                "DELETE FROM used_assertion WHERE until_s < ?1",
                [now_s as i64],
            )?;
            let mut insert = tx.prepare_cached(
                "INSERT OR REPLACE INTO used_assertion (client, jti, until_s) VALUES (?1, ?2, ?3)",
            )?;
            for one in used {
                insert.execute(rusqlite::params![one.client, one.jti, one.until_s as i64])?;
            }
            Ok(())
        })
    }

    /// The used assertions that may not have expired.
    pub fn assertions(&self) -> Result<Vec<UsedAssertion>, StoreFailed> {
        self.0.read(|conn| {
            let mut query = conn.prepare("SELECT client, jti, until_s FROM used_assertion")?;
            let rows = query.query_map([], |r| {
                Ok(UsedAssertion {
                    client: r.get(0)?,
                    jti: r.get(1)?,
                    until_s: r.get::<_, i64>(2)?.cast_unsigned(),
                })
            })?;
            rows.map(|row| row.map_err(StoreFailed::from)).collect()
        })
    }

    pub fn lists(&self) -> Result<KnownLists, StoreFailed> {
        self.0.read(|conn| {
            let mut query = conn.prepare("SELECT id, kid, epoch, opened_s FROM status_list")?;
            let rows = query.query_map([], |r| {
                Ok(ListRow {
                    id: r.get::<_, i64>(0)?.cast_unsigned(),
                    kid: r.get(1)?,
                    epoch: r.get::<_, i64>(2)?.cast_unsigned(),
                    opened_s: r.get::<_, i64>(3)?.cast_unsigned(),
                })
            })?;
            let mut lists = KnownLists::new();
            for row in rows {
                let row = row?;
                lists.insert(row.id, row);
            }
            Ok(lists)
        })
    }

    /// What tokens are issued for, with numbers.
    pub fn grants(&self) -> Result<Grants, StoreFailed> {
        self.0.read(|conn| {
            let mut query = conn.prepare("SELECT number, what FROM issued_for")?;
            let rows =
                query.query_map([], |r| Ok((r.get::<_, u32>(0)?, r.get::<_, String>(1)?)))?;
            let mut grants = Grants::default();
            for row in rows {
                let (number, what) = row?;
                let grant = serde_json::from_str(&what)
                    .map_err(|e| StoreFailed::Row(format!("issued_for {number}: {e}")))?;
                grants.add(number, grant);
            }
            Ok(grants)
        })
    }

    /// Makes a number for what tokens are issued for durable.
    pub fn number(&self, grant: &IssuedFor) -> Result<u32, StoreFailed> {
        let what = serde_json::to_string(grant).map_err(|e| StoreFailed::Row(e.to_string()))?;
        self.0.write(|tx| {
            tx.execute("INSERT INTO issued_for (what) VALUES (?1)", [what])?;
            u32::try_from(tx.last_insert_rowid())
                .map_err(|_| StoreFailed::Row("issued_for has no number left".to_owned()))
        })
    }

    /// The key set that was published last; empty in a new store.
    pub fn kept_jwks(&self) -> Result<Jwks, StoreFailed> {
        self.0.read(|conn| {
            let found = conn.query_row("SELECT value FROM kept WHERE name = 'jwks'", [], |r| {
                r.get::<_, String>(0)
            });
            match found {
                Ok(text) => serde_json::from_str(&text)
                    .map_err(|e| StoreFailed::Row(format!("key set: {e}"))),
                Err(rusqlite::Error::QueryReturnedNoRows) => Ok(Jwks::default()),
                Err(e) => Err(e.into()),
            }
        })
    }

    /// Stores the published key set, so that verification works after a restart without the KMS.
    pub fn keep_jwks(&self, jwks: &Jwks) -> Result<(), StoreFailed> {
        let text = serde_json::to_string(jwks).map_err(|e| StoreFailed::Row(e.to_string()))?;
        self.0.write(|tx| {
            tx.execute("INSERT INTO kept (name, value) VALUES ('jwks', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1", [text])?;
            Ok(())
        })
    }
}

/// Up to `limit` revocations of a database after a number.
pub fn rows_of(conn: &Connection, after: u64, limit: usize) -> Result<Vec<Row>, StoreFailed> {
    let query = conn.prepare_cached(&rows_where("seq > ?1 ORDER BY seq"))?;
    rows_found(query, after, limit)
}

fn rows_where(range: &str) -> String {
    format!(
        "SELECT seq, ts_ms, what, salt, actor, reason, by_salt, sig FROM revocation WHERE {range} LIMIT ?2"
    )
}

fn rows_found(
    mut query: CachedStatement<'_>,
    from: u64,
    limit: usize,
) -> Result<Vec<Row>, StoreFailed> {
    let limits = rusqlite::params![i64::try_from(from).unwrap_or(i64::MAX), limit as i64];
    let mut found = query.query(limits)?;
    let mut rows = Vec::new();
    while let Some(r) = found.next()? {
        rows.push(read_row(r)?);
    }
    Ok(rows)
}

fn read_row(r: &rusqlite::Row<'_>) -> Result<Row, StoreFailed> {
    let seq = r.get::<_, i64>(0)?.cast_unsigned();
    let damaged = |e: String| StoreFailed::Row(format!("event {seq}: {e}"));
    let what: String = r.get(2)?;
    let (actor, reason): (String, String) = (r.get(4)?, r.get(5)?);
    let by_salt: Vec<u8> = r.get(6)?;
    let by_salt = by_salt
        .try_into()
        .map_err(|_| damaged("its salt has another length".to_owned()))?;
    Ok(Row {
        event: RevocationEvent {
            seq,
            ts: Timestamp(r.get::<_, i64>(1)?.cast_unsigned()),
            revoked: serde_json::from_str(&what).map_err(|e| damaged(e.to_string()))?,
            salt: r.get::<_, Vec<u8>>(3)?.into(),
            by: revocation_log::by(&by_salt, &actor, &reason),
        },
        actor,
        reason,
        by_salt,
        sig: r.get(7)?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn lists_are_numbered_once_and_forgotten_in_time() {
        let store = RevocationStore::memory().unwrap();
        let first = store.open_list("k", 1, 1_000, 0).unwrap();
        let second = store.open_list("k", 2, 1_000, 0).unwrap();
        assert_eq!((first.id, second.id), (1_000, 1_001));
        assert_eq!(store.lists().unwrap().len(), 2);
        let shared = store.open_list("k", 2, 1_000, 5).unwrap();
        assert_eq!(shared.id, (5 << LIST_OWN_BITS) + 1_002);
        let third = store.open_list("l", 2, 1_000 + LIST_KEPT_S + 1, 0).unwrap();
        assert_eq!(
            store.lists().unwrap().into_values().collect::<Vec<_>>(),
            [third]
        );
    }

    #[test]
    fn used_assertions_are_kept_until_they_expire() {
        let store = RevocationStore::memory().unwrap();
        let one = |jti: &str, until_s| UsedAssertion {
            client: "robot".to_owned(),
            jti: jti.to_owned(),
            until_s,
        };
        store
            .keep_assertions(&[one("a", 10), one("b", 20)], 5)
            .unwrap();
        assert_eq!(store.assertions().unwrap(), [one("a", 10), one("b", 20)]);
        store.keep_assertions(&[one("c", 30)], 11).unwrap();
        assert_eq!(store.assertions().unwrap(), [one("b", 20), one("c", 30)]);
    }

    #[test]
    fn no_flipped_byte_changes_a_list_an_assertion_or_the_key_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let store = RevocationStore::open(&Dir::os(dir.path())).unwrap();
        let used = (0..20).map(|n| UsedAssertion {
            client: "robot".to_owned(),
            jti: format!("assertion-{n}"),
            until_s: 1_000 + n,
        });
        let used: Vec<UsedAssertion> = used.collect();
        store.keep_assertions(&used, 5).unwrap();
        for epoch in 0..20 {
            store.open_list("k", epoch, 1_000, 0).unwrap();
        }
        store.keep_jwks(&Jwks::default()).unwrap();
        drop(store);
        let open = |path: &Path| Store::open(path, &MIGRATIONS);
        let (refused, _) = ron_service::store_trial::flip_bytes(&path, 31, open);
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn the_key_set_is_kept() {
        let store = RevocationStore::memory().unwrap();
        assert_eq!(store.kept_jwks().unwrap(), Jwks::default());
        store.keep_jwks(&Jwks { keys: Vec::new() }).unwrap();
        assert_eq!(store.kept_jwks().unwrap(), Jwks::default());
    }
}
