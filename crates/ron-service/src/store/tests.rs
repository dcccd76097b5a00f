//! Migrations, poison, copies and permissions of a store.

use super::*;

const ONE: Migration = Migration {
    version: 1,
    name: "begin",
    sql: "CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT NOT NULL) STRICT;",
};
const TWO: Migration = Migration {
    version: 2,
    name: "add w",
    sql: "ALTER TABLE t ADD COLUMN w TEXT;",
};

fn put(store: &Store, k: i64) -> Result<(), StoreError> {
    store.write(|tx| {
        tx.execute("INSERT INTO t (k, v) VALUES (?1, 'x')", [k])?;
        Ok(())
    })
}

fn count(conn: &Connection) -> i64 {
    conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0))
        .unwrap()
}

#[test]
fn it_migrates_forward_and_refuses_a_newer_format() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    put(&Store::open(&path, &[ONE]).unwrap(), 1).unwrap();
    let store = Store::open(&path, &[ONE, TWO]).unwrap();
    store
        .write(|tx| Ok::<_, StoreError>(tx.execute("UPDATE t SET w = 'y'", [])?))
        .unwrap();
    let settings: (String, i64) = store
        .read(|c| {
            let mode = c.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
            Ok::<_, StoreError>((
                mode,
                c.pragma_query_value(None, "synchronous", |r| r.get(0))?,
            ))
        })
        .unwrap();
    assert_eq!(settings, ("wal".to_owned(), 2), "WAL and FULL");
    drop(store);
    let error = Store::open(&path, &[ONE]).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
    let broken = Migration {
        version: 3,
        name: "broken",
        sql: "CREATE TABLE u (a); CREATE TABLE nonsense oops;",
    };
    let error = Store::open(&path, &[ONE, TWO, broken]).unwrap_err();
    assert!(
        matches!(error, StoreError::Migration { version: 3, .. }),
        "{error}"
    );
    let store = Store::open(&path, &[ONE, TWO]).expect("the failed step left nothing behind");
    let tables: i64 = store
        .read(|c| {
            Ok::<_, StoreError>(c.query_row(
                "SELECT count(*) FROM sqlite_schema WHERE name = 'u'",
                [],
                |r| r.get(0),
            )?)
        })
        .unwrap();
    assert_eq!(tables, 0);
}

#[test]
fn an_error_rolls_back_and_a_failed_commit_poisons() {
    let store = Store::memory(&[
        ONE,
        Migration {
            version: 2,
            name: "deferred",
            sql: "CREATE TABLE c (t INTEGER REFERENCES t(k) DEFERRABLE INITIALLY DEFERRED);",
        },
    ])
    .unwrap();
    let refused: Result<(), StoreError> = store.write(|tx| {
        tx.execute("INSERT INTO t (k, v) VALUES (1, 'x')", [])?;
        Err(StoreError::Sqlite(rusqlite::Error::InvalidQuery))
    });
    assert!(refused.is_err());
    assert_eq!(
        store.read(|c| Ok::<_, StoreError>(count(c))).unwrap(),
        0,
        "rolled back"
    );
    put(&store, 1).unwrap();
    // A deferred constraint fails at the commit itself, like a failing disk.
    let failed: Result<usize, StoreError> =
        store.write(|tx| Ok(tx.execute("INSERT INTO c (t) VALUES (99)", [])?));
    assert!(matches!(failed, Err(StoreError::Commit(_))), "{failed:?}");
    assert!(store.poisoned() && store.poison().is_set());
    assert!(matches!(put(&store, 2), Err(StoreError::Poisoned)));
    assert_eq!(
        store.read(|c| Ok::<_, StoreError>(count(c))).unwrap(),
        1,
        "reads go on"
    );
}

#[test]
fn readers_see_a_live_store_a_backup_and_a_read_only_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = Store::open(&path, &[ONE]).unwrap();
    let reader = Store::reader(&path).unwrap();
    put(&store, 1).unwrap();
    assert_eq!(count(&reader), 1);
    assert!(reader.execute("DELETE FROM t", []).is_err(), "read-only");
    let copy = dir.path().join("copy.db");
    store.backup_to(&copy).unwrap();
    assert_eq!(count(&Store::reader(&copy).unwrap()), 1);
    assert!(store.backup_to(&copy).is_err(), "a backup never overwrites");
    assert!(Store::reader(&dir.path().join("none.db")).is_err());
}

#[test]
fn a_read_only_copy_may_have_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a?b#c%41 \u{e9}.db");
    let store = Store::open(&dir.path().join("s.db"), &[ONE]).unwrap();
    put(&store, 1).unwrap();
    store.backup_to(&path).unwrap();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let copy = Connection::open_with_flags(immutable_uri(&path), flags).unwrap();
    assert_eq!(count(&copy), 1);
}

#[test]
fn every_file_is_for_its_user_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let modes = || {
        let entries = fs::read_dir(dir.path()).unwrap().map(Result::unwrap);
        let mode = |entry: fs::DirEntry| entry.metadata().unwrap().permissions().mode();
        let modes: Vec<u32> = entries.map(mode).map(|mode| mode & 0o777).collect();
        assert_eq!(modes, vec![0o600; modes.len()]);
        modes.len()
    };
    let store = Store::open(&path, &[ONE]).unwrap();
    put(&store, 1).unwrap();
    assert_eq!(modes(), 3, "with -wal and -shm");
    // As an earlier version has left them.
    for file in ["", "-wal", "-shm"].map(|ending| beside(&path, ending)) {
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    let second = Store::open(&path, &[ONE]).unwrap();
    second.backup_to(&dir.path().join("copy.db")).unwrap();
    assert_eq!(modes(), 4);
}

/// A file without copies, as an earlier version has left it, and a table that gets a column.
#[test]
fn every_table_gets_its_copy_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let home = Dir::os(dir.path());
    let bare = Store::open_without_copies(&home, "s.db", &[ONE]).unwrap();
    put(&bare, 1).unwrap();
    drop(bare);
    let indexes = |store: &Store| -> Vec<String> {
        let read = store.read(|c| Ok::<_, StoreError>(schema(c)?)).unwrap();
        let indexes = read
            .into_iter()
            .filter(|[kind, ..]| kind.as_deref() == Some("index"));
        indexes.filter_map(|[.., sql]| sql).collect()
    };
    let store = Store::open(&path, &[ONE]).unwrap();
    assert_eq!(indexes(&store), ["CREATE INDEX t_copy ON t (k, v)"]);
    put(&store, 2).unwrap();
    drop(store);
    for _ in 0..2 {
        let store = Store::open(&path, &[ONE, TWO]).unwrap();
        assert_eq!(indexes(&store), ["CREATE INDEX t_copy ON t (k, v, w)"]);
        assert_eq!(store.read(|c| Ok::<_, StoreError>(count(c))).unwrap(), 2);
    }
}

#[test]
fn no_flipped_byte_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = Store::open(&path, &[ONE, TWO]).unwrap();
    (0..40).for_each(|k| put(&store, k).unwrap());
    drop(store);
    let (refused, harmless) = trial::flip_bytes(&path, 3, |path| Store::open(path, &[ONE, TWO]));
    assert!(refused > 300 && harmless > 300, "{refused} {harmless}");
}

#[test]
fn a_damaged_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    std::fs::write(&path, b"this is no database at all, whatever its name says").unwrap();
    assert!(Store::open(&path, &[ONE]).is_err());
}
