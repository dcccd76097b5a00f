//! The console's SQLite file, `admin.db`: the audit, heads of logs, the timeline and the history of series. The audit's thread alone
//! writes it.

use ron_files::Dir;
use ron_proto::admin::AuditEntry;
use ron_service::{Migration, Store, StoreError};
use rusqlite::Transaction;
use serde::de::DeserializeOwned;

use crate::history::{self, History, Minute};
use crate::line::Line;
use crate::timeline;

/// Lines of the audit that readers see.
pub const RECENT: usize = 500;
/// Lines of the audit that the file keeps.
const KEPT: u64 = 20_000;
/// The file's name in the console's directory.
pub const FILE: &str = "admin.db";
/// Bytes above which the history loses its oldest minutes, so that the file stays below 200 MB with what SQLite needs beside it.
pub const BYTES_MAX: u64 = 180_000_000;
/// Minutes of the history that go at once when the file is too large.
const DROPPED: u64 = 60;

static MIGRATIONS: [Migration; 3] = [
    Migration {
        version: 1,
        name: "audit and heads",
        sql: "CREATE TABLE audit (seq INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT;
              CREATE TABLE heads (id TEXT PRIMARY KEY, size INTEGER NOT NULL, root TEXT NOT NULL) STRICT;",
    },
    Migration {
        version: 2,
        name: "timeline",
        sql: "CREATE TABLE timeline (seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, line TEXT NOT NULL) STRICT;",
    },
    Migration {
        version: 3,
        name: "history",
        sql: "CREATE TABLE history (minute INTEGER PRIMARY KEY, nodes TEXT NOT NULL) STRICT;",
    },
];

/// What the file had at the start.
pub struct Contents {
    pub heads: Vec<SeenHead>,
    pub timeline: Vec<Line>,
    pub history: History,
}

/// A log head that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenHead {
    /// The node's id.
    pub id: String,
    pub size: u64,
    /// Base64, as in the checkpoint.
    pub root: String,
}

/// Opens the file in this directory (`None`: memory).
pub fn open(home: Option<&Dir>) -> Result<Store, StoreError> {
    match home {
        Some(home) => Store::open_in(home, FILE, &MIGRATIONS),
        None => Store::memory(&MIGRATIONS),
    }
}

/// The last lines of the audit, newest first, and the rest.
pub fn load(store: &Store) -> Result<(Vec<AuditEntry>, Contents), StoreError> {
    let (mut recent, mut timeline) = (Vec::new(), Vec::new());
    let newest = format!("SELECT line FROM audit ORDER BY seq DESC LIMIT {RECENT}");
    load_texts(store, &newest, |line| recent.push(line))?;
    let all = "SELECT line FROM timeline ORDER BY seq";
    load_texts(store, all, |line| timeline.push(line))?;
    let mut history = History::default();
    let all = "SELECT nodes FROM history ORDER BY minute";
    load_texts(store, all, |minute| {
        history.push(minute);
    })?;
    let heads = store.read(|db| {
        let mut heads = db.prepare("SELECT id, size, root FROM heads ORDER BY id")?;
        let rows = heads.query_map([], |row| {
            Ok(SeenHead {
                id: row.get(0)?,
                size: row.get::<_, i64>(1)?.unsigned_abs(),
                root: row.get(2)?,
            })
        })?;
        Ok::<_, StoreError>(rows.collect::<Result<Vec<_>, _>>()?)
    })?;
    let contents = Contents {
        heads,
        timeline,
        history,
    };
    Ok((recent, contents))
}

/// Takes the rows of a query for one column. A row of a later version is skipped; it must not prevent the start.
fn load_texts<T: DeserializeOwned>(
    store: &Store,
    query: &str,
    mut take: impl FnMut(T),
) -> Result<(), StoreError> {
    store.read(|db| {
        let mut rows = db.prepare(query)?;
        let texts = rows.query_map([], |row| row.get::<_, String>(0))?;
        for text in texts {
            if let Ok(row) = serde_json::from_str(&text?) {
                take(row);
            }
        }
        Ok(())
    })
}

/// Writes a line of the audit under the next number, which it returns.
pub fn write_line(store: &Store, line: &AuditEntry) -> Result<u64, StoreError> {
    store.write(|tx| {
        // From the file and not from what readers see, which lacks the lines of later versions.
        let newest = tx.query_row("SELECT coalesce(max(seq), 0) FROM audit", [], |row| {
            row.get::<_, i64>(0)
        })?;
        let seq = newest.unsigned_abs() + 1;
        let line = AuditEntry {
            seq,
            ..line.clone()
        };
        tx.execute(
            "INSERT INTO audit (seq, line) VALUES (?1, ?2)",
            (number(seq), text(&line)),
        )?;
        // In the same transaction, so that the file never grows beyond the limit.
        let oldest = seq.saturating_sub(KEPT);
        tx.execute("DELETE FROM audit WHERE seq <= ?1", [number(oldest)])?;
        Ok(seq)
    })
}

pub fn write_head(store: &Store, head: &SeenHead) -> Result<(), StoreError> {
    store.write(|tx| {
        tx.execute(
            "INSERT INTO heads (id, size, root) VALUES (?1, ?2, ?3)
             ON CONFLICT (id) DO UPDATE SET size = ?2, root = ?3",
            (&head.id, number(head.size), &head.root),
        )?;
        Ok(())
    })
}

pub fn write_timeline(store: &Store, lines: &[Line]) -> Result<(), StoreError> {
    let Some(newest) = lines.last() else {
        return Ok(());
    };
    store.write(|tx| {
        let mut insert =
            tx.prepare("INSERT OR REPLACE INTO timeline (seq, at_ms, line) VALUES (?1, ?2, ?3)")?;
        for line in lines {
            let at = number(line.entry.at.unix_ms());
            insert.execute((number(line.entry.seq), at, text(line)))?;
        }
        let oldest = newest.entry.seq.saturating_sub(timeline::KEPT as u64);
        let since = newest.entry.at.unix_ms().saturating_sub(timeline::KEPT_MS);
        tx.execute(
            "DELETE FROM timeline WHERE seq <= ?1 OR at_ms < ?2",
            (number(oldest), number(since)),
        )?;
        Ok(())
    })
}

/// Writes the newest minute of the history. Minutes after it are those of a clock that was ahead.
pub fn write_minute(store: &Store, minute: &Minute, bytes_max: u64) -> Result<(), StoreError> {
    store.write(|tx| {
        let (at, oldest) = (
            minute.minute,
            minute.minute.saturating_sub(history::KEPT_MIN),
        );
        tx.execute(
            "DELETE FROM history WHERE minute >= ?1 OR minute < ?2",
            (number(at), number(oldest)),
        )?;
        if used_bytes(tx)? > bytes_max {
            let first = "SELECT coalesce(min(minute), 0) FROM history";
            let first: i64 = tx.query_row(first, [], |row| row.get(0))?;
            let until = first.saturating_add(number(DROPPED));
            tx.execute("DELETE FROM history WHERE minute < ?1", [until])?;
        }
        tx.execute(
            "INSERT INTO history (minute, nodes) VALUES (?1, ?2)",
            (number(at), text(minute)),
        )?;
        Ok(())
    })
}

/// Bytes of the file without the pages that the next writes will use again.
fn used_bytes(tx: &Transaction<'_>) -> Result<u64, StoreError> {
    let figure = |name: &str| -> Result<u64, StoreError> {
        let value: i64 = tx.pragma_query_value(None, name, |row| row.get(0))?;
        Ok(value.unsigned_abs())
    };
    Ok((figure("page_count")? - figure("freelist_count")?) * figure("page_size")?)
}

/// The types of the console always serialise.
fn text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// SQLite's integers are signed; these numbers never come near 2^63.
fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::SERIES;
    use std::collections::BTreeMap;

    fn minute(minute: u64, node: &str) -> Minute {
        let figures = [Some(1.0); SERIES.len()];
        Minute::new(minute, &BTreeMap::from([(node.to_owned(), figures)]))
    }

    fn minutes(store: &Store) -> Vec<u64> {
        let mut minutes = Vec::new();
        let all = "SELECT nodes FROM history ORDER BY minute";
        load_texts(store, all, |minute: Minute| minutes.push(minute.minute)).expect("loads");
        minutes
    }

    #[test]
    fn the_history_keeps_a_week_and_forgets_minutes_of_a_clock_that_was_ahead() {
        let store = open(None).expect("opens");
        let write = |at| write_minute(&store, &minute(at, "a"), BYTES_MAX).expect("writes");
        let first = 1_000_000;
        for at in [first, first + 1, first + 2] {
            write(at);
        }
        assert_eq!(minutes(&store), [first, first + 1, first + 2]);
        write(first + 1);
        assert_eq!(minutes(&store), [first, first + 1]);
        let later = first + history::KEPT_MIN + 1;
        write(later);
        assert_eq!(minutes(&store), [first + 1, later]);
    }

    #[test]
    fn the_file_does_not_grow_beyond_its_limit() {
        let store = open(None).expect("opens");
        let (limit, node) = (200_000, "n".repeat(64));
        let mut most = 0;
        for at in 1..=3_000 {
            write_minute(&store, &minute(at, &node), limit).expect("writes");
            most = most.max(store.write(used_bytes).expect("reads"));
        }
        assert!((limit..limit + 20_000).contains(&most), "{most}");
        let kept = minutes(&store);
        assert!(kept.len() > 500 && kept.last() == Some(&3_000), "{kept:?}");
        let next = |a: &u64, b: &u64| a + 1 == *b;
        assert!(kept.is_sorted_by(next), "the newest, without a hole");
    }

    #[test]
    fn a_file_of_version_2_keeps_its_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Dir::os(dir.path());
        let old = Store::open_in(&home, FILE, &MIGRATIONS[..2]).expect("opens");
        let line = r#"{"entry":{"seq":3,"at":"2026-01-02T03:04:05.000Z","node":"a","kind":"node_state","severity":"error","reason":"down","number":null,"detail":"connection refused","because":null},"service":null,"event":null}"#;
        old.write(|tx| {
            tx.execute("INSERT INTO timeline VALUES (3, 1, ?1)", [line])?;
            Ok::<_, StoreError>(())
        })
        .expect("writes");
        drop(old);
        let store = open(Some(&home)).expect("opens");
        let (_, contents) = load(&store).expect("loads");
        let [line] = &contents.timeline[..] else {
            panic!("{:?}", contents.timeline);
        };
        assert_eq!(line.state(), Some(ron_proto::admin::NodeState::Down));
        assert!(!contents.history.has("a"));
    }
}
