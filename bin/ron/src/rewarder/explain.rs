//! `ron rewarder explain`: why an account gets what it gets, from a run's directory or from the service.

use std::path::PathBuf;

use clap::Args;
use ron_proto::Account;
use ron_proto::rewarder::{PayoutExplanation, RemainderUnit, UnpaidReason};
use svc_rewarder::manifest::explain::Explainer;

use super::place::{INPUTS, Place};
use super::remote::{Remote, failed, within};

/// Say why an account gets what it gets: usage, weights, caps, share, and the reason if nothing is paid.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder explain run acct:alice\n  ron rewarder explain 2026-11 acct:alice --json\n  ron rewarder explain 2026-11/usd acct:alice"
)]
pub struct ExplainArgs {
    /// Directory of the run, address of a bundle, id of an epoch of the service, or EPOCH@KEY for one of its dry runs. Of an
    /// epoch that pays several assets the first; others are DIR/asset-NAME and EPOCH/NAME.
    run: String,
    /// Account.
    account: String,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the explanation as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ExplainArgs) -> Result<(), String> {
    let account: Account = args.account.parse().map_err(|e| format!("{e}"))?;
    let explained = if let Some(place) = Place::find(&args.run, INPUTS)? {
        let at = |e: svc_rewarder::manifest::verify::VerifyError| format!("run {}: {e}", args.run);
        let run = Explainer::open(&place.open(), &()).map_err(at)?;
        run.explain(&account).map_err(at)?
    } else {
        let remote = Remote::connect(args.data_dir.as_deref())?;
        let run = remote.find(&args.run)?;
        let answer = remote.client.explain(run.as_ref(), &account, within());
        answer.map_err(failed)?
    };
    if args.json {
        let text = serde_json::to_string_pretty(&explained).map_err(|e| e.to_string())?;
        println!("{text}");
    } else {
        print(&explained);
    }
    Ok(())
}

fn print(it: &PayoutExplanation) {
    let line = |what: &str, value: String| println!("{what:<12} {value}");
    let gets = it
        .correction
        .as_ref()
        .map_or(it.paid_minor, |of| of.payout_minor);
    println!("{} of {} gets {gets} {}", it.account, it.epoch_id, it.asset);
    if let Some(of) = &it.correction {
        line("paid before", of.before_minor.to_string());
        line("due", of.due_minor.to_string());
        line("difference", of.payout_minor.to_string());
        if !of.overpaid_minor.is_zero() {
            line(
                "overpaid",
                format!("{}, which is not taken back", of.overpaid_minor),
            );
        }
    }
    for used in &it.metrics {
        let capped = match (&used.category, used.category_capped) {
            (Some(category), true) => format!(", category {category} at its cap"),
            (Some(category), false) => format!(", category {category}"),
            (None, _) => String::new(),
        };
        line(
            used.metric.as_str(),
            format!("{} x {}{capped}", used.amount, used.weight),
        );
    }
    line("weight", format!("{} of {}", it.weight, it.split_weight));
    line("split", it.split_minor.to_string());
    if it.account_capped {
        line("share", format!("{}, the account cap", it.floor_minor));
    } else {
        line("share", it.floor_minor.to_string());
    }
    match it.remainder_unit {
        RemainderUnit::No => {}
        RemainderUnit::Yes => line("remainder", "1 unit more".to_owned()),
        RemainderUnit::Tied => line("remainder", "tied".to_owned()),
    }
    if let Some(reason) = it.unpaid {
        line("unpaid", said(reason, it));
    }
    if let Some(residual) = it.residual_minor {
        line("residual", residual.to_string());
    }
}

fn said(reason: UnpaidReason, it: &PayoutExplanation) -> String {
    match reason {
        UnpaidReason::NoUsage => "the snapshot has no usage of it".to_owned(),
        UnpaidReason::Excluded => "the policy excludes it".to_owned(),
        UnpaidReason::OtherPrefix => "it has none of the policy's prefixes".to_owned(),
        UnpaidReason::BelowRequired => "it has less of a metric than the policy demands".to_owned(),
        UnpaidReason::AnalyticsOnly => "its usage is analytics_only, which never pays".to_owned(),
        UnpaidReason::NoWeight => "all metrics that it used have weight 0".to_owned(),
        UnpaidReason::CategoryCapped => "the caps of categories leave it nothing".to_owned(),
        UnpaidReason::BelowOne => "its share is less than one minor unit".to_owned(),
        UnpaidReason::BelowMinimum => {
            format!(
                "its share is below the minimum payout of {}",
                it.min_payout_minor
            )
        }
    }
}
