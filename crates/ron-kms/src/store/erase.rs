//! What destroying a key means for the file.
//!
//! A deleted row does not leave a database by itself: its bytes stay in free space of the page, in
//! pages of the free list and in older frames of the write-ahead log. So:
//!
//! 1. `secure_delete` is on from the start: SQLite overwrites what it deletes with zeros;
//! 2. a destruction replaces every sealed record of the key by its header, which is public;
//! 3. then the database is written anew (`VACUUM`, its temporary copy in memory), which leaves
//!    nothing but live rows in it;
//! 4. and the write-ahead log is copied into the file and cut to nothing.
//!
//! After that no file of the store holds the sealed record. What is beyond a program's reach, and
//! the reason why records are sealed at all: blocks that the file system or the drive has freed
//! without overwriting them, snapshots, and backups.

use super::{Db, StoreError};

/// Settings of the connection that matter here.
pub(super) fn prepare(db: &Db) -> Result<(), StoreError> {
    db.read(|c| {
        c.pragma_update_and_check(None, "secure_delete", true, |r| r.get::<_, i64>(0))?;
        c.pragma_update(None, "temp_store", "MEMORY")
    })
}

/// Writes the database anew and cuts its log. Takes time in proportion to the whole store, which
/// is small: a sealed record has some hundred bytes.
pub(super) fn rewrite(db: &Db) -> Result<(), StoreError> {
    db.read(|c| {
        c.execute_batch("VACUUM")?;
        let in_the_way: i64 = c.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get(0))?;
        if in_the_way == 0 {
            return Ok(());
        }
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        let why = "another program reads the key store, so its log cannot be cut";
        Err(rusqlite::Error::SqliteFailure(busy, Some(why.into())))
    })
}
