//! `ron rewarder import`: CSV and NDJSON files become one sealed snapshot.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use ron_proto::rewarder::{ImportKind, SnapshotInfo};
use svc_rewarder::inputs::import::{Format, Options, Spill, import};
use svc_rewarder::inputs::source::Target;

use super::{BYTES, bar, remote, size};

/// Seal usage: sort and sum rows of account, metric, amount into a content-addressed snapshot.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder import usage.csv --out usage.sealed\n  \
                  ron rewarder import events/ --kind events --memory 64MiB --out usage.sealed\n  \
                  ron rewarder import usage.ndjson --out usage.sealed --upload"
)]
pub struct ImportArgs {
    /// Files (.csv, .ndjson, .jsonl), or directories of them, read in order of their names.
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// totals: one row per account and metric. events: rows are added up.
    #[arg(long, default_value = "totals", value_parser = ["totals", "events"])]
    kind: String,
    /// Where the sealed snapshot goes.
    #[arg(long)]
    out: PathBuf,
    /// About how much memory rows may take; what is beyond is sorted on disk.
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
    /// Print what was sealed as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `ron rewarder import`.
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
    let sources = opened
        .into_iter()
        .map(|(format, file)| (format, bar.wrap_read(file)));
    // Written under another name first: a refused import leaves nothing behind.
    let temp = beside(&args.out, ".new");
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", args.out.display());
    let scratch = args.scratch.clone().unwrap_or_else(|| dir_of(&args.out));
    let options = Options {
        kind: if args.kind == "events" {
            ImportKind::Events
        } else {
            ImportKind::Totals
        },
        target: Target::file(&temp).map_err(cannot)?,
        spill: Some(Spill {
            memory: args.memory,
            scratch,
        }),
    };
    let sealed = import(sources, options);
    bar.finish_and_clear();
    let sealed = sealed.map_err(|(number, error)| {
        let _ = std::fs::remove_file(&temp); // only ours
        let path = files.get(number).map(|path| path.display().to_string());
        format!("{}: {error}", path.unwrap_or_default())
    })?;
    std::fs::rename(&temp, &args.out).map_err(cannot)?;
    print(&sealed.info(), &args.out, args.json)?;
    if args.upload {
        remote::Remote::connect(args.data_dir.as_deref())?.upload(&args.out)?;
    }
    Ok(())
}

/// The directory a file is in.
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

/// Directories become the files in them that can be imported, in order of their names.
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
            .filter(|path| path.is_file() && format_of(path).is_ok())
            .collect();
        if found.is_empty() {
            let dir = source.display();
            return Err(format!("there is no .csv, .ndjson or .jsonl file in {dir}"));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

fn format_of(path: &Path) -> Result<Format, String> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => Ok(Format::Csv),
        Some("ndjson" | "jsonl") => Ok(Format::Ndjson),
        _ => Err(format!(
            "{}: the name must end in .csv, .ndjson or .jsonl",
            path.display()
        )),
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
