//! The classes of accounts, after every entry that set one.

use ron_proto::Account;
use ron_proto::ledger::{AccountClass, Entry, Event};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::{ProjectionError, parsed};

/// Adds the class that an entry set, if it took effect and set one.
pub(super) fn add(tx: &Transaction<'_>, event: &Event) -> Result<(), ProjectionError> {
    let Entry::Account { account, terms, .. } = &event.entry else {
        return Ok(());
    };
    let (Some(class), Some(_)) = (&terms.class, event.answer.receipt()) else {
        return Ok(());
    };
    let mut put = tx.prepare_cached("INSERT INTO classes VALUES (?1, ?2, ?3)")?;
    put.execute(params![account.as_str(), event.seq as i64, class.as_str()])?;
    Ok(())
}

pub(super) const CLASS: &str =
    "SELECT class FROM classes WHERE account = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1";

/// The class of an account after the entry at `seq`.
pub(super) fn class_at(
    db: &Connection,
    account: &Account,
    seq: u64,
) -> Result<Option<AccountClass>, ProjectionError> {
    let mut read = db.prepare_cached(CLASS)?;
    let key = params![account.as_str(), seq as i64];
    let row = read.query_row(key, |r| r.get::<_, String>(0)).optional()?;
    // An empty class took the earlier one away.
    let class = row.filter(|class| !class.is_empty());
    class.map(|class| parsed(&class)).transpose()
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::projection::Projection;
    use ron_files::Dir;

    /// Instructions of SQLite that the class of an account takes which had so many.
    fn instructions(changes: u64) -> i32 {
        let dir = tempfile::tempdir().unwrap();
        let _projection = Projection::open(&Dir::os(dir.path()), "test/ledger", 0).unwrap();
        let db = Connection::open(dir.path().join("projection.sqlite")).unwrap();
        db.execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {changes})
             INSERT INTO classes SELECT 'a', i, 'c' || i FROM n;"
        ))
        .unwrap();
        let middle = changes / 2;
        let mut q = db.prepare(CLASS).unwrap();
        let found: String = q
            .query_row(params!["a", middle as i64], |r| r.get(0))
            .unwrap();
        assert_eq!(found, format!("c{middle}"));
        q.get_status(StatementStatus::VmStep)
    }

    #[test]
    fn a_class_costs_the_same_after_any_number_of_changes() {
        assert_eq!(instructions(10), instructions(10_000));
    }
}
