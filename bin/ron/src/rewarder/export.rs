//! `ron rewarder export`: a run's payouts as CSV, NDJSON or Parquet, each checked against the
//! manifest.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use ron_files::Dir;
use ron_proto::rewarder::Payout;
use svc_rewarder::manifest::reader::Reader;

use super::{ROWS, bar};

/// Write the payouts of a run as CSV, NDJSON or (built with --features parquet) Parquet.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder export run > payouts.csv\n  \
                  ron rewarder export run --format ndjson --out payouts.ndjson")]
pub struct ExportArgs {
    /// Directory of the run.
    dir: PathBuf,
    /// Format of the output.
    #[arg(long, default_value = "csv", value_parser = ["csv", "ndjson", "parquet"])]
    format: String,
    /// File to write; standard output when absent.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &ExportArgs) -> Result<(), String> {
    if args.format == "parquet" && !cfg!(feature = "parquet") {
        return Err(
            "this program was built without Parquet; build it with --features parquet".into(),
        );
    }
    let reader =
        Reader::open(&Dir::os(&args.dir)).map_err(|e| format!("{}: {e}", args.dir.display()))?;
    match &args.out {
        None => write(&reader, &args.format, io::stdout()),
        Some(path) => {
            let cannot = |e: io::Error| format!("cannot write {}: {e}", path.display());
            let file = File::create(path).map_err(cannot)?;
            write(&reader, &args.format, file)
        }
    }
}

fn write(reader: &Reader, format: &str, out: impl Write + Send) -> Result<(), String> {
    if format == "parquet" {
        return parquet(reader, out);
    }
    let mut out = BufWriter::new(out);
    let bar = bar("export", reader.len(), ROWS);
    let cannot = |e: io::Error| format!("cannot write: {e}");
    if format == "csv" {
        writeln!(out, "index,account,amount_minor").map_err(cannot)?;
    }
    for rows in reader.pages(reader.len()) {
        let rows = rows.map_err(|e| e.to_string())?;
        for payout in &rows {
            line(&mut out, format, payout).map_err(cannot)?;
        }
        bar.inc(rows.len() as u64);
    }
    bar.finish_and_clear();
    out.flush().map_err(cannot)
}

#[cfg(feature = "parquet")]
fn parquet(reader: &Reader, out: impl Write + Send) -> Result<(), String> {
    let bar = bar("export", reader.len(), ROWS);
    let written = svc_rewarder::manifest::export::parquet(reader, out, |rows| bar.inc(rows));
    bar.finish_and_clear();
    written
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: &Reader, _: impl Write + Send) -> Result<(), String> {
    Err("this program was built without Parquet; build it with --features parquet".into())
}

fn line(out: &mut impl Write, format: &str, payout: &Payout) -> io::Result<()> {
    if format == "csv" {
        // Accounts contain no character that CSV would quote.
        let (index, account) = (payout.index, &payout.account);
        return writeln!(out, "{index},{account},{}", payout.amount_minor);
    }
    serde_json::to_writer(&mut *out, payout)?;
    out.write_all(b"\n")
}
