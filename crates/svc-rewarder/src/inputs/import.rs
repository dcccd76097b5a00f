//! Importers: CSV and NDJSON rows of (account, metric, amount) become a sealed snapshot.
//!
//! Both read row by row and keep one number per account and metric, whatever the number of rows.
//! A bad row is named by its line; its content is not repeated.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Read};
use std::sync::Arc;

use rayon::prelude::*;
use ron_proto::ledger::ESCROW_PREFIX;
use ron_proto::rewarder::{ImportKind, METRICS_MAX, Metric};
use ron_proto::strict;
use ron_proto::values::{Account, Amount};
use serde::Deserialize;

use super::snapshot::{SealError, Sealed, Unsealed};

/// Longest accepted NDJSON line, in bytes.
pub const LINE_BYTES_MAX: usize = 4_096;
/// The only accepted CSV header.
pub const CSV_HEADER: [&str; 3] = ["account", "metric", "amount"];

/// Why an import was refused.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line (counted from 1) breaks a rule.
    #[error("line {line}: {why}")]
    Line {
        /// From 1.
        line: u64,
        /// The rule, without input.
        why: String,
    },
    /// The source could not be read to its end.
    #[error("the input could not be read: {0}")]
    Read(#[from] std::io::Error),
    /// Every row was fine, but not all of them together.
    #[error(transparent)]
    Seal(#[from] SealError),
}

fn at(line: u64, why: impl Into<String>) -> ImportError {
    ImportError::Line {
        line,
        why: why.into(),
    }
}

/// Reads CSV with the header `account,metric,amount`.
pub fn csv(source: impl Read, kind: ImportKind) -> Result<Sealed, ImportError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(source);
    let mut rows = Rows::new(kind);
    let mut record = csv::ByteRecord::new();
    let mut header = true;
    loop {
        let more = reader.read_byte_record(&mut record).map_err(csv_error)?;
        let line = record.position().map_or(1, csv::Position::line);
        if !more {
            break;
        }
        if record.len() != 3 {
            return Err(at(
                line,
                format!("{} fields; there must be 3", record.len()),
            ));
        }
        if header {
            if !record
                .iter()
                .eq(CSV_HEADER.iter().map(|name| name.as_bytes()))
            {
                return Err(at(line, "the header must be account,metric,amount"));
            }
            header = false;
            continue;
        }
        let text = |field: usize| {
            std::str::from_utf8(&record[field])
                .map_err(|_| at(line, format!("{} is not UTF-8", CSV_HEADER[field])))
        };
        rows.add(line, text(0)?, text(1)?, text(2)?)?;
    }
    if header {
        return Err(at(1, "the header account,metric,amount is missing"));
    }
    rows.seal()
}

fn csv_error(error: csv::Error) -> ImportError {
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) => ImportError::Read(error),
        _ => at(line, "not a CSV row"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRow {
    account: String,
    metric: String,
    amount: String,
}

/// Reads one JSON object `{"account","metric","amount"}` a line; the amount is a string.
pub fn ndjson(source: impl Read, kind: ImportKind) -> Result<Sealed, ImportError> {
    let mut reader = std::io::BufReader::new(source);
    let mut rows = Rows::new(kind);
    let mut buffer = Vec::with_capacity(256);
    for line in 1_u64.. {
        buffer.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        if reader.by_ref().take(limit).read_until(b'\n', &mut buffer)? == 0 {
            break;
        }
        if buffer.last() == Some(&b'\n') {
            buffer.pop();
        }
        if buffer.len() >= LINE_BYTES_MAX {
            return Err(at(line, format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        if buffer.iter().all(u8::is_ascii_whitespace) {
            return Err(at(line, "empty; each line must hold one row"));
        }
        let row: JsonRow = strict::from_slice(&buffer)
            .map_err(|error| at(line, format!("column {}: {}", error.column, error.reason)))?;
        rows.add(line, &row.account, &row.metric, &row.amount)?;
    }
    rows.seal()
}

/// One column of the growing table, by row number.
#[derive(Default)]
struct Column {
    amounts: Vec<u128>,
    /// Which rows were given; a zero in `totals` counts as given.
    given: Vec<bool>,
    sum: u128,
}

/// The growing table. The map is only looked up, never walked, so its order reaches nothing.
struct Rows {
    kind: ImportKind,
    index: HashMap<Arc<[u8]>, usize>,
    accounts: Vec<Arc<[u8]>>,
    columns: BTreeMap<Metric, Column>,
}

impl Rows {
    fn new(kind: ImportKind) -> Self {
        Self {
            kind,
            index: HashMap::new(),
            accounts: Vec::new(),
            columns: BTreeMap::new(),
        }
    }

    fn add(
        &mut self,
        line: u64,
        account: &str,
        metric: &str,
        amount: &str,
    ) -> Result<(), ImportError> {
        let amount: Amount = amount
            .parse()
            .map_err(|error| at(line, format!("{error}")))?;
        let row = self.row(line, account)?;
        if !self.columns.contains_key(metric) {
            let name: Metric = metric
                .parse()
                .map_err(|error: ron_proto::values::ValueError| {
                    at(line, format!("not a valid metric: {}", error.why))
                })?;
            if self.columns.len() == METRICS_MAX {
                return Err(at(line, format!("more than {METRICS_MAX} metrics")));
            }
            self.columns.insert(name, Column::default());
        }
        let column = self
            .columns
            .get_mut(metric)
            .expect("inserted above if it was missing");
        if column.amounts.len() <= row {
            column.amounts.resize(row + 1, 0);
            column.given.resize(row + 1, false);
        }
        if column.given[row] && self.kind == ImportKind::Totals {
            return Err(at(
                line,
                "this account already has a total for this metric; import events with kind=events",
            ));
        }
        let past = || at(line, "the sum of this metric passes 2^128-1");
        column.given[row] = true;
        column.sum = column.sum.checked_add(amount.0).ok_or_else(past)?;
        column.amounts[row] += amount.0;
        Ok(())
    }

    fn row(&mut self, line: u64, account: &str) -> Result<usize, ImportError> {
        if let Some(row) = self.index.get(account.as_bytes()) {
            return Ok(*row);
        }
        account
            .parse::<Account>()
            .map_err(|error| at(line, format!("{error}")))?;
        if account.starts_with(ESCROW_PREFIX) {
            return Err(at(
                line,
                "accounts under escrow: belong to the ledger and cannot be paid",
            ));
        }
        let account: Arc<[u8]> = Arc::from(account.as_bytes());
        let row = self.accounts.len();
        self.accounts.push(Arc::clone(&account));
        self.index.insert(account, row);
        Ok(row)
    }

    fn seal(self) -> Result<Sealed, ImportError> {
        drop(self.index);
        let accounts = self.accounts.iter().map(|account| &**account);
        let mut rows: Vec<(&[u8], usize)> = accounts.zip(0..).collect();
        rows.par_sort_unstable();
        Ok(Sealed::seal(&Unsealed {
            metrics: self.columns.keys().cloned().collect(),
            rows,
            columns: self
                .columns
                .values()
                .map(|column| column.amounts.as_slice())
                .collect(),
        })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calculus::Usage;

    const HEAD: &str = "account,metric,amount\n";

    fn check(
        format: &str,
        kind: ImportKind,
        text: &str,
    ) -> Result<Vec<(String, Vec<u128>)>, String> {
        let sealed = match format {
            "csv" => csv(text.as_bytes(), kind),
            _ => ndjson(text.as_bytes(), kind),
        }
        .map_err(|error| error.to_string())?;
        let again = Sealed::parse(sealed.bytes().to_vec()).expect("what was sealed can be read");
        assert_eq!(again.cid(), sealed.cid());
        Ok((0..sealed.accounts())
            .map(|row| {
                let account = String::from_utf8(sealed.account(row).to_vec()).expect("ASCII");
                (
                    account,
                    (0..sealed.metrics().len())
                        .map(|m| sealed.amount(row, m))
                        .collect(),
                )
            })
            .collect())
    }

    #[test]
    fn rows_become_sorted_records() {
        let want = vec![("a".to_owned(), vec![0, 7]), ("bb".to_owned(), vec![5, 0])];
        let csv_text = format!("{HEAD}bb,disk,5\r\na,net,7\r\n");
        assert_eq!(
            check("csv", ImportKind::Totals, &csv_text).expect("good"),
            want
        );
        let json = "{\"amount\":\"7\",\"metric\":\"net\",\"account\":\"a\"}\n\
                    {\"account\":\"bb\",\"metric\":\"disk\",\"amount\":\"5\"}";
        assert_eq!(
            check("ndjson", ImportKind::Totals, json).expect("good"),
            want
        );
        assert_eq!(
            check("csv", ImportKind::Totals, HEAD).expect("an idle epoch"),
            vec![]
        );
        assert_eq!(
            check("ndjson", ImportKind::Totals, "").expect("an idle epoch"),
            vec![]
        );
    }

    #[test]
    fn events_add_up_to_the_totals() {
        let events = format!("{HEAD}a,net,3\nb,net,1\na,net,4\n");
        let totals = format!("{HEAD}b,net,1\na,net,7\n");
        let cid = |text: &str, kind| csv(text.as_bytes(), kind).expect("good").cid();
        assert_eq!(
            cid(&events, ImportKind::Events),
            cid(&totals, ImportKind::Totals)
        );
        assert_eq!(
            cid(&totals, ImportKind::Events),
            cid(&totals, ImportKind::Totals)
        );
    }

    #[test]
    fn bad_rows_are_named_by_line_without_their_content() {
        let long = "x".repeat(161);
        let max = u128::MAX.to_string();
        for (format, kind, text, want) in [
            ("csv", "t", String::new(), "line 1: the header"),
            ("csv", "t", "a,net,1\n".into(), "line 1: the header must be"),
            ("csv", "t", "account,metric\n".into(), "line 1: 2 fields"),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,1\na,net\n"),
                "line 3: 2 fields",
            ),
            ("csv", "t", format!("{HEAD}a,net,1,9\n"), "line 2: 4 fields"),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,-1\n"),
                "line 2: not a valid amount",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,1.5\n"),
                "line 2: not a valid amount",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,1e3\n"),
                "line 2: not a valid amount",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,\n"),
                "line 2: not a valid amount",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,{max}0\n"),
                "line 2: not a valid amount",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a b,net,1\n"),
                "line 2: not a valid account",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}{long},net,1\n"),
                "line 2: not a valid account",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}escrow:ab,net,1\n"),
                "line 2: accounts under escrow:",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,NET,1\n"),
                "line 2: not a valid metric",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,1\n\nb,net,1\na,net,1\n"),
                "line 5: this account",
            ),
            (
                "csv",
                "t",
                format!("{HEAD}a,net,0\na,net,1\n"),
                "line 3: this account",
            ),
            (
                "csv",
                "e",
                format!("{HEAD}a,net,{max}\nb,net,1\n"),
                "line 3: the sum",
            ),
            ("ndjson", "t", "{}\n".into(), "line 1: column"),
            ("ndjson", "t", "\n".into(), "line 1: empty"),
            (
                "ndjson",
                "t",
                "{\"account\":\"a\",\"metric\":\"m\",\"amount\":1}\n".into(),
                "line 1: column",
            ),
            (
                "ndjson",
                "t",
                "{\"account\":\"a\",\"account\":\"b\",\"metric\":\"m\",\"amount\":\"1\"}".into(),
                "line 1: column",
            ),
            (
                "ndjson",
                "t",
                "{\"account\":\"a\",\"metric\":\"m\",\"amount\":\"1\",\"x\":1}".into(),
                "line 1: column",
            ),
            (
                "ndjson",
                "t",
                format!("{}\n", " ".repeat(5_000)),
                "line 1: longer",
            ),
        ] {
            let kind = if kind == "t" {
                ImportKind::Totals
            } else {
                ImportKind::Events
            };
            let error = check(format, kind, &text).expect_err(&text);
            assert!(error.starts_with(want), "{text:?}: {error}");
        }
        let mut many = HEAD.to_owned();
        for metric in 0..=METRICS_MAX {
            many.push_str(&format!("a,m{metric},1\n"));
        }
        let error = check("csv", ImportKind::Totals, &many).expect_err("65 metrics");
        assert_eq!(error, "line 66: more than 64 metrics");
    }

    #[test]
    fn sealed_files_are_refused_when_anything_is_off() {
        let text = format!("{HEAD}a,disk,5\nb,disk,6\nb,net,1\nccc,net,0\n");
        let good = csv(text.as_bytes(), ImportKind::Totals)
            .expect("good")
            .bytes()
            .to_vec();
        let cid = Sealed::parse(good.clone()).expect("untouched").cid();
        let names = [56..56 + 64, 144..144 + 64];
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            match Sealed::parse(bad) {
                Err(_) => {}
                // Another metric name makes another, equally well-formed usage: it has another id.
                Ok(other) => {
                    assert!(
                        names.iter().any(|name| name.contains(&at)),
                        "byte {at} flipped"
                    );
                    assert_ne!(other.cid(), cid);
                }
            }
        }
        for cut in 0..good.len() {
            assert!(Sealed::parse(good[..cut].to_vec()).is_err(), "cut to {cut}");
        }
        let mut long = good.clone();
        long.push(0);
        assert!(matches!(Sealed::parse(long), Err(SealError::Length { .. })));
        let mut newer = good;
        newer[6] = b'2';
        assert_eq!(Sealed::parse(newer).expect_err("newer"), SealError::Newer);
    }

    /// Re-hashes the records, so that the rule itself is what refuses.
    fn rehash(mut bytes: Vec<u8>, body: usize) -> Vec<u8> {
        let hash = blake3::hash(&bytes[body..]);
        bytes[24..56].copy_from_slice(hash.as_bytes());
        bytes
    }

    #[test]
    fn well_hashed_files_still_have_to_keep_the_rules() {
        let text = format!("{HEAD}a,disk,5\nb,disk,6\n");
        let good = csv(text.as_bytes(), ImportKind::Totals)
            .expect("good")
            .bytes()
            .to_vec();
        let body = 56 + 88;
        let check = |edit: &dyn Fn(&mut [u8]), want: &str| {
            let mut bytes = good.clone();
            edit(&mut bytes);
            let error = Sealed::parse(rehash(bytes, body))
                .expect_err(want)
                .to_string();
            assert!(error.contains(want), "{error}");
        };
        check(
            &|bytes| bytes[body] = b'b',
            "record 2: its account is out of order",
        );
        check(
            &|bytes| bytes[body] = b'c',
            "record 2: its account is out of order",
        );
        check(
            &|bytes| bytes[body] = b' ',
            "record 1: its account is malformed",
        );
        check(
            &|bytes| bytes[body] = 0,
            "record 1: its account is malformed",
        );
        check(&|bytes| bytes[body + 16] = 6, "sums do not match");
        check(&|bytes| bytes[body + 16] = 0, "counts do not match");
        check(&|bytes| bytes[56 + 87] ^= 1, "sums do not match");
        check(&|bytes| bytes[56 + 71] ^= 1, "counts do not match");
        check(&|bytes| bytes[56] = b'D', "metric 1 in the header");
    }
}
