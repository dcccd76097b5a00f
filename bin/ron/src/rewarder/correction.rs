//! `ron rewarder correction`: what a correction means for every account: paid before, due, paid now, overpaid.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ron_proto::rewarder::{CorrectedPayee, Correction, RunManifest};
use ron_proto::strict;
use svc_rewarder::inputs::snapshot::Sealed;
use svc_rewarder::manifest::correction::{Row, Rows, accounts};
use svc_rewarder::manifest::dir;
use svc_rewarder::manifest::verify::read_manifest;

use super::place::Place;
use super::remote::{NamedRun, Remote, failed, within};

const FILES: &[&str] = &[dir::RUN, dir::CORRECTION];

/// Show what an epoch that corrects another compares: its sums, and the accounts that were paid too much, which
/// nothing is taken back from.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder correction 2026-11-fix\n  \
                  ron rewarder correction run-fix --csv accounts.csv")]
pub struct CorrectionArgs {
    /// Directory of the run, address of a bundle, id of an epoch of the service, or EPOCH@KEY for one of its dry runs. Of an
    /// epoch that pays several assets the first; others are DIR/asset-NAME and EPOCH/NAME.
    run: String,
    /// Overpaid accounts in the table, those with the largest amounts.
    #[arg(long, default_value_t = 10)]
    top: usize,
    /// File to write every account to, as CSV.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the sums and the largest amounts as JSON.
    #[arg(long)]
    json: bool,
}

/// The manifest of a correction and its accounts.
struct Opened {
    manifest: RunManifest,
    accounts: Sealed,
    /// Has the files.
    _place: Place,
}

fn open(args: &CorrectionArgs) -> Result<Opened, String> {
    let none = || format!("run {} corrects no other epoch", args.run);
    let place = if let Some(place) = Place::find(&args.run, FILES)? {
        place
    } else {
        let remote = Remote::connect(args.data_dir.as_deref())?;
        let run = remote.find(&args.run)?;
        fetch(&remote, &run)?.ok_or_else(none)?
    };
    let at = |e| format!("run {}: {e}", args.run);
    let manifest = read_manifest(&place.open()).map_err(at)?;
    let accounts = accounts(&place.open(), &manifest).map_err(at)?;
    Ok(Opened {
        manifest,
        accounts: accounts.ok_or_else(none)?,
        _place: place,
    })
}

/// What a correction of the service compares; `None` for a run that corrects no other.
pub fn fetch(remote: &Remote, run: &NamedRun) -> Result<Option<Place>, String> {
    let text = remote.client.manifest(run.as_ref(), within());
    let text = text.map_err(failed)?;
    let manifest: RunManifest = strict::from_slice(text.as_bytes())
        .map_err(|e| format!("the manifest of {}: {e}", run.short()))?;
    let corrects = manifest.correction.is_some();
    corrects
        .then(|| Place::of_correction(remote, run, &text))
        .transpose()
}

pub fn run(args: &CorrectionArgs) -> Result<(), String> {
    let opened = open(args)?;
    let Some(correction) = opened.manifest.correction else {
        return Err(format!("run {} corrects no other epoch", args.run));
    };
    let mut csv = args.csv.as_deref().map(Csv::create).transpose()?;
    let mut largest = BinaryHeap::new();
    let mut rows = Rows::over(&opened.accounts);
    while let Some(row) = rows.next().map_err(|e| e.to_string())? {
        let payee = payee(row)?;
        if let Some(csv) = &mut csv {
            csv.line(&payee)?;
        }
        if payee.overpaid_minor.is_zero() {
            continue;
        }
        largest.push((Reverse(payee.overpaid_minor.0), payee.account));
        if largest.len() > args.top {
            largest.pop();
        }
    }
    csv.map_or(Ok(()), Csv::close)?;
    let overpaid = largest.into_sorted_vec().into_iter();
    let overpaid: Vec<_> = overpaid
        .map(|(Reverse(minor), account)| (account.to_string(), minor.to_string()))
        .collect();
    print(args, &opened.manifest, &correction, &overpaid)
}

fn payee(row: Row) -> Result<CorrectedPayee, String> {
    let account = String::from_utf8(row.account).map_err(|e| e.to_string())?;
    let account = account.parse().map_err(|e| format!("{e}"))?;
    Ok(CorrectedPayee::of(account, row.paid, row.due))
}

fn print(
    args: &CorrectionArgs,
    manifest: &RunManifest,
    correction: &Correction,
    overpaid: &[(String, String)],
) -> Result<(), String> {
    if args.json {
        let largest: Vec<_> = overpaid
            .iter()
            .map(
                |(account, minor)| serde_json::json!({"account": account, "overpaid_minor": minor}),
            )
            .collect();
        let doc = serde_json::json!({"epoch_id": manifest.epoch_id, "adjusts": manifest.adjusts,
            "correction": correction, "totals": manifest.totals, "largest": largest});
        println!(
            "{}",
            serde_json::to_string(&doc).map_err(|e| e.to_string())?
        );
        return Ok(());
    }
    let earlier = manifest.adjusts.as_ref().map_or("", |epoch| epoch.as_str());
    println!("epoch {} corrects {earlier}", manifest.epoch_id);
    for (what, amount, accounts) in [
        ("paid before", correction.paid_minor, None),
        (
            "due",
            correction.due.payout_minor,
            Some(correction.due.recipients),
        ),
        ("residual", correction.due.residual_minor, None),
        (
            "pays",
            manifest.totals.payout_minor,
            Some(manifest.totals.recipients),
        ),
        (
            "overpaid",
            correction.overpaid_minor,
            Some(correction.overpaid),
        ),
    ] {
        let accounts = accounts.map_or_else(String::new, |n| format!("  {n} accounts"));
        println!("{what:<12} {:>40}{accounts}", amount.to_string());
    }
    if !overpaid.is_empty() {
        println!("\noverpaid, and not taken back:");
    }
    for (account, minor) in overpaid {
        println!("{account:<40} {minor:>20}");
    }
    Ok(())
}

/// The file of all accounts.
struct Csv<'p> {
    path: &'p Path,
    out: BufWriter<File>,
}

impl<'p> Csv<'p> {
    fn create(path: &'p Path) -> Result<Self, String> {
        let file =
            File::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let mut csv = Self {
            path,
            out: BufWriter::new(file),
        };
        let head = writeln!(
            csv.out,
            "account,before_minor,due_minor,payout_minor,overpaid_minor"
        );
        csv.written(head)?;
        Ok(csv)
    }

    fn line(&mut self, payee: &CorrectedPayee) -> Result<(), String> {
        let CorrectedPayee {
            account,
            before_minor,
            due_minor,
            payout_minor,
            overpaid_minor,
        } = payee;
        // Accounts contain no character that CSV would quote.
        let line = writeln!(
            self.out,
            "{account},{before_minor},{due_minor},{payout_minor},{overpaid_minor}"
        );
        self.written(line)
    }

    fn close(mut self) -> Result<(), String> {
        let flushed = self.out.flush();
        self.written(flushed)
    }

    fn written(&self, result: io::Result<()>) -> Result<(), String> {
        result.map_err(|e| format!("cannot write {}: {e}", self.path.display()))
    }
}
