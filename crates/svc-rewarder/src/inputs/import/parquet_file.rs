//! Parquet files, read row group by row group and batch by batch.
//!
//! The index at the end of the file and every page's header are compared with bounds before
//! anything of the claimed size is allocated. The Arrow schema that some writers embed is ignored:
//! the Parquet schema decides.

use std::io::{self, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};

use super::ImportError;
use super::columns::Columns;
use super::rows::Rows;
use super::thrift;
use crate::inputs::source::Positioned;

/// Maximum size of the index at the end of a file, in bytes.
const INDEX_MAX: u64 = 32 << 20;
/// Maximum size of an uncompressed page, in bytes.
const PAGE_MAX: u64 = 256 << 20;
/// Maximum size of a page header, in bytes; it may hold the page's minimum and maximum value.
const PAGE_HEAD_MAX: usize = 1 << 20;
const BATCH: usize = 8_192;

fn refuse(why: impl Into<String>) -> ImportError {
    ImportError::File(why.into())
}

/// Reads every row group into `rows`.
pub(super) fn read(source: Arc<dyn Positioned>, rows: &mut Rows) -> Result<(), ImportError> {
    let length = source.size()?;
    let index = check_end(&*source, length)?;
    check_index(&*source, length, index)?;
    let chunks = Chunks { source, length };
    let builder = guarded(|| {
        let options = ArrowReaderOptions::new()
            .with_skip_arrow_metadata(true)
            .with_page_index_policy(PageIndexPolicy::Skip);
        ParquetRecordBatchReaderBuilder::try_new_with_options(chunks.clone(), options)
    })
    .map_err(|why| refuse(format!("the index at the end of the file: {why}")))?;
    let columns = Columns::of(builder.schema())?;
    rows.expect(rows_of(builder.metadata()))?;
    guarded(|| check_pages(&chunks, builder.metadata()).map_err(|e| outer(&e))).map_err(refuse)?;
    let mut batches = guarded(|| builder.with_batch_size(BATCH).build())
        .map_err(|why| refuse(format!("the columns: {why}")))?;
    let mut next = 1;
    while let Some(batch) = next_batch(&mut batches)
        .map_err(|why| refuse(format!("the data after row {}: {why}", next - 1)))?
    {
        columns.add(&batch, next, rows)?;
        next += batch.num_rows() as u64;
    }
    Ok(())
}

/// Number of rows in the index. The library reads no more than that from a row group, and refuses a
/// negative number itself.
fn rows_of(index: &ParquetMetaData) -> u64 {
    let counts = index
        .row_groups()
        .iter()
        .map(parquet::file::metadata::RowGroupMetaData::num_rows);
    counts.fold(0, |sum: u64, rows| {
        sum.saturating_add(u64::try_from(rows).unwrap_or(0))
    })
}

/// Runs library code so that its panic does not end this process, whatever the bytes are.
fn guarded<T>(act: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("malformed".into()),
    }
}

fn next_batch(batches: &mut ParquetRecordBatchReader) -> Result<Option<RecordBatch>, String> {
    guarded(|| {
        let next = batches.next().transpose();
        next.map_err(|error| ParquetError::General(error.to_string()))
    })
}

fn outer(error: &ImportError) -> ParquetError {
    ParquetError::General(error.to_string())
}

/// Checks the last eight bytes: the index's length, which is returned, and the magic.
fn check_end(source: &dyn Positioned, length: u64) -> Result<u64, ImportError> {
    let mut end = [0; 8];
    if length < 12 {
        return Err(refuse("not a Parquet file: it is too short"));
    }
    read_exact(source, length - 8, &mut end)?;
    match &end[4..] {
        b"PAR1" => {}
        b"PARE" => return Err(refuse("the file is encrypted, which is not read")),
        _ => {
            return Err(refuse("not a Parquet file, or truncated: wrong last bytes"));
        }
    }
    let index = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if index > INDEX_MAX {
        return Err(refuse(format!(
            "the index at the end claims {index} bytes; at most {INDEX_MAX} are read"
        )));
    }
    if index + 12 > length {
        return Err(refuse(format!(
            "the index at the end claims {index} bytes, more than the file has"
        )));
    }
    Ok(index)
}

/// Checks the types in the index, before the library reads it.
fn check_index(source: &dyn Positioned, length: u64, index: u64) -> Result<(), ImportError> {
    let mut bytes = vec![0; index as usize];
    read_exact(source, length - 8 - index, &mut bytes)?;
    thrift::check_index(&bytes).map_err(|_| refuse("the index at the end of the file is malformed"))
}

/// Walks over the headers of all pages and refuses a page that claims more than its maximum size.
fn check_pages(chunks: &Chunks, index: &ParquetMetaData) -> Result<(), ImportError> {
    for (number, group) in index.row_groups().iter().enumerate() {
        for column in group.columns() {
            let name = column.column_path().string();
            let place = format!("row group {}, column {name}", number + 1);
            let start = column
                .dictionary_page_offset()
                .unwrap_or_else(|| column.data_page_offset());
            let range = u64::try_from(start)
                .ok()
                .zip(u64::try_from(column.compressed_size()).ok())
                .and_then(|(from, length)| Some((from, from.checked_add(length)?)))
                .filter(|(_, end)| *end <= chunks.length);
            let Some((from, end)) = range else {
                return Err(refuse(format!("{place}: it lies outside of the file")));
            };
            walk(chunks, from, end).map_err(|error| match error {
                Walk::Io(error) => ImportError::Read(error),
                Walk::Bad(page, why) => refuse(format!("{place}, page {page}: {why}")),
            })?;
        }
    }
    Ok(())
}

enum Walk {
    Io(io::Error),
    Bad(u64, &'static str),
}

fn walk(chunks: &Chunks, from: u64, end: u64) -> Result<(), Walk> {
    let mut at = from;
    let mut window = Vec::new();
    for page in 1.. {
        if at == end {
            break;
        }
        let bad = |why| Walk::Bad(page, why);
        let mut room = 512;
        let head = loop {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            window.resize(room.min(left), 0);
            read_exact(&*chunks.source, at, &mut window).map_err(Walk::Io)?;
            match thrift::page_header(&window) {
                Ok(head) => break head,
                Err(thrift::Fault::Short) if room < left && room < PAGE_HEAD_MAX => room *= 8,
                Err(thrift::Fault::Short) => return Err(bad("its header does not end")),
                Err(thrift::Fault::Bad) => return Err(bad("its header is malformed")),
            }
        };
        let sizes = u64::try_from(head.packed)
            .ok()
            .zip(u64::try_from(head.unpacked).ok());
        let Some((packed, unpacked)) = sizes else {
            return Err(bad("it claims a negative size"));
        };
        if unpacked > PAGE_MAX || packed > PAGE_MAX {
            return Err(bad("it claims more than 256 MiB"));
        }
        at = at
            .checked_add(head.length as u64 + packed)
            .filter(|next| *next <= end)
            .ok_or_else(|| bad("it reaches beyond its column"))?;
    }
    Ok(())
}

fn read_exact(source: &dyn Positioned, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match source.read_at(offset + done as u64, &mut into[done..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// The file, in the form that the library reads.
#[derive(Clone)]
struct Chunks {
    source: Arc<dyn Positioned>,
    length: u64,
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(From {
            source: Arc::clone(&self.source),
            at: start,
        }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(ParquetError::EOF("beyond the end of the file".into()));
        }
        let mut bytes = vec![0; length];
        read_exact(&*self.source, start, &mut bytes)?;
        Ok(bytes.into())
    }
}

/// A reader that starts at a given position.
struct From {
    source: Arc<dyn Positioned>,
    at: u64,
}

impl Read for From {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read_at(self.at, into)?;
        if count == 0 && !into.is_empty() {
            // The library would take the end for bytes that it has passed over. A sound file ends with what it does not read here.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        Ok(count)
    }
}
