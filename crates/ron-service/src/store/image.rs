//! A database in memory whose content is a file of a disk that SQLite does not know, such as a simulated one. A commit is
//! durable when the file has been replaced.

use std::cell::RefCell;
use std::io;

use ron_files::Dir;
use rusqlite::{Connection, ErrorCode, MAIN_DB, ffi};

/// Maximum size of the file, in bytes: it is written whole with every commit.
const BYTES_MAX: u64 = 64 << 20;

/// The file that is replaced with each commit, of a database in memory.
#[derive(Debug)]
pub struct Image {
    dir: Dir,
    name: String,
    /// What the file has at present.
    content: RefCell<Vec<u8>>,
}

/// An error of the disk, as SQLite reports those of its files.
fn failed(error: &io::Error) -> rusqlite::Error {
    let code = ffi::Error {
        code: ErrorCode::SystemIoFailure,
        extended_code: ffi::SQLITE_IOERR,
    };
    rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
}

/// Replaces what is in memory by the content of a file; nothing when there is no file yet.
fn restore(conn: &mut Connection, content: &[u8]) -> rusqlite::Result<()> {
    if content.is_empty() {
        return Ok(());
    }
    conn.deserialize_read_exact(MAIN_DB, content, content.len(), false)
}

impl Image {
    /// Reads the file; without one the database is empty.
    pub fn load(dir: &Dir, name: &str) -> rusqlite::Result<(Connection, Self)> {
        let content = dir.read_small(name, BYTES_MAX).map_err(|e| failed(&e))?;
        let content = content.unwrap_or_default();
        let mut conn = Connection::open_in_memory()?;
        restore(&mut conn, &content)?;
        let image = Self {
            dir: dir.clone(),
            name: name.to_owned(),
            content: RefCell::new(content),
        };
        Ok((conn, image))
    }

    /// Replaces the file by what is in memory. When that fails, memory is as it was before.
    pub fn keep(&self, conn: &mut Connection) -> rusqlite::Result<()> {
        let content = conn.serialize(MAIN_DB)?.to_vec();
        match self.dir.write(&self.name, &content) {
            Ok(()) => {
                self.content.replace(content);
                Ok(())
            }
            Err(error) => {
                restore(conn, &self.content.borrow())?;
                Err(failed(&error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ron_files::{CrashMode, FaultKind, SimDisk};

    use crate::{Migration, Store, StoreError};

    const ONE: Migration = Migration {
        version: 1,
        name: "begin",
        sql: "CREATE TABLE t (k INTEGER PRIMARY KEY) STRICT;",
    };

    fn dir(disk: &SimDisk) -> super::Dir {
        super::Dir::new(Arc::new(disk.clone()), "/d")
    }

    fn open(disk: &SimDisk) -> Result<Store, StoreError> {
        Store::open_in(&dir(disk), "s.db", &[ONE])
    }

    fn put(store: &Store, k: i64) -> Result<usize, StoreError> {
        store.write(|tx| Ok(tx.execute("INSERT INTO t VALUES (?1)", [k])?))
    }

    fn all(store: &Store) -> Vec<i64> {
        let read = store.read(|conn| -> Result<Vec<i64>, StoreError> {
            let mut query = conn.prepare("SELECT k FROM t ORDER BY k")?;
            let rows = query.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.expect("reads")
    }

    #[test]
    fn what_was_committed_is_there_after_a_fault_at_any_operation() {
        for kind in [FaultKind::PowerOff, FaultKind::Io, FaultKind::NoSpace] {
            for at in 1..40 {
                let disk = SimDisk::new();
                disk.fail_after(at, kind);
                let mut done = Vec::new();
                let store = open(&disk);
                if let Ok(store) = &store {
                    done = (1..=4).take_while(|k| put(store, *k).is_ok()).collect();
                    assert_eq!(all(store), done, "{kind:?} at {at}");
                    assert_eq!(store.poisoned(), done.len() < 4);
                    assert!(!store.poisoned() || put(store, 9).is_err());
                }
                for mode in [
                    CrashMode::LoseAll,
                    CrashMode::KeepAll,
                    CrashMode::TearLast(9),
                ] {
                    let image = disk.fork();
                    image.crash(mode);
                    let found = all(&open(&image).expect("opens"));
                    let next = done.len() as i64 + 1;
                    let ends = [done.clone(), [done.clone(), vec![next]].concat()];
                    assert!(
                        ends.contains(&found),
                        "{kind:?} at {at}, {mode:?}: {found:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_damaged_image_is_refused_by_name() {
        let disk = SimDisk::new();
        put(&open(&disk).expect("opens"), 1).expect("written");
        let path = std::path::Path::new("/d/s.db");
        let whole = disk.peek(path).expect("there");
        for at in [3, 100] {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            disk.poke(path, Some(bad));
            let opened = open(&disk).map(|store| all(&store));
            let why = opened.as_ref().err().map(ToString::to_string);
            assert!(
                why.is_some_and(|why| why.contains("s.db")),
                "byte {at}: {opened:?}"
            );
        }
    }
}
