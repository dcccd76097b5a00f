//! Records in SQLite: [`Store`] behind the contract.

use ron_kernel::Deadline;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use super::{RecordError, RecordStore, Refusal, Row, Statements, Value, Work, check_params};
use crate::store::{Store, StoreError};

/// Records in the file of a [`Store`]. One file has one writer, which the lock of its directory ensures.
#[derive(Debug)]
pub struct FileRecords(Store);

impl FileRecords {
    pub fn new(store: Store) -> Self {
        Self(store)
    }

    /// The file, for what no other engine has: pragmas, and a watch of its disk.
    pub fn store(&mut self) -> &mut Store {
        &mut self.0
    }
}

/// Why a transaction ended without a commit.
enum Ended {
    ByWork,
    Failed(RecordError),
    Store(StoreError),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn refused(error: &StoreError) -> RecordError {
    match error {
        StoreError::Commit(_) => RecordError::Unknown(error.to_string()),
        StoreError::Poisoned => Refusal::Unresolved.into(),
        StoreError::Damaged { .. } => RecordError::Damaged(error.to_string()),
        error => Refusal::Unavailable(error.to_string()).into(),
    }
}

impl RecordStore for FileRecords {
    fn transact(&mut self, work: &mut Work<'_>, _deadline: Deadline) -> Result<bool, RecordError> {
        let done = self.0.write(|tx| match run(tx, work) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Ended::ByWork),
            Err(error) => Err(Ended::Failed(error)),
        });
        match done {
            Ok(()) => Ok(true),
            Err(Ended::ByWork) => Ok(false),
            Err(Ended::Failed(error)) => Err(error),
            Err(Ended::Store(error)) => Err(refused(&error)),
        }
    }

    fn view(&mut self, work: &mut Work<'_>, _deadline: Deadline) -> Result<(), RecordError> {
        let viewed = self.0.read(|conn| {
            let tx = conn.unchecked_transaction()?;
            Ok::<_, StoreError>(run(&tx, work)) // dropped: rolled back
        });
        viewed.map_err(|error| refused(&error))?.map(|_| ())
    }

    fn confirm(&mut self, _deadline: Deadline) -> Result<(), RecordError> {
        Ok(()) // what a transaction of this file can read is on its disk
    }

    fn resolve(&mut self, _deadline: Deadline) -> Result<bool, RecordError> {
        if !self.0.poisoned() {
            return Err(Refusal::Rejected("no write is unknown".into()).into());
        }
        let why = "a commit failed, and only a restart shows what the disk has of it";
        Err(RecordError::Unknown(why.into()))
    }
}

fn run(conn: &Connection, work: &mut Work<'_>) -> Result<bool, RecordError> {
    let mut open = FileStatements { conn, failed: None };
    let commit = work(&mut open);
    open.failed.map_or(Ok(commit), Err)
}

/// A transaction of the file.
struct FileStatements<'a> {
    conn: &'a Connection,
    /// SQLite would go on after a statement that failed; the first failure ends all.
    failed: Option<RecordError>,
}

impl FileStatements<'_> {
    fn once<T>(
        &mut self,
        params: &[Value],
        statement: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, RecordError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let done = check_params(params);
        let done = done.and_then(|()| statement(self.conn).map_err(|e| rejected(&e)));
        done.inspect_err(|error| self.failed = Some(error.clone()))
    }
}

fn rejected(error: &rusqlite::Error) -> RecordError {
    Refusal::Rejected(error.to_string()).into()
}

impl Statements for FileStatements<'_> {
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, RecordError> {
        self.once(params, |conn| {
            let mut statement = conn.prepare_cached(sql)?;
            Ok(statement.execute(params_from_iter(params))? as u64)
        })
    }

    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>, RecordError> {
        self.once(params, |conn| {
            let mut statement = conn.prepare_cached(sql)?;
            let columns = statement.column_count();
            let mut rows = statement.query(params_from_iter(params))?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let values = (0..columns).map(|column| value(column, row.get_ref(column)?));
                found.push(Row(values.collect::<rusqlite::Result<_>>()?));
            }
            Ok(found)
        })
    }
}

fn value(column: usize, found: ValueRef<'_>) -> rusqlite::Result<Value> {
    Ok(match found {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Text(_) => Value::Text(found.as_str()?.to_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_owned()),
        ValueRef::Real(_) => {
            let name = format!("column {column}");
            let kind = rusqlite::types::Type::Real;
            return Err(rusqlite::Error::InvalidColumnType(column, name, kind));
        }
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ron_files::{Dir, FaultKind, SimDisk};

    use super::*;
    use crate::records::Writer;
    use crate::store::Migration;

    const TABLE: Migration = Migration {
        version: 1,
        name: "begin",
        sql: "CREATE TABLE t (k INTEGER PRIMARY KEY) STRICT;",
    };

    fn by() -> Deadline {
        Deadline::within(Duration::from_secs(60))
    }

    fn put(records: &mut dyn RecordStore, k: i64) -> Result<u64, RecordError> {
        records.write(Writer::Shared, by(), |tx| {
            tx.execute("INSERT INTO t VALUES (?1)", &[Value::Int(k)])
        })
    }

    #[test]
    fn a_commit_that_fails_is_unknown_until_a_restart() {
        let disk = SimDisk::new();
        let dir = Dir::new(Arc::new(disk.clone()), "/d");
        let store = Store::open_in(&dir, "s.db", &[TABLE]).expect("opens");
        let mut records = FileRecords::new(store);
        assert_eq!(put(&mut records, 1), Ok(1));
        disk.fail_after(1, FaultKind::Io);
        let unknown = put(&mut records, 2);
        assert!(
            matches!(unknown, Err(RecordError::Unknown(_))),
            "{unknown:?}"
        );
        assert_eq!(put(&mut records, 3), Err(Refusal::Unresolved.into()));
        let resolved = records.resolve(by());
        assert!(
            matches!(resolved, Err(RecordError::Unknown(_))),
            "{resolved:?}"
        );
        // Reads go on.
        let records: &mut dyn RecordStore = &mut records;
        let rows = records.read(by(), |tx| tx.query("SELECT k FROM t ORDER BY k", &[]));
        assert_eq!(rows, Ok(vec![Row(vec![Value::Int(1)])]));
    }
}
