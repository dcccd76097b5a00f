//! Parquet and Arrow files of every accepted form give the same snapshot as CSV. Hostile files are
//! refused with their position, without a panic and without unbounded memory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, Decimal128Array, Decimal256Array, DictionaryArray, Float64Array, Int64Array,
    LargeStringArray, RecordBatch, StringArray, StringViewArray, UInt64Array,
};
use arrow_buffer::i256;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterVersion};
use ron_files::{Dir, OsDisk};
use ron_proto::rewarder::ImportKind;

use super::{Cancel, Format, ImportError, Input, Options, Spill, csv, import_inputs, ndjson};
use crate::inputs::source::{Positioned, Target};

const ROWS: usize = 6_000;

/// Accounts of different lengths in no order, two metrics, amounts up to 2^63.
fn rows(count: usize) -> Vec<(String, &'static str, u64)> {
    let mut state = 7_u64;
    (0..count)
        .map(|row| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let account = format!("acct:{:x}-{}", state >> 40, row / 2);
            let metric = ["disk", "net"][row % 2];
            (account, metric, state >> (1 + row % 60))
        })
        .collect()
}

fn as_csv(rows: &[(String, &str, u64)]) -> String {
    let mut text = String::from("account,metric,amount\n");
    for (account, metric, amount) in rows {
        text.push_str(&format!("{account},{metric},{amount}\n"));
    }
    text
}

fn batch(columns: [(&str, ArrayRef); 3]) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("a batch")
}

fn texts(of: impl Iterator<Item = impl Into<String>>) -> StringArray {
    of.map(|text| Some(text.into())).collect()
}

/// The rows with `amounts` as their amount column, and names as short strings.
fn plain(rows: &[(String, &str, u64)], amounts: ArrayRef) -> RecordBatch {
    batch([
        (
            "account",
            Arc::new(texts(rows.iter().map(|r| r.0.as_str()))),
        ),
        ("metric", Arc::new(texts(rows.iter().map(|r| r.1)))),
        ("amount", amounts),
    ])
}

fn forms(rows: &[(String, &str, u64)]) -> Vec<RecordBatch> {
    let amounts = || rows.iter().map(|row| row.2);
    let decimal = |p, s| DataType::Decimal128(p, s);
    let d128 = Decimal128Array::from_iter_values(amounts().map(i128::from));
    let d256 = Decimal256Array::from_iter_values(amounts().map(|n| i256::from_i128(n.into())));
    let views: StringViewArray = rows.iter().map(|r| Some(r.0.as_str())).collect();
    let large: LargeStringArray = rows.iter().map(|r| Some(r.1)).collect();
    let coded: DictionaryArray<Int32Type> = rows.iter().map(|r| r.1).collect();
    let signed = Int64Array::from_iter_values(amounts().map(|n| n as i64));
    vec![
        plain(rows, Arc::new(UInt64Array::from_iter_values(amounts()))),
        plain(rows, Arc::new(signed)),
        plain(rows, Arc::new(texts(amounts().map(|n| n.to_string())))),
        plain(rows, Arc::new(d128.with_data_type(decimal(38, 0)))),
        batch([
            (
                "amount",
                Arc::new(d256.with_data_type(DataType::Decimal256(76, 0))),
            ),
            ("metric", Arc::new(coded)),
            ("account", Arc::new(views.clone())),
        ]),
        batch([
            ("metric", Arc::new(large)),
            ("account", Arc::new(views)),
            ("amount", Arc::new(UInt64Array::from_iter_values(amounts()))),
        ]),
    ]
}

fn parquet_of(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut bytes = Vec::new();
    let schema = batch.schema();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties)).expect("a writer");
    writer.write(batch).expect("written");
    writer.close().expect("closed");
    bytes
}

fn small_groups(compression: Compression) -> WriterProperties {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(1_000))
        .set_compression(compression)
        .build()
}

fn stream_of(batch: &RecordBatch, options: IpcWriteOptions) -> Vec<u8> {
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).expect("a writer");
    for from in (0..batch.num_rows()).step_by(1_000) {
        let count = 1_000.min(batch.num_rows() - from);
        writer.write(&batch.slice(from, count)).expect("written");
    }
    writer.finish().expect("finished");
    writer.into_inner().expect("the bytes")
}

fn file_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).expect("a writer");
    writer.write(batch).expect("written");
    writer.finish().expect("finished");
    writer.into_inner().expect("the bytes")
}

fn packed(how: Option<CompressionType>) -> IpcWriteOptions {
    let options = IpcWriteOptions::default().try_with_compression(how);
    options.expect("a known compression")
}

fn take(input: Input<&[u8]>, kind: ImportKind) -> Result<String, ImportError> {
    let sealed = import_inputs([input], Options::in_memory(kind));
    sealed
        .map(|sealed| sealed.cid().to_string())
        .map_err(|(_, error)| error)
}

fn arrow(bytes: &[u8]) -> Result<String, ImportError> {
    take(Input::Stream(Format::Arrow, bytes), ImportKind::Totals)
}

fn parquet(bytes: Vec<u8>) -> Result<String, ImportError> {
    take(Input::Parquet(Arc::new(bytes)), ImportKind::Totals)
}

#[test]
fn the_same_rows_have_one_content_id_in_every_format() {
    let rows = rows(ROWS);
    let text = as_csv(&rows);
    let sealed = csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let want = sealed.cid().to_string();
    let mut lines = String::new();
    for (a, m, n) in &rows {
        lines.push_str(&format!(
            "{{\"account\":\"{a}\",\"metric\":\"{m}\",\"amount\":\"{n}\"}}\n"
        ));
    }
    let other = ndjson(lines.as_bytes(), ImportKind::Totals).expect("good rows");
    assert_eq!(other.cid().to_string(), want);
    for (number, form) in forms(&rows).iter().enumerate() {
        let unpacked = small_groups(Compression::UNCOMPRESSED);
        let got = parquet(parquet_of(form, unpacked)).expect("good rows");
        assert_eq!(got, want, "form {number} in Parquet");
        let got = arrow(&stream_of(form, packed(None))).expect("good rows");
        assert_eq!(got, want, "form {number} as an Arrow stream");
        assert_eq!(
            arrow(&file_of(form)).expect("good rows"),
            want,
            "form {number} as a file"
        );
    }
    let form = &forms(&rows)[3];
    for how in [
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::ZSTD(parquet::basic::ZstdLevel::default()),
    ] {
        let got = parquet(parquet_of(form, small_groups(how))).expect("good rows");
        assert_eq!(got, want, "{how}");
    }
    let second = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(100)
        .build();
    assert_eq!(parquet(parquet_of(form, second)).expect("good rows"), want);
    for how in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        let got = arrow(&stream_of(form, packed(Some(how)))).expect("good rows");
        assert_eq!(got, want, "{how:?}");
    }
}

#[test]
fn all_of_an_amount_is_kept() {
    let most = [u128::MAX - 1, 1];
    let text = format!("account,metric,amount\na,m,{}\nb,m,1\n", most[0]);
    let want = csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let wide = most.map(|n| i256::from_parts(n, 0));
    let digits = texts(most.iter().map(u128::to_string));
    let amounts: [ArrayRef; 2] = [
        Arc::new(
            Decimal256Array::from_iter_values(wide).with_data_type(DataType::Decimal256(76, 0)),
        ),
        Arc::new(digits),
    ];
    let rows = [("a".to_owned(), "m", 0), ("b".to_owned(), "m", 0)];
    for amounts in amounts {
        let bytes = stream_of(&plain(&rows, amounts.clone()), packed(None));
        assert_eq!(arrow(&bytes).expect("good"), want.cid().to_string());
        let bytes = parquet_of(&plain(&rows, amounts), WriterProperties::default());
        assert_eq!(parquet(bytes).expect("good"), want.cid().to_string());
    }
}

fn in_both(batch: &RecordBatch) -> String {
    let one = arrow(&stream_of(batch, packed(None))).expect_err("to be refused");
    let properties = small_groups(Compression::SNAPPY);
    let other = parquet(parquet_of(batch, properties)).expect_err("to be refused");
    assert_eq!(one.to_string(), other.to_string());
    one.to_string()
}

#[test]
fn a_bad_row_is_named_by_its_number() {
    let good = rows(3_000);
    let numbers = || good.iter().map(|row| Some(row.2 as i64 >> 20));
    let with = |at: usize, value: Option<i64>| -> ArrayRef {
        let changed = numbers().enumerate();
        let array: Int64Array = changed
            .map(|(row, n)| if row == at { value } else { n })
            .collect();
        Arc::new(array)
    };
    let why = in_both(&plain(&good, with(2_500, Some(-1))));
    assert_eq!(why, "row 2501: amount is negative or above 2^128-1");
    let why = in_both(&plain(&good, with(1, None)));
    assert_eq!(why, "row 2: amount is missing (null)");
    let accounts: StringArray = (0..3_000)
        .map(|row| (row != 1_999).then(|| good[row].0.as_str()))
        .collect();
    let metrics: ArrayRef = Arc::new(texts(good.iter().map(|r| r.1)));
    let why = in_both(&batch([
        ("account", Arc::new(accounts)),
        ("metric", metrics.clone()),
        ("amount", with(0, Some(1))),
    ]));
    assert_eq!(why, "row 2000: account is missing (null)");
    let coded: DictionaryArray<Int32Type> = (0..3_000)
        .map(|row| (row != 1_500).then_some("m"))
        .collect();
    let accounts: ArrayRef = Arc::new(texts(good.iter().map(|r| r.0.as_str())));
    let why = in_both(&batch([
        ("account", accounts),
        ("metric", Arc::new(coded)),
        ("amount", with(0, Some(1))),
    ]));
    assert_eq!(why, "row 1501: metric is missing (null)");
    let mut bad = good.clone();
    bad[2_100].0 = "a b".into();
    let why = in_both(&plain(&bad, with(0, Some(1))));
    assert!(why.starts_with("row 2101: "), "{why}");
    bad[2_100] = good[2_000].clone();
    let why = in_both(&plain(&bad, with(0, Some(1))));
    assert!(why.starts_with("row 2101: this account already"), "{why}");
    let huge = i256::from_parts(0, 1);
    let d256 = Decimal256Array::from_iter_values([i256::from_i128(4), huge]);
    let d256 = d256.with_data_type(DataType::Decimal256(76, 0));
    let why = in_both(&plain(&good[..2], Arc::new(d256)));
    assert_eq!(why, "row 2: amount is negative or above 2^128-1");
    let all = texts([u128::MAX.to_string(), "1".into()].into_iter());
    let same = [("a".to_owned(), "m", 0), ("b".to_owned(), "m", 0)];
    let why = in_both(&plain(&same, Arc::new(all)));
    assert_eq!(why, "row 2: the sum of this metric passes 2^128-1");
}

#[test]
fn columns_of_another_kind_are_refused_by_name() {
    let good = rows(2);
    let numbers = || Arc::new(UInt64Array::from(vec![1, 2])) as ArrayRef;
    let names = || Arc::new(texts(["a", "b"].into_iter())) as ArrayRef;
    let cents = Decimal128Array::from_iter_values([100, 200]);
    let cents = cents.with_data_type(DataType::Decimal128(20, 2));
    let why = in_both(&plain(&good, Arc::new(Float64Array::from(vec![1.0, 2.0]))));
    assert!(why.contains("amount is of type Float64"), "{why}");
    let why = in_both(&plain(&good, Arc::new(cents)));
    assert!(why.contains("amount is of type Decimal128(20, 2)"), "{why}");
    let why = in_both(&batch([
        ("account", numbers()),
        ("metric", names()),
        ("amount", numbers()),
    ]));
    assert!(why.contains("account is of type UInt64"), "{why}");
    let why = in_both(&batch([
        ("account", names()),
        ("metric", names()),
        ("sum", numbers()),
    ]));
    assert_eq!(
        why,
        "column 3 is none of account, metric, amount; leave it out"
    );
    let twice = batch([
        ("account", names()),
        ("account", names()),
        ("amount", numbers()),
    ]);
    let why = arrow(&stream_of(&twice, packed(None))).expect_err("refused");
    assert_eq!(why.to_string(), "column account is there twice");
    let fields = vec![Field::new("account", DataType::Utf8, true)];
    let one = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![names()]).expect("a batch");
    assert_eq!(in_both(&one), "the column metric is missing");
}

#[test]
fn files_that_end_early_are_refused_at_every_length() {
    let rows = rows(40);
    let form = &forms(&rows)[3];
    let whole = parquet_of(form, small_groups(Compression::SNAPPY));
    for length in 0..whole.len() {
        parquet(whole[..length].to_vec()).expect_err("truncated");
    }
    let stream = stream_of(form, packed(Some(CompressionType::ZSTD)));
    for length in 0..stream.len() {
        let error = arrow(&stream[..length]).expect_err("truncated");
        assert!(error.to_string().contains("truncated"), "{length}: {error}");
    }
}

#[test]
fn no_altered_byte_makes_the_reader_panic() {
    let rows = rows(30);
    let form = &forms(&rows)[3];
    let (parquet_file, stream) = (
        parquet_of(form, small_groups(Compression::SNAPPY)),
        stream_of(form, packed(Some(CompressionType::LZ4_FRAME))),
    );
    let mut refused = [0, 0];
    for flip in [0x01, 0x80, 0xff] {
        for at in 0..parquet_file.len() {
            let mut bytes = parquet_file.clone();
            bytes[at] ^= flip;
            refused[0] += usize::from(parquet(bytes).is_err());
        }
        for at in 0..stream.len() {
            let mut bytes = stream.clone();
            bytes[at] ^= flip;
            refused[1] += usize::from(arrow(&bytes).is_err());
        }
    }
    assert!(refused[0] > parquet_file.len() / 2, "{refused:?}");
    assert!(refused[1] > stream.len() / 2, "{refused:?}");
}

/// Replaces the first occurrence of `before` with `value`.
fn patch(bytes: &mut [u8], before: &[u8], value: &[u8]) {
    let at = bytes
        .windows(before.len())
        .position(|window| window == before);
    let at = at.expect("it stands somewhere");
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[test]
fn an_index_that_claims_billions_of_booleans_is_refused_at_once() {
    let rows = rows(10);
    let amounts = Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.2)));
    let good = parquet_of(&plain(&rows, amounts), WriterProperties::default());
    assert!(parquet(good.clone()).is_ok());
    // A field that the format does not have, in front of the end of the index: a list of 2^31 - 1 booleans.
    let (front, end) = good.split_at(good.len() - 9);
    let length = u32::from_le_bytes(end[1..5].try_into().expect("four bytes"));
    let field = [0x89, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07];
    let length = (length + field.len() as u32).to_le_bytes();
    let bad = [front, &field, &[0], &length, b"PAR1"].concat();
    let why = parquet(bad).expect_err("hostile").to_string();
    assert!(
        why.contains("index at the end of the file is malformed"),
        "{why}"
    );
}

#[test]
fn declared_sizes_beyond_the_maximum_are_refused_before_allocation() {
    let rows = rows(500);
    let form = &forms(&rows)[0];
    let good = parquet_of(form, small_groups(Compression::SNAPPY));
    let mut index = good.clone();
    let end = index.len() - 8;
    index[end..end + 4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let why = parquet(index).expect_err("refused").to_string();
    assert!(why.contains("claims 2147483647 bytes"), "{why}");
    // The uncompressed size of the first page: one gibibyte instead of the true size.
    let mut page = good.clone();
    assert_eq!(page[6], 0x15, "the second field of the first page's header");
    let size = page[7..]
        .iter()
        .position(|byte| byte & 0x80 == 0)
        .expect("an end")
        + 1;
    page.splice(7..7 + size, [0x80, 0x80, 0x80, 0x80, 0x08]);
    let why = parquet(page).expect_err("refused").to_string();
    assert!(
        why.contains("row group 1, column account, page 1: it claims"),
        "{why}"
    );

    let nothing = plain(&rows, Arc::new(UInt64Array::from(vec![0; 500])));
    let good = stream_of(&nothing, packed(Some(CompressionType::LZ4_FRAME)));
    let mut head = good.clone();
    head[4..8].copy_from_slice(&0x7fff_0000_u32.to_le_bytes());
    let why = arrow(&head).expect_err("refused").to_string();
    assert!(why.contains("message 1 claims a description"), "{why}");
    let mut unpacked = good;
    let zeros = (8 * 500_i64).to_le_bytes();
    patch(&mut unpacked, &zeros, &(1_i64 << 50).to_le_bytes());
    let why = arrow(&unpacked).expect_err("refused").to_string();
    assert!(why.contains("claims to unpack to more"), "{why}");
}

/// A million equal rows of events, which both formats write in a few kilobytes.
#[test]
fn a_small_file_of_many_rows_is_refused_by_its_count() {
    const MANY: usize = 1_000_000;
    let of = |text: &str| -> ArrayRef { Arc::new(texts(std::iter::repeat_n(text, MANY))) };
    let many = batch([
        ("account", of("a")),
        ("metric", of("m")),
        ("amount", Arc::new(Int64Array::from(vec![1; MANY]))),
    ]);
    let small = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut file = parquet_of(&many, small);
    let stream = stream_of(&many, packed(Some(CompressionType::ZSTD)));
    assert!(file.len() < 64 << 10, "{} bytes", file.len());
    let with = |input: Input<&[u8]>, rows_max| {
        let options = Options {
            rows_max,
            ..Options::in_memory(ImportKind::Events)
        };
        import_inputs([input], options).map_err(|(_, error)| error.to_string())
    };
    let all = MANY as u64;
    for (input, rows_max) in [
        (Input::Stream(Format::Arrow, &stream[..]), all),
        (Input::Parquet(Arc::new(file.clone())), all),
    ] {
        let sealed = with(input, rows_max).expect("as many as there may be");
        assert_eq!(sealed.metrics()[0].sum.0, MANY as u128);
    }
    // The data is never decoded: the count in the index decides.
    file[4..200].fill(0xff);
    let refused = format!(
        "more than {} rows; split the usage, or raise the limit",
        all - 1
    );
    for input in [
        Input::Stream(Format::Arrow, &stream[..]),
        Input::Parquet(Arc::new(file)),
    ] {
        assert_eq!(with(input, all - 1).expect_err("one too many"), refused);
    }
}

#[test]
fn row_groups_larger_than_memory_are_spilled_and_can_be_cancelled() {
    let rows = rows(ROWS);
    let want = csv(as_csv(&rows).as_bytes(), ImportKind::Totals).expect("good rows");
    let bytes: Arc<dyn Positioned> = Arc::new(parquet_of(
        &forms(&rows)[0],
        small_groups(Compression::SNAPPY),
    ));
    let dir = tempfile::tempdir().expect("a directory");
    let options = |cancel| Options {
        kind: ImportKind::Totals,
        period: None,
        target: Target::file(&OsDisk, &dir.path().join("sealed")).expect("writable"),
        spill: Some(Spill {
            memory: 64 << 10,
            dir: Dir::os(dir.path().join("import")),
        }),
        rows_max: u64::MAX,
        cancel,
    };
    let input = || Input::<&[u8]>::Parquet(Arc::clone(&bytes));
    let sealed = import_inputs([input()], options(None)).expect("good rows");
    assert_eq!(sealed.cid(), want.cid());
    let twice = import_inputs([input(), input()], options(None)).expect_err("twice");
    assert_eq!(twice.0, 1, "the second file");
    assert!(twice.1.to_string().starts_with("row 1: "), "{}", twice.1);
    let many = [input(), input(), input()];
    let mut stopping = options(Some(Cancel(Arc::new(|| true))));
    stopping.kind = ImportKind::Events;
    let (_, error) = import_inputs(many, stopping).expect_err("stopped");
    assert!(matches!(error, ImportError::Stopped), "{error}");
    let left = std::fs::read_dir(dir.path()).expect("there").count();
    assert_eq!(left, 1, "the snapshot, no runs");
}

fn python() -> PathBuf {
    let set = std::env::var_os("RON_TEST_PYTHON").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = set.unwrap_or_else(|| root.join("target/test-venv/bin/python"));
    assert!(
        python.exists(),
        "{} is missing: run scripts/setup.sh",
        python.display()
    );
    python
}

/// The usage in files as other programs write them.
const OTHERS: &str = r#"
import sys, duckdb, pyarrow as pa, pyarrow.parquet as pq, pyarrow.feather as feather
out = sys.argv[1]
db = duckdb.connect()
db.execute("create table usage(account varchar, metric varchar, amount decimal(38,0))")
db.execute(f"insert into usage select * from read_csv('{out}/usage.csv', "
           "columns={'account':'varchar','metric':'varchar','amount':'decimal(38,0)'})")
db.execute(f"copy usage to '{out}/duckdb.parquet' (format parquet)")
db.execute(f"copy usage to '{out}/duckdb-zstd.parquet' (format parquet, compression zstd, row_group_size 2048)")
db.execute(f"copy (select account, metric, amount::ubigint as amount from usage) to '{out}/duckdb-u64.parquet' (format parquet)")
rows = db.execute("select * from usage").fetchall()
columns = list(zip(*rows))
table = pa.table({"account": pa.array(columns[0]), "metric": pa.array(columns[1]).dictionary_encode(),
                  "amount": pa.array([int(n) for n in columns[2]], pa.uint64())})
pq.write_table(table, f"{out}/pyarrow.parquet", row_group_size=1500)
pq.write_table(table, f"{out}/pyarrow-v2.parquet", data_page_version="2.0", compression="lz4", write_page_checksum=True)
feather.write_feather(table, f"{out}/pyarrow.arrow")
feather.write_feather(table, f"{out}/pyarrow-zstd.arrow", compression="zstd", chunksize=777)
with pa.ipc.new_stream(f"{out}/pyarrow-stream.arrow", table.schema) as writer:
    writer.write_table(table, 1000)
"#;

#[test]
fn files_of_duckdb_and_pyarrow_give_the_same_content_id() {
    let rows = rows(ROWS);
    let text = as_csv(&rows);
    let want = csv(text.as_bytes(), ImportKind::Totals).expect("good rows");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("usage.csv"), text).expect("writable");
    let mut child = Command::new(python())
        .args(["-", dir.path().to_str().expect("UTF-8")])
        .stdin(Stdio::piped())
        .spawn()
        .expect("python runs");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(OTHERS.as_bytes()).expect("a script");
    drop(input);
    assert!(child.wait().expect("an end").success());
    let mut count = 0;
    for entry in std::fs::read_dir(dir.path()).expect("there").flatten() {
        let path = entry.path();
        let bytes = std::fs::read(&path).expect("readable");
        let ending = path.extension().and_then(|ending| ending.to_str());
        let got = match Format::of_extension(ending.unwrap_or("")) {
            Some(Format::Parquet) => parquet(bytes),
            Some(Format::Arrow) => arrow(&bytes),
            _ => continue,
        };
        let got = got.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(got, want.cid().to_string(), "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 8, "every file was made and read");
}
