//! `ron audit rotate-key`: makes a new signing key of the audit log, and prints what parties that
//! pinned the old key need.

use std::path::PathBuf;

use clap::Args;
use ron_proto::kms::{RotateLogKey, RotateLogKeyAnswer};
use ron_proto::values::OpId;

use crate::kms;

#[derive(Args)]
#[command(
    after_help = "The old key and the new one sign a statement of each other, which the KMS publishes at /audit/v1/keys: whoever\npinned the old key is led to the new one by it. Both sign checkpoints until `audit.log_key_overlap` is over.\n\nExamples:\n  ron audit rotate-key\n  ron audit rotate-key --expected-number 1 --statement rotation.note\n  ron audit rotate-key --url http://127.0.0.1:7440 --token-file clients/operator.kms.token --json"
)]
pub struct RotateArgs {
    /// Data directory of `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Base URL of the KMS; that of the data directory when absent.
    #[arg(long)]
    url: Option<String>,
    /// File with a service token of scope kms:admin, mode 0600; the operator's of the data
    /// directory when absent.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Refuse unless this is the number of the current signing key (the first is 1).
    #[arg(long)]
    expected_number: Option<u32>,
    /// Idempotency id: the same id within 24 hours makes no second key.
    #[arg(long)]
    op_id: Option<OpId>,
    /// Write the statement signed by both keys to this file, for parties that pinned the old key.
    #[arg(long)]
    statement: Option<PathBuf>,
    /// Print the response as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: RotateArgs) -> Result<(), String> {
    let client = kms::client(
        args.data_dir.as_deref(),
        args.url,
        args.token_file.as_deref(),
    )?;
    let request = RotateLogKey {
        expected_number: args.expected_number,
        op_id: Some(kms::op_id(args.op_id)),
    };
    let answer = kms::explain(client.rotate_log_key(&request, kms::deadline()))?;
    if let Some(path) = &args.statement {
        std::fs::write(path, &answer.statement)
            .map_err(|e| format!("the key was rotated, but {}: {e}", path.display()))?;
    }
    print_key(&answer, args.json)
}

/// Prints the new key alone on standard output, for shells.
fn print_key(answer: &RotateLogKeyAnswer, json: bool) -> Result<(), String> {
    if json {
        let text = serde_json::to_string_pretty(answer).map_err(|e| e.to_string())?;
        println!("{text}");
        return Ok(());
    }
    println!("{}", answer.vkey);
    eprintln!(
        "key {} of the audit log, leaf {}; verifiers that pinned the previous key find the new one at /audit/v1/keys",
        answer.number, answer.receipt.index
    );
    Ok(())
}
