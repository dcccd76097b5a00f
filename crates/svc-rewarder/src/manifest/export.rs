//! Writes a run's payouts as a Parquet file, each checked against the manifest first.
//!
//! Columns: `index` (unsigned 64 bit), `account` (text), `amount_minor` (a decimal of 38 digits
//! without fraction, or digits as text for an epoch that pays more than such a decimal holds).

use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, Decimal128Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use ron_proto::rewarder::Payout;

use super::reader::Reader;

/// Rows of a row group.
const GROUP: usize = 1 << 20;
/// Digits that a decimal of 128 bits holds.
const DIGITS: u8 = 38;

/// Writes every payout of a run; `done` is called with the number of payouts of each step.
pub fn parquet(reader: &Reader, out: impl Write + Send, done: impl Fn(u64)) -> Result<(), String> {
    let amounts = if reader.total() < 10_u128.pow(u32::from(DIGITS)) {
        DataType::Decimal128(DIGITS, 0)
    } else {
        DataType::Utf8
    };
    let schema = Arc::new(Schema::new(vec![
        Field::new("index", DataType::UInt64, false),
        Field::new("account", DataType::Utf8, false),
        Field::new("amount_minor", amounts.clone(), false),
    ]));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(GROUP))
        .build();
    let text = |error: parquet::errors::ParquetError| format!("cannot write: {error}");
    let mut writer =
        ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties)).map_err(text)?;
    for rows in reader.pages(reader.len()) {
        let rows = rows.map_err(|error| error.to_string())?;
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns(&rows, &amounts)?)
            .map_err(|error| error.to_string())?;
        writer.write(&batch).map_err(text)?;
        done(rows.len() as u64);
    }
    writer.close().map(|_| ()).map_err(text)
}

fn columns(rows: &[Payout], amounts: &DataType) -> Result<Vec<ArrayRef>, String> {
    let accounts = rows.iter().map(|row| Some(row.account.as_str()));
    let amount: ArrayRef = if *amounts == DataType::Utf8 {
        let digits = rows.iter().map(|row| Some(row.amount_minor.to_string()));
        Arc::new(digits.collect::<StringArray>())
    } else {
        // No payout exceeds the total, which was checked to fit.
        let whole = rows.iter().map(|row| row.amount_minor.0 as i128);
        let array = Decimal128Array::from_iter_values(whole);
        let array = array.with_precision_and_scale(DIGITS, 0);
        Arc::new(array.map_err(|error| error.to_string())?)
    };
    Ok(vec![
        Arc::new(UInt64Array::from_iter_values(
            rows.iter().map(|row| row.index),
        )),
        Arc::new(accounts.collect::<StringArray>()),
        amount,
    ])
}
