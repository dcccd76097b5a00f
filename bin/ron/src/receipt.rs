//! `ron receipt verify`: checks a receipt file offline, with nothing but the file and the key of the
//! ledger's log.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ron_ledger::receipt::{self, Proven};
use ron_proto::ledger::PrivateFacts;
use ron_tlog::note::VerifierKey;
use ron_tlog::policy::Policy;
use serde_json::json;

use crate::layout::Layout;
use crate::verifiers;
use crate::wallet::{private_fields, receipt_fields};

/// Maximum bytes of a receipt file.
const FILE_MAX: u64 = 1 << 20;

/// Verify receipt files, which prove transactions without the ledger.
#[derive(Args)]
pub struct ReceiptArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a receipt file and print what it proves. Needs no service and no network.
    Verify {
        /// The file, as `ron wallet receipt` or GET /v1/tx/{txid}/receipt gives it.
        file: PathBuf,
        /// Verifier key of the ledger's log (name+id+key), instead of the one in verifiers.json.
        #[arg(long)]
        vkey: Option<String>,
        /// C2SP tlog-policy file that the checkpoint must satisfy as well.
        #[arg(long)]
        policy: Option<PathBuf>,
        /// Data directory of `ron up`, for its verifiers.json.
        #[arg(long)]
        data_dir: Option<PathBuf>,
        /// Print what is proved as JSON.
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: ReceiptArgs) -> Result<(), String> {
    let Command::Verify {
        file,
        vkey,
        policy,
        data_dir,
        json,
    } = args.command;
    let vkey = match vkey {
        Some(vkey) => vkey,
        None => verifiers::read(&Layout::new(data_dir.as_deref())?)?.ledger_vkey,
    };
    let proven = verify(&file, &vkey, policy.as_deref())
        .map_err(|why| format!("{}: {why}", file.display()))?;
    println!(
        "{}",
        if json {
            as_json(&proven)?
        } else {
            as_text(&proven)
        }
    );
    Ok(())
}

fn verify(file: &Path, vkey: &str, policy: Option<&Path>) -> Result<Proven, String> {
    let vkey = VerifierKey::parse(vkey.trim()).map_err(|e| format!("the verifier key: {e}"))?;
    let policy = policy.map(read_policy).transpose()?;
    let length = std::fs::metadata(file).map_err(|e| e.to_string())?.len();
    if length > FILE_MAX {
        return Err(format!("it is not a receipt file: it has {length} bytes"));
    }
    let json = std::fs::read(file).map_err(|e| e.to_string())?;
    let read = receipt::read(&json).map_err(|e| e.to_string())?;
    receipt::verify(&read, &vkey, policy.as_ref()).map_err(|e| e.to_string())
}

fn read_policy(path: &Path) -> Result<Policy, String> {
    let named = |e: &dyn std::fmt::Display| format!("the policy {}: {e}", path.display());
    let text = std::fs::read(path).map_err(|e| named(&e))?;
    Policy::parse(&text).map_err(|e| named(&e))
}

fn as_text(proven: &Proven) -> String {
    let mut fields = receipt_fields(&proven.receipt);
    if let Some((tenant, principal)) = &proven.maker {
        fields.push(("made by", format!("{principal} of {tenant}")));
    }
    fields.extend(private_fields(&proven.private));
    fields.push(("hash", proven.receipt.receipt_hash.to_string()));
    let checkpoint = &proven.checkpoint;
    let mut log = format!("{}, {} leaves", checkpoint.origin, checkpoint.size);
    if !proven.witnesses.is_empty() {
        log = format!("{log}, cosigned by {}", proven.witnesses.join(", "));
    }
    fields.push(("log", log));
    let lines = fields
        .iter()
        .map(|(name, value)| format!("{name:<10} {value}"));
    format!("receipt verified\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn as_json(proven: &Proven) -> Result<String, String> {
    let nothing = proven.private == PrivateFacts::default();
    let doc = json!({
        "receipt": proven.receipt,
        "private": (!nothing).then_some(&proven.private),
        "checkpoint": { "origin": proven.checkpoint.origin, "size": proven.checkpoint.size },
        "witnesses": proven.witnesses,
    });
    serde_json::to_string_pretty(&doc).map_err(|e| e.to_string())
}
