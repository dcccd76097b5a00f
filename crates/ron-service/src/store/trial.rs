//! Flips bytes of a database for tests of the services: a changed value must never be read.

use std::fs;
use std::path::Path;

use ron_files::{Disk as _, OsDisk};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::{Store, StoreError};

/// Every row of every table, without the help of an index.
fn dump(conn: &Connection) -> rusqlite::Result<Vec<(String, Vec<Value>)>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut tables = conn.prepare(sql)?;
    let tables = tables.query_map([], |row| row.get::<_, String>(0))?;
    let mut all = Vec::new();
    for table in tables.collect::<rusqlite::Result<Vec<_>>>()? {
        let mut query =
            conn.prepare(&format!("SELECT * FROM {table} NOT INDEXED ORDER BY 1, 2"))?;
        let columns = query.column_count();
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..columns).map(|at| row.get(at));
            all.push((table.clone(), values.collect::<rusqlite::Result<_>>()?));
        }
    }
    Ok(all)
}

/// Flips one bit in every `step`th byte of the closed database at `path`, one at a time. Each time `open` must name the file
/// in its refusal, or the store must have the rows that it had. Returns the number of both outcomes.
///
/// # Panics
/// When another value is read.
pub fn flip_bytes(
    path: &Path,
    step: usize,
    open: impl Fn(&Path) -> Result<Store, StoreError>,
) -> (usize, usize) {
    let rows = |store: &Store| store.read(|conn| dump(conn).map_err(StoreError::from));
    let whole = rows(&open(path).expect("opens")).expect("reads");
    assert!(!whole.is_empty(), "there is nothing to change");
    let bytes = fs::read(path).expect("reads");
    let name = path.file_name().expect("a file").to_string_lossy();
    let file = OsDisk.open_write(path).expect("opens");
    let (mut refused, mut harmless) = (0, 0);
    for at in (0..bytes.len()).step_by(step) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        for ending in ["-wal", "-shm"] {
            let _ = fs::remove_file(path.with_file_name(format!("{name}{ending}"))); // mostly there is none
        }
        file.write_at(0, &flipped).expect("writes");
        match open(path).and_then(|store| rows(&store)) {
            Ok(found) => {
                assert_eq!(found, whole, "byte {at} of {name}");
                harmless += 1;
            }
            Err(error) => {
                let why = error.to_string();
                assert!(why.contains(&*name), "byte {at} of {name}: {why}");
                refused += 1;
            }
        }
    }
    (refused, harmless)
}
