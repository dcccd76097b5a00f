//! `ron wallet batch`: a request from a file, and its results as a table.

use std::io::Read as _;
use std::path::Path;

use ron_client::{ClientError, WalletClient};
use ron_proto::ledger::MAX_COMMIT_BYTES;
use ron_proto::wallet::{Batch, ItemOutcome};
use ron_proto::{IdemKey, strict};

use super::{Out, deadline, explain};

/// Sends the batch in `file`. An item that was refused is an error, after its result was printed.
pub fn commit(wallet: &WalletClient, file: &Path, key: &IdemKey, out: Out) -> Result<(), String> {
    let request = read(file)?;
    let answer = explain(wallet.batch(key, &request, deadline()).map_err(name_item))?;
    if out.json {
        Out::print(&answer)?;
    } else {
        println!("{:<10} {key}", "key");
        print(&answer.results);
    }
    match refused(&answer.results) {
        0 => Ok(()),
        n => Err(format!(
            "{n} of {} items were refused; the others took effect",
            answer.results.len()
        )),
    }
}

fn read(file: &Path) -> Result<Batch, String> {
    let name = file.display();
    let bytes = if file == Path::new("-") {
        let mut bytes = Vec::new();
        // One byte more than the wallet accepts, so that it refuses a longer one.
        let most = MAX_COMMIT_BYTES as u64 + 1;
        let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
        read.map_err(|e| format!("standard input: {e}"))?;
        bytes
    } else {
        std::fs::read(file).map_err(|e| format!("{name}: {e}"))?
    };
    strict::from_slice(&bytes).map_err(|e| {
        format!("{name}: {e}; it must be the body of POST /v1/batch: {{\"items\": [{{\"op\": \"transfer\", ...}}]}}")
    })
}

/// Adds the number of the refused item, which the wallet gives as a detail.
fn name_item(mut e: ClientError) -> ClientError {
    if let ClientError::Refused { problem, .. } = &mut e
        && let Some(item) = problem.details.as_ref().and_then(|d| d["item"].as_u64())
    {
        problem.detail = format!("items[{item}]: {}", problem.detail);
    }
    e
}

/// Number of refused items.
pub fn refused(results: &[ItemOutcome]) -> usize {
    let refused = |r: &&ItemOutcome| matches!(r, ItemOutcome::Refused { .. });
    results.iter().filter(refused).count()
}

/// The results as a table, for people.
pub fn print(results: &[ItemOutcome]) {
    println!(
        "{:>5}  {:<8}  {:<20}  {:>20}  {:<8}  {:<35}  from -> to",
        "item", "op", "outcome", "amount", "asset", "txid"
    );
    for (i, result) in results.iter().enumerate() {
        match result {
            ItemOutcome::Done { receipt: r, .. } => {
                let text = |v: Option<String>| v.unwrap_or_else(|| "-".to_owned());
                println!(
                    "{i:>5}  {:<8}  {:<20}  {:>20}  {:<8}  {:<35}  {} -> {}",
                    r.op.as_str(),
                    "done",
                    text(r.amount_minor.map(|a| a.to_string())),
                    text(r.asset.as_ref().map(ToString::to_string)),
                    r.txid.to_string(),
                    text(r.from.as_ref().map(ToString::to_string)),
                    text(r.to.as_ref().map(ToString::to_string)),
                );
            }
            ItemOutcome::Refused { code } => {
                println!(
                    "{i:>5}  {:<8}  {:<20}  {}",
                    "-",
                    code.as_str(),
                    code.meaning()
                );
            }
        }
    }
}
