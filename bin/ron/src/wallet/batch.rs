//! `ron wallet batch`: a request from a file, and its results as a table.

use std::io::Read as _;
use std::path::Path;

use ron_client::{ClientError, WalletClient};
use ron_proto::ledger::MAX_COMMIT_BYTES;
use ron_proto::strict;
use ron_proto::wallet::Batch;

use super::deadline;
use super::show::{of_items, refused};
use super::writes::Key;
use crate::table::Out;

/// Sends the batch in `file`. An item that was refused is an error, after its result was printed.
pub fn commit(wallet: &WalletClient, file: &Path, key: &Key, out: Out) -> Result<(), String> {
    let request = read(file)?;
    let answer = wallet.batch(key.idem(), &request, deadline());
    let answer = key.explain(wallet, answer.map_err(name_item))?;
    out.note(&format!("{:<10} {}", "key", key.idem()));
    out.table(&answer, &of_items(&answer.results))?;
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
