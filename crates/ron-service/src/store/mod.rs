//! One SQLite file per service, for its user alone: WAL, `synchronous=FULL`, numbered forward-only
//! migrations. A failed commit poisons the store: writes are refused from then on, reads continue,
//! and only a restart helps.
//!
//! Each table has an index over all its columns, `<table>_copy`, which SQLite keeps in every
//! transaction. `PRAGMA integrity_check` compares rows and copies at each start, and the schema is
//! compared with that of the migrations, so that a byte that changed on the disk is an error and no
//! other value.

mod copies;
mod image;
pub mod trial;

use std::cell::RefCell;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percent_encoding::{AsciiSet, percent_encode};
use ron_files::{Dir, DiskRoom, NoRoom};
use ron_kernel::DiskWatch;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use copies::{copy_rows, schema};
pub use image::Image;

/// One step of the schema. Versions are 1, 2, 3 ... in order; a released step never changes.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub version: u32,
    pub name: &'static str,
    pub sql: &'static str,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error(
        "the store {path} is of format {found}, this program knows up to {known}; use a newer program"
    )]
    Newer {
        path: String,
        found: u32,
        known: u32,
    },
    #[error("the store {path} cannot be opened: {error}")]
    Open {
        path: String,
        error: rusqlite::Error,
    },
    #[error("the store {path} is not intact: {why}; restore it from a backup")]
    Damaged { path: String, why: String },
    #[error("migration {version} ({name}) of {path} failed and was rolled back: {source}")]
    Migration {
        path: String,
        version: u32,
        name: &'static str,
        source: rusqlite::Error,
    },
    #[error("the store {path} cannot be made for this user alone: {error}")]
    Private { path: String, error: io::Error },
    #[error("the store is closed for writing since an earlier commit failed; restart the service")]
    Poisoned,
    #[error("nothing was written: {0}")]
    NoRoom(NoRoom),
    #[error(
        "the commit failed, so it is not known to be durable: {0}; the store is closed for writing"
    )]
    Commit(rusqlite::Error),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl StoreError {
    /// Names the file that does not open: SQLite's own messages do not.
    #[must_use]
    fn in_file(self, path: &Path) -> Self {
        let Self::Sqlite(error) = self else {
            return self;
        };
        let path = path.display().to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged {
                path,
                why: error.to_string(),
            },
            _ => Self::Open { path, error },
        }
    }
}

/// Shared flag that a store no longer accepts writes; readiness reports it.
#[derive(Clone, Debug, Default)]
pub struct Poison(Arc<AtomicBool>);

impl Poison {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The writing connection. Owned by one thread: it can be sent to it, not shared.
#[derive(Debug)]
pub struct Store {
    conn: RefCell<Connection>,
    /// Where the content goes with each commit, when the database itself is in memory.
    image: Option<Image>,
    poison: Poison,
    disk: Option<(DiskWatch, DiskRoom)>,
}

impl Store {
    /// Opens or creates the file and migrates its schema. The caller must hold the lock of the
    /// directory.
    pub fn open(path: &Path, migrations: &[Migration]) -> Result<Self, StoreError> {
        let opened = Self::open_file(path, migrations, copy_rows);
        opened.map_err(|error| error.in_file(path))
    }

    /// As [`Self::open_in`], for a store whose rows carry sums of their own, or must not be on the disk twice.
    pub fn open_without_copies(
        dir: &Dir,
        name: &str,
        migrations: &[Migration],
    ) -> Result<Self, StoreError> {
        Self::open_on(dir, name, migrations, |_| Ok(()))
    }

    /// Opens or creates the file of this name. SQLite knows the disk of the operating system alone: on another one the
    /// database is in memory, and each commit replaces the file.
    pub fn open_in(dir: &Dir, name: &str, migrations: &[Migration]) -> Result<Self, StoreError> {
        Self::open_on(dir, name, migrations, copy_rows)
    }

    fn open_on(
        dir: &Dir,
        name: &str,
        migrations: &[Migration],
        copy: fn(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, StoreError> {
        let opened = match dir.os_path(name) {
            Some(path) => Self::open_file(&path, migrations, copy),
            None => Self::open_image(dir, name, migrations, copy),
        };
        opened.map_err(|error| error.in_file(&dir.file(name)))
    }

    fn open_file(
        path: &Path,
        migrations: &[Migration],
        copy: fn(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, StoreError> {
        let conn = open_private(path)?;
        // WAL commits are durable only with FULL; NORMAL may lose the last ones in a power cut.
        let mode: String =
            conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        let shown = path.display().to_string();
        if mode != "wal" {
            return Err(StoreError::Damaged {
                path: shown,
                why: format!("journal mode is {mode}, not wal"),
            });
        }
        let store = Self::prepare(conn, &shown, migrations)?;
        store.check_schema(&shown, migrations, copy)?;
        Ok(store)
    }

    fn open_image(
        dir: &Dir,
        name: &str,
        migrations: &[Migration],
        copy: fn(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, StoreError> {
        let path = dir.file(name);
        let (conn, image) = Image::load(dir, name)?;
        let shown = path.display().to_string();
        let mut store = Self::prepare(conn, &shown, migrations)?;
        store.check_schema(&shown, migrations, copy)?;
        store.image = Some(image);
        store.keep_image()?;
        Ok(store)
    }

    /// Gives each table its copy, and compares the schema with that of the migrations.
    fn check_schema(
        &self,
        shown: &str,
        migrations: &[Migration],
        copy: fn(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let conn = self.conn.borrow();
        copy(&conn)?;
        let expected = Connection::open_in_memory()?;
        for step in migrations {
            expected.execute_batch(step.sql)?;
        }
        copy(&expected)?;
        if schema(&conn)? != schema(&expected)? {
            return Err(StoreError::Damaged {
                path: shown.to_owned(),
                why: "its schema is not the one of this program".to_owned(),
            });
        }
        Ok(())
    }

    /// The same schema in memory, for `amnesia = true` and tests.
    pub fn memory(migrations: &[Migration]) -> Result<Self, StoreError> {
        Self::prepare(Connection::open_in_memory()?, "in memory", migrations)
    }

    fn prepare(
        conn: Connection,
        shown: &str,
        migrations: &[Migration],
    ) -> Result<Self, StoreError> {
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "foreign_keys", "ON")?;
        conn.pragma_update(None, "trusted_schema", "OFF")?;
        conn.busy_timeout(Duration::from_secs(2))?;
        let check: String = conn.pragma_query_value(None, "integrity_check", |row| row.get(0))?;
        if check != "ok" {
            return Err(StoreError::Damaged {
                path: shown.to_owned(),
                why: check,
            });
        }
        migrate(&conn, shown, migrations)?;
        Ok(Self {
            conn: RefCell::new(conn),
            image: None,
            poison: Poison::default(),
            disk: None,
        })
    }

    /// Has writes watched from now on, so that a disk that hangs is noticed, and refused while the
    /// disk has too little room.
    pub fn watch_disk(&mut self, watch: DiskWatch, room: DiskRoom) {
        self.disk = Some((watch, room));
    }

    /// Runs `work` in one immediate transaction and commits it. An error of `work` rolls everything
    /// back. When this returns `Ok`, the change is durable.
    pub fn write<T, E: From<StoreError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.poison.is_set() {
            return Err(StoreError::Poisoned.into());
        }
        match &self.disk {
            Some((watch, room)) => {
                room.check().map_err(StoreError::NoRoom)?;
                watch.call(|| self.transact(work))
            }
            None => self.transact(work),
        }
    }

    fn transact<T, E: From<StoreError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let conn = self.conn.borrow();
        let tx = Transaction::new_unchecked(&conn, TransactionBehavior::Immediate)
            .map_err(|error| self.judge(error))?;
        let value = work(&tx)?; // dropped on error: rolled back
        let done = tx.commit();
        drop(conn);
        let kept = done.and_then(|()| self.keep_image());
        kept.map_err(|error| {
            self.poison.set();
            tracing::error!(event = "store_poisoned", reason = "commit", error = %error);
            StoreError::Commit(error)
        })?;
        Ok(value)
    }

    /// Makes what was committed in memory durable, or takes it back.
    fn keep_image(&self) -> rusqlite::Result<()> {
        match &self.image {
            Some(image) => image.keep(&mut self.conn.borrow_mut()),
            None => Ok(()),
        }
    }

    /// Runs queries outside a transaction; `read` must not change anything.
    pub fn read<T, E: From<StoreError>>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, E> {
        read(&self.conn.borrow())
    }

    /// A disk that fails on begin has failed for writing as well.
    fn judge(&self, error: rusqlite::Error) -> StoreError {
        let io = matches!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::SystemIoFailure | rusqlite::ErrorCode::DatabaseCorrupt)
        );
        if io {
            self.poison.set();
            tracing::error!(event = "store_poisoned", reason = "begin", error = %error);
        }
        StoreError::Sqlite(error)
    }

    pub fn poison(&self) -> Poison {
        self.poison.clone()
    }
    pub fn poisoned(&self) -> bool {
        self.poison.is_set()
    }

    /// Writes a consistent copy while the store is in use; `to` must not exist.
    pub fn backup_to(&self, to: &Path) -> Result<(), StoreError> {
        create_private(to)?;
        let to = to.to_string_lossy().into_owned();
        let conn = self.conn.borrow();
        conn.execute("VACUUM INTO ?1", [to])?;
        Ok(())
    }

    /// The same of a database that another process may be using, which is not changed. The copy is checked and durable when this
    /// returns.
    pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
        let copied = || -> Result<(), StoreError> {
            let source = Self::reader(from)?;
            create_private(to)?;
            source.execute("VACUUM INTO ?1", [to.to_string_lossy()])?;
            Ok(())
        };
        copied().map_err(|error| error.in_file(from))?;
        let checked = || -> Result<String, StoreError> {
            let copy = Self::reader(to)?;
            Ok(copy.pragma_query_value(None, "integrity_check", |row| row.get(0))?)
        };
        let path = to.display().to_string();
        match checked().map_err(|error| error.in_file(to))? {
            ok if ok == "ok" => {}
            why => return Err(StoreError::Damaged { path, why }),
        }
        let synced = fs::File::open(to).and_then(|file| file.sync_all());
        synced.map_err(|error| StoreError::Private { path, error })
    }

    /// A separate read-only connection, for other threads and for verifiers; works on a live store,
    /// on a copy, and in a directory that is not writable.
    pub fn reader(path: &Path) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI;
        let probe = |conn: Connection| -> rusqlite::Result<Connection> {
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            conn.busy_timeout(Duration::from_secs(2))?;
            Ok(conn)
        };
        let opened = Connection::open_with_flags(path, flags).and_then(probe);
        let Err(first) = opened else {
            return Ok(opened?);
        };
        // Without a WAL file the database file is complete, so it can be read without a shared
        // index.
        let wal = beside(path, "-wal");
        let settled = std::fs::metadata(wal).map_or(true, |meta| meta.len() == 0);
        if !settled {
            return Err(first.into());
        }
        Ok(Connection::open_with_flags(immutable_uri(path), flags).and_then(probe)?)
    }
}

/// The file that SQLite keeps beside the database under this ending.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Opens the database for reading and writing. A new one is created for its owner alone, whatever
/// the umask, and an earlier one is closed to others. SQLite gives new `-wal` and `-shm` files the
/// mode of the database.
pub fn open_private(path: &Path) -> Result<Connection, StoreError> {
    match create_private(path) {
        Ok(()) => {}
        // An existing file is not opened here: closing it would end the locks that other
        // connections of this process have on it.
        Err(StoreError::Private { error, .. }) if error.kind() == io::ErrorKind::AlreadyExists => {
            for file in ["", "-wal", "-shm"].map(|ending| beside(path, ending)) {
                match fs::set_permissions(&file, Permissions::from_mode(0o600)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(not_private(&file, error));
                    }
                    _ => {}
                }
            }
        }
        Err(error) => return Err(error),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(path, flags)?)
}

/// Creates an empty file with mode 0600; it must not exist.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let mut new = OpenOptions::new();
    let made = new.write(true).create_new(true).mode(0o600).open(path);
    made.map(drop).map_err(|error| not_private(path, error))
}

fn not_private(path: &Path, error: io::Error) -> StoreError {
    StoreError::Private {
        path: path.display().to_string(),
        error,
    }
}

/// The characters that mean something in the URI of a SQLite file.
const URI_MARKS: &AsciiSet = &AsciiSet::EMPTY.add(b'%').add(b'?').add(b'#');

fn immutable_uri(path: &Path) -> String {
    let name = percent_encode(path.as_os_str().as_bytes(), URI_MARKS);
    format!("file:{name}?immutable=1")
}

fn migrate(conn: &Connection, shown: &str, migrations: &[Migration]) -> Result<(), StoreError> {
    let known = migrations.last().map_or(0, |last| last.version);
    let found: u32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > known {
        return Err(StoreError::Newer {
            path: shown.to_owned(),
            found,
            known,
        });
    }
    for (step, expected) in migrations.iter().zip(1..) {
        assert!(
            step.version == expected,
            "migrations are numbered 1, 2, 3 ...; {} is out of place",
            step.name
        );
        if step.version <= found {
            continue;
        }
        let failed = |source| StoreError::Migration {
            path: shown.to_owned(),
            version: step.version,
            name: step.name,
            source,
        };
        let tx =
            Transaction::new_unchecked(conn, TransactionBehavior::Immediate).map_err(failed)?;
        tx.execute_batch(step.sql).map_err(failed)?;
        tx.pragma_update(None, "user_version", step.version)
            .map_err(failed)?;
        tx.commit().map_err(failed)?;
        tracing::info!(
            event = "store_migrated",
            version = step.version,
            name = step.name
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
