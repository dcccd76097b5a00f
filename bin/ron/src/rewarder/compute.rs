//! `ron rewarder compute | settle`: an epoch from sealed usage and a signed policy, computed
//! locally or by the running service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use ron_files::{Dir, Disk as _, OsDisk};
use ron_proto::rewarder::{
    AssetTotals, ComputeRequest, EpochRun, RunManifest, RunState, SignedPolicy,
};
use ron_proto::{Asset, ContentId, EpochId, Tenant, strict};
use ron_service::pinned::{KeyRing, PinnedKey};
use svc_rewarder::calculus::{Usage as _, Watch};
use svc_rewarder::inputs::policy::{VerifiedPolicy, verify_stored};
use svc_rewarder::inputs::snapshot::Sealed;
use svc_rewarder::inputs::source::Target;
use svc_rewarder::manifest::assets;
use svc_rewarder::manifest::dir;

use super::import::dir_of;
use super::remote::{NamedRun, Remote, failed, within};
use super::{ROWS, bar};
use crate::layout::Layout;
use crate::verifiers;

/// Compute an epoch. With --out: locally, into a run directory that `verify --unsigned`, prove,
/// export and plot read. Without: in the running service, which settles it if settlement is
/// automatic.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder compute 2026-11 --snapshot usage.sealed --policy reward.json --out run\n  \
                  ron rewarder compute 2026-11 --snapshot usage.sealed --policy reward.json --dry-run\n  \
                  ron rewarder compute 2026-11 --snapshot b3:... --policy reward.json\n  \
                  ron rewarder compute 2026-11-fix --adjusts 2026-11 --snapshot fixed.sealed --policy reward.json"
)]
pub struct ComputeArgs {
    /// Id of the epoch: 1 to 64 of [A-Za-z0-9:._-].
    epoch: String,
    /// Sealed snapshot, or the content id of one that the service has.
    #[arg(long)]
    snapshot: String,
    /// Signed policy in canonical form, with its signature beside it in <file>.sig.
    #[arg(long)]
    policy: PathBuf,
    /// Compute locally and write the run to this directory, which must not exist.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Tenant of the epoch; the policy's when absent. In the service it is the caller's.
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Public key that the policy must be signed with (base64url), instead of the one in
    /// verifiers.json; for --out.
    #[arg(long, allow_hyphen_values = true)]
    policy_key: Option<String>,
    /// Settled epoch that this one corrects: it pays the differences. In the service.
    #[arg(long, conflicts_with = "out")]
    adjusts: Option<EpochId>,
    /// Directory of the run that this one corrects, with --out.
    #[arg(long, requires = "out")]
    corrects: Option<PathBuf>,
    /// Compute and never pay; only in the service.
    #[arg(long, conflicts_with = "out")]
    dry_run: bool,
    /// Maximum wait for the service, in seconds.
    #[arg(long, default_value_t = 600)]
    wait: u64,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the manifest (or, from the service, the run) as JSON.
    #[arg(long)]
    json: bool,
}

/// Settle a sealed epoch and wait until all payouts are made.
#[derive(Args)]
#[command(after_help = "Examples:\n  ron rewarder settle 2026-11")]
pub struct SettleArgs {
    /// Id of the epoch.
    epoch: String,
    /// Maximum wait, in seconds.
    #[arg(long, default_value_t = 600)]
    wait: u64,
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print the run as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ComputeArgs) -> Result<(), String> {
    match &args.out {
        Some(out) => here(args, out),
        None => there(args),
    }
}

/// Counts rows on a progress bar.
struct Bar(ProgressBar);

impl Watch for Bar {
    fn weighed(&self, _: u64) {}
    fn shared(&self, rows: u64) {
        self.0.inc(rows);
    }
    fn cancelled(&self) -> bool {
        false
    }
}

fn here(args: &ComputeArgs, out: &Path) -> Result<(), String> {
    if out.exists() {
        return Err(format!("{} exists; name a new directory", out.display()));
    }
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", out.display());
    let out = &std::path::absolute(out).map_err(cannot)?;
    let epoch = args.epoch.parse().map_err(|e| format!("{e}"))?;
    let policy = trusted_policy(args)?;
    let tenant = args.tenant.as_ref().unwrap_or(&policy.policy.tenant);
    let earlier = match &args.corrects {
        Some(dir) => assets::earlier_of_each(&Dir::os(dir), &policy)
            .map_err(|e| format!("run {}: {e}", dir.display()))?,
        None => Vec::new(),
    };
    let sealed = Sealed::open(&OsDisk, Path::new(&args.snapshot))
        .map_err(|e| format!("{}: {e}", args.snapshot))?;
    let parent = dir_of(out);
    // Made here, with the permissions that the user chose for new directories.
    std::fs::create_dir_all(out).map_err(cannot)?;
    let spool = Spool::beside(out, &parent);
    let target = |what: &str, asset: &Asset, _| Target::file(&OsDisk, &spool.file(what, asset));
    let jobs = assets::jobs(&policy, &earlier, sealed.accounts(), target).map_err(cannot)?;
    let watch = Bar(bar("compute", sealed.accounts() as u64, ROWS));
    let computed = assets::compute_each(tenant, &epoch, jobs, &sealed, &watch);
    watch.0.finish_and_clear();
    let written = computed.map_err(|e| e.to_string()).and_then(|computed| {
        dir::write(&Dir::os(out), &computed, &sealed, &policy).map_err(cannot)?;
        OsDisk.sync_dir(&parent).map_err(cannot)?;
        Ok(computed)
    });
    if written.is_err() {
        let _ = std::fs::remove_dir_all(out); // this run's own
    }
    spool.remove(&policy);
    let computed = written?;
    if args.json {
        let text = serde_json::to_string(&computed.manifest).map_err(|e| e.to_string())?;
        println!("{text}");
    } else {
        print_manifest(&computed.manifest);
        for also in &computed.also {
            println!("\n{}", also.manifest.asset);
            print_manifest(&also.manifest);
        }
    }
    match computed.quarantine {
        None => Ok(()),
        Some(stop) => Err(format!("the run is quarantined: {stop}")),
    }
}

/// The files in which tables are until the run has its own links to them.
struct Spool {
    /// Path and beginning of the names.
    stem: PathBuf,
}

impl Spool {
    fn beside(out: &Path, parent: &Path) -> Self {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        Self {
            stem: parent.join(format!(".new.{name}")),
        }
    }

    fn file(&self, what: &str, asset: &Asset) -> PathBuf {
        let mut path = self.stem.clone().into_os_string();
        path.push(format!(".{what}.{asset}"));
        path.into()
    }

    fn remove(&self, policy: &VerifiedPolicy) {
        for one in policy.policy.of_each_asset() {
            for what in ["payouts", "correction"] {
                let _ = std::fs::remove_file(self.file(what, &one.asset)); // there is none of what was not made
            }
        }
    }
}

/// The policy, if it is signed by the given key or the one in verifiers.json.
fn trusted_policy(args: &ComputeArgs) -> Result<VerifiedPolicy, String> {
    let key = match &args.policy_key {
        Some(key) => key.clone(),
        None => verifiers::read(&Layout::new(args.data_dir.as_deref())?)?.policy_public_key,
    };
    let ring = KeyRing::new(vec![key.parse::<PinnedKey>()?]);
    let (json, signature) = policy_files(&args.policy)?;
    verify_stored(&json, Some(&signature), &ring)
        .map_err(|e| format!("{}: {e}", args.policy.display()))
}

fn policy_files(path: &Path) -> Result<(Vec<u8>, Vec<u8>), String> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    let mut sig = path.as_os_str().to_owned();
    sig.push(".sig");
    Ok((read(path)?, read(Path::new(&sig))?))
}

fn there(args: &ComputeArgs) -> Result<(), String> {
    let epoch: EpochId = args.epoch.parse().map_err(|e| format!("{e}"))?;
    let remote = Remote::connect(args.data_dir.as_deref())?;
    let snapshot: ContentId = match args.snapshot.parse() {
        Ok(cid) => cid,
        Err(_) => remote.upload(Path::new(&args.snapshot))?,
    };
    let (json, signature) = policy_files(&args.policy)?;
    let policy =
        strict::from_slice(&json).map_err(|e| format!("{}: {e}", args.policy.display()))?;
    let signature = ron_service::signed_policy::parse_signature(&signature)
        .map_err(|e| format!("{}.sig: {e}", args.policy.display()))?;
    let id = strict::from_slice::<ron_proto::rewarder::RewardPolicy>(&json)
        .map_err(|e| format!("{}: {e}", args.policy.display()))?
        .id;
    let signed = SignedPolicy { policy, signature };
    let stored = remote.client.put_policy(&id, &signed, within());
    let stored = stored.map_err(failed)?;
    let request = ComputeRequest {
        snapshot,
        policy_id: id,
        policy_hash: stored.hash,
        dry_run: args.dry_run,
        adjusts: args.adjusts.clone(),
    };
    let asked = remote
        .client
        .compute(&epoch, &request, Duration::ZERO, within());
    let asked = asked.map_err(failed)?;
    // An epoch that settles automatically is awaited to its end; any other is at rest once it is
    // sealed, also if it waits for approvals.
    let settles = |run: &EpochRun| !args.dry_run && run.settles;
    let done = |run: &EpochRun| match run.state {
        RunState::Settled => true,
        RunState::Sealed => !settles(run),
        RunState::Review => true,
        _ => false,
    };
    let wait = Duration::from_secs(args.wait);
    let run = remote.watch(NamedRun::of(&asked).as_ref(), wait, done)?;
    print_run(&run, args.json)
}

pub fn settle(args: &SettleArgs) -> Result<(), String> {
    let epoch: EpochId = args.epoch.parse().map_err(|e| format!("{e}"))?;
    let remote = Remote::connect(args.data_dir.as_deref())?;
    remote.client.settle(&epoch, within()).map_err(failed)?;
    let wait = Duration::from_secs(args.wait);
    let run = remote.watch((&epoch).into(), wait, |run| run.state == RunState::Settled)?;
    print_run(&run, args.json)
}

fn print_manifest(manifest: &RunManifest) {
    let totals = &manifest.totals;
    println!("{}", manifest.commitment);
    if let (Some(epoch), Some(it)) = (&manifest.adjusts, &manifest.correction) {
        println!("{:<12} {:>40}", "corrects", epoch.as_str());
        println!("{:<12} {:>40}", "paid before", it.paid_minor.to_string());
        println!("{:<12} {:>40}", "overpaid", it.overpaid_minor.to_string());
    }
    println!("{:<12} {:>40}", "recipients", totals.recipients);
    for (what, amount) in [
        ("pool", totals.pool_minor),
        ("paid", totals.payout_minor),
        ("residual", totals.residual_minor),
    ] {
        println!("{what:<12} {:>40}", amount.to_string());
    }
}

pub(super) fn print_run(run: &EpochRun, json: bool) -> Result<(), String> {
    if json {
        println!("{}", serde_json::to_string(run).map_err(|e| e.to_string())?);
        return Ok(());
    }
    println!("epoch {} is {}", run.epoch_id, run.state.as_str());
    if run.dry_run {
        println!("dry run      {}", NamedRun::of(run).short());
    }
    if let Some(release) = run.release.as_ref().filter(|release| release.needed > 0) {
        let given: Vec<&str> = release.approvals.iter().map(|a| a.by.as_str()).collect();
        let by = if given.is_empty() {
            String::new()
        } else {
            format!(", by {}", given.join(", "))
        };
        println!("approvals    {} of {}{by}", given.len(), release.needed);
        for breach in &release.breaches {
            println!("guard rail   {}: {}", breach.code, breach.detail);
        }
    }
    if let Some(withdrawal) = &run.withdrawal {
        let (by, reason) = (&withdrawal.by, &withdrawal.reason);
        println!("withdrawn by {by}: {reason}");
    }
    if let Some(commitment) = run.commitment {
        println!("manifest     {commitment}");
    }
    for AssetTotals { asset, totals } in run.assets.iter().skip(1) {
        let (paid, residual) = (totals.payout_minor, totals.residual_minor);
        println!(
            "{:<12} {:>40} to {}, residual {residual}",
            asset.as_str(),
            paid.to_string(),
            totals.recipients
        );
    }
    if let Some(first) = run.assets.first() {
        println!("{:<12} {:>40}", "first asset", first.asset.as_str());
    }
    if let Some(totals) = &run.totals {
        println!("{:<12} {:>40}", "recipients", totals.recipients);
        println!("{:<12} {:>40}", "paid", totals.payout_minor.to_string());
        println!(
            "{:<12} {:>40}",
            "residual",
            totals.residual_minor.to_string()
        );
    }
    Ok(())
}
