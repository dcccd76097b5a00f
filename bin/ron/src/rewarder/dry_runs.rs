//! `ron rewarder dry-runs`: the dry runs of an epoch that the service keeps, by the names that other
//! commands take.

use std::path::PathBuf;

use clap::Args;
use ron_proto::EpochId;
use ron_proto::rewarder::{AssetTotals, EpochRun};

use super::remote::{NamedRun, Remote, failed, within};

/// List the dry runs of an epoch, the newest first: each is of other inputs, and is kept beside the others and the
/// live run.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder dry-runs 2026-11\n  \
                  ron rewarder diff 2026-11@3fa2 2026-11@90b1\n  ron rewarder diff 2026-11 2026-11@3fa2")]
pub struct DryRunsArgs {
    /// Id of the epoch.
    epoch: EpochId,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print them as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DryRunsArgs) -> Result<(), String> {
    let remote = Remote::connect(args.data_dir.as_deref())?;
    let runs = remote.client.dry_runs(&args.epoch, within());
    let runs = runs.map_err(failed)?.epochs;
    if args.json {
        println!(
            "{}",
            serde_json::to_string(&runs).map_err(|e| e.to_string())?
        );
        return Ok(());
    }
    if runs.is_empty() {
        println!("epoch {} has no dry runs", args.epoch);
    }
    runs.iter().for_each(line);
    Ok(())
}

fn line(run: &EpochRun) {
    let name = NamedRun::of(run).short();
    let paid = run.totals.map_or_else(String::new, |totals| {
        format!("{} to {}", totals.payout_minor, totals.recipients)
    });
    let (state, policy) = (run.state.as_str(), &run.policy_id);
    println!("{name}  {state}  {paid}");
    for AssetTotals { asset, totals } in &run.assets {
        let (paid, recipients) = (totals.payout_minor, totals.recipients);
        println!("    {asset}  {paid} to {recipients}");
    }
    println!(
        "    {}  usage {}  policy {policy} {}",
        run.created_at, run.snapshot, run.policy_hash
    );
}
