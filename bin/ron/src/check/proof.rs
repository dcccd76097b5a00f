//! `ron rewarder verify-proof`: checks a payee's proof offline, with nothing but the file and the key that
//! manifests are signed with.

use std::path::PathBuf;

use clap::Args;
use ron_proto::rewarder::PayoutProof;
use ron_proto::strict;
use ron_service::pinned::{KeyRing, PinnedKey};
use svc_rewarder::manifest::verify::{ProofError, check_proof, check_signed_proof};

use crate::layout::Layout;
use crate::verifiers;

/// Maximum bytes of a proof: a manifest, and a path of one step for each doubling of the payees.
const FILE_MAX: u64 = 1 << 20;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron rewarder verify-proof proof.json --manifest-key 3nC1yKkQ7uF0lYb0kDq0yq7Xv2v3o1pQm1nq0c5m8rE\n  \
                  ron rewarder verify-proof proof.json --account acct:alice --json"
)]
pub struct ProofArgs {
    /// The file, as `ron rewarder prove` or GET /rewarder/epochs/{id}/proof/{account} gives it.
    file: PathBuf,
    /// Public key that manifests are signed with (base64url), instead of the one in verifiers.json.
    #[arg(long, allow_hyphen_values = true)]
    manifest_key: Option<String>,
    /// Accept a manifest that nobody has signed, as `compute --out` makes it; everything else is
    /// checked.
    #[arg(long)]
    unsigned: bool,
    /// Account that the proof must be of.
    #[arg(long)]
    account: Option<String>,
    /// Data directory of `ron up`, for its verifiers.json.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print what is proved as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ProofArgs) -> Result<(), String> {
    let at = |why: String| format!("{}: {why}", args.file.display());
    let proof = read(args).map_err(at)?;
    let signer = verify(args, &proof).map_err(at)?;
    if let Some(account) = &args.account
        && proof.payout.account.as_str() != account
    {
        return Err(at(format!("it is a proof of {}", proof.payout.account)));
    }
    let manifest = &proof.manifest;
    if args.json {
        let doc = serde_json::json!({
            "account": proof.payout.account, "amount_minor": proof.payout.amount_minor, "asset": manifest.asset,
            "tenant": manifest.tenant, "epoch_id": manifest.epoch_id, "commitment": manifest.commitment,
            "totals": manifest.totals, "signed_by": signer,
        });
        println!("{doc}");
        return Ok(());
    }
    println!("payout verified");
    let signed = signer.as_deref().unwrap_or("nobody");
    for (what, value) in [
        ("account", proof.payout.account.to_string()),
        (
            "amount",
            format!("{} {}", proof.payout.amount_minor, manifest.asset),
        ),
        (
            "epoch",
            format!("{} of {}", manifest.epoch_id, manifest.tenant),
        ),
        (
            "of",
            format!(
                "{} paid to {} accounts",
                manifest.totals.payout_minor, manifest.totals.recipients
            ),
        ),
        ("manifest", manifest.commitment.to_string()),
        ("signed by", signed.to_owned()),
    ] {
        println!("{what:<10} {value}");
    }
    Ok(())
}

fn read(args: &ProofArgs) -> Result<PayoutProof, String> {
    let length = std::fs::metadata(&args.file)
        .map_err(|e| e.to_string())?
        .len();
    if length > FILE_MAX {
        return Err(format!("it is not a proof: it has {length} bytes"));
    }
    let json = std::fs::read(&args.file).map_err(|e| e.to_string())?;
    strict::from_slice(&json).map_err(|e| format!("it is not a proof: {e}"))
}

/// The name of the key that signed the manifest; `None` where nobody has and that is accepted.
fn verify(args: &ProofArgs, proof: &PayoutProof) -> Result<Option<String>, String> {
    if args.unsigned && proof.signatures.is_empty() {
        check_proof(proof).map_err(|e| e.to_string())?;
        return Ok(None);
    }
    let key = match &args.manifest_key {
        Some(key) => key.clone(),
        None => verifiers::read(&Layout::new(args.data_dir.as_deref())?)?.manifest_public_key,
    };
    let ring = KeyRing::new(vec![key.parse::<PinnedKey>()?]);
    match check_signed_proof(proof, &ring) {
        Ok(signature) => Ok(Some(signature.key.clone())),
        Err(ProofError::Unsigned) => Err(
            "nobody has signed its manifest; a proof of a run that `ron rewarder compute --out` made is checked with --unsigned"
                .into(),
        ),
        Err(error) => Err(error.to_string()),
    }
}
