//! The local copy of answers: entries as the ledger's feed told them, so that a request sent again is answered
//! while the ledger is away. Nobody's truth: it may lag, it may be deleted, and what is not in it is not denied.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_proto::ledger::{Entry, EntryAnswer, EntryKey, Event, PrincipalName, RefusalCode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use crate::flights::same_request;

/// Answers older than this are forgotten.
const KEEP_MS: u64 = 24 * 60 * 60 * 1_000;
const FORMAT: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS meta (origin TEXT NOT NULL, applied INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS answers (seq INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, key_hash INTEGER NOT NULL, event TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS answers_by_key ON answers (key_hash);
";

/// The copy does not work; nothing depends on it.
#[derive(Debug, thiserror::Error)]
pub enum AnswersError {
    /// SQLite refused.
    #[error("the copy of answers: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// An entry in it cannot be read.
    #[error("the copy of answers is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    /// It was written by a newer program.
    #[error("the copy of answers has format {0}")]
    Newer(i64),
}

/// What a request sent again is answered with.
#[derive(Debug, Clone, PartialEq)]
pub enum Replay {
    /// The first answers, one per entry.
    First(Vec<EntryAnswer>),
    /// The key belongs to another request.
    Mismatch,
}

/// The one writer.
#[derive(Debug)]
pub struct Answers {
    db: Connection,
    applied: u64,
    keep: u64,
}

impl Answers {
    /// Opens the copy in `path`, or makes it anew when it is of another ledger or not readable. `head` is where the
    /// ledger stands, `keep` how many entries to keep at most.
    pub fn open(path: &Path, origin: &str, head: u64, keep: u64) -> Result<Self, AnswersError> {
        match Self::try_open(path, origin, head, keep) {
            Ok(Some(answers)) => return Ok(answers),
            Ok(None) => tracing::warn!(event = "answers_rebuilt", reason = "of another ledger"),
            Err(why) => tracing::warn!(event = "answers_rebuilt", reason = %why),
        }
        for suffix in ["", "-wal", "-shm"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            // One that is not there needs no removal; anything else shows in the second try.
            let _ = std::fs::remove_file(PathBuf::from(name));
        }
        let made = Self::try_open(path, origin, head, keep)?;
        made.ok_or_else(|| AnswersError::Sqlite(rusqlite::Error::QueryReturnedNoRows))
    }

    fn try_open(
        path: &Path,
        origin: &str,
        head: u64,
        keep: u64,
    ) -> Result<Option<Self>, AnswersError> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "journal_mode", "wal")?;
        // Lost rows come again with the feed.
        db.pragma_update(None, "synchronous", "normal")?;
        db.busy_timeout(Duration::from_secs(2))?;
        let format: i64 = db.pragma_query_value(None, "user_version", |r| r.get(0))?;
        if format != 0 && format != FORMAT {
            return Err(AnswersError::Newer(format));
        }
        db.execute_batch(SCHEMA)?;
        db.pragma_update(None, "user_version", FORMAT)?;
        let meta = db
            .query_row("SELECT origin, applied FROM meta", [], |r| {
                Ok((r.get::<_, String>(0)?, r.get::<_, i64>(1)?))
            })
            .optional()?;
        let applied = match meta {
            Some((found, applied))
                if found == origin && u64::try_from(applied).is_ok_and(|n| n <= head) =>
            {
                applied.cast_unsigned()
            }
            Some(_) => return Ok(None),
            None => {
                // A new copy begins where what it keeps begins.
                let from = head.saturating_sub(keep);
                db.execute(
                    "INSERT INTO meta VALUES (?1, ?2)",
                    params![origin, from as i64],
                )?;
                from
            }
        };
        Ok(Some(Self { db, applied, keep }))
    }

    /// The last entry in it.
    pub const fn applied(&self) -> u64 {
        self.applied
    }

    /// Takes in entries, which follow the last one, and forgets the oldest.
    pub fn take(&mut self, events: &[Event]) -> Result<(), AnswersError> {
        let Some(last) = events.last() else {
            return Ok(());
        };
        let tx = self.db.transaction()?;
        {
            let mut put =
                tx.prepare_cached("INSERT OR REPLACE INTO answers VALUES (?1, ?2, ?3, ?4)")?;
            for event in events {
                if let Some((principal, key)) = event.entry.principal_key() {
                    let text = serde_json::to_string(event)?;
                    put.execute(params![
                        event.seq as i64,
                        event.ts.0 as i64,
                        hash(principal, key),
                        text
                    ])?;
                }
            }
            let oldest = last.seq.saturating_sub(self.keep);
            let since = last.ts.0.saturating_sub(KEEP_MS);
            // Times never go back along the sequence, so the oldest are the first.
            tx.prepare_cached("DELETE FROM answers WHERE seq <= ?1")?
                .execute([oldest as i64])?;
            tx.prepare_cached(
                "DELETE FROM answers WHERE seq IN (SELECT seq FROM answers ORDER BY seq LIMIT 1000) AND ts_ms < ?1",
            )?
            .execute([since as i64])?;
            tx.execute("UPDATE meta SET applied = ?1", [last.seq as i64])?;
        }
        tx.commit()?;
        self.applied = last.seq;
        Ok(())
    }
}

/// Where readers find the copy.
#[derive(Debug, Clone)]
pub struct AnswersReader(Option<PathBuf>);

impl AnswersReader {
    /// Of the file at `path`; without one nothing is ever found.
    pub const fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// What a request would be answered with, if all of it is in the copy.
    pub fn replay(&self, request: &[Entry]) -> Option<Replay> {
        let (principal, key) = request.first()?.principal_key()?;
        let found = self.batch(principal, key, request.len())?;
        replay_of(request, &found)
    }

    /// The entry of a key.
    pub fn by_key(&self, principal: &PrincipalName, key: &EntryKey) -> Option<Event> {
        self.look(|db| {
            let mut q = db.prepare("SELECT event FROM answers WHERE key_hash = ?1")?;
            let rows = q.query_map([hash(principal, key)], |r| r.get::<_, String>(0))?;
            for row in rows {
                let event: Event = serde_json::from_str(&row?)?;
                if event.entry.principal_key() == Some((principal, key)) {
                    return Ok(Some(event));
                }
            }
            Ok(None)
        })
    }

    /// The entry at `seq`.
    pub fn at(&self, seq: u64) -> Option<Event> {
        self.range(seq, 1)?.pop()
    }

    /// The entry of a key and those right behind it, `n` in all.
    pub fn batch(&self, principal: &PrincipalName, key: &EntryKey, n: usize) -> Option<Vec<Event>> {
        let first = self.by_key(principal, key)?;
        if n <= 1 {
            return Some(vec![first]);
        }
        self.range(first.seq, n as u64)
    }

    /// Entries from `seq` on, `n` at most.
    pub fn range(&self, seq: u64, n: u64) -> Option<Vec<Event>> {
        self.look(|db| {
            let mut q =
                db.prepare("SELECT event FROM answers WHERE seq >= ?1 AND seq < ?2 ORDER BY seq")?;
            let rows = q.query_map([seq as i64, (seq + n) as i64], |r| r.get::<_, String>(0))?;
            let events: Result<Vec<Event>, AnswersError> =
                rows.map(|r| Ok(serde_json::from_str(&r?)?)).collect();
            Ok(Some(events?))
        })
    }

    fn look<T>(
        &self,
        ask: impl FnOnce(&Connection) -> Result<Option<T>, AnswersError>,
    ) -> Option<T> {
        let path = self.0.as_ref()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags);
        let found = opened.map_err(AnswersError::from).and_then(|db| {
            db.busy_timeout(Duration::from_millis(200))?;
            ask(&db)
        });
        found.unwrap_or_else(|why| {
            tracing::warn!(event = "answers_read_failed", reason = %why);
            None
        })
    }
}

/// Compares a request with the entries under its keys: first answers, a mismatch, or `None` when the entries are not
/// all of it.
pub fn replay_of(request: &[Entry], found: &[Event]) -> Option<Replay> {
    let first = found.first()?;
    if matches!(first.entry, Entry::Abandon { .. }) {
        let refused = EntryAnswer::Refused {
            code: RefusalCode::Abandoned,
            seq: Some(first.seq),
            expected: None,
            replayed: true,
        };
        return Some(Replay::First(vec![refused; request.len()]));
    }
    let (head, wanted) = (std::slice::from_ref(&first.entry), &request[..1]);
    if !same_request(head, wanted) {
        return Some(Replay::Mismatch);
    }
    if found.len() < request.len() {
        return None;
    }
    let entries: Vec<Entry> = found.iter().map(|e| e.entry.clone()).collect();
    Some(if same_request(&entries, request) {
        Replay::First(
            found
                .iter()
                .map(|e| e.answer.clone().as_replayed())
                .collect(),
        )
    } else {
        Replay::Mismatch
    })
}

/// 63 bits of a hash over (principal, key); rows are compared whole.
fn hash(principal: &PrincipalName, key: &EntryKey) -> i64 {
    let text = format!("{} {}", principal.as_str(), key.as_str());
    let hash = ron_crypto::hash::blake3(text.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::ledger::{Receipt, TxId};
    use ron_proto::{Amount, ContentId, Timestamp};

    fn event(seq: u64, ts: u64, key: &str, amount: u128) -> Event {
        let entry = Entry::Issue {
            principal: "p".parse().unwrap(),
            key: key.parse().unwrap(),
            to: "a".parse().unwrap(),
            asset: "ron".parse().unwrap(),
            amount_minor: Amount(amount),
            memo: None,
            reference: None,
            daily_ceiling: Some(Amount(7)),
        };
        let txid = TxId::derive(seq, b"r");
        let receipt = Receipt {
            txid,
            op: entry.kind(),
            from: None,
            to: Some("a".parse().unwrap()),
            asset: Some("ron".parse().unwrap()),
            amount_minor: Some(Amount(amount)),
            nonce: None,
            idem: key.to_owned(),
            ts: Timestamp(ts),
            seq,
            receipt_hash: ContentId([0; 32]),
        };
        Event {
            seq,
            ts: Timestamp(ts),
            entry,
            answer: EntryAnswer::Done {
                seq,
                txid,
                receipt,
                replayed: false,
            },
        }
    }

    #[test]
    fn answers_are_found_until_they_are_too_old_and_a_foreign_copy_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answers.sqlite");
        let reader = AnswersReader::new(Some(path.clone()));
        let (p, k1): (PrincipalName, EntryKey) = ("p".parse().unwrap(), "k1".parse().unwrap());
        assert!(reader.by_key(&p, &k1).is_none(), "no file yet");
        let mut a = Answers::open(&path, "o", 0, 3).unwrap();
        let all: Vec<Event> = (1..=3)
            .map(|n| event(n, n, &format!("k{n}"), n.into()))
            .collect();
        a.take(&all).unwrap();
        assert_eq!(reader.by_key(&p, &k1), Some(all[0].clone()));
        assert_eq!(reader.at(2), Some(all[1].clone()));
        a.take(&[event(4, 4, "k4", 4)]).unwrap();
        assert!(reader.by_key(&p, &k1).is_none(), "three are kept");
        a.take(&[event(5, KEEP_MS + 4, "k5", 5)]).unwrap();
        assert!(
            reader.at(3).is_none() && reader.at(4).is_some(),
            "24 hours are kept"
        );
        drop(a);
        assert_eq!(Answers::open(&path, "o", 9, 3).unwrap().applied(), 5);
        assert_eq!(Answers::open(&path, "other", 9, 3).unwrap().applied(), 6);
        assert!(reader.at(5).is_none());
        std::fs::write(&path, b"not a database, not even nearly one").unwrap();
        assert_eq!(Answers::open(&path, "o", 2, 3).unwrap().applied(), 0);
    }

    #[test]
    fn a_request_is_compared_whole() {
        let found: Vec<Event> = (1..=2).map(|n| event(n, n, &format!("k{n}"), 1)).collect();
        let request: Vec<Entry> = found
            .iter()
            .map(|e| e.entry.clone().without_ceiling())
            .collect();
        let Some(Replay::First(answers)) = replay_of(&request, &found) else {
            panic!("the same request")
        };
        assert_eq!(answers[0], found[0].answer.clone().as_replayed());
        assert_eq!(replay_of(&request, &found[..1]), None, "one is missing");
        let other = event(1, 1, "k1", 2);
        assert_eq!(
            replay_of(&[other.entry], &found[..1]),
            Some(Replay::Mismatch)
        );
    }
}
