//! Offline checks: `ron audit`, `ron ledger verify`, `ron revocations verify`, `ron rewarder verify | prove | verify-proof`. They need a
//! directory and public keys and no service; they take no lock, so they also work beside running
//! services. The module also holds the one change that concerns auditors: a new key of the audit
//! log.

pub mod audit;
mod logs;
mod proof;
mod rotate;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use ron_files::Dir;
use ron_proto::Account;
use ron_proto::rewarder::{PayoutProof, RunStatus, RunTotals};
use ron_service::pinned::{KeyRing, PinnedKey};
use ron_tlog::note::VerifierKey;
use svc_rewarder::manifest::assets;
use svc_rewarder::manifest::bundle::{self, Checked};
use svc_rewarder::manifest::correction::Earlier;
use svc_rewarder::manifest::dir::{RUN, RUN_SIG};
use svc_rewarder::manifest::reader::{ProveError, prove};
use svc_rewarder::manifest::verify::{Pins, check_proof, read_manifest, verify_run_dir};

use crate::layout::Layout;
use crate::rewarder::place::{self, Place, Site};
use crate::verifiers;

/// Commands that need nothing but a log.
#[derive(Subcommand)]
pub enum LogCommand {
    /// Check every leaf, the tree, the checkpoint and its signature; names the first bad leaf.
    Verify(LogPlace),
}

#[derive(Args)]
pub struct LogPlace {
    /// Data directory of `ron up` (or a copy of it).
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Directory of the log, instead of the one in the data directory.
    #[arg(long)]
    log_dir: Option<PathBuf>,
    /// Verifier key of the log (name+id+key), instead of the one in verifiers.json.
    #[arg(long)]
    vkey: Option<String>,
}

/// The offline checks of `ron rewarder`.
#[derive(Subcommand)]
pub enum RewarderCommand {
    /// Recompute a run from its inputs and check everything in its directory.
    Verify {
        /// Directory of the run, or address of a bundle; every run of the data directory when absent.
        dir: Option<String>,
        /// Accept a run without a manifest signature, as `compute --out` makes it; everything else
        /// is checked.
        #[arg(long, requires = "dir")]
        unsigned: bool,
        /// Directory of the run that this one corrects: checks that it has paid what the correction says.
        /// Without `dir`, each correction is checked against the run beside it.
        #[arg(long, requires = "dir")]
        corrects: Option<PathBuf>,
        #[command(flatten)]
        keys: RunKeys,
    },
    /// Show that an account's payout is part of a run's total.
    Prove {
        /// Directory of the run, or address of a bundle; of an epoch that pays several assets the first, and
        /// DIR/asset-NAME for another one.
        dir: String,
        /// Account whose payout is proved.
        account: String,
    },
    /// Check a payee's proof and print what it proves. Needs no service, no run and no network.
    VerifyProof(proof::ProofArgs),
}

/// Keys to check runs with.
#[derive(Args)]
pub struct RunKeys {
    /// Data directory of `ron up` (or a copy of it).
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Public key that policies are signed with (base64url), instead of the one in verifiers.json.
    #[arg(long, allow_hyphen_values = true)]
    policy_key: Option<String>,
    /// Public key that manifests are signed with (base64url), instead of the one in verifiers.json.
    #[arg(long, allow_hyphen_values = true)]
    manifest_key: Option<String>,
}

pub fn ledger(place: LogPlace) -> Result<(), String> {
    let (dir, vkey) = place.resolve("ron-ledger/data/log", |v| v.ledger_vkey)?;
    println!("{}", ledger_dir(&dir, &vkey)?);
    Ok(())
}

pub fn revocations(place: LogPlace) -> Result<(), String> {
    let below = format!("svc-passport/data/{}", svc_passport::LOG_DIR);
    let (dir, vkey) = place.resolve(&below, |v| v.revocations_vkey)?;
    println!("{}", revocations_dir(&dir, &vkey)?);
    Ok(())
}

pub fn rewarder(command: RewarderCommand) -> Result<(), String> {
    match command {
        RewarderCommand::Verify {
            dir,
            unsigned,
            corrects,
            keys,
        } => {
            let layout = Layout::new(keys.data_dir.as_deref())?;
            let pins = keys.pins(&layout, unsigned)?;
            if let Some(name) = dir {
                let place = Place::need(&name, place::ALL)?;
                println!("{}", run_dir(&place.dir, &pins)?);
                return match corrects {
                    Some(earlier) => correction_of(&place.dir, &earlier),
                    None => Ok(()),
                };
            }
            let dirs = run_dirs(&layout)?;
            if dirs.is_empty() {
                return Err(format!("there is no run under {}", layout.root.display()));
            }
            for dir in dirs {
                println!("{}", run_dir(&dir, &pins)?);
                if let Some(earlier) = beside(&dir)? {
                    correction_of(&dir, &earlier)?;
                }
            }
            Ok(())
        }
        RewarderCommand::Prove { dir, account } => {
            let account = account.parse().map_err(|e| format!("{e}"))?;
            let proof = proof_of(&dir, &account)?;
            let text = serde_json::to_string_pretty(&proof).map_err(|e| e.to_string())?;
            println!("{text}");
            Ok(())
        }
        RewarderCommand::VerifyProof(args) => proof::run(&args),
    }
}

/// The directory of the run that the one in `dir` corrects, if it is still there.
fn beside(dir: &Path) -> Result<Option<PathBuf>, String> {
    let at = |e| format!("run {}: {e}", dir.display());
    let manifest = read_manifest(&Dir::os(dir)).map_err(at)?;
    let (Some(epoch), Some(_), Some(tenant)) =
        (&manifest.adjusts, &manifest.correction, dir.parent())
    else {
        return Ok(None);
    };
    let earlier = tenant.join(format!("epoch-{epoch}"));
    Ok(earlier.join(RUN).exists().then_some(earlier))
}

/// Checks a correction against the run that it corrects.
fn correction_of(dir: &Path, earlier: &Path) -> Result<(), String> {
    let at = |e| format!("run {}: {e}", dir.display());
    let (run, before) = (Dir::os(dir), Dir::os(earlier));
    let manifest = read_manifest(&run).map_err(at)?;
    let known = |e| format!("run {}: {e}", earlier.display());
    let paid = read_manifest(&before).map_err(known)?;
    for dir in assets::of_each_asset(&run, &manifest) {
        let asset = read_manifest(&dir).map_err(at)?.asset;
        let before = assets::of_asset(&before, &paid, &asset)
            .ok_or_else(|| format!("run {} has paid no {asset}", earlier.display()))?;
        let before = Earlier::open(&before).map_err(known)?;
        before.check_correction(&dir).map_err(at)?;
    }
    println!(
        "    corrects epoch {}, and has what that has paid",
        paid.epoch_id
    );
    Ok(())
}

/// A bundle on a web server has the proof itself; it is read and checked, and nothing else is.
fn proof_of(name: &str, account: &Account) -> Result<PayoutProof, String> {
    if let Some(site) = Site::at(name)?
        && site.bundle()?.proofs > 0
    {
        let proof = site.proof(account)?;
        let proof = proof.ok_or_else(|| ProveError::NotPaid.to_string())?;
        check_proof(&proof).map_err(|e| format!("{name}: {e}"))?;
        return if proof.payout.account == *account {
            Ok(proof)
        } else {
            Err(format!("{name}: the proof is of {}", proof.payout.account))
        };
    }
    let place = Place::need(name, place::PAYOUTS)?;
    prove(&place.open(), account).map_err(|e| e.to_string())
}

impl LogPlace {
    /// The log's directory and its verifier key.
    pub fn resolve(
        &self,
        below: &str,
        key: impl Fn(verifiers::Verifiers) -> String,
    ) -> Result<(PathBuf, String), String> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let dir = self
            .log_dir
            .clone()
            .unwrap_or_else(|| layout.root.join(below));
        let vkey = match &self.vkey {
            Some(vkey) => vkey.clone(),
            None => key(verifiers::read(&layout)?),
        };
        Ok((dir, vkey))
    }
}

impl RunKeys {
    fn pins(&self, layout: &Layout, unsigned: bool) -> Result<Pins, String> {
        let kept = verifiers::read(layout);
        let one =
            |given: &Option<String>, kept: Result<String, String>| -> Result<KeyRing, String> {
                let text = match given {
                    Some(text) => text.clone(),
                    None => kept?,
                };
                Ok(KeyRing::new(vec![text.parse::<PinnedKey>()?]))
            };
        Ok(Pins {
            policy: one(&self.policy_key, kept.clone().map(|k| k.policy_public_key))?,
            // Without a key no signature verifies, so a run that has one is refused all the same.
            manifest: match one(&self.manifest_key, kept.map(|k| k.manifest_public_key)) {
                Err(_) if unsigned && self.manifest_key.is_none() => KeyRing::default(),
                found => found?,
            },
            unsigned,
        })
    }
}

/// The public keys in `verifiers.json`.
pub fn kept_pins(layout: &Layout) -> Result<Pins, String> {
    RunKeys {
        data_dir: None,
        policy_key: None,
        manifest_key: None,
    }
    .pins(layout, false)
}

/// Verifies the ledger in a directory and returns the line to print.
pub fn ledger_dir(dir: &Path, vkey: &str) -> Result<String, String> {
    let bar = bar("ledger");
    let vkey = VerifierKey::parse(vkey).map_err(|e| format!("the verifier key: {e}"))?;
    let result =
        ron_ledger::verify::verify_dir(dir, &vkey, &mut |done, total| show(&bar, done, total));
    bar.finish_and_clear();
    let report = result.map_err(|e| format!("ledger {}: {e}", dir.display()))?;
    let erased = match report.erased {
        0 => String::new(),
        n => format!(", texts of {n} entries were erased"),
    };
    Ok(format!(
        "ledger verified: {} entries, {} leaves of them under a signed checkpoint, {} accounts, {} keys, money conserved in {} assets{erased}",
        report.entries,
        report.checkpoint_size,
        report.accounts,
        report.keys,
        report.assets.len()
    ))
}

/// Verifies the revocation log in a directory, and the database beside it; returns the line to print.
pub fn revocations_dir(dir: &Path, vkey: &str) -> Result<String, String> {
    let bar = bar("revocations");
    let vkey = VerifierKey::parse(vkey).map_err(|e| format!("the verifier key: {e}"))?;
    let result = svc_passport::verify(dir, &vkey, &mut |done, total| show(&bar, done, total));
    bar.finish_and_clear();
    let found = result.map_err(|e| format!("revocation log {}: {e}", dir.display()))?;
    let rows = match found.rows {
        Some(rows) => format!("{rows} rows of passport.db agree with it"),
        None => "no passport.db is beside it".to_owned(),
    };
    Ok(format!(
        "revocation log verified: {} leaves, {} of them under a signed checkpoint, {rows}",
        found.leaves, found.checkpoint_size
    ))
}

/// Verifies the run in a directory and returns the line to print.
pub fn run_dir(dir: &Path, pins: &Pins) -> Result<String, String> {
    let verified = verify_run_dir(&Dir::os(dir), pins).map_err(|e| {
        let unsigned = e.file == RUN_SIG && !dir.join(RUN_SIG).exists();
        let hint = if unsigned {
            "; nobody has signed this run. One that `ron rewarder compute --out` made is checked with --unsigned"
        } else {
            ""
        };
        format!("run {}: {e}{hint}", dir.display())
    })?;
    let proofs = match bundle::check(&Dir::os(dir)) {
        Ok(Checked::Bundle { proofs }) if proofs > 0 => format!(", {proofs} proofs hold"),
        Ok(_) => String::new(),
        Err(e) => return Err(format!("run {}: {e}", dir.display())),
    };
    let m = &verified.manifest;
    if m.status == RunStatus::Quarantined {
        let (epoch, commitment) = (&m.epoch_id, &m.commitment);
        return Ok(format!(
            "quarantine verified: epoch {epoch}, nothing is paid, {commitment}"
        ));
    }
    let signed = match verified.signature {
        Some(_) => "manifest verified",
        None => "computed again and equal, signed by nobody",
    };
    let sums = |totals: &RunTotals| {
        let (recipients, paid) = (totals.recipients, totals.payout_minor);
        let residual = totals.residual_minor;
        format!("{recipients} recipients, {paid} paid, {residual} residual")
    };
    let mut said = format!(
        "{signed}: epoch {}, {}{proofs}, {}",
        m.epoch_id,
        sums(&m.totals),
        m.commitment
    );
    for also in verified.also.iter().map(|also| &also.manifest) {
        let _ = write!(said, "\n    and {}: {}", also.asset, sums(&also.totals));
    }
    Ok(said)
}

/// Directories of the runs that pay, in order.
pub fn run_dirs(layout: &Layout) -> Result<Vec<PathBuf>, String> {
    let runs = layout.data("svc-rewarder").join("runs");
    let list = |dir: &Path| -> Result<Vec<PathBuf>, String> {
        let entries =
            std::fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
        let mut paths: Vec<PathBuf> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.is_dir())
            .collect();
        paths.sort();
        Ok(paths)
    };
    let mut found = Vec::new();
    for tenant in list(&runs)? {
        let named = |p: &PathBuf| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("epoch-"))
        };
        found.extend(list(&tenant)?.into_iter().filter(named));
    }
    Ok(found)
}

pub fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg:>12} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

pub fn show(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
}
