//! Importers: rows of (account, metric, amount) become a sealed snapshot.
//!
//! Every format is read row by row. Rows are added up in memory, one number per account and
//! metric; past the memory they may use they are sorted, spilled to a scratch directory and merged
//! at the end, so a snapshot may be larger than memory. A bad row is named by its line; its
//! content is not repeated. The same rows give the same snapshot, or the same error, whatever the
//! memory, the format and the order in which the formats' readers deliver them.

mod rows;
mod spill;
#[cfg(test)]
mod tests;

use std::io::{BufRead, Read};
use std::path::PathBuf;

use ron_proto::rewarder::ImportKind;
use ron_proto::strict;
use serde::Deserialize;

use super::snapshot::{SealError, Sealed};
use super::source::Target;
use rows::Rows;

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
    /// The scratch directory could not be written.
    #[error("the scratch directory: {0}")]
    Scratch(String),
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

/// How to import.
#[derive(Debug)]
pub struct Options {
    /// Totals or events.
    pub kind: ImportKind,
    /// Where the snapshot goes.
    pub target: Target,
    /// Bytes that rows may take in memory, about, and the directory for what is beyond. Without
    /// it everything is kept in memory.
    pub spill: Option<Spill>,
}

/// What to do with rows that memory has no room for.
#[derive(Clone, Debug)]
pub struct Spill {
    /// Bytes that rows may take in memory, about.
    pub memory: usize,
    /// An existing directory; files in it are removed at the end.
    pub scratch: PathBuf,
}

impl Options {
    /// Everything in memory.
    pub const fn in_memory(kind: ImportKind) -> Self {
        Self {
            kind,
            target: Target::Memory(Vec::new()),
            spill: None,
        }
    }
}

/// A format in which rows come one a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `account,metric,amount`.
    Csv,
    /// One JSON object a line.
    Ndjson,
}

/// Imports one or more sources, one after the other, as if they were one. An error names the line
/// in the source, whose number in the list is told with it.
pub fn import<R: Read>(
    sources: impl IntoIterator<Item = (Format, R)>,
    options: Options,
) -> Result<Sealed, (usize, ImportError)> {
    let mut rows = Rows::new(options.kind, options.spill);
    let mut last = 0;
    for (number, (format, source)) in sources.into_iter().enumerate() {
        last = number;
        rows.next_source(number);
        let read = match format {
            Format::Csv => read_csv(source, &mut rows),
            Format::Ndjson => read_ndjson(source, &mut rows),
        };
        if let Err(error) = read {
            return Err(rows.first_fault(number, error));
        }
    }
    rows.seal(options.target)
        .map_err(|(number, error)| (number.unwrap_or(last), error))
}

/// Reads CSV with the header `account,metric,amount`, in memory.
pub fn csv(source: impl Read, kind: ImportKind) -> Result<Sealed, ImportError> {
    import([(Format::Csv, source)], Options::in_memory(kind)).map_err(|(_, error)| error)
}

/// Reads one JSON object `{"account","metric","amount"}` a line, in memory.
pub fn ndjson(source: impl Read, kind: ImportKind) -> Result<Sealed, ImportError> {
    import([(Format::Ndjson, source)], Options::in_memory(kind)).map_err(|(_, error)| error)
}

fn read_csv(source: impl Read, rows: &mut Rows) -> Result<(), ImportError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .buffer_capacity(1 << 18)
        .from_reader(source);
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
    Ok(())
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

fn read_ndjson(source: impl Read, rows: &mut Rows) -> Result<(), ImportError> {
    let mut reader = std::io::BufReader::with_capacity(1 << 18, source);
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
    Ok(())
}
