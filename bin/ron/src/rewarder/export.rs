//! `ron rewarder export`: a run's payouts as CSV, NDJSON or Parquet, each checked against the
//! manifest, or its claim tree.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use ron_files::Dir;
use ron_proto::rewarder::{ClaimHash, Payout};
use ron_proto::{Account, Amount};
use serde::Serialize;
use svc_rewarder::manifest::claims_file::{FILE_PAYEES_MAX, each_json};
use svc_rewarder::manifest::reader::Reader;

use super::{ROWS, bar};

/// Write the payouts of a run as CSV, NDJSON or (built with --features parquet) Parquet. Of an epoch
/// with claims also: `claims`, its tree as OpenZeppelin's StandardMerkleTree.load reads it, and
/// `claim-proofs`, one line of JSON for every payee.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder export run > payouts.csv\n  \
                  ron rewarder export run --format ndjson --out payouts.ndjson\n  \
                  ron rewarder export run --format claim-proofs --out proofs.ndjson")]
pub struct ExportArgs {
    /// Directory of the run; DIR/asset-NAME for a further asset of it.
    dir: PathBuf,
    /// Format of the output.
    #[arg(long, default_value = "csv", value_parser = ["csv", "ndjson", "parquet", "claims", "claim-proofs"])]
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
    if format.starts_with("claim") {
        return claims(reader, format, out);
    }
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

fn claims(reader: &Reader, format: &str, mut out: impl Write) -> Result<(), String> {
    let cannot = |e: io::Error| format!("cannot write: {e}");
    let Some(of) = &reader.manifest.claims else {
        return Err("the ledger pays this epoch; its policy does not say pay \"claims\"".into());
    };
    let tree = reader.claim_tree().map_err(|e| e.to_string())?;
    if tree.root() != of.root {
        return Err("the payout table does not hash to the manifest's claim root".into());
    }
    if format == "claims" {
        if reader.len() > FILE_PAYEES_MAX as u64 {
            return Err(format!(
                "the epoch has more than {FILE_PAYEES_MAX} payees; export --format claim-proofs"
            ));
        }
        each_json(&tree, reader.table(), |piece| out.write_all(piece)).map_err(cannot)?;
        return out.flush().map_err(cannot);
    }
    let bar = bar("export", reader.len(), ROWS);
    for rows in reader.pages(reader.len()) {
        for payout in rows.map_err(|e| e.to_string())? {
            let proof = tree.path(payout.index as usize).unwrap_or_default();
            let line = ClaimLine {
                address: &payout.account,
                amount: payout.amount_minor,
                proof,
            };
            serde_json::to_writer(&mut out, &line).map_err(|e| cannot(e.into()))?;
            out.write_all(b"\n").map_err(cannot)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    out.flush().map_err(cannot)
}

/// What a claim contract takes, for one payee.
#[derive(Serialize)]
struct ClaimLine<'a> {
    address: &'a Account,
    amount: Amount,
    proof: Vec<ClaimHash>,
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
