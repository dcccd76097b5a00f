//! Statements: by the ledger's time, and by effective day.

use ron_proto::ledger::StatementTime;
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};
use rusqlite::{Connection, params};

use super::queries::{
    EFFECTIVE_MAX, ProjectionReader, SearchError, balance, cut, first_at, parsed, total_before,
};
use super::{Total, number};

const MOVES: &str = "SELECT seq, credits, debits FROM history INDEXED BY history_asset WHERE account = ?1 AND asset = ?2 AND seq > ?3 \
     AND seq < ?4 AND moved ORDER BY seq LIMIT ?5";
/// Entries of their own day; those that belong to another are in the index of days.
const MOVES_OF_DAYS: &str = "SELECT h.seq, e.ts FROM history h INDEXED BY history_asset CROSS JOIN entries e ON e.seq = h.seq \
     WHERE h.account = ?1 AND h.asset = ?2 AND h.seq >= ?3 AND h.seq < ?4 AND h.moved AND h.day IS NULL ORDER BY h.seq LIMIT ?5";
const MOVED_TO_DAYS: &str = "SELECT day, seq FROM history INDEXED BY history_day WHERE account = ?1 AND asset = ?2 AND day >= ?3 AND day < ?4 \
     ORDER BY day, seq LIMIT ?5";
const DAYS: &str =
    "SELECT day, credits, debits FROM days WHERE account = ?1 AND asset = ?2 AND day < ?3";

/// A statement by sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementSeqs {
    pub opening: SignedAmount,
    pub closing: SignedAmount,
    pub credits: Amount,
    pub debits: Amount,
    /// Oldest first, with the balance after each where the order is the ledger's.
    pub entries: Vec<(u64, Option<SignedAmount>)>,
    pub next: Option<u64>,
    pub seq: u64,
}

/// What a statement covers.
#[derive(Clone, Debug)]
pub struct StatementRange {
    pub account: Account,
    pub asset: Asset,
    pub from: Timestamp,
    pub until: Timestamp,
    pub by: StatementTime,
    /// Only entries above this sequence; the sums are of the whole range all the same.
    pub after: u64,
    pub limit: u64,
}

impl ProjectionReader {
    /// Opening and closing balance of a range, and its entries.
    pub fn statement(
        &self,
        range: &StatementRange,
        min_seq: u64,
    ) -> Result<StatementSeqs, SearchError> {
        let (db, applied) = self.open_at(min_seq)?;
        match range.by {
            StatementTime::Entry => by_entry(&db, range, applied),
            StatementTime::Effective => by_effective_day(&db, range, applied),
        }
    }
}

fn by_entry(
    db: &Connection,
    range: &StatementRange,
    applied: u64,
) -> Result<StatementSeqs, SearchError> {
    let StatementRange { account, asset, .. } = range;
    let first = first_at(db, range.from, applied)?;
    let end = first_at(db, range.until, applied)?;
    let opening = total_before(db, account, asset, first)?;
    let closing = total_before(db, account, asset, end)?;
    let mut q = db.prepare_cached(MOVES)?;
    let after = range.after.max(first.saturating_sub(1));
    let key = params![
        account.as_str(),
        asset.as_str(),
        after as i64,
        end as i64,
        range.limit as i64 + 1
    ];
    let rows = q.query_map(key, |r| {
        Ok((
            r.get::<_, i64>(0)? as u64,
            r.get::<_, String>(1)?,
            r.get::<_, String>(2)?,
        ))
    })?;
    let mut entries = Vec::new();
    for row in rows {
        let (seq, credits, debits) = row?;
        entries.push((seq, Some(balance(&credits, &debits)?)));
    }
    let more = cut(&mut entries, range.limit);
    Ok(StatementSeqs {
        opening: opening.balance(),
        closing: closing.balance(),
        credits: Amount(closing.credits.wrapping_sub(opening.credits)),
        debits: Amount(closing.debits.wrapping_sub(opening.debits)),
        next: entries.last().filter(|_| more).map(|(seq, _)| *seq),
        entries,
        seq: applied,
    })
}

/// The entries whose effective day is in the range, ordered by day, then by sequence.
fn by_effective_day(
    db: &Connection,
    range: &StatementRange,
    applied: u64,
) -> Result<StatementSeqs, SearchError> {
    let (from, until) = (range.from.utc_day(), range.until.utc_day());
    let key = [range.account.as_str(), range.asset.as_str()];
    let (mut opening, mut within) = (Total::default(), Total::default());
    let mut q = db.prepare_cached(DAYS)?;
    let rows = q.query_map(params![key[0], key[1], until as i64], |r| {
        Ok((
            r.get::<_, i64>(0)? as u64,
            r.get::<_, String>(1)?,
            r.get::<_, String>(2)?,
        ))
    })?;
    for row in rows {
        let (day, credits, debits) = row?;
        let sum = if day < from {
            &mut opening
        } else {
            &mut within
        };
        sum.credits = sum.credits.wrapping_add(number(&credits)?);
        sum.debits = sum.debits.wrapping_add(number(&debits)?);
    }
    let most = EFFECTIVE_MAX as i64 + 1;
    let first = first_at(db, range.from, applied)?;
    let end = first_at(db, range.until, applied)?;
    let mut entries: Vec<(u64, u64)> = Vec::new();
    let mut q = db.prepare_cached(MOVES_OF_DAYS)?;
    let rows = q.query_map(
        params![key[0], key[1], first as i64, end as i64, most],
        |r| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, String>(1)?)),
    )?;
    for row in rows {
        let (seq, ts) = row?;
        entries.push((parsed::<Timestamp>(&ts)?.utc_day(), seq));
    }
    let mut q = db.prepare_cached(MOVED_TO_DAYS)?;
    let rows = q.query_map(
        params![key[0], key[1], from as i64, until as i64, most],
        |r| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, i64>(1)? as u64)),
    )?;
    for row in rows {
        entries.push(row?);
    }
    if entries.len() > EFFECTIVE_MAX {
        return Err(SearchError::TooLong);
    }
    entries.sort_unstable();
    Ok(StatementSeqs {
        opening: opening.balance(),
        closing: SignedAmount::of(
            opening.credits + within.credits,
            opening.debits + within.debits,
        ),
        credits: Amount(within.credits),
        debits: Amount(within.debits),
        entries: entries.into_iter().map(|(_, seq)| (seq, None)).collect(),
        next: None,
        seq: applied,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::Projection;
    use crate::projection::queries::tests::assert_indexed;

    #[test]
    fn every_part_of_a_statement_is_answered_from_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("projection.sqlite");
        let _projection = Projection::open(&path, "test/ledger", 0).unwrap();
        let db = ProjectionReader::new(path).open().unwrap();
        for (sql, index) in [
            (MOVES, "history_asset"),
            (MOVES_OF_DAYS, "history_asset"),
            (MOVED_TO_DAYS, "history_day"),
            (DAYS, "PRIMARY KEY"),
        ] {
            assert_indexed(&db, sql, index);
        }
    }
}
