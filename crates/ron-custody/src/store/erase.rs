//! Destruction of a key in the database file.
//!
//! Deleting a row does not remove its bytes from a database: they stay in the free space of the page, in
//! pages of the free list and in older frames of the write-ahead log. Therefore:
//!
//! 1. `secure_delete` is on from the start: SQLite overwrites what it deletes with zeros;
//! 2. a destruction replaces every sealed record of the key by its header, which is public;
//! 3. then the database is rewritten (`VACUUM`, with its temporary copy in memory), which leaves
//!    nothing but live rows in it;
//! 4. finally the write-ahead log is copied into the file and truncated to zero bytes.
//!
//! After that no file of the store holds the sealed record. A program cannot reach blocks that the file
//! system or the drive has freed without overwriting them, snapshots and backups: that is why records
//! are sealed in the first place.
//!
//! Of an engine that is no file of ours only step 2 is asked: where its server keeps earlier bytes (rows until they are
//! vacuumed, its log, standbys, backups) is not ours to overwrite.

use ron_service::Store;
use rusqlite::Connection;

use super::StoreError;

/// Sets `secure_delete`, and keeps temporary tables (the copy of a `VACUUM`) in memory.
pub(super) fn prepare(file: &Store) -> Result<(), StoreError> {
    outside(file, |c| {
        c.pragma_update_and_check(None, "secure_delete", true, |r| r.get::<_, i64>(0))?;
        c.pragma_update(None, "temp_store", "MEMORY")
    })
}

/// Rewrites the database and truncates its log. Takes time in proportion to the whole store, which
/// is small: a sealed record has some hundred bytes.
pub(super) fn rewrite(file: &Store) -> Result<(), StoreError> {
    outside(file, |c| {
        c.execute_batch("VACUUM")?;
        let busy_readers: i64 = c.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get(0))?;
        if busy_readers == 0 {
            return Ok(());
        }
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        let why = "another program reads the key store, so its log cannot be truncated";
        Err(rusqlite::Error::SqliteFailure(busy, Some(why.into())))
    })
}

/// Neither works inside a transaction.
fn outside(
    file: &Store,
    work: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<(), StoreError> {
    let done = file.read(|c| work(c).map_err(ron_service::StoreError::from));
    Ok(done?)
}
