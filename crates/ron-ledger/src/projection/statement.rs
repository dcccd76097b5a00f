//! Statements: by the ledger's time, and by effective day.

use ron_proto::ledger::StatementTime;
use ron_proto::{Account, Amount, Asset, SignedAmount, Timestamp};
use rusqlite::{Connection, params};

use super::parsed;
use super::queries::{
    Book, EFFECTIVE_MAX, Of, ProjectionReader, SearchError, balance, cut, first_at, total_before,
};
use super::{Shift, Total};

const MOVES: Of = Of {
    one_asset: "SELECT seq, credits, debits FROM history WHERE account = ?1 AND asset = ?2 AND seq >= ?3 AND seq < ?4 \
     AND moved ORDER BY seq LIMIT ?5",
    mixed: "SELECT seq, credits, debits FROM history INDEXED BY history_asset WHERE mixed AND account = ?1 AND asset = ?2 \
     AND seq >= ?3 AND seq < ?4 AND moved ORDER BY seq LIMIT ?5",
};
/// Entries of their own day; those that belong to another are in the index of days.
const MOVES_OF_DAYS: Of = Of {
    one_asset: "SELECT h.seq, e.ts FROM history h CROSS JOIN entries e ON e.seq = h.seq WHERE h.account = ?1 AND h.asset = ?2 \
     AND h.seq >= ?3 AND h.seq < ?4 AND h.moved AND h.day IS NULL ORDER BY h.seq LIMIT ?5",
    mixed: "SELECT h.seq, e.ts FROM history h INDEXED BY history_asset CROSS JOIN entries e ON e.seq = h.seq WHERE h.mixed \
     AND h.account = ?1 AND h.asset = ?2 AND h.seq >= ?3 AND h.seq < ?4 AND h.moved AND h.day IS NULL ORDER BY h.seq LIMIT ?5",
};
const MOVED_TO_DAYS: &str = "SELECT day, seq FROM history INDEXED BY history_day \
     WHERE account = (SELECT id FROM accounts WHERE name = ?1) AND asset = ?2 AND day >= ?3 AND day < ?4 ORDER BY day, seq LIMIT ?5";
const SHIFTS: &str = "SELECT day, credits_in, debits_in, credits_out, debits_out FROM day_shifts \
     WHERE account = ?1 AND asset = ?2 AND day < ?3";

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
    let book = Book::find(db, account, asset)?;
    let mut entries = Vec::new();
    let most = range.limit as usize + 1;
    let start = first.max(range.after + 1);
    for (sql, [account, first, end]) in book.iter().flat_map(|b| b.parts(&MOVES, start, end)) {
        let mut q = db.prepare_cached(sql)?;
        let left = (most - entries.len()) as i64;
        let rows = q.query_map(params![account, asset.as_str(), first, end, left], |r| {
            Ok((
                r.get::<_, i64>(0)? as u64,
                r.get::<_, String>(1)?,
                r.get::<_, String>(2)?,
            ))
        })?;
        for row in rows {
            let (seq, credits, debits) = row?;
            entries.push((seq, Some(balance(&credits, &debits)?)));
        }
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
    let StatementRange { account, asset, .. } = range;
    let (from, until) = (range.from.utc_day(), range.until.utc_day());
    let first = first_at(db, range.from, applied)?;
    let end = first_at(db, range.until, applied)?;
    let before = total_before(db, account, asset, first)?;
    let after = total_before(db, account, asset, end)?;
    let mut opening = before;
    let mut within = Total {
        credits: after.credits.wrapping_sub(before.credits),
        debits: after.debits.wrapping_sub(before.debits),
        held: 0,
    };
    let key = [account.as_str(), asset.as_str()];
    for (day, shift) in shifts_before(db, key, until)? {
        let sum = if day < from {
            &mut opening
        } else {
            &mut within
        };
        sum.shift(shift);
    }
    let most = EFFECTIVE_MAX + 1;
    let mut entries: Vec<(u64, u64)> = Vec::new();
    let book = Book::find(db, account, asset)?;
    for (sql, [account, first, end]) in book
        .iter()
        .flat_map(|b| b.parts(&MOVES_OF_DAYS, first, end))
    {
        let mut q = db.prepare_cached(sql)?;
        let left = (most - entries.len()) as i64;
        let rows = q.query_map(params![account, key[1], first, end, left], |r| {
            Ok((r.get::<_, i64>(0)? as u64, r.get::<_, String>(1)?))
        })?;
        for row in rows {
            let (seq, ts) = row?;
            entries.push((parsed::<Timestamp>(&ts)?.utc_day(), seq));
        }
    }
    let mut q = db.prepare_cached(MOVED_TO_DAYS)?;
    let rows = q.query_map(
        params![key[0], key[1], from as i64, until as i64, most as i64],
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

fn shifts_before(
    db: &Connection,
    [account, asset]: [&str; 2],
    until: u64,
) -> Result<Vec<(u64, Shift)>, SearchError> {
    let mut q = db.prepare_cached(SHIFTS)?;
    let rows = q.query_map(params![account, asset, until as i64], |r| {
        let texts = [1, 2, 3, 4].map(|at| r.get::<_, String>(at));
        Ok((r.get::<_, i64>(0)? as u64, texts))
    })?;
    let mut shifts = Vec::new();
    for row in rows {
        let (day, [credits_in, debits_in, credits_out, debits_out]) = row?;
        let shift = Shift::read(&[credits_in?, debits_in?, credits_out?, debits_out?])?;
        shifts.push((day, shift));
    }
    Ok(shifts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::Projection;
    use crate::projection::queries::tests::assert_indexed;
    use ron_files::Dir;

    #[test]
    fn every_part_of_a_statement_is_answered_from_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Dir::os(dir.path());
        let _projection = Projection::open(&dir, "test/ledger", 0).unwrap();
        let db = ProjectionReader::new(dir).open().unwrap();
        for (sql, index) in [
            (MOVES.one_asset, "PRIMARY KEY"),
            (MOVES.mixed, "history_asset"),
            (MOVES_OF_DAYS.one_asset, "PRIMARY KEY"),
            (MOVES_OF_DAYS.mixed, "history_asset"),
            (MOVED_TO_DAYS, "history_day"),
            (SHIFTS, "PRIMARY KEY"),
        ] {
            assert_indexed(&db, sql, index);
        }
    }
}
