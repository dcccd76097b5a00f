//! `ron rewarder approve | withdraw`: lets an epoch that was computed pay, or stops it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ron_proto::rewarder::{EpochRun, RunState, WithdrawRequest};
use ron_proto::{ContentId, EpochId};

use super::compute::print_run;
use super::remote::{Remote, failed, within};

/// Approve the manifest of an epoch that another principal has computed. It pays once it has the approvals that its
/// policy asks for.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder approve 2026-11 --commitment b3:...\n  \
                  ron rewarder approve 2026-11 --commitment b3:... --client auditor"
)]
pub struct ApproveArgs {
    /// Id of the epoch.
    epoch: String,
    /// Commitment of the manifest, as it was looked at.
    #[arg(long)]
    commitment: String,
    /// Client whose credentials are in clients/<name>.json; the person who is signed in, or the operator, when
    /// absent.
    #[arg(long)]
    client: Option<String>,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the run as JSON.
    #[arg(long)]
    json: bool,
}

pub fn approve(args: &ApproveArgs) -> Result<(), String> {
    let epoch: EpochId = args.epoch.parse().map_err(|e| format!("{e}"))?;
    let commitment = args.commitment.parse().map_err(|e| format!("{e}"))?;
    let remote = Remote::connect_as(args.data_dir.as_deref(), args.client.as_deref())?;
    let approved = remote.client.approve(&epoch, commitment, within());
    print_run(&approved.map_err(failed)?, args.json)
}

/// Withdraw the manifest of an epoch that the ledger has not opened: it never pays, and the epoch may be computed from
/// other inputs.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder withdraw 2026-11 --reason \"usage of October\"\n  \
                  ron rewarder withdraw 2026-11 --commitment b3:... --reason \"usage of October\""
)]
pub struct WithdrawArgs {
    /// Id of the epoch.
    epoch: String,
    /// Why, for people.
    #[arg(long)]
    reason: String,
    /// Commitment of the manifest; that of the epoch's run when absent.
    #[arg(long)]
    commitment: Option<String>,
    /// Maximum wait for the ledger, in seconds.
    #[arg(long, default_value_t = 60)]
    wait: u64,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the run as JSON.
    #[arg(long)]
    json: bool,
}

pub fn withdraw(args: &WithdrawArgs) -> Result<(), String> {
    let epoch: EpochId = args.epoch.parse().map_err(|e| format!("{e}"))?;
    let remote = Remote::connect(args.data_dir.as_deref())?;
    let commitment = match &args.commitment {
        Some(commitment) => commitment.parse().map_err(|e| format!("{e}"))?,
        None => manifest_of(&remote.client.epoch(&epoch, within()).map_err(failed)?)?,
    };
    let request = WithdrawRequest {
        commitment,
        reason: args.reason.clone(),
    };
    let asked = remote.client.withdraw(&epoch, &request, within());
    asked.map_err(failed)?;
    let decided = |run: &EpochRun| run.state != RunState::Withdrawing;
    let run = remote.watch((&epoch).into(), Duration::from_secs(args.wait), decided)?;
    if run.state == RunState::Withdrawn {
        return print_run(&run, args.json);
    }
    Err(format!(
        "the ledger opened epoch {epoch} before the withdrawal reached it, and its payouts are made; a new epoch that names it with --adjusts corrects it"
    ))
}

/// The commitment of the run's manifest.
fn manifest_of(run: &EpochRun) -> Result<ContentId, String> {
    run.commitment.ok_or_else(|| {
        let (epoch, state) = (&run.epoch_id, run.state.as_str());
        format!("epoch {epoch} is {state} and has no manifest")
    })
}
