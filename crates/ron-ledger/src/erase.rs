//! Erases the texts of one entry: memo, metadata and reference. Leaf, tree and root stay as they are,
//! and so do key, nonce and limits; the private record keeps the hashes of what was erased, so the
//! offline check still holds and counts the entry as erased.

use std::io;
use std::path::{Path, PathBuf};

use ron_files::{Disk as _, OsDisk};
use ron_proto::Timestamp;
use ron_proto::ledger::TxId;
use ron_tlog::OpenError;
use ron_tlog::append::rewrite_private;
use serde_json::json;

use crate::core::{Layout, PublicLeaf};

/// Name of the file with a line for each erasure.
pub const ERASURES: &str = "erasures.jsonl";

/// Why nothing was erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Log(#[from] OpenError),
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, EraseError> {
    result.map_err(|source| EraseError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Erases the texts of an entry in the ledger of the data directory `data`, whose lock the caller
/// holds. Returns how many texts were erased. The projection is removed, and the next start makes it
/// again from the log.
pub fn erase(
    data: &Path,
    txid: TxId,
    reason: &str,
    by: &str,
    now: Timestamp,
) -> Result<usize, EraseError> {
    // The line first: no erasure is without one, and a repeated command leaves a second line.
    let line = json!({"ts": now, "txid": txid, "seq": txid.seq(), "by": by, "reason": reason});
    record(&data.join(ERASURES), &line.to_string())?;
    for suffix in ["", "-wal", "-shm"] {
        let path = data.join(format!("projection.sqlite{suffix}"));
        if path.exists() {
            at(&path, std::fs::remove_file(&path))?;
        }
    }
    let mut erased = 0;
    let log = data.join("log");
    rewrite_private(&OsDisk, &log, txid.seq(), &mut |leaf, private| {
        let public = PublicLeaf::decode(leaf).map_err(|e| e.to_string())?;
        if public.txid() != txid {
            return Err("there is no entry with this id".to_owned());
        }
        let layout = Layout::of(private).map_err(|e| e.to_string())?;
        erased = layout.erase(private);
        if erased == 0 {
            return Err("it has no text that could be erased".to_owned());
        }
        Ok(())
    })?;
    Ok(erased)
}

/// Appends a line and makes it durable.
fn record(path: &Path, line: &str) -> Result<(), EraseError> {
    let append = || {
        let file = OsDisk.open_or_create(path)?;
        file.write_at(file.len()?, format!("{line}\n").as_bytes())?;
        file.sync_data()?;
        OsDisk.sync_dir(path.parent().unwrap_or(Path::new(".")))
    };
    at(path, append())
}
