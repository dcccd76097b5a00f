//! Importers: rows of (account, metric, amount) become a sealed snapshot.
//!
//! Every format is read row by row. Rows are added up in memory, one number per account and metric.
//! Beyond the memory limit they are sorted, spilled to a scratch directory and merged at the end,
//! so a snapshot may be larger than memory. An error names a bad row by its line (in Parquet and
//! Arrow files by its number) and does not repeat its content. The same rows give the same
//! snapshot, or the same error, whatever the memory limit, the format and the order in which the
//! readers deliver them.

#[cfg(feature = "parquet")]
mod arrow_file;
#[cfg(feature = "parquet")]
mod columns;
#[cfg(all(test, feature = "parquet"))]
mod columns_tests;
#[cfg(feature = "parquet")]
mod parquet_file;
mod pieces;
mod rows;
mod spill;
mod table;
#[cfg(test)]
mod tests;
#[cfg(feature = "parquet")]
mod thrift;

use std::io::{BufRead, Read};
use std::sync::Arc;

use ron_files::Dir;
use ron_proto::rewarder::{ImportKind, UsagePeriod};
use ron_proto::strict;
use serde::Deserialize;

use super::snapshot::{SealError, Sealed};
use super::source::{Positioned, Target};
use rows::{Batch, Rows};

/// Maximum length of an NDJSON line, in bytes.
pub const LINE_BYTES_MAX: usize = 4_096;
/// The only accepted CSV header.
pub const CSV_HEADER: [&str; 3] = ["account", "metric", "amount"];

/// Why an import was refused.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line (counted from 1) breaks a rule.
    #[error("line {line}: {why}")]
    Line {
        line: u64,
        /// The rule, without content of the input.
        why: String,
    },
    /// A row of a Parquet or Arrow file (counted from 1) breaks a rule.
    #[error("row {row}: {why}")]
    Row {
        /// Counted from 1 over the whole file.
        row: u64,
        /// The rule, without content of the input.
        why: String,
    },
    /// The file is damaged, or its form is not supported; the text says where.
    #[error("{0}")]
    File(String),
    /// More rows than the limit allows.
    #[error("more than {rows_max} rows; split the usage, or raise the limit")]
    TooMany { rows_max: u64 },
    /// [`Options::cancel`] ended the import.
    #[error("the import was stopped before its end")]
    Stopped,
    /// The source could not be read to its end.
    #[error("the input could not be read: {0}")]
    Read(#[from] std::io::Error),
    /// The scratch directory could not be written.
    #[error("the scratch directory: {0}")]
    Scratch(String),
    /// Every row is valid, but the snapshot as a whole is not.
    #[error(transparent)]
    Seal(#[from] SealError),
}

fn at(line: u64, why: impl Into<String>) -> ImportError {
    ImportError::Line {
        line,
        why: why.into(),
    }
}

#[derive(Debug)]
pub struct Options {
    /// Whether a repeated (account, metric) is an error (totals) or added up (events).
    pub kind: ImportKind,
    /// The period in which the usage was measured.
    pub period: Option<UsagePeriod>,
    /// Where the snapshot is written.
    pub target: Target,
    /// The memory limit, and where rows beyond it go. `None` keeps all rows in memory.
    pub spill: Option<Spill>,
    /// Maximum rows of all sources together. A compressed file of a few kilobytes can hold
    /// billions.
    pub rows_max: u64,
    /// Polled every few thousand rows; the import ends with [`ImportError::Stopped`] once it
    /// returns true.
    pub cancel: Option<Cancel>,
}

/// Returns true when the import is to be given up.
#[derive(Clone)]
pub struct Cancel(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for Cancel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Cancel")
    }
}

/// The memory limit of an import, and where rows beyond it go.
#[derive(Clone, Debug)]
pub struct Spill {
    /// Approximate memory for rows, in bytes.
    pub memory: usize,
    /// A directory for this import alone: made when rows go there, and removed at the end.
    pub dir: Dir,
}

impl Options {
    pub const fn in_memory(kind: ImportKind) -> Self {
        Self {
            kind,
            period: None,
            target: Target::Memory(Vec::new()),
            spill: None,
            rows_max: u64::MAX,
            cancel: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `account,metric,amount`, one row per line.
    Csv,
    /// One JSON object per line.
    Ndjson,
    /// Arrow's stream or file format (feature `parquet`).
    Arrow,
    /// Parquet (feature `parquet`); read by position.
    Parquet,
}

impl Format {
    /// The format for a file name extension, given without its dot.
    pub fn of_extension(ending: &str) -> Option<Self> {
        Some(match ending {
            "csv" => Self::Csv,
            "ndjson" | "jsonl" => Self::Ndjson,
            "arrow" | "arrows" | "ipc" | "feather" => Self::Arrow,
            "parquet" => Self::Parquet,
            _ => return None,
        })
    }

    /// The format of a media type, given in lower case and without parameters.
    pub fn of_media(media: &str) -> Option<Self> {
        Some(match media {
            "text/csv" => Self::Csv,
            "application/x-ndjson" => Self::Ndjson,
            "application/vnd.apache.arrow.stream" | "application/vnd.apache.arrow.file" => {
                Self::Arrow
            }
            "application/vnd.apache.parquet" => Self::Parquet,
            _ => return None,
        })
    }

    /// True if this program was built with a reader for the format.
    pub const fn is_built_in(self) -> bool {
        matches!(self, Self::Csv | Self::Ndjson) || cfg!(feature = "parquet")
    }
}

/// One source of rows.
pub enum Input<R> {
    /// Read from start to end; not for Parquet.
    Stream(Format, R),
    /// A Parquet file, whose index is at its end.
    Parquet(Arc<dyn Positioned>),
}

impl<R> Input<R> {
    const fn format(&self) -> Format {
        match self {
            Self::Stream(format, _) => *format,
            Self::Parquet(_) => Format::Parquet,
        }
    }
}

/// Imports one or more sources, one after the other, as if they were one. An error carries the
/// position of its source in the list; its line is counted within that source.
pub fn import<R: Read + Send>(
    sources: impl IntoIterator<Item = (Format, R)>,
    options: Options,
) -> Result<Sealed, (usize, ImportError)> {
    let inputs = sources.into_iter();
    import_inputs(inputs.map(|(format, r)| Input::Stream(format, r)), options)
}

/// The same for sources of every kind, streams and Parquet files.
pub fn import_inputs<R: Read + Send>(
    inputs: impl IntoIterator<Item = Input<R>>,
    options: Options,
) -> Result<Sealed, (usize, ImportError)> {
    let mut rows = Rows::new(options.kind, options.spill, options.cancel).up_to(options.rows_max);
    let mut formats = Vec::new();
    for (number, input) in inputs.into_iter().enumerate() {
        formats.push(input.format());
        rows.next_source(number);
        let read = match input {
            Input::Stream(Format::Csv, source) => read_csv(source, &mut rows),
            Input::Stream(Format::Ndjson, source) => read_ndjson(source, &mut rows),
            Input::Stream(Format::Arrow, source) => read_arrow(source, &mut rows),
            Input::Stream(Format::Parquet, _) => Err(ImportError::File(
                "a Parquet file is read by position, not as a stream".into(),
            )),
            Input::Parquet(source) => read_parquet(source, &mut rows),
        };
        if let Err(error) = read {
            return Err(numbered(&formats, rows.first_fault(number, error)));
        }
    }
    let last = formats.len().saturating_sub(1);
    rows.seal(options.target, options.period)
        .map_err(|(number, error)| numbered(&formats, (number.unwrap_or(last), error)))
}

/// Column formats have no lines: the counted number is that of a row.
fn numbered(formats: &[Format], fault: (usize, ImportError)) -> (usize, ImportError) {
    match (fault, formats) {
        ((number, ImportError::Line { line, why }), formats)
            if matches!(formats.get(number), Some(Format::Arrow | Format::Parquet)) =>
        {
            (number, ImportError::Row { row: line, why })
        }
        (fault, _) => fault,
    }
}

#[cfg(feature = "parquet")]
fn read_arrow(source: impl Read, rows: &mut Rows) -> Result<(), ImportError> {
    arrow_file::read(source, rows)
}

#[cfg(feature = "parquet")]
fn read_parquet(source: Arc<dyn Positioned>, rows: &mut Rows) -> Result<(), ImportError> {
    parquet_file::read(source, rows)
}

#[cfg(not(feature = "parquet"))]
fn read_arrow(_: impl Read, _: &mut Rows) -> Result<(), ImportError> {
    Err(not_built_in())
}

#[cfg(not(feature = "parquet"))]
fn read_parquet(_: Arc<dyn Positioned>, _: &mut Rows) -> Result<(), ImportError> {
    Err(not_built_in())
}

#[cfg(not(feature = "parquet"))]
fn not_built_in() -> ImportError {
    let why = "this program was built without Parquet and Arrow; build it with --features parquet, \
               or give CSV or NDJSON";
    ImportError::File(why.into())
}

/// Reads CSV with the header `account,metric,amount`, in memory.
pub fn csv(source: impl Read + Send, kind: ImportKind) -> Result<Sealed, ImportError> {
    import([(Format::Csv, source)], Options::in_memory(kind)).map_err(|(_, error)| error)
}

/// Reads one JSON object `{"account","metric","amount"}` per line, in memory.
pub fn ndjson(source: impl Read + Send, kind: ImportKind) -> Result<Sealed, ImportError> {
    import([(Format::Ndjson, source)], Options::in_memory(kind)).map_err(|(_, error)| error)
}

/// Parses the next rows while another thread adds up the previous batch.
fn read_csv(source: impl Read + Send, rows: &mut Rows) -> Result<(), ImportError> {
    let mut reader = CsvRows::new(source);
    let (mut next, mut last) = (Batch::default(), Batch::default());
    loop {
        let (read, added) = rayon::join(|| reader.fill(&mut next), || rows.add_batch(&last));
        added?;
        std::mem::swap(&mut next, &mut last);
        if read.is_err() || last.len() < Batch::FULL {
            // The read error comes after all rows parsed before it, so a fault in one of those is
            // reported first.
            rows.add_batch(&last)?;
            return read;
        }
    }
}

struct CsvRows<R> {
    reader: csv::Reader<R>,
    record: csv::ByteRecord,
    header: bool,
}

impl<R: Read> CsvRows<R> {
    fn new(source: R) -> Self {
        let mut builder = csv::ReaderBuilder::new();
        builder.has_headers(false).flexible(true);
        Self {
            reader: builder.buffer_capacity(1 << 18).from_reader(source),
            record: csv::ByteRecord::new(),
            header: true,
        }
    }

    /// Empties the batch and refills it. A batch that is not full means the end of the source.
    fn fill(&mut self, batch: &mut Batch) -> Result<(), ImportError> {
        batch.clear();
        let record = &mut self.record;
        while batch.len() < Batch::FULL {
            let more = self.reader.read_byte_record(record).map_err(csv_error)?;
            let line = record.position().map_or(1, csv::Position::line);
            if !more {
                if self.header {
                    return Err(at(1, "the header account,metric,amount is missing"));
                }
                break;
            }
            if record.len() != 3 {
                let why = format!("{} fields; there must be 3", record.len());
                return Err(at(line, why));
            }
            if self.header {
                let names = CSV_HEADER.iter().map(|name| name.as_bytes());
                if !record.iter().eq(names) {
                    return Err(at(line, "the header must be account,metric,amount"));
                }
                self.header = false;
                continue;
            }
            let text = |field: usize| {
                std::str::from_utf8(&record[field])
                    .map_err(|_| at(line, format!("{} is not UTF-8", CSV_HEADER[field])))
            };
            batch.push(line, text(0)?, text(1)?, text(2)?)?;
        }
        Ok(())
    }
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
