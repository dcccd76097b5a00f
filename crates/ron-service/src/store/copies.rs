//! A second place for every value: an index over all columns of each table, which `PRAGMA integrity_check` compares with the
//! rows.

use rusqlite::Connection;

/// Gives each table the index that holds its columns a second time. A table that got a column since
/// gets a new one.
pub(super) fn copy_rows(conn: &Connection) -> rusqlite::Result<()> {
    let strings = |sql: &str, of: &str| -> rusqlite::Result<Vec<String>> {
        let mut query = conn.prepare(sql)?;
        let rows = query.query_map([of], |row| row.get(0))?;
        rows.collect()
    };
    for table in strings("SELECT name FROM sqlite_schema WHERE type = ?1", "table")? {
        let copy = format!("{table}_copy");
        let columns = strings(
            "SELECT name FROM pragma_table_info(?1) ORDER BY cid",
            &table,
        )?;
        let copied = "SELECT name FROM pragma_index_info(?1) ORDER BY seqno";
        if strings(copied, &copy)? == columns {
            continue;
        }
        let columns = columns.join(", ");
        conn.execute_batch(&format!(
            "BEGIN IMMEDIATE; DROP INDEX IF EXISTS {copy}; CREATE INDEX {copy} ON {table} ({columns}); COMMIT;"
        ))?;
    }
    Ok(())
}

/// Everything that the schema says, in order.
pub(super) fn schema(conn: &Connection) -> rusqlite::Result<Vec<[Option<String>; 4]>> {
    let mut query =
        conn.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")?;
    let rows = query.query_map([], |row| {
        Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
    })?;
    rows.collect()
}
