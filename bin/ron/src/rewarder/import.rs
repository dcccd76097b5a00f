//! `ron rewarder import`: turns files of usage into one sealed snapshot.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use indicatif::ProgressBar;
use ron_files::{Dir, OsDisk, rename_durably};
use ron_proto::rewarder::{ImportKind, SnapshotInfo, UsagePeriod};
use svc_rewarder::inputs::import::{Format, Input, Options, Spill, import_inputs};
use svc_rewarder::inputs::source::{Positioned, Target};

use super::{BYTES, bar, remote, size};

/// Seal usage: sort and sum rows of account, metric, amount into a content-addressed snapshot.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder import usage.csv --period 2026-11 --out usage.sealed\n  \
                  ron rewarder import events/ --kind events --memory 64MiB --out usage.sealed\n  \
                  ron rewarder import usage.ndjson --out usage.sealed --upload"
)]
pub struct ImportArgs {
    /// Files (.csv, .ndjson, .jsonl; built with --features parquet also .parquet, .arrow, .arrows,
    /// .ipc, .feather), or directories of them, read in order of their names.
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// totals: one row per account and metric. events: rows are added up.
    #[arg(long, default_value = "totals", value_parser = ["totals", "events"])]
    kind: String,
    /// Period the usage was measured in, such as 2026-11: 1 to 64 of [A-Za-z0-9:._-]. A policy pays
    /// a snapshot once, so the same usage of another period needs another value.
    #[arg(long)]
    period: Option<UsagePeriod>,
    /// File to write the sealed snapshot to.
    #[arg(long)]
    out: PathBuf,
    /// Approximate memory for rows; rows beyond it are sorted on disk.
    #[arg(long, default_value = "512MiB", value_parser = size)]
    memory: usize,
    /// Directory for sorting; beside the snapshot when absent.
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Also send the snapshot to the running service.
    #[arg(long)]
    upload: bool,
    /// Data directory of `ron up`, for --upload.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Maximum rows of all files together; compressed files can contain more than their size
    /// suggests.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    max_rows: u64,
    /// Print the sealed snapshot's description as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ImportArgs) -> Result<(), String> {
    let files = files(&args.sources)?;
    let mut total = 0;
    let mut opened = Vec::with_capacity(files.len());
    for path in &files {
        let cannot = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
        let file = File::open(path).map_err(cannot)?;
        total += file.metadata().map_err(cannot)?.len();
        opened.push((format_of(path)?, file));
    }
    let bar = bar("import", total, BYTES);
    let inputs = opened.into_iter().map(|(format, file)| match format {
        Format::Parquet => Input::Parquet(Arc::new(Watched(file, bar.clone()))),
        format => Input::Stream(format, bar.wrap_read(file)),
    });
    // Written under a temporary name first: a refused import leaves no file behind.
    let temp = beside(&args.out, ".new");
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", args.out.display());
    let scratch = args.scratch.clone().unwrap_or_else(|| dir_of(&args.out));
    let options = Options {
        kind: if args.kind == "events" {
            ImportKind::Events
        } else {
            ImportKind::Totals
        },
        period: args.period.clone(),
        target: Target::file(&OsDisk, &temp).map_err(cannot)?,
        spill: Some(Spill {
            memory: args.memory,
            // Other processes import there too.
            dir: Dir::os(scratch.join(format!("import-{}", std::process::id()))),
        }),
        rows_max: args.max_rows,
        cancel: None,
    };
    let sealed = import_inputs(inputs, options);
    bar.finish_and_clear();
    let sealed = sealed.map_err(|(number, error)| {
        let _ = std::fs::remove_file(&temp); // this run's own file
        let path = files.get(number).map(|path| path.display().to_string());
        format!("{}: {error}", path.unwrap_or_default())
    })?;
    rename_durably(&OsDisk, &temp, &args.out).map_err(cannot)?;
    print(&sealed.info(), &args.out, args.json)?;
    if args.upload {
        remote::Remote::connect(args.data_dir.as_deref())?.upload(&args.out)?;
    }
    Ok(())
}

/// The directory that contains a file.
pub fn dir_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Replaces directories by the importable files in them, in order of their names.
fn files(sources: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for source in sources {
        if !source.is_dir() {
            files.push(source.clone());
            continue;
        }
        let cannot = |e| format!("cannot read {}: {e}", source.display());
        let entries = std::fs::read_dir(source).map_err(cannot)?;
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_file() && known(path).is_some())
            .collect();
        if found.is_empty() {
            let dir = source.display();
            return Err(format!("there is no file of usage in {dir}: {ENDINGS}"));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

const ENDINGS: &str =
    "names end in .csv, .ndjson, .jsonl, .parquet, .arrow, .arrows, .ipc or .feather";

fn known(path: &Path) -> Option<Format> {
    Format::of_extension(path.extension()?.to_str()?)
}

fn format_of(path: &Path) -> Result<Format, String> {
    let format = known(path).ok_or_else(|| format!("{}: {ENDINGS}", path.display()))?;
    if !format.is_built_in() {
        return Err(format!(
            "{}: this program was built without Parquet and Arrow; build it with --features parquet",
            path.display()
        ));
    }
    Ok(format)
}

/// A file read by position, with a progress bar.
struct Watched(File, ProgressBar);

impl Positioned for Watched {
    fn size(&self) -> std::io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let count = Positioned::read_at(&self.0, offset, into)?;
        self.1.inc(count as u64);
        Ok(count)
    }
}

fn print(info: &SnapshotInfo, out: &Path, json: bool) -> Result<(), String> {
    if json {
        println!(
            "{}",
            serde_json::to_string(info).map_err(|e| e.to_string())?
        );
        return Ok(());
    }
    println!("{}", info.cid);
    println!(
        "{} accounts, {} bytes in {}",
        info.accounts,
        info.bytes,
        out.display()
    );
    println!("{:<24} {:>12} {:>40}", "metric", "accounts", "sum");
    for metric in &info.metrics {
        let sum = metric.sum.to_string();
        println!(
            "{:<24} {:>12} {sum:>40}",
            metric.metric.as_str(),
            metric.accounts
        );
    }
    Ok(())
}
