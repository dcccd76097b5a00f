//! `ron rewarder`: seals usage, computes epochs locally or in the running service, settles,
//! approves and withdraws them, exports, bundles, plots, explains, compares,
//! verifies and proves.

mod bundle;
mod compute;
mod correction;
mod diff;
mod dry_runs;
mod explain;
mod export;
mod import;
pub mod place;
mod plot;
mod release;
pub mod remote;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::check;

/// Seal usage, compute and settle epochs, verify and prove payouts.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder import usage.csv --out usage.sealed\n  \
                  ron rewarder compute 2026-11 --snapshot usage.sealed --policy reward.json --out run\n  \
                  ron rewarder verify run --unsigned\n  ron rewarder prove run acct:alice > proof.json\n  \
                  ron rewarder verify-proof proof.json --unsigned\n  \
                  ron rewarder explain run acct:alice\n  ron rewarder diff run-before run\n  \
                  ron rewarder bundle run --out 2026-11\n  \
                  ron rewarder plot --out epochs.svg"
)]
pub struct RewarderArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Import(import::ImportArgs),
    Compute(compute::ComputeArgs),
    Settle(compute::SettleArgs),
    Approve(release::ApproveArgs),
    Withdraw(release::WithdrawArgs),
    Explain(explain::ExplainArgs),
    Diff(diff::DiffArgs),
    DryRuns(dry_runs::DryRunsArgs),
    Correction(correction::CorrectionArgs),
    Export(export::ExportArgs),
    Bundle(bundle::BundleArgs),
    Plot(plot::PlotArgs),
    #[command(flatten)]
    Check(check::RewarderCommand),
}

pub fn run(args: RewarderArgs) -> Result<(), String> {
    match args.command {
        Command::Import(args) => import::run(&args),
        Command::Compute(args) => compute::run(&args),
        Command::Settle(args) => compute::settle(&args),
        Command::Approve(args) => release::approve(&args),
        Command::Withdraw(args) => release::withdraw(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::DryRuns(args) => dry_runs::run(&args),
        Command::Correction(args) => correction::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Check(command) => check::rewarder(command),
    }
}

/// A progress bar on standard error; nothing is drawn unless that is a terminal.
fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

const ROWS: &str = "{msg:>12} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";
const BYTES: &str = "{msg:>12} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Parses `256MiB`, `1GiB`, `4096`.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("write a number of bytes, or with KiB, MiB or GiB".into()),
    };
    let count: usize = digits.parse().map_err(|e| format!("{e}"))?;
    count.checked_mul(unit).ok_or_else(|| "too large".into())
}
