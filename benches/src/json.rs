//! The time to parse a JSON body strictly, for bodies of the hot paths.

use std::hint::black_box;
use std::time::Instant;

use clap::Args;
use ron_proto::kms::SignBatch;
use ron_proto::ledger::{CommitRequest, Entry};
use ron_proto::strict::{self, StrictError};
use ron_proto::wallet::Transfer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Strict parsing of JSON bodies, on one thread.
#[derive(Args)]
pub struct JsonArgs {
    /// Rounds per figure; the fastest counts.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

/// Bytes parsed in a round.
const ROUND_BYTES: usize = 1 << 20;

/// Measures each body and prints a table.
pub fn run(args: &JsonArgs) -> Result<(), String> {
    let commit = commit()?;
    let item =
        json!({ "message": "A".repeat(344), "op_id": "01a202c1-c416-721c-8188-77b626a0f639" });
    let batch = json!({ "items": vec![item; 10] }).to_string();
    println!("| body | bytes | ns per body |\n|---|--:|--:|");
    row::<Transfer>(args, "transfer", transfer().as_bytes())?;
    row::<CommitRequest>(args, "commit of 100 transfers", &commit)?;
    row::<SignBatch>(args, "sign batch of 10", batch.as_bytes())?;
    row::<Value>(args, "the same commit as a free-form value", &commit)
}

/// The body of a transfer as clients send it.
pub fn transfer() -> String {
    let body = json!({
        "from": "acc:alice", "to": "acc:bob", "asset": "eur", "amount_minor": "1250", "nonce": 17, "memo": "invoice 4711"
    });
    body.to_string()
}

/// A commit of 100 transfers as the wallet sends it.
pub fn commit() -> Result<Vec<u8>, String> {
    let entry = json!({
        "kind": "transfer", "tenant": "default", "principal": "alice", "key": "01a202c1-c416-721c-8188-77b626a0f639",
        "from": "acc:alice", "to": "acc:bob", "asset": "eur", "amount_minor": "1250", "nonce": 17
    });
    let entry: Entry = serde_json::from_value(entry).map_err(|e| e.to_string())?;
    let commit = CommitRequest {
        entries: vec![entry; 100],
        linked: false,
        batch: false,
    };
    serde_json::to_vec(&commit).map_err(|e| e.to_string())
}

fn row<T: DeserializeOwned>(args: &JsonArgs, name: &str, bytes: &[u8]) -> Result<(), String> {
    let refused = |why: StrictError| format!("{name}: {why}");
    strict::from_slice::<T>(bytes).map_err(refused)?;
    let bodies = (ROUND_BYTES / bytes.len()).max(1);
    let mut fastest = f64::INFINITY;
    for _ in 0..args.rounds {
        let began = Instant::now();
        for _ in 0..bodies {
            black_box(strict::from_slice::<T>(black_box(bytes))).map_err(refused)?;
        }
        fastest = fastest.min(began.elapsed().as_nanos() as f64 / bodies as f64);
    }
    println!("| {name} | {} | {fastest:.0} |", bytes.len());
    Ok(())
}
