//! Backup and restore of the ledger's data directory: the log and its key. Everything else is
//! derived from the log and rebuilt at the next start.
//!
//! A backup may be taken while the ledger runs, because the log only grows. The checkpoint is
//! copied first, so that the segments copied after it hold at least the entries that it covers. A
//! write in progress at the end of the copy leaves a torn tail, which is cut off when the log is
//! opened. Only a verified copy counts as a backup, so both directions verify.

use std::io;
use std::path::{Path, PathBuf};

use ron_files::{Disk as _, OsDisk, rename_durably};
use ron_service::log_host::note_key::{KEY_FILE, VKEY_FILE};
use ron_tlog::append::archived_files;
use ron_tlog::{OpenError, VerifierKey};

use crate::verify::{Fault, Report, verify_dir};

/// Why a backup or a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The target already exists.
    #[error("{0} exists already; move it away first")]
    InTheWay(PathBuf),
    #[error("{0} holds no ledger: it has no log directory")]
    NoLedger(PathBuf),
    #[error(transparent)]
    Log(#[from] OpenError),
    #[error("the copy does not verify: {0}")]
    NotWhole(#[from] Fault),
}

type BackupResult<T> = Result<T, BackupError>;

fn at<T>(path: &Path, result: io::Result<T>) -> BackupResult<T> {
    result.map_err(|source| BackupError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Copies the ledger in the data directory `data` to `to`, which must not exist, and verifies the
/// copy. The copy includes the secret key of the checkpoints: protect it like the ledger itself.
pub fn backup(
    data: &Path,
    to: &Path,
    vkey: &VerifierKey,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> BackupResult<Report> {
    if to.exists() {
        return Err(BackupError::InTheWay(to.to_owned()));
    }
    copy_log(&source_log(data)?, &to.join("log"))?;
    copy_keys(data, to)?;
    Ok(verify_dir(to, vkey, progress)?)
}

/// Verifies the backup in `from` and installs it as the ledger of `data`, which must have no log.
/// The caller holds the lock of `data`. Files derived from another log are removed.
pub fn restore(
    from: &Path,
    data: &Path,
    vkey: &VerifierKey,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> BackupResult<Report> {
    let log = data.join("log");
    if log.exists() {
        return Err(BackupError::InTheWay(log));
    }
    let report = verify_dir(from, vkey, progress)?;
    let coming = data.join("log.restoring");
    if coming.exists() {
        at(&coming, std::fs::remove_dir_all(&coming))?;
    }
    copy_log(&source_log(from)?, &coming)?;
    let derived = data.join("derived");
    if derived.exists() {
        at(&derived, std::fs::remove_dir_all(&derived))?;
    }
    for name in [
        "projection.sqlite",
        "projection.sqlite-wal",
        "projection.sqlite-shm",
    ] {
        let path = data.join(name);
        if path.exists() {
            at(&path, std::fs::remove_file(&path))?;
        }
    }
    copy_keys(from, data)?;
    // The rename is the last step: before it there is no ledger here, after it a complete one.
    at(&log, rename_durably(&OsDisk, &coming, &log))?;
    Ok(report)
}

fn source_log(data: &Path) -> BackupResult<PathBuf> {
    let log = data.join("log");
    if log.is_dir() {
        Ok(log)
    } else {
        Err(BackupError::NoLedger(data.to_owned()))
    }
}

/// Copies the files of a log in the order that makes a live copy consistent: metadata and
/// checkpoint, then the segments that existed at that moment (all but the last are complete), then
/// their indexes.
fn copy_log(from: &Path, to: &Path) -> BackupResult<()> {
    at(to, OsDisk.create_dir_all(to))?;
    for name in ["log.meta", "checkpoint"] {
        if from.join(name).exists() {
            copy(from, to, name, 0o600)?;
        }
    }
    let names = at(from, OsDisk.list(from))?;
    for ending in [".seg", ".idx"] {
        for name in names.iter().filter(|n| n.ends_with(ending)) {
            copy(from, to, name, 0o600)?;
        }
    }
    // A copy has what is archived beside it, and needs no archive.
    for packed in archived_files(&OsDisk, from)? {
        let target = to.join(packed.file_name().unwrap_or_default());
        at(&packed, OsDisk.copy(&packed, &target, 0o600))?;
    }
    at(to, OsDisk.sync_dir(to))
}

/// Copies the keys that `to` does not have.
fn copy_keys(from: &Path, to: &Path) -> BackupResult<()> {
    for (name, mode) in [(KEY_FILE, 0o600), (VKEY_FILE, 0o644)] {
        if from.join(name).exists() && !to.join(name).exists() {
            copy(from, to, name, mode)?;
        }
    }
    at(to, OsDisk.sync_dir(to))
}

fn copy(from: &Path, to: &Path, name: &str, mode: u32) -> BackupResult<()> {
    let target = to.join(name);
    at(&target, OsDisk.copy(&from.join(name), &target, mode))
}
