//! `ron policy`: signs policies through the KMS and puts them in force; shows, checks, explains and verifies them offline.

mod apply;
mod explain;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ron_proto::passport::IssuerPolicy;
use ron_proto::rewarder::{POLICY_KIND, RewardPolicy};
use ron_proto::strict;
use ron_proto::wallet::WalletPolicy;
use ron_service::kept_policy::Versioned as _;
use ron_service::pinned::{KeyRing, PinnedKey};
use ron_service::signed_policy;
use svc_rewarder::calculus::check_policy;

use self::apply::ApplyArgs;
use self::explain::ExplainArgs;
use crate::change;
use crate::layout::Place;

/// Show, check, explain, apply, sign and verify policies.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron policy show\n  ron policy check --kind issuer draft.json\n  ron policy explain --client shop --audience https://orders.example.org/\n  ron policy apply --kind wallet my-wallet.json"
)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the signed policy in the data directory, once its signature is verified.
    Show(ShowArgs),
    /// Say everything for which the services would refuse a policy. Needs no service.
    Check(CheckArgs),
    /// Say whether a client would get a token, and which rule decides. Needs no service.
    Explain(ExplainArgs),
    /// Sign a changed policy and put it in force; prints what changes, and waits until its services act by it.
    Apply(ApplyArgs),
    /// Write the policy in canonical form and its signature beside it, as <file> and <file>.sig.
    Sign(FileArgs),
    /// Check a policy and its signature against the pinned public key. Needs no service.
    Verify(FileArgs),
}

#[derive(Args)]
struct FileArgs {
    #[command(flatten)]
    place: Place,
    /// Kind of the policy: the service that it is for.
    #[arg(long, value_parser = ["issuer", "wallet", "reward"])]
    kind: String,
    /// Public key to verify with (base64url, or NAME=base64url); the one in bootstrap.json when
    /// absent.
    #[arg(long, allow_hyphen_values = true)]
    key: Option<String>,
    /// File with the policy.
    file: PathBuf,
}

#[derive(Args)]
struct ShowArgs {
    #[command(flatten)]
    place: Place,
    /// Kind of the policy: the service that it is for.
    #[arg(long, default_value = "issuer", value_parser = ["issuer", "wallet", "reward"])]
    kind: String,
}

#[derive(Args)]
struct CheckArgs {
    /// Kind of the policy: the service that it is for.
    #[arg(long, value_parser = ["issuer", "wallet", "reward"])]
    kind: String,
    /// File with the policy, signed or not.
    file: PathBuf,
}

pub fn run(args: PolicyArgs) -> Result<(), String> {
    match args.command {
        Command::Show(args) => show_file(&args),
        Command::Check(args) => {
            read_checked(&args.kind, &args.file)?;
            println!("{} is a sound {} policy", args.file.display(), args.kind);
            Ok(())
        }
        Command::Explain(args) => explain::run(&args),
        Command::Apply(args) => apply::run(&args),
        Command::Sign(args) => sign_file(&args),
        Command::Verify(args) => verify_file(&args),
    }
}

fn sign_file(args: &FileArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    // A missing data directory is said before the faults of a file.
    layout.read_bootstrap()?;
    let tree = read_checked(&args.kind, &args.file)?;
    let (bytes, sig) = change::sign_here(&layout, &args.kind, &tree)?;
    change::write_signed(&args.file, &bytes, &sig)?;
    println!("signed {} with {}", args.file.display(), sig.key);
    Ok(())
}

/// A policy that its service would accept, as a document.
fn read_checked(kind: &str, path: &Path) -> Result<serde_json::Value, String> {
    let at = |why: String| format!("{}: {why}", path.display());
    let text = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let tree: serde_json::Value = strict::from_slice(&text).map_err(|e| at(e.to_string()))?;
    let usable = match kind {
        POLICY_KIND => check_reward(&tree),
        WalletPolicy::KIND => check_wallet(&tree),
        _ => issuer_policy(&tree).map(drop),
    };
    usable.map_err(at)?;
    Ok(tree)
}

/// A policy that issuer and KMS would accept; the error has all its faults.
fn issuer_policy(tree: &serde_json::Value) -> Result<IssuerPolicy, String> {
    let policy = strict::from_slice::<IssuerPolicy>(tree.to_string().as_bytes());
    let policy = policy.map_err(|e| format!("not an issuer policy: {e}"))?;
    change::sound(&policy)?;
    Ok(policy)
}

fn show_file(args: &ShowArgs) -> Result<(), String> {
    let signed = change::load::<serde_json::Value>(&args.place.layout()?, &args.kind)?;
    let json = serde_json::to_string_pretty(&signed.policy).map_err(|e| e.to_string())?;
    println!("{json}");
    eprintln!(
        "{} {}, signed by {}",
        args.kind, signed.hash, signed.sig.key
    );
    Ok(())
}

/// A policy that the wallet would refuse is not signed.
fn check_wallet(policy: &serde_json::Value) -> Result<(), String> {
    let policy = strict::from_slice::<WalletPolicy>(policy.to_string().as_bytes());
    svc_wallet::check_policy(&policy.map_err(|e| format!("not a wallet policy: {e}"))?)
}

/// A policy that the rewarder would refuse is not signed.
fn check_reward(policy: &serde_json::Value) -> Result<(), String> {
    let policy = strict::from_slice::<RewardPolicy>(policy.to_string().as_bytes());
    let policy = policy.map_err(|e| format!("not a reward policy: {e}"))?;
    check_policy(&policy).map_err(|e| e.to_string())
}

fn verify_file(args: &FileArgs) -> Result<(), String> {
    let pinned = match &args.key {
        Some(key) => key.clone(),
        None => args.place.layout()?.read_bootstrap()?.policy_public_key,
    };
    let pinned: PinnedKey = pinned.parse().map_err(|e| format!("the pinned key: {e}"))?;
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    };
    let bytes = read(&args.file)?;
    let mut sig_name = args.file.as_os_str().to_owned();
    sig_name.push(".sig");
    let sig = signed_policy::parse_signature(&read(Path::new(&sig_name))?)
        .map_err(|e| format!("{}: {e}", Path::new(&sig_name).display()))?;
    let ring = KeyRing::new(vec![pinned]);
    let checked = signed_policy::check::<serde_json::Value>(&args.kind, &bytes, &sig, &ring)
        .map_err(|why| format!("policy {} {why}", args.file.display()))?;
    println!(
        "verified {} {}, signed by {}",
        args.kind, checked.hash, sig.key
    );
    Ok(())
}
