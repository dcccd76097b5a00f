//! Searches for entries: conditions, indexes and cursors.

use ron_proto::ledger::{Direction, EntrySearch};
use ron_proto::{SignedAmount, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params_from_iter};

use super::queries::{ProjectionReader, SCAN, SearchError, balance, cut, first_at};

/// Sequences that a search found, newest first, with the balance after each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSeqs {
    pub entries: Vec<(u64, Option<SignedAmount>)>,
    pub older: Option<u64>,
    pub newer: u64,
}

/// A condition of a query and its values.
#[derive(Clone, Default)]
struct Conditions {
    text: String,
    values: Vec<Value>,
}

impl Conditions {
    fn and(&mut self, text: &str, values: impl IntoIterator<Item = Value>) {
        if !self.text.is_empty() {
            self.text.push_str(" AND ");
        }
        self.text.push_str(text);
        self.values.extend(values);
    }
}

/// The id of the account with a name.
const ID: &str = "(SELECT id FROM accounts WHERE name = ?)";

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

const fn int(n: u64) -> Value {
    Value::Integer(n as i64)
}

/// The rows among which a search looks, in the order of their index.
struct Rows {
    /// Table `x` and its index. Without statistics SQLite would choose the primary key.
    table: &'static str,
    within: Conditions,
}

impl Rows {
    /// The narrowest index for a search.
    fn of(search: &EntrySearch) -> Self {
        let mut within = Conditions::default();
        let table = if let Some(batch) = search.batch {
            within.and("x.batch = ?", [text(batch)]);
            "entries x INDEXED BY entries_batch"
        } else if let Some(hold) = search.hold {
            within.and("x.hold = ?", [text(hold)]);
            "entries x INDEXED BY entries_hold"
        } else if let Some(account) = &search.account {
            within.and(&format!("x.account = {ID}"), [text(account)]);
            match &search.reference {
                Some(reference) => {
                    within.and("x.reference = ?", [text(reference.as_str())]);
                    "history x INDEXED BY history_reference"
                }
                None => "history x",
            }
        } else if let (Some(reference), Some(viewer)) = (&search.reference, &search.viewer) {
            let values = [text(&viewer.tenant), text(reference.as_str())];
            within.and("x.tenant = ? AND x.reference = ?", values);
            "entries x INDEXED BY entries_reference"
        } else {
            "entries x"
        };
        Self { table, within }
    }
}

/// The conditions of a search on the entry `e`.
fn filters(search: &EntrySearch) -> Conditions {
    let mut c = Conditions::default();
    if let Some(asset) = &search.asset {
        c.and("e.asset = ?", [text(asset)]);
    }
    if let Some(kind) = search.kind {
        c.and("e.kind = ?", [text(kind)]);
    }
    if let Some(account) = &search.account {
        match search.direction {
            Some(Direction::In) => c.and("e.to_account = ?", [text(account)]),
            Some(Direction::Out) => c.and("e.from_account = ?", [text(account)]),
            None if search.batch.is_some() || search.hold.is_some() => {
                c.and(
                    "(e.from_account = ? OR e.to_account = ?)",
                    [text(account), text(account)],
                );
            }
            None => {}
        }
        if let Some(other) = &search.counterparty {
            c.and(
                "((e.from_account = ? AND e.to_account = ?) OR (e.to_account = ? AND e.from_account = ?))",
                [text(account), text(other), text(account), text(other)],
            );
        }
    }
    if let Some(reference) = &search.reference {
        c.and("e.reference = ?", [text(reference.as_str())]);
    }
    for member in &search.metadata {
        let path = format!("$.\"{}\"", member.name());
        let values = [Value::Text(path), text(member.value())];
        c.and("json_extract(e.metadata, ?) = ?", values);
    }
    if let Some(viewer) = &search.viewer {
        let own = || [text(&viewer.tenant), text(&viewer.principal)];
        c.and(
            "(e.outcome = 'done' OR (e.tenant = ? AND e.principal = ?))",
            own(),
        );
        let payer = search.account.as_ref().map_or(Value::Null, text);
        let of_payer = "e.tenant = ? AND (e.principal = ? OR e.from_account = ?)";
        if search.account.is_none() && search.reference.is_some() {
            // It is all of the viewer's tenant; the caller knows which accounts the viewer may read.
            c.and("e.tenant = ?", [text(&viewer.tenant)]);
            return c;
        }
        if search.reference.is_some() {
            let values = own().into_iter().chain([payer.clone()]);
            c.and(&format!("(e.shared OR ({of_payer}))"), values);
        }
        if !search.metadata.is_empty() {
            c.and(&format!("({of_payer})"), own().into_iter().chain([payer]));
        }
    }
    c
}

impl ProjectionReader {
    /// Entries that match, at most `search.limit`.
    pub fn search(&self, search: &EntrySearch) -> Result<FoundSeqs, SearchError> {
        let (db, applied) = self.open_at(search.min_seq)?;
        let below = |ts: Option<Timestamp>| ts.map(|ts| first_at(&db, ts, applied)).transpose();
        let first = below(search.from)?
            .unwrap_or(0)
            .max(search.after.map_or(0, |seq| seq + 1));
        let end = below(search.until)?.unwrap_or(applied + 1);
        let end = search.before.map_or(end, |seq| end.min(seq));
        let upwards = search.after.is_some();
        let (edge, sql, values) = search_sql(&db, search, (first, end))?;
        let mut q = db.prepare_cached(&sql)?;
        let rows = q.query_map(params_from_iter(values), |r| {
            let total = match (
                r.get::<_, Option<String>>(1)?,
                r.get::<_, Option<String>>(2)?,
            ) {
                (Some(credits), Some(debits)) => Some((credits, debits)),
                _ => None,
            };
            Ok((r.get::<_, i64>(0)? as u64, total))
        })?;
        let mut entries = Vec::new();
        for row in rows {
            let (seq, total) = row?;
            let total = total.map(|(credits, debits)| balance(&credits, &debits));
            entries.push((seq, total.transpose()?));
        }
        let more = cut(&mut entries, search.limit);
        // Where the next page in the same direction starts: at the last entry of this one, or where
        // the search stopped.
        let stopped = match (more, entries.last()) {
            (true, Some((seq, _))) => Some(*seq),
            _ => edge,
        };
        if upwards {
            entries.reverse();
            let older = entries.last().map_or(first, |(seq, _)| *seq);
            return Ok(FoundSeqs {
                older: (older > 1).then_some(older),
                newer: stopped.unwrap_or(applied.max(first.saturating_sub(1))),
                entries,
            });
        }
        let newer = match search.before {
            Some(seq) => seq.saturating_sub(1),
            None => applied,
        };
        Ok(FoundSeqs {
            entries,
            older: stopped,
            newer,
        })
    }
}

/// The statement of a search among the entries from `first` to before `end`, and where it stops when
/// it does not look at all of them.
fn search_sql(
    db: &Connection,
    search: &EntrySearch,
    (mut first, mut end): (u64, u64),
) -> Result<(Option<u64>, String, Vec<Value>), SearchError> {
    const RANGE: &str = "x.seq >= ? AND x.seq < ?";
    let Rows { table, within } = Rows::of(search);
    let order = if search.after.is_some() {
        "ASC"
    } else {
        "DESC"
    };
    let mut range = within.clone();
    range.and(RANGE, [int(first), int(end)]);
    let sql = format!(
        "SELECT x.seq FROM {table} WHERE {} ORDER BY x.seq {order} LIMIT 1 OFFSET ?",
        range.text
    );
    let values = range.values.into_iter().chain([int(SCAN - 1)]);
    let edge = db
        .prepare_cached(&sql)?
        .query_row(params_from_iter(values), |r| r.get::<_, i64>(0));
    let edge = edge.optional()?.map(|seq| seq as u64);
    // One lower and one upper bound: of two, SQLite would search the index with one and read all rows up to it.
    match edge {
        Some(seq) if search.after.is_some() => end = seq + 1,
        Some(seq) => first = seq,
        None => {}
    }
    let mut range = within;
    range.and(RANGE, [int(first), int(end)]);
    let filters = filters(search);
    let mut values = Vec::new();
    // The row of the account's history gives the balance after the entry.
    let entry = "CROSS JOIN entries e ON e.seq = x.seq";
    let (from, total) = match &search.account {
        Some(_) if table.starts_with("history") => {
            (format!("{table} {entry}"), "x.credits, x.debits")
        }
        Some(account) => {
            values.push(text(account));
            let history = format!("LEFT JOIN history h ON h.account = {ID} AND h.seq = x.seq");
            (format!("{table} {entry} {history}"), "h.credits, h.debits")
        }
        None => (format!("{table} {entry}"), "NULL, NULL"),
    };
    let mut all = range.text;
    if !filters.text.is_empty() {
        all.push_str(" AND ");
        all.push_str(&filters.text);
    }
    values.extend(range.values);
    values.extend(filters.values);
    values.push(int(search.limit + 1));
    let sql =
        format!("SELECT x.seq, {total} FROM {from} WHERE {all} ORDER BY x.seq {order} LIMIT ?");
    Ok((edge, sql, values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::Projection;
    use crate::projection::queries::tests::assert_indexed;
    use ron_files::Dir;
    use ron_proto::ledger::{TxId, Viewer};
    use rusqlite::StatementStatus;

    /// Instructions of SQLite that a search without matches takes over an account of so many entries.
    fn instructions(entries: u64, after: Option<u64>) -> i32 {
        let dir = tempfile::tempdir().unwrap();
        let _projection = Projection::open(&Dir::os(dir.path()), "test/ledger", 0).unwrap();
        let db = Connection::open(dir.path().join("projection.sqlite")).unwrap();
        db.execute_batch(&format!(
            "BEGIN;
             INSERT INTO accounts (id, name) VALUES (1, 'a');
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {entries})
             INSERT INTO history (account, seq, moved, mixed) SELECT 1, i, 1, 0 FROM n;
             INSERT INTO entries (seq, ts, kind, outcome, shared) SELECT seq, '', 'issue', 'done', 0 FROM history;
             COMMIT;"
        ))
        .unwrap();
        let search = EntrySearch {
            account: Some("a".parse().unwrap()),
            counterparty: Some("b".parse().unwrap()),
            after,
            limit: 10,
            ..EntrySearch::default()
        };
        let (edge, sql, values) = search_sql(&db, &search, (0, entries + 1)).unwrap();
        assert!(edge.is_some(), "the search stops before the end");
        let mut q = db.prepare(&sql).unwrap();
        assert!(!q.exists(params_from_iter(values)).unwrap());
        q.get_status(StatementStatus::VmStep)
    }

    #[test]
    fn a_search_without_matches_costs_the_same_in_any_history() {
        for after in [None, Some(0)] {
            let (short, long) = (
                instructions(4 * SCAN, after),
                instructions(400 * SCAN, after),
            );
            assert!(long < short + 100, "{after:?}: {short} and {long}");
        }
    }

    #[test]
    fn every_search_is_answered_from_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Dir::os(dir.path());
        let _projection = Projection::open(&dir, "test/ledger", 0).unwrap();
        let db = ProjectionReader::new(dir).open().unwrap();
        let id = || Some(TxId::new(1, &[1; 32]));
        let viewer = Some(Viewer {
            tenant: "t".parse().unwrap(),
            principal: "p".parse().unwrap(),
        });
        let account = || Some("a".parse().unwrap());
        let reference = || Some("order 7".parse().unwrap());
        let none = EntrySearch::default();
        let searches = [
            (EntrySearch { ..none.clone() }, "INTEGER PRIMARY KEY"),
            (
                EntrySearch {
                    account: account(),
                    ..none.clone()
                },
                "PRIMARY KEY",
            ),
            (
                EntrySearch {
                    batch: id(),
                    ..none.clone()
                },
                "entries_batch",
            ),
            (
                EntrySearch {
                    hold: id(),
                    account: account(),
                    ..none.clone()
                },
                "entries_hold",
            ),
            (
                EntrySearch {
                    reference: reference(),
                    account: account(),
                    ..none.clone()
                },
                "history_reference",
            ),
            (
                EntrySearch {
                    reference: reference(),
                    viewer: viewer.clone(),
                    ..none.clone()
                },
                "entries_reference",
            ),
        ];
        for (search, index) in searches {
            for (before, after) in [(Some(9), None), (None, Some(3))] {
                let search = EntrySearch {
                    before,
                    after,
                    viewer: viewer.clone(),
                    counterparty: search.account.clone(),
                    metadata: vec!["colour=red".parse().unwrap()],
                    ..search.clone()
                };
                let (_, sql, _) = search_sql(&db, &search, (1, 9)).unwrap();
                assert_indexed(&db, &sql, index);
            }
        }
    }
}
