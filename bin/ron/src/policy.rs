//! `ron policy`: signs policies through the KMS and verifies them offline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::{Credential, KmsClient};
use ron_kernel::Deadline;
use ron_proto::kms::{Digest, DigestAlg, SignRequest};
use ron_proto::passport::IssuerPolicy;
use ron_proto::policy::{PolicySig, policy_digest};
use ron_proto::rewarder::{POLICY_KIND, RewardPolicy};
use ron_proto::wallet::WalletPolicy;
use ron_proto::{Kid, b64, jcs, strict};
use ron_service::kept_policy::Versioned as _;
use ron_service::pinned::{KeyRing, PinnedKey};
use ron_service::signed_policy;
use svc_rewarder::calculus::check_policy;

use crate::fleet;
use crate::layout::{Layout, write_atomic};

/// Sign and verify policies.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron policy sign --kind wallet my-wallet.json\n  ron policy verify --kind wallet my-wallet.json"
)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the policy in canonical form and its signature beside it, as <file> and <file>.sig.
    Sign(FileArgs),
    /// Check a policy and its signature against the pinned public key. Needs no service.
    Verify(FileArgs),
}

#[derive(Args)]
struct FileArgs {
    /// Data directory, as given to `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
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

pub fn run(args: PolicyArgs) -> Result<(), String> {
    match args.command {
        Command::Sign(args) => sign_file(&args),
        Command::Verify(args) => verify_file(&args),
    }
}

fn sign_file(args: &FileArgs) -> Result<(), String> {
    let layout = Layout::new(args.data_dir.as_deref())?;
    let bootstrap = layout.read_bootstrap()?;
    let text = std::fs::read(&args.file)
        .map_err(|e| format!("cannot read {}: {e}", args.file.display()))?;
    let tree: serde_json::Value =
        strict::from_slice(&text).map_err(|e| format!("{}: {e}", args.file.display()))?;
    let usable = match args.kind.as_str() {
        POLICY_KIND => check_reward(&tree),
        WalletPolicy::KIND => check_wallet(&tree),
        _ => check_issuer(&tree),
    };
    usable.map_err(|e| format!("{}: {e}", args.file.display()))?;
    let credential = Credential::from_file(&layout.operator_token())?;
    let at = fleet::reach(&layout, "ron-kms")?;
    let kms = KmsClient::new(&at.url, credential, at.http);
    let key: Kid = bootstrap
        .policy_key
        .parse()
        .map_err(|e| format!("bootstrap.json: {e}"))?;
    let (bytes, sig) = sign(&kms, &key, &args.kind, &tree)?;
    write_signed(&args.file, &bytes, &sig)?;
    println!("signed {} with {}", args.file.display(), sig.key);
    Ok(())
}

/// A policy that issuer and KMS would refuse is not signed; the error has all its faults.
fn check_issuer(policy: &serde_json::Value) -> Result<(), String> {
    let policy = strict::from_slice::<IssuerPolicy>(policy.to_string().as_bytes());
    let faults = policy
        .map_err(|e| format!("not an issuer policy: {e}"))?
        .faults();
    if faults.is_empty() {
        return Ok(());
    }
    Err(faults.join("\n  "))
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

/// Canonical bytes of a policy and its signature by the KMS.
pub fn sign(
    kms: &KmsClient,
    key: &Kid,
    kind: &str,
    policy: &serde_json::Value,
) -> Result<(Vec<u8>, PolicySig), String> {
    let bytes =
        jcs::to_vec(policy).map_err(|e| format!("the policy has no canonical form: {e}"))?;
    let digest = Digest::new(DigestAlg::Blake3, &policy_digest(kind, &bytes));
    let answer = kms
        .sign(
            &SignRequest::digest(key.clone(), digest),
            Deadline::within(Duration::from_secs(5)),
        )
        .map_err(|e| format!("ron-kms: {e}"))?;
    let first = answer
        .signatures
        .first()
        .ok_or("ron-kms answered without a signature")?;
    let sig = PolicySig {
        alg: "ed25519".to_owned(),
        key: format!("{}#v{}", answer.key, answer.version),
        value: b64::url(first.signature.as_slice()),
    };
    Ok((bytes, sig))
}

/// Writes policy and signature.
pub fn write_signed(path: &Path, bytes: &[u8], sig: &PolicySig) -> Result<(), String> {
    write_atomic(path, bytes, 0o600)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    write_atomic(
        Path::new(&name),
        &signed_policy::signature_bytes(sig)?,
        0o600,
    )
}

fn verify_file(args: &FileArgs) -> Result<(), String> {
    let pinned = match &args.key {
        Some(key) => key.clone(),
        None => {
            Layout::new(args.data_dir.as_deref())?
                .read_bootstrap()?
                .policy_public_key
        }
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
