//! Reads of the projection; each opens the file. Work per read is bounded: a search looks at
//! [`SCAN`] rows and says where it stopped.

use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{Deadline, Shutdown};
use ron_proto::ledger::{AccountClass, HoldPage, HoldRecord, HoldState, PastBalance, TxId};
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};
use ron_service::Image;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use super::classes::class_at;
use super::supply::Supply;
use super::{FILE, ProjectionError, Total, number, parsed};

/// Maximum rows that one search looks at; few in tests, so that searches reach it.
pub(super) const SCAN: u64 = if cfg!(test) { 40 } else { 1_000 };
/// Maximum entries of a statement by effective day.
pub(super) const EFFECTIVE_MAX: usize = 10_000;
/// Longest wait for an entry that the caller knows of: more than the longest pause of the projection
/// and its next transaction, and less than the second that svc-wallet allows a read.
const CATCH_UP: Duration = Duration::from_millis(800);
/// Pause between two looks at how far the projection is.
const CATCH_UP_POLL: Duration = Duration::from_millis(5);

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Projection(#[from] ProjectionError),
    /// The projection does not have an entry yet that the caller knows of.
    #[error("the history is at entry {applied}, and entry {wanted} is asked for")]
    Behind { applied: u64, wanted: u64 },
    #[error(
        "the statement has more than {EFFECTIVE_MAX} entries; ask for fewer days, or by=entry, which has pages"
    )]
    TooLong,
    #[error("the request's time was up before all accounts were read; allow it more time")]
    Expired,
}

impl From<rusqlite::Error> for SearchError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Projection(error.into())
    }
}

/// Read access for the routes; opens the file for each request.
#[derive(Clone, Debug)]
pub struct ProjectionReader {
    dir: Dir,
}

impl ProjectionReader {
    pub const fn new(dir: Dir) -> Self {
        Self { dir }
    }

    /// Opens the file once it has the entry at `min_seq`; returns the last one it has. Right after a
    /// start the file may still be missing.
    pub(super) fn open_at(&self, min_seq: u64) -> Result<(Connection, u64), SearchError> {
        let (_never_set, never) = Shutdown::pair();
        let patience = Deadline::within(CATCH_UP);
        loop {
            let opened = self.open().and_then(|db| {
                // What is read from here on is the file at this moment.
                db.execute_batch("BEGIN")?;
                let applied = db.query_row(APPLIED, [], |r| r.get::<_, i64>(0))?;
                Ok((db, applied as u64))
            });
            match opened {
                Ok((db, applied)) if applied >= min_seq => return Ok((db, applied)),
                _ if !patience.expired() => {
                    never.wait(Deadline::within(CATCH_UP_POLL));
                }
                Ok((_, applied)) => {
                    return Err(SearchError::Behind {
                        applied,
                        wanted: min_seq,
                    });
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    pub(super) fn open(&self) -> Result<Connection, ProjectionError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let Some(path) = self.dir.os_path(FILE) else {
            return Ok(Image::load(&self.dir, FILE)?.0);
        };
        let db = Connection::open_with_flags(path, flags)?;
        db.busy_timeout(Duration::from_secs(1))?;
        Ok(db)
    }

    /// The reversals of a transaction, oldest first.
    pub fn reversals(&self, tx: TxId) -> Result<Vec<TxId>, ProjectionError> {
        let db = self.open()?;
        let mut q = db.prepare(REVERSALS)?;
        let rows = q.query_map([tx.to_string()], |r| r.get::<_, String>(0))?;
        rows.map(|row| parsed(&row?)).collect()
    }

    /// The balance of an account after the entry at `seq`.
    pub fn balance_at(
        &self,
        account: &Account,
        asset: &Asset,
        seq: u64,
        min_seq: u64,
    ) -> Result<PastBalance, SearchError> {
        let (db, _) = self.open_at(seq.max(min_seq))?;
        let total = total_before(&db, account, asset, seq + 1)?;
        let level = total.balance();
        Ok(PastBalance {
            amount_minor: level.amount(),
            overdrawn_minor: level.overdrawn(),
            held_minor: Amount(total.held),
            seq,
            ts: time_of(&db, seq)?,
        })
    }

    /// Calls `each` with the class of every account after the entry at `seq`, and with what it was ever
    /// credited and debited in the asset by then, while it returns true. Returns the supply then and the time of that entry.
    pub fn totals_at(
        &self,
        asset: &Asset,
        seq: u64,
        min_seq: u64,
        mut each: impl FnMut(Option<&AccountClass>, u128, u128) -> bool,
    ) -> Result<(Supply, Timestamp), SearchError> {
        let (db, _) = self.open_at(seq.max(min_seq))?;
        let mut q = db.prepare_cached(ALL_TOTALS)?;
        let mut rows = q.query(params![asset.as_str(), seq as i64])?;
        while let Some(r) = rows.next()? {
            let account: Account = parsed(&r.get::<_, String>(0)?)?;
            let total = Total::read(&[r.get(1)?, r.get(2)?, r.get(3)?])?;
            if total == Total::default() {
                continue;
            }
            let class = class_at(&db, &account, seq)?;
            if !each(class.as_ref(), total.credits, total.debits) {
                return Err(SearchError::Expired);
            }
        }
        Ok((Supply::at(&db, asset, seq)?, time_of(&db, seq)?))
    }

    /// Holds of an account, newest first.
    pub fn holds(
        &self,
        account: &Account,
        (asset, state): (Option<&Asset>, Option<HoldState>),
        before: Option<u64>,
        limit: u64,
        min_seq: u64,
    ) -> Result<HoldPage, SearchError> {
        let (db, applied) = self.open_at(min_seq)?;
        let before = before.unwrap_or(applied + 1);
        let floor = db.prepare_cached(HOLDS_FLOOR)?.query_row(
            params![account.as_str(), before as i64, SCAN as i64 - 1],
            |r| r.get::<_, i64>(0),
        );
        let floor = floor.optional()?.map(|seq| seq as u64);
        let mut q = db.prepare_cached(HOLDS)?;
        let rows = q.query_map(
            params![
                account.as_str(),
                before as i64,
                floor.unwrap_or(0) as i64,
                asset.map(Asset::as_str),
                state.map(|state| state == HoldState::Open),
                limit as i64 + 1
            ],
            |r| {
                Ok((
                    r.get::<_, i64>(0)? as u64,
                    [1, 2, 3, 4, 5, 6].map(|at| r.get::<_, String>(at)),
                    r.get::<_, bool>(7)?,
                ))
            },
        )?;
        let mut found = Vec::new();
        for row in rows {
            let (seq, texts, open) = row?;
            let [hold, asset, amount, remaining, captured, expires_at] = texts;
            found.push((
                seq,
                HoldRecord {
                    hold: parsed(&hold?)?,
                    from: account.clone(),
                    asset: parsed(&asset?)?,
                    amount_minor: Amount(number(&amount?)?),
                    remaining_minor: Amount(number(&remaining?)?),
                    captured_minor: Amount(number(&captured?)?),
                    expires_at: parsed(&expires_at?)?,
                    state: if open {
                        HoldState::Open
                    } else {
                        HoldState::Ended
                    },
                },
            ));
        }
        let more = cut(&mut found, limit);
        let older = match (more, found.last()) {
            (true, Some((seq, _))) => Some(*seq),
            _ => floor,
        };
        Ok(HoldPage {
            holds: found.into_iter().map(|(_, hold)| hold).collect(),
            older,
        })
    }

    /// Names that begin with `prefix`, after `after`, of accounts that entries name, also refused ones;
    /// and whether there are more.
    pub fn account_names(
        &self,
        prefix: &str,
        after: Option<&Account>,
        limit: u64,
        min_seq: u64,
    ) -> Result<(Vec<Account>, bool), SearchError> {
        let (db, _) = self.open_at(min_seq)?;
        // Account names are below 0x7f.
        let end = format!("{prefix}\u{7f}");
        let after = after.map_or("", Account::as_str);
        let mut q = db.prepare_cached(ACCOUNTS)?;
        let names = q.query_map(params![prefix, end, after, limit as i64 + 1], |r| {
            r.get::<_, String>(0)
        })?;
        let names = names.map(|name| Ok(parsed(&name?)?));
        let mut names: Vec<Account> = names.collect::<Result<_, SearchError>>()?;
        let more = cut(&mut names, limit);
        Ok((names, more))
    }
}

const APPLIED: &str = "SELECT applied FROM meta";
const REVERSALS: &str = "SELECT txid FROM entries WHERE reverses = ?1 ORDER BY seq LIMIT 100";
const HOLDS_FLOOR: &str =
    "SELECT seq FROM holds WHERE account = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT 1 OFFSET ?3";
const HOLDS: &str = "SELECT seq, hold, asset, amount, remaining, captured, expires_at, open FROM holds \
     WHERE account = ?1 AND seq < ?2 AND seq >= ?3 AND (?4 IS NULL OR asset = ?4) AND (?5 IS NULL OR open = ?5) \
     ORDER BY seq DESC LIMIT ?6";
const ACCOUNTS: &str =
    "SELECT name FROM accounts WHERE name >= ?1 AND name < ?2 AND name > ?3 ORDER BY name LIMIT ?4";
// What accounts have that did not change since, then what the others had. Reads the balances as a whole: an asset
// usually is most of them. As in [`Book`], entries before an account's second asset are in no index by asset.
const ALL_TOTALS: &str = "SELECT account, credits, debits, held FROM balances WHERE asset = ?1 AND seq <= ?2 \
     UNION ALL SELECT b.account, h.credits, h.debits, h.held FROM balances b CROSS JOIN accounts a ON a.name = b.account \
     CROSS JOIN history h ON h.account = a.id AND h.seq = coalesce( \
       (SELECT x.seq FROM history x INDEXED BY history_asset WHERE x.mixed AND x.account = a.id AND x.asset = ?1 \
         AND x.seq <= ?2 ORDER BY x.seq DESC LIMIT 1), \
       (SELECT x.seq FROM history x WHERE x.account = a.id AND a.asset = ?1 \
         AND x.seq <= min(?2, coalesce(a.mixed_from - 1, ?2)) ORDER BY x.seq DESC LIMIT 1)) \
     WHERE b.asset = ?1 AND b.seq > ?2";
const TIME: &str = "SELECT ts FROM entries WHERE seq >= ?1 ORDER BY seq LIMIT 1";
const TOTAL: Of = Of {
    one_asset: "SELECT credits, debits, held FROM history WHERE account = ?1 AND asset = ?2 AND seq >= ?3 AND seq < ?4 \
     ORDER BY seq DESC LIMIT 1",
    // Without statistics SQLite takes the primary key, and would step over the entries of all assets.
    mixed: "SELECT credits, debits, held FROM history INDEXED BY history_asset WHERE mixed AND account = ?1 AND asset = ?2 \
     AND seq >= ?3 AND seq < ?4 ORDER BY seq DESC LIMIT 1",
};
const BOOK: &str = "SELECT id, asset = ?2, mixed_from FROM accounts WHERE name = ?1";

/// A query of the history of an account in an asset; ?3 is the first sequence and ?4 the one after the
/// last.
pub(super) struct Of {
    /// Among the entries before the account had a second asset, which are in no index by asset.
    pub one_asset: &'static str,
    /// Among all later ones.
    pub mixed: &'static str,
}

/// Where the entries of an account in an asset are.
pub(super) struct Book {
    account: i64,
    /// Whether the account's first entry is in the asset.
    first: bool,
    /// Sequence from which the account has several assets.
    mixed_from: u64,
}

/// A query of [`Of`] with the id of the account and the sequences among which it looks.
pub(super) type Part = (&'static str, [i64; 3]);

impl Book {
    /// `None` when the account has no entries.
    pub fn find(
        db: &Connection,
        account: &Account,
        asset: &Asset,
    ) -> Result<Option<Self>, SearchError> {
        let mut q = db.prepare_cached(BOOK)?;
        let row = q.query_row([account.as_str(), asset.as_str()], |r| {
            Ok(Self {
                account: r.get(0)?,
                first: r.get::<_, Option<bool>>(1)? == Some(true),
                mixed_from: r.get::<_, Option<i64>>(2)?.unwrap_or(i64::MAX) as u64,
            })
        });
        Ok(row.optional()?)
    }

    /// The queries for the entries from `first` to before `end`, the older entries first.
    pub fn parts(&self, of: &Of, first: u64, end: u64) -> impl DoubleEndedIterator<Item = Part> {
        let part = |sql, first: u64, end: u64| {
            (first < end).then_some((sql, [self.account, first as i64, end as i64]))
        };
        let older = part(of.one_asset, first, end.min(self.mixed_from));
        let newer = part(of.mixed, first.max(self.mixed_from), end);
        [older.filter(|_| self.first), newer].into_iter().flatten()
    }
}

pub(super) fn balance(credits: &str, debits: &str) -> Result<SignedAmount, ProjectionError> {
    Ok(SignedAmount::of(number(credits)?, number(debits)?))
}

/// Cuts the rows to `limit`, of which one more was asked for; whether there were more.
pub(super) fn cut<T>(rows: &mut Vec<T>, limit: u64) -> bool {
    let more = rows.len() as u64 > limit;
    rows.truncate(limit as usize);
    more
}

/// The first sequence up to `applied` whose entry is not older than `ts`; the one after `applied` if
/// all are older.
pub(super) fn first_at(db: &Connection, ts: Timestamp, applied: u64) -> Result<u64, SearchError> {
    let (mut low, mut high) = (0, applied + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if time_of(db, middle)? < ts {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// The time of an entry; of the first one below it.
pub(super) fn time_of(db: &Connection, seq: u64) -> Result<Timestamp, SearchError> {
    let mut q = db.prepare_cached(TIME)?;
    let found = q.query_row([seq as i64], |r| r.get::<_, String>(0));
    match found.optional()? {
        Some(text) => Ok(parsed(&text)?),
        None => Ok(Timestamp(0)), // there are no entries
    }
}

/// What an account had before a sequence.
pub(super) fn total_before(
    db: &Connection,
    account: &Account,
    asset: &Asset,
    before: u64,
) -> Result<Total, SearchError> {
    let Some(book) = Book::find(db, account, asset)? else {
        return Ok(Total::default());
    };
    for (sql, [account, first, end]) in book.parts(&TOTAL, 0, before).rev() {
        let mut q = db.prepare_cached(sql)?;
        let key = params![account, asset.as_str(), first, end];
        let row = q.query_row(key, |r| Ok([r.get::<_, String>(0)?, r.get(1)?, r.get(2)?]));
        if let Some(texts) = row.optional()? {
            return Ok(Total::read(&texts)?);
        }
    }
    Ok(Total::default())
}

#[cfg(test)]
pub(super) mod tests {
    use rusqlite::params_from_iter;
    use rusqlite::types::Value;

    use super::*;
    use crate::projection::Projection;
    use crate::projection::classes::CLASS;
    use crate::projection::supply::SUPPLY;

    /// The plan of a statement: it must search an index, and neither read a whole table nor sort.
    pub fn assert_indexed(db: &Connection, sql: &str, index: &str) {
        let mut q = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let count = q.parameter_count();
        let values = vec![Value::Integer(1); count];
        let rows = q.query_map(params_from_iter(values), |r| r.get::<_, String>(3));
        let plan: Vec<String> = rows.unwrap().collect::<Result<_, _>>().unwrap();
        let text = plan.join("; ");
        assert!(
            plan[0].starts_with("SEARCH") && plan[0].contains(index),
            "{sql}: {text}"
        );
        assert!(
            !text.contains("SCAN") && !text.contains("TEMP B-TREE"),
            "{sql}: {text}"
        );
    }

    #[test]
    fn every_query_is_answered_from_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Dir::os(dir.path());
        let projection = Projection::open(&dir, "test/ledger", 0).unwrap();
        let db = ProjectionReader::new(dir).open().unwrap();
        for (sql, index) in [
            (REVERSALS, "entries_reversed"),
            (HOLDS_FLOOR, "holds_account"),
            (HOLDS, "holds_account"),
            (ACCOUNTS, "sqlite_autoindex_accounts_1"),
            (TIME, "INTEGER PRIMARY KEY"),
            (BOOK, "sqlite_autoindex_accounts_1"),
            (SUPPLY, "PRIMARY KEY"),
            (CLASS, "PRIMARY KEY"),
            (TOTAL.one_asset, "PRIMARY KEY"),
            (TOTAL.mixed, "history_asset"),
        ] {
            assert_indexed(&db, sql, index);
        }
        drop(projection);
    }
}
